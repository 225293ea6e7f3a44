"""Wheel, source distribution and packages of this checkout, built once, or those of RAILSCOPE_PACKAGES."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.once_per_run import once_per_run
from support.packages import ROOT, build_packages, require


@pytest.fixture(name="built", scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("RAILSCOPE_PACKAGES"):
        return Path(given)
    require("rpmbuild", "rpm")
    return once_per_run(tmp_path_factory, "packages", lambda target: build_packages(ROOT, target))
