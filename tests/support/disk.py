"""A file system small enough to be full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(directory: Path, kibibytes: int) -> Iterator[Path]:
    """Mount one at a new directory; the test is skipped if that is not permitted."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(directory)]
    outcome = subprocess.run(mount, capture_output=True, text=True, check=False)
    if outcome.returncode:
        pytest.skip(f"no small file system can be mounted here: {outcome.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def enlarge(directory: Path, kibibytes: int) -> None:
    """Enlarge the file system."""
    subprocess.run(["mount", "-o", f"remount,size={kibibytes}k", str(directory)], check=True)
