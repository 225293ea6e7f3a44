"""A collector whose ledger days are finalized."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.finalizing import Site


@pytest.fixture
def site(url: str, tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, url)
    yield made
    made.finalizer.close()
