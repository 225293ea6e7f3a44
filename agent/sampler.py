"""The sampler: reads every source at its period, on its family's thread, with a deadline.

A read never overlaps itself: while one has not come back, ticks are missed and counted, the source
ages, and its readings have no value for the reason `timeout`. A read that comes back after its
deadline is thrown away, because no one knows what instant it speaks of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from agent.device_thread import DeviceThread
from agent.host import Clock, Host
from agent.reader import Outcome, Reader
from agent.source import Finding, Source
from railscope.catalog import agent as catalog
from railscope.catalog.entities import SOURCE
from railscope.entity import Entity
from railscope.frame import Event, Frame, Origin

log = structlog.get_logger(__name__)

STARTING, OK, PARTIAL, UNSUPPORTED, FAILED = catalog.SOURCE_STATES
NS = 1_000_000_000
MOST_EVENTS_KEPT = 1000


@dataclass(slots=True)
class Status:
    """How one source fares; read by the self metrics and by the page."""

    source: Source
    state: int = STARTING
    problem: str = ""
    frame: Frame | None = None
    findings: tuple[Finding, ...] = ()
    reads: int = 0
    missed_ticks: int = 0
    duration_ns: int = 0
    finished_boot_ns: int | None = None
    changed_boot_ns: int = 0
    overdue: bool = False

    @property
    def state_name(self) -> str:
        """The state as a word."""
        return catalog.SOURCE_STATES[self.state]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a read may take, in periods but never less than `shortest_seconds`."""

    periods: float = 1.0
    shortest_seconds: float = 1.0

    def deadline_seconds(self, source: Source) -> float:
        """The deadline of one read of a source."""
        return max(source.period_seconds * self.periods, self.shortest_seconds)


@dataclass(slots=True)
class Sampler:
    """Runs all sources until cancelled, and hands every frame to `publish`."""

    host: Host
    origin: Origin
    sources: Iterable[Source]
    publish: Callable[[Frame], None]
    limits: Limits = field(default_factory=Limits)
    statuses: dict[str, Status] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Give every source a status and every family a thread."""
        self.sources = tuple(self.sources)
        self.statuses = {source.name: Status(source) for source in self.sources}

    @property
    def clock(self) -> Clock:
        """The clock of the host."""
        return self.host.clock

    async def run(self) -> None:
        """Sample until cancelled."""
        threads = {name: DeviceThread(name) for name in {s.family for s in self.sources}}
        try:
            async with asyncio.TaskGroup() as group:
                for source in self.sources:
                    group.create_task(self._follow(source, threads[source.family]))
        finally:
            for thread in threads.values():
                thread.stop()

    async def once(self) -> None:
        """Read every source one time, families side by side."""
        threads = {name: DeviceThread(name) for name in {s.family for s in self.sources}}
        try:
            async with asyncio.TaskGroup() as group:
                for source in self.sources:
                    reader = Reader(source, self.host, self.origin)
                    task = self._tick(
                        self.statuses[source.name], reader, threads[source.family], None
                    )
                    group.create_task(task)
        finally:
            for thread in threads.values():
                thread.stop()

    async def _follow(self, source: Source, thread: DeviceThread) -> None:
        reader = Reader(source, self.host, self.origin)
        status = self.statuses[source.name]
        period_ns = round(source.period_seconds * NS)
        pending: asyncio.Future[Outcome] | None = None
        due_ns = self.clock.now().boot_ns
        while True:
            await self.clock.sleep_until(due_ns)
            pending = await self._tick(status, reader, thread, pending)
            due_ns = self._next_tick(status, due_ns, period_ns)

    def _next_tick(self, status: Status, due_ns: int, period_ns: int) -> int:
        """The next instant of the grid; those that have passed meanwhile are missed ticks."""
        now_ns = self.clock.now().boot_ns
        following = (due_ns // period_ns + 1) * period_ns
        if following <= now_ns:
            skipped = (now_ns - following) // period_ns + 1
            status.missed_ticks += skipped
            following += skipped * period_ns
        return following

    async def _tick(
        self,
        status: Status,
        reader: Reader,
        thread: DeviceThread,
        pending: asyncio.Future[Outcome] | None,
    ) -> asyncio.Future[Outcome] | None:
        """Read once. Returns the read that is still under way, if it did not come back in time."""
        if pending is not None:
            if not pending.done():
                status.missed_ticks += 1
                return pending
            reader.take_back(pending.result())  # late: nobody knows what instant it speaks of
        future = thread.submit(reader.run)
        deadline = self.limits.deadline_seconds(status.source)
        done, _ = await asyncio.wait({future}, timeout=deadline)
        if not done:
            status.overdue = True
            self._grade(status, FAILED, f"no answer within {deadline:g} s")
            return future
        self._finish(status, future.result())
        return None

    def _finish(self, status: Status, outcome: Outcome) -> None:
        status.overdue = False
        status.findings = outcome.findings
        status.frame = outcome.frame
        if outcome.problem:
            self._grade(status, FAILED, outcome.problem)
            return
        status.reads += 1
        status.duration_ns = outcome.duration_ns
        status.finished_boot_ns = self.clock.now().boot_ns
        columns = len(outcome.frame.values) if outcome.frame else 0
        if not columns:
            state = UNSUPPORTED
        elif outcome.broken == columns:
            state = FAILED
        else:
            state = PARTIAL if outcome.broken else OK
        problem = f"{outcome.broken} of {columns} readings failed" if outcome.broken else ""
        self._grade(status, state, problem)
        if outcome.frame:
            self.publish(outcome.frame)

    def _grade(self, status: Status, state: int, problem: str) -> None:
        """Set the state; log a change once, with how long the state before it lasted."""
        before, status.problem = status.state, problem
        if state == before:
            return
        now = self.clock.now()
        seconds = (now.boot_ns - status.changed_boot_ns) / NS if before != STARTING else 0
        status.state, status.changed_boot_ns = state, now.boot_ns
        name = status.source.name
        if state in {PARTIAL, FAILED}:
            log.warning(f"source_{status.state_name}", source=name, problem=problem)  # noqa: G004 - an event name, not a message
        elif before in {PARTIAL, FAILED}:
            log.info("source_recovered", source=name, after_seconds=round(seconds, 1))
        if before == STARTING and state in {OK, UNSUPPORTED}:
            return
        facts = {
            "before": catalog.SOURCE_STATES[before],
            "after": status.state_name,
            "problem": problem,
        }
        event = Event(
            catalog.SOURCE_EVENT, Entity(SOURCE, (name,)), now.wall_ns, now.boot_ns,
            {key: value for key, value in facts.items() if value},
        )  # fmt: skip
        if len(self.events) < MOST_EVENTS_KEPT:
            self.events.append(event)
