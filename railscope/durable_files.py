"""Durable files and directory locks.

Files are replaced atomically and are durable on return. Every function blocks, and raises OSError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from railscope import RailscopeError

PARTIAL = ".partial"
"""Suffix of a file that is being written."""
PARTIAL_NAME = re.compile(r".+[.][0-9a-f]{8}" + re.escape(PARTIAL))
"""Names of such files: the name of the file, and a random number."""
DAMAGED = ".damaged"
"""Suffix of a JSON file that could not be decoded."""
LOCK_FILE = "lock"
"""File of a directory that its user locks."""
FileContent = TypeVar("FileContent")


class DamagedFileError(RailscopeError, ValueError):
    """A file with invalid content; the message contains its new name."""


def sync_directory(directory: Path) -> None:
    """Make changes to a directory durable: new files, renames, deletions."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
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
    # The name of a new directory is in its parent.
    sync_directory(directory.parent)


def write_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file atomically, durable on return. Raises OSError."""
    with partial_file(path, content, mode) as partial:
        partial.rename(path)
    # A rename is durable only with its directory.
    sync_directory(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically. After a power failure it may be empty. Raises OSError."""
    with partial_file(path, content, synced=False) as partial:
        partial.rename(path)


def create_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Create a file unless it exists, possibly by a concurrent writer; durable on return. Raises OSError."""
    with partial_file(path, content, mode) as partial:
        try:
            path.hardlink_to(partial)  # unlike a rename, this never replaces another file
        except FileExistsError:
            pass
        except FileNotFoundError:
            # A concurrent writer has created the file, and deleted all partial files of it.
            if not path.exists():
                raise
    sync_directory(path.parent)


@contextmanager
def partial_file(
    path: Path, content: bytes, mode: int = 0o666, *, synced: bool = True
) -> Iterator[Path]:
    """Write and sync a temporary file beside a path; delete it on exit unless it was renamed."""
    # A unique temporary name: concurrent writers of one file must not interfere.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with name_file(path), os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if synced:
                    os.fsync(file.fileno())
            yield partial
        finally:
            # On a full disk, each further attempt would leave another temporary file.
            partial.unlink(missing_ok=True)
    except OSError as error:
        # Each attempt has the same message.
        if str(error.filename) == str(partial):
            _set_name(error, path)
        raise


def _set_name(error: OSError, path: Path) -> None:
    """Name only this file in an error that may name two: those of a rename, or a link."""
    error.filename = str(path)
    # None would be printed as a name.
    del error.filename2


@contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Name a file in the errors of writes to it: a failed write(2) or fsync(2) has no name."""
    try:
        yield
    except OSError as error:
        # An error without a number consists of its text only.
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


class StagedFiles:
    """Unpublished files of a directory. Created by `stage_files`."""

    def __init__(self, directory: Path, *, replace: bool) -> None:
        self._directory = directory
        self._replace = replace
        self._mark = secrets.token_hex(4)
        self._open: dict[str, BinaryIO] = {}

    def create(self, name: str) -> BinaryIO:
        """Create a file, open for reading and writing, that will be published under this name.

        Raises FileExistsError for a name that exists and is not to be replaced.
        """
        if not self._replace and (self._directory / name).exists():
            raise FileExistsError(
                errno.EEXIST, os.strerror(errno.EEXIST), str(self._directory / name)
            )
        file = self._partial(name).open("x+b")
        self._open[name] = file
        return file

    def publish(self) -> None:
        """Publish all files in the order of their creation; durable on return.

        Without `replace`, raises FileExistsError if a name exists; then no file is published.
        """
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())
        published: list[Path] = []
        try:
            for name in self._open:
                partial, final = self._partial(name), self._directory / name
                if self._replace:
                    partial.rename(final)
                else:  # unlike a rename, this never replaces another file
                    final.hardlink_to(partial)
                    published.append(final)
        except OSError as error:
            for path in published:
                path.unlink()
            _set_name(error, final)
            raise
        sync_directory(self._directory)

    def clear(self) -> None:
        """Close all files, and remove those that are not published."""
        for name, file in self._open.items():
            self._partial(name).unlink(missing_ok=True)
            # Closing writes what is buffered, which fails again on a full disk; a published file has none.
            with suppress(OSError):
                file.close()

    def _partial(self, name: str) -> Path:
        return self._directory / f"{name}.{self._mark}{PARTIAL}"


@contextmanager
def stage_files(directory: Path, *, replace: bool) -> Iterator[StagedFiles]:
    """Create files that are invisible until they are published. The directory must exist."""
    files = StagedFiles(directory, replace=replace)
    try:
        yield files
    finally:
        files.clear()


def delete_partial_files(directory: Path, of: str = "") -> None:
    """Delete what interrupted writes have left: in a directory, or only of one of its files."""
    for partial in directory.glob(f"{of}.*{PARTIAL}" if of else f"*{PARTIAL}"):
        # Other files with this suffix belong to an administrator.
        if PARTIAL_NAME.fullmatch(partial.name) and partial.is_file() and not partial.is_symlink():
            partial.unlink(missing_ok=True)


def append_durably(descriptor: int, content: bytes, offset: int) -> None:
    """Write at the end of an open file, durable on return, or leave it as it was. Raises OSError."""
    try:
        written = 0
        # A write may be short, on a disk that becomes full.
        while written < len(content):
            written += os.pwrite(descriptor, content[written:], offset + written)
        # The size of the file is synchronized with the data (fdatasync(2)); its times are not needed.
        os.fdatasync(descriptor)
    except OSError:
        # A part of the content must not stay: the next write begins at the same offset.
        os.ftruncate(descriptor, offset)
        raise


def truncate_durably(descriptor: int, size: int) -> None:
    """Truncate an open file, durable on return. Raises OSError."""
    os.ftruncate(descriptor, size)
    os.fsync(descriptor)


def write_json(path: Path, content: object) -> None:
    """Replace a JSON file atomically, durable on return. Raises OSError."""
    write_durably(path, msgspec.json.encode(content))


def replace_json(path: Path, content: object) -> None:
    """Replace a file atomically without waiting for the disk. Raises OSError.

    After a power failure, unlike after a crash, it may be an earlier version or damaged.
    """
    # A fixed number: the file has one writer, and an interrupted write is overwritten by the next one.
    partial = path.with_name(f"{path.name}.{0:08x}{PARTIAL}")
    partial.write_bytes(msgspec.json.encode(content))
    partial.replace(path)


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
        # Kept under another name: the program can start, and a person can examine the content.
        path.replace(damaged)
        message = f"reading {path} failed: {error}; the damaged file was renamed to {damaged.name}"
        raise DamagedFileError(message) from error


def lock_directory(directory: Path) -> int:
    """Lock a directory for this process and return the descriptor that holds the lock.

    Files that interrupted writes have left in the directory are deleted: no other process writes there.
    Raises BlockingIOError if another process holds it, OSError if the directory cannot be written.
    """
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # The kernel releases it when the process ends, however it ends; a file with a process ID would stay.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        delete_partial_files(directory)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(directory: Path) -> bool:
    """True if a running process has locked a directory."""
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        # Shared, so that two checks at once do not find each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
