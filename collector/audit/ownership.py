"""One writer at a time: a lock while it lives, and an epoch that outlives it."""

from __future__ import annotations

import fcntl
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from collector.audit.housekeeping import Statement, read_bytes, read_statement
from railscope.audit.note import SecretKey
from railscope.durable_files import make_directory, write_durably

EPOCH = "epoch"
LOCK = "lock"


class TakenError(RuntimeError):
    """Someone else writes; the message names the directory."""


@dataclass(slots=True)
class Ownership:
    """The right to write what is in a directory: `take` it, then `claim` the next epoch.

    The lock is the kernel's and ends with the process. The file `epoch` counts owners: it shows a
    writer that it has been replaced where a lock does not reach, on another machine.
    """

    directory: Path
    signer: SecretKey
    epoch: int = 0
    """Of the last owner until `claim`, then its own; 0 where the log is to begin."""
    _lock: int = -1
    _statement: bytes = field(default=b"", repr=False)

    @property
    def _path(self) -> Path:
        return self.directory / EPOCH

    def take(self) -> None:
        """Take the lock and read who was the last owner.

        Raises TakenError, HousekeepingError, OSError.
        """
        self.lock()
        if self._path.exists() or any((self.directory / one).exists() for one in _SIGNED):
            content = read_bytes(self._path)
            self.epoch = read_statement(self._path, content, EPOCH, self.signer.public).epoch

    def lock(self) -> None:
        """Take the lock alone. Raises TakenError, OSError."""
        make_directory(self.directory)
        lock = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            message = f"{self.directory}: another collector writes this audit log"
            raise TakenError(message) from error
        self._lock = lock

    def claim(self) -> None:
        """Begin the next epoch, once all else of the directory was found good. Raises OSError."""
        # Two collectors that start at once on two machines must not take each other for themselves.
        statement = Statement(EPOCH, self.epoch + 1, (secrets.token_hex(16),))
        self._statement = statement.signed(self.signer)
        write_durably(self._path, self._statement)
        self.epoch += 1

    @property
    def holds(self) -> bool:
        """True if nobody has become the owner since. Raises HousekeepingError, OSError."""
        content = read_bytes(self._path)
        if content == self._statement:
            return True
        read_statement(self._path, content, EPOCH, self.signer.public)
        return False

    def release(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


_SIGNED = ("checkpoint", "tile")
"""What a log has that has begun."""
