"""Long work: on the event loop in slices between which others go first, in threads to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

SLICE_SECONDS = 0.001


class Turns:
    """Lets others go first: after each slice of work, for as long as the slice took.

    A request passes the loop a dozen times until it is acknowledged. If every pass met a slice of
    ours, it would wait for a dozen of them.
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
    """Await something that must not stop half-way; being cancelled takes effect when it has ended."""
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
