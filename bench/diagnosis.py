"""Score of the diagnosis on drawn clusters: precision, recall, delay, cause, false positives of healthy hours; speed.

The scenarios are those of `bench/drawn_faults.py`, which share nothing with the cluster's simulator; the table is that of
`railscope simulate score`. With `--shapes`, size, jobs, adapters and sample times of the clusters are drawn as well.

    python -m bench.diagnosis --seeds 100-109
    python -m bench.diagnosis --shapes --healthy-hours 500
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
import numpy as np

from bench import load
from bench.drawn_cluster import START_NS, DrawnCluster, DrawnFeed, node_name
from bench.drawn_faults import FAULTS, DrawnFault
from bench.harness import ProcessStopwatch
from bench.sampled_cluster import SampledFeed
from bench.shaped_cluster import ShapedCluster
from railscope.capture import write_capture
from railscope.timestamps import SECOND_NS
from railscope.wire import Batch, WireSchema, schema_hash
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings
from railscope_collector.diagnosis.cluster_diagnosis import SLOT_SECONDS, ClusterDiagnosis
from railscope_collector.diagnosis.incident_classes import Severity
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.live_diagnosis.diagnosis_engine import KEPT_SLOTS, OPEN_SLOTS
from railscope_simulator import NodeSpec, capture_metadata, moments
from railscope_simulator.cluster.score_table import table
from railscope_simulator.cluster.scoring import FaultOutcome, RunOutcome, goal_of

SLOTS, ONSET_SLOT, FAULT_SLOTS = 120, 60, 48
HEALTHY_SLOTS = 360
TURNS, MEMORY_TURNS, MEMORY_NODES = 6, KEPT_SLOTS + 6, 100
"""Slots of frames that are added; slots and nodes of which the memory is measured."""


def run_case(
    name: str, seed: int, pods: int, nodes: int, slots: int = 0
) -> tuple[ClusterDiagnosis, DrawnFault | None]:
    """Run one drawn case; without a class it is healthy."""
    cluster = DrawnCluster(seed, pods, nodes)
    fault = FAULTS[name](cluster) if name else None
    slots = slots or (SLOTS if name else HEALTHY_SLOTS)
    feed = DrawnFeed(cluster, slots)
    for slot in range(slots):
        row = cluster.draw()
        if fault and ONSET_SLOT <= slot < ONSET_SLOT + FAULT_SLOTS:
            fault.effect(cluster, row, slot - ONSET_SLOT)
        feed.put(slot, row)
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(slot)
    return feed.diagnosis, fault


SHAPED_ONSET_SECONDS, SHAPED_FAULT_SECONDS = 900, 480
MINUTE_SECONDS = 60.0


def run_shaped_case(name: str, seed: int) -> tuple[ClusterDiagnosis, DrawnFault | None, float]:
    """Run a case in a cluster of drawn shape, second by second; return its node-hours as well."""
    cluster = ShapedCluster(seed, fault=bool(name))
    if name == "nvlink_errors":
        cluster.gpu_kind = "all"  # the only evidence is a counter that other kinds lack
    fault = FAULTS[name](cluster) if name else None
    seconds = SHAPED_ONSET_SECONDS + SHAPED_FAULT_SECONDS if name else HEALTHY_SLOTS * SLOT_SECONDS
    feed = SampledFeed(cluster, seconds)
    for second in range(seconds):
        row, since = cluster.draw(), second - SHAPED_ONSET_SECONDS
        if fault and since >= 0:
            fault.effect(cluster, row, since // SLOT_SECONDS)
            fault.hidden_seconds += fault.lacks_evidence()
            if since % SLOT_SECONDS:  # events and interruptions are those of a slot
                row.events.clear()
                row.nic["downs"][:] = 0
        feed.put(second, row)
        if second % SLOT_SECONDS == SLOT_SECONDS - 1:
            feed.diagnosis.arrange()
            feed.diagnosis.evaluate(second // SLOT_SECONDS)
    return feed.diagnosis, fault, cluster.nodes * seconds / 3600


def is_cause(diagnosis: ClusterDiagnosis, incident: Incident, fault: DrawnFault) -> bool:
    """True if an incident has the cause of a fault."""
    cause, devices = incident.cause, diagnosis.devices
    if cause.kind != fault.kind:
        return False
    if cause.kind == "nic":
        nic = devices.nics[cause.position]
        return (nic.node, nic.rail) == (node_name(fault.node), str(fault.index))
    if cause.kind == "gpu":
        gpu = devices.gpus[cause.position]
        return (gpu.node, gpu.index) == (node_name(fault.node), str(fault.index))
    if cause.kind == "leaf":
        return cause.name.endswith(f"-{fault.index}")
    if cause.job is not None:
        return cause.job.workload == fault.job
    return cause.kind in {"storage", "rack"} or cause.name == node_name(fault.node)


def outcome_of(
    name: str,
    diagnosis: ClusterDiagnosis,
    fault: DrawnFault | None,
    hours: float,
    onset_seconds: int = ONSET_SLOT * SLOT_SECONDS,
) -> RunOutcome:
    """Return the result of a run.

    The deadline is not before the fourth sample: three missing ones prove that a node is stale; nor in the minute after the evidence
    exists.
    """
    outcome = RunOutcome(name, hours)
    reported = [
        incident
        for incident in diagnosis.tracker.incidents
        if incident.severity is not Severity.INFO and not incident.explained_by
    ]
    hits = []
    if fault:
        hits = [
            incident
            for incident in reported
            if incident.incident_class.name == fault.incident_class
            and is_cause(diagnosis, incident, fault)
        ]
        found = FaultOutcome(fault.incident_class, 1.0, (fault.form,) if fault.form else ())
        onset_ns = START_NS + onset_seconds * SECOND_NS
        period_seconds = max(each.period_seconds for each in diagnosis.contacts.values())
        deadline_seconds = goal_of(fault.incident_class).deadline_seconds
        limits = deadline_seconds, 4 * period_seconds, fault.hidden_seconds + MINUTE_SECONDS
        limit_seconds = max(limits) + 2 * SLOT_SECONDS
        # The last frame before a silence may be lost.
        earliest_ns = onset_ns - SLOT_SECONDS * SECOND_NS
        delays = [(i.detected_ns - onset_ns) / SECOND_NS for i in hits if i.onset_ns >= earliest_ns]
        found.delay_seconds = next((each for each in delays if each <= limit_seconds), None)
        best = max(reported, key=lambda incident: incident.confidence, default=None)
        found.ranked_first = best is not None and is_cause(diagnosis, best, fault)
        outcome.faults.append(found)
    outcome.false_classes = [i.incident_class.name for i in reported if i not in hits]
    return outcome


def outcomes(
    classes: Sequence[str], seeds: range, size: tuple[int, int], healthy_hours: float
) -> Iterator[RunOutcome]:
    """Yield the results of all classes and seeds, and of healthy hours."""
    pods, nodes = size
    hours = pods * nodes * SLOT_SECONDS / 3600
    for name in classes:
        for seed in seeds:
            diagnosis, fault = run_case(name, seed, pods, nodes)
            yield outcome_of(f"{name}/{seed}", diagnosis, fault, hours * SLOTS)
    for number in range(round(healthy_hours / (hours * HEALTHY_SLOTS))):
        diagnosis, _ = run_case("", 10_000 + 100 * seeds.start + number, pods, nodes)
        yield outcome_of(f"healthy/{number}", diagnosis, None, hours * HEALTHY_SLOTS)


def shaped_outcomes(
    classes: Sequence[str], seeds: range, healthy_hours: float
) -> Iterator[RunOutcome]:
    """Yield the results of clusters of drawn shapes."""
    for name in classes:
        for seed in seeds:
            diagnosis, fault, hours = run_shaped_case(name, seed)
            yield outcome_of(f"{name}/{seed}", diagnosis, fault, hours, SHAPED_ONSET_SECONDS)
    done, seed = 0.0, 100 * seeds.start
    while done < healthy_hours:
        diagnosis, _, hours = run_shaped_case("", seed)
        done += hours
        yield outcome_of(f"healthy/{seed}", diagnosis, None, hours)
        seed += 1


@click.command()
@click.option("--seeds", default="100-104", show_default=True, help="Range of seeds.")
@click.option(
    "--class",
    "classes",
    multiple=True,
    type=click.Choice(sorted(FAULTS)),
    help="Only this class; repeatable.",
)
@click.option(
    "--size", default=(2, 4), show_default=True, type=(int, int), help="Pods, and nodes of a pod."
)
@click.option(
    "--healthy-hours", default=40.0, show_default=True, help="Node-hours without a fault."
)
@click.option(
    "--speed-nodes",
    default=1024,
    show_default=True,
    help="Nodes of the cluster whose evaluation is measured.",
)
@click.option("--shapes", is_flag=True, help="Draw sizes, jobs, adapters and sample times, too.")
@click.option("--healthy-only", is_flag=True, help="Leave out the faults.")
@click.option("--verbose", is_flag=True, help="Print every result.")
def main(  # noqa: PLR0913, PLR0917 - options
    seeds: str,
    classes: Sequence[str],
    size: tuple[int, int],
    healthy_hours: float,
    speed_nodes: int,
    shapes: bool,  # noqa: FBT001 - an option
    healthy_only: bool,  # noqa: FBT001 - an option
    verbose: bool,  # noqa: FBT001 - an option
) -> None:
    """Print the score of the diagnosis on drawn clusters."""
    first, _, last = seeds.partition("-")
    chosen = range(int(first), int(last or first) + 1)
    done = []
    names = () if healthy_only else classes or sorted(FAULTS)
    results = (
        shaped_outcomes(names, chosen, healthy_hours)
        if shapes
        else outcomes(names, chosen, size, healthy_hours)
    )
    for outcome in results:
        done.append(outcome)
        if verbose:
            click.echo(outcome.line())
    for line in table(done):
        click.echo(line)
    if speed_nodes:
        for line in speed(speed_nodes):
            click.echo(line)


def speed(nodes: int) -> Iterator[str]:
    """Yield processor time and memory of the diagnosis of a cluster."""
    cluster = DrawnCluster(1, max(1, nodes // 32), 32)
    feed = DrawnFeed(cluster, 60)
    spent = []
    for slot in range(20):
        feed.put(slot, cluster.draw())
        feed.diagnosis.arrange()
        with ProcessStopwatch() as cost:
            feed.diagnosis.evaluate(slot)
        spent.append(cost.cpu_seconds)
    yield f"{cluster.nodes} nodes: {np.median(spent):.2f} s of processor time per evaluation"
    reader = _ReadFrames(nodes, TURNS)
    first, *later = [reader.read_turn(turn) for turn in range(TURNS)]
    both = np.median(later) + np.median(spent)
    yield (
        f"{nodes} nodes: {np.median(later):.2f} s to add the frames of {SLOT_SECONDS} seconds, {first:.2f} s for the first;"
        f" {both:.2f} s with the evaluation (goal 2 s at 1,000 nodes)"
    )
    reader = _ReadFrames(min(nodes, MEMORY_NODES), MEMORY_TURNS)
    tracemalloc.start()
    for turn in range(MEMORY_TURNS):
        reader.read_turn(turn)
        reader.diagnosis.readings.sample_slots.clear()
        reader.diagnosis.evaluate(turn)
    kibibytes = tracemalloc.get_traced_memory()[0] / reader.nodes / 1024
    yield f"{reader.nodes} nodes: {kibibytes:.0f} KiB per node after {MEMORY_TURNS // 6} minutes"
    for kind, sums in reader.diagnosis.devices.sums.items():
        yield f"{kind}: {sums.bytes_per_device / 1024:.1f} KiB per device"


class _ReadFrames:
    """The diagnosis of many nodes that send the frames of one simulated node with 8 GPUs and 10 NICs.

    Counters of each node, and changes of its gauges, are multiples of those of the simulated one.
    """

    def __init__(self, nodes: int, turns: int) -> None:
        seconds, spec = SLOT_SECONDS * turns, NodeSpec("node")
        with TemporaryDirectory(prefix="bench-") as directory:
            capture = Path(directory) / "capture"
            write_capture(capture, capture_metadata(spec, seconds), moments(spec, seconds, 1))
            self._envelopes = list(CaptureReplay(capture, AgentSettings()).envelopes(SLOT_SECONDS))
        self._schemas = {schema_hash(each): each for each in self._envelopes[0].schemas}
        self._counters = {digest: load.counters_of(each) for digest, each in self._schemas.items()}
        self.nodes = nodes
        first_ns = self._envelopes[0].batches[0].wall_ns[0]
        self.diagnosis = ClusterDiagnosis(first_ns, KEPT_SLOTS, open_slots=OPEN_SLOTS)

    def read_turn(self, turn: int) -> float:
        """Return the processor time of adding the frames of a slot of all nodes."""
        batches = [each for each in self._envelopes[turn].batches if each.schema in self._schemas]
        items = [[self._of_node(each, number) for each in batches] for number in range(self.nodes)]
        self.diagnosis.begin(turn + 1)
        with ProcessStopwatch() as cost:
            for number, new in enumerate(items):
                find_schema = lru_cache(partial(self._find_schema, number))
                self.diagnosis.add_devices(load.name(number), new, find_schema, _same_clock)
                for batch in new:
                    self.diagnosis.add(load.name(number), "", batch, find_schema, _same_clock)
            self.diagnosis.arrange()
        return cost.cpu_seconds

    def _of_node(self, batch: Batch, number: int) -> Batch:
        factor = 1 + 0.1 * number / self.nodes
        base, steps = (np.frombuffer(each, "<i8") for each in (batch.base, batch.steps))
        scaled = np.where(self._counters[batch.schema], base * factor, base).astype("<i8")
        return msgspec.structs.replace(
            batch,
            schema=_digest(batch.schema, number),
            base=scaled.tobytes(),
            steps=(steps * factor).astype("<i8").tobytes(),
        )

    def _find_schema(self, number: int, digest: bytes) -> WireSchema:
        return load.of_node(self._schemas[digest[_NUMBER_BYTES:]], number)


_NUMBER_BYTES = 4


def _digest(digest: bytes, number: int) -> bytes:
    """Return a digest of the schema of another node."""
    return number.to_bytes(_NUMBER_BYTES, "little") + digest


def _same_clock(wall_ns: int) -> int:
    return wall_ns


if __name__ == "__main__":
    main()
