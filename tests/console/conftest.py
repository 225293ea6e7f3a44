"""Tests of the console share the makers of the collector's tests, and one Chromium and loop of a worker.

Contexts of a browser are cheap, browsers are not.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from support.browser import running_browser
from support.demo_months import build_demo_months

if TYPE_CHECKING:
    from playwright.async_api import Browser

for directory in (Path(__file__).parent, Path(__file__).parent.parent / "collector"):
    sys.path.insert(0, str(directory))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with running_browser() as found:
        yield found


@pytest.fixture(scope="session")
def demo_months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of a ledger with the demo's two closed months; tests open a copy."""
    return build_demo_months(tmp_path_factory)
