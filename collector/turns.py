"""Long work: in slices on the event loop that leave time for other tasks, or uninterrupted in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

SLICE_SECONDS = 0.001


class Turns:
    """Yields to other tasks: after each slice of work, for as long as the slice took.

    A request passes the loop a dozen times until it is acknowledged. If each pass were delayed by a slice,
    the request would be delayed by a dozen of them.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def offer(self) -> None:
        """Pause, if a slice has been used up."""
        spent = time.perf_counter() - self._since
        if spent >= SLICE_SECONDS:
            await asyncio.sleep(spent)
            self._since = time.perf_counter()


async def to_its_end(work: Coroutine[Any, Any, object]) -> None:
    """Await work that must not be interrupted; a cancellation takes effect when it has ended."""
    running = asyncio.ensure_future(work)
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError from running.exception()
    running.result()
