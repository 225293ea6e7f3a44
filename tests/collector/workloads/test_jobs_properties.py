"""Jobs, against straightforward models of a few lines."""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from histories import LAST, S, claims
from hypothesis import given, strategies as st
from support.batches import batch_of
from support.examples import fewer_examples
from support.schemas import schemas_in

from railscope.catalog import METRICS, account as catalog, gpu
from railscope.catalog.declare import MetricKind, Rollup
from railscope.catalog.entities import GPU, GPU_CLOCK, RDMA_PORT
from railscope.catalog.rollup import derived_name, is_averaged
from railscope.frame import Entity, Schema
from railscope.shapes import schema_parts
from railscope.wire import MAX_COLUMNS
from railscope_collector.fleet.fleet import NodeUpdate
from railscope_collector.fleet.minute_window import WINDOW_NS
from railscope_collector.fleet.names import KnownSchema
from railscope_collector.fleet.schemas import ReceivedParts
from railscope_collector.metering.holders import allocate, claim_order
from railscope_collector.metering.units import Units
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.workloads.fleet_positions import FleetPositions
from railscope_collector.workloads.job_holdings import find_holdings
from railscope_collector.workloads.job_readings import GatheredReadings, GpuReadings, GpuValues
from railscope_collector.workloads.job_roster import (
    JobGpu,
    JobHolding,
    JobKey,
    JobRoster,
    RunningJob,
)
from railscope_collector.workloads.job_view import RunningJobs, Straggler, compare_gpus
from railscope_collector.workloads.measure_averages import (
    DEFAULT_TIME_CONSTANT_SECONDS,
    MeasureAverages,
)

SECOND = 1_000_000_000
NOW = 100 * SECOND
KEY = JobKey("tenant", "slurm", "1")
RDMA_SENT = METRICS["railscope_rdma_transmit_bytes_total"]

# Holdings ----------------------------------------------------------------------------------------


@given(st.lists(claims(), max_size=7, unique_by=lambda claim: claim.id), st.integers(0, LAST))
def test_what_jobs_hold_is_what_their_tenants_hold(reported, second: int):
    now_ns = second * S
    in_force = [claim for claim in reported if claim.start_ns <= now_ns < claim.end_ns]
    present = sorted(in_force, key=claim_order, reverse=True)
    slots = allocate(present)
    held: dict[str, Units] = defaultdict(int)
    for taken, claim in slots:
        held[claim.tenant] += taken.high - taken.low
    found = find_holdings("GPU-1", "n1", present, slots)
    by_tenant: dict[str, Units] = defaultdict(int)
    for holding in found:
        by_tenant[holding.job.tenant] += holding.units
        assert holding.units > 0
        assert holding.start_ns <= now_ns
        assert holding.job.workload
    assert by_tenant == held
    assert len({holding.job for holding in found}) == len(found)


keys = st.builds(JobKey, st.sampled_from(["red", "blue"]), st.just("slurm"), st.sampled_from("123"))


# Roll-ups ----------------------------------------------------------------------------------------


def node_schemas(node: str, rails: tuple[str, ...]) -> list[Schema]:
    """GPUs on these rails (empty: on none), and a port on each of rails 0 and 1."""
    gpus = [
        Entity(GPU, (f"{node}-{i}",), {"rail": rail} if rail else {})
        for i, rail in enumerate(rails)
    ]
    ports = [Entity(RDMA_PORT, (f"mlx5_{i}", "1"), {"rail": str(i)}) for i in range(2)]
    of_gpus = [
        *((m, g) for m in (gpu.GPU_POWER, gpu.GPU_UTILIZATION) for g in gpus),
        *((gpu.GPU_CLOCK_SPEED, g.child(GPU_CLOCK, c)) for g in gpus for c in ("sm", "memory")),
    ]
    activity = [(gpu.GPU_SM_ACTIVITY, g) for g in gpus]
    sent = [(RDMA_SENT, port) for port in ports]
    return [
        Schema(stream, tuple(columns[i] for i in Schema.ordered(columns)), tuple(more))
        for stream, columns, more in (
            ("gpu", of_gpus, gpus),
            ("gpu_activity", activity, gpus),
            ("rdma", sent, ports),
        )
    ]


NODES = {"n1": ("0", "1"), "n2": ("0", "1"), "n3": ("0", "0"), "n4": ("", "")}
SCHEMAS = {node: node_schemas(node, rails) for node, rails in NODES.items()}
_directory = tempfile.TemporaryDirectory()
KNOWN = schemas_in(Path(_directory.name))


def put(node: str, schema: Schema) -> KnownSchema:
    parts = schema_parts(schema)
    received = ReceivedParts([parts.shape], [parts.names])
    KNOWN.store(node, KNOWN.check(received, MAX_COLUMNS))
    known = KNOWN.get(parts.shape_hash + parts.names_hash)
    assert known
    return known


WIRE = {
    (node, schema.stream): (schema, put(node, schema))
    for node, schemas in SCHEMAS.items()
    for schema in schemas
}


@st.composite
def fleets(draw):
    """Values and reasons of each stream of each node, its freshness, and the holders."""
    jobs = [JobKey("red", "slurm", "1"), JobKey("red", "slurm", "2"), JobKey("blue", "slurm", "1")]
    streams = {}
    for place, (schema, _) in WIRE.items():
        width = len(schema.columns)
        values = st.lists(st.integers(0, 100), min_size=width, max_size=width)
        codes = st.lists(st.sampled_from([0, 0, 0, 4]), min_size=width, max_size=width)
        streams[place] = (draw(values), draw(values), draw(codes), draw(st.booleans()))
    held = {
        (node, f"{node}-{i}"): draw(st.lists(st.sampled_from(jobs), max_size=2, unique=True))
        for node, rails in NODES.items()
        for i in range(len(rails))
    }
    return streams, held


def view_of(streams, held) -> RunningJobs:
    """Result of the collector."""
    core, roster = CollectorState(KNOWN), JobRoster()
    for (node, stream), (first, last, codes, fresh) in streams.items():
        _, known = WIRE[node, stream]
        batch = batch_of(
            [first, last],
            boot_ns=[SECOND, 3 * SECOND],
            stream=stream,
            schema=known.digest,
            reasons=[codes, codes],
        )
        timestamp_ns = NOW if fresh else SECOND
        core.fleet.apply(NodeUpdate(node, "r", "b", known, batch, timestamp_ns))
    for (node, name), jobs in held.items():
        # Held for as long as readings are averaged.
        held_ns = NOW - WINDOW_NS
        roster.set_holdings(
            name, [JobHolding(job, node, 840 // len(jobs), held_ns) for job in jobs]
        )
    positions, gathered = FleetPositions(core, roster), GatheredReadings()
    asyncio.run(positions.refresh(lambda: asyncio.sleep(0)))
    for block in core.fleet.blocks():
        rows, table = core.fleet.fresh_rows(block, 50 * SECOND, NOW), positions.find(block)
        if table:
            gathered.add(table, positions.select_unchanged(block, rows))
    return RunningJobs(
        NOW, tuple(roster.jobs()), 0, gathered, roster.job_of_position, roster.numbers, frozenset()
    )


def job_of(held, node: str, entity: Entity) -> JobKey | None:
    """The one job that has the GPU, or all held GPUs of the rail."""
    if entity.kind.outermost is GPU:
        jobs = held[node, entity.key[0]]
        return jobs[0] if len(jobs) == 1 else None
    rail = entity.facts["rail"]
    found = [held[node, f"{node}-{i}"] for i, r in enumerate(NODES[node]) if r == rail]
    some = [tuple(jobs) for jobs in found if jobs]
    return some[0][0] if len(set(some)) == 1 and len(some[0]) == 1 else None


HOW = {
    Rollup.SUM: sum,
    Rollup.MEAN: statistics.fmean,
    Rollup.COUNT: len,
    Rollup.MIN: min,
    Rollup.MAX: max,
}


@fewer_examples(10)
@given(fleets())
def test_rollups_over_jobs_are_what_a_straight_calculation_gives(drawn):
    streams, held = drawn
    read = defaultdict(list)
    for (node, stream), (first, last, codes, fresh) in streams.items():
        columns = zip(WIRE[node, stream][0].columns, first, last, codes, strict=True)
        for (metric, entity), before, after, code in columns:
            job = job_of(held, node, entity)
            if fresh and not code and job:
                rate = float(np.float32((after - before if after >= before else after) / 2))
                now = (before + after) / 2 if is_averaged(metric) else float(after)
                value = rate if metric.kind is MetricKind.COUNTER else now
                read[job, metric].append(value * float(metric.scale))
    expected = {
        (derived_name(metric, "job", rollup), job): HOW[rollup](values)
        for (job, metric), values in read.items()
        for rollup in catalog.BY_JOB.get(metric, ())
    }
    for key in {job for jobs in held.values() for job in jobs}:
        expected[catalog.JOB_GPUS.name, key] = sum(
            (840 // len(jobs)) / 840 for jobs in held.values() if key in jobs
        )
    view = view_of(streams, held)
    reported = {name for name, _ in expected} | {
        derived_name(m, "job", r) for m, found in catalog.BY_JOB.items() for r in found
    }
    cells = {(c.metric.name, c.labels): c.value for c in view.cells() if c.metric.name in reported}
    assert cells.keys() == expected.keys()
    for key, number in expected.items():
        assert math.isclose(cells[key], number, rel_tol=1e-6), key
    total = sum(value for (name, _), value in cells.items() if name == catalog.JOB_GPUS.name)
    assert math.isclose(total, sum(bool(jobs) for jobs in held.values()))


@given(st.lists(st.tuples(st.integers(-1, 3), st.none() | st.integers(0, 9)), max_size=20))
def test_the_straggler_is_the_one_furthest_below_the_median(positions):
    jobs = np.array([job for job, _ in positions], np.int32)
    values = np.array([math.nan if v is None else float(v) for _, v in positions])
    compared = compare_gpus(GpuValues(values, np.isnan(values).astype(np.uint8)), jobs, 4)
    for number in range(4):
        reported = [v for job, v in positions if job == number and v is not None]
        places = tuple(
            JobGpu(str(position), position, JobHolding(KEY, "n", 840, 1), is_alone=True)
            for position, (job, _) in enumerate(positions)
            if job == number
        )
        found = compared.straggler(RunningJob(KEY, number, places))
        if len(places) < 2 or len(reported) < 2 or statistics.median(reported) == 0:
            assert isinstance(found, str)
            assert found
        else:
            assert isinstance(found, Straggler)
            assert positions[found.position] == (number, min(reported))
            assert found.median == statistics.median(reported)
            assert math.isclose(found.deviation, min(reported) / found.median - 1)


refreshes = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.lists(
            st.tuples(st.integers(-1, 2), st.none() | st.integers(0, 9)), min_size=3, max_size=3
        ),
    ),
    min_size=1,
    max_size=8,
)


@given(refreshes)
def test_means_are_of_the_present_job_and_forget_in_a_minute(steps):
    """Three positions, each with the job that has it, and what was read."""
    averages = MeasureAverages()
    history: list[list[tuple[float, float]]] = [[] for _ in range(3)]
    before, now_ns = [-1, -1, -1], SECOND
    key = (gpu.GPU_SM_ACTIVITY, ())
    for turn, (pause, positions) in enumerate(steps):
        seconds = pause if turn else 1
        now_ns += seconds * SECOND
        read = [
            (position, value) for position, (_, value) in enumerate(positions) if value is not None
        ]
        gathered = GatheredReadings({key: 0})
        gathered.add_readings(
            GpuReadings(
                np.array([position for position, _ in read], np.int32),
                np.zeros(len(read), np.int32),
                np.array([value for _, value in read], np.float64),
                np.zeros(len(read), np.uint8),
            )
        )
        jobs = np.array([job for job, _ in positions], np.int32)
        reported = averages.update(gathered, jobs, now_ns)["sm_activity"]
        for position, (job, value) in enumerate(positions):
            if job != before[position] or job == -1 or value is None:
                history[position] = []
            if value is None:
                assert math.isnan(reported.values[position])
                assert reported.absence_reason(position) == "stale"
                continue
            faded = math.exp(-seconds / DEFAULT_TIME_CONSTANT_SECONDS)
            history[position] = [(v, w * faded) for v, w in history[position]] + [
                (float(value), seconds)
            ]
            weights = sum(weight for _, weight in history[position])
            mean = sum(v * weight for v, weight in history[position]) / weights
            assert math.isclose(reported.values[position], mean, abs_tol=1e-9)
        before = [job for job, _ in positions]
