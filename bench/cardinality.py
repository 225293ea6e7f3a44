"""`python -m bench.cardinality`: what a fleet costs, by detail of the metrics and number of nodes.

Nodes have 8 GPUs and 10 NICs. A real Prometheus receives an hour of scrapes of some nodes, and scrapes some
nodes every second; a real agent ships to a sink; a real collector receives frames of some nodes. Costs of
larger fleets are multiples of the cost of a node.
"""

from __future__ import annotations

import gzip
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import yaml

from bench import agent_costs, cluster_scrapes, harness, host_files, query_database
from bench.cluster_scrapes import SCRAPE_SECONDS, SeriesWriter
from bench.collector import FleetCost, FleetSize, measure_fleet
from bench.load import Load
from railscope.catalog import METRICS
from railscope.catalog.declare import BASIC, FULL, STANDARD, MetricDetail

FLEETS = (1, 10, 100, 1_000, 10_000)
SERIES = {
    BASIC: harness.Aim("<=", 1500),
    STANDARD: harness.Aim("<=", 3500),
    FULL: harness.Aim("<=", 9000),
}
"""Goals: series of a node by detail."""
PAGE = Path(__file__).parents[1] / "docs" / "sizing.md"
_BEGIN, _END = "<!-- figures -->", "<!-- end of figures -->"
DAY_SECONDS = 86_400
SNAPSHOT = "/api/v1/admin/tsdb/snapshot"
_GZIP_LEVEL = 1
"""Compression level of the agent's responses."""
_LEAD_SECONDS = 900
_RDMA_DEVICES, _ANSWER_SECONDS, _SETTLE_SECONDS = 10, 60, 6
_VALUES = 3_000
_GB, _MB = 1e9, 1e6


@dataclass(frozen=True, slots=True)
class CardinalitySize:
    """Number of nodes by detail, of scrapes of each, and durations."""

    nodes: dict[MetricDetail, int]
    scrapes: int
    scraped_seconds: float
    agent_seconds: float
    push_seconds: float
    fleet: FleetSize


FULL_SIZE = CardinalitySize(
    {BASIC: 100, STANDARD: 40, FULL: 20}, 240, 15, 20, 5, FleetSize(300, 1, 10.0)
)
QUICK_SIZE = CardinalitySize({BASIC: 2, STANDARD: 1, FULL: 1}, 8, 3, 2, 0.5, FleetSize(5, 1, 0.5))


@dataclass(frozen=True, slots=True)
class PrometheusCost:
    """Cost of the metrics of a node for Prometheus."""

    series: int
    memory: float
    """Resident memory in bytes."""
    disk: float
    """Bytes per day of a block."""
    cpu: float
    """Share of a core."""
    network: float
    """Bytes per second, compressed."""

    def row(self, detail: MetricDetail, fleet: int) -> str:
        """Return the row of a fleet in the table."""
        return _row(
            f"`{detail}`",
            f"{fleet:,}",
            f"{self.series * fleet:,}",
            _amount(self.memory * fleet / _GB, "GB"),
            _amount(self.disk * fleet / _GB, "GB"),
            _amount(self.network * fleet / _MB, "MB/s"),
            _amount(self.cpu * fleet, "cores"),
        )


@dataclass(frozen=True, slots=True)
class OwnCost:
    """Cost of the programs of Railscope for a node."""

    agent: agent_costs.TickCost
    agent_memory: int
    """Resident bytes of an agent that reads as many values from files: the other contains the benchmark."""
    collector: FleetCost

    def row(self, fleet: int) -> str:
        """Return the row of a fleet in the table."""
        agent, received = self.agent, self.collector
        sent = agent.wire_bytes_per_value * agent.values_per_tick
        return _row(
            f"{fleet:,}",
            _amount(agent.share_of_core, "cores"),
            _amount(self.agent_memory / _MB, "MB"),
            _amount(sent * fleet / _MB, "MB/s"),
            _amount(received.periodic_share / received.size.nodes * fleet, "cores"),
            _amount(received.bytes_per_node * fleet / _GB, "GB"),
        )


@click.option("--write", "is_written", is_flag=True, help="Write the tables to docs/sizing.md.")
@harness.benchmark("Cost of a fleet, by detail", full=FULL_SIZE, quick=QUICK_SIZE, on_disk=True)
def main(
    report: harness.BenchReport, size: CardinalitySize, directory: Path, *, is_written: bool
) -> None:
    """Measure a real Prometheus with the metrics of nodes by detail, an agent and a collector."""
    if not report.has_program(query_database.PROMETHEUS):
        return
    lines = [
        _row("detail", "nodes", "series", "memory", "disk per day", "network", "processor time"),
        _row(*["---"] * 7),
    ]
    for detail in size.nodes:
        scrapes = cluster_scrapes.agent_scrapes(cluster_scrapes.NODE, 4, detail)
        page = scrapes[-1]
        series = sum(not line.startswith("#") for line in page.splitlines())
        report.ratio(f"series of a node, {detail}", series, SERIES[detail])
        packed = len(gzip.compress(page.encode(), _GZIP_LEVEL))
        report.figure(
            f"{detail}: a scrape", f"{len(page) / 1e3:.0f} kB, {packed / 1e3:.0f} kB compressed"
        )
        (directory / detail).mkdir()
        cost = measure_prometheus(scrapes, detail, size, directory / detail)
        lines += [cost.row(detail, fleet) for fleet in FLEETS]
    costs = measure_own(size, directory)
    report.figure("agent", str(costs.agent))
    report.figure("collector", str(costs.collector))
    lines += [
        "",
        _row(
            "nodes",
            "agent: processor time of each",
            "memory of each",
            "network to the collector",
            "collector: processor time",
            "memory",
        ),
        _row(*["---"] * 6),
        *(costs.row(fleet) for fleet in FLEETS),
    ]
    text = "\n".join(lines)
    click.echo(text)
    if is_written:
        write_figures(text)


def write_figures(text: str) -> None:
    """Replace the tables of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}", encoding="utf-8")


def measure_prometheus(
    scrapes: list[str], detail: MetricDetail, size: CardinalitySize, directory: Path
) -> PrometheusCost:
    """Write scrapes of some nodes into a Prometheus, measure its memory and its block; have it scrape."""
    nodes, count = size.nodes[detail], size.scrapes
    loop = cluster_scrapes.loop_of(scrapes, sample_names())
    pages = cluster_scrapes.ClusterScrapes([loop], [loop], loop)
    with query_database.prometheus(directory) as server:
        running = query_database.QueryDatabase(server)
        empty, own_series = server.memory().resident, running.series()
        writer = SeriesWriter(time.time() + _LEAD_SECONDS, count)
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
    packed = gzip.compress(scrapes[-1].encode(), _GZIP_LEVEL)
    (directory / "scraping").mkdir()
    return PrometheusCost(
        round(series / nodes),
        (resident - empty) / nodes,
        written / nodes / days,
        scrape_seconds(packed, min(nodes, 10), size.scraped_seconds, directory / "scraping")
        / SCRAPE_SECONDS,
        len(packed) / SCRAPE_SECONDS,
    )


def scrape_seconds(packed: bytes, nodes: int, seconds: float, directory: Path) -> float:
    """Return the processor seconds that a Prometheus takes to scrape and store the metrics of a node."""
    with (
        harness.serving(_handler(packed)) as address,
        query_database.prometheus(directory) as server,
    ):
        job = {
            "job_name": "nodes",
            "scrape_interval": "1s",
            "static_configs": [
                {"targets": [address], "labels": {"__metrics_path__": f"/{n}", "node": f"node-{n}"}}
                for n in range(nodes)
            ],
        }
        settings = yaml.safe_dump({"scrape_configs": [job]})
        with server.measure() as idle:
            time.sleep(seconds / 3)
        (directory / "prometheus.yml").write_text(settings, encoding="ascii")
        harness.http_get(server.port, "/-/reload", "POST")
        time.sleep(2)  # the first scrapes create the series
        with server.measure() as spent:
            time.sleep(seconds)
        return max(spent.share_of_core - idle.share_of_core, 0.0) / nodes


def _handler(packed: bytes) -> type[harness.QuietHandler]:
    """Return a handler that sends compressed metrics under every path."""

    class ScrapeHandler(harness.QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(packed)))
            self.end_headers()
            with suppress(ConnectionError):  # Prometheus is stopped during a scrape
                self.wfile.write(packed)

    return ScrapeHandler


def measure_own(size: CardinalitySize, directory: Path) -> OwnCost:
    """Measure an agent at its default periods, and a collector at the natural period of its nodes."""
    answers = directory / "answers.msgpack"
    host_files.write_answers(answers, _ANSWER_SECONDS)
    times = size.agent_seconds, _SETTLE_SECONDS, size.push_seconds
    with host_files.memory_directory() as trees:
        tree, files = trees / "tree", trees / "files"
        moving = host_files.write_tree(tree, _RDMA_DEVICES)
        counted = host_files.write_tree(files, _VALUES // host_files.VALUES_PER_PORT)
        agent, reader = (
            agent_costs.measure_ticks(
                agent_costs.TickPlan(root, directory, moved, 1.0, *times, answers_path)
            )
            for root, moved, answers_path in ((tree, moving, answers), (files, counted, None))
        )
    received = measure_fleet(Load.of_agent(directory), size.fleet, directory)
    return OwnCost(agent, reader.memory.resident, received)


def sample_names() -> frozenset[str]:
    """Return the names of all samples of metrics endpoints."""
    suffixes = ("", "_bucket", "_sum", "_count")
    return frozenset(name + suffix for name in METRICS for suffix in suffixes)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _amount(value: float, unit: str) -> str:
    """Format an amount with two significant digits."""
    return f"{float(f'{value:.2g}'):,g} {unit}"


if __name__ == "__main__":
    main()
