"""Files that are published complete and together under their names, or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from railscope.durable_files import PARTIAL, sync_directory

_CHUNK_BYTES = 1 << 20


class StagingError(OSError):
    """Files cannot be published under their names; the message contains name and reason."""


class Staging:
    """Unpublished files of a directory. Created by `staging`."""

    def __init__(self, directory: Path, *, replace: bool) -> None:
        self._directory = directory
        self._replace = replace
        self._mark = secrets.token_hex(4)
        self._open: dict[str, BinaryIO] = {}

    def create(self, name: str) -> BinaryIO:
        """Create a file, open for reading and writing, that will be published under this name.

        Raises OSError, and StagingError for a name that exists and is not to be replaced.
        """
        if not self._replace and (self._directory / name).exists():
            raise _taken(self._directory / name)
        file = self._partial(name).open("x+b")
        self._open[name] = file
        return file

    def publish(self) -> None:
        """Publish all files in the order of their creation; durable on return.

        Without `replace`, raises StagingError if a name exists; then no file is published.
        """
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())
        given: list[Path] = []
        try:
            for name in self._open:
                self._name(name)
                given.append(self._directory / name)
        except OSError:
            if not self._replace:
                for path in given:
                    path.unlink()
            raise
        sync_directory(self._directory)

    def clear(self) -> None:
        """Close all files, and remove those that are not published."""
        for name, file in self._open.items():
            file.close()
            self._partial(name).unlink(missing_ok=True)

    def _name(self, name: str) -> None:
        partial, final = self._partial(name), self._directory / name
        if self._replace:
            partial.rename(final)
            return
        try:
            final.hardlink_to(partial)  # unlike a rename, this never replaces another file
        except FileExistsError as error:  # created by another process meanwhile
            raise _taken(final) from error

    def _partial(self, name: str) -> Path:
        return self._directory / f"{name}.{self._mark}{PARTIAL}"


def _taken(path: Path) -> StagingError:
    return StagingError(f"{path} is there already")


@contextmanager
def staging(directory: Path, *, replace: bool) -> Iterator[Staging]:
    """Create files that are invisible until they are published. The directory must exist."""
    files = Staging(directory, replace=replace)
    try:
        yield files
    finally:
        files.clear()


def digest(file: BinaryIO) -> tuple[int, str]:
    """Size of a file in bytes, and its SHA-256 in hexadecimal."""
    file.seek(0)
    found = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        found.update(chunk)
    return file.tell(), found.hexdigest()
