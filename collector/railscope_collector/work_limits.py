"""Limits of long work on the event loop, and of repeated events of a minute."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

SLICE_SECONDS = 0.001
_PASSES = 3
"""Passes of the event loop: it detects received data, reads it, and runs the tasks that await it."""
_OTHERS_SHARE = 0.1
"""Time that other tasks took, as a share of a slice, above which the work pauses for the length of the slice."""
_WORK_SHARE, _MAX_SLICE_SECONDS = 0.25, 0.01
"""The next slice, as a share of the time that other tasks took: the work ends even if they never pause."""
EventT = TypeVar("EventT", bound=Hashable)


class TimeSlices:
    """Yields to other tasks: after each slice of work, for as long as the slice took if there are any.

    A request passes the loop a dozen times until it is acknowledged. If each pass were delayed by a slice,
    the request would be delayed by a dozen of them. While nothing else runs, work continues at once; while others
    take long, it has a fixed share of the time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = clock()
        self._slice = SLICE_SECONDS

    async def yield_if_due(self) -> None:
        """Let others run, if a slice has been used up."""
        now = self._clock()
        spent = now - self._since
        if spent < self._slice:
            return
        for _ in range(_PASSES):
            await asyncio.sleep(0)
        others_seconds = self._clock() - now
        if spent * _OTHERS_SHARE < others_seconds < spent / _WORK_SHARE:
            await asyncio.sleep(spent)
        self._slice = min(max(others_seconds * _WORK_SHARE, SLICE_SECONDS), _MAX_SLICE_SECONDS)
        self._since = self._clock()


REPORT_PERIOD_SECONDS = 60.0


@dataclass(slots=True)
class MinuteCounts(Generic[EventT]):
    """Events of a minute: the first of a kind is recorded at once, repetitions as a count at its end."""

    max_kinds: int
    """Distinct events that are counted separately; those beyond are counted together."""
    repetitions: dict[EventT, int] = field(default_factory=dict)
    excess: int = 0

    def add(self, event: EventT) -> bool:
        """Count an event; return True if it is to be recorded at once."""
        if event in self.repetitions:
            self.repetitions[event] += 1
        elif len(self.repetitions) >= self.max_kinds:
            self.excess += 1
        else:
            self.repetitions[event] = 0
            return True
        return False

    def close(self) -> tuple[list[tuple[EventT, int]], int]:
        """End the minute; return the repeated events with their counts, and the number of those beyond."""
        repeated = [(event, count) for event, count in self.repetitions.items() if count]
        excess, self.excess = self.excess, 0
        self.repetitions.clear()
        return repeated, excess


async def write_for_a_minute(
    wake: asyncio.Event, write: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Write at each wake-up, until a minute has passed."""
    deadline = asyncio.get_running_loop().time() + REPORT_PERIOD_SECONDS
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            while True:
                await wake.wait()
                wake.clear()
                await write()


_SWITCH_SECONDS = 0.0005
"""Time after which a busy event loop lets a waiting thread run. A group of frames takes several such turns until
it is durable: at Python's 5 ms they would delay its acknowledgement by more than the disk does.
"""


# M_ARENA_MAX of malloc.h.
_M_ARENA_MAX = -8
_ARENAS = 2


def limit_memory_arenas() -> None:
    """Let threads share the allocator's arenas: each of a dozen would retain its largest use.

    As MALLOC_ARENA_MAX in the systemd unit, for a collector that is started otherwise; only glibc has it.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_ARENA_MAX, _ARENAS)


def return_free_memory() -> None:
    """Return free pages to the system: glibc retains those between used ones. Blocking."""
    if malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        malloc_trim(0)


def tune_interpreter() -> None:
    """Reduce delays of acknowledgements by Python's garbage collection and by its thread switches.

    Objects read at a restart are permanent. A full collection over the state of thousands of nodes would
    delay all acknowledgements by a fifth of a second; the state has no cycles that are ever freed. While nodes
    register, a collection of the youngest objects takes 0.2 us each, because all of them remain.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 5_000)
