"""Columns of devices that a probe did not find.

A device exists while its own directory in sysfs exists, and a column of it is absent with the reason of its last call:

    its directory     calls of the probe       the column
    is gone           any                      leaves at once
    exists            one of them failed       stays, for the reason of that call
    exists            none failed              with a value before: an error for `KEPT_NS` after it was found, then leaves
    none in sysfs     one of them failed       stays, for the reason of that call
    none in sysfs     none failed              leaves at once
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress

from railscope.catalog import entities
from railscope.catalog.declare import EntityKind, Metric
from railscope.frame import Column, Entity, Frame
from railscope.reading import Absent
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ProbeResult

KEPT_NS = 600_000_000_000
"""The statistics of a NIC become fewer with its queues and priorities, those of Lustre when they are cleared."""
MAX_HIDDEN_COLUMNS = 1 << 14
_TRANSIENT = {
    entities.GPU_PROCESS, entities.CLAIM, entities.MIG, entities.MIG_PIPE, entities.VGPU,
}  # fmt: skip
"""Parts of a device that come and go: they are kept only while listed."""
_DIRECTORIES: Mapping[EntityKind, str] = {
    entities.NIC: "/sys/class/net/{0}",
    entities.INTERFACE: "/sys/class/net/{0}",
    entities.BOND: "/sys/class/net/{0}",
    entities.RDMA_PORT: "/sys/class/infiniband/{0}",
    entities.PCIE: "/sys/bus/pci/devices/{0}",
    entities.GPU_ADDRESS: "/sys/bus/pci/devices/{0}",
    entities.NVME_DRIVE: "/sys/class/nvme/{0}",
    entities.DISK: "/sys/class/block/{0}",
    entities.MEMORY_CONTROLLER: "/sys/devices/system/edac/mc/{0}",
}
_Key = tuple[Metric, EntityKind, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """Columns of a probe, completed; `positions` selects them from a row followed by a reason for each hidden one."""

    columns: tuple[Column, ...]
    columnless_entities: tuple[Entity, ...] = ()
    hidden_reasons: bytes = b""
    found_ns: Mapping[_Key, int] = field(default_factory=dict)
    """Time at which a hidden column was found last."""

    def complete(
        self,
        found: ProbeResult,
        failures: Mapping[str, Absent],
        host: Host,
        frames: Iterable[Frame],
        now_ns: int,
    ) -> KnownColumns:
        """Return the columns of the next probe, with those of these columns that it did not find and that stay.

        `frames` are the first and the last frame with these columns.
        """
        columns = tuple(found.columns)
        described = tuple(found.columnless_entities)
        if failures:
            facts = {e.key: e.facts for _, e in self.columns} | {
                (e.kind, e.key): e.facts for e in self.columnless_entities
            }
            columns = tuple((m, _restored(e, facts.get(e.key))) for m, e in columns)
            described = tuple(_restored(e, facts.get((e.kind, e.key))) for e in described)
            now_described = {(e.kind, e.key) for e in described}
            described += tuple(
                e for e in self.columnless_entities if (e.kind, e.key) not in now_described
            )
        present = {_key(column) for column in columns}
        missing = [column for column in self.columns if _key(column) not in present]
        if not missing:
            return KnownColumns(columns, described)
        presence = _Presence(host, self.columns)
        hidden, reasons, found_ns = list[Column](), bytearray(), dict[_Key, int]()
        absent = [set(map(_key, compress(f.schema.columns, f.reasons))) for f in frames]
        for column in missing[:MAX_HIDDEN_COLUMNS]:
            # A column without any value is one that a source has in place of those that it cannot list.
            began_ns = 0 if absent and all(_key(column) in of for of in absent) else now_ns
            since_ns = self.found_ns.get(_key(column), began_ns)
            reason = presence.reason(column[1], failures, now_ns - since_ns)
            if reason:
                hidden.append(column)
                reasons.append(reason.value)
                found_ns[_key(column)] = since_ns if not failures else now_ns
        return KnownColumns((*columns, *hidden), described, bytes(reasons), found_ns)


class _Presence:
    """Whether devices exist, each looked up once."""

    def __init__(self, host: Host, columns: Iterable[Column]) -> None:
        self._host = host
        self._facts = {e.whole_key: e.facts for _, e in columns if e.facts}
        self._exists: dict[str, bool | None] = {}

    def reason(self, entity: Entity, failures: Mapping[str, Absent], age_ns: int) -> Absent | None:
        """Return the reason for which a column that was not found stays; None if it leaves."""
        kind, key = entity.kind.outermost, entity.whole_key
        facts = self._facts.get(key, entity.facts)
        path = _DIRECTORIES.get(kind, "").format(*key, pci_address=facts.get("pci_address", ""))
        if path not in self._exists:
            self._exists[path] = _exists(self._host, path) if path else None
        exists = self._exists[path]
        names = {*key[:1], facts.get("pci_address"), facts.get("interface")}
        names |= {f"nvml/{facts['index']}"} if "index" in facts else set()
        if exists is False:
            return None
        about = (r for d, r in failures.items() if d in names or d.rpartition("/")[2] in names)
        if reason := next(about, None):
            return reason
        if entity.kind in _TRANSIENT:
            return None
        if failures:
            return failures.get("") or next(iter(failures.values()))
        return Absent.ERROR if exists and age_ns < KEPT_NS else None


def _exists(host: Host, path: str) -> bool | None:
    """Return whether the system has a directory; None if it does not show such directories, as in a container."""
    for ask, place in (
        (host.names, path),
        (host.resolve, path),
        (host.names, path.rpartition("/")[0]),
    ):
        try:
            ask(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return True
        return place == path or False
    return None


def _restored(entity: Entity, facts: Mapping[str, str] | None) -> Entity:
    if not facts or entity.facts.keys() >= facts.keys():
        return entity
    return replace(entity, facts={**facts, **entity.facts})


def _key(column: Column) -> _Key:
    metric, entity = column
    return metric, entity.kind, entity.key
