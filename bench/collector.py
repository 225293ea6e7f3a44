"""`python -m bench.collector`: cost of the collector, beside a time-series database."""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import click

from bench import fleets, load, victoria
from bench.fleets import FleetCost, Size
from bench.report import Aim, Report

SIZES = (Size(100, 20, 10.0), Size(1000, 2, 10.0), Size(5000, 1, 10.0))
QUICK_SIZES = (Size(20, 1, 0.5),)
STORE_NODES, STORE_TURNS = 60, 8
QUICK_STORE_NODES, QUICK_STORE_TURNS = 4, 1

CPU_RATIO = Aim(">=", 25)
MEMORY = Aim("<=", 64, " KiB")
ACKNOWLEDGED = Aim("<=", 10, " ms")
_KIB = 1 << 10


@click.command()
@click.option("--quick", is_flag=True, help="Smoke run; its figures are not meaningful.")
def main(*, quick: bool) -> None:
    """Measure the collector and print ratios."""
    report = Report("Collector")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        streams = load.streams_of_a_node(directory)
        load.save(streams, directory / "streams")
        node = load.Nodes(streams, 1)
        report.figure(
            "load", f"{node.columns:,} columns a node in {len(streams)} streams,"
            f" {node.values_a_turn / load.ROWS:,.0f} values a second, {load.ROWS} s an envelope",
        )  # fmt: skip
        costs = [
            fleets.measure(size, directory / "streams", directory)
            for size in (QUICK_SIZES if quick else SIZES)
        ]
        if shutil.which(victoria.PROGRAM):
            nodes, turns = (
                (QUICK_STORE_NODES, QUICK_STORE_TURNS) if quick else (STORE_NODES, STORE_TURNS)
            )
            store = victoria.measure(streams, nodes, turns, directory)
            report.figure("victoria-metrics", f"{nodes} nodes: {store}")
            for cost in costs:
                report.ratio(
                    f"CPU a value, victoria-metrics / collector, {cost.size.nodes} nodes",
                    store.cpu_a_value * cost.values_a_cpu_second, CPU_RATIO,
                )  # fmt: skip
        else:
            report.figure("victoria-metrics", f"{victoria.PROGRAM} is not installed: left out")
    for cost in costs:
        _tell(report, cost)
    for fewer, more in pairwise(costs):
        held = more.bytes_a_node * more.size.nodes - fewer.bytes_a_node * fewer.size.nodes
        report.ratio(
            f"memory a further node, from {fewer.size.nodes} to {more.size.nodes}",
            held / (more.size.nodes - fewer.size.nodes) / _KIB, MEMORY,
        )  # fmt: skip
    click.echo(str(report))


def _tell(report: Report, cost: FleetCost) -> None:
    nodes = f"{cost.size.nodes} nodes"
    report.ratio(f"memory a node, {nodes}", cost.bytes_a_node / _KIB, MEMORY)
    report.ratio(f"acknowledged, p99, {nodes}", cost.p99 * 1e3, ACKNOWLEDGED)
    report.ratio(
        f"refresh of all views / its period, {nodes}", cost.views_seconds / fleets.VIEWS_SECONDS
    )
    report.figure(nodes, str(cost))
    report.figure(
        f"{nodes}, refresh of all views",
        f"{cost.views_seconds * 1e3:.1f} ms, the first after the flood"
        f" {cost.first_views_seconds * 1e3:.1f} ms",
    )


if __name__ == "__main__":
    main()
