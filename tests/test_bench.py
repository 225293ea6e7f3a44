"""Benchmarks: those that the page names are run together, and each ends after a quick run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHES

ROOT = Path(__file__).parents[1]


def test_all_benches_that_the_page_names_are_run_together():
    page = (ROOT / "bench/README.md").read_text()
    named = re.findall(r"^    python -m bench\.(\w+) +#", page, re.MULTILINE)
    assert named == list(BENCHES)
    assert all((ROOT / f"bench/{name}.py").is_file() for name in BENCHES)


@pytest.mark.thorough
@pytest.mark.timeout(210)
@pytest.mark.parametrize("name", BENCHES)
def test_a_quick_bench_ends(name: str):
    command = [sys.executable, "-m", f"bench.{name}", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "\nratio" in done.stdout
