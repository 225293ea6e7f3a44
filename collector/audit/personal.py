"""Names of persons: the log holds commitments to them, which are meaningless once the salt is erased.

A commitment is HMAC-SHA-256 of a value under a salt that belongs to one person. While the salt exists, a
reader with access to it and the name can find the records about that person. After it has been erased this
is impossible, and the log is still intact: no record has changed.

Each salt is a separate file, named by a hash, so that a running collector and `railscope audit forget` need
no coordination, and an older copy of the same file never contains erased salts.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from railscope.durable_files import PARTIAL, make_directory, sync_directory

DIRECTORY = "personal"
"""Below the collector's state directory, beside the log."""
SALT_BYTES = 32


class SaltError(ValueError):
    """An invalid salt; the message names the file."""


@dataclass(frozen=True, slots=True)
class Salts:
    """The salts of all persons. Blocking; raises OSError, SaltError."""

    directory: Path

    def commitment(self, person: str) -> str:
        """Return the commitment to a person's name, in hexadecimal; create a salt if there is none."""
        salt = self._salt(person)
        while salt is None:
            self._make(person)
            salt = self._salt(person)
        return _commitment(salt, person)

    def known(self, person: str) -> str | None:
        """Return the commitment to a person's name; None if there is no salt, or no longer one."""
        salt = self._salt(person)
        return None if salt is None else _commitment(salt, person)

    def forget(self, person: str) -> bool:
        """Erase a salt, durable on return; return True if there was one."""
        try:
            self._path(person).unlink()
        except FileNotFoundError:
            return False
        sync_directory(self.directory)
        return True

    def _salt(self, person: str) -> bytes | None:
        path = self._path(person)
        try:
            salt = path.read_bytes()
        except FileNotFoundError:
            return None
        if len(salt) != SALT_BYTES:
            message = f"{path}: {len(salt)} bytes are no salt"
            raise SaltError(message)
        return salt

    def _make(self, person: str) -> None:
        make_directory(self.directory)
        path = self._path(person)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(SALT_BYTES))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(partial, path)
            except FileExistsError:
                return
        finally:
            partial.unlink(missing_ok=True)
            sync_directory(self.directory)

    def _path(self, person: str) -> Path:
        return self.directory / hashlib.sha256(person.encode()).hexdigest()


def _commitment(salt: bytes, person: str) -> str:
    return hmac.new(salt, person.encode(), hashlib.sha256).hexdigest()
