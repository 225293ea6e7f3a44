"""One writer at a time: a lock while it lives, and a count of owners that outlives it."""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path

from collector.segments import make_folder, write_durably

_COUNT = re.compile(rb"[0-9]{1,18}\n")


class TakenError(RuntimeError):
    """Someone else writes; the message names the folder."""


class EpochError(ValueError):
    """The count of owners does not read back."""


@dataclass(slots=True)
class Ownership:
    """The right to write what is in a folder.

    The lock is the kernel's and ends with the process. The count of owners, in the file `epoch`,
    tells a writer that it has been replaced where a lock does not reach: on another machine.
    """

    folder: Path
    epoch: int = 0
    _lock: int = -1

    def take(self) -> None:
        """Become the owner. Raises TakenError, EpochError, OSError."""
        make_folder(self.folder)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            message = f"{self.folder}: another collector writes this audit log"
            raise TakenError(message) from error
        self._lock = lock
        path = self.folder / "epoch"
        self.epoch = (self._counted() if path.exists() else 0) + 1
        write_durably(path, b"%d\n" % self.epoch)

    def _counted(self) -> int:
        path = self.folder / "epoch"
        content = path.read_bytes()
        if not _COUNT.fullmatch(content):
            message = f"{path} holds {content[:30]!r}, which is no number"
            raise EpochError(message)
        return int(content)

    @property
    def holds(self) -> bool:
        """Whether nobody has become the owner since. Raises EpochError, OSError."""
        return self._counted() == self.epoch

    def release(self) -> None:
        """Let go of the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
