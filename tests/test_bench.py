"""Benchmarks: `make bench` runs those that the page names, and each ends after a quick run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHES = ("agent", "diagnosis", "collector")


def test_make_runs_the_benches_that_the_page_names():
    page = (ROOT / "bench/README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"^    python -m bench\.(\w+) +#", page, re.MULTILINE) == list(BENCHES)
    assert re.findall(r"\$\(PY\) -m bench\.(\w+)$", makefile, re.MULTILINE) == list(BENCHES)


@pytest.mark.thorough
@pytest.mark.timeout(210)
@pytest.mark.parametrize("name", BENCHES)
def test_a_quick_bench_ends(name: str):
    command = [sys.executable, "-m", f"bench.{name}", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "\nratio" in done.stdout
