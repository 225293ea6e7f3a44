"""Cost of the agent: of a live scrape, and of a whole tick.

A live scrape is measured of our agent and node_exporter on one tree. "Live" means that every scrape
contains values that were read after the previous scrape. node_exporter reads during a scrape. Our agent reads on its own clock, so its period is set to the
time between two scrapes; its metrics report the number of reads, and all of that processor time is
counted. A scrape of our agent takes less time than a read of all files, so consecutive scrapes and
consecutive reads are measured separately and added.

A whole tick is reading about 3,000 values, making frames, encoding, spooling, pushing to a
collector that only acknowledges; its own cost does not matter.
"""

from __future__ import annotations

import gzip
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from bench import harness, host_files, node
from railscope.envelopes import unpack
from railscope.http_responses import RESPONSE_MARK_HEADER, response_mark
from railscope.wire import BYTES_PER_VALUE
from railscope_simulator.demo.process import free_port

NODE_EXPORTER = "prometheus-node-exporter"
SHORTEST_PERIOD = 0.02
"""The shortest period that the agent's settings allow; below it, `bench.node` runs the same agent."""
AT_ONCE = 0.001
"""A period shorter than any read: reads follow each other without a pause."""
WARM_UP = 20
REPEATS = 3
_READS = re.compile(r'railscope_source_reads_total\{source="rdma"\} (\d+)')


@dataclass(frozen=True, slots=True)
class ScrapeCost:
    """Processor time per scrape, as the median of the repeats."""

    cpu_seconds: float
    series: int
    sent_bytes: int
    scrapes_per_second: float
    reads_per_scrape: float = 1.0

    @property
    def cpu_per_series(self) -> float:
        """Processor time per series, the operand of ratios."""
        return self.cpu_seconds / self.series

    def __str__(self) -> str:
        return (
            f"{self.cpu_seconds * 1e3:.3f} ms CPU per scrape, {self.series} series,"
            f" {self.cpu_per_series * 1e6:.2f} us per series, {self.scrapes_per_second:.0f} scrapes/s,"
            f" {self.sent_bytes / 1e3:.0f} kB sent, {self.reads_per_scrape:.2f} reads per scrape"
        )


@dataclass(frozen=True, slots=True)
class ScrapeSchedule:
    """Schedule of the scrapes."""

    scrapes: int
    period_seconds: float | None
    """None: as fast as the server answers."""
    gzip: bool = False


class Scraper:
    """Scrapes one metrics endpoint over one persistent connection."""

    def __init__(self, port: int, *, gzip: bool) -> None:
        self._connection = HTTPConnection(harness.HOST, port, timeout=30)
        self._headers = {"Accept-Encoding": "gzip"} if gzip else {}

    def scrape(self) -> bytes:
        """Return the body of one scrape as received."""
        self._connection.request("GET", "/metrics", headers=self._headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status != 200:  # noqa: PLR2004 - HTTP's OK
            message = f"a scrape failed: status {response.status}: expected 200"
            raise harness.BenchError(message)
        return content

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def measure_scrapes(server: harness.ServerProcess, schedule: ScrapeSchedule) -> ScrapeCost:
    """Scrape a running server and return the cost of a scrape."""
    plain, scraper = Scraper(server.port, gzip=False), Scraper(server.port, gzip=schedule.gzip)
    for _ in range(WARM_UP):
        text = plain.scrape().decode()
        sent = scraper.scrape()
    costs, rates, before = [], [], _reads(text)
    for _ in range(REPEATS):
        started = time.monotonic()
        with server.measure() as spent:
            for turn in range(1, schedule.scrapes + 1):
                scraper.scrape()
                if schedule.period_seconds:
                    due = started + turn * schedule.period_seconds
                    time.sleep(max(0.0, due - time.monotonic()))
        costs.append(spent.cpu_seconds / schedule.scrapes)
        rates.append(schedule.scrapes / spent.wall_seconds)
    reads = _reads(plain.scrape().decode()) - before
    plain.close()
    scraper.close()
    return ScrapeCost(
        statistics.median(costs),
        rdma_series(text),
        len(sent),
        statistics.median(rates),
        reads / (schedule.scrapes * REPEATS) if before else 1.0,
    )


def read_cost(server: harness.ServerProcess, seconds: float) -> float:
    """Return the processor time of one read of the RDMA source, with consecutive reads."""
    scraper = Scraper(server.port, gzip=False)
    time.sleep(1.0)
    before = _reads(scraper.scrape().decode())
    with server.measure() as spent:
        time.sleep(seconds)
    reads = _reads(scraper.scrape().decode()) - before
    scraper.close()
    if not reads:
        message = f"reads of the RDMA source in {seconds:g} s: 0: expected many"
        raise harness.BenchError(message)
    return spent.cpu_seconds / reads


def _reads(text: str) -> int:
    match = _READS.search(text)
    return int(match[1]) if match else 0


def rdma_series(text: str) -> int:
    """Count the values of RDMA ports in a scrape. A state counts once, however many lines it has."""
    return sum(
        "infiniband_" in line or ("railscope_rdma_" in line and shows_value(line))
        for line in text.splitlines()
        if not line.startswith("#") and "_info{" not in line
    )


def shows_value(line: str) -> bool:
    """True if a sample line represents a value of its own."""
    return 'state="' not in line or line.endswith(" 1")


AGENT = ("railscope", "agent", "run", "--node", "bench-node")
UNBOUNDED = {"RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0"}
"""The measurement is of the cost at given periods: the agent must not lengthen them."""


def agent_server(root: Path, directory: Path, period_seconds: float) -> harness.ServerProcess:
    """Start our agent on a tree; its other sources have their defaults and are idle there."""
    tree = ("--root", str(root))
    if period_seconds < SHORTEST_PERIOD:
        return harness.start_agent(
            directory, "bench.node", *tree, "--rdma-period", str(period_seconds)
        )
    environment = {
        "RAILSCOPE_AGENT_PERIOD_SECONDS__RDMA": str(period_seconds),
        "RAILSCOPE_AGENT_METRICS__DETAIL": "full",  # node_exporter exposes every file that it reads
        **UNBOUNDED,
    }
    return harness.start_agent(directory, *AGENT, *tree, environment=environment)


def node_exporter(root: Path, directory: Path) -> harness.ServerProcess:
    """Start Debian's node_exporter with only its RDMA collector."""
    port = free_port()
    command = [NODE_EXPORTER, "--collector.disable-defaults", "--collector.infiniband"]
    command += [f"--path.sysfs={root / 'sys'}", "--web.disable-exporter-metrics"]
    command += [f"--web.listen-address={harness.HOST}:{port}"]
    return harness.ServerProcess(command, port=port, log=directory / "node_exporter.log")


_MAX_BYTES = 64 << 20


@dataclass(slots=True)
class ReceivedTotals:
    """Sum of the received data."""

    wire_bytes: int = 0
    values: int = 0


def _handler(received: ReceivedTotals) -> type[harness.QuietHandler]:
    """Return a handler that acknowledges envelopes, and sums the received data."""

    class EnvelopeHandler(harness.QuietHandler):
        disable_nagle_algorithm = True

        def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
            body = self.rfile.read(int(self.headers["Content-Length"]))
            frames = 0
            for batch in unpack(body, _MAX_BYTES).batches:
                frames += batch.rows
                received.values += batch.rows * len(batch.base) // BYTES_PER_VALUE
            received.wire_bytes += len(body)
            answer = b'{"accepted_frames":%d,"duplicate_frames":0}' % frames
            token = self.headers.get("Authorization", "").partition(" ")[2]
            self.send_response(200)
            self.send_header(RESPONSE_MARK_HEADER, response_mark(token, 200, body, answer))
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    return EnvelopeHandler


@dataclass(frozen=True, slots=True)
class TickCost:
    """Cost of one agent over a period of time."""

    share_of_core: float
    cpu_per_tick: float
    values_per_tick: float
    switches_per_tick: float
    wire_bytes_per_value: float
    text_bytes_per_value: float
    memory: harness.ProcessMemory
    calls_per_tick: float | None = None
    preads_per_tick: float | None = None
    answers_bytes: int = 0
    """Part of the resident memory that a node does not need: its recorded answers."""

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the agent itself."""
        return self.memory.resident - self.answers_bytes

    def __str__(self) -> str:
        return (
            f"{self.cpu_per_tick * 1e3:.2f} ms CPU per tick of {self.values_per_tick:,.0f} values,"
            f" {self.cpu_per_tick / self.values_per_tick * 1e6:.2f} us per value,"
            f" {self.switches_per_tick:.1f} wake-ups per tick"
        )


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The agent to measure, its periods and durations."""

    root: Path
    directory: Path
    moving: Sequence[Path]
    period_seconds: float
    seconds: float
    settle_seconds: float
    push_seconds: float
    answers: Path | None = None
    """Recorded answers: with them the agent runs on a bench host, without them as `railscope agent run` on the tree."""


def measure_ticks(plan: TickPlan) -> TickCost:
    """Run an agent that ships to a sink, and return its cost."""
    calls = plan.directory / "calls.json"
    received, mover = ReceivedTotals(), host_files.FileMover(list(plan.moving), plan.period_seconds)
    with harness.serving(_handler(received)) as address, mover:
        with _server(plan, f"http://{address}", calls) as server:
            time.sleep(plan.settle_seconds)
            values, wire = received.values, received.wire_bytes
            with server.measure() as spent:
                time.sleep(plan.seconds)
            values, wire = received.values - values, received.wire_bytes - wire
            memory = server.memory()
            text, shown = _own_metrics(server.port)
        lived = received.values / max(values, 1) * spent.wall_seconds
    ticks = spent.wall_seconds / plan.period_seconds
    if values < ticks * shown / 4:  # many of the metrics are read less often
        message = f"values received in {ticks:.0f} ticks: {values}: expected about {shown} per tick"
        raise harness.BenchError(message)
    counts = msgspec.json.decode(calls.read_bytes()) if plan.answers else {}
    preads, answers_bytes = counts.pop("pread", 0), counts.pop(node.ANSWERS_BYTES, 0)
    return TickCost(
        spent.share_of_core,
        cpu_per_tick=spent.cpu_seconds / ticks,
        values_per_tick=values / ticks,
        switches_per_tick=spent.switches / ticks,
        wire_bytes_per_value=wire / values,
        text_bytes_per_value=len(gzip.compress(text)) / shown,
        memory=memory,
        calls_per_tick=sum(counts.values()) / (lived / plan.period_seconds) if counts else None,
        preads_per_tick=preads / (lived / plan.period_seconds) if counts else None,
        answers_bytes=answers_bytes,
    )


def _server(plan: TickPlan, url: str, calls: Path) -> harness.ServerProcess:
    common = ("--root", str(plan.root), "--collector", url)
    period = str(plan.period_seconds)
    if plan.answers:
        flags = ["--answers", str(plan.answers), "--period", period, "--calls", str(calls)]
        flags += ["--push-seconds", str(plan.push_seconds)]
        return harness.start_agent(plan.directory, "bench.node", *common, *flags)
    names = ("RDMA", "GPU", "NIC", "KERNEL", "AGENT")
    environment = {f"RAILSCOPE_AGENT_PERIOD_SECONDS__{name}": period for name in names}
    environment |= UNBOUNDED
    environment["RAILSCOPE_AGENT_COLLECTOR__PUSH_SECONDS"] = str(plan.push_seconds)
    environment["RAILSCOPE_AGENT_COLLECTOR__TOKEN"] = "bench"  # noqa: S105 - no secret
    return harness.start_agent(plan.directory, *AGENT, *common, environment=environment)


def _own_metrics(port: int) -> tuple[bytes, int]:
    """Return the agent's own metrics, and the number of values in them (a state counts once)."""
    text = harness.http_get(port, "/metrics")
    shown = sum(
        not line.startswith("#") and "_info{" not in line and shows_value(line)
        for line in text.splitlines()
    )
    return text.encode(), shown
