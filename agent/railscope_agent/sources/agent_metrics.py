"""Metrics of the agent itself, as a source like any other: its sources, its spool, its own cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from railscope import log_output
from railscope.catalog import agent as c, declare, entities
from railscope.frame import Entity, Event, Frame
from railscope.reading import REASONS, Absent, Reading
from railscope_agent.host import Host
from railscope_agent.sampling import (
    budget_keeper,
    guard,
    probe_result,
    row_builder,
    shipping_stats,
    source as base,
    status as states,
)
from railscope_agent.sampling.meter import ProcessMeter

_MILLIONTHS = 1_000_000
_NONE_ABSENT = (0,) * len(REASONS)
_SOURCE_METRICS = (
    c.SOURCE_STATE, c.SOURCE_READ_TIME, c.SOURCE_AGE, c.SOURCE_READS, c.SOURCE_MISSED,
    c.SOURCE_CPU, c.SOURCE_PERIOD, c.PERIOD_FACTOR,
)  # fmt: skip
_AGENT_METRICS = (
    c.AGENT_READS, c.AGENT_MISSED, c.AGENT_READ_CPU, c.AGENT_STRETCHED,
    c.AGENT_CPU, c.AGENT_MEMORY, c.SPOOL_SIZE, c.SPOOL_BATCHES, c.UNSTORED_SIZE, c.UNSTORED_BATCHES,
    c.UNSTORED_AGE, c.FRAMES_SHIPPED, c.SHIP_FAILURES, c.LOG_LINES_LOST,
)  # fmt: skip


class SelfMetricsSource(base.Source):
    """The agent's own state as columns."""

    name = "agent"
    lane = base.SYSTEM
    period_seconds = 5.0
    stage = 4
    longest_period_seconds = 5.0
    """The metrics that report faults must not be the first to become stale."""

    def __init__(
        self,
        statuses: Callable[[], Mapping[str, states.SourceState]],
        shipping: shipping_stats.ShippingStats,
        take_events: Callable[[], list[Event]],
        keeper: Callable[[], budget_keeper.BudgetKeeper | None] = lambda: None,
        hung: Callable[[], Mapping[str, guard.HungCall]] = dict,
    ) -> None:
        self._hung = hung
        self._devices: tuple[str, ...] = ()
        self._counted: dict[str, tuple[Frame, list[int]]] = {}
        """Last counted frame with absent readings, by source."""
        self._keeper = keeper
        self._statuses = statuses
        self._shipping = shipping
        self._take_events = take_events

    def probe(self, host: Host) -> probe_result.ProbeResult:  # noqa: ARG002 - it reads the agent itself
        """Columns for every source and for the agent."""
        columns = probe_result.ColumnBuilder()
        for name in self._statuses():
            source = Entity(entities.SOURCE, (name,))
            columns.add_each(_SOURCE_METRICS, source)
            for reason in Absent:
                columns.add(c.SOURCE_ABSENT, source.child(entities.ABSENCE, reason.label))
        node = Entity(entities.NODE)
        columns.add_each(_AGENT_METRICS, node)
        for why in self._shipping.dropped_frames:
            columns.add(c.FRAMES_DROPPED, node.child(entities.DROP, why))
        for metric, about, _ in _budget_readings(self._keeper()):
            columns.add(metric, about)
        for metric, about, _ in _collector_readings(self._shipping):
            columns.add(metric, about)
        columns.add_each(_witness_readings(self._shipping), node)
        self._devices = tuple(self._hung())
        for device in self._devices:
            columns.add(c.HUNG_TIME, Entity(entities.HUNG_DEVICE, (device,)))
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read every status, the spool and the process."""
        now_ns = host.clock.now().boot_ns
        readings: list[Reading] = []
        reads = missed_ticks = cpu_ns = stretched = 0
        for status in self._statuses().values():
            reads += status.reads
            missed_ticks += status.missed_ticks
            cpu_ns += status.cpu_ns
            stretched += status.period_factor > 1
            finished = status.finished_boot_ns
            readings += (
                status.state,
                Absent.NOT_DUE if finished is None else status.duration_ns,
                Absent.NOT_DUE if finished is None else now_ns - finished,
                status.reads,
                status.missed_ticks,
                status.cpu_ns,
                status.configured_ns * status.period_factor,
                status.period_factor,
                *self._absent_counts(status),
            )
        shipping, keeper = self._shipping, self._keeper()
        meter = keeper.meter if keeper else ProcessMeter()
        readings += [
            reads,
            missed_ticks,
            cpu_ns,
            stretched,
            meter.process_cpu_ns(),
            meter.resident_bytes(),
            shipping.spool_bytes,
            shipping.spool_envelopes,
            shipping.unstored_bytes,
            shipping.unstored_envelopes,
            Absent.NOT_DUE
            if shipping.unstored_since_ns is None
            else max(now_ns - shipping.unstored_since_ns, 0),
            shipping.shipped_frames,
            shipping.failures,
            log_output.LOG_STREAM.lost,
            *shipping.dropped_frames.values(),
            *(reading for _, _, reading in _budget_readings(keeper)),
            *(reading for _, _, reading in _collector_readings(shipping)),
            *_witness_readings(shipping).values(),
            *self._hung_times(now_ns, into),
        ]
        into.put_readings(0, readings)
        into.events = self._take_events()

    def _absent_counts(self, status: states.SourceState) -> Sequence[int]:
        """Number of absent readings by reason; most sources have the same frame for several reads."""
        frame = status.frame
        if frame is None or not (frame.reasons or status.is_overdue):
            return _NONE_ABSENT
        if status.is_overdue:
            return [len(frame.values) if r is Absent.TIMEOUT else 0 for r in REASONS.values()]
        name = status.source.name
        counted = self._counted.get(name)
        # Compared by identity: a source with a long period has the same frame in many reads of this one.
        if counted is None or counted[0] is not frame:
            counted = frame, [frame.reasons.count(code) for code in REASONS]
            self._counted[name] = counted
        return counted[1]

    def _hung_times(self, now_ns: int, into: row_builder.RowBuilder) -> list[Reading]:
        """Duration of the hang of each device that hung at the last probe."""
        # A copy: threads of reads change the table meanwhile.
        hung = dict(self._hung())
        into.needs_probe = tuple(hung) != self._devices
        return [
            max(now_ns - hung[device].since_ns, 0) if device in hung else Absent.GONE
            for device in self._devices
        ]


def _witness_readings(shipping: shipping_stats.ShippingStats) -> dict[declare.Metric, Reading]:
    """State of the witness for the audit logs; empty if it is disabled."""
    if not shipping.audit_logs:
        return {}
    found = [audit_log.state for audit_log in shipping.audit_logs]
    records = sum(audit_log.records for audit_log in shipping.audit_logs)
    return {
        c.WITNESS_STATE: shipping_stats.CONFLICT
        if shipping_stats.CONFLICT in found
        else min(found),
        c.WITNESSED_RECORDS: records or Absent.NOT_DUE,
    }


def _collector_readings(
    shipping: shipping_stats.ShippingStats,
) -> list[tuple[declare.Metric, Entity, Reading]]:
    """Collector in use, and its changes; empty if there is only one."""
    if not shipping.collector_urls:
        return []
    node = Entity(entities.NODE)
    readings: list[tuple[declare.Metric, Entity, Reading]] = []
    for url in shipping.collector_urls:
        is_in_use = int(url == shipping.collector_url)
        readings.append((c.COLLECTOR_IN_USE, node.child(entities.COLLECTOR, url), is_in_use))
    for reason, count in shipping.collector_changes.items():
        change = node.child(entities.COLLECTOR_CHANGE, reason)
        readings.append((c.COLLECTOR_CHANGES, change, count))
    return readings


def _budget_readings(
    keeper: budget_keeper.BudgetKeeper | None,
) -> list[tuple[declare.Metric, Entity, Reading]]:
    """State of the agent's budget; limits only for bounded resources."""
    if keeper is None:
        return []
    node, budget, use = Entity(entities.NODE), keeper.budget, keeper.governor.use
    share: Reading = Absent.NOT_DUE if use is None else round(use * _MILLIONTHS)
    readings: list[tuple[declare.Metric, Entity, Reading]] = [(c.AGENT_CPU_USE, node, share)]
    if budget.cpu_ratio:
        state = keeper.governor.state
        readings += [
            (c.AGENT_CPU_BUDGET, node, round(budget.cpu_ratio * _MILLIONTHS)),
            (c.GOVERNOR_STATE, node.child(entities.BUDGET, "cpu"), state),
        ]
    if budget.memory_bytes:
        readings += [
            (c.AGENT_MEMORY_BUDGET, node, budget.memory_bytes),
            (c.GOVERNOR_STATE, node.child(entities.BUDGET, "memory"), keeper.memory.state),
        ]
    return readings
