"""Atomic file replacement, durable on return. Every function blocks, and raises OSError."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

PARTIAL = ".partial"
"""Suffix of a file that is being written."""


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
    sync_directory(directory.parent)


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file atomically, durable on return. Raises OSError."""
    # A unique temporary name: concurrent writers of one file must not interfere.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError:
        # On a full disk, each further attempt would leave another temporary file.
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
