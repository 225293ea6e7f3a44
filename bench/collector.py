"""`python -m bench.collector`: cost of the collector by number of nodes.

Nodes with 8 GPUs and 10 NICs report as agents do by default: an envelope every five seconds, over a connection of their own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import click
import psutil

from bench import harness, load
from bench.collector_process import (
    newest_refresh,
    read_loop_times,
    start_collector,
    wait_for_refreshes,
)
from bench.load import ENVELOPE_SECONDS
from bench.load_sender import sending

NODES, QUICK_NODES = (300, 1000), (20,)
TURNS, QUICK_TURNS = 6, 1

MEMORY = harness.Aim("<=", 70, " KiB")
ACKNOWLEDGED = harness.Aim("<=", 10, " ms")
LOOP_P50 = harness.Aim("<=", 0.8, " ms")
LOOP_P99 = harness.Aim("<=", 2, " ms")
REFRESH = harness.Aim("<=", 0.5, " s")
FIRST_REFRESH = harness.Aim("<=", 1, " s")
REGISTRATION = harness.Aim("<=", 4, " ms")
SHARE = harness.Aim("<=", 35, " %")
_KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class FleetCost:
    """Measured cost of one number of nodes; times in seconds."""

    nodes: int
    added_bytes: int
    """Memory from the start to the end, with what does not grow with the nodes."""
    registration_cpu: float
    """Processor time of all registrations."""
    first_refresh: float
    """Refresh of the views of nodes that have just registered."""
    refresh: float
    share_of_core: float
    latencies: list[float]
    lateness: list[float]
    loop_times: list[float]
    wire_bytes_per_node: float
    """Of one envelope."""
    diagnosis: str


def measure_fleet(nodes: int, capture: Path, turns: int, directory: Path) -> FleetCost:
    """Register nodes, then let them report for some turns."""
    with (
        start_collector(nodes, directory) as server,
        sending(capture, nodes, server) as sender,
    ):
        wait_for_refreshes(server, 1)
        empty = server.resident_bytes()
        with server.measure() as registration:
            sender.send()
        first_refresh = max(wait_for_refreshes(server, 2))
        # Registration takes long: one turn that does not count, so that no node was stale recently.
        sender.send(ENVELOPE_SECONDS)
        (diagnosis,) = psutil.Process(server.pid).children()
        diagnosed, begin = sum(diagnosis.cpu_times()[:2]), time.monotonic()
        sent, refreshes = [], []
        with server.measure() as spent:
            for _ in range(turns):
                sent.append(sender.send(ENVELOPE_SECONDS))
                refreshes.append(newest_refresh(server))
        end = time.monotonic()
        diagnosed = sum(diagnosis.cpu_times()[:2]) - diagnosed
        diagnosis_bytes = diagnosis.memory_info().rss
        full = server.resident_bytes()
    return FleetCost(
        nodes,
        added_bytes=full - empty,
        registration_cpu=registration.cpu_seconds,
        first_refresh=first_refresh,
        refresh=statistics.median(refreshes),
        share_of_core=spent.share_of_core,
        latencies=sorted(chain.from_iterable(each.latencies for each in sent)),
        lateness=sorted(chain.from_iterable(each.lateness for each in sent)),
        loop_times=read_loop_times(nodes, directory, begin, end),
        wire_bytes_per_node=sum(each.bytes for each in sent) / nodes / turns,
        diagnosis=f"{diagnosed / (end - begin):.1%} of a core, {harness.mebibytes(diagnosis_bytes)}",
    )


@click.command()
@harness.is_quick_option
@click.option("--nodes", "only", type=int, help="Measure only this number of nodes.")
def main(*, is_quick: bool, only: int | None) -> None:
    """Measure the collector and print ratios."""
    numbers = (only,) if only else QUICK_NODES if is_quick else NODES
    turns = QUICK_TURNS if is_quick else TURNS
    with harness.reporting("Collector") as (report, directory):
        capture = directory / load.SPEC.node
        load.write_node(capture, ENVELOPE_SECONDS * (2 + turns))
        frames = load.NodeFrames(capture, ENVELOPE_SECONDS)
        columns = sum(each.width for each in frames.schemas.values())
        values = statistics.mean(
            sum(batch.rows * frames.schemas[batch.schema].width for batch in each.batches)
            for each in frames.envelopes[1:]
        )
        report.figure(
            "load",
            f"{columns:,} columns per node, {values / ENVELOPE_SECONDS:,.0f} values per second,"
            f" {ENVELOPE_SECONDS} s per envelope",
        )
        costs = [measure_fleet(nodes, capture, turns, directory) for nodes in numbers]
        for cost in costs:
            _report(report, cost, values)
        for fewer, more in pairwise(costs):
            added = (more.added_bytes - fewer.added_bytes) / (more.nodes - fewer.nodes)
            title = f"memory per further node, from {fewer.nodes} to {more.nodes}"
            report.ratio(title, added / _KIB, MEMORY)


def _report(report: harness.BenchReport, cost: FleetCost, values_per_turn: float) -> None:
    nodes = f"{cost.nodes} nodes"
    report.ratio(f"loop time of a request, p50, {nodes}", _ms(cost.loop_times, 0.5), LOOP_P50)
    report.ratio(f"loop time of a request, p99, {nodes}", _ms(cost.loop_times, 0.99), LOOP_P99)
    report.ratio(f"acknowledged, p99, {nodes}", _ms(cost.latencies, 0.99), ACKNOWLEDGED)
    report.ratio(f"share of a core, {nodes}", cost.share_of_core * 100, SHARE)
    report.ratio(f"refresh of all views, {nodes}", cost.refresh, REFRESH)
    report.ratio(f"first refresh after registrations, {nodes}", cost.first_refresh, FIRST_REFRESH)
    registration = cost.registration_cpu / cost.nodes * 1e3
    report.ratio(f"CPU to register a node, {nodes}", registration, REGISTRATION)
    report.ratio(f"memory per node, {nodes}", cost.added_bytes / cost.nodes / _KIB, MEMORY)
    report.figure(f"loop time of a request, {nodes}", _quantiles(cost.loop_times))
    report.figure(f"acknowledged, {nodes}", _quantiles(cost.latencies))
    report.figure(f"lateness of the sender, not in these, {nodes}", _quantiles(cost.lateness))
    wire = cost.wire_bytes_per_node
    text = f"{wire / 1e3:.1f} kB per envelope, {wire / values_per_turn:.2f} bytes per value"
    report.figure(f"network, {nodes}", text)
    report.figure(f"process of the diagnosis, {nodes}", cost.diagnosis)


def _ms(seconds: Sequence[float], share: float) -> float:
    """Return a quantile of times in ascending order, in milliseconds."""
    return seconds[min(len(seconds) - 1, int(len(seconds) * share))] * 1e3


def _quantiles(seconds: Sequence[float]) -> str:
    p50, p90, p99, worst = (_ms(seconds, share) for share in (0.5, 0.9, 0.99, 1.0))
    return f"{p50:.2f} ms (p50), {p90:.2f} (p90), {p99:.2f} (p99), {worst:.2f} (worst)"


if __name__ == "__main__":
    main()
