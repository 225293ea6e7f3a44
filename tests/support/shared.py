"""The captures of real nodes, which are beside the repository and not part of it."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

CAPTURES = Path(__file__).parents[3] / "shared" / "captures"


def capture_path(path: str) -> Path:
    """Return a file or directory of the captures; skips the test if missing."""
    found = CAPTURES / path
    if not found.exists():
        pytest.skip(f"{found} is missing: put the captures beside the repository")
    return found


def unpack_capture(path: str, directory: Path, wanted: str = "") -> Path:
    """Unpack an archive of the captures into a directory; return its only top directory.

    `wanted` is a pattern for the names of the needed files, for large archives.
    """
    with tarfile.open(capture_path(path)) as archive:
        members = [member for member in archive if re.search(wanted, member.name)]
        archive.extractall(directory, members, filter="tar")
    return next(entry for entry in directory.iterdir() if entry.is_dir())
