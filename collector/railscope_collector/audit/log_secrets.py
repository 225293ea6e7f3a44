"""Secrets of the audit log: the key that signs it, and the salts of personal names.

The log holds commitments to names, which are meaningless once the salt is erased. A commitment is
HMAC-SHA-256 of a value under a salt that belongs to one person. While the salt exists, a reader
with access to it and the name can find the records about that person. After it has been erased this
is impossible, and the log is still intact: no record has changed.

Each salt is a separate file, named by a hash, so that a running collector and `railscope audit
forget` need no coordination, and an older copy of the same file never contains erased salts.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from railscope.audit.signed_note import NoteError, SecretKey
from railscope.durable_files import (
    create_durably,
    delete_partial_files,
    make_directory,
    sync_directory,
)
from railscope.settings import SettingsError
from railscope_collector.audit import AuditLogError, tables
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.schema import insert_new


def load_or_generate_key(path: Path, origin: str) -> SecretKey:
    """Return the log's key, or a new one that is not stored yet. Raises SettingsError with the reason.

    The name of a key is the origin of the log that it signs, so an existing key is used unchanged.
    """
    try:
        return SecretKey.parse(path.read_text())
    except FileNotFoundError:
        try:
            return SecretKey.generate(origin)
        except NoteError as error:
            message = f"cannot create the audit key {path} for {origin!r}: {error}"
            raise SettingsError(message) from error
    except (OSError, UnicodeDecodeError, NoteError) as error:
        message = f"cannot use the audit key {path}: {error}"
        raise SettingsError(message) from error


def store_key(path: Path, key: SecretKey) -> SecretKey:
    """Store a key if no file exists. Raises SettingsError, also if the file contains another key."""
    if path.exists():
        return key
    try:
        make_directory(path.parent)
        create_durably(path, f"{key.secret_text()}\n".encode(), 0o600)
        # Read back: another process may have created the file first.
        directory_files = SecretKey.parse(path.read_text())
    except (OSError, UnicodeDecodeError, NoteError) as error:
        message = f"cannot create the audit key {path} for {key.name!r}: {error}"
        raise SettingsError(message) from error
    if str(directory_files.public) != str(key.public):
        message = f"audit key {path} was created by another process; fix: start again"
        raise SettingsError(message)
    return directory_files


def load_group_key(database: Database, group: str, path: Path, origin: str) -> SecretKey:
    """Return the key of the log of a group, which all of its collectors have: from the database, or as the first one stored it.

    Blocking. Raises SettingsError if this collector has another key, UnusableLedgerError.
    """
    table, key = tables.group_keys, load_or_generate_key(path, origin)
    with database.transaction(writes=True) as connection:
        row = {"group_name": group, "secret": key.secret_text()}
        connection.execute(insert_new(connection, table).values(row))
        query = sa.select(table.c.secret).where(table.c.group_name == group)
        try:
            stored = SecretKey.parse(connection.execute(query).scalar_one())
        except NoteError as error:
            message = (
                f"cannot use the audit key of cluster.group {group!r} in the database: {error}"
            )
            raise SettingsError(message) from error
    if str(stored.public) != str(key.public) and path.exists():
        message = (
            f"audit key {path} is {key.public}: expected that of cluster.group {group!r}, {stored.public}; fix: move the file"
            " away and keep it, with the directory audit of an earlier release beside it, if there is one"
        )
        raise SettingsError(message)
    return stored


SALTS_DIRECTORY = "personal"
"""Below the collector's state directory, beside the log."""
SALT_BYTES = 32


class SaltError(AuditLogError, ValueError):
    """An invalid salt; the message names the file."""


@dataclass(frozen=True, slots=True)
class PersonalSalts:
    """The salts of all persons. Blocking; raises OSError, SaltError."""

    directory: Path

    def make_commitment(self, person: str) -> str:
        """Return the commitment to a person's name, in hexadecimal; create a salt if there is none."""
        # Repeated, as an erasure may delete the salt, finished or not, before this read.
        salt = self._salt(person)
        while salt is None:
            make_directory(self.directory)
            with suppress(FileNotFoundError):
                create_durably(self._path(person), secrets.token_bytes(SALT_BYTES), 0o600)
            salt = self._salt(person)
        return _commitment(salt, person)

    def find_commitment(self, person: str) -> str | None:
        """Return the commitment to a person's name; None if there is no salt, or no longer one."""
        salt = self._salt(person)
        return None if salt is None else _commitment(salt, person)

    def erase(self, person: str) -> bool:
        """Erase a salt, durable on return; return True if there was one."""
        path = self._path(person)
        is_found = path.exists()
        path.unlink(missing_ok=True)
        # A collector that was killed while it created the salt has left another name of it.
        delete_partial_files(self.directory, path.name)
        if self.directory.exists():
            sync_directory(self.directory)
        return is_found

    def _salt(self, person: str) -> bytes | None:
        path = self._path(person)
        try:
            salt = path.read_bytes()
        except FileNotFoundError:
            return None
        # A salt that is too short would be guessable: it is an error, and no commitment is made.
        if len(salt) != SALT_BYTES:
            message = f"invalid salt {path}: {len(salt)} bytes: expected {SALT_BYTES}"
            raise SaltError(message)
        return salt

    def _path(self, person: str) -> Path:
        # The hash, as names of files would show the persons that records are about; and a name may contain a slash.
        return self.directory / hashlib.sha256(person.encode()).hexdigest()


def _commitment(salt: bytes, person: str) -> str:
    return hmac.new(salt, person.encode(), hashlib.sha256).hexdigest()
