"""Saved state of counters extended to 64 bits: the number of their wraps.

A driver shows the low 32 bits only. Without this state, a restarted agent would lower the counter by all
wraps so far, which consumers of the metrics would treat as a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.host.boot_memory import BootMemory, OfBoot
from agent.sampling.unwrap import Carried, Unwrap

KEEP_NS = 60_000_000_000
"""Interval for saving the last values, which reveal a reset that happened while the agent was down."""


class _Kept(OfBoot, frozen=True):
    sets: dict[str, dict[str, tuple[int, int]]]


class CounterMemory:
    """Saves the counters of sets in which one has wrapped, a few kilobytes each. Blocking."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._file = BootMemory(path, boot_id, "counter_wraps_not_kept")
        self._wraps = 0
        self._kept_ns = 0

    def load(self) -> dict[str, Carried]:
        """Return the saved counters of each set."""
        kept = self._file.read(_Kept)
        return dict(kept.sets) if kept else {}

    def keep(self, sets: Mapping[str, Unwrap], now_ns: int) -> None:
        """Save each wrap and each reset at once, and the values of wrapped sets at intervals."""
        wraps = sum(unwrap.wraps for unwrap in sets.values())
        due = now_ns - self._kept_ns >= KEEP_NS
        if wraps == self._wraps and not (wraps and due):
            return
        wrapped = {name: dict(unwrap.carried) for name, unwrap in sets.items() if unwrap.wraps}
        self._file.write(_Kept(self._file.boot_id, wrapped))
        self._wraps, self._kept_ns = wraps, now_ns
