"""Small state file of the current boot, for state that must survive a restart of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

log = structlog.get_logger(__name__)


class OfBoot(msgspec.Struct, frozen=True):
    """Content of the file; boot clock and counters of another boot do not apply to this one."""

    boot_id: str


Kept = TypeVar("Kept", bound=OfBoot)


class BootMemory:
    """A state file beside the spool. Blocking; `event` is logged if the file cannot be used."""

    def __init__(self, path: Path, boot_id: str, event: str) -> None:
        self._path = path
        self.boot_id = boot_id
        self._event = event
        self._problem = ""

    def read(self, shape: type[Kept]) -> Kept | None:
        """Return the stored state; None if there is no file, or if it is of another boot."""
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=shape)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            self._tell(error)
            return None
        return kept if kept.boot_id == self.boot_id else None

    def write(self, kept: OfBoot) -> None:
        """Store the state if the state directory exists: the service has one, a manual run need not.

        A write failure is logged once, and the agent continues.
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
