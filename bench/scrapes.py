"""The cost of a live scrape: our agent, node_exporter and a plain exporter on one tree.

"Live" means that every scrape contains values that were read after the previous scrape.
node_exporter and the plain exporter read during a scrape. Our agent reads on its own clock, so its
period is set to the time between two scrapes; its metrics report the number of reads, and all of
that processor time is counted. A scrape of our agent takes less time than a read of all files, so
consecutive scrapes and consecutive reads are measured separately and added.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from bench.processes import HOST, BenchError, Server, free_port

NODE_EXPORTER = "prometheus-node-exporter"
SHORTEST_PERIOD = 0.02
"""The shortest period that the agent's settings allow; below it, `bench.node` runs the same agent."""
AT_ONCE = 0.001
"""A period shorter than any read: reads follow each other without a pause."""
WARM_UP = 20
REPEATS = 3
_READS = re.compile(r'railscope_source_reads_total\{source="rdma"\} (\d+)')


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time per scrape, as the median of the repeats."""

    cpu_seconds: float
    series: int
    page_bytes: int
    scrapes_a_second: float
    reads_a_scrape: float = 1.0

    @property
    def cpu_a_series(self) -> float:
        """Processor time per series, the operand of ratios."""
        return self.cpu_seconds / self.series

    def __str__(self) -> str:
        return (
            f"{self.cpu_seconds * 1e3:.3f} ms CPU a scrape, {self.series} series,"
            f" {self.cpu_a_series * 1e6:.2f} us a series, {self.scrapes_a_second:.0f} scrapes/s,"
            f" {self.page_bytes / 1e3:.0f} kB sent, {self.reads_a_scrape:.2f} reads a scrape"
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """Schedule of the scrapes."""

    scrapes: int
    period_seconds: float | None
    """None: as fast as the server answers."""
    gzip: bool = False


class Scraper:
    """Scrapes one metrics endpoint over one persistent connection."""

    def __init__(self, port: int, *, gzip: bool) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=30)
        self._headers = {"Accept-Encoding": "gzip"} if gzip else {}

    def page(self) -> bytes:
        """Return the body of one scrape as received."""
        self._connection.request("GET", "/metrics", headers=self._headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status != 200:  # noqa: PLR2004 - HTTP's OK
            message = f"a scrape was answered with {response.status}"
            raise BenchError(message)
        return content

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def measure(server: Server, pace: Pace) -> Cost:
    """Scrape a running server and return the cost of a scrape."""
    plain, scraper = Scraper(server.port, gzip=False), Scraper(server.port, gzip=pace.gzip)
    for _ in range(WARM_UP):
        page = plain.page().decode()
        sent = scraper.page()
    costs, rates, before = [], [], _reads(page)
    for _ in range(REPEATS):
        started, cpu = time.monotonic(), server.cpu_seconds()
        for turn in range(pace.scrapes):
            if pace.period_seconds:
                due = started + turn * pace.period_seconds
                time.sleep(max(0.0, due - time.monotonic()))
            scraper.page()
        if pace.period_seconds:
            time.sleep(max(0.0, started + pace.scrapes * pace.period_seconds - time.monotonic()))
        elapsed = time.monotonic() - started
        costs.append((server.cpu_seconds() - cpu) / pace.scrapes)
        rates.append(pace.scrapes / elapsed)
    reads = _reads(plain.page().decode()) - before
    plain.close()
    scraper.close()
    return Cost(
        statistics.median(costs), rdma_series(page), len(sent), statistics.median(rates),
        reads / (pace.scrapes * REPEATS) if before else 1.0,
    )  # fmt: skip


def read_cost(server: Server, seconds: float) -> float:
    """Return the processor time of one read of the RDMA source, with consecutive reads."""
    scraper = Scraper(server.port, gzip=False)
    time.sleep(1.0)
    before, cpu = _reads(scraper.page().decode()), server.cpu_seconds()
    time.sleep(seconds)
    cpu = server.cpu_seconds() - cpu
    reads = _reads(scraper.page().decode()) - before
    scraper.close()
    return cpu / max(reads, 1)


def _reads(page: str) -> int:
    found = _READS.search(page)
    return int(found[1]) if found else 0


def rdma_series(page: str) -> int:
    """Count the values of RDMA ports in a scrape. A state counts once, however many lines it has."""
    return sum(
        "infiniband_" in line or ("railscope_rdma_" in line and shows_value(line))
        for line in page.splitlines()
        if not line.startswith("#") and "_info{" not in line
    )


def shows_value(line: str) -> bool:
    """True if a sample line represents a value of its own."""
    return 'state="' not in line or line.endswith(" 1")


UNBOUNDED = {"RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0"}
"""The measurement is of the cost at given periods: the agent must not lengthen them."""


def agent_server(root: Path, directory: Path, period_seconds: float) -> Server:
    """Start our agent on a tree; its other sources have their defaults and are idle there."""
    port = free_port()
    common = ["--root", str(root), "--listen", f"{HOST}:{port}",
              "--state-directory", str(directory / "agent-state")]  # fmt: skip
    if period_seconds < SHORTEST_PERIOD:
        command = ["bench.node", *common, "--rdma-period", str(period_seconds)]
    else:
        command = ["railscope", "agent", "run", "--node", "bench-node", *common]
    environment = {
        "RAILSCOPE_AGENT_PERIODS__RDMA": str(max(period_seconds, SHORTEST_PERIOD)),
        **UNBOUNDED,
    }
    return Server(
        [sys.executable, "-m", "bench.installed", *command], port=port, log=directory / "agent.log",
        ready_path="/-/ready", environment=environment,
    )  # fmt: skip


def node_exporter(root: Path, directory: Path) -> Server:
    """Start Debian's node_exporter with only its RDMA collector."""
    port = free_port()
    return Server(
        [NODE_EXPORTER, "--collector.disable-defaults", "--collector.infiniband",
         f"--path.sysfs={root / 'sys'}", "--web.disable-exporter-metrics",
         f"--web.listen-address={HOST}:{port}"],
        port=port, log=directory / "node_exporter.log",
    )  # fmt: skip


def plain_exporter(root: Path, directory: Path) -> Server:
    """Start the plain Python exporter beside this file."""
    port = free_port()
    command: Sequence[str] = [sys.executable, "-m", "bench.plain_exporter", str(root), str(port)]
    return Server(command, port=port, log=directory / "plain_exporter.log")
