"""Cost of the agent itself: processor time, elapsed time, memory.

These belong to this process, not to the host that it reads, so they are not part of the host and
not recorded. Components receive a meter as an argument.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from dataclasses import dataclass
from functools import cache

from railscope_agent.host import Clock

_RESIDENT_FIELD = 1
_STATM_BYTES = 256


@cache
def _open_statm() -> int:
    """Return a descriptor for the life of the process: opening the file costs ten times as much as reading it."""
    return os.open("/proc/self/statm", os.O_RDONLY)


class ProcessMeter:
    """Meter of the kernel's clocks: CLOCK_THREAD_CPUTIME_ID, CLOCK_PROCESS_CPUTIME_ID, /proc/self/statm."""

    def __init__(self, page_bytes: int | None = None) -> None:
        # The kernel decides: 4 KiB on x86-64, up to 64 KiB on arm64.
        self._page_bytes = page_bytes or os.sysconf("SC_PAGE_SIZE")

    def thread_cpu_ns(self) -> int:
        """Return the processor time of the calling thread."""
        return time.thread_time_ns()

    def process_cpu_ns(self) -> int:
        """Return the processor time of all threads."""
        return time.process_time_ns()

    def resident_bytes(self) -> int:
        """Return the resident pages of proc_pid_statm(5), in bytes. Raises OSError."""
        content = os.pread(_open_statm(), _STATM_BYTES, 0)
        return int(content.split()[_RESIDENT_FIELD]) * self._page_bytes

    def release_memory(self) -> None:
        """Return unused memory to the system: collect garbage, then call malloc_trim(3) of glibc."""
        # First: cycles that are still referenced keep pages in use, which malloc_trim cannot return.
        gc.collect()
        # Other C libraries, such as musl, have no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@dataclass(frozen=True, slots=True)
class ThreadCost:
    """Processor time of one thread, and the elapsed time."""

    cpu_ns: int = 0
    wall_ns: int = 0

    def __add__(self, other: ThreadCost) -> ThreadCost:
        return ThreadCost(self.cpu_ns + other.cpu_ns, self.wall_ns + other.wall_ns)


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Cost of one read, and of the probe before it if there was one."""

    read: ThreadCost = ThreadCost()
    probe: ThreadCost | None = None

    @property
    def total(self) -> ThreadCost:
        """Sum of both."""
        return self.read + self.probe if self.probe else self.read


class Stopwatch:
    """Measures the cost of the calling thread, lap by lap."""

    def __init__(self, clock: Clock, meter: ProcessMeter) -> None:
        self._clock = clock
        self._meter = meter
        self.boot_ns = clock.now().boot_ns
        self._cpu_ns = meter.thread_cpu_ns()

    def lap(self) -> ThreadCost:
        """Return the cost since the last lap."""
        before = self.boot_ns, self._cpu_ns
        self.boot_ns, self._cpu_ns = self._clock.now().boot_ns, self._meter.thread_cpu_ns()
        return ThreadCost(self._cpu_ns - before[1], self.boot_ns - before[0])
