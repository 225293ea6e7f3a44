"""What counters carried on to 64 bits must not forget over a restart: how often they wrapped.

A driver shows the low 32 bits only. An agent that began with them again would let the counter fall
by all wraps so far, and who reads the page would take that for a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.host.boot_memory import BootMemory, OfBoot
from agent.sampling.unwrap import Carried, Unwrap

KEEP_NS = 60_000_000_000
"""The last values, by which a reset while the agent was away would show, are kept this often."""


class _Kept(OfBoot, frozen=True):
    sets: dict[str, dict[str, tuple[int, int]]]


class CounterMemory:
    """Keeps the counters of sets in which one has wrapped, a few kilobytes each. Blocking."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._file = BootMemory(path, boot_id, "counter_wraps_not_kept")
        self._wraps = 0
        self._kept_ns = 0

    def load(self) -> dict[str, Carried]:
        """What was kept of each set."""
        kept = self._file.read(_Kept)
        return dict(kept.sets) if kept else {}

    def keep(self, sets: Mapping[str, Unwrap], now_ns: int) -> None:
        """Keep each wrap and each reset at once, and the values of sets that wrapped at times."""
        wraps = sum(unwrap.wraps for unwrap in sets.values())
        due = now_ns - self._kept_ns >= KEEP_NS
        if wraps == self._wraps and not (wraps and due):
            return
        wrapped = {name: dict(unwrap.carried) for name, unwrap in sets.items() if unwrap.wraps}
        self._file.write(_Kept(self._file.boot_id, wrapped))
        self._wraps, self._kept_ns = wraps, now_ns
