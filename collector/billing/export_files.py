"""Files that appear whole and together under their names, or not at all."""

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
    """Files cannot get their names; the message says which and why."""


class Staging:
    """Files of a directory on their way. Made by `staging`."""

    def __init__(self, directory: Path, *, replace: bool) -> None:
        self._directory = directory
        self._replace = replace
        self._mark = secrets.token_hex(4)
        self._open: dict[str, BinaryIO] = {}

    def create(self, name: str) -> BinaryIO:
        """A new file, to be read and written, that will have this name.

        Raises OSError, and StagingError for a name that is taken and not to be replaced.
        """
        if not self._replace and (self._directory / name).exists():
            raise _taken(self._directory / name)
        file = self._partial(name).open("x+b")
        self._open[name] = file
        return file

    def publish(self) -> None:
        """Give all files their names, in the order they were made; durable on return.

        Without `replace`, a name that is taken is left as it is: StagingError, and none is given.
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
        """Close all files, and remove those that have no name."""
        for name, file in self._open.items():
            file.close()
            self._partial(name).unlink(missing_ok=True)

    def _name(self, name: str) -> None:
        partial, final = self._partial(name), self._directory / name
        if self._replace:
            partial.rename(final)
            return
        try:
            final.hardlink_to(partial)  # unlike a rename, this takes no name from another file
        except FileExistsError as error:  # since it was created
            raise _taken(final) from error

    def _partial(self, name: str) -> Path:
        return self._directory / f"{name}.{self._mark}{PARTIAL}"


def _taken(path: Path) -> StagingError:
    return StagingError(f"{path} is there already")


@contextmanager
def staging(directory: Path, *, replace: bool) -> Iterator[Staging]:
    """Make files that nobody sees until they are published. The directory must be there."""
    files = Staging(directory, replace=replace)
    try:
        yield files
    finally:
        files.clear()


def digest(file: BinaryIO) -> tuple[int, str]:
    """How many bytes a file has, and their SHA-256 in hex."""
    file.seek(0)
    found = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        found.update(chunk)
    return file.tell(), found.hexdigest()
