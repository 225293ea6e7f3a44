"""`python -m bench.cardinality`: cost of the metrics endpoint for a real Prometheus, by detail and fleet size.

Nodes have 8 GPUs and 10 NICs. Prometheus receives an hour of scrapes of some nodes; memory and disk of larger
fleets are multiples of what it needed for a series and for a sample beyond what it needs when empty.
"""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path

from bench import cluster_scrapes, harness, query_database
from bench.cluster_scrapes import SCRAPE_SECONDS, SeriesWriter
from railscope.catalog import METRICS
from railscope.catalog.declare import BASIC, FULL, STANDARD, MetricDetail

FLEETS = (1, 10, 100, 1_000, 10_000)
SERIES = {
    BASIC: harness.Aim("<=", 1500),
    STANDARD: harness.Aim("<=", 3500),
    FULL: harness.Aim("<=", 9000),
}
"""Goals: series of a node by detail."""
DAY_SECONDS = 86_400
SNAPSHOT = "/api/v1/admin/tsdb/snapshot"
_GZIP_LEVEL = 1
"""As the agent compresses its responses."""
_LEAD_SECONDS = 900


@dataclass(frozen=True, slots=True)
class CardinalitySize:
    """Number of nodes by detail, and of scrapes of each."""

    nodes: dict[MetricDetail, int]
    scrapes: int


FULL_SIZE = CardinalitySize({BASIC: 100, STANDARD: 40, FULL: 20}, 240)
QUICK_SIZE = CardinalitySize({BASIC: 2, STANDARD: 1, FULL: 1}, 8)


@dataclass(frozen=True, slots=True)
class PrometheusCost:
    """Cost of the metrics of a node for Prometheus."""

    series: int
    memory: float
    """Resident bytes."""
    disk: float
    """Bytes per day of a block."""


@harness.benchmark(
    "Series, bytes, memory and disk by detail", full=FULL_SIZE, quick=QUICK_SIZE, on_disk=True
)
def main(report: harness.BenchReport, size: CardinalitySize, directory: Path) -> None:
    """Measure a real Prometheus with the metrics of nodes, by detail."""
    if not report.has_program(query_database.PROMETHEUS):
        return
    for detail, nodes in size.nodes.items():
        scrapes = cluster_scrapes.agent_scrapes(cluster_scrapes.NODE, 4, detail)
        page = scrapes[-1]
        series = sum(not line.startswith("#") for line in page.splitlines())
        report.ratio(f"series of a node, {detail}", series, SERIES[detail])
        packed = len(gzip.compress(page.encode(), _GZIP_LEVEL))
        report.figure(
            f"{detail}: a scrape", f"{len(page) / 1e3:.0f} kB, {packed / 1e3:.0f} kB compressed"
        )
        (directory / detail).mkdir()
        cost = measure(scrapes, nodes, size.scrapes, directory / detail)
        for fleet in FLEETS:
            report.figure(f"{detail}: {fleet:,} nodes", describe(cost, packed, fleet))


def measure(scrapes: list[str], nodes: int, count: int, directory: Path) -> PrometheusCost:
    """Write scrapes of some nodes into a Prometheus, and measure its memory and its block."""
    loop = cluster_scrapes.loop_of(scrapes, sample_names())
    pages = cluster_scrapes.ClusterScrapes([loop], [loop], loop)
    with query_database.prometheus(directory) as server:
        running = query_database.QueryDatabase(server)
        empty, own_series = server.memory().resident, running.series()
        writer = SeriesWriter(query_database.WRITE, time.time() + _LEAD_SECONDS, count)
        for number in range(nodes):
            running.write(writer.of_node(pages, number))
        resident, series = server.memory().resident, running.series() - own_series
        answer = json.loads(harness.http_get(server.port, SNAPSHOT, "POST"))
    if answer["status"] != "success":
        message = f"the snapshot failed: {answer}"
        raise harness.BenchError(message)
    blocks = (directory / "prometheus" / "snapshots" / answer["data"]["name"]).rglob("*")
    written = sum(path.stat().st_size for path in blocks if path.is_file())
    days = count * SCRAPE_SECONDS / DAY_SECONDS
    return PrometheusCost(round(series / nodes), (resident - empty) / nodes, written / nodes / days)


def sample_names() -> frozenset[str]:
    """Return the names of all samples of metrics endpoints."""
    suffixes = ("", "_bucket", "_sum", "_count")
    return frozenset(name + suffix for name in METRICS for suffix in suffixes)


def describe(cost: PrometheusCost, packed: int, fleet: int) -> str:
    """Describe the cost of a fleet."""
    network = packed * fleet / SCRAPE_SECONDS
    return (
        f"{cost.series * fleet:,} series, {cost.memory * fleet / 1e9:.2f} GB of memory,"
        f" {cost.disk * fleet / 1e9:.2f} GB of disk per day, {network / 1e6:.2f} MB/s"
    )


if __name__ == "__main__":
    main()
