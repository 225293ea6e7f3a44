"""The captures of real machines, which lie beside the repository and are no part of it."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

CAPTURES = Path(__file__).parents[3] / "shared" / "captures"


def captured(path: str) -> Path:
    """A file or directory of the captures; skips the test where they are not there."""
    found = CAPTURES / path
    if not found.exists():
        pytest.skip(f"{found} is missing: put the captures beside the repository")
    return found


def unpacked(path: str, directory: Path, wanted: str = "") -> Path:
    """An archive of the captures, unpacked into a directory; returns its only top directory.

    `wanted` is a pattern for the names of what is needed, where an archive is large.
    """
    with tarfile.open(captured(path)) as archive:
        members = [member for member in archive if re.search(wanted, member.name)]
        archive.extractall(directory, members, filter="tar")
    return next(entry for entry in directory.iterdir() if entry.is_dir())
