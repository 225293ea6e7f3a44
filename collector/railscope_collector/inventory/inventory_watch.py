"""Comparison of the fleet with the inventory and the retired GPUs, at each refresh of the views."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from railscope.reading import PRESENT
from railscope_collector.evidence.evidence_records import EvidenceProblem
from railscope_collector.files.inventory_file import DeviceInventory
from railscope_collector.files.retirements_file import RetiredGpus, Retirement
from railscope_collector.fleet import shape_columns, sheets
from railscope_collector.fleet.fleet import FleetNode, StreamRow
from railscope_collector.inventory.comparison import NodeComparison, ReportedDevices, compare_nodes
from railscope_collector.state.collector_state import CollectorState

KINDS = (shape_columns.GPU, shape_columns.RDMA_PORT)


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
        self, now_ns: int, fresh_from_ns: int, offer: Callable[[], Awaitable[None]]
    ) -> InventoryComparison:
        """Return the current comparison, awaiting `offer` between nodes to yield to other tasks."""
        inventory, retired = self.inventory(), self.retired()
        fresh = _FreshDevices(self.core, fresh_from_ns, now_ns)
        reported: dict[str, ReportedDevices] = {}
        shown: dict[str, str] = {}
        # A copy, as other tasks run between nodes.
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
        for gpu in [gpu for gpu in self.core.evidence.places if gpu not in shown]:
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
        place = self.core.evidence.places.get(gpu)
        return (place.last_ns, place.node) if place else None

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
            and isinstance(node.devices[shape_columns.GPU], shape_columns.ShownDevices)
        ):
            yield GoneGpu(sample[1], gpu, sample[0])


def _add_devices(shown: dict[str, str], name: str, node: ReportedDevices) -> None:
    """Add the GPUs in a node by name; those of unknown presence get an empty node name."""
    devices = node.devices.get(shape_columns.GPU)
    if isinstance(devices, shape_columns.ShownDevices):
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
        agent = self._row(node, shape_columns.AGENT_STREAM)
        devices = {kind: self._devices(node, agent, shape_columns.STREAMS[kind]) for kind in KINDS}
        return ReportedDevices(True, node.timestamp_ns, devices)  # noqa: FBT003 - it reports

    def _devices(
        self, node: FleetNode, agent: StreamRow | None, stream: str
    ) -> shape_columns.ShownDevices | str:
        row = self._row(node, stream)
        if row:
            schema = row.schema
            reasons = row.block.reasons
            codes = None if reasons is None else reasons[row.index]
            return schema.shape.devices.states(schema.shown, codes)
        if agent and self._has_no_devices(agent, stream):
            return shape_columns.ShownDevices()
        return f"the source {stream} of the node is not reporting"

    def _has_no_devices(self, agent: StreamRow, source: str) -> bool:
        """True if the agent reports that a source has no device on the node."""
        column = agent.schema.shape.source_states.get(source)
        if column is None or agent.block.reasons_of(agent.index)[column] != PRESENT:
            return False
        return int(agent.block.values_of(agent.index)[column]) == shape_columns.UNSUPPORTED

    def _row(self, node: FleetNode, stream: str) -> StreamRow | None:
        row = node.rows.get(stream)
        return row if row and row.index in self._fresh_rows(row.block) else None

    def _fresh_rows(self, block: sheets.SheetBlock) -> set[int]:
        key = id(block)
        if key not in self._rows:
            fleet = self._core.fleet
            self._rows[key] = set(fleet.fresh_rows(block, self._from_ns, self._now_ns).tolist())
        return self._rows[key]
