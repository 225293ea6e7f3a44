"""A collector whose ledger days are finalized."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.demo_months import build_demo_months
from support.finalizing import FinalizingCollector


@pytest.fixture
def site(url: str, tmp_path: Path) -> Iterator[FinalizingCollector]:
    made = FinalizingCollector(tmp_path, url)
    yield made
    made.finalizer.close()


@pytest.fixture(scope="session")
def demo_months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of a ledger with the demo's two closed months; tests open a copy."""
    return build_demo_months(tmp_path_factory)
