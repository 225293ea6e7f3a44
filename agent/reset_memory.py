"""What verdicts must not forget over a restart: until when the Xids of each GPU have been cleared.

The kernel log keeps an Xid until the next boot, whatever was done about it. Drivers before 570 do
not say that a GPU is well again; that it was reset is known only to who saw its counters fall.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from agent.verdict.lifetime import Lifetime

log = structlog.get_logger(__name__)


class _Kept(msgspec.Struct, frozen=True):
    """What is on disk; the boot clock of another boot says nothing of this one."""

    boot_id: str
    gpus: dict[str, Lifetime]


class ResetMemory:
    """A small file beside the spool, of the present boot. Blocking; a few hundred bytes a GPU."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._problem = ""

    def load(self) -> dict[str, Lifetime]:
        """What was kept by GPU; nothing where there is no such file, or one of another boot."""
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            self._tell(error)
            return {}
        return kept.gpus if kept.boot_id == self._boot_id else {}

    def save(self, gpus: Mapping[str, Lifetime]) -> None:
        """Keep this, if there is a state directory: the service has one, a try by hand need not.

        Where it cannot be written that is logged once, and verdicts go on.
        """
        if not self._path.parent.is_dir():
            return
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_bytes(msgspec.json.encode(_Kept(self._boot_id, dict(gpus))))
            partial.rename(self._path)
        except OSError as error:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            log.warning("gpu_resets_not_kept", file=str(self._path), problem=self._problem)
