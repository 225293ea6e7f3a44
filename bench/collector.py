"""`python -m bench.collector`: cost of the collector, compared with a time-series database.

The same values are written to VictoriaMetrics by its fastest way: Prometheus' remote write. It
receives every series once before the measurement starts, so that building its index does not count.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import psutil

from bench import harness, http_requests, load, remote_write
from bench.collector_servers import start_collector, wait_for_refreshes
from bench.http_requests import Request
from bench.load import Load
from bench.load_sender import Sender, sending
from railscope.catalog import KINDS, METRICS
from railscope.timestamps import SECOND_NS

FLUSH = "/internal/force_flush"
STORE_CONNECTIONS = 4
DIAGNOSIS_TURNS = 4
_MAX_WAITS, _IDLE_SHARE = 15, 0.03
_MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class FleetSize:
    """Number of nodes, and amount of data that each sends."""

    nodes: int
    turns: int
    """Turns sent as fast as they are acknowledged."""

    period_seconds: float
    """Seconds over which one more turn is spread; ten seconds is the natural period."""


@dataclass(frozen=True, slots=True)
class FleetCost:
    """Measured cost of one size."""

    size: FleetSize
    values: int
    cpu_seconds: float
    wall_seconds: float
    first_views_seconds: float
    """Seconds of the refresh that computes everything again, after the flood."""
    views_seconds: float
    """Seconds of the later refreshes."""
    bytes_per_node: float
    p50: float
    p99: float
    worst: float
    periodic_share: float
    wire_bytes_per_value: float
    registration_cpu_per_node: float
    reconnections: int

    @property
    def values_per_cpu_second(self) -> float:
        """Values per CPU second, from receipt until durable, acknowledged and in the views."""
        return self.values / self.cpu_seconds

    def __str__(self) -> str:
        return (
            f"{self.values_per_cpu_second / 1e6:.1f} M values per CPU second"
            f" ({self.cpu_seconds / self.values * 1e9:.1f} ns each),"
            f" {self.values / self.wall_seconds / 1e6:.1f} M values/s wall time,"
            f" {self.wire_bytes_per_value:.2f} bytes per value; at the natural period"
            f" {self.periodic_share:.1%} of a core, acknowledged in {self.p50 * 1e3:.1f} ms (p50),"
            f" {self.p99 * 1e3:.1f} (p99), {self.worst * 1e3:.1f} (worst);"
            f" {self.registration_cpu_per_node * 1e3:.1f} ms CPU to register a node;"
            f" {self.reconnections} reconnections"
        )


def measure_fleet(fleet: Load, size: FleetSize, directory: Path) -> FleetCost:
    """Register nodes, flood, wait for the views, then continue at the natural period."""
    fleet = fleet.of_nodes(size.nodes)
    with start_collector(size.nodes, directory) as server, sending(fleet, server) as sender:
        wait_for_refreshes(server, 1)
        empty = server.memory().resident
        sender.prepare(0)
        with server.measure() as registration:
            sender.send()
        prepared = sender.prepare(1, 1 + size.turns)
        # Registration takes long: one turn and the views after it, so that no node was stale recently.
        sender.send(turns=1)
        wait_for_refreshes(server, 2)
        with server.measure() as flooding:
            flood = sender.send()
            os.sync()
        refreshes = wait_for_refreshes(server, 5)
        first, views = max(refreshes), statistics.median(refreshes[-3:])
        sender.prepare(2 + size.turns)
        with server.measure() as spent:
            periodic = sender.send(over_seconds=size.period_seconds)
        full = server.memory().resident
    a_turn = flooding.cpu_seconds / size.turns
    return FleetCost(
        size,
        values=flood.values,
        cpu_seconds=flooding.cpu_seconds,
        wall_seconds=flood.seconds,
        first_views_seconds=first,
        views_seconds=views,
        bytes_per_node=(full - empty) / size.nodes,
        p50=periodic.quantile(0.5),
        p99=periodic.quantile(0.99),
        worst=periodic.quantile(1.0),
        periodic_share=spent.cpu_seconds / periodic.seconds,
        wire_bytes_per_value=prepared.bytes_per_value,
        registration_cpu_per_node=max(0.0, registration.cpu_seconds - a_turn) / size.nodes,
        reconnections=sender.reconnections,
    )


@dataclass(frozen=True, slots=True)
class DiagnosisCost:
    """Cost of the process of the diagnosis, and acknowledgements with and without it."""

    size: FleetSize
    with_p99: float
    without_p99: float
    """Medians of the turns."""
    cores: float
    resident_bytes: int

    def __str__(self) -> str:
        return (
            f"acknowledged in {self.with_p99 * 1e3:.1f} ms (p99) with the diagnosis, {self.without_p99 * 1e3:.1f} without;"
            f" its process takes {self.cores:.1%} of a core and {self.resident_bytes / (1 << 20):.0f} MiB"
        )


def measure_diagnosis(fleet: Load, size: FleetSize, directory: Path) -> DiagnosisCost:
    """Send turns at the natural period, alternately to a collector with the diagnosis and to one without."""
    fleet = fleet.of_nodes(size.nodes)
    quantiles: dict[bool, list[float]] = {True: [], False: []}
    with ExitStack() as stack:
        senders, servers = dict[bool, Sender](), dict[bool, harness.ServerProcess]()
        for is_enabled in quantiles:
            place = directory / f"diagnosis-{str(is_enabled).lower()}"
            place.mkdir()
            setting = {"DIAGNOSIS__ENABLED": str(is_enabled).lower()}
            server = stack.enter_context(start_collector(size.nodes, place, **setting))
            senders[is_enabled] = stack.enter_context(sending(fleet, server))
            senders[is_enabled].send_turn(0)
            servers[is_enabled] = server
        (child,) = psutil.Process(servers[True].pid).children()
        started, spent = time.monotonic(), sum(child.cpu_times()[:2])
        for turn in range(1, 1 + DIAGNOSIS_TURNS):
            for is_enabled, sender in senders.items():
                sender.prepare(turn)
                sent = sender.send(over_seconds=size.period_seconds)
                quantiles[is_enabled].append(sent.quantile(0.99))
        cores = (sum(child.cpu_times()[:2]) - spent) / (time.monotonic() - started)
        resident_bytes = child.memory_info().rss
    with_p99, without_p99 = (statistics.median(quantiles[each]) for each in (True, False))
    return DiagnosisCost(size, with_p99, without_p99, cores, resident_bytes)


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


def measure_store(fleet: Load, turns: int, directory: Path) -> StoreCost:
    """Write some turns of some nodes; its later merges, until it is idle, count too."""
    prefixes = [_prefixes(fleet, number) for number in range(fleet.nodes)]
    with harness.start_victoria(directory) as server:
        http_requests.send_all(server.port, _requests(fleet, prefixes, 0), STORE_CONNECTIONS)
        harness.http_get(server.port, FLUSH)
        _wait_until_idle(server)
        requests = [r for turn in range(1, turns + 1) for r in _requests(fleet, prefixes, turn)]
        with server.measure() as whole:
            with server.measure() as writing:
                http_requests.send_all(server.port, requests, STORE_CONNECTIONS)
                harness.http_get(server.port, FLUSH)
            _wait_until_idle(server)
        inserted = _inserted_rows(server.port)
    values = fleet.values_per_turn * fleet.nodes * turns
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


def _requests(fleet: Load, prefixes: Sequence[list[bytes]], turn: int) -> list[Request]:
    variants = [_samples(fleet, variant, turn) for variant in range(load.VARIANTS)]
    requests = []
    for number, node_prefixes in enumerate(prefixes):
        samples = variants[number % len(variants)]
        parts = (p + s for p, s in zip(node_prefixes, samples, strict=True))
        requests.append(remote_write.encode_request(parts))
    return requests


def _samples(fleet: Load, variant: int, turn: int) -> list[bytes]:
    """Encode the samples of every column."""
    now_ns = time.time_ns() // SECOND_NS * SECOND_NS
    times = remote_write.encode_timestamps(
        (now_ns + (turn * load.ROWS + row) * SECOND_NS) // _MILLISECOND for row in range(load.ROWS)
    )
    samples = []
    for source in range(len(fleet.sources)):
        rows = fleet.rows(source, variant, turn)
        timestamps = times[:: -(load.ROWS // len(rows))][: len(rows)][::-1]
        block = remote_write.encode_samples(rows.T.astype(np.float64), timestamps)
        data, size = block.tobytes(), block.itemsize * len(rows)
        samples += [data[i : i + size] for i in range(0, len(data), size)]
    return samples


def _prefixes(fleet: Load, number: int) -> list[bytes]:
    """Return the bytes before the samples of every column of a node: size and labels."""
    label = remote_write.encode_label
    node = label("instance", load.node_name(number))
    prefixes = []
    for source in fleet.sources:
        schema = load.of_node(source.schema, number)
        entities = [
            node + b"".join(map(label, KINDS[e.kind].labels, e.key)) for e in schema.entities
        ]
        for group in schema.groups:
            metric = label("__name__", METRICS[group.metric].name)
            for member in group.entities:
                size = remote_write.SAMPLE.itemsize * source.rows
                prefixes.append(remote_write.encode_series_head(metric + entities[member], size))
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
DIAGNOSED = harness.Aim("<=", 1.1)
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
    node = Load.of_agent(directory)
    report.figure(
        "load",
        f"{node.columns:,} columns per node from {len(node.sources)} sources,"
        f" {node.values_per_turn / load.ROWS:,.0f} values per second, {load.ROWS} s per envelope",
    )
    costs = [measure_fleet(node, fleet, directory) for fleet in chosen]
    if not no_store and report.has_program(harness.VICTORIA):
        store = measure_store(node.of_nodes(size.store_nodes), size.store_turns, directory)
        report.figure(harness.VICTORIA, f"{size.store_nodes} nodes: {store}")
        for cost in costs:
            title = f"CPU per value, {harness.VICTORIA} / collector, {cost.size.nodes} nodes"
            report.ratio(title, store.cpu_per_value * cost.values_per_cpu_second, CPU_RATIO)
    for cost in costs:
        _report_size(report, cost)
    middle = next((each for each in chosen if each.nodes == 1000), chosen[0])  # noqa: PLR2004 - see above
    diagnosed = measure_diagnosis(node, middle, directory)
    title = f"acknowledged, p99 (median of turns), with diagnosis / without, {middle.nodes} nodes"
    report.ratio(title, diagnosed.with_p99 / diagnosed.without_p99, DIAGNOSED)
    report.figure(f"diagnosis, {middle.nodes} nodes", str(diagnosed))
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
