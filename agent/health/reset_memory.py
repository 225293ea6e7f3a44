"""What verdicts must not forget over a restart: until when the Xids of each GPU have been cleared.

The kernel log keeps an Xid until the next boot, whatever was done about it. Drivers before 570 do
not say that a GPU is well again; that it was reset is known only to who saw its counters fall.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.health.lifetime import Lifetime
from agent.host.boot_memory import BootMemory, OfBoot


class _Kept(OfBoot, frozen=True):
    gpus: dict[str, Lifetime]


class ResetMemory:
    """Keeps a few hundred bytes a GPU. Blocking."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._file = BootMemory(path, boot_id, "gpu_resets_not_kept")

    def load(self) -> dict[str, Lifetime]:
        """What was kept by GPU."""
        kept = self._file.read(_Kept)
        return kept.gpus if kept else {}

    def save(self, gpus: Mapping[str, Lifetime]) -> None:
        """Keep this."""
        self._file.write(_Kept(self._file.boot_id, dict(gpus)))
