"""`python -m bench.agent_fabric`: cost of the agent's fabric sources and of burst sampling."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench import agent_costs, harness, host_files, node
from bench.long_run import ManualClock
from railscope.frame import FrameOrigin
from railscope_agent.host import Json
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nic_burst import NicBurstSource
from railscope_agent.sources.nvidia.gpu_bursts import GpuBurstSource

WINDOWS = {"10 Hz": 0.1, "50 Hz": 0.02}
FOUR_PER_SECOND = 0.25
SERIES = 3000
TICKS_PER_SECOND = 10

BURST_SAMPLING = harness.Aim("<=", 1.5, " %")
WAKE_UPS = {"off": harness.Aim("<=", 4), "10 Hz": harness.Aim("<=", 12)}
RESIDENT = harness.Aim("<=", 40, " MiB")
FLAT = harness.Aim("<=", 1.02)
CALLS_PER_NIC = harness.Aim("<=", 3)
CALLS_PER_GPU = harness.Aim("<=", 2)


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
    with host_files.memory_directory() as files:
        bench = FabricBench(report, host_files.write_fabric(files), directory, length)
        bench.counters()
        bench.burst_sampling()
        bench.calls()
        bench.memory()
        bench.long_run()


@dataclass(frozen=True, slots=True)
class FabricBench:
    """The measurements: their report, the files that agents read, a directory and the durations."""

    report: harness.BenchReport
    fabric: host_files.FabricFiles
    directory: Path
    length: FabricBenchLength

    def counters(self) -> None:
        """Measure CPU per counter of a live scrape of all files of all devices, against other exporters."""
        schedule = agent_costs.ScrapeSchedule(self.length.scrapes, FOUR_PER_SECOND)
        root, other_exporters = self.fabric.root, {}
        if self.report.has_program(agent_costs.NODE_EXPORTER):
            with agent_costs.node_exporter(root, self.directory) as server:
                other_exporters["node_exporter"] = agent_costs.measure_scrapes(server, schedule)
        with agent_costs.plain_exporter(root, self.directory) as server:
            other_exporters["plain exporter"] = agent_costs.measure_scrapes(server, schedule)
        with agent_costs.agent_server(root, self.directory, FOUR_PER_SECOND) as server:
            agent = agent_costs.measure_scrapes(server, schedule)
        for other, exporter in other_exporters.items():
            ratio = agent.cpu_per_series / exporter.cpu_per_series
            self.report.ratio(f"CPU per counter, agent / {other}, 4 per second", ratio)
            self.report.figure(other, str(exporter))
        self.report.figure("agent", str(agent))

    def burst_sampling(self) -> None:
        """Measure the share of a core for burst sampling: the agent with it, less the agent without it."""
        costs = {"off": self._run(None)}
        for name, window in WINDOWS.items():
            costs[name] = self._run(window)
        for name in WINDOWS:
            more = 100 * (costs[name].share_of_core - costs["off"].share_of_core)
            title = (
                f"share of a core, burst sampling of {host_files.DEVICES} NICs and GPUs at {name}"
            )
            aim = BURST_SAMPLING if name == "10 Hz" else None
            self.report.ratio(title, more, aim, BURST_SAMPLING.unit)
        for name, aim in WAKE_UPS.items():
            wake_ups = costs[name].switches / costs[name].wall_seconds
            self.report.ratio(f"wake-ups per second, burst sampling {name}", wake_ups, aim)
        for name, spent in costs.items():
            self.report.figure(
                f"whole agent, burst sampling {name}",
                f"{100 * spent.share_of_core:.2f} % of a core,"
                f" {spent.switches / spent.wall_seconds:.1f} wake-ups per second",
            )
        self._measure_scrapes()

    def _server(self, window: float | None) -> harness.ServerProcess:
        bursts = ["--window", str(window)] if window else []
        files = ["--root", str(self.fabric.root), "--answers", str(self.fabric.answers)]
        return harness.start_agent(self.directory, "bench.node", *files, *bursts)

    def _run(self, window: float | None) -> harness.ProcessStopwatch:
        mover = host_files.FileMover(list(self.fabric.moving), 0.1)
        with mover, self._server(window) as server:
            time.sleep(self.length.settle_seconds)
            with server.measure() as spent:
                time.sleep(self.length.seconds)
            return spent

    def _measure_scrapes(self) -> None:
        """Measure the cost of one response of the agent's metrics endpoint."""
        responses = self.length.responses
        with self._server(WINDOWS["10 Hz"]) as server:
            scraper = agent_costs.Scraper(server.port, gzip=False)
            lines = scraper.scrape().decode().splitlines()
            shown = sum(
                not line.startswith("#") and agent_costs.shows_value(line) for line in lines
            )
            with server.measure() as all_scrapes:
                for _ in range(responses):
                    scraper.scrape()
            spent = all_scrapes.cpu_seconds / responses
            scraper.close()
        self.report.figure(
            f"a scrape of {SERIES} series",
            f"{spent * SERIES / shown * 1e3:.2f} ms CPU ({spent * 1e3:.2f} ms for {shown}),"
            " concurrent reads included",
        )

    def calls(self) -> None:
        """Count driver calls per tick of burst sampling; a counter file or an ethtool answer is one call."""
        clock, ticks = ManualClock(), self.length.ticks
        host = _CallCountingHost(self.fabric, clock)
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

        tick_for(TICKS_PER_SECOND)  # devices and line rates are read once
        host.call_counts.clear()
        host.preads = 0
        tick_for(ticks)
        calls = Counter[str]()
        for (host_interface, _), count in host.call_counts.items():
            calls[host_interface] += count
        device_ticks = ticks * host_files.DEVICES
        a_nic = (calls["ethtool"] + host.preads) / device_ticks
        self.report.ratio("driver calls per NIC and fast tick", a_nic, CALLS_PER_NIC)
        a_gpu = calls["nvml"] / device_ticks
        self.report.ratio("driver calls per GPU and fast tick", a_gpu, CALLS_PER_GPU)

    def memory(self) -> None:
        """Measure the memory of an agent that reads 3,000 files; it contains no data of the benchmark."""
        root = self.directory / "files"
        host_files.write_tree(root, SERIES // host_files.VALUES_PER_PORT)
        with agent_costs.agent_server(root, self.directory, FOUR_PER_SECOND) as server:
            time.sleep(self.length.settle_seconds)
            scraper = agent_costs.Scraper(server.port, gzip=False)
            scraper.scrape()
            scraper.close()
            used = server.memory()
        self.report.ratio("agent resident, 3,000 files", used.resident / (1 << 20), RESIDENT)
        self.report.figure("agent, 3,000 files", str(used))

    def long_run(self) -> None:
        """Measure memory at the end of a day against memory after its first tenth."""
        hours = self.length.hours
        arguments = [str(self.fabric.root), str(self.fabric.answers), str(hours)]
        command = [sys.executable, "-m", "bench.long_run", *arguments]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own
        early, late = (int(number) for number in printed.split())
        title = f"resident after {hours:g} simulated hours / after a tenth"
        self.report.ratio(title, late / early, FLAT)
        figures = f"{harness.mebibytes(early)} early, {harness.mebibytes(late)} at the end"
        self.report.figure("resident, simulated", figures)


class _CallCountingHost(node.BenchHost):
    """A bench host that counts the calls for each device."""

    def __init__(self, fabric: host_files.FabricFiles, clock: ManualClock) -> None:
        super().__init__(fabric.root, fabric.answers, clock)
        self.call_counts: Counter[tuple[str, int | str]] = Counter()

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Make the call, and count it."""
        if arguments:
            self.call_counts[host_interface, arguments[0]] += 1
        return super().call(host_interface, function, *arguments)


if __name__ == "__main__":
    main()
