"""Exclusive write access: a lock for the lifetime of the process, and an epoch that outlives it."""

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
    """Another process writes the log; the message names the directory."""


@dataclass(slots=True)
class Ownership:
    """The right to write a directory: `take` it, then `claim` the next epoch.

    The kernel releases the lock when the process ends. The file `epoch` counts owners: it shows a writer
    that it has been replaced where a lock has no effect, on another host.
    """

    directory: Path
    signer: SecretKey
    epoch: int = 0
    """Epoch of the last owner until `claim`, then its own; 0 if the log is new."""
    _lock: int = -1
    _statement: bytes = field(default=b"", repr=False)

    @property
    def _path(self) -> Path:
        return self.directory / EPOCH

    def take(self) -> None:
        """Take the lock and read the epoch of the last owner.

        Raises TakenError, HousekeepingError, OSError.
        """
        self.lock()
        if self._path.exists() or any((self.directory / one).exists() for one in _SIGNED):
            content = read_bytes(self._path)
            self.epoch = read_statement(self._path, content, EPOCH, self.signer.public).epoch

    def lock(self) -> None:
        """Take the lock only. Raises TakenError, OSError."""
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
        """Begin the next epoch, after all other files were checked. Raises OSError."""
        # The random token distinguishes two collectors that start at the same time on two hosts.
        statement = Statement(EPOCH, self.epoch + 1, (secrets.token_hex(16),))
        self._statement = statement.signed(self.signer)
        write_durably(self._path, self._statement)
        self.epoch += 1

    @property
    def holds(self) -> bool:
        """True if there has been no other owner since. Raises HousekeepingError, OSError."""
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
"""Entries of the directory of a log that is not new."""
