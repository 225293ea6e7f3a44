"""Saved state of verdicts: the times up to which the Xids of each GPU are cleared.

The kernel log keeps an Xid until the next boot, whatever was done about it. Drivers before 570 do not
report that a GPU has recovered; only an agent that observed its counters decrease can detect that it was
reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.health.lifetime import Lifetime
from agent.host.boot_memory import BootMemory, OfBoot


class _Kept(OfBoot, frozen=True):
    gpus: dict[str, Lifetime]


class ResetMemory:
    """Saves a few hundred bytes per GPU. Blocking."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._file = BootMemory(path, boot_id, "gpu_resets_not_kept")

    def load(self) -> dict[str, Lifetime]:
        """Return the saved state by GPU."""
        kept = self._file.read(_Kept)
        return kept.gpus if kept else {}

    def save(self, gpus: Mapping[str, Lifetime]) -> None:
        """Save the state."""
        self._file.write(_Kept(self._file.boot_id, dict(gpus)))
