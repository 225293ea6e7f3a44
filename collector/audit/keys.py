"""The key that signs the audit log: read from its file, or created at the first start."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from railscope.audit.note import NoteError, SecretKey
from railscope.durable_files import PARTIAL, make_directory, sync_directory
from railscope.settings import SettingsError


def load_or_make(path: Path, origin: str) -> SecretKey:
    """Return the log's key, durable on return. Raises SettingsError with the reason."""
    return keep(path, load_or_generate(path, origin))


def load_or_generate(path: Path, origin: str) -> SecretKey:
    """Return the log's key, or a new one that is not stored yet. Raises SettingsError with the reason.

    The name of a key is the origin of the log that it signs, so an existing key is used unchanged.
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
    """Store a key if no file exists. Raises SettingsError, also if the file contains another key."""
    if path.exists():
        return key
    try:
        make_directory(path.parent)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
        try:
            _write_secret(partial, key.secret_text() + "\n")
            # Not a rename: a key that was created concurrently is not replaced.
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
