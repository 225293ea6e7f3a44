"""Puts the helpers of these tests, and those of the collector's tests, on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "collector"))
sys.path.insert(0, str(Path(__file__).parent))

from chain_support import site  # noqa: F401 - the fixture
