"""A directory with a short path, and a claims endpoint in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.claim_requests import ServedEndpoint, serving


@pytest.fixture
def directory() -> Iterator[Path]:
    """Temporary directory with a short path: a socket path has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="claims-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def served(directory: Path) -> Iterator[ServedEndpoint]:
    made = ServedEndpoint(directory)
    made.looked.poll()
    with serving(made):
        yield made
