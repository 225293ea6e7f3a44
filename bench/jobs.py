"""`python -m bench.jobs`: cost of jobs for the collector."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from bench import harness, load
from railscope import claim_terms, exposition, wire
from railscope.timestamps import SECOND_NS
from railscope_collector.fleet.fleet import NodeUpdate
from railscope_collector.fleet.schemas import StoredSchemas
from railscope_collector.http.collector_metrics import render
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.workloads.fleet_positions import FleetPositions
from railscope_collector.workloads.job_readings import GatheredReadings
from railscope_collector.workloads.job_roster import JobHolding, JobKey, JobRoster
from railscope_collector.workloads.job_view import RunningJobs
from railscope_collector.workloads.measure_averages import MeasureAverages

NOW_NS = 1_790_000_000 * SECOND_NS
GPUS_PER_JOB, TENANTS = 8, 50
SMALL = 10
TURNS = 30
LINEAR = harness.Aim("<=", 1.3)
OF_A_PERIOD = harness.Aim("<=", 0.01)
VIEWS_SECONDS = 2.0
_ON_RAILS = {"nic", "rdma_port"}


@dataclass
class JobCluster:
    """Nodes with all GPUs held by jobs."""

    core: CollectorState
    roster: JobRoster
    positions: FleetPositions
    averages: MeasureAverages = field(default_factory=MeasureAverages)

    @classmethod
    def create(cls, streams: list[load.SourceLoad], nodes: int, directory: Path) -> JobCluster:
        """Create the given number of nodes, all with recent reports."""
        schemas = StoredSchemas(directory)
        schemas.open()
        core, roster = CollectorState(schemas), JobRoster()
        chance = np.random.default_rng(1)
        for number in range(nodes):
            for stream in streams:
                known_schema = schemas.put(load.of_node(stream.schema, number))
                columns = known_schema.layout.columns
                first = chance.integers(1, 10**6, columns)
                rows = np.array([first, first + chance.integers(1, 10**5, columns)])
                timestamps_ns = (SECOND_NS, 2 * SECOND_NS)
                stream_name, digest, times = (
                    known_schema.layout.stream,
                    known_schema.digest,
                    timestamps_ns,
                )
                batch = wire.Batch(stream_name, digest, 1, times, times, *load.pack_rows(rows))
                update = NodeUpdate(
                    load.name(number), "run", "boot", known_schema.layout, batch, NOW_NS
                )
                core.fleet.apply(update)
                for place, gpu in enumerate(known_schema.gpus):
                    job = (number * len(known_schema.gpus) + place) // GPUS_PER_JOB
                    key = JobKey(f"tenant-{job % TENANTS}", "slurm", str(job))
                    roster.set_holdings(
                        gpu.uuid, [JobHolding(key, load.name(number), claim_terms.GPU_CAPACITY, 1)]
                    )
        return cls(core, roster, FleetPositions(core, roster))

    def assign_positions(self) -> None:
        """Run the job assignment of a refresh, before its reads, with nothing changed."""

        async def pause() -> None:
            return

        asyncio.run(self.positions.refresh(pause))

    def view(self) -> RunningJobs:
        """Run the job computation of a refresh."""
        gathered, fleet = GatheredReadings(), self.core.fleet
        for block in fleet.blocks():
            table = self.positions.find(block)
            if table:
                rows = fleet.fresh_rows(block, NOW_NS - 30 * SECOND_NS, NOW_NS)
                gathered.add(table, self.positions.select_unchanged(block, rows))
        job_of_position = self.roster.job_of_position.copy()
        averages = self.averages.update(gathered, job_of_position, NOW_NS)
        return RunningJobs(
            NOW_NS,
            tuple(self.roster.jobs()),
            0,
            gathered,
            job_of_position,
            self.roster.numbers,
            frozenset(fleet.nodes),
            averages,
        )


@harness.benchmark("Jobs", full=1000, quick=20)
def main(report: harness.BenchReport, nodes: int, directory: Path) -> None:
    """Measure the views of jobs and print ratios."""
    streams = [
        on_rails(stream)
        for stream in load.streams_of_a_node(directory)
        if stream.schema.stream in {"gpu", "gpu_activity", "rdma", "nic"}
    ]
    small = JobCluster.create(streams, nodes // SMALL, directory / "small")
    whole = JobCluster.create(streams, nodes, directory / "whole")
    first = harness.cpu_seconds(whole.assign_positions)
    small.assign_positions()
    refresh, few = _median_seconds(whole.view), _median_seconds(small.view)
    view = whole.view()
    jobs, gpus = len(view.jobs), sum(len(job.places) for job in view.jobs)
    cells = list(view.cells())
    scrape = _median_seconds(lambda: list(whole.view().cells()), TURNS // 10) - refresh
    text = render(cells, exposition.TextFormat.PROMETHEUS)
    report.ratio("processor time per GPU, all / a tenth of them", refresh / few / SMALL, LINEAR)
    report.ratio("refresh of the jobs / its period", refresh / VIEWS_SECONDS, OF_A_PERIOD)
    report.figure("cluster", f"{nodes:,} nodes, {gpus:,} GPUs, {jobs:,} jobs")
    report.figure("a refresh", f"{refresh * 1e3:.1f} ms; first assignment {first * 1e3:.1f} ms")
    report.figure(
        "a scrape",
        f"{scrape * 1e3:.0f} ms in a thread, {len(cells):,} series, {len(text) / 1e6:.1f} MB of text",
    )


def on_rails(stream: load.SourceLoad) -> load.SourceLoad:
    """Return the stream with its ports on rails: the bench's tree does not contain rails."""
    numbers: dict[tuple[str, ...], int] = {}
    entities = []
    for entity in stream.schema.entities:
        if entity.kind in _ON_RAILS:
            rail = numbers.setdefault(entity.key, len(numbers)) % load.DEVICES
            facts = {**entity.facts, "rail": str(rail)}
            entities.append(wire.WireEntity(entity.kind, entity.key, facts))
        else:
            entities.append(entity)
    schema: wire.WireSchema = msgspec.structs.replace(stream.schema, entities=tuple(entities))
    return msgspec.structs.replace(stream, schema=schema)


def _median_seconds(work: Callable[[], object], turns: int = TURNS) -> float:
    """Return the median of processor time."""
    return statistics.median(harness.cpu_seconds(work) for _ in range(turns))


if __name__ == "__main__":
    main()
