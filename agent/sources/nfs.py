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

from agent.host import Host
from agent.sampling.facts import counted, known
from agent.sampling.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.sources.mountstats import (
    OPERATIONS,
    Key,
    Mount,
    MountKey,
    parse_mountstats,
    superblocks,
    unescaped,
)
from railscope.catalog import nfs as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NFS_EVENT, NFS_MOUNT, NFS_OPERATION, NODE
from railscope.entity import Entity
from railscope.frame import Column
from railscope.reading import Absent, reason_of

FIRST, OWN = "/proc/1", "/proc/self"
_REMEDY = "run the agent as root, give it CAP_DAC_READ_SEARCH, or set ProtectHome=read-only"
MAX_MOUNTS = 16
EVENTS = (
    "data_invalidate", "vfs_open", "vfs_flush", "vfs_fsync", "vfs_lock", "congestion_wait",
    "short_read", "short_write", "jukebox_delay", "pnfs_read", "pnfs_write",
)  # fmt: skip
_NODE_COLUMNS = 2
_Place = tuple[MountKey, int]
"""A mount among those with the same key that are stacked, counted from the lowest."""


class Nfs(HoldsNothing):
    """Bytes, requests, times, errors and transport of every NFS mount, up to a bound."""

    name = "nfs"
    family = "nfs"

    def __init__(self, period_seconds: float = 10.0) -> None:
        self.period_seconds = period_seconds
        self._stats = f"{OWN}/mountstats"
        self._columns: list[tuple[_Place, Key]] = []
        self._told: set[_Place] = set()
        self._planned: dict[_Place, dict[Key, Column]] = {}
        self._twice: set[_Place] = set()
        self._hidden = 0

    def probe(self, host: Host) -> Inventory:
        """Find the mounts, and the kernel's statistics of each."""
        self._columns, self._told, self._twice, self._hidden = [], set(), set(), 0
        directory, mounts = _mounts(host)
        self._stats = f"{directory}/mountstats"
        own = _superblocks(host, directory)
        self._hidden = len(_file_systems(_superblocks(host, FIRST)) - _file_systems(own))
        if not mounts and not self._hidden:
            return Inventory(findings=(Finding("NFS", Verdict.ABSENT, "nothing is mounted"),))
        columns = Columns()
        columns.add(c.MOUNTS, Entity(NODE))
        columns.add(c.UNREAD, Entity(NODE))
        single = self._once_each(mounts, own)
        self._planned = self._plan(single, mounts, own)
        for place, wanted in self._planned.items():
            self._told.add(place)
            for key, column in wanted.items():
                columns.add(*column)
                self._columns.append((place, key))
        findings = [_finding(len(single), len(self._twice))]
        if self._hidden:
            detail = f"{counted(self._hidden, 'file system')} the agent may not see"
            findings.append(Finding("NFS", Verdict.DENIED, detail, _REMEDY))
        return Inventory(tuple(columns.columns), (), tuple(findings))

    def read(self, host: Host, into: Table) -> None:
        """Read the file once, for all mounts."""
        try:
            mounts = _numbered(parse_mountstats(host.read(self._stats)))
        except OSError as error:
            into.put_none(0, len(into.values), reason_of(error))
            return
        if not into.values:
            into.grown = bool(mounts)
            return
        single = mounts.keys() - self._twice
        into.put(0, len(single) + self._hidden)
        into.put(1, len(single - self._told) + self._hidden)
        for column, (place, key) in enumerate(self._columns, _NODE_COLUMNS):
            mount = mounts.get(place)
            into.put(column, mount.values.get(key, Absent.ERROR) if mount else Absent.GONE)

    def _plan(
        self, single: Mapping[_Place, Mount], mounts: list[Mount], own: Mapping[str, list[str]]
    ) -> dict[_Place, dict[Key, Column]]:
        """Columns of each mount; earlier columns remain while mountinfo lists their mount."""
        planned = {
            place: {key: (metric, about) for key, metric, about in _wanted(mount)}
            for place, mount in _visible(single).items()
        }
        lacking = Counter({unescaped(point): len(here) for point, here in own.items()})
        lacking.subtract(unescaped(mount.mount_point) for mount in mounts)
        for place, columns in self._planned.items():
            if place in planned or lacking[place[0][1]] > 0:
                planned[place] = columns | planned.get(place, {})
        return dict(list(planned.items())[:MAX_MOUNTS])

    def _once_each(
        self, mounts: list[Mount], of_place: Mapping[str, list[str]]
    ) -> dict[_Place, Mount]:
        """Mounts without repeated mounts of the same file system."""
        single: dict[str, tuple[_Place, Mount]] = {}
        passed: Counter[str] = Counter()
        for place, mount in _numbered(mounts).items():
            here = of_place.get(mount.mount_point, [])
            number = passed[mount.mount_point]
            passed[mount.mount_point] += 1
            unknown = f"at {mount.mount_point} {number}"
            file_system = here[number] if number < len(here) else unknown
            if single.setdefault(file_system, (place, mount))[0] != place:
                self._twice.add(place)
        return dict(single.values())


def _numbered(mounts: list[Mount]) -> dict[_Place, Mount]:
    """Mounts by their key and the number of mounts with the same key below them."""
    under: Counter[MountKey] = Counter()
    found = {}
    for mount in mounts:
        found[mount.key, under[mount.key]] = mount
        under[mount.key] += 1
    return found


def _visible(single: Mapping[_Place, Mount]) -> dict[_Place, Mount]:
    """Mounts without those covered by another of the same key: names cannot distinguish them."""
    top = {key: number for key, number in single}  # noqa: C416 - the last of each key
    return {place: mount for place, mount in single.items() if top[place[0]] == place[1]}


def _file_systems(of_place: Mapping[str, list[str]]) -> set[str]:
    return {file_system for here in of_place.values() for file_system in here}


def _mounts(host: Host) -> tuple[str, list[Mount]]:
    """First process with readable mounts, and its mounts."""
    for directory in (FIRST, OWN):
        try:
            return directory, parse_mountstats(host.read(f"{directory}/mountstats"))
        except OSError:
            continue
    return OWN, []


def _superblocks(host: Host, directory: str) -> dict[str, list[str]]:
    """File systems by mount point, which are readable without privilege."""
    try:
        return superblocks(host.read(f"{directory}/mountinfo"))
    except OSError:
        return {}


def _wanted(mount: Mount) -> list[tuple[Key, Metric, Entity]]:
    """Columns of a mount: the metrics that its kernel reports."""
    about = Entity(NFS_MOUNT, mount.key, _facts(mount))
    every: list[tuple[Key, Metric, Entity]] = [(("age",), c.AGE, about)]
    every += [(("bytes", str(i)), metric, about) for i, metric in enumerate(c.BYTES)]
    every += [(("event", event), c.EVENT, about.part(NFS_EVENT, event)) for event in EVENTS]
    transport = c.TRANSPORT | (c.RDMA if mount.protocol == "rdma" else {})
    every += [(("transport", part), metric, about) for part, metric in transport.items()]
    for operation in sorted(OPERATIONS):
        entity = about.part(NFS_OPERATION, operation)
        every += [((operation, part), metric, entity) for part, metric in c.OPERATION.items()]
    return [wanted for wanted in every if wanted[0] in mount.values]


def _facts(mount: Mount) -> dict[str, str]:
    return known(
        version=mount.options.get("vers", ""),
        security=mount.options.get("sec", ""),
        connections=str(mount.connections or ""),
    )


def _finding(mounts: int, twice: int) -> Finding:
    detail = counted(mounts, "file system")
    if twice:
        detail += f", {counted(twice, 'further mount')} of them"
    if mounts > MAX_MOUNTS:
        detail += f"; {mounts - MAX_MOUNTS} beyond the first {MAX_MOUNTS} are left out"
    return Finding("NFS", Verdict.SUPPORTED, detail)
