"""The kernel's statistics of NFS mounts (/proc/PID/mountstats): parsed, with the file systems of mountinfo."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from railscope.reading import SIGNED_LIMIT, Absent, Reading
from railscope_agent.sources.scan_source import parse_natural, whole_lines

MountKey: TypeAlias = tuple[str, str, str]
"""Export, mount point, protocol of the transport."""
ValueKey: TypeAlias = tuple[str, ...]
"""("age",), ("bytes", "0"), ("event", name), ("transport", field), ("READ", field)."""

EVENTS = (
    "inode_revalidate", "dentry_revalidate", "data_invalidate", "attribute_invalidate", "vfs_open",
    "vfs_lookup", "vfs_access", "vfs_update_page", "vfs_read_page", "vfs_read_pages",
    "vfs_write_page", "vfs_write_pages", "vfs_getdents", "vfs_setattr", "vfs_flush", "vfs_fsync",
    "vfs_lock", "vfs_file_release", "congestion_wait", "truncation", "write_extension",
    "silly_rename", "short_read", "short_write", "jukebox_delay", "pnfs_read", "pnfs_write",
)  # fmt: skip
OPERATIONS = frozenset({
    "READ", "WRITE", "COMMIT", "OPEN", "CLOSE", "GETATTR", "LOOKUP", "ACCESS", "READDIR",
    "READDIRPLUS",
})  # fmt: skip
"""The most frequent of the operations of all NFS versions; the others are omitted."""
OPERATION_FIELDS = (
    "operations", "transmissions", "timeouts", "sent", "received", "queue", "response",
    "execution", "errors",
)  # fmt: skip
_TIMES = {"queue", "response", "execution"}
_CONNECTED = (
    "port", "binds", "connects", "connect_time", "idle", "sends", "receives", "bad_xids",
    "in_flight", "backlog",
)  # fmt: skip
_TRANSPORTS: dict[str, tuple[str, ...]] = {
    "tcp": _CONNECTED,
    "local": _CONNECTED[1:],
    "udp": ("port", "binds", "sends", "receives", "bad_xids", "in_flight", "backlog"),
    "rdma": (
        *_CONNECTED, "read_chunks", "write_chunks", "reply_chunks", "requested", "replied",
        "pulled_up", "fixed_up", "registered", "failed_marshals", "bad_replies", "no_message",
        "recycled", "orphaned", "allocated", "invalidated", "no_context", "reply_waits",
    ),
}  # fmt: skip
_DEVICE = re.compile(r"device (\S+) mounted on (\S+) with fstype (nfs4?)(?: statvers=\S+)?")
_MOUNTINFO = re.compile(r"\d+ \d+ (?P<file_system>\d+:\d+) \S+ (?P<place>\S+) .*? - nfs4? ")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(slots=True)
class NfsMount:
    """One mount: its options and its numbers."""

    export: str
    mount_point: str
    options: dict[str, str] = field(default_factory=dict)
    protocol: str = ""
    connections: int = 0
    values: dict[ValueKey, Reading] = field(default_factory=dict)

    @property
    def key(self) -> MountKey:
        """Identity of the mount."""
        protocol = self.protocol or self.options.get("proto", "")
        return decode_octal_escapes(self.export), decode_octal_escapes(self.mount_point), protocol


def decode_octal_escapes(name: str) -> str:
    r"""Decode the kernel's octal escapes in a name, such as \040 for a space."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), name)


def parse_mountstats(content: bytes) -> list[NfsMount]:
    """All NFS mounts, in the order of the file. Unrecognized lines are skipped.

    Format of /proc/self/mountstats: torvalds/linux fs/nfs/super.c (nfs_show_stats),
    include/linux/nfs_iostat.h, net/sunrpc/stats.c, and for the transports net/sunrpc/xprtsock.c and
    xprtrdma/transport.c.
    """
    mounts: list[NfsMount] = []
    mount: NfsMount | None = None
    for line in whole_lines(content):
        if line.startswith(("device ", "no device ")):
            match = _DEVICE.fullmatch(line)
            # None for other file systems: their lines must not be added to the mount before.
            mount = NfsMount(match[1], match[2]) if match else None
            if mount:
                mounts.append(mount)
        elif mount:
            name, colon, rest = line.strip().partition(":")
            if colon:
                _add_line(mount, name, rest.strip())
    return mounts


def _add_line(mount: NfsMount, name: str, rest: str) -> None:
    cells = rest.split()
    numbers = map(parse_natural, cells)
    if name == "opts":
        pairs = (option.partition("=") for option in rest.split(","))
        mount.options = {option: value for option, _, value in pairs}
    elif name == "age" and cells:
        mount.values["age",] = next(numbers)
    elif name == "bytes":
        mount.values |= {("bytes", str(i)): number for i, number in enumerate(numbers)}
    elif name == "events":
        mount.values |= {("event", e): number for e, number in zip(EVENTS, numbers, strict=False)}
    elif name == "xprt" and cells:
        _take_transport(mount, cells[0], cells[1:])
    elif name in OPERATIONS:
        named = zip(OPERATION_FIELDS, numbers, strict=False)
        mount.values |= {(name, part): _of_operation(part, number) for part, number in named}


def _of_operation(part: str, reading: Reading) -> Reading:
    """One number of an operation. Kernels let a time fall below 0, and print it unsigned."""
    if part in _TIMES and isinstance(reading, int) and reading >= SIGNED_LIMIT:
        return Absent.ERROR
    return reading


def _take_transport(mount: NfsMount, protocol: str, cells: Sequence[str]) -> None:
    """Add one transport; with nconnect a mount has several, which are summed up."""
    mount.connections += 1
    mount.protocol = mount.protocol or protocol
    # Not strict: older kernels print fewer fields, and new ones are appended.
    numbers = dict(zip(_TRANSPORTS.get(protocol, ()), map(parse_natural, cells), strict=False))
    if "fixed_up" in numbers:
        numbers["copied"] = _sum(numbers["pulled_up"], numbers["fixed_up"])
    for part, reading in numbers.items():
        before = mount.values.get(("transport", part), 0)
        mount.values["transport", part] = _sum(before, reading)


def _sum(reading: Reading, other: Reading) -> Reading:
    if isinstance(reading, Absent):
        return reading
    return other if isinstance(other, Absent) else reading + other


def parse_superblocks(mountinfo: bytes) -> dict[str, list[str]]:
    """NFS file systems (major:minor) by mount point, escaped as in mountstats.

    Several may be mounted on top of each other; they are in mount order, as in mountstats. Format:
    proc(5), mountinfo: major:minor is the third word, the mount point the fifth, the type the one
    after the word "-".
    """
    superblocks: dict[str, list[str]] = {}
    for line in whole_lines(mountinfo):
        if match := _MOUNTINFO.match(line):
            superblocks.setdefault(match["place"], []).append(match["file_system"])
    return superblocks
