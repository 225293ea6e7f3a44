"""Path of the helpers of these tests, a core, and collectors that finalize days."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.finalizing import FinalizingCollector
from support.story import core_in

from railscope_collector.state.collector_state import CollectorState

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def core(tmp_path: Path) -> CollectorState:
    return core_in(tmp_path)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str, str], FinalizingCollector]]:
    """Collectors by name and database."""
    made: list[FinalizingCollector] = []

    def one(name: str, url: str) -> FinalizingCollector:
        made.append(FinalizingCollector(tmp_path / name, url))
        return made[-1]

    yield one
    for site in made:
        site.finalizer.close()


@pytest.fixture
def site(make: Callable[[str, str], FinalizingCollector], url: str) -> FinalizingCollector:
    return make("one", url)
