"""`python -m bench.collector`: cost of the collector, compared with a time-series database.

The same values are written to VictoriaMetrics by its fastest way: Prometheus' remote write. It
receives every series once before the measurement starts, so that building its index does not count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
import numpy as np

from bench import fleets, harness, http_requests, load
from bench.fleets import FleetCost, FleetSize
from railscope.catalog import KINDS, METRICS
from railscope.timestamps import SECOND_NS

PATH = "/api/v1/write"
FLUSH = "/internal/force_flush"
CONNECTIONS = 4
_MAX_WAITS, _IDLE_SHARE = 15, 0.03
_MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class StoreCost:
    """Cost of the store."""

    values: int
    cpu_seconds: float
    wall_seconds: float

    @property
    def cpu_per_value(self) -> float:
        """Processor seconds per value."""
        return self.cpu_seconds / self.values

    def __str__(self) -> str:
        return (
            f"{self.cpu_per_value * 1e9:.0f} ns CPU per value,"
            f" {1 / self.cpu_per_value / 1e6:.2f} M values per CPU second,"
            f" {self.values / self.wall_seconds / 1e6:.2f} M values/s wall time"
            " (remote write, known series)"
        )


def measure_store(
    streams: Sequence[load.SourceLoad], nodes: int, turns: int, directory: Path
) -> StoreCost:
    """Write some turns of some nodes; its later merges, until it is idle, count too."""
    prefixes = [_prefixes(streams, number) for number in range(nodes)]
    with harness.start_victoria(directory) as server:
        http_requests.post_all(server.port, _requests(streams, prefixes, 0), CONNECTIONS)
        harness.http_get(server.port, FLUSH)
        _wait_until_idle(server)
        requests = [r for turn in range(1, turns + 1) for r in _requests(streams, prefixes, turn)]
        with server.measure() as whole:
            with server.measure() as writing:
                http_requests.post_all(server.port, requests, CONNECTIONS)
                harness.http_get(server.port, FLUSH)
            _wait_until_idle(server)
        inserted = _inserted_rows(server.port)
    values = load.LoadNodes(streams, 1).values_per_turn * nodes * turns
    expected = values + values // turns
    if inserted < expected:
        message = (
            f"writing to {harness.VICTORIA} failed: {inserted} values stored: expected {expected}"
        )
        raise harness.BenchError(message)
    return StoreCost(values, whole.cpu_seconds, writing.wall_seconds)


def _wait_until_idle(server: harness.ServerProcess) -> None:
    """Wait until the process is almost idle."""
    for _ in range(_MAX_WAITS):
        before = server.cpu_seconds()
        time.sleep(1.0)
        if server.cpu_seconds() - before < _IDLE_SHARE:
            return


def _inserted_rows(port: int) -> int:
    lines = harness.http_get(port, "/metrics").splitlines()
    return sum(
        int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vm_rows_added_to_storage")
    )


# Written data --------------------------------------------------------------------------------------


def _requests(
    streams: Sequence[load.SourceLoad], prefixes: Sequence[list[bytes]], turn: int
) -> list[http_requests.Request]:
    variants = [_samples(streams, variant, turn) for variant in range(load.VARIANTS)]
    requests = []
    for number, node_prefixes in enumerate(prefixes):
        samples = variants[number % len(variants)]
        parts = (p + s for p, s in zip(node_prefixes, samples, strict=True))
        requests.append(http_requests.encode_request(PATH, parts))
    return requests


def _samples(streams: Sequence[load.SourceLoad], variant: int, turn: int) -> list[bytes]:
    """Encode the samples of every column."""
    now_ns = time.time_ns() // SECOND_NS * SECOND_NS
    times = http_requests.encode_timestamps(
        (now_ns + (turn * load.ROWS + row) * SECOND_NS) // _MILLISECOND for row in range(load.ROWS)
    )
    samples = []
    for position, stream in enumerate(streams):
        rows = load.rows_of(stream.schema, variant * 100 + position, turn)[-stream.rows :]
        timestamps = times[:: -(load.ROWS // len(rows))][: len(rows)][::-1]
        block = http_requests.encode_samples(rows.T.astype(np.float64), timestamps)
        data, size = block.tobytes(), block.itemsize * len(rows)
        samples += [data[i : i + size] for i in range(0, len(data), size)]
    return samples


def _prefixes(streams: Sequence[load.SourceLoad], number: int) -> list[bytes]:
    """Return the bytes before the samples of every column of a node: size and labels."""
    label = http_requests.encode_label
    node = label("instance", load.name(number))
    prefixes = []
    for stream in streams:
        schema = load.of_node(stream.schema, number)
        entities = [
            node + b"".join(map(label, KINDS[e.kind].labels, e.key)) for e in schema.entities
        ]
        for group in schema.groups:
            metric = label("__name__", METRICS[group.metric].name)
            for member in group.entities:
                labels = metric + entities[member]
                size = http_requests.SAMPLE.itemsize * stream.rows
                prefixes.append(http_requests.encode_series_head(labels, size))
    return prefixes


@dataclass(frozen=True, slots=True)
class CollectorBenchSize:
    """Sizes of the fleets, and of the data written to the other store."""

    fleets: tuple[FleetSize, ...]
    store_nodes: int
    store_turns: int


FLEETS = (FleetSize(100, 20, 10.0), FleetSize(1000, 2, 10.0), FleetSize(5000, 1, 10.0))
THOROUGH = CollectorBenchSize(FLEETS, store_nodes=60, store_turns=8)
QUICK = CollectorBenchSize((FleetSize(20, 1, 0.5),), store_nodes=4, store_turns=1)

CPU_RATIO = harness.Aim(">=", 30)
MEMORY = harness.Aim("<=", 70, " KiB")
ACKNOWLEDGED = harness.Aim("<=", 10, " ms")
REFRESH = harness.Aim("<=", 0.5, " s")
FIRST_REFRESH = harness.Aim("<=", 1, " s")
REGISTRATION = harness.Aim("<=", 4, " ms")
SHARE = harness.Aim("<=", 35, " %")
_KIB = 1 << 10


@click.option(
    "--nodes", "numbers", type=int, multiple=True, help="Measure only this fleet; may be repeated."
)
@click.option("--no-store", "no_store", is_flag=True, help=f"Leave {harness.VICTORIA} out.")
@harness.benchmark("Collector", full=THOROUGH, quick=QUICK)
def main(
    report: harness.BenchReport,
    size: CollectorBenchSize,
    directory: Path,
    *,
    numbers: Sequence[int],
    no_store: bool,
) -> None:
    """Measure the collector and print ratios."""
    by_nodes = {fleet.nodes: fleet for fleet in size.fleets}
    chosen = [by_nodes.get(nodes, FleetSize(nodes, 1, 10.0)) for nodes in numbers] or size.fleets
    streams = load.streams_of_a_node(directory)
    load.save(streams, directory / "streams")
    node = load.LoadNodes(streams, 1)
    report.figure(
        "load",
        f"{node.columns:,} columns per node from {len(streams)} sources,"
        f" {node.values_per_turn / load.ROWS:,.0f} values per second, {load.ROWS} s per envelope",
    )
    costs = [fleets.measure(fleet, directory / "streams", directory) for fleet in chosen]
    if not no_store and report.has_program(harness.VICTORIA):
        store = measure_store(streams, size.store_nodes, size.store_turns, directory)
        report.figure(harness.VICTORIA, f"{size.store_nodes} nodes: {store}")
        for cost in costs:
            title = f"CPU per value, {harness.VICTORIA} / collector, {cost.size.nodes} nodes"
            report.ratio(title, store.cpu_per_value * cost.values_per_cpu_second, CPU_RATIO)
    for cost in costs:
        _report_size(report, cost)
    for fewer, more in pairwise(costs):
        added = more.bytes_per_node * more.size.nodes - fewer.bytes_per_node * fewer.size.nodes
        title = f"memory per further node, from {fewer.size.nodes} to {more.size.nodes}"
        report.ratio(title, added / (more.size.nodes - fewer.size.nodes) / _KIB, MEMORY)


def _report_size(report: harness.BenchReport, cost: FleetCost) -> None:
    nodes = f"{cost.size.nodes} nodes"
    report.ratio(f"memory per node, {nodes}", cost.bytes_per_node / _KIB, MEMORY)
    report.ratio(f"acknowledged, p99, {nodes}", cost.p99 * 1e3, ACKNOWLEDGED)
    report.ratio(f"refresh of all views, {nodes}", cost.views_seconds, REFRESH)
    report.ratio(
        f"the first refresh after a flood, {nodes}", cost.first_views_seconds, FIRST_REFRESH
    )
    report.ratio(
        f"CPU to register a node, {nodes}", cost.registration_cpu_per_node * 1e3, REGISTRATION
    )
    report.ratio(
        f"share of a core at the natural period, {nodes}", cost.periodic_share * 100, SHARE
    )
    report.figure(nodes, str(cost))


if __name__ == "__main__":
    main()
