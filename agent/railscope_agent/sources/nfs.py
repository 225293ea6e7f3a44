"""NFS mounts, from the kernel's statistics of each: bytes, requests by operation, the transport.

Only files of /proc are read, never the mount itself: that would hang if its server is unreachable.
A file system that is mounted at several places has the same numbers at each, and is reported once.

The statistics of a process cover its own mounts. A service for which systemd hides /home lacks the
mounts there; so the mounts of process 1 are read where permitted, and otherwise the file systems
that it has and the agent lacks are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from railscope.catalog import entities, storage as c
from railscope.frame import Column, Entity
from railscope.reading import SIGNED_LIMIT, Absent, Reading, reason_of
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.sources.source_bases import parse_natural, whole_lines

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


FIRST_PROCESS, OWN_PROCESS = "/proc/1", "/proc/self"
_REMEDY = "run the agent as root, grant it CAP_DAC_READ_SEARCH, or set ProtectHome=read-only"
MAX_MOUNTS = 16
REPORTED_EVENTS = (
    "data_invalidate", "vfs_open", "vfs_flush", "vfs_fsync", "vfs_lock", "congestion_wait",
    "short_read", "short_write", "jukebox_delay", "pnfs_read", "pnfs_write",
)  # fmt: skip
_NODE_COLUMNS = 2
_NumberedMount = tuple[MountKey, int]
"""A mount among those with the same key that are stacked, counted from the lowest."""


class NfsSource(source.SourceWithoutResources):
    """Bytes, requests, times, errors and transport of every NFS mount, up to a bound."""

    name = "nfs"
    family = "nfs"

    def __init__(self) -> None:
        self._stats = f"{OWN_PROCESS}/mountstats"
        self._columns: list[tuple[_NumberedMount, ValueKey]] = []
        self._planned: dict[_NumberedMount, dict[ValueKey, Column]] = {}
        self._twice: set[_NumberedMount] = set()
        self._hidden = 0

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the mounts, and the kernel's statistics of each."""
        columns = probe_result.ColumnBuilder()
        self._columns, self._twice = [], set()
        directory, mounts = _mounts(host)
        self._stats = f"{directory}/mountstats"
        superblocks = _superblocks(host, directory)
        self._hidden = len(
            _file_systems(_superblocks(host, FIRST_PROCESS)) - _file_systems(superblocks)
        )
        if not mounts and not self._hidden:
            return columns.result(probe_result.ProbeFinding.absent("NFS", "nothing is mounted"))
        columns.add_each((c.NFS_MOUNTS, c.NFS_UNREAD), Entity(entities.NODE))
        single = self._once_each(mounts, superblocks)
        self._planned = self._plan(single, mounts, superblocks)
        for place, columns_by_key in self._planned.items():
            for key, column in columns_by_key.items():
                columns.add(*column)
                self._columns.append((place, key))
        findings = [_finding(len(single), len(self._twice))]
        if self._hidden:
            detail = f"{probe_result.format_count(self._hidden, 'file system')} without access"
            findings.append(
                probe_result.ProbeFinding("NFS", probe_result.ProbeVerdict.DENIED, detail, _REMEDY)
            )
        return columns.result(*findings)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the file once, for all mounts."""
        try:
            mounts = _number_mounts(parse_mountstats(host.read(self._stats)))
        except OSError as error:
            into.put_none(0, len(into.values), reason_of(error))
            return
        if not into.values:
            into.needs_probe = bool(mounts)
            return
        single = mounts.keys() - self._twice
        into.put(0, len(single) + self._hidden)
        into.put(1, len(single - self._planned.keys()) + self._hidden)
        for column, (place, key) in enumerate(self._columns, _NODE_COLUMNS):
            mount = mounts.get(place)
            into.put(column, mount.values.get(key, Absent.ERROR) if mount else Absent.GONE)

    def _plan(
        self,
        single: Mapping[_NumberedMount, NfsMount],
        mounts: list[NfsMount],
        superblocks: Mapping[str, list[str]],
    ) -> dict[_NumberedMount, dict[ValueKey, Column]]:
        """Columns of each mount; earlier columns remain while mountinfo lists their mount."""
        planned = {place: _columns_of(mount) for place, mount in _visible_mounts(single).items()}
        lacking = Counter(
            {decode_octal_escapes(point): len(here) for point, here in superblocks.items()}
        )
        lacking.subtract(decode_octal_escapes(mount.mount_point) for mount in mounts)
        for place, columns in self._planned.items():
            if place in planned or lacking[place[0][1]] > 0:
                planned[place] = columns | planned.get(place, {})
        return dict(list(planned.items())[:MAX_MOUNTS])

    def _once_each(
        self, mounts: list[NfsMount], of_place: Mapping[str, list[str]]
    ) -> dict[_NumberedMount, NfsMount]:
        """Mounts without repeated mounts of the same file system."""
        single: dict[str, tuple[_NumberedMount, NfsMount]] = {}
        passed: Counter[str] = Counter()
        for place, mount in _number_mounts(mounts).items():
            here = of_place.get(mount.mount_point, [])
            number = passed[mount.mount_point]
            passed[mount.mount_point] += 1
            unknown = f"at {mount.mount_point} {number}"
            file_system = here[number] if number < len(here) else unknown
            if single.setdefault(file_system, (place, mount))[0] != place:
                self._twice.add(place)
        return dict(single.values())


def _number_mounts(mounts: list[NfsMount]) -> dict[_NumberedMount, NfsMount]:
    """Mounts by their key and the number of mounts with the same key below them."""
    under: Counter[MountKey] = Counter()
    numbered = {}
    for mount in mounts:
        numbered[mount.key, under[mount.key]] = mount
        under[mount.key] += 1
    return numbered


def _visible_mounts(single: Mapping[_NumberedMount, NfsMount]) -> dict[_NumberedMount, NfsMount]:
    """Mounts without those covered by another of the same key: names cannot distinguish them."""
    top = {key: number for key, number in single}  # noqa: C416 - the last of each key
    return {place: mount for place, mount in single.items() if top[place[0]] == place[1]}


def _file_systems(of_place: Mapping[str, list[str]]) -> set[str]:
    return {file_system for here in of_place.values() for file_system in here}


def _mounts(host: Host) -> tuple[str, list[NfsMount]]:
    """First process with readable mounts, and its mounts."""
    for directory in (FIRST_PROCESS, OWN_PROCESS):
        try:
            return directory, parse_mountstats(host.read(f"{directory}/mountstats"))
        except OSError:
            continue
    return OWN_PROCESS, []


def _superblocks(host: Host, directory: str) -> dict[str, list[str]]:
    """File systems by mount point, which are readable without privilege."""
    try:
        return parse_superblocks(host.read(f"{directory}/mountinfo"))
    except OSError:
        return {}


def _columns_of(mount: NfsMount) -> dict[ValueKey, Column]:
    """Columns of a mount: the metrics that its kernel reports."""
    facts = fact_readers.nonempty_facts(
        version=mount.options.get("vers", ""),
        security=mount.options.get("sec", ""),
        connections=str(mount.connections or ""),
    )
    about = Entity(entities.NFS_MOUNT, mount.key, facts)
    columns: dict[ValueKey, Column] = {("age",): (c.NFS_AGE, about)}
    columns |= {("bytes", str(i)): (metric, about) for i, metric in enumerate(c.NFS_BYTES)}
    columns |= {
        ("event", event): (c.NFS_EVENTS, about.child(entities.NFS_EVENT, event))
        for event in REPORTED_EVENTS
    }
    transport = c.NFS_TRANSPORT | (c.NFS_RDMA if mount.protocol == "rdma" else {})
    columns |= {("transport", part): (metric, about) for part, metric in transport.items()}
    for operation in sorted(OPERATIONS):
        entity = about.child(entities.NFS_OPERATION, operation)
        columns |= {(operation, part): (m, entity) for part, m in c.NFS_OPERATIONS.items()}
    return {key: column for key, column in columns.items() if key in mount.values}


def _finding(mounts: int, twice: int) -> probe_result.ProbeFinding:
    detail = probe_result.format_count(mounts, "file system")
    if twice:
        detail += f", {probe_result.format_count(twice, 'further mount')} of them"
    if mounts > MAX_MOUNTS:
        detail += f"; {mounts - MAX_MOUNTS} beyond the first {MAX_MOUNTS} are omitted"
    return probe_result.ProbeFinding.supported("NFS", detail)
