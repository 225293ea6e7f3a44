"""Clocks of a live node."""

from __future__ import annotations

import asyncio
import ctypes
import time

from railscope.frame import Instant

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_NS_PER_US = 1000
_NS_PER_SECOND = 1_000_000_000
_ASK_EVERY_NS = 10 * _NS_PER_SECOND  # the kernel's error bound grows by at most 0.5 ms per second


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>; only maxerror is read, the rest pads it to size."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("rest", ctypes.c_byte * 256),
    )


class RealClock:
    """Clocks of the node itself."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._ask_again_ns = 0
        self._uncertainty: int | None = None

    def now(self) -> Instant:
        """Wall and boot clock, with the kernel's error bound of the wall clock."""
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if boot_ns >= self._ask_again_ns:
            self._ask_again_ns = boot_ns + _ASK_EVERY_NS
            self._uncertainty = self._uncertainty_ns()
        return Instant(time.time_ns(), boot_ns, self._uncertainty)

    async def sleep_until(self, boot_ns: int) -> None:
        """Wait until the boot clock has reached a timestamp."""
        # A timer may fire early, and suspend extends the wait: read the clock again.
        while (left := boot_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) > 0:  # noqa: ASYNC110 - time has no event
            await asyncio.sleep(left / _NS_PER_SECOND)

    def _uncertainty_ns(self) -> int | None:
        timex = _Timex(modes=0)
        state = self._libc.adjtimex(ctypes.byref(timex))
        if state < 0 or state == _TIME_ERROR:
            return None
        return int(timex.maxerror) * _NS_PER_US
