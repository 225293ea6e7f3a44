"""Limits of long work on the event loop, and of repeated log lines."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

SLICE_SECONDS = 0.001


class TimeSlices:
    """Yields to other tasks: after each slice of work, for as long as the slice took.

    A request passes the loop a dozen times until it is acknowledged. If each pass were delayed by a slice,
    the request would be delayed by a dozen of them.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def yield_if_due(self) -> None:
        """Pause, if a slice has been used up."""
        spent = time.perf_counter() - self._since
        if spent >= SLICE_SECONDS:
            await asyncio.sleep(spent)
            self._since = time.perf_counter()


async def run_to_end(work: Coroutine[Any, Any, object]) -> None:
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


EVERY_SECONDS = 60.0
_MAX_KEYS = 4096


@dataclass(slots=True)
class LogRateLimit:
    """Decides for each key if a line is due; `repeated` of that line is the count since the last one."""

    monotonic: Callable[[], float] = time.monotonic
    suppressed: int = 0
    """Number of lines that were not written."""
    _keys: OrderedDict[tuple[str, ...], tuple[float, int]] = field(default_factory=OrderedDict)

    def count_repetitions(self, *key: str) -> int | None:
        """Return the number of occurrences since the last line; None if no line is due."""
        now_seconds = self.monotonic()
        since, count = self._keys.get(key, (now_seconds - EVERY_SECONDS, 0))
        if now_seconds - since < EVERY_SECONDS:
            self._keys[key] = since, count + 1
            self.suppressed += 1
            return None
        self._keys[key] = now_seconds, 0
        self._keys.move_to_end(key)
        if len(self._keys) > _MAX_KEYS:
            self._keys.popitem(last=False)
        return count


_SWITCH_SECONDS = 0.0005
"""Time after which a busy event loop lets a waiting thread run. A group of frames takes several such turns until
it is durable: at Python's 5 ms they would delay its acknowledgement by more than the disk does.
"""


def tune_interpreter() -> None:
    """Reduce delays of acknowledgements by Python's garbage collection and by its thread switches.

    Objects read at a restart are permanent. A full collection over the state of thousands of nodes would
    delay all acknowledgements by a fifth of a second; the state has no cycles that are ever freed.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
