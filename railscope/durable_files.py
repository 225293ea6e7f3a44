"""Durable files and directory locks.

Files are replaced atomically and are durable on return. Every function blocks, and raises OSError.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

PARTIAL = ".partial"
"""Suffix of a file that is being written."""
DAMAGED = ".damaged"
"""Suffix of a JSON file that could not be decoded."""
LOCK_FILE = "lock"
"""File of a directory that its user locks."""
FileContent = TypeVar("FileContent")


class DamagedFileError(ValueError):
    """A file with invalid content; the message contains its new name."""


def sync_directory(directory: Path) -> None:
    """Make changes to a directory durable: new files, renames, deletions."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, for their owner only, durable on return. Raises OSError."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    sync_directory(directory.parent)


def write_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file atomically, durable on return. Raises OSError."""
    with _partial_file(path, content, mode) as partial:
        partial.rename(path)
    sync_directory(path.parent)


def write_all_durably(files: Mapping[Path, bytes]) -> None:
    """Replace files, each atomically, durable on return. Raises OSError."""
    for path, content in files.items():
        with _partial_file(path, content, 0o666) as partial:
            partial.rename(path)
    for directory in {path.parent for path in files}:
        sync_directory(directory)


def create_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Create a file unless it exists, possibly by a concurrent writer; durable on return. Raises OSError."""
    with _partial_file(path, content, mode) as partial, suppress(FileExistsError):
        path.hardlink_to(partial)  # unlike a rename, this never replaces another file
    sync_directory(path.parent)


@contextmanager
def _partial_file(path: Path, content: bytes, mode: int) -> Iterator[Path]:
    """Write and sync a temporary file; delete it on exit unless it was renamed."""
    # A unique temporary name: concurrent writers of one file must not interfere.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    finally:
        # On a full disk, each further attempt would leave another temporary file.
        partial.unlink(missing_ok=True)


def delete_partial_files(directory: Path, of: str = "") -> None:
    """Delete what interrupted writes have left: in a directory, or only of one of its files."""
    for partial in directory.glob(f"{of}.*{PARTIAL}" if of else f"*{PARTIAL}"):
        partial.unlink(missing_ok=True)


def append_durably(descriptor: int, content: bytes, offset: int) -> None:
    """Write at the end of an open file, durable on return, or leave it as it was. Raises OSError."""
    try:
        written = 0
        while written < len(content):
            written += os.pwrite(descriptor, content[written:], offset + written)
        os.fdatasync(descriptor)
    except OSError:
        os.ftruncate(descriptor, offset)
        raise


def write_json(path: Path, content: object) -> None:
    """Replace a JSON file atomically, durable on return. Raises OSError."""
    write_durably(path, msgspec.json.encode(content))


def read_json(path: Path, shape: type[FileContent]) -> FileContent | None:
    """Return the content of the only writer's file; None without a file.

    An interrupted write is cleaned up. Raises OSError, and DamagedFileError for invalid content.
    """
    delete_partial_files(path.parent, path.name)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(content, type=shape)
    except (ValueError, RecursionError) as error:
        damaged = path.with_name(path.name + DAMAGED)
        path.replace(damaged)
        message = f"reading {path} failed: {error}; the damaged file was renamed to {damaged.name}"
        raise DamagedFileError(message) from error


def lock_directory(directory: Path) -> int:
    """Lock a directory for this process and return the descriptor that holds the lock.

    Raises BlockingIOError if another process holds it, OSError if the directory cannot be written.
    """
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(directory: Path) -> bool:
    """True if a running process has locked a directory."""
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
