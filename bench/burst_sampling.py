"""`python -m bench.burst_sampling`: cost of burst sampling, and memory of the agent after a simulated day."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench import harness, host_files, node
from bench.long_run import ManualClock
from railscope.frame import FrameOrigin
from railscope_agent.host import Json
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nic_burst import NicBurstSource
from railscope_agent.sources.nvidia.gpu_bursts import GpuBurstSource

WINDOWS = {"10 Hz": 0.1, "50 Hz": 0.02}
TICKS_PER_SECOND = 10

SHARE = harness.Aim("<=", 1.5, " %")
WAKE_UPS = {"off": harness.Aim("<=", 4), "10 Hz": harness.Aim("<=", 12)}
FLAT = harness.Aim("<=", 1.02)
CALLS_PER_NIC = harness.Aim("<=", 3)
CALLS_PER_GPU = harness.Aim("<=", 2)


@dataclass(frozen=True, slots=True)
class BurstBenchLength:
    """Durations and numbers of repetitions."""

    seconds: float
    settle_seconds: float
    ticks: int
    """Ticks of burst sampling; fewer than lie between two probes, which are not part of a tick."""
    hours: float


THOROUGH = BurstBenchLength(20, 5, ticks=500, hours=24)
QUICK = BurstBenchLength(1, 1, ticks=20, hours=0.05)


@harness.benchmark("Burst sampling", full=THOROUGH, quick=QUICK)
def main(report: harness.BenchReport, length: BurstBenchLength, directory: Path) -> None:
    """Measure burst sampling and print ratios."""
    with host_files.memory_directory() as files:
        bench = BurstBench(report, host_files.write_fabric(files), directory, length)
        bench.shares()
        bench.calls()
        bench.long_run()


@dataclass(frozen=True, slots=True)
class BurstBench:
    """The measurements: their report, the files that agents read, a directory and the durations."""

    report: harness.BenchReport
    fabric: host_files.FabricFiles
    directory: Path
    length: BurstBenchLength

    def shares(self) -> None:
        """Measure the share of a core for burst sampling: the agent with it, less the agent without it."""
        costs = {"off": self._run(None)}
        for name, window in WINDOWS.items():
            costs[name] = self._run(window)
        for name in WINDOWS:
            more = 100 * (costs[name].share_of_core - costs["off"].share_of_core)
            title = (
                f"share of a core, burst sampling of {host_files.DEVICES} NICs and GPUs at {name}"
            )
            aim = SHARE if name == "10 Hz" else None
            self.report.ratio(title, more, aim, SHARE.unit)
        for name, aim in WAKE_UPS.items():
            wake_ups = costs[name].switches / costs[name].wall_seconds
            self.report.ratio(f"wake-ups per second, burst sampling {name}", wake_ups, aim)
        for name, spent in costs.items():
            self.report.figure(
                f"whole agent, burst sampling {name}",
                f"{100 * spent.share_of_core:.2f} % of a core,"
                f" {spent.switches / spent.wall_seconds:.1f} wake-ups per second",
            )

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
