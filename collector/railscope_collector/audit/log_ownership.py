"""Ownership of an audit log: the lock of its directory, and the epoch of its owner."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from railscope.audit import signed_note
from railscope.durable_files import lock_directory, make_directory, write_durably
from railscope_collector.audit import AuditLogError
from railscope_collector.audit.housekeeping_files import SignedStatement, read_bytes, read_statement

EPOCH_FILE = "epoch"


class LogLockedError(AuditLogError, RuntimeError):
    """Another process writes the log; the message names the directory."""


@dataclass(slots=True)
class LogOwnership:
    """The right to write a directory: `take` it, then `claim` the next epoch.

    The kernel releases the lock when the process ends. The file `epoch` counts owners: it shows a writer
    that it has been replaced where a lock has no effect, on another host.
    """

    directory: Path
    signer: signed_note.SecretKey
    epoch: int = 0
    """Epoch of the last owner until `claim`, then its own; 0 if the log is new."""
    _lock: int = -1
    _statement: bytes = field(default=b"", repr=False)

    @property
    def _path(self) -> Path:
        return self.directory / EPOCH_FILE

    def acquire(self) -> None:
        """Take the lock and read the epoch of the last owner.

        Raises LogLockedError, HousekeepingError, OSError.
        """
        make_directory(self.directory)
        try:
            self._lock = lock_directory(self.directory)
        except BlockingIOError as error:
            message = f"cannot lock the audit log {self.directory}: another collector writes it"
            raise LogLockedError(message) from error
        # Without the file, only a directory without signed data is a new log: else the file was lost, which is an
        # error.
        if self._path.exists() or any((self.directory / name).exists() for name in _SIGNED):
            content = read_bytes(self._path)
            self.epoch = read_statement(self._path, content, EPOCH_FILE, self.signer.public).epoch

    def write_epoch(self) -> None:
        """Begin the next epoch, after all other files were checked. Raises OSError."""
        # The random token distinguishes two collectors that start at the same time on two hosts.
        statement = SignedStatement(EPOCH_FILE, self.epoch + 1, (secrets.token_hex(16),))
        self._statement = statement.encode(self.signer)
        write_durably(self._path, self._statement)
        self.epoch += 1

    @property
    def is_held(self) -> bool:
        """True if there has been no other owner since. Raises HousekeepingError, OSError."""
        content = read_bytes(self._path)
        # By the bytes: they have a random token, so another owner's statement always differs.
        if content == self._statement:
            return True
        read_statement(self._path, content, EPOCH_FILE, self.signer.public)
        return False

    def release(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


_SIGNED = ("checkpoint", "tile")
"""Entries of the directory of a log that is not new."""
