"""A round of the demo's faults in simulated time: what a collector receives of its nodes, and the jobs that run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from support.arriving_frames import STEP_NS, ArrivingFrames, write_frame_log

from railscope.capture import CaptureWriter
from railscope.timestamps import SECOND_NS
from railscope_collector.commands.diagnose import REPLAYED_METRICS, REPLAYED_SOURCES
from railscope_collector.diagnosis.jobs import ClaimedGpus
from railscope_collector.diagnosis.node_readings import NodeEvent
from railscope_collector.workloads.job_roster import JobGpu, JobHolding, RunningJob
from railscope_simulator import simulation
from railscope_simulator.demo.faults import (
    FAULTS,
    ROUND_SECONDS,
    SCHEDULERS,
    UPTIME_NS,
    plan_faults,
)
from railscope_simulator.live import LiveNode, start_model
from railscope_simulator.spec import STARTED_WALL_NS

SECONDS, SAMPLE_SECONDS = 570, 2
STOPPED_AT_SECONDS = 440
"""Stop of the agent, before its time in the demo: its node has no other fault that an incident shows."""
TENANTS = {"slurm": "language", "kubernetes": "vision"}


def write_round(directory: Path) -> None:
    """Simulate the nodes up to the last fault, and write the frame log of their collector."""
    duration_ns = SECONDS * SECOND_NS
    for number, (name, scheduler) in enumerate(SCHEDULERS.items(), 1):
        node = LiveNode(
            name,
            number,
            scheduler,
            STARTED_WALL_NS - UPTIME_NS,
            STARTED_WALL_NS,
            UPTIME_NS,
            round_seconds=ROUND_SECONDS,
            faults=plan_faults(name),
        )
        model = start_model(node, 0)
        recorder = simulation.CaptureRecorder(model)
        about = simulation.capture_metadata(node.spec, SECONDS)
        with CaptureWriter(directory / "captures" / name, about) as writer:
            writer.write(recorder.changes())
            for offset_ns in range(0, duration_ns, SAMPLE_SECONDS * SECOND_NS):
                model.advance(offset_ns + SAMPLE_SECONDS * SECOND_NS)
                writer.write(recorder.changes())
    write_frame_log(directory / "captures", directory, REPLAYED_SOURCES, REPLAYED_METRICS)


class DemoRound:
    """Frames of the round as they arrive, and the jobs that run by the claims in them."""

    def __init__(self, frame_log: Path) -> None:
        frames = ArrivingFrames()
        frames.read(frame_log)
        (stopped,) = {fault.node for fault in FAULTS if not fault.scenario}
        stop_ns = frames.start_ns + STOPPED_AT_SECONDS * SECOND_NS
        self.frames = replace(
            frames,
            envelopes=[
                each for each in frames.envelopes if each[1].node != stopped or each[0] < stop_ns
            ],
        )
        self._claims = ClaimedGpus(lambda source, _owner, _timestamp_ns: TENANTS[source])

    @property
    def ends_ns(self) -> Iterator[int]:
        """Ends of the spans of 10 seconds in which frames arrive."""
        first_ns = self.frames.start_ns
        return iter(range(first_ns + STEP_NS, first_ns + SECONDS * SECOND_NS, STEP_NS))

    def add_claims(self, until_ns: int) -> None:
        """Add the claims that began or ended in the 10 seconds before a time."""
        for received_ns, envelope in self.frames.envelopes:
            if until_ns - STEP_NS <= received_ns < until_ns:
                for event in (event for batch in envelope.batches for event in batch.events):
                    self._claims.add(NodeEvent(received_ns, envelope.node, event))

    def jobs_at(self, timestamp_ns: int) -> list[RunningJob]:
        """Return the jobs that run at a time."""
        return [
            RunningJob(
                key,
                0,
                tuple(
                    JobGpu(gpu, place, JobHolding(key, "", 840, 0), is_alone=True)
                    for place, gpu in enumerate(gpus)
                ),
            )
            for key, gpus in self._claims.jobs_at(timestamp_ns).items()
        ]
