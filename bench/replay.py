"""`python -m bench.replay`: diagnosis of a recorded node with 8 GPUs and 10 NICs, by the time between its samples."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

from bench.harness import Aim, BenchReport, benchmark, cpu_seconds, mebibytes
from railscope.capture import read_capture, write_capture
from railscope_agent.commands.capture_walk import MAX_READS, CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.service import Agent
from railscope_simulator import NodeSpec, capture_metadata, moments

SAMPLES = 1_000
STEPS_SECONDS = (1, 5, 10)
"""Seconds between two samples: the more, the more sources are due at each, and the more evaluations there are."""
DIAGNOSED = Aim("<=", 12, " s")
FASTER = Aim(">=", 11)
"""12 ms per sample on a machine on which a reading of all sources takes 130 ms."""
SPEC = NodeSpec("bench-node")


@benchmark("Diagnosis of captures", full=SAMPLES, quick=20)
def main(report: BenchReport, samples: int, directory: Path) -> None:
    """Measure `railscope diagnose` of a simulated node, all of its processes with their start."""
    for step in STEPS_SECONDS:
        captures, seconds = directory / f"every-{step}", (samples - 1) * step
        capture = captures / SPEC.node
        write_capture(capture, capture_metadata(SPEC, seconds), moments(SPEC, seconds, step))
        before = _used_seconds()
        command = [sys.executable, "-m", "railscope", "diagnose", "--captures", str(captures)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - own program
        cpu = _used_seconds() - before
        title = f"{SAMPLES:,} samples, {step} s apart"
        report.ratio(f"CPU of {title}", cpu * SAMPLES / samples, DIAGNOSED)
        reading = _seconds_of_reading(capture)
        report.ratio(
            f"samples per complete reading, {step} s apart", reading * samples / cpu, FASTER
        )
        size = mebibytes((capture / "timeline.jsonl").stat().st_size)
        report.figure(
            title,
            f"{1e3 * cpu / samples:.1f} ms per sample, {1e3 * reading:.0f} ms per complete reading, {size} of captures",
        )


def _seconds_of_reading(capture: Path) -> float:
    """Processor time in which an agent reads all sources of a recorded node, without that of reading the capture."""
    walk = CaptureWalk(read_capture(capture))
    agent = Agent(AgentSettings(), walk.host, SPEC.node)
    return cpu_seconds(lambda: asyncio.run(walk.read(agent))) / MAX_READS


def _used_seconds() -> float:
    """Processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
