"""State of a source, its logs and events, which are emitted when the state changes.

The self metrics export the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from railscope.catalog import agent as catalog, declare, entities
from railscope.frame import Entity, Event, Frame, NodeTimestamp
from railscope.reading import PRESENT, Absent
from railscope.timestamps import SECOND_NS
from railscope_agent.sampling import guard
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.source_reader import ReadOutcome

log = structlog.get_logger(__name__)

STARTING, OK, PARTIAL, UNSUPPORTED, FAILED = catalog.SOURCE_STATES
# Bounds the memory if nothing takes the events, as in a sampler without the agent's own source.
MAX_QUEUED_EVENTS = 1000
# Two missed reads are tolerated: one late read is no reason for a gap on dashboards.
PERIODS_UNTIL_STALE = 3
SHORTEST_STALE_NS = 5_000_000_000
STARTING_NS = 60 * SECOND_NS
"""Maximum wait of a source for its prerequisites before that counts as a failure."""


@dataclass(slots=True)
class SourceState:
    """State of one source, for the self metrics."""

    source: Source
    state: int = STARTING
    problem: str = ""
    frame: Frame | None = None
    findings: tuple[ProbeFinding, ...] = ()
    reads: int = 0
    missed_ticks: int = 0
    duration_ns: int = 0
    cpu_ns: int = 0
    """Processor time of all reads."""
    period_factor: int = 1
    """Factor that the governor applies to the period."""
    finished_boot_ns: int | None = None
    changed_boot_ns: int = 0
    is_overdue: bool = False
    configured_ns: int = field(init=False)
    """Configured time between two reads."""
    waits_since_ns: int | None = None
    """Time of the first read that had to wait for the source's prerequisites, since they were last met."""

    def __post_init__(self) -> None:
        """Convert the period, which is constant."""
        self.configured_ns = round(self.source.period_seconds * SECOND_NS)

    @property
    def state_name(self) -> str:
        """Name of the state."""
        return catalog.SOURCE_STATES[self.state]

    @property
    def period_ns(self) -> int:
        """Time between two reads."""
        return self.configured_ns * self.period_factor

    def fresh_frame(self, now_boot_ns: int) -> Frame | None:
        """Return the latest frame, unless it is stale."""
        if self.frame is None or self.is_overdue:
            return None
        limit_ns = max(PERIODS_UNTIL_STALE * self.period_ns, SHORTEST_STALE_NS)
        return self.frame if now_boot_ns - self.frame.timestamp.boot_ns <= limit_ns else None


def latest_frame(status: SourceState | None, now_ns: int) -> Frame | Absent:
    """Latest frame of a source, or its absence reason."""
    if status is None or status.state == UNSUPPORTED:
        return Absent.UNSUPPORTED
    if status.state == STARTING:
        return Absent.NOT_DUE
    if frame := status.fresh_frame(now_ns):
        return frame
    if status.is_overdue or status.frame:
        return Absent.TIMEOUT
    denied = any(finding.verdict is ProbeVerdict.DENIED for finding in status.findings)
    return Absent.DENIED if denied else Absent.ERROR


@dataclass(slots=True)
class SourceGrader:
    """Grades sources after each read. A state change is logged once and becomes an event."""

    events: list[Event] = field(default_factory=list)

    def record_return(self, status: SourceState, outcome: ReadOutcome, now: NodeTimestamp) -> None:
        """Grade a read that returned in time."""
        status.is_overdue = False
        status.findings = outcome.findings
        if outcome.is_intermediate:
            status.reads += 1
            status.duration_ns = outcome.cost.total.wall_ns
            status.finished_boot_ns = now.boot_ns
            return
        status.frame = outcome.frame
        if outcome.problem:
            self._grade(status, FAILED, outcome.problem, now)
            return
        status.reads += 1
        status.duration_ns = outcome.cost.total.wall_ns
        status.finished_boot_ns = now.boot_ns
        columns = len(outcome.frame.values) if outcome.frame else 0
        problem = (
            f"{outcome.missing_count} of {columns} readings failed" if outcome.missing_count else ""
        )
        if not columns:
            state, problem = _without_columns(outcome)
            if state == STARTING and now.boot_ns - self._waits_since(status, now) >= STARTING_NS:
                state = FAILED
        # Denied readings are a matter of configuration: the source works and is only partial.
        elif outcome.missing_count and not _has_value(outcome) and not _all_denied(outcome):
            state = FAILED
        else:
            state = PARTIAL if outcome.missing_count else OK
        if columns or state == UNSUPPORTED:
            status.waits_since_ns = None
        self._grade(status, state, problem, now)

    @staticmethod
    def _waits_since(status: SourceState, now: NodeTimestamp) -> int:
        if status.waits_since_ns is None:
            status.waits_since_ns = now.boot_ns
        return status.waits_since_ns

    def record_timeout(
        self, status: SourceState, deadline_seconds: float, now: NodeTimestamp
    ) -> None:
        """Grade a read that has not returned in time."""
        status.is_overdue = True
        self._grade(status, FAILED, f"timeout: no response within {deadline_seconds:g} s", now)

    def _grade(self, status: SourceState, state: int, problem: str, now: NodeTimestamp) -> None:
        before, status.problem = status.state, problem
        if state == before:
            return
        seconds = (now.boot_ns - status.changed_boot_ns) / SECOND_NS
        status.state, status.changed_boot_ns = state, now.boot_ns
        name = status.source.name
        if state in {PARTIAL, FAILED}:
            event = "source_failed" if state == FAILED else "source_degraded"
            log.warning(event, source=name, problem=problem)
        elif before in {PARTIAL, FAILED}:
            log.info("source_recovered", source=name, failed_seconds=round(seconds, 1))
        # A normal start is no event; otherwise each restart would produce one for each source.
        if before == STARTING and state in {OK, UNSUPPORTED}:
            return
        facts = {
            "before": catalog.SOURCE_STATES[before],
            "after": status.state_name,
            "problem": problem,
        }
        self._queue_event(catalog.SOURCE_EVENT, Entity(entities.SOURCE, (name,)), facts, now)

    def record_hang(self, call: guard.HungCall, now: NodeTimestamp, *, hangs: bool) -> None:
        """Report a call that hangs and was left to its thread, or that has returned."""
        hung_ns = max(now.boot_ns - call.since_ns, 0)
        hung_seconds = round(hung_ns / SECOND_NS, 1)
        if hangs:
            log.warning("call_hung", device=call.device, call=call.call, hung_seconds=hung_seconds)
        else:
            log.info("call_returned", device=call.device, call=call.call, hung_seconds=hung_seconds)
        facts = {
            "device": call.device,
            "call": call.call,
            "for": _seconds(hung_ns),
            "state": "hung" if hangs else "returned",
        }
        self._queue_event(catalog.HANG_EVENT, Entity(entities.NODE), facts, now)

    def record_period_change(
        self, status: SourceState, period_factor: int, reason: str, now: NodeTimestamp
    ) -> None:
        """Report that the governor has changed the period of a source."""
        before_ns, status.period_factor = status.period_ns, period_factor
        name = status.source.name
        facts = {"before": _seconds(before_ns), "after": _seconds(status.period_ns), "why": reason}
        report = log.warning if status.period_ns > before_ns else log.info
        report(
            "period_changed",
            source=name,
            before_seconds=before_ns / SECOND_NS,
            after_seconds=status.period_ns / SECOND_NS,
            reason=reason,
        )
        self._queue_event(catalog.GOVERNOR_EVENT, Entity(entities.SOURCE, (name,)), facts, now)

    def _queue_event(
        self,
        event_class: declare.EventClass,
        about: Entity,
        facts: Mapping[str, str],
        now: NodeTimestamp,
    ) -> None:
        present_facts = {key: value for key, value in facts.items() if value}
        event = Event(event_class, about, now.wall_ns, now.boot_ns, present_facts)
        if len(self.events) < MAX_QUEUED_EVENTS:
            self.events.append(event)


def _seconds(period_ns: int) -> str:
    return f"{period_ns / SECOND_NS:g} s"


def _has_value(outcome: ReadOutcome) -> bool:
    """True if at least one reading has a value."""
    frame = outcome.frame
    return frame is not None and (not frame.reasons or PRESENT in frame.reasons)


def _all_denied(outcome: ReadOutcome) -> bool:
    """True if all missing readings are denied: then nothing has failed."""
    reasons = outcome.frame.reasons if outcome.frame else b""
    return reasons.count(Absent.DENIED.value) == outcome.missing_count > 0


def _without_columns(outcome: ReadOutcome) -> tuple[int, str]:
    """Return the state of a source without columns: unsupported, waiting or failed."""
    for finding in outcome.findings:
        if finding.verdict in {ProbeVerdict.DENIED, ProbeVerdict.BROKEN}:
            return FAILED, finding.detail
        if finding.verdict is ProbeVerdict.AWAITED:
            return STARTING, finding.detail
    return UNSUPPORTED, ""
