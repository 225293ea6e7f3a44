"""`python -m bench.agent_fabric`: cost of the agent's fabric sources and of burst sampling."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from agent.host import Json
from agent.sampling.source_reader import SourceReader
from agent.sources.nic_burst import NicBurstSource
from agent.sources.nvidia.activity import GpuBurstSource
from bench import agent_costs, harness, host_files
from bench.agent_costs import Scraper, ScrapeSchedule, shows_value
from bench.long_run import ManualClock
from bench.node import BenchHost
from railscope.frame import FrameOrigin

WINDOWS = {"10 Hz": 0.1, "50 Hz": 0.02}
FOUR_A_SECOND = 0.25
SERIES = 3000
TICKS_A_SECOND = 10

BURST_SAMPLING = harness.Aim("<=", 1.5, " %")
RESIDENT = harness.Aim("<=", 40, " MiB")
FLAT = harness.Aim("<=", 1.02)
CALLS_A_NIC = harness.Aim("<=", 3)
CALLS_A_GPU = harness.Aim("<=", 2)


@dataclass(frozen=True, slots=True)
class FabricBenchLength:
    """Durations and numbers of repetitions."""

    seconds: float
    settle_seconds: float
    scrapes: int
    responses: int
    ticks: int
    """Ticks of burst sampling; fewer than lie between two probes, which are not part of a tick."""
    hours: float


THOROUGH = FabricBenchLength(20, 5, scrapes=20, responses=300, ticks=500, hours=24)
QUICK = FabricBenchLength(1, 1, scrapes=2, responses=5, ticks=20, hours=0.05)


@harness.benchmark("Agent, fabric", full=THOROUGH, quick=QUICK)
def main(report: harness.BenchReport, length: FabricBenchLength, directory: Path) -> None:
    """Measure the fabric sources and print ratios."""
    fabric = host_files.write_fabric(directory)
    counters(report, fabric, directory, length)
    burst_sampling(report, fabric, directory, length)
    calls(report, fabric, length)
    memory(report, directory, length)
    long_run(report, fabric, length)


def counters(
    report: harness.BenchReport,
    fabric: host_files.FabricFiles,
    directory: Path,
    length: FabricBenchLength,
) -> None:
    """Measure CPU per counter of a live scrape of all files of all devices, against other exporters."""
    pace = ScrapeSchedule(length.scrapes, FOUR_A_SECOND)
    others = {}
    if report.has_program(agent_costs.NODE_EXPORTER):
        with agent_costs.node_exporter(fabric.root, directory) as server:
            others["node_exporter"] = agent_costs.measure_scrapes(server, pace)
    with agent_costs.plain_exporter(fabric.root, directory) as server:
        others["plain exporter"] = agent_costs.measure_scrapes(server, pace)
    with agent_costs.agent_server(fabric.root, directory, FOUR_A_SECOND) as server:
        ours = agent_costs.measure_scrapes(server, pace)
    for other, theirs in others.items():
        ratio = ours.cpu_a_series / theirs.cpu_a_series
        report.ratio(f"CPU per counter, agent / {other}, 4 per second", ratio)
        report.figure(other, str(theirs))
    report.figure("agent", str(ours))


def burst_sampling(
    report: harness.BenchReport,
    fabric: host_files.FabricFiles,
    directory: Path,
    length: FabricBenchLength,
) -> None:
    """Measure the share of a core for burst sampling: the agent with it, less the agent without it."""
    found = {"off": _run(fabric, directory, None, length)}
    for name, window in WINDOWS.items():
        found[name] = _run(fabric, directory, window, length)
    for name in WINDOWS:
        more = 100 * (found[name].share_of_core - found["off"].share_of_core)
        what = f"share of a core, burst sampling of {host_files.DEVICES} NICs and GPUs at {name}"
        report.ratio(what, more, BURST_SAMPLING if name == "10 Hz" else None, BURST_SAMPLING.unit)
    for name, spent in found.items():
        report.figure(
            f"whole agent, burst sampling {name}",
            f"{100 * spent.share_of_core:.2f} % of a core,"
            f" {spent.switches / spent.wall_seconds:.1f} wake-ups per second",
        )
    _measure_scrapes(report, fabric, directory, length)


def _server(
    fabric: host_files.FabricFiles, directory: Path, window: float | None
) -> harness.ServerProcess:
    bursts = ["--window", str(window)] if window else []
    files = ["--root", str(fabric.root), "--answers", str(fabric.answers)]
    return harness.start_agent(directory, "bench.node", *files, *bursts)


def _run(
    fabric: host_files.FabricFiles, directory: Path, window: float | None, length: FabricBenchLength
) -> harness.ProcessStopwatch:
    with (
        host_files.FileMover(list(fabric.moving), 0.1),
        _server(fabric, directory, window) as server,
    ):
        time.sleep(length.settle_seconds)
        with server.measure() as spent:
            time.sleep(length.seconds)
        return spent


def _measure_scrapes(
    report: harness.BenchReport,
    fabric: host_files.FabricFiles,
    directory: Path,
    length: FabricBenchLength,
) -> None:
    """Measure the cost of one response of the agent's metrics endpoint."""
    with _server(fabric, directory, WINDOWS["10 Hz"]) as server:
        scraper = Scraper(server.port, gzip=False)
        lines = scraper.scrape().decode().splitlines()
        shown = sum(not line.startswith("#") and shows_value(line) for line in lines)
        with server.measure() as all_scrapes:
            for _ in range(length.responses):
                scraper.scrape()
        spent = all_scrapes.cpu_seconds / length.responses
        scraper.close()
    report.figure(
        f"a scrape of {SERIES} series",
        f"{spent * SERIES / shown * 1e3:.2f} ms CPU ({spent * 1e3:.2f} ms for {shown}),"
        " concurrent reads included",
    )


# Calls -------------------------------------------------------------------------------------------


class _CallCountingHost(BenchHost):
    """A bench host that counts the calls for each device."""

    def __init__(self, fabric: host_files.FabricFiles, clock: ManualClock) -> None:
        super().__init__(fabric.root, fabric.answers, clock)
        self.of: Counter[tuple[str, int | str]] = Counter()

    def call(self, seam: str, function: str, *arguments: int | str) -> Json:
        """Make the call, and count it."""
        if arguments:
            self.of[seam, arguments[0]] += 1
        return super().call(seam, function, *arguments)


def calls(
    report: harness.BenchReport, fabric: host_files.FabricFiles, length: FabricBenchLength
) -> None:
    """Count driver calls per tick of burst sampling; a counter file or an ethtool answer is one call."""
    clock = ManualClock()
    host = _CallCountingHost(fabric, clock)
    nics, gpus = (
        SourceReader(source, host, FrameOrigin("bench", "run", "boot"))
        for source in (NicBurstSource(), GpuBurstSource())
    )

    def tick_for(ticks: int) -> None:
        for tick in range(ticks):
            clock.boot_ns += 10**8
            nics.run()
            if tick % 10 == 0:
                gpus.run()

    tick_for(TICKS_A_SECOND)  # devices and line rates are read once
    host.of.clear()
    host.preads = 0
    tick_for(length.ticks)
    statistics = sum(count for (seam, _), count in host.of.items() if seam == "ethtool")
    a_nic = (statistics + host.preads) / length.ticks / host_files.DEVICES
    a_gpu = (
        sum(c for (seam, _), c in host.of.items() if seam == "nvml")
        / length.ticks
        / host_files.DEVICES
    )
    report.ratio("driver calls per NIC and fast tick", a_nic, CALLS_A_NIC)
    report.ratio("driver calls per GPU and fast tick", a_gpu, CALLS_A_GPU)


def memory(report: harness.BenchReport, directory: Path, length: FabricBenchLength) -> None:
    """Measure the memory of an agent that reads 3,000 files; it contains no data of the benchmark."""
    root = directory / "files"
    host_files.write_tree(root, SERIES // host_files.VALUES_A_PORT)
    with agent_costs.agent_server(root, directory, FOUR_A_SECOND) as server:
        time.sleep(length.settle_seconds)
        scraper = Scraper(server.port, gzip=False)
        scraper.scrape()
        scraper.close()
        used = server.memory()
    report.ratio("agent resident, 3,000 files", used.resident / (1 << 20), RESIDENT)
    report.figure("agent, 3,000 files", str(used))


def long_run(
    report: harness.BenchReport, fabric: host_files.FabricFiles, length: FabricBenchLength
) -> None:
    """Measure memory at the end of a day against memory after its first tenth."""
    arguments = [str(fabric.root), str(fabric.answers), str(length.hours)]
    command = [sys.executable, "-m", "bench.long_run", *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own
    early, late = (int(number) for number in printed.split())
    report.ratio(
        f"resident after {length.hours:g} simulated hours / after a tenth", late / early, FLAT
    )
    report.figure(
        "resident, simulated",
        f"{harness.mebibytes(early)} early, {harness.mebibytes(late)} at the end",
    )


if __name__ == "__main__":
    main()
