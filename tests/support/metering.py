"""A meter that reports only the consumption set by a test."""

from __future__ import annotations

import threading
from collections import Counter

MS = 1_000_000
MIB = 1 << 20


class FakeMeter:
    """Processor time by thread, and resident memory of which some can be released."""

    def __init__(self, resident_bytes: int = 40 * MIB) -> None:
        self._lock = threading.Lock()
        self._threads: Counter[int] = Counter()
        self.resident = resident_bytes
        self.spare = 0
        self.times_given_back = 0
        self.unreadable: OSError | None = None

    def spend(self, milliseconds: float) -> None:
        """Add processor time to the calling thread."""
        with self._lock:
            self._threads[threading.get_ident()] += round(milliseconds * MS)

    def thread_cpu_ns(self) -> int:
        return self._threads[threading.get_ident()]

    def process_cpu_ns(self) -> int:
        with self._lock:
            return sum(self._threads.values())

    def resident_bytes(self) -> int:
        if self.unreadable:
            raise self.unreadable
        return self.resident

    def release_memory(self) -> None:
        self.times_given_back += 1
        self.resident -= self.spare
        self.spare = 0
