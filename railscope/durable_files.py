"""Files that are replaced as a whole and are durable on return. Everything blocks, and raises OSError."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

PARTIAL = ".partial"
"""Suffix of a file that is being written."""


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: new files, renames, deletions."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, for their owner only, durable on return. Raises OSError."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    sync_directory(directory.parent)


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file as a whole, durable on return. Raises OSError."""
    # A name of its own: two may write the same file at once, and both are right.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError:
        # On a full disk, each further attempt would leave another one.
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
