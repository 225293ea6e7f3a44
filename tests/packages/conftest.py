"""Packages of this checkout, built once, or those of RAILSCOPE_PACKAGES."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.once_per_run import once_per_run
from support.packages import ROOT, build_packages


@pytest.fixture(name="built", scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything but the package of the collector, which takes most of the time of a build."""
    return _packages(tmp_path_factory, "packages", "--without-collector")


@pytest.fixture(name="built_all", scope="session")
def _built_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _packages(tmp_path_factory, "all-packages")


def _packages(factory: pytest.TempPathFactory, name: str, *options: str) -> Path:
    if given := os.environ.get("RAILSCOPE_PACKAGES"):
        return Path(given)
    return once_per_run(factory, name, lambda target: build_packages(ROOT, target, *options))
