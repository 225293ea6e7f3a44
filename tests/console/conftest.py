"""Tests of the console share the makers of the collector's tests."""

from __future__ import annotations

import sys
from pathlib import Path

for directory in (Path(__file__).parent, Path(__file__).parent.parent / "collector"):
    sys.path.insert(0, str(directory))
