"""File systems for tests: in memory, and small enough to be full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

_FREE_BYTES = 8 << 30


@contextmanager
def synced_files() -> Iterator[set[Path]]:
    """Collect the files and directories that this thread synchronizes; the caller of fsync names the descriptor so."""
    synced = set[Path]()

    def record(frame: FrameType, event: str, called: object) -> None:
        is_sync = event == "c_call" and called in {os.fsync, os.fdatasync}
        if is_sync and "descriptor" in frame.f_locals:
            synced.add(Path(f"/proc/self/fd/{frame.f_locals['descriptor']}").readlink())

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        yield synced
    finally:
        sys.setprofile(before)


def memory_directory() -> str | None:
    """Return a directory in memory, or None if there is none with enough space that permits programs.

    Durable writes are a large part of the time of tests on a disk, and cost nothing in memory.
    """
    memory = Path("/dev/shm")  # noqa: S108 - files are created in directories with unique names
    if not memory.is_dir() or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return None
    return str(memory) if shutil.disk_usage(memory).free > _FREE_BYTES else None


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
