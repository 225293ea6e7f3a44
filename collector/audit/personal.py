"""Names of persons: the log holds commitments to them, which mean nothing once a salt is gone.

A commitment is HMAC-SHA-256 of a value under a salt that belongs to one person. While the salt is
there, who knows the name can see which records are about that person. When it has been erased nobody
can, and the log is as whole as before: no record has changed.

Each salt is a file of its own, named by a hash, so that a running collector and `railscope audit
forget` need not agree on anything, and what is erased is not in an older copy of the same file.
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
    """A salt that does not read back; the message names the file."""


@dataclass(frozen=True, slots=True)
class Salts:
    """The salts of all persons. Blocking; raises OSError, SaltError."""

    directory: Path

    def commitment(self, person: str) -> str:
        """The commitment to a person's name, in hexadecimal; a salt is made where there is none."""
        salt = self._salt(person)
        while salt is None:
            self._make(person)
            salt = self._salt(person)
        return _commitment(salt, person)

    def known(self, person: str) -> str | None:
        """The commitment to a person's name; nothing where there is no salt (any more)."""
        salt = self._salt(person)
        return None if salt is None else _commitment(salt, person)

    def forget(self, person: str) -> bool:
        """Erase a salt, for good on return; whether there was one."""
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
