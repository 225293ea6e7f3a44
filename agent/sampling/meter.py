"""What the agent itself costs: processor time, time that passed, memory.

These are of this process, whatever machine it looks at: so they are no part of the host, and are
not recorded. Whoever measures is given a meter; tests give one of their own.
"""

from __future__ import annotations

import ctypes
import gc
import time
from dataclasses import dataclass
from typing import Protocol

from agent.host import Clock

_PAGE_BYTES = 4096
_RESIDENT_FIELD = 1


class Meter(Protocol):
    """Measures this process."""

    def thread_cpu_ns(self) -> int:
        """Processor time of the calling thread."""
        ...

    def process_cpu_ns(self) -> int:
        """Processor time of all threads."""
        ...

    def resident_bytes(self) -> int:
        """Memory the process occupies. Raises OSError."""
        ...

    def give_back(self) -> None:
        """Return memory to the system that is held for later use."""
        ...


class ProcessMeter:
    """Asks the kernel: CLOCK_THREAD_CPUTIME_ID, CLOCK_PROCESS_CPUTIME_ID, /proc/self/statm."""

    def thread_cpu_ns(self) -> int:
        """Processor time of the calling thread."""
        return time.thread_time_ns()

    def process_cpu_ns(self) -> int:
        """Processor time of all threads."""
        return time.process_time_ns()

    def resident_bytes(self) -> int:
        """Resident pages of proc_pid_statm(5)."""
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - once a second
            return int(file.read().split()[_RESIDENT_FIELD]) * _PAGE_BYTES

    def give_back(self) -> None:
        """Collect garbage; then malloc_trim(3), which only glibc has."""
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time of one thread, and the time that passed meanwhile."""

    cpu_ns: int = 0
    wall_ns: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_ns + other.cpu_ns, self.wall_ns + other.wall_ns)


@dataclass(frozen=True, slots=True)
class Spent:
    """What one read cost, apart from the look at what is there that came before some."""

    read: Cost = Cost()
    probe: Cost | None = None

    @property
    def total(self) -> Cost:
        """All of it."""
        return self.read + self.probe if self.probe else self.read


class Stopwatch:
    """Takes the cost of what the calling thread does, lap by lap."""

    def __init__(self, clock: Clock, meter: Meter) -> None:
        self._clock = clock
        self._meter = meter
        self.boot_ns = clock.now().boot_ns
        self._cpu_ns = meter.thread_cpu_ns()

    def lap(self) -> Cost:
        """What was spent since the last lap."""
        before = self.boot_ns, self._cpu_ns
        self.boot_ns, self._cpu_ns = self._clock.now().boot_ns, self._meter.thread_cpu_ns()
        return Cost(self._cpu_ns - before[1], self.boot_ns - before[0])
