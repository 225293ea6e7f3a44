"""Sampler: reads every source at its period, on a thread, with a deadline.

The sources of one driver are a family: at most one of them is read at a time. Families that are due together
share a thread, which waits for the time itself (agent/railscope_agent/sampling/read_threads.py). Periods start on one grid of the
boot clock, so that sources of 1, 5 and 60 seconds are due together.

A call that does not return keeps its thread, and the family continues on a new one: only that call's device
is without values (absence reason `timeout`; agent/railscope_agent/sampling/hang_guard.py).

Reads of a source never overlap: while a slow one has not returned, ticks of its family are missed and
counted, its sources age, and their readings are absent for the same reason. The result of a read that
returns after its deadline is discarded, because the time of its values is unknown.

Deadlines do not count time in which the agent itself did not run (agent/railscope_agent/sampling/hang_guard.py).

Burst sampling wakes the event loop only when the source has readings, once per second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from railscope.frame import Event, Frame, FrameOrigin, NodeTimestamp
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Clock, Host
from railscope_agent.sampling.budget_keeper import BudgetKeeper
from railscope_agent.sampling.call_time import CallTime
from railscope_agent.sampling.hang_guard import GuardedHost, HungCalls
from railscope_agent.sampling.read_threads import (
    PROMPT_SECONDS,
    TURN_SECONDS,
    FamilyThread,
    ReadThreads,
)
from railscope_agent.sampling.source import Source, is_in_memory, source_stage
from railscope_agent.sampling.source_reader import REPROBE_NS, ReadOutcome, SourceReader
from railscope_agent.sampling.status import UNSUPPORTED, SourceGrader, SourceState

# Readings of burst sources are per second: the event loop is needed once per second only.
SERIES_SECONDS = 1.0
"""Maximum duration of a series of reads that a thread times by itself."""
# A stuck read is not waited for any longer: the agent must be able to stop.
END_SECONDS = 1.0
MAX_CALL_SECONDS = 2.0
"""A longer call counts as hung, even in a read with a longer deadline."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Deadline of a read, in periods but never less than `shortest_seconds`."""

    periods: float = 1.0
    shortest_seconds: float = 1.0

    def deadline_seconds(self, status: SourceState) -> float:
        """Return the deadline of one read of a source, at its present period."""
        return max(status.period_ns / SECOND_NS * self.periods, self.shortest_seconds)


@dataclass(slots=True)
class _FamilyMember:
    """A source in its family: its reader and the time of its next read."""

    status: SourceState
    reader: SourceReader
    due_ns: int

    @property
    def period_ns(self) -> int:
        """Period; a source without devices on this node is probed only occasionally."""
        shortest_ns = self.reader.reprobe_ns if self.status.state == UNSUPPORTED else 0
        return max(self.status.period_ns, shortest_ns)

    @property
    def following_ns(self) -> int:
        """Time after the next read, on the grid."""
        # Multiples of the period, and not due time plus period: all sources stay on one grid after a delay.
        return (self.due_ns // self.period_ns + 1) * self.period_ns

    def plan(self, now_ns: int) -> None:
        """Set the next time on the grid; times that have passed meanwhile are missed ticks."""
        period_ns, following = self.period_ns, self.following_ns
        if following <= now_ns:
            skipped = (now_ns - following) // period_ns + 1
            self.status.missed_ticks += skipped
            following += skipped * period_ns
        self.due_ns = following


class _FamilyReads:
    """Sequential reads of several members on their family's thread.

    With `is_series`, a series of reads of the only member, each when it is due, until it has readings.
    """

    def __init__(
        self,
        members: Sequence[_FamilyMember],
        time: CallTime,
        clock: Clock,
        *,
        is_series: bool = False,
    ) -> None:
        self.members = members
        self.outcomes: list[tuple[_FamilyMember, ReadOutcome, NodeTimestamp]] = []
        self.is_series = is_series
        self.is_ended = False
        """Set to end a series with the present read."""
        self.due_ns = min(member.due_ns for member in members)
        self.period_ns = min(member.following_ns for member in members) - self.due_ns
        self._time = time
        self._clock = clock
        self.running_since = 0.0
        """Start of the present read."""
        self.used_count = 0
        """Number of outcomes that have been used; later ones are too late."""

    def run(self) -> int | None:
        """Read the members; return the time of the next read of a series that has not ended."""
        if self.is_series:
            return self._run_series(self.members[0])
        for member in self.members:
            self._read(member)
        return None

    def _run_series(self, member: _FamilyMember) -> int | None:
        outcome = self._read(member)
        end_ns = self.due_ns + round(SERIES_SECONDS * SECOND_NS)
        # A source that never has readings must not keep the thread: the series also ends by time.
        if self.is_ended or not outcome.is_intermediate or member.due_ns >= end_ns:
            return None
        member.plan(self._clock.now().boot_ns)
        return member.due_ns

    def _read(self, member: _FamilyMember) -> ReadOutcome:
        self.running_since = self._time.seconds()
        outcome = member.reader.run()
        # Appended when complete: the event loop reads this list while the thread runs.
        self.outcomes.append((member, outcome, self._clock.now()))
        return outcome

    @property
    def unread(self) -> Sequence[_FamilyMember]:
        """Members whose reads have not returned, the running one first."""
        return self.members if self.is_series else self.members[self.used_count :]

    @property
    def running(self) -> _FamilyMember:
        """Member that is being read, or was read last."""
        return self.members[min(len(self.outcomes), len(self.members) - 1)]

    def reclaim_late_reads(self) -> list[tuple[_FamilyMember, ReadOutcome]]:
        """Undo outcomes that came too late to be used; their cost still counts."""
        late = [(member, outcome) for member, outcome, _ in self.outcomes[self.used_count :]]
        for member, outcome in late:
            # Otherwise its sequence number would be missing at the collector, and count as a lost frame.
            member.reader.undo(outcome)
        return late


@dataclass(slots=True)
class _DeviceFamily:
    """Sources of one driver, their thread, and the reads that have not returned."""

    guard: GuardedHost
    thread: FamilyThread
    members: list[_FamilyMember] = field(default_factory=list)
    pending: tuple[asyncio.Future[None], _FamilyReads] | None = None
    stage: int = 0
    is_in_memory: bool = False
    """True if its sources need no thread."""

    def add_member(self, member: _FamilyMember) -> None:
        """Add a source; reads of a family with a short period do not wait for other families."""
        self.members.append(member)
        self.thread.limit_delay(member.status.source.period_seconds)
        self.stage = max(self.stage, source_stage(member.status.source))
        # One source that may block is enough to keep the whole family off the event loop.
        self.is_in_memory = all(is_in_memory(each.status.source) for each in self.members)

    @property
    def due_ns(self) -> int:
        """Time of the next read."""
        return min(member.due_ns for member in self.members)

    @property
    def is_series(self) -> bool:
        """True if its only source is read in series."""
        # Another member would have to wait for the end of the series.
        return len(self.members) == 1 and self.members[0].period_ns < PROMPT_SECONDS * SECOND_NS

    def leave_hung_call(self, limit_seconds: float) -> bool:
        """Continue with a new thread if the present one is stuck in a call; return True if it was."""
        if self.guard.running_seconds < limit_seconds or self.guard.abandon() is None:
            return False
        self.thread.replace()
        # Device handles and open files of the plan belong to a driver in an unknown state.
        self.forget_plans()
        return True

    def forget_plans(self) -> None:
        """Make every source probe at its next read."""
        for member in self.members:
            member.reader.forget_plan()

    def close(self) -> None:
        """Release the resources of the sources; on their thread, where a read may still be running."""
        for member in self.members:
            member.reader.close()


@dataclass(slots=True)
class Sampler:
    """Runs all sources until cancelled, and passes every frame to `publish`.

    With a keeper, an expensive source is read less often. Its longer period is a multiple of the configured
    one on the same grid, so it never needs an additional wake-up.
    """

    host: Host
    origin: FrameOrigin
    sources: Iterable[Source]
    publish: Callable[[Frame], None]
    limits: ReadLimits = field(default_factory=ReadLimits)
    keeper: BudgetKeeper | None = None
    statuses: dict[str, SourceState] = field(default_factory=dict)
    hung: HungCalls = field(default_factory=HungCalls)
    call_time: CallTime = field(default_factory=CallTime)
    reprobe_ns: int = REPROBE_NS
    _grader: SourceGrader = field(default_factory=SourceGrader)
    _threads: ReadThreads = field(init=False)
    _followed: list[_DeviceFamily] = field(default_factory=list)
    _has_finished: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Create a status for every source."""
        self.sources = tuple(self.sources)
        self.statuses = {source.name: SourceState(source) for source in self.sources}

    @property
    def clock(self) -> Clock:
        """Clock of the host."""
        return self.host.clock

    def take_events(self) -> list[Event]:
        """Return and clear the state changes since the last call."""
        events, self._grader.events = self._grader.events, []
        return events

    async def run(self) -> None:
        """Sample until cancelled."""
        await self._with_families(self._follow)

    async def once(self) -> None:
        """Read every source once."""
        await self._with_families(lambda family: self._tick(family, family.members))

    async def _with_families(
        self, work: Callable[[_DeviceFamily], Coroutine[Any, Any, None]]
    ) -> None:
        self._threads = ReadThreads(lambda: self.clock.now().boot_ns)
        self._followed = families = self._families()
        try:
            async with asyncio.TaskGroup() as group:
                for family in families:
                    group.create_task(work(family))
        finally:
            # Another sampler may use the sources afterwards.
            last = [(family.thread.job, family.close) for family in families]
            await self._threads.close(last, END_SECONDS)

    def _families(self) -> list[_DeviceFamily]:
        now_ns = self.clock.now().boot_ns
        families: dict[str, _DeviceFamily] = {}
        for source in self.sources:
            if source.family not in families:
                guard = GuardedHost(self.host, self.hung, self.call_time)
                families[source.family] = _DeviceFamily(guard, FamilyThread(self._threads))
            family = families[source.family]
            meter = self.keeper.meter if self.keeper else None
            reader = SourceReader(source, family.guard, self.origin, meter, self.reprobe_ns)
            family.add_member(_FamilyMember(self.statuses[source.name], reader, now_ns))
        return list(families.values())

    async def _follow(self, family: _DeviceFamily) -> None:
        while True:
            due_ns = family.due_ns
            # A thread waits for the time, unless the reads depend on others, or an earlier read goes on.
            is_timed = self.clock.is_running and not (
                family.stage or family.is_in_memory or family.pending
            )
            if not is_timed:
                await self._wait_until_due(family, due_ns)
                # More sources may have become due while this one waited; they share the tick.
                due_ns = self.clock.now().boot_ns
            due = [member for member in family.members if member.due_ns <= due_ns]
            await self._tick(family, due, is_series=is_timed and family.is_series)
            now = self.clock.now()
            # Before the next times are planned: a changed period counts from now on.
            self._govern(due, now)
            for member in due:
                member.plan(now.boot_ns)
            self._has_finished.set()

    async def _wait_until_due(self, family: _DeviceFamily, due_ns: int) -> None:
        """Wait for a time, and for the families of lower stages that are due then, but no longer than a turn.

        The end of their reads wakes the event loop; a timer before it would be another wake-up.
        """
        if self.clock.is_running:
            await self._wait_for_stages_below(family.stage, due_ns)
        await self.clock.sleep_until(due_ns)
        # Families of lower stages may be read for the first time at exactly this time.
        await self._wait_for_stages_below(family.stage, due_ns)

    async def _wait_for_stages_below(self, stage: int, due_ns: int) -> None:
        """Wait until the families of lower stages have been read, at most a turn after a time."""
        seconds = max(due_ns - self.clock.now().boot_ns, 0) / SECOND_NS + TURN_SECONDS
        # A hung lower stage delays the derived readings by a turn; they then use its last results.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(
                    other.stage < stage and other.due_ns <= due_ns for other in self._followed
                ):
                    self._has_finished.clear()
                    await self._has_finished.wait()

    def _govern(self, due: Sequence[_FamilyMember], now: NodeTimestamp) -> None:
        """Update the periods. A change takes effect with the next read of its source."""
        if self.keeper is None:
            return
        self.keeper.update(now.boot_ns)
        for member in due:
            period_factor, reason = self.keeper.period_factor(member.status.source.name)
            if period_factor != member.status.period_factor:
                self._grader.record_period_change(member.status, period_factor, reason, now)

    def _record_cost(self, status: SourceState, outcome: ReadOutcome, now: NodeTimestamp) -> None:
        """Account for the cost of a read."""
        status.cpu_ns += outcome.cost.total.cpu_ns
        if self.keeper is None:
            return
        # A source without devices is only probed, at an interval of its own: a longer period would save
        # nothing.
        if status.state == UNSUPPORTED:
            self.keeper.governor.record_absence(status.source.name)
        else:
            self.keeper.governor.record_read(status.source.name, outcome.cost, now.boot_ns)

    async def _tick(
        self, family: _DeviceFamily, due: Sequence[_FamilyMember], *, is_series: bool = False
    ) -> None:
        """Read the due members; slow reads stay pending with their family, hung calls are left behind."""
        # A device that was skipped during the last probe answers again, and may have new columns.
        if family.guard.take_returned():
            family.forget_plans()
        if family.pending:
            future, reads = family.pending
            if not future.done():
                # After a stall of the agent, give the thread time to return.
                await self.call_time.wait(future, TURN_SECONDS)
            if not future.done() and not family.leave_hung_call(self._limit(reads.running)):
                for member in due:
                    member.status.missed_ticks += 1
                    self._grader.record_wait(member.status, self.clock.now())
                return
            if future.done():
                future.result()
            for member, outcome in reads.reclaim_late_reads():
                # The cost of late reads counts, so that the governor lengthens the period of a source that is
                # always late.
                self._record_cost(member.status, outcome, self.clock.now())
            # Only now: a tick in between would start a second read of the family.
            family.pending = None
        while due:
            due = await self._read_due(family, due, is_series=is_series)
        for call, hangs in self.hung.changes():
            self._grader.record_hang(call, self.clock.now(), hangs=hangs)

    async def _read_due(
        self, family: _DeviceFamily, due: Sequence[_FamilyMember], *, is_series: bool
    ) -> Sequence[_FamilyMember]:
        """Read members up to one that hangs; return the remaining ones, to be read by a new thread."""
        reads = _FamilyReads(due, self.call_time, self.clock, is_series=is_series)
        future = await self._read(family, reads)
        is_left = not future.done() and family.leave_hung_call(self._limit(reads.running))
        now = self.clock.now()
        # A copy: the thread may append while the frames are published.
        for member, outcome, finished in tuple(reads.outcomes):
            reads.used_count += 1
            self._grader.record_return(member.status, outcome, finished)
            self._record_cost(member.status, outcome, finished)
            if outcome.frame:
                self.publish(outcome.frame)
        if is_left:
            return reads.unread
        if future.done():
            future.result()
        else:
            family.pending = future, reads
            # The last may have returned at its deadline, before the future completed: it is not late.
            for late in reads.unread[:1]:
                self._grader.record_timeout(
                    late.status, self.limits.deadline_seconds(late.status), now
                )
            for member in reads.unread[1:]:
                self._grader.record_wait(member.status, now)
        return ()

    def _limit(self, member: _FamilyMember) -> float:
        """Return the time limit of one call of a read."""
        return min(self.limits.deadline_seconds(member.status), MAX_CALL_SECONDS)

    async def _read(self, family: _DeviceFamily, reads: _FamilyReads) -> asyncio.Future[None]:
        """Run the reads, and wait for each of them until its own deadline."""
        if family.is_in_memory:
            reads.run()
            future = asyncio.get_running_loop().create_future()
            future.set_result(None)
            return future
        is_series = reads.is_series
        # The clock of a replay stands still between steps: a thread that waited for a time would wait
        # permanently.
        if not self.clock.is_running:
            future = family.thread.submit(reads.run)
        else:
            future = family.thread.submit(
                reads.run, reads.due_ns, reads.period_ns, is_series=is_series
            )
        try:
            await self._wait_for_reads(family, reads, future)
        finally:
            # A cancelled series must not continue on its thread.
            reads.is_ended = True
        return future

    async def _wait_for_reads(
        self, family: _DeviceFamily, reads: _FamilyReads, future: asyncio.Future[None]
    ) -> None:
        """Wait until the reads have returned, one has passed its deadline, or a call hangs.

        They are measured from the time when they are due, those of a series from its end.
        """
        seconds = (reads.due_ns - self.clock.now().boot_ns) / SECOND_NS
        if reads.is_series:
            seconds = max(seconds, 0.0) + SERIES_SECONDS + 2 * PROMPT_SECONDS
        if self.clock.is_running and seconds > 0:
            await self.call_time.wait_for_end(future, seconds + TURN_SECONDS)
            began = self.call_time.seconds() - TURN_SECONDS
        else:
            began = self.call_time.seconds()
            if not future.done():
                await self.call_time.wait(future, TURN_SECONDS)
        while not future.done():
            now = self.call_time.seconds()
            watched, spent = now - began, now - max(reads.running_since, began)
            left = self.limits.deadline_seconds(reads.running.status) - spent
            limit, of_call = self._limit(reads.running), min(family.guard.running_seconds, watched)
            if of_call >= limit or (left <= 0 and of_call < limit / 2):
                break
            # If the deadline passes in the middle of a long call, the call soon proves to be hung or not.
            await self.call_time.wait(
                future, min(left, limit - of_call) if left > 0 else limit - of_call
            )
