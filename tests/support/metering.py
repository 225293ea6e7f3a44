"""A meter that reports only the consumption set by a test."""

from __future__ import annotations

import threading
from collections import Counter

MS = 1_000_000
MIB = 1 << 20


class FakeMeter:
    """Processor time by thread, and resident memory."""

    def __init__(self, resident_bytes: int = 40 * MIB) -> None:
        self._lock = threading.Lock()
        self._threads: Counter[int] = Counter()
        self.resident = resident_bytes

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
        return self.resident

    def release_memory(self) -> None:
        """Do nothing: no memory is cached."""
