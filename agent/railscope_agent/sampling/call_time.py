"""Time that calls take, without the time in which the agent itself does not run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from railscope_agent.sampling.worker_thread import resolve_future

SLICE_SECONDS = 0.1
"""Longest single wait. A hung call is detected in any case: every wait counts up to this much."""


class CallTime:
    """Stopwatch that stops while the agent does not run.

    The duration of a call excludes the time in which the agent itself did not run. On a node without
    free processors, or after the process or its virtual machine was stopped, a call that a driver
    completes at once can take seconds: its thread does not run, and neither does the event loop. The
    event loop detects this, because its waits end late. That delay is the agent's, not the driver's, so
    no time limit of a call or of a read counts it.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._stalled_seconds = 0.0
        self._stalled_until = 0.0

    def seconds(self) -> float:
        """Return the reading of the stopwatch; thread safe."""
        return self._monotonic() - self._stalled_seconds

    async def wait(self, future: asyncio.Future[None], seconds: float) -> None:
        """Wait for a future, at most this long and possibly less: the caller compares readings."""
        await self.wait_for_end(future, min(seconds, SLICE_SECONDS))

    async def wait_for_end(self, future: asyncio.Future[None], seconds: float) -> None:
        """Wait for a future with one timer. A stall counts if the wait ends late by it."""
        # The future's own end is not timed: only a timer that fires late shows that the event loop did not
        # run.
        expected = self._monotonic() + seconds
        loop = asyncio.get_running_loop()
        end = loop.create_future()
        timer = loop.call_later(seconds, resolve_future, end, None)

        def resolve(_: asyncio.Future[None]) -> None:
            resolve_future(end, None)

        future.add_done_callback(resolve)
        try:
            await end
        finally:
            # Without this, a cancelled wait would keep its timer and its callback at the future.
            timer.cancel()
            future.remove_done_callback(resolve)
        self.note_wait(expected, self._monotonic())

    def note_wait(self, expected: float, ended: float) -> None:
        """Exclude the delay of a wait. A delay that prolonged several waits counts once."""
        # Concurrent waits see the same stall; only the part behind the last recorded one is added.
        delayed_from = max(expected, self._stalled_until)
        if ended > delayed_from:
            self._stalled_seconds += ended - delayed_from
            self._stalled_until = ended
