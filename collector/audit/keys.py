"""The key that signs the audit log: read from its file, or put there at the first start."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from railscope.audit.note import NoteError, SecretKey
from railscope.durable_files import PARTIAL, make_directory, sync_directory
from railscope.settings import SettingsError


def load_or_make(path: Path, origin: str) -> SecretKey:
    """The log's key, durable on return. Raises SettingsError that says what is wrong with it."""
    return keep(path, load_or_generate(path, origin))


def load_or_generate(path: Path, origin: str) -> SecretKey:
    """The log's key, or one that is to be kept. Raises SettingsError that says what is wrong with it.

    A key's name is the origin of the log it signs, so a key that is there is used as it is.
    """
    try:
        return SecretKey.parse(path.read_text())
    except FileNotFoundError:
        try:
            return SecretKey.generate(origin)
        except NoteError as error:
            message = f"audit key {path} cannot be made for {origin!r}: {error}"
            raise SettingsError(message) from error
    except (OSError, UnicodeDecodeError, NoteError) as error:
        message = f"audit key {path} cannot be used: {error}"
        raise SettingsError(message) from error


def keep(path: Path, key: SecretKey) -> SecretKey:
    """Keep a key where there is none yet. Raises SettingsError, also where another one is there."""
    if path.exists():
        return key
    try:
        make_directory(path.parent)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
        try:
            _write_secret(partial, key.secret_text() + "\n")
            # Not a rename: a key that somebody has put there meanwhile stays.
            os.link(partial, path)
        except FileExistsError:
            pass
        finally:
            partial.unlink(missing_ok=True)
        sync_directory(path.parent)
        kept = SecretKey.parse(path.read_text())
    except (OSError, UnicodeDecodeError, NoteError) as error:
        message = f"audit key {path} cannot be made for {key.name!r}: {error}"
        raise SettingsError(message) from error
    if str(kept.public) != str(key.public):
        message = f"audit key {path} has been put there meanwhile: start again"
        raise SettingsError(message)
    return kept


def _write_secret(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
