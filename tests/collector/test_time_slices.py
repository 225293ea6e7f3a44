"""Long work on the event loop pauses for other tasks, and only for them."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Any

from railscope_collector.work_limits import SLICE_SECONDS, TimeSlices


class TimerLoop(asyncio.SelectorEventLoop):
    """An event loop that records the delays of its timers."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: list[float] = []

    def call_later(self, delay, callback, *args: Any, context=None):
        """Record the delay, and do not wait."""
        self.delays.append(delay)
        return super().call_later(0, callback, *args, context=context)


@dataclass
class HandClock:
    """A clock that is moved by hand."""

    now: float = 0.0

    def read(self) -> float:
        """Return the time."""
        return self.now


def work_of(count: int, clock: HandClock, *, other_seconds: float) -> tuple[list[float], int]:
    """Return the pauses of some slices of work, and the turns of a task that is always ready."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            clock.now += other_seconds
            await asyncio.sleep(0)

    async def work() -> None:
        competing = asyncio.create_task(other()) if other_seconds else None
        slices = TimeSlices(clock.read)
        for _ in range(count):
            clock.now += SLICE_SECONDS
            await slices.yield_if_due()
        if competing:
            competing.cancel()

    with asyncio.Runner(loop_factory=TimerLoop) as runner:
        runner.run(work())
        loop = runner.get_loop()
        assert isinstance(loop, TimerLoop)
        return loop.delays, turns


def test_work_does_not_pause_while_nothing_else_runs() -> None:
    assert work_of(5, HandClock(), other_seconds=0.0) == ([], 0)


def test_work_pauses_as_long_as_its_slice_took_while_others_run() -> None:
    pauses, turns = work_of(5, HandClock(), other_seconds=SLICE_SECONDS)
    assert len(pauses) == 5
    assert min(pauses) >= SLICE_SECONDS * 0.99
    assert turns >= 10, "others run before the work continues, and again after its pause"


async def test_a_task_that_awaits_received_data_runs_between_two_slices() -> None:
    """It takes three passes of the loop: data is detected, read, and processed."""
    sender, receiver = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=receiver)
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await reader.readexactly(1))

    task = asyncio.create_task(receive())
    await asyncio.sleep(0)
    clock = HandClock()
    slices = TimeSlices(clock.read)
    sender.send(b"x")
    clock.now += SLICE_SECONDS
    await slices.yield_if_due()
    assert received == [b"x"]
    await task
    writer.close()
    await writer.wait_closed()
    sender.close()


def test_short_turns_of_others_cause_no_pause() -> None:
    pauses, turns = work_of(5, HandClock(), other_seconds=SLICE_SECONDS / 1000)
    assert pauses == []
    assert turns >= 5, "they ran nevertheless"


def test_work_has_a_share_of_the_time_while_others_never_pause() -> None:
    busy, clock = 0.05, HandClock()
    pauses, turns = work_of(100, clock, other_seconds=busy)
    assert pauses == []
    assert clock.now - turns * busy >= 100 * SLICE_SECONDS * 0.99, "the work"
    assert turns <= 40, "slices of 10 ms instead of 1 ms"
