"""The inventory compared with the devices that nodes show, at each refresh of the views.

Present, missing and unknown devices of a node add up to the number in the inventory; further ones
are unexpected. A stale node's devices are unknown: stale data does not show that they are gone. A
node that never reported is missing, with all of its expected devices. The result, with GPUs that
are gone or retired, is reported as cells of /metrics and as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from railscope.catalog import collector as catalog, declare
from railscope.device_names import Names
from railscope.reading import PRESENT
from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope.wire import WireEntity
from railscope_collector.evidence.evidence_records import EvidenceProblem
from railscope_collector.files.device_files import (
    DeviceInventory,
    ExpectedDevices,
    RetiredGpus,
    Retirement,
)
from railscope_collector.fleet import schema_columns, sheets, view_cells
from railscope_collector.fleet.fleet import FleetNode, StreamRow
from railscope_collector.state.collector_state import CollectorState

KINDS = (schema_columns.GPU, schema_columns.RDMA_PORT)


class NodeInventoryState(StrEnum):
    """State of a node relative to the inventory."""

    PRESENT = "present"
    STALE = "stale"
    MISSING = "missing"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class ReportedDevices:
    """Current reports of a node; for each kind its devices, or the reason for which they are unknown."""

    is_reporting: bool
    timestamp_ns: int
    devices: Mapping[str, schema_columns.ShownDevices | str]


class DeviceCounts(NamedTuple):
    """Numbers of devices of one kind in a node, relative to the inventory."""

    present: int
    missing: int
    unknown: int
    unexpected: int

    @property
    def expected(self) -> int:
        """Number in the inventory."""
        return self.present + self.missing + self.unknown


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """A node compared with the inventory; `counts` of the kinds that the inventory lists."""

    node: str
    state: NodeInventoryState
    counts: Mapping[str, DeviceCounts]
    reasons: Mapping[str, str]
    """Reasons for unknown devices."""
    reported: ReportedDevices | None = None


def compare_nodes(
    expected: Mapping[str, ExpectedDevices], reported: Mapping[str, ReportedDevices]
) -> Iterator[NodeComparison]:
    """Yield the comparison of each node that is in the inventory or reports."""
    for node in sorted(
        expected.keys() | {n for n, comparison in reported.items() if comparison.is_reporting}
    ):
        yield compare_node(node, expected.get(node), reported.get(node))


def compare_node(
    node: str, expected: ExpectedDevices | None, reported: ReportedDevices | None
) -> NodeComparison:
    """Compare one node."""
    if expected is None:
        return NodeComparison(node, NodeInventoryState.UNEXPECTED, {}, {}, reported)
    expected_counts = {
        schema_columns.GPU: expected.gpus,
        schema_columns.RDMA_PORT: expected.rdma_ports,
    }
    numbers = {kind: number for kind, number in expected_counts.items() if number is not None}
    if reported is None:
        nothing = {kind: DeviceCounts(0, number, 0, 0) for kind, number in numbers.items()}
        return NodeComparison(node, NodeInventoryState.MISSING, nothing, {})
    state = NodeInventoryState.PRESENT if reported.is_reporting else NodeInventoryState.STALE
    counts: dict[str, DeviceCounts] = {}
    reasons: dict[str, str] = {}
    for kind, number in numbers.items():
        devices = reported.devices.get(kind, "not reported")
        if isinstance(devices, str):
            counts[kind] = DeviceCounts(0, 0, number, 0)
            reasons[kind] = devices
        else:
            counts[kind] = count_devices(number, devices)
    return NodeComparison(node, state, counts, reasons, reported)


def count_devices(expected: int, devices: schema_columns.ShownDevices) -> DeviceCounts:
    """Compare the shown devices with a number.

    Devices of unknown presence count as unknown up to the number in the inventory: only devices that are
    certainly absent are missing, and only those that certainly exceed the number are unexpected.
    """
    present = min(len(devices.present), expected)
    unknown = min(len(devices.unknown), expected - present)
    missing = expected - present - unknown
    return DeviceCounts(present, missing, unknown, max(len(devices.present) - expected, 0))


YieldTurn = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class GoneGpu:
    """A GPU that its node, which still reports, showed before, and no node shows now."""

    node: str
    gpu: str
    seen_ns: int
    """Timestamp of its last sample."""


@dataclass(frozen=True, slots=True)
class InventoryComparison:
    """The result as of one timestamp; no node comparisons without an inventory."""

    timestamp_ns: int = 0
    comparisons: tuple[NodeComparison, ...] | None = None
    gone: tuple[GoneGpu, ...] = ()
    retired: tuple[Retirement, ...] = ()
    reporting: Mapping[str, str] = field(default_factory=dict)
    """Nodes of retired GPUs that report nevertheless."""
    last_nodes: Mapping[str, str] = field(default_factory=dict)
    """Last nodes of retired GPUs, if they were ever seen."""


@dataclass(slots=True)
class InventoryWatch:
    """Compares the fleet with both files, which are read again each time."""

    core: CollectorState
    inventory: Callable[[], DeviceInventory | None]
    """None without an inventory, or if it was never valid."""
    retired: Callable[[], RetiredGpus]

    async def compare(
        self, now_ns: int, fresh_from_ns: int, offer: YieldTurn
    ) -> InventoryComparison:
        """Return the current comparison, awaiting `offer` between nodes to yield to other tasks."""
        inventory, retired = self.inventory(), self.retired()
        fresh = _FreshDevices(self.core, fresh_from_ns, now_ns)
        reported: dict[str, ReportedDevices] = {}
        shown: dict[str, str] = {}
        for name, node in list(self.core.fleet.nodes.items()):
            reported[name] = fresh.reported(node)
            _add_devices(shown, name, reported[name])
            await offer()
        comparisons: list[NodeComparison] | None = None
        if inventory is not None:
            comparisons = []
            for comparison in compare_nodes(inventory.expected_devices(now_ns), reported):
                comparisons.append(comparison)
                await offer()
        gone: list[GoneGpu] = []
        for gpu in [gpu for gpu in self.core.evidence.gpus if gpu not in shown]:
            if retired.find_retirement(gpu, now_ns) is None:
                gone += self._find_gone_gpus(gpu, reported, fresh_from_ns)
            await offer()
        in_force = [row for row in retired if row.start_ns <= now_ns < row.end_ns]
        reporting = {row.gpu: shown[row.gpu] for row in in_force if shown.get(row.gpu)}
        for row in in_force:
            if shown_by := reporting.get(row.gpu):
                facts = {"retired_ns": str(row.start_ns), "why": row.reason}
                problem = EvidenceProblem("retired_seen", row.gpu, shown_by, row.start_ns, facts)
                self.core.evidence.problems.report(problem)  # once
        last = {row.gpu: sample[1] for row in in_force if (sample := self._last_sample(row.gpu))}
        compared = None if comparisons is None else tuple(comparisons)
        return InventoryComparison(now_ns, compared, tuple(gone), tuple(in_force), reporting, last)

    def is_removed(self, node: str, now_ns: int) -> bool:
        """True if administrators have removed a node."""
        inventory = self.inventory()
        return inventory is not None and inventory.is_removed(node, now_ns)

    def _last_sample(self, gpu: str) -> tuple[int, str] | None:
        """Return the time and node of a GPU's last sample."""
        memory = self.core.evidence.gpus.get(gpu)
        presences = memory.presences.values() if memory else ()
        return max(((p.spans[-1].last_ns, p.node) for p in presences if p.spans), default=None)

    def _find_gone_gpus(
        self, gpu: str, reported: Mapping[str, ReportedDevices], fresh_from_ns: int
    ) -> Iterator[GoneGpu]:
        """Yield a GPU that no node shows, if its last node reports its absence."""
        sample = self._last_sample(gpu)
        node = reported.get(sample[1]) if sample and sample[0] < fresh_from_ns else None
        if (
            sample
            and node
            and node.is_reporting
            and isinstance(node.devices[schema_columns.GPU], schema_columns.ShownDevices)
        ):
            yield GoneGpu(sample[1], gpu, sample[0])


def _add_devices(shown: dict[str, str], name: str, node: ReportedDevices) -> None:
    """Add the GPUs in a node by name; those of unknown presence get an empty node name."""
    devices = node.devices.get(schema_columns.GPU)
    if isinstance(devices, schema_columns.ShownDevices):
        for gpu in devices.unknown:
            shown.setdefault(gpu, "")
        for gpu in devices.present:
            shown[gpu] = name


class _FreshDevices:
    """Devices in fresh frames of nodes."""

    def __init__(self, core: CollectorState, from_ns: int, now_ns: int) -> None:
        self._core, self._from_ns, self._now_ns = core, from_ns, now_ns
        self._rows: dict[int, set[int]] = {}

    def reported(self, node: FleetNode) -> ReportedDevices:
        """Return the current reports of a node."""
        if node.timestamp_ns < self._from_ns:
            reason = (
                "the node is stale" if node.timestamp_ns else "no frame of the node was received"
            )
            return ReportedDevices(False, node.timestamp_ns, dict.fromkeys(KINDS, reason))  # noqa: FBT003 - it does not report
        agent = self._row(node, schema_columns.AGENT_STREAM)
        devices = {kind: self._devices(node, agent, schema_columns.STREAMS[kind]) for kind in KINDS}
        return ReportedDevices(True, node.timestamp_ns, devices)  # noqa: FBT003 - it reports

    def _devices(
        self, node: FleetNode, agent: StreamRow | None, stream: str
    ) -> schema_columns.ShownDevices | str:
        row = self._row(node, stream)
        schema = self._core.schemas.get(row.schema) if row else None
        if row and schema:
            reasons = row.block.reasons
            return schema.showing.devices.states(None if reasons is None else reasons[row.index])
        if agent and self._has_no_devices(agent, stream):
            return schema_columns.ShownDevices()
        return f"the source {stream} of the node is not reporting"

    def _has_no_devices(self, agent: StreamRow, source: str) -> bool:
        """True if the agent reports that a source has no device on the node."""
        schema = self._core.schemas.get(agent.schema)
        column = schema.showing.states.get(source) if schema else None
        if column is None or agent.block.reasons_of(agent.index)[column] != PRESENT:
            return False
        return int(agent.block.values_of(agent.index)[column]) == schema_columns.UNSUPPORTED

    def _row(self, node: FleetNode, stream: str) -> StreamRow | None:
        row = node.rows.get(stream)
        return row if row and row.index in self._fresh_rows(row.block) else None

    def _fresh_rows(self, block: sheets.SheetBlock) -> set[int]:
        key = id(block)
        if key not in self._rows:
            fleet = self._core.fleet
            self._rows[key] = set(fleet.fresh_rows(block, self._from_ns, self._now_ns).tolist())
        return self._rows[key]


NamesOf: TypeAlias = Callable[[str, WireEntity], Names | None]
"""Names of the device of an entity of a node."""
_DEVICES: Mapping[str, declare.Metric] = {
    schema_columns.GPU: catalog.INVENTORY_GPUS,
    schema_columns.RDMA_PORT: catalog.INVENTORY_RDMA_PORTS,
}
_NAMES = {schema_columns.GPU: "gpus", schema_columns.RDMA_PORT: "rdma_ports"}


def inventory_cells(found: InventoryComparison) -> Iterator[view_cells.ViewCell]:
    """Yield all cells; without an inventory, only those that do not depend on it."""
    if found.comparisons is not None:
        nodes = Counter(comparison.state for comparison in found.comparisons)
        for state in NodeInventoryState:
            yield view_cells.ViewCell(catalog.INVENTORY_NODES, (state.value,), nodes[state])
        for comparison in found.comparisons:
            for state in NodeInventoryState:
                labels = (comparison.node, state.value)
                yield view_cells.ViewCell(
                    catalog.INVENTORY_NODE_STATE, labels, comparison.state is state
                )
            for kind, counts in comparison.counts.items():
                for count_name, number in counts._asdict().items():
                    yield view_cells.ViewCell(_DEVICES[kind], (comparison.node, count_name), number)
    for gone in found.gone:
        age_seconds = (found.timestamp_ns - gone.seen_ns) / SECOND_NS
        yield view_cells.ViewCell(catalog.GONE_GPU_AGE, (gone.node, gone.gpu), age_seconds)
    for gpu in dict.fromkeys(retirement.gpu for retirement in found.retired):
        node = found.reporting.get(gpu, "")
        labels = (node or found.last_nodes.get(gpu, ""), gpu)
        yield view_cells.ViewCell(catalog.RETIRED_GPU_REPORTING, labels, bool(node))


def inventory_json(found: InventoryComparison, names_of: NamesOf) -> dict[str, Any]:
    """Return the same with names and reasons. `nodes` is null without an inventory."""

    def names(node: str | None, gpu: str) -> dict[str, str]:
        device_names = names_of(node or "", WireEntity(schema_columns.GPU, (gpu,))) or {}
        return {name: device_names.get(name, "") for name in ("index", "pci_address")}

    comparisons = found.comparisons
    return {
        "view": "inventory",
        "timestamp_ns": found.timestamp_ns,
        "nodes": None
        if comparisons is None
        else [_node_document(comparison, names_of) for comparison in comparisons],
        "gone_gpus": [
            {"node": gpu.node, "gpu": gpu.gpu, **names(gpu.node, gpu.gpu), "seen_ns": gpu.seen_ns}
            for gpu in found.gone
        ],
        "retired_gpus": [
            {
                "gpu": retirement.gpu,
                **names(found.reporting.get(retirement.gpu), retirement.gpu),
                "from_ns": retirement.start_ns,
                "to_ns": None if retirement.end_ns == FOREVER_NS else retirement.end_ns,
                "reason": retirement.reason,
                "reported_by": found.reporting.get(retirement.gpu),
            }
            for retirement in found.retired
        ],
    }


def _node_document(comparison: NodeComparison, names_of: NamesOf) -> dict[str, Any]:
    reported = comparison.reported
    answer: dict[str, Any] = {
        "node": comparison.node,
        "state": comparison.state.value,
        "heard_ns": reported.timestamp_ns or None if reported else None,
    }
    for kind, name in _NAMES.items():
        shown = reported.devices.get(kind) if reported else None
        counts = comparison.counts.get(kind)
        answer[name] = {
            "expected": counts.expected if counts else None,
            **(counts._asdict() if counts else {}),
            "reason": comparison.reasons.get(kind),
            "names": _device_names(shown),
            "devices": _device_documents(comparison.node, kind, shown, names_of),
        }
    return answer


def _device_documents(
    node: str, kind: str, shown: schema_columns.ShownDevices | str | None, names_of: NamesOf
) -> dict[str, list[Names]] | None:
    """Return all names of the devices that `names` lists, in its order."""
    listed = _device_names(shown)
    if listed is None:
        return None
    return {
        state: [
            names_of(node, WireEntity(kind, tuple(name.split("/")))) or {"kind": kind, "name": name}
            for name in names
        ]
        for state, names in listed.items()
    }


def _device_names(shown: schema_columns.ShownDevices | str | None) -> dict[str, list[str]] | None:
    """Return the devices that a node shows; null if they are unknown."""
    if not isinstance(shown, schema_columns.ShownDevices):
        return None
    return {
        "present": sorted(shown.present),
        "gone": sorted(shown.gone),
        "unknown": sorted(shown.unknown),
    }
