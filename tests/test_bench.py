import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHES

ROOT = Path(__file__).parents[1]


def run(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_benches_that_the_page_names_are_run_together():
    page = (ROOT / "bench/README.md").read_text()
    named = re.findall(r"^    python -m bench\.(\w+) +#", page, re.MULTILINE)
    assert named == list(BENCHES)
    for name in BENCHES:
        assert (ROOT / f"bench/{name}.py").is_file()


FIGURES = {
    "agent": (
        "CPU per series, agent / plain exporter, back to back",
        "CPU per series, agent / plain exporter, 4 per second",
        "share of a core, whole tick, 1 Hz",
        "share of a core, whole tick, 10 Hz",
        "wire / gzipped text, bytes per value",
        "agent resident",
    ),
    "agent_gpu": (
        "Python per tick, 8 GPUs, 1 Hz",
        "Python per tick, agent / one call per value",
        "gpu_activity",
        "nvlink_signal",
    ),
    "health": ("for a job, with an agent / an interpreter", "without an agent"),
    "otlp": ("kept objects / new objects", "kept objects / metrics endpoint", "gzip, in addition"),
    "burst_sampling": (
        "share of a core, burst sampling of 8 NICs and GPUs at 10 Hz",
        "driver calls per NIC and fast tick",
        "driver calls per GPU and fast tick",
        "simulated hours / after a tenth",
    ),
    "collector": (
        "memory per node",
        "acknowledged, p99",
        "refresh of all views",
        "the first refresh after a flood",
        "CPU to register a node",
        "share of a core at the natural period",
        "acknowledged, p99 (median of turns), with diagnosis / without",
        "victoria-metrics",
    ),
    "console": (
        "largest page, 20 nodes",
        "most expensive page, first request after a refresh",
        "acknowledged, p99 (median of turns), with 4 open pages / without",
        "processor time for 4 open pages",
        "rail_history",
        "not modified",
    ),
    "scale": (
        "processor time per frame received, 12 nodes / 6",
        "processor time per frame of the head, 12 nodes / 6",
        "nodes of a lost collector fresh in the views, 3 nodes",
        "another head shows 6 nodes",
        "memory per node, head, in addition",
        "cores of a head, 12 nodes at their full rate",
    ),
    "failover": (
        "maximum age of readings, collector killed, send_to = 1",
        "maximum age of readings, collector killed, send_to = 2",
    ),
    "diagnosis": (
        "processor time of 10 s, 20 nodes",
        "processor time of 10 s per node, all / a tenth of them",
        "memory per node",
        "CPU of 1,000 samples, 1 s apart",
        "CPU of 1,000 samples, 10 s apart",
    ),
    "audit": (
        "durable records, groups of 100",
        "time per durable record, audit log / SQLite",
        "records verified",
        "time to make a proof",
        "size of a proof, without its record",
    ),
    "metering": (
        "8,000 GPU-days metered, rated and closed",
        "time of twice as many GPUs / time",
        "8,000 GPU-days, 2 processes, wall time",
        "CPU of the busier of 2 processes / of one alone",
        "CPU per event, 8 times as many / minimum",
        "CPU of a loop over samples, held time only / metering",
    ),
    "export": (
        "CPU of 100,000 rows in both forms",
        "memory added by the exports",
        "CPU, CSV / reading and writing its text",
        "CPU, Parquet / CSV",
    ),
    "dashboards": (
        "peak samples, most expensive query, at 1,000 nodes / limit of Prometheus",
        "peak samples, recorded / not, health",
        "share of a core, recording rules at 1,000 nodes",
        "dashboard cluster-overview",
    ),
    "cardinality": (
        "series of a node, full",
        "| `basic` | 10,000 |",
        "| 10,000 |",
        "collector",
    ),
}
"""Text in the output of each bench."""
EXACT = {
    "burst_sampling": "driver calls",
    "dashboards": "rejects  ",
    "cardinality": "series of a node",
}
"""Limits that hold after a quick run as well, by text in their lines."""
SLOW = {
    "agent",
    "burst_sampling",
    "cardinality",
    "collector",
    "console",
    "dashboards",
    "diagnosis",
    "failover",
    "scale",
}
"""Left to `make thorough`: each takes more CPU time than all others together, or minutes in real time."""
NEEDED = {
    "agent_gpu": "cc",
    "dashboards": "prometheus",
    "cardinality": "prometheus",
    "scale": "psql",
    "failover": "psql",
}
"""Program that a bench needs."""


@pytest.mark.timeout(210)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough) if name in SLOW else name for name in BENCHES],
)
def test_a_quick_bench_ends_and_prints_its_figures(name):
    if name in NEEDED and shutil.which(NEEDED[name]) is None:
        pytest.skip(f"{NEEDED[name]} is not installed")
    printed = run(f"bench.{name}")
    assert [figure for figure in FIGURES[name] if figure not in printed] == []
    exact = [line for line in printed.splitlines() if name in EXACT and EXACT[name] in line]
    assert bool(exact) == (name in EXACT)
    assert [line.split()[-1] for line in exact] == ["met"] * len(exact), exact
