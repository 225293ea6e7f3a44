"""Clocks of the live node, with the kernel's bound of the error of its wall clock (adjtimex(2))."""

from __future__ import annotations

import asyncio
import ctypes
import time

from railscope.frame import NodeTimestamp
from railscope.timestamps import MICROSECOND_NS, SECOND_NS

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized
_QUERY_PERIOD_NS = 10 * SECOND_NS  # the kernel's error bound grows by at most 0.5 ms per second


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>; only maxerror is read, the rest pads it to size."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("rest", ctypes.c_byte * 256),
    )


class LiveClock:
    """Clocks of the node itself."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._next_query_ns = 0
        self._uncertainty: int | None = None

    def now(self) -> NodeTimestamp:
        """Wall and boot clock, with the kernel's error bound of the wall clock."""
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        # Every frame has a timestamp: a system call for each would cost more than the clocks themselves.
        if boot_ns >= self._next_query_ns:
            self._next_query_ns = boot_ns + _QUERY_PERIOD_NS
            self._uncertainty = self._uncertainty_ns()
        return NodeTimestamp(time.time_ns(), boot_ns, self._uncertainty)

    async def sleep_until(self, boot_ns: int) -> None:
        """Wait until the boot clock has reached a timestamp."""
        # A timer may fire early, and suspend extends the wait: read the clock again.
        while (remaining_ns := boot_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) > 0:  # noqa: ASYNC110 - time has no event
            await asyncio.sleep(remaining_ns / SECOND_NS)

    @property
    def is_running(self) -> bool:
        """True: time passes by itself."""
        return True

    def _uncertainty_ns(self) -> int | None:
        timex = _Timex(modes=0)
        state = self._libc.adjtimex(ctypes.byref(timex))
        if state < 0 or state == _TIME_ERROR:
            return None
        return int(timex.maxerror) * MICROSECOND_NS
