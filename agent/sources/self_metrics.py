"""Metrics of the agent itself: its sources, its spool, its own cost.

A source like any other, except that it reads the agent and not the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from agent.host import Host
from agent.sampling.budget import Keeper
from agent.sampling.hang_guard import HungCall
from agent.sampling.meter import ProcessMeter
from agent.sampling.replay_meter import ReplayMeter
from agent.sampling.source import Columns, HoldsNothing, Inventory, Table
from agent.sampling.stats import ShippingStats
from railscope import logs
from railscope.catalog import agent as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import ABSENCE, BUDGET, DROP, HUNG_DEVICE, NODE, SOURCE
from railscope.entity import Entity
from railscope.frame import Event, Frame
from railscope.reading import REASONS, Absent, Reading

_MILLIONTHS = 1_000_000


class SourceStatus(Protocol):
    """Attributes of a source's status that are read here."""

    state: int
    reads: int
    missed_ticks: int
    duration_ns: int
    cpu_ns: int
    stretch: int
    finished_boot_ns: int | None
    overdue: bool
    frame: Frame | None

    @property
    def period_ns(self) -> int:
        """The current period."""
        ...


class SelfMetrics(HoldsNothing):
    """The agent's own state as columns."""

    name = "agent"
    family = "agent"
    longest_period_seconds = 5.0
    """The metrics that report faults must not be the first to become stale."""

    def __init__(  # noqa: PLR0913, PLR0917 - one getter for each part of the agent that it reads
        self,
        statuses: Callable[[], Mapping[str, SourceStatus]],
        shipping: ShippingStats,
        take_events: Callable[[], list[Event]],
        period_seconds: float = 1.0,
        keeper: Callable[[], Keeper | None] = lambda: None,
        hung: Callable[[], Mapping[str, HungCall]] = dict,
    ) -> None:
        self.period_seconds = period_seconds
        self._hung = hung
        self._devices: tuple[str, ...] = ()
        self._keeper = keeper
        self._statuses = statuses
        self._shipping = shipping
        self._take_events = take_events

    def probe(self, host: Host) -> Inventory:  # noqa: ARG002 - it reads the agent itself
        """Columns for every source and for the agent."""
        columns = Columns()
        for name in self._statuses():
            source = Entity(SOURCE, (name,))
            for metric in (
                c.SOURCE_STATE, c.SOURCE_READ_TIME, c.SOURCE_AGE, c.SOURCE_READS, c.SOURCE_MISSED,
                c.SOURCE_CPU, c.SOURCE_PERIOD, c.SOURCE_STRETCH,
            ):  # fmt: skip
                columns.add(metric, source)
            for reason in Absent:
                columns.add(c.SOURCE_ABSENT, source.part(ABSENCE, reason.word))
        node = Entity(NODE)
        for metric in (
            c.AGENT_CPU, c.AGENT_MEMORY, c.SPOOL_SIZE, c.SPOOL_BATCHES, c.FRAMES_SHIPPED,
            c.SHIP_FAILURES, c.LOG_LINES_LOST,
        ):  # fmt: skip
            columns.add(metric, node)
        for why in self._shipping.dropped_frames:
            columns.add(c.FRAMES_DROPPED, node.part(DROP, why))
        for metric, about, _ in _budget_readings(self._keeper()):
            columns.add(metric, about)
        for metric, _ in _custody_readings(self._shipping):
            columns.add(metric, node)
        for metric, _ in _replay_readings(self._keeper()):
            columns.add(metric, node)
        self._devices = tuple(self._hung())
        for device in self._devices:
            columns.add(c.HUNG_TIME, Entity(HUNG_DEVICE, (device,)))
        return Inventory(tuple(columns.columns))

    def read(self, host: Host, into: Table) -> None:
        """Read every status, the spool and the process."""
        now_ns = host.clock.now().boot_ns
        readings: list[Reading] = []
        for status in self._statuses().values():
            finished = status.finished_boot_ns
            never = finished is None
            readings += [
                status.state,
                Absent.NOT_DUE if never else status.duration_ns,
                Absent.NOT_DUE if finished is None else now_ns - finished,
                status.reads,
                status.missed_ticks,
                status.cpu_ns,
                status.period_ns,
                status.stretch,
                *_absent_counts(status),
            ]
        shipping, keeper = self._shipping, self._keeper()
        meter = keeper.meter if keeper else ProcessMeter()
        readings += [
            meter.process_cpu_ns(),
            meter.resident_bytes(),
            shipping.spool_bytes,
            shipping.spool_envelopes,
            shipping.shipped_frames,
            shipping.failures,
            logs.lines.lost,
            *shipping.dropped_frames.values(),
            *(reading for _, _, reading in _budget_readings(keeper)),
            *(reading for _, reading in _custody_readings(shipping)),
            *(reading for _, reading in _replay_readings(keeper)),
            *self._hung_times(now_ns, into),
        ]
        for position, reading in enumerate(readings):
            into.put(position, reading)
        into.events = self._take_events()

    def _hung_times(self, now_ns: int, into: Table) -> list[Reading]:
        """Duration of the hang of each device that hung at the last probe."""
        hung = dict(self._hung())
        into.grown = tuple(hung) != self._devices
        return [
            max(now_ns - hung[device].since_ns, 0) if device in hung else Absent.GONE
            for device in self._devices
        ]


def _replay_readings(keeper: Keeper | None) -> list[tuple[Metric, Reading]]:
    """Cost of a replay; empty on a live node."""
    if keeper is None or not isinstance(keeper.meter, ReplayMeter):
        return []
    cost = keeper.meter.host.cost
    return [(c.REPLAY_CPU, cost.cpu_ns()), (c.REPLAY_MEMORY, cost.resident_bytes)]


def _custody_readings(shipping: ShippingStats) -> list[tuple[Metric, Reading]]:
    """State of the witness for the audit log; empty if it is disabled."""
    custody = shipping.custody
    if custody is None:
        return []
    held: Reading = custody.records or Absent.NOT_DUE
    return [(c.WITNESS_STATE, custody.state), (c.WITNESSED_RECORDS, held)]


def _absent_counts(status: SourceStatus) -> list[int]:
    frame = status.frame
    if frame is None:
        return [0] * len(REASONS)
    if status.overdue:
        return [len(frame.values) if r is Absent.TIMEOUT else 0 for r in REASONS.values()]
    return [frame.reasons.count(code) for code in REASONS]


def _budget_readings(keeper: Keeper | None) -> list[tuple[Metric, Entity, Reading]]:
    """State of the agent's budget; limits only for bounded resources."""
    if keeper is None:
        return []
    node, budget, use = Entity(NODE), keeper.budget, keeper.governor.use
    share: Reading = Absent.NOT_DUE if use is None else round(use * _MILLIONTHS)
    found: list[tuple[Metric, Entity, Reading]] = [(c.AGENT_CPU_USE, node, share)]
    if budget.cpu_ratio:
        state = keeper.governor.state
        found += [
            (c.AGENT_CPU_BUDGET, node, round(budget.cpu_ratio * _MILLIONTHS)),
            (c.GOVERNOR_STATE, node.part(BUDGET, "cpu"), state),
        ]
    if budget.memory_bytes:
        found += [
            (c.AGENT_MEMORY_BUDGET, node, budget.memory_bytes),
            (c.GOVERNOR_STATE, node.part(BUDGET, "memory"), keeper.memory.state),
        ]
    return found
