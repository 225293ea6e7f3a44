"""`python -m bench.diagnosis`: cost of the diagnosis, in a collector and of captures.

In a collector, many nodes send the frames of one simulated node with 8 GPUs and 10 NICs under their own names. `railscope
diagnose` is measured with all of its processes, by the time between the samples of a node.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tracemalloc
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import click
import msgspec

from bench import load
from bench.harness import Aim, BenchReport, cpu_seconds, is_quick_option, mebibytes, reporting
from railscope.wire import HASH_BYTES, Batch, WireSchema
from railscope_collector.diagnosis.cluster_diagnosis import SLOT_SECONDS, ClusterDiagnosis
from railscope_collector.live_diagnosis.diagnosis_engine import KEPT_SLOTS, OPEN_SLOTS
from railscope_collector.workloads.job_roster import JobKey

SAMPLES = 1_000
NODES_PER_JOB = 8
EVALUATED = Aim("<=", 2, " s")
MEMORY = Aim("<=", 70, " KiB")
DIAGNOSED = Aim("<=", 12, " s")
_KIB = 1 << 10
_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class DiagnosisSize:
    """Nodes whose frames are added, slots of frames, and samples of a capture."""

    nodes: int
    slots: int
    memory_nodes: int
    memory_slots: int
    samples: int
    steps_seconds: tuple[int, ...]
    """Seconds between two samples: the more, the more sources are due at each, and the more evaluations there are."""


FULL = DiagnosisSize(1000, 6, 100, KEPT_SLOTS + 6, SAMPLES, (1, 10))
QUICK = DiagnosisSize(20, 2, 2, 3, 20, (1, 10))


@click.command()
@is_quick_option
def main(*, is_quick: bool) -> None:
    """Measure the diagnosis of many nodes, and of captures of one."""
    size = QUICK if is_quick else FULL
    with reporting("Diagnosis") as (report, directory):
        capture = directory / "one"
        load.write_node(capture, SLOT_SECONDS * max(size.slots, size.memory_slots))
        frames = NamedFrames(load.NodeFrames(capture, SLOT_SECONDS))
        in_a_collector(report, frames, size)
        memory(report, frames, size)
        of_captures(report, size, directory)


class NamedFrames:
    """The frames of the node under the names of others, with names of their own."""

    def __init__(self, frames: load.NodeFrames) -> None:
        self._frames = frames
        self.first_ns = frames.envelopes[0].batches[0].wall_ns[0]

    def batches(self, slot: int, number: int) -> list[Batch]:
        """Return the frames of a node in a slot."""
        own = number.to_bytes(_NUMBER_BYTES, "little")
        batches = self._frames.batches(slot, number)
        return [msgspec.structs.replace(each, names=own + each.names) for each in batches]

    def find_schema(self, number: int, digest: bytes) -> WireSchema:
        """Return a schema of a node by its digest."""
        common = digest[:HASH_BYTES] + digest[HASH_BYTES + _NUMBER_BYTES :]
        schema = self._frames.schemas[common]
        entities = load.of_node(schema.entities, number)
        return msgspec.structs.replace(schema, entities=entities)

    def gpus(self, number: int) -> list[str]:
        """Return the UUIDs of the GPUs of a node."""
        names = (load.of_node(each, number) for each in self._frames.names.values())
        return sorted({row.key[0] for rows in names for row in rows if row.kind == "gpu"})


class DiagnosedNodes:
    """The diagnosis of nodes that send these frames, with a job on each eight of them."""

    def __init__(self, frames: NamedFrames, nodes: int) -> None:
        self._frames, self.nodes = frames, nodes
        self.diagnosis = ClusterDiagnosis(frames.first_ns, KEPT_SLOTS, open_slots=OPEN_SLOTS)
        jobs = defaultdict[JobKey, list[str]](list)
        for number in range(nodes):
            key = JobKey("tenant", "slurm", str(number // NODES_PER_JOB))
            jobs[key] += frames.gpus(number)
        self.jobs: Mapping[JobKey, list[str]] = jobs

    def add(self, slot: int) -> float:
        """Add the frames of a slot of all nodes; return the processor time."""
        received = [self._frames.batches(slot, number) for number in range(self.nodes)]
        self.diagnosis.begin(slot + 1)

        def add_all() -> None:
            for number, batches in enumerate(received):
                name = load.node_name(number)
                find_schema = lru_cache(partial(self._frames.find_schema, number))
                self.diagnosis.add_devices(name, batches, find_schema, _same_clock)
                for batch in batches:
                    self.diagnosis.add(name, "", batch, find_schema, _same_clock)
            self.diagnosis.arrange()

        return cpu_seconds(add_all)

    def evaluate(self, slot: int) -> float:
        """Evaluate a slot; return the processor time."""
        return cpu_seconds(lambda: self.diagnosis.evaluate(slot, self.jobs))


def _same_clock(wall_ns: int) -> int:
    return wall_ns


def in_a_collector(report: BenchReport, frames: NamedFrames, size: DiagnosisSize) -> None:
    """Measure the frames of a slot of all nodes with their evaluation."""
    diagnosed = DiagnosedNodes(frames, size.nodes)
    first = diagnosed.add(0)
    costs = [(diagnosed.add(at), diagnosed.evaluate(at)) for at in range(1, size.slots)]
    added = statistics.median(cost for cost, _ in costs)
    evaluated = statistics.median(cost for _, cost in costs)
    nodes = f"{SLOT_SECONDS} s, {size.nodes:,} nodes"
    report.ratio(f"processor time of {nodes}", added + evaluated, EVALUATED)
    text = f"{added:.3g} s, evaluation {evaluated:.3g} s; frames of the first slot {first:.3g} s"
    report.figure(f"frames of {nodes}", text)


def memory(report: BenchReport, frames: NamedFrames, size: DiagnosisSize) -> None:
    """Measure what Python and numpy have allocated after some slots."""
    diagnosed = DiagnosedNodes(frames, size.memory_nodes)
    tracemalloc.start()
    for slot in range(size.memory_slots):
        diagnosed.add(slot)
        diagnosed.evaluate(slot)
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    report.ratio("memory per node", allocated / size.memory_nodes / _KIB, MEMORY)


def of_captures(report: BenchReport, size: DiagnosisSize, directory: Path) -> None:
    """Measure `railscope diagnose` of a simulated node, all of its processes with their start."""
    samples = size.samples
    for step in size.steps_seconds:
        captures = directory / f"every-{step}"
        capture = captures / load.SPEC.node
        load.write_node(capture, (samples - 1) * step, step)
        before = _used_seconds()
        command = [sys.executable, "-m", "railscope", "diagnose", "--captures", str(captures)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - own program
        cpu = _used_seconds() - before
        title = f"{SAMPLES:,} samples, {step} s apart"
        report.ratio(f"CPU of {title}", cpu * SAMPLES / samples, DIAGNOSED)
        stored = mebibytes((capture / "timeline.jsonl").stat().st_size)
        report.figure(title, f"{1e3 * cpu / samples:.1f} ms per sample, {stored} of captures")


def _used_seconds() -> float:
    """Processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
