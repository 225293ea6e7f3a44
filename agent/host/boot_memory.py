"""A small file of the present boot, for what must not be forgotten over a restart of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

log = structlog.get_logger(__name__)


class OfBoot(msgspec.Struct, frozen=True):
    """What is on disk; the boot clock and the counters of another boot say nothing of this one."""

    boot_id: str


Kept = TypeVar("Kept", bound=OfBoot)


class BootMemory:
    """A file beside the spool. Blocking; `event` is what is logged where it cannot be used."""

    def __init__(self, path: Path, boot_id: str, event: str) -> None:
        self._path = path
        self.boot_id = boot_id
        self._event = event
        self._problem = ""

    def read(self, shape: type[Kept]) -> Kept | None:
        """What was kept; nothing where there is no such file, or one of another boot."""
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=shape)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            self._tell(error)
            return None
        return kept if kept.boot_id == self.boot_id else None

    def write(self, kept: OfBoot) -> None:
        """Keep this, if there is a state directory: the service has one, a try by hand need not.

        Where it cannot be written that is logged once, and the agent goes on.
        """
        if not self._path.parent.is_dir():
            return
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_bytes(msgspec.json.encode(kept))
            partial.rename(self._path)
        except OSError as error:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            log.warning(self._event, file=str(self._path), problem=self._problem)
