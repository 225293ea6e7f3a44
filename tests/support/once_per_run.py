"""Files that all workers of a run read, and one of them writes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def once_per_run(factory: pytest.TempPathFactory, name: str, write: Callable[[Path], None]) -> Path:
    """Return a directory that the first worker writes; the others wait for it."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    directory, unfinished = root / name, root / f"{name}.unfinished"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            write(unfinished)
            unfinished.rename(directory)
    return directory
