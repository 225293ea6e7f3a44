"""`python -m bench.console`: cost of the web console, and of open pages to the acknowledgement of frames.

A fleet with jobs, as in `bench.collector`. Open pages poll as the browser's script does: the content of a page every few
seconds, compressed, with the entity tag of the last answer. Turns of all nodes with and without open pages alternate.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from bench import harness, http_requests, load
from bench.collector_servers import start_collector, wait_for_refreshes
from bench.load_sender import Sender, sending
from railscope_collector.console.page_shell import REFRESH_SECONDS
from railscope_collector.console.page_table import page_path

NODES_PER_JOB, TENANTS = 8, 20
PAGE_BYTES = harness.Aim("<=", 600, " kB")
COLD = harness.Aim("<=", 100, " ms")
ACKNOWLEDGED = harness.Aim("<=", 1.1)
SHARE = harness.Aim("<=", 15, " %")
_NOT_MODIFIED = 304
_KILO, _GZIP_MAGIC = 1e3, b"\x1f\x8b"
_STALE = "86400"
"""Nodes report in the second part only: they are not stale in the first."""


@dataclass(frozen=True, slots=True)
class ConsoleBenchSize:
    """Size of the fleet, and amount of measurement."""

    nodes: int
    repetitions: int
    """Cold requests of each page."""
    pages: int
    """Open pages."""
    rounds: int
    """Turns of all nodes without, and with open pages."""
    period_seconds: float = 10.0
    """Seconds over which a turn is spread."""


THOROUGH = ConsoleBenchSize(1000, repetitions=3, pages=100, rounds=6)
QUICK = ConsoleBenchSize(20, repetitions=1, pages=4, rounds=1, period_seconds=2.0)


@dataclass(frozen=True, slots=True)
class PageCost:
    """Cost of the first request of a page after a refresh of the views, and bytes as sent and as shown."""

    spent: harness.ProcessStopwatch
    sent_bytes: int
    shown_bytes: int

    def __str__(self) -> str:
        return (
            f"{1e3 * self.spent.cpu_seconds:.1f} ({1e3 * self.spent.wall_seconds:.1f}) ms;"
            f" {self.shown_bytes / _KILO:.1f} kB, sent {self.sent_bytes / _KILO:.1f}"
        )


def get_request(path: str, tag: str = "") -> http_requests.Request:
    """Return the request of a browser for a path, with the entity tag that it has."""
    condition = f"If-None-Match: {tag}\r\n" if tag else ""
    head = (
        f"GET {path} HTTP/1.1\r\nHost: {harness.HOST}\r\nAccept: text/html\r\n"
        f"Accept-Encoding: gzip\r\n{condition}\r\n"
    )
    return head.encode(), b""


def fragment(path: str) -> str:
    """Return the URL of the parts of a page that its script requests."""
    return f"{path}{'&' if '?' in path else '?'}fragment=1"


@dataclass(slots=True)
class OpenPages(Sequence[http_requests.Request]):
    """Requests of open pages, each on its own connection; its next one has the entity tag of the last answer."""

    paths: Sequence[str]
    polls: int
    statuses: Counter[int] = field(default_factory=Counter)
    received: int = 0
    latencies: list[float] = field(default_factory=list)
    _tags: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths) * self.polls

    def __getitem__(self, position: Any) -> Any:
        page = position % len(self.paths)
        return get_request(self.paths[page], self._tags.get(page, ""))

    def poll(self, port: int) -> None:
        """Poll with the period of the script, the pages one after the other."""
        seconds = REFRESH_SECONDS * self.polls
        done = http_requests.send_all(
            port, self, len(self.paths), over_seconds=seconds, answer=self._answer
        )
        self.latencies += done.latencies

    def _answer(
        self, connection: http_requests.Connection, position: int, status: int, content: bytes
    ) -> None:
        if status not in {200, _NOT_MODIFIED}:
            message = f"a page failed: {self.paths[position % len(self.paths)]}: status {status}: {content[:200]!r}"
            raise harness.BenchError(message)
        self._tags[position % len(self.paths)] = connection.tag
        self.statuses[status] += 1
        self.received += len(content)


def page_paths(port: int) -> dict[str, str]:
    """Return a path of each page that an operator may read, by its name."""
    node, tenant, job = load.node_name(0), "tenant-0", "job-0"
    documents = json.loads(harness.http_get(port, "/api/v1/jobs"))["rows"]
    source = next((row["source"] for row in documents if row["workload"] == job), "")
    paths = {
        "overview": page_path("overview"),
        "nodes": page_path("nodes"),
        "node": page_path("node", node),
        "gpu": page_path("gpu", node, "0"),
        "rails": page_path("rails"),
        "rail": page_path("rail", "0"),
        "rail_history": page_path("rail_history", "0"),
        "incidents": page_path("incidents"),
        "jobs": page_path("jobs"),
        "job": page_path("job", tenant, source, job),
        "job_history": page_path("job_history", tenant, source, job),
        "tenants": page_path("tenants"),
        "tenant": page_path("tenant", tenant),
        "railscope": page_path("railscope"),
    }
    incidents = json.loads(harness.http_get(port, "/api/v1/incidents")).get("rows", [])
    if incidents:
        paths["incident"] = page_path("incident", incidents[0]["id"])
    return paths


def measure_page(server: harness.ServerProcess, path: str, repetitions: int) -> PageCost:
    """Request a page after refreshes of the views; the request that cost least counts."""
    connection, costs = http_requests.Connection(server.port), []
    for _ in range(repetitions):
        wait_for_refreshes(server, 1)
        with server.measure() as spent:
            status, content = connection.exchange(get_request(path))
        if status != 200:  # noqa: PLR2004 - HTTP's OK
            message = f"a page failed: {path}: status {status}: {content[:200]!r}"
            raise harness.BenchError(message)
        is_packed = content.startswith(_GZIP_MAGIC)
        shown = gzip.decompress(content) if is_packed else content
        costs.append(PageCost(spent, len(content), len(shown)))
    connection.close()
    return min(costs, key=lambda cost: cost.spent.cpu_seconds)


def polled_paths(paths: dict[str, str], size: ConsoleBenchSize) -> list[str]:
    """Return what open pages show: half of them the overview, the others lists, and nodes of their own."""
    lists = [paths[name] for name in ("nodes", "incidents", "rails", "jobs", "railscope")]

    def choose() -> Iterator[str]:
        for number in range(size.pages):
            if number % 2 == 0:
                yield paths["overview"]
            elif number % 4 == 1:
                yield lists[number // 4 % len(lists)]
            else:
                yield page_path("node", load.node_name(number % size.nodes))

    return [fragment(path) for path in choose()]


@dataclass(slots=True)
class TurnsCost:
    """Latencies of acknowledgements and processor time of the collector in some turns."""

    latencies: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0

    def quantile(self, share: float) -> float:
        """Return a quantile of the latencies of all turns."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    @property
    def share_of_core(self) -> float:
        """Processor time of the collector per time."""
        return self.cpu_seconds / self.wall_seconds

    def __str__(self) -> str:
        p50, p99, worst = (1e3 * self.quantile(share) for share in (0.5, 0.99, 1.0))
        by_round = ", ".join(f"{1e3 * each:.1f}" for each in self.p99)
        return (
            f"acknowledged in {p50:.2f} ms (p50), {p99:.1f} (p99; by turn {by_round}), {worst:.0f} (worst);"
            f" {self.share_of_core:.1%} of a core"
        )


def measure_turns(
    server: harness.ServerProcess,
    sender: Sender,
    paths: Sequence[str],
    size: ConsoleBenchSize,
) -> tuple[TurnsCost, TurnsCost, OpenPages]:
    """Send turns with and without open pages, alternately."""
    without, with_pages = TurnsCost(), TurnsCost()
    polls = 1 + round(size.period_seconds / REFRESH_SECONDS)
    pages = OpenPages(paths, polls)
    order = [number % 4 in {1, 2} for number in range(2 * size.rounds)]
    for turn, is_polled in enumerate(order):
        sender.prepare(turn + 2)
        cost = with_pages if is_polled else without
        polling = threading.Thread(target=pages.poll, args=(server.port,), daemon=True)
        if is_polled:
            polling.start()
        time.sleep(
            REFRESH_SECONDS
        )  # all pages are open, and the collector is as idle in the other turns
        with server.measure() as spent:
            sent = sender.send(over_seconds=size.period_seconds)
        if is_polled:
            polling.join()
        cost.latencies += sent.latencies
        cost.p99.append(sent.quantile(0.99))
        cost.cpu_seconds += spent.cpu_seconds
        cost.wall_seconds += spent.wall_seconds
    return without, with_pages, pages


def write_claims(nodes: int, directory: Path) -> Path:
    """Write claims of jobs on all nodes."""
    file = directory / "claims.csv"
    rows = (
        f"tenant-{number // NODES_PER_JOB % TENANTS},{load.node_name(number)},2020-01-01T00:00:00Z,,"
        f"job-{number // NODES_PER_JOB},"
        for number in range(nodes)
    )
    file.write_text("\n".join(["tenant,gpu,from,to,workload,share", *rows, ""]), encoding="ascii")
    return file


@click.option("--nodes", type=int, help="Number of nodes.")
@harness.benchmark("Console", full=THOROUGH, quick=QUICK)
def main(
    report: harness.BenchReport, size: ConsoleBenchSize, directory: Path, *, nodes: int | None
) -> None:
    """Measure the web console and print ratios."""
    nodes = nodes or size.nodes
    fleet = load.Load.of_agent(directory, nodes).on_rails()
    settings = {"CLAIMS_FILE": str(write_claims(nodes, directory)), "STALE_SECONDS": _STALE}
    with (
        start_collector(nodes, directory, **settings) as server,
        sending(fleet, server) as sender,
    ):
        for turn in range(2):
            sender.send_turn(turn)
        wait_for_refreshes(server, 2)
        paths = page_paths(server.port)
        costs = {name: measure_page(server, path, size.repetitions) for name, path in paths.items()}
        without, with_pages, pages = measure_turns(server, sender, polled_paths(paths, size), size)
    largest, slowest = (
        max(cost.shown_bytes for cost in costs.values()),
        max(cost.spent.cpu_seconds for cost in costs.values()),
    )
    report.ratio(f"largest page, {nodes} nodes", largest / _KILO, PAGE_BYTES)
    report.ratio("most expensive page, first request after a refresh", 1e3 * slowest, COLD)
    for title, compared in (
        ("p99 (median of turns)", [statistics.median(cost.p99) for cost in (with_pages, without)]),
        ("p50", [cost.quantile(0.5) for cost in (with_pages, without)]),
    ):
        name = f"acknowledged, {title}, with {size.pages} open pages / without"
        report.ratio(name, compared[0] / compared[1], ACKNOWLEDGED)
    added = 100 * (with_pages.share_of_core - without.share_of_core)
    report.ratio(f"processor time for {size.pages} open pages, of a core", added, SHARE)
    report.figure("pages", "processor time (and time) of the first request after a refresh")
    for name, cost in costs.items():
        report.figure(name, str(cost))
    report.figure(
        "load average of the machine", ", ".join(f"{each:.1f}" for each in os.getloadavg())
    )
    report.figure("turns without open pages", str(without))
    report.figure(f"turns with {size.pages} open pages", str(with_pages))
    count, ordered = pages.statuses.total(), sorted(pages.latencies)
    report.figure(
        "polls",
        f"{count}, {pages.statuses[_NOT_MODIFIED] / count:.0%} not modified, {pages.received / count / _KILO:.1f} kB each,"
        f" {1e3 * ordered[count // 2]:.1f} ms (p50), {1e3 * ordered[count * 99 // 100]:.0f} (p99)",
    )


if __name__ == "__main__":
    main()
