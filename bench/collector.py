"""`python -m bench.collector`: cost of the collector by number of nodes, with and without the diagnosis."""

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
import psutil

from bench import harness, load
from bench.collector_servers import start_collector, wait_for_refreshes
from bench.load import Load
from bench.load_sender import Sender, sending

DIAGNOSIS_TURNS = 4


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


FLEETS = (FleetSize(100, 20, 10.0), FleetSize(1000, 2, 10.0), FleetSize(5000, 1, 10.0))
QUICK = (FleetSize(20, 1, 0.5),)

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
@harness.benchmark("Collector", full=FLEETS, quick=QUICK)
def main(
    report: harness.BenchReport,
    fleets: Sequence[FleetSize],
    directory: Path,
    *,
    numbers: Sequence[int],
) -> None:
    """Measure the collector and print ratios."""
    by_nodes = {fleet.nodes: fleet for fleet in fleets}
    chosen = [by_nodes.get(nodes, FleetSize(nodes, 1, 10.0)) for nodes in numbers] or fleets
    node = Load.of_agent(directory)
    report.figure(
        "load",
        f"{node.columns:,} columns per node from {len(node.sources)} sources,"
        f" {node.values_per_turn / load.ROWS:,.0f} values per second, {load.ROWS} s per envelope",
    )
    costs = [measure_fleet(node, fleet, directory) for fleet in chosen]
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
