"""NFS mounts, from the kernel's statistics of each: bytes, requests by operation, the transport.

Only files of /proc are read, never the mount itself: that would hang if its server is unreachable.
A file system that is mounted at several places has the same numbers at each, and is reported once.

The statistics of a process cover its own mounts. A service for which systemd hides /home lacks the
mounts there; so the mounts of process 1 are read where permitted, and otherwise the file systems
that it has and the agent lacks are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from railscope.catalog import entities, storage as c
from railscope.frame import Column, Entity
from railscope.reading import Absent, reason_of
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.sources.nfs_mountstats import (
    OPERATIONS,
    MountKey,
    NfsMount,
    ValueKey,
    decode_octal_escapes,
    parse_mountstats,
    parse_superblocks,
)

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


class NfsSource(source.Source):
    """Bytes, requests, times, errors and transport of every NFS mount, up to a bound."""

    name = "nfs"
    period_seconds = 10.0

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
            return columns.result()
        columns.add_each((c.NFS_MOUNTS, c.NFS_UNREAD), Entity(entities.NODE))
        single = self._once_each(mounts, superblocks)
        self._planned = self._plan(single, mounts, superblocks)
        for place, columns_by_key in self._planned.items():
            for key, column in columns_by_key.items():
                columns.add(*column)
                self._columns.append((place, key))
        if not self._hidden:
            return columns.result()
        detail = f"{probe_result.format_count(self._hidden, 'file system')} without access"
        denied = probe_result.ProbeVerdict.DENIED
        return columns.result(probe_result.ProbeFinding("NFS", denied, detail, _REMEDY))

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the file once, for all mounts."""
        try:
            mounts = _number_mounts(parse_mountstats(host.read(self._stats)))
        except OSError as error:
            into.put_none(0, len(into.values), reason_of(error))
            return
        if not into.values:
            # Nothing was mounted at the last probe.
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
            # mountinfo still lists it, so mountstats was cut: the mount has not been removed.
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
