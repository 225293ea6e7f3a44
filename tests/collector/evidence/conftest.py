"""Path of the helpers of these tests, a core, and collectors that finalize days."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.finalizing import Site
from support.story import core_in

from collector.state.collector_state import CollectorState

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def core(tmp_path: Path) -> CollectorState:
    return core_in(tmp_path)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str, str], Site]]:
    """Collectors by name and database."""
    made: list[Site] = []

    def one(name: str, url: str) -> Site:
        made.append(Site(tmp_path / name, url))
        return made[-1]

    yield one
    for site in made:
        site.finalizer.close()


@pytest.fixture
def site(make: Callable[[str, str], Site], url: str) -> Site:
    return make("one", url)
