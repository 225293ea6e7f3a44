"""Captures of a simulated cluster, one for each node, and the ground truth of its faults.

`DIRECTORY/NODE` is a capture as `railscope simulate node` writes it; that of a node that is down ends early.
`DIRECTORY/arrivals.csv` has the heartbeats of all nodes, `DIRECTORY/agent.toml` the settings of agents that read the records of
collectives, if a job has any, and `DIRECTORY/truth.jsonl` the ground truth.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from railscope.capture import CaptureMetadata, CaptureMoment, CaptureWriter
from railscope.timestamps import SECOND_NS
from railscope_simulator import simulation
from railscope_simulator.cluster import collective_records, collectives
from railscope_simulator.cluster.arrivals import Heartbeat, HeartbeatPath
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.ground_truth import truth_lines
from railscope_simulator.cluster.scenario import ClusterScenario
from railscope_simulator.spec import STARTED_WALL_NS, TimeSpan, seconds_to_ns


class SampledCluster:
    """A cluster that advances from sample to sample, with its heartbeats."""

    def __init__(self, scenario: ClusterScenario, started_wall_ns: int = STARTED_WALL_NS) -> None:
        self.scenario = scenario
        self.model = ClusterModel(scenario, started_wall_ns)
        self.paths = [HeartbeatPath(scenario, spec, i) for i, spec in enumerate(self.model.specs)]
        self._jobs = [
            collectives.JobCollectives(self.model, job)
            for job in self.model.jobs
            if job.plan.collectives
        ]
        self._collectives = {
            node: collective_records.NodeCollectives(job, place)
            for job in self._jobs
            for place, node in enumerate(job.job.plan.nodes)
        }
        self._recorders = [
            simulation.CaptureRecorder(node, *self._views(number))
            for number, node in enumerate(self.model.nodes)
        ]
        self._rng = self.model.specs[0].shared_stream("samples")

    def _views(self, number: int) -> list[simulation.NodeView]:
        found = self._collectives.get(number)
        return [found.show] if found else []

    def offsets(self) -> Iterator[int]:
        """Yield the offsets of the samples, each with its own deviation from the period."""
        scenario = self.scenario
        count = int(scenario.seconds / scenario.step_seconds)
        for number in range(count + 1):
            is_inner = 0 < number < count
            # The first and the last sample have no deviation: captures begin and end at the times in their
            # metadata.
            deviation = scenario.jitter * self._rng.uniform(-0.5, 0.5) if is_inner else 0.0
            yield seconds_to_ns((number + deviation) * scenario.step_seconds)

    def advance(self, offset_ns: int) -> TimeSpan:
        """Advance to a sample; return the time since the last one."""
        span = TimeSpan(self.model.offset_ns, offset_ns)
        if offset_ns:
            self.model.advance(offset_ns)
            for job in self._jobs:
                job.advance(span)
        for of_node in self._collectives.values():
            of_node.advance()
        return span

    def changes(self) -> Iterator[CaptureMoment | None]:
        """Yield the changes of each node since its last sample; None if it is down or the sample is lost."""
        offset_ns = self.model.offset_ns
        for path, recorder in zip(self.paths, self._recorders, strict=True):
            is_kept = not offset_ns or self._rng.random() >= self.scenario.lost
            is_sampled = is_kept and not path.is_off(offset_ns / SECOND_NS)
            yield recorder.changes() if is_sampled else None

    def metadata(self) -> Iterator[CaptureMetadata]:
        """Yield the metadata of the capture of each node."""
        faults = ", ".join(fault.fault for fault in self.scenario.faults) or "no faults"
        origin = f"simulated cluster: {faults}, seed {self.scenario.seed}"
        for node in self.model.nodes:
            spec = node.spec
            yield replace(simulation.capture_metadata(spec, self.scenario.seconds), origin=origin)

    def write_truth(self, directory: Path) -> None:
        """Write the ground truth of the faults. Raises OSError."""
        lines = "".join(json.dumps(line) + "\n" for line in truth_lines(self.model))
        (directory / "truth.jsonl").write_text(lines, encoding="utf-8")


def make_output_directory(directory: Path) -> None:
    """Create a directory for results. Raises OSError, also if it has content."""
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(errno.EEXIST, "expected a new or empty directory", str(directory))
    directory.mkdir(parents=True, exist_ok=True)


def write_cluster(scenario: ClusterScenario, directory: Path) -> None:
    """Simulate a cluster, and write its captures and its ground truth into a new or empty directory.

    Raises OSError.
    """
    make_output_directory(directory)
    cluster, arrivals = SampledCluster(scenario), list[Heartbeat]()
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(CaptureWriter(directory / about.node, about))
            for about in cluster.metadata()
        ]
        for offset_ns in cluster.offsets():
            span = cluster.advance(offset_ns)
            arrivals += [beat for path in cluster.paths for beat in path.arrivals(span)]
            for writer, moment in zip(writers, cluster.changes(), strict=True):
                if moment is not None:
                    writer.write(moment)
    rows = "".join(f"{','.join(map(str, row))}\n" for row in sorted(arrivals, key=_received_ns))
    (directory / "arrivals.csv").write_text(f"node,sent,received\n{rows}", encoding="utf-8")
    cluster.write_truth(directory)
    if any(job.collectives for job in scenario.jobs):
        (directory / "agent.toml").write_text(collective_records.SETTINGS_FILE, encoding="utf-8")


def _received_ns(heartbeat: Heartbeat) -> int:
    return heartbeat.received_ns
