"""Saved state of narrow counters that are extended to 64 bits.

The saved state is the number of wraps, because a driver shows the low 32 bits only. Without it, a restarted
agent would lower the counter by all wraps so far, which consumers of the metrics would treat as a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.host.files import BootState, BootStateFile
from railscope.counter_unwrap import CounterStates, CounterUnwrapper

SAVE_EVERY_NS = 60_000_000_000
"""Interval for saving the last values, which reveal a reset that happened while the agent was down."""


class _SavedCounters(BootState, frozen=True):
    sets: dict[str, dict[str, tuple[int, int]]]


class CounterStateFile:
    """Saves the counters of sets in which one has wrapped, a few kilobytes each. Blocking."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._file = BootStateFile(path, boot_id, "counter_wraps")
        self._wraps = 0
        self._saved_ns = 0

    def load(self) -> dict[str, CounterStates]:
        """Return the saved counters of each set."""
        saved = self._file.read(_SavedCounters)
        return dict(saved.sets) if saved else {}

    def save(self, sets: Mapping[str, CounterUnwrapper], now_ns: int) -> None:
        """Save each wrap and each reset at once, and the values of wrapped sets at intervals."""
        wraps = sum(unwrap.wraps for unwrap in sets.values())
        due = now_ns - self._saved_ns >= SAVE_EVERY_NS
        if wraps == self._wraps and not (wraps and due):
            return
        wrapped = {name: dict(unwrap.state) for name, unwrap in sets.items() if unwrap.wraps}
        self._file.write(_SavedCounters(self._file.boot_id, wrapped))
        self._wraps, self._saved_ns = wraps, now_ns
