"""Sampler: reads every source at its period, on the thread of its lane.

A lane is a thread that reads its sources one after the other, waits for the next time itself, and publishes their frames:
the event loop is not woken. Sources of the NVIDIA driver have a lane, burst sampling has one, what may be slow shares one,
and all others share one. Periods start on one grid of the boot clock, so sources of 1, 5 and 60 seconds are due together.

A call that is in progress at `HUNG_POLLS` consecutive polls is hung. Its thread is left behind, and only its device has no
values (agent/railscope_agent/sampling/guard.py). Each lane polls all lanes when it wakes, and a task polls them every
`POLL_SECONDS`. Polls are counted, not seconds: while the agent itself does not run, no call becomes hung.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from railscope.frame import Event, Frame, FrameOrigin, NodeTimestamp
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Clock, Host
from railscope_agent.sampling.budget_keeper import BudgetKeeper
from railscope_agent.sampling.guard import CallAbandonedError, GuardedHost, HungCalls
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.source_reader import REPROBE_NS, ReadOutcome, SourceReader
from railscope_agent.sampling.status import UNSUPPORTED, SourceGrader, SourceState

APART_NS = 20_000_000
"""Time between the reads of two lanes: threads that wake together would wake each other at the interpreter's lock."""
HUNG_POLLS = 3
POLL_SECONDS = 10.0
"""Time between two polls of the event loop: it matters only while all lanes are stuck."""
MAX_CALL_SECONDS = 2.0
"""A longer call counts as hung, even in a read with a longer deadline."""
# A stuck read is not waited for any longer: the agent must be able to stop.
END_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Deadline of a read, in periods but never less than `shortest_seconds`."""

    periods: float = 1.0
    shortest_seconds: float = 1.0

    def deadline_seconds(self, status: SourceState) -> float:
        """Return the deadline of one read of a source, at its present period."""
        return max(status.period_ns / SECOND_NS * self.periods, self.shortest_seconds)

    @property
    def poll_seconds(self) -> float:
        """Return the minimum time between two polls of a lane."""
        return min(self.shortest_seconds, MAX_CALL_SECONDS / (HUNG_POLLS - 1))


@dataclass(slots=True)
class _Member:
    """A source in its lane: its reader and the time of its next read."""

    status: SourceState
    reader: SourceReader
    due_ns: int

    def plan(self, now_ns: int) -> None:
        """Set the next time on the grid; times that have passed meanwhile are missed ticks."""
        # A source without devices on this node is probed only occasionally.
        shortest_ns = self.reader.reprobe_ns if self.status.state == UNSUPPORTED else 0
        period_ns = max(self.status.period_ns, shortest_ns)
        # Multiples of the period, and not due time plus period: all sources stay on one grid after a delay.
        following = (self.due_ns // period_ns + 1) * period_ns
        if following <= now_ns:
            skipped = (now_ns - following) // period_ns + 1
            self.status.missed_ticks += skipped
            following += skipped * period_ns
        self.due_ns = following


class _Lane:
    """Sources that one thread reads; that of a stepped lane reads only on `read_due`."""

    def __init__(
        self,
        sampler: Sampler,
        guard: GuardedHost,
        members: list[_Member],
        offset_ns: int,
        *,
        is_stepped: bool,
    ) -> None:
        self.members = sorted(members, key=lambda member: member.status.source.stage)
        self.guard = guard
        self._sampler = sampler
        self._offset_ns = offset_ns
        self.is_stepped = is_stepped
        self._signal = threading.Event()
        self._is_stopped = False
        self._rested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._reading: _Member | None = None
        self._polled: tuple[object, object, int, int] = None, None, 0, 0
        """Call and member at the last poll, and the number of polls since each began."""
        self._polled_seconds = 0.0
        self._thread = self._start()

    def _start(self) -> threading.Thread:
        # A daemon: a call that never returns must not keep the process from ending.
        thread = threading.Thread(target=self._work, name="reads", daemon=True)
        thread.start()
        return thread

    @property
    def due_ns(self) -> int:
        """Time of the next read."""
        return min(member.due_ns for member in self.members)

    # On the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        clock = self._sampler.clock
        with suppress(CallAbandonedError):  # another thread has taken over
            while not self._is_stopped:
                wait_ns = self.due_ns + self._offset_ns - clock.now().boot_ns
                if self.is_stepped or wait_ns > 0:
                    self._signal.wait(None if self.is_stepped else wait_ns / SECOND_NS)
                    self._signal.clear()
                if not self._is_stopped:
                    self._sampler.poll()
                    self._tick(clock)
                if self.is_stepped:
                    self._call_loop(self._rested.set)
            for member in self.members:
                member.reader.close()

    def _tick(self, clock: Clock) -> None:
        now_ns = clock.now().boot_ns
        for member in self.members:
            if member.due_ns <= now_ns:
                self._reading = member
                outcome = member.reader.run()
                self._reading = None
                self._sampler.record(member.status, outcome)
                member.plan(clock.now().boot_ns)

    def _call_loop(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(function)

    # On any thread -------------------------------------------------------------------------------

    def poll(self, now: float, limits: ReadLimits) -> None:
        """Leave a call behind that was in progress at the last polls as well."""
        if now - self._polled_seconds < 0.9 * limits.poll_seconds:
            return
        self._polled_seconds = now
        member, call = self._reading, self.guard.running
        last_call, last_member, call_polls, member_polls = self._polled
        call_polls = call_polls + 1 if call is not None and call is last_call else 1
        member_polls = member_polls + 1 if member is not None and member is last_member else 1
        self._polled = call, member, call_polls, member_polls
        if member is None:
            return
        is_hung = call is not None and call_polls >= HUNG_POLLS
        if is_hung and call is not None and self.guard.abandon(call):
            # The plan of the stuck thread belongs to a driver in an unknown state.
            member.reader.forget_plan()
            self._thread = self._start()
            self._signal.set()
        elif is_hung or member_polls * limits.poll_seconds > limits.deadline_seconds(member.status):
            self._sampler.record_late(member.status)
            if is_hung and self.is_stepped:
                self._call_loop(self._rested.set)

    # On the event loop -----------------------------------------------------------------------------

    async def follow(self) -> None:
        """Read at the times of a clock that stands still between steps, as that of a test."""
        clock = self._sampler.clock
        while True:
            # A lane that hangs remains due: it waits for the next step like the others.
            after_ns = clock.now().boot_ns + 1 if self._reading else 0
            await clock.sleep_until(max(self.due_ns, after_ns))
            await self.read_due()

    async def read_due(self) -> None:
        """Read the sources that are due, and wait until they are read."""
        self._rested.clear()
        self._signal.set()
        await self._rested.wait()

    async def stop(self) -> None:
        """Let the thread end after its present read, and release the sources."""
        self._is_stopped = True
        self._signal.set()
        until = time.monotonic() + END_SECONDS
        while self._thread.is_alive() and time.monotonic() < until:  # noqa: ASYNC110 - threads have no event
            await asyncio.sleep(0.005)


@dataclass(slots=True)
class Sampler:
    """Runs all sources until cancelled, and passes every frame to `publish`, on the threads of the lanes.

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
    reprobe_ns: int = REPROBE_NS
    _grader: SourceGrader = field(default_factory=SourceGrader)
    _lanes: list[_Lane] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Protects states, costs and events."""
    _polling: threading.Lock = field(default_factory=threading.Lock)

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
        with self._lock:
            events, self._grader.events = self._grader.events, []
        return events

    async def run(self) -> None:
        """Sample until cancelled."""
        lanes = self._open_lanes(is_stepped=not self.clock.is_running)
        try:
            async with asyncio.TaskGroup() as group:
                seconds = self.limits.poll_seconds if lanes[0].is_stepped else POLL_SECONDS
                group.create_task(self._poll_regularly(seconds))
                for lane in lanes:
                    if lane.is_stepped:
                        group.create_task(lane.follow())
        finally:
            await self._close_lanes()

    async def once(self) -> None:
        """Read every source once."""
        lanes = self._open_lanes(is_stepped=True)
        polling = asyncio.ensure_future(self._poll_regularly(self.limits.poll_seconds))
        try:
            await asyncio.gather(*(lane.read_due() for lane in lanes))
        finally:
            polling.cancel()
            await self._close_lanes()

    def _open_lanes(self, *, is_stepped: bool) -> list[_Lane]:
        now_ns = self.clock.now().boot_ns
        members: dict[str, list[_Member]] = {}
        guards: dict[str, GuardedHost] = {}
        meter = self.keeper.meter if self.keeper else None
        for source in self.sources:
            name = source.lane
            guard = guards.setdefault(name, GuardedHost(self.host, self.hung))
            reader = SourceReader(source, guard, self.origin, meter, self.reprobe_ns)
            member = _Member(self.statuses[source.name], reader, now_ns)
            members.setdefault(name, []).append(member)
        self._lanes = [
            _Lane(self, guards[name], of_lane, place * APART_NS, is_stepped=is_stepped)
            for place, (name, of_lane) in enumerate(members.items())
        ]
        return self._lanes

    async def _close_lanes(self) -> None:
        # Another sampler may use the sources afterwards.
        await asyncio.gather(*(lane.stop() for lane in self._lanes))
        self._lanes = []

    async def _poll_regularly(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self.poll()

    def poll(self) -> None:
        """Poll all lanes, and report calls that hang or have returned."""
        if not self._polling.acquire(blocking=False):
            return
        try:
            now = time.monotonic()
            for lane in self._lanes:
                lane.poll(now, self.limits)
            for call, hangs in self.hung.changes():
                with self._lock:
                    self._grader.record_hang(call, self.clock.now(), hangs=hangs)
        finally:
            self._polling.release()

    def record(self, status: SourceState, outcome: ReadOutcome) -> None:
        """Grade a read, account for its cost, and publish its frame."""
        now = self.clock.now()
        with self._lock:
            self._grader.record_return(status, outcome, now)
            status.cpu_ns += outcome.cost.total.cpu_ns
            if self.keeper:
                self._govern(status, outcome, now)
        if outcome.frame:
            self.publish(outcome.frame)

    def record_late(self, status: SourceState) -> None:
        """Grade a read that has not returned in time."""
        with self._lock:
            self._grader.record_timeout(
                status, self.limits.deadline_seconds(status), self.clock.now()
            )

    def _govern(self, status: SourceState, outcome: ReadOutcome, now: NodeTimestamp) -> None:
        assert self.keeper  # noqa: S101 - checked by the caller
        # A source without devices is only probed, at an interval of its own: a longer period would save nothing.
        if status.state != UNSUPPORTED:
            self.keeper.governor.record_read(status.source.name, outcome.cost)
        self.keeper.update(now.boot_ns)
        period_factor, reason = self.keeper.period_factor(status.source.name)
        if period_factor != status.period_factor:
            self._grader.record_period_change(status, period_factor, reason, now)
