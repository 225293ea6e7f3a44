"""`python -m bench.replay`: frames of a recorded node with 8 GPUs and 10 NICs, by the time between its samples."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

from agent.commands.replay import replay_captures
from agent.config import AgentSettings
from bench.harness import Aim, BenchReport, benchmark, cpu_seconds, mebibytes, peak_resident_bytes
from railscope.capture import write_capture
from simulator import NodeSpec, capture_metadata, moments

SAMPLES = 1_000
STEPS_SECONDS = (1, 10)
"""Seconds between two samples: the more, the more sources are due at each."""
REPLAYED = Aim("<=", 12, " s")
SPEC = NodeSpec("bench-node")


@benchmark("Replays of captures", full=SAMPLES, quick=20)
def main(report: BenchReport, samples: int, directory: Path) -> None:
    """Measure replays of a simulated node, with reading of the capture and packing of the frames."""
    for step in STEPS_SECONDS:
        capture, seconds = directory / f"every-{step}", (samples - 1) * step
        write_capture(capture, capture_metadata(SPEC, seconds), moments(SPEC, seconds, step))
        before, frames = peak_resident_bytes(), io.BytesIO()
        cpu = cpu_seconds(partial(replay_captures, [capture], AgentSettings(), (), frames))
        title = f"{SAMPLES:,} samples, {step} s apart"
        report.ratio(f"CPU of {title}", cpu * SAMPLES / samples, REPLAYED)
        timeline = (capture / "timeline.jsonl").stat().st_size
        sizes = f"{mebibytes(timeline)} of captures, {mebibytes(frames.tell())} of frames"
        grown = mebibytes(peak_resident_bytes() - before)
        report.figure(title, f"{1e3 * cpu / samples:.1f} ms per sample, {sizes}, {grown} of memory")


if __name__ == "__main__":
    main()
