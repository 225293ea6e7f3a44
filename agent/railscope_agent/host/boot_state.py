"""State file of a boot: state of the current boot that must survive a restart of the agent.

It belongs to the agent, and not to the node that is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from railscope import durable_files, untrusted_text

log = structlog.get_logger(__name__)


class BootState(msgspec.Struct, frozen=True):
    """Content of the file; boot clock and counters of another boot do not apply to this one."""

    boot_id: str


StateOfBoot = TypeVar("StateOfBoot", bound=BootState)


class BootStateFile:
    """A state file beside the spool. Blocking. Failures are logged as `SUBJECT_read_failed` and `SUBJECT_write_failed`."""

    def __init__(self, path: Path, boot_id: str, subject: str) -> None:
        self._path = path
        self.boot_id = boot_id
        self._subject = subject
        self._problem = ""

    def read(self, shape: type[StateOfBoot]) -> StateOfBoot | None:
        """Return the stored state; None if there is no file, or if it is of another boot."""
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=shape)
        except FileNotFoundError:
            return None
        except (OSError, *untrusted_text.DECODING_ERRORS) as error:
            self._log_failure("read", error)
            return None
        # Counters and the boot clock start again with a boot: the state of another one would be compared with
        # wrong values.
        return state if state.boot_id == self.boot_id else None

    def write(self, state: BootState) -> None:
        """Store the state if the state directory exists: the service has one, a manual run may have none.

        A write failure is logged once, and the agent continues.
        """
        if not self._path.parent.is_dir():
            return
        try:
            durable_files.write_atomically(self._path, msgspec.json.encode(state))
        except OSError as error:
            self._log_failure("write", error)

    def _log_failure(self, operation: str, error: Exception) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            event = f"{self._subject}_{operation}_failed"
            log.warning(event, file=str(self._path), problem=self._problem)
