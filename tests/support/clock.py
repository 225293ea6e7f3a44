"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio

from railscope.frame import NodeTimestamp

NS = 1_000_000_000
START = NodeTimestamp(wall_ns=1_790_000_000 * NS, boot_ns=1_000 * NS)


class ManualClock:
    """Wall and boot clock; only `advance` wakes the tasks that sleep on it."""

    def __init__(self, start: NodeTimestamp = START) -> None:
        self._now = start
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []
        self._fallen_asleep = asyncio.Event()

    def now(self) -> NodeTimestamp:
        return self._now

    async def sleep_until(self, boot_ns: int) -> None:
        while self._now.boot_ns < boot_ns:
            wake = asyncio.get_running_loop().create_future()
            self._sleepers.append((boot_ns, wake))
            self._fallen_asleep.set()
            await wake

    @property
    def is_running(self) -> bool:
        """False: time does not pass by itself."""
        return False

    def advance(self, seconds: float) -> None:
        """Advance both clocks and wake the tasks that are due."""
        step_ns = round(seconds * NS)
        now = self._now
        self._now = NodeTimestamp(now.wall_ns + step_ns, now.boot_ns + step_ns, now.uncertainty_ns)
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._now.boot_ns]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper not in due]
        for _, wake in due:
            if not wake.done():
                wake.set_result(None)

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forwards or back, as an administrator would."""
        now = self._now
        self._now = NodeTimestamp(
            now.wall_ns + round(seconds * NS), now.boot_ns, now.uncertainty_ns
        )

    @property
    def sleepers(self) -> int:
        """Return the number of tasks that sleep here."""
        return sum(not wake.done() for _, wake in self._sleepers)

    async def asleep(self, count: int) -> None:
        """Wait until a number of tasks sleep here: the work of this timestamp is done."""
        async with asyncio.timeout(60):
            while self.sleepers < count:
                self._fallen_asleep.clear()
                await self._fallen_asleep.wait()
