"""Long work on the event loop, in slices between which others go first."""

from __future__ import annotations

import asyncio
import time

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
