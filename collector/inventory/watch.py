"""The inventory compared with the fleet at each refresh of the views, and GPUs that are gone or retired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from collector.evidence.trouble import Trouble
from collector.files.inventory_file import Inventory
from collector.files.retired_file import Retired, Retirement
from collector.fleet.fleet import Node, Row
from collector.fleet.sheet import Block
from collector.fleet.shown_devices import AGENT_STREAM, GPU, STREAMS, UNSUPPORTED, Shown
from collector.inventory.compare import KINDS, Heard, Standing, stand
from collector.state.core import Core
from railscope.reading import PRESENT

Turns = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Gone:
    """A GPU that its node, which still reports, showed before, and no node shows now."""

    node: str
    gpu: str
    seen_ns: int
    """Its last sample."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result as of one timestamp; no standings without an inventory."""

    instant_ns: int = 0
    standings: tuple[Standing, ...] | None = None
    gone: tuple[Gone, ...] = ()
    retired: tuple[Retirement, ...] = ()
    reporting: Mapping[str, str] = field(default_factory=dict)
    """Nodes of retired GPUs that report nevertheless."""
    last_nodes: Mapping[str, str] = field(default_factory=dict)
    """Last nodes of retired GPUs, if they were ever seen."""


@dataclass(slots=True)
class Watch:
    """Compares the fleet with both files, which are read again each time."""

    core: Core
    inventory: Callable[[], Inventory | None]
    """None without an inventory, or if it was never valid."""
    retired: Callable[[], Retired]

    async def look(self, now_ns: int, fresh_from_ns: int, offer: Turns) -> Found:
        """Return the current comparison, awaiting `offer` between nodes to yield to other tasks."""
        inventory, retired = self.inventory(), self.retired()
        fresh = _Fresh(self.core, fresh_from_ns, now_ns)
        heard: dict[str, Heard] = {}
        shown: dict[str, str] = {}
        for name, node in list(self.core.fleet.nodes.items()):
            heard[name] = fresh.heard(node)
            _show(shown, name, heard[name])
            await offer()
        standings: list[Standing] | None = None
        if inventory is not None:
            standings = []
            for one in stand(inventory.at(now_ns), heard):
                standings.append(one)
                await offer()
        gone: list[Gone] = []
        for gpu in list(self.core.evidence.gpus):
            if gpu not in shown and retired.at(gpu, now_ns) is None:
                gone += self._gone(gpu, heard, fresh_from_ns)
            await offer()
        in_force = [one for one in retired if one.start_ns <= now_ns < one.end_ns]
        reporting = {one.gpu: shown[one.gpu] for one in in_force if shown.get(one.gpu)}
        for retirement in in_force:
            if retirement.gpu in reporting:
                self._tell(retirement, reporting[retirement.gpu])
        last = {one.gpu: seen[1] for one in in_force if (seen := self._seen(one.gpu))}
        against = None if standings is None else tuple(standings)
        return Found(now_ns, against, tuple(gone), tuple(in_force), reporting, last)

    def removed(self, node: str, now_ns: int) -> bool:
        """True if administrators have removed a node."""
        inventory = self.inventory()
        return inventory is not None and inventory.removed(node, now_ns)

    def _seen(self, gpu: str) -> tuple[int, str] | None:
        """Return the time and node of a GPU's last sample."""
        memory = self.core.evidence.gpus.get(gpu)
        presences = memory.presences.values() if memory else ()
        return max(((p.spans[-1].last_ns, p.node) for p in presences if p.spans), default=None)

    def _gone(self, gpu: str, heard: Mapping[str, Heard], fresh_from_ns: int) -> Iterator[Gone]:
        """Yield a GPU that no node shows, if its last node reports that it is not there."""
        seen = self._seen(gpu)
        node = heard.get(seen[1]) if seen and seen[0] < fresh_from_ns else None
        if seen and node and node.reporting and isinstance(node.devices[GPU], Shown):
            yield Gone(seen[1], gpu, seen[0])

    def _tell(self, one: Retirement, node: str) -> None:
        """Record a trouble, once, for a retired GPU that still reports."""
        facts = {"retired_ns": str(one.start_ns), "why": one.why}
        self.core.evidence.trouble(Trouble("retired_seen", one.gpu, node, one.start_ns, facts))


def _show(shown: dict[str, str], name: str, node: Heard) -> None:
    """Add the GPUs in a node by name; those that may be there get an empty node name."""
    devices = node.devices.get(GPU)
    if isinstance(devices, Shown):
        for gpu in devices.unknown:
            shown.setdefault(gpu, "")
        for gpu in devices.present:
            shown[gpu] = name


class _Fresh:
    """Devices in fresh frames of nodes."""

    def __init__(self, core: Core, from_ns: int, now_ns: int) -> None:
        self._core, self._from_ns, self._now_ns = core, from_ns, now_ns
        self._rows: dict[int, set[int]] = {}

    def heard(self, node: Node) -> Heard:
        """Return the current reports of a node."""
        if node.instant_ns < self._from_ns:
            reason = "the node is stale" if node.instant_ns else "no frame of the node has come"
            return Heard(False, node.instant_ns, dict.fromkeys(KINDS, reason))  # noqa: FBT003 - it does not report
        agent = self._row(node, AGENT_STREAM)
        devices = {kind: self._devices(node, agent, STREAMS[kind]) for kind in KINDS}
        return Heard(True, node.instant_ns, devices)  # noqa: FBT003 - it reports

    def _devices(self, node: Node, agent: Row | None, stream: str) -> Shown | str:
        row = self._row(node, stream)
        known = self._core.schemas.get(row.schema) if row else None
        if row and known:
            return known.showing.devices.look(row.block.reasons[row.index])
        if agent and self._found_nothing(agent, stream):
            return Shown()
        return f"the source {stream} of the node tells nothing now"

    def _found_nothing(self, agent: Row, source: str) -> bool:
        """True if the agent reports that a source has no device on the node."""
        known = self._core.schemas.get(agent.schema)
        column = known.showing.states.get(source) if known else None
        if column is None or agent.block.reasons[agent.index, column] != PRESENT:
            return False
        return int(agent.block.values[agent.index, column]) == UNSUPPORTED

    def _row(self, node: Node, stream: str) -> Row | None:
        row = node.rows.get(stream)
        return row if row and row.index in self._of(row.block) else None

    def _of(self, block: Block) -> set[int]:
        key = id(block)
        if key not in self._rows:
            fleet = self._core.fleet
            self._rows[key] = set(fleet.fresh(block, self._from_ns, self._now_ns).tolist())
        return self._rows[key]
