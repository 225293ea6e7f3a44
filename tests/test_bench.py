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
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_benches_that_the_page_names_are_run_together():
    page = (ROOT / "bench/README.md").read_text()
    named = re.findall(r"^    python -m bench\.(\w+) +#", page, re.MULTILINE)
    assert named == list(BENCHES)
    for name in BENCHES:
        assert (ROOT / f"bench/{name}.py").is_file()


@pytest.mark.timeout(110)
def test_agent_bench_finishes_and_prints_its_ratios():
    printed = run("bench.agent")
    for ratio in (
        "CPU a series, agent / plain exporter, back to back",
        "CPU a series, agent / plain exporter, 4 a second",
        "share of a core, whole tick, 1 Hz",
        "share of a core, whole tick, 10 Hz",
        "wire / gzipped text, bytes a value",
        "agent resident",
    ):
        assert ratio in printed


@pytest.mark.timeout(110)
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_gpu_bench_finishes_and_prints_its_ratios():
    printed = run("bench.agent_gpu")
    for line in (
        "Python a tick, 8 GPUs, 1 Hz",
        "Python a tick, agent / one call a value",
        "gpu_activity",
        "nvlink_signal",
    ):
        assert line in printed


@pytest.mark.timeout(110)
def test_fabric_bench_finishes_and_prints_its_ratios():
    printed = run("bench.agent_fabric")
    for ratio in (
        "CPU a counter, agent / plain exporter, 4 a second",
        "share of a core, burst sampling of 8 cards and GPUs at 10 Hz",
        "driver calls a card and fast tick",
        "driver calls a GPU and fast tick",
        "agent resident, 3,000 files",
        "simulated hours / after a tenth",
    ):
        assert ratio in printed
    counted = [line for line in printed.splitlines() if line.startswith("driver calls")]
    assert [line.split()[-1] for line in counted] == ["met", "met"], "counts need no long run"


@pytest.mark.timeout(110)
def test_collector_bench_finishes_and_prints_its_ratios():
    printed = run("bench.collector")
    for ratio in ("memory a node", "acknowledged, p99", "refresh of all views / its period"):
        assert ratio in printed
    assert "victoria-metrics" in printed


@pytest.mark.timeout(110)
def test_jobs_bench_finishes_and_prints_its_ratios():
    printed = run("bench.jobs")
    for line in ("what a refresh takes for jobs / its period", "160 GPUs, 20 jobs", "a scrape"):
        assert line in printed


@pytest.mark.timeout(110)
def test_audit_bench_finishes_and_prints_its_ratios():
    printed = run("bench.audit")
    for line in (
        "durable records, groups of 100",
        "time a durable record, audit log / SQLite",
        "records verified",
        "a proof made",
        "a proof's size, without its record",
    ):
        assert line in printed


@pytest.mark.timeout(110)
def test_metering_bench_finishes_and_prints_its_ratios():
    printed = run("bench.metering")
    for line in (
        "8,000 GPU-days metered, rated and closed",
        "time of twice as many GPUs / time",
        "8,000 GPU-days likewise, 2 processes, by the wall clock",
        "CPU of the busier of 2 processes / of one alone",
        "CPU an event, 8 times as many / where it is least",
        "CPU of a loop over samples, held time only / metering",
    ):
        assert line in printed


@pytest.mark.timeout(110)
def test_tenants_bench_finishes_and_is_exact():
    printed = run("bench.tenants")
    exact = [line for line in printed.splitlines() if "<= 0" in line]
    assert exact
    assert [line.split()[-1] for line in exact] == ["met"] * len(exact), "needs no long run"
    assert "CPU a GPU, all / a tenth of them" in printed


@pytest.mark.timeout(110)
def test_export_bench_finishes_and_prints_its_ratios():
    printed = run("bench.export")
    for line in (
        "CPU of 100,000 rows in both forms",
        "memory that grew meanwhile",
        "CPU, CSV / reading and writing its text again",
        "CPU, Parquet / CSV",
    ):
        assert line in printed


@pytest.mark.timeout(110)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_boards_bench_finishes_and_no_query_is_refused():
    printed = run("bench.boards")
    for line in (
        "samples at once, dearest query, at 1,000 nodes / what Prometheus allows",
        "samples at once, recorded / not, health 306A",
        "time, PCIe errors of all kinds / by kind",
        "share of a core, recording rules at 1,000 nodes",
        "board cluster-overview",
    ):
        assert line in printed
    refused = [line for line in printed.splitlines() if "refuses  " in line]
    assert refused
    assert [line.split()[-1] for line in refused] == ["met"] * len(refused), "needs no long run"
