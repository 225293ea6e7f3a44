"""`python -m bench.agent`: cost of the agent, compared with node_exporter where that does the same work.

A live scrape is measured of both on one tree, four times per second. "Live" means that every scrape contains values that were read after
the previous scrape. node_exporter reads during a scrape. Our agent reads on its own clock, so its period is set to the time between two
scrapes, and all of its processor time counts.

A whole tick is one second of an agent with 8 GPUs and 10 NICs at its default periods: reading, making frames, encoding, spooling, pushing
to a collector that only acknowledges; the cost of the collector does not matter.
"""

from __future__ import annotations

import gzip
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click

from bench import harness, host_files
from railscope.envelopes import unpack
from railscope.http_responses import RESPONSE_MARK_HEADER, response_mark
from railscope.wire import BYTES_PER_VALUE
from railscope_agent.config import CollectorLink

DEVICES = 8
NODE_EXPORTER = "prometheus-node-exporter"
SCRAPE_SECONDS = 0.25
WARM_UP = 20
REPEATS = 3
SETTLE_SECONDS = CollectorLink().push_seconds + 1
"""Start of an agent, which costs more, and its first envelope."""

SCRAPED = harness.Aim("<=", 0.18)
TICK = harness.Aim("<=", 0.42, " %")
MEMORY = harness.Aim("<=", 47, " MiB")
WAKE_UPS = harness.Aim("<=", 3.5)
WIRE = harness.Aim("<=", 0.25)
_MEBIBYTE = 1 << 20
_MAX_BYTES = 64 << 20


@click.command()
@harness.is_quick_option
def main(*, is_quick: bool) -> None:
    """Measure the agent and print ratios."""
    scrapes, tick_seconds = (2, SETTLE_SECONDS) if is_quick else (20, 30.0)
    with (
        harness.reporting("Agent") as (report, directory),
        host_files.memory_directory() as trees,
    ):
        report_scrapes(report, directory, trees / "scraped", scrapes)
        report_ticks(report, directory, trees / "ticks", tick_seconds)


# An agent as in an installation --------------------------------------------------------------------

_AS_INSTALLED = {"PYTHONDONTWRITEBYTECODE": "", "MALLOC_ARENA_MAX": "1"}
"""An installation has bytecode files: a process that compiles its modules takes 2 MiB more. Its unit sets the other one."""
_WITHOUT_RICH = (
    "import runpy, sys; sys.modules['rich'] = None; del sys.argv[0];"
    " runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
"""structlog imports rich if it is installed, some 5 MiB; an installation lacks it, the test extra has it."""


def start_agent(
    directory: Path, *command: str, environment: Mapping[str, str] | None = None
) -> harness.ServerProcess:
    """Return an agent: a module with its arguments, on a free port."""
    port = harness.free_port()
    common = ["--listen", f"{harness.HOST}:{port}"]
    common += ["--state-directory", str(directory / f"agent-{port}")]
    return harness.ServerProcess(
        [sys.executable, "-c", _WITHOUT_RICH, *command, *common],
        port=port,
        log=directory / f"agent-{port}.log",
        ready_path="/-/ready",
        environment={**_AS_INSTALLED, **(environment or {})},
    )


# Scrapes -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScrapeCost:
    """Processor time per scrape, as the median of the repeats."""

    cpu_seconds: float
    series: int
    sent_bytes: int

    @property
    def cpu_per_series(self) -> float:
        """Processor time per series, the operand of ratios."""
        return self.cpu_seconds / self.series

    def __str__(self) -> str:
        return (
            f"{self.cpu_seconds * 1e3:.3f} ms CPU per scrape, {self.series} series,"
            f" {self.cpu_per_series * 1e6:.2f} us per series, {self.sent_bytes / 1e3:.0f} kB sent"
        )


def report_scrapes(report: harness.BenchReport, directory: Path, root: Path, scrapes: int) -> None:
    """Measure a live scrape of 8 RDMA devices by two programs."""
    host_files.write_tree(root, DEVICES)
    with agent_server(root, directory) as server:
        agent = measure_scrapes(server, scrapes)
    report.figure("agent, 4 scrapes per second", str(agent))
    if not shutil.which(NODE_EXPORTER):
        report.figure(NODE_EXPORTER, "not installed: left out")
        return
    with node_exporter(root, directory) as server:
        other = measure_scrapes(server, scrapes)
    report.figure("node_exporter, 4 scrapes per second", str(other))
    ratio = agent.cpu_per_series / other.cpu_per_series
    report.ratio("CPU per series, agent / node_exporter", ratio, SCRAPED)


def agent_server(root: Path, directory: Path) -> harness.ServerProcess:
    """Return our agent on a tree; its other sources have their defaults and are idle there."""
    environment = {
        "RAILSCOPE_AGENT_PERIOD_SECONDS": f"{{ rdma = {SCRAPE_SECONDS} }}",
        "RAILSCOPE_AGENT_METRICS__DETAIL": "full",  # node_exporter exposes every file that it reads
        "RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0",  # the agent must not lengthen its periods
    }
    command = ("railscope", "agent", "run", "--node", "bench-node", "--root", str(root))
    return start_agent(directory, *command, environment=environment)


def node_exporter(root: Path, directory: Path) -> harness.ServerProcess:
    """Return Debian's node_exporter with only its RDMA collector."""
    port = harness.free_port()
    command = [NODE_EXPORTER, "--collector.disable-defaults", "--collector.infiniband"]
    command += [f"--path.sysfs={root / 'sys'}", "--web.disable-exporter-metrics"]
    command += [f"--web.listen-address={harness.HOST}:{port}"]
    return harness.ServerProcess(command, port=port, log=directory / "node_exporter.log")


def measure_scrapes(server: harness.ServerProcess, scrapes: int) -> ScrapeCost:
    """Scrape a running server over one connection and return the cost of a scrape."""
    connection = HTTPConnection(harness.HOST, server.port, timeout=30)
    for _ in range(WARM_UP):
        content = scrape(connection)
    costs = []
    for _ in range(REPEATS):
        started = time.monotonic()
        with server.measure() as spent:
            for turn in range(1, scrapes + 1):
                scrape(connection)
                time.sleep(max(0.0, started + turn * SCRAPE_SECONDS - time.monotonic()))
        costs.append(spent.cpu_seconds / scrapes)
    connection.close()
    return ScrapeCost(statistics.median(costs), rdma_series(content.decode()), len(content))


def scrape(connection: HTTPConnection) -> bytes:
    """Return the body of one scrape."""
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:  # noqa: PLR2004 - HTTP's OK
        message = f"a scrape failed: status {response.status}: expected 200"
        raise harness.BenchError(message)
    return content


def rdma_series(text: str) -> int:
    """Count the values of RDMA ports in a scrape."""
    names = ("infiniband_", "railscope_rdma_")
    return sum(shows_value(line) and any(n in line for n in names) for line in text.splitlines())


def shows_value(line: str) -> bool:
    """True if a line of a scrape represents a value of its own. A state counts once, however many lines it has."""
    is_sample = not line.startswith("#") and "_info{" not in line
    return is_sample and ('state="' not in line or line.endswith(" 1"))


# Ticks ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReceivedTotals:
    """Sum of the received data."""

    wire_bytes: int = 0
    values: int = 0


@contextmanager
def acknowledging(received: ReceivedTotals) -> Iterator[str]:
    """Serve on a free port, acknowledge envelopes, and sum the received data; yield the URL."""

    class EnvelopeHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
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

    server = ThreadingHTTPServer((harness.HOST, 0), EnvelopeHandler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{harness.HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def report_ticks(report: harness.BenchReport, directory: Path, root: Path, seconds: float) -> None:
    """Measure whole ticks, from reading to the acknowledgement."""
    moving = host_files.write_tree(root, DEVICES)
    answers, size = directory / "answers.msgpack", directory / "answers.bytes"
    # Longer than the measurement: counters of repeated answers would decrease.
    host_files.write_answers(answers, 10 + round(SETTLE_SECONDS + seconds))
    command = ["bench.node", "--root", str(root), "--answers", str(answers), "--size", str(size)]
    received = ReceivedTotals()
    with (
        acknowledging(received) as url,
        host_files.FileMover(moving, 1.0),
        start_agent(directory, *command, "--collector", url) as server,
    ):
        time.sleep(SETTLE_SECONDS)
        values, wire = received.values, received.wire_bytes
        with server.measure() as spent:
            time.sleep(seconds)
        values, wire = received.values - values, received.wire_bytes - wire
        resident = server.resident_bytes()
        text = harness.http_get(server.port, "/metrics")
    shown = sum(map(shows_value, text.splitlines()))
    if values < seconds * shown / 4:  # many of the metrics are read less often
        message = f"values received in {seconds:g} s: {values}: expected about {shown} per second"
        raise harness.BenchError(message)
    answers_bytes = int(size.read_text(encoding="ascii"))  # a node does not need these
    wire_bytes, text_bytes = wire / values, len(gzip.compress(text.encode())) / shown
    report.ratio("share of a core, whole tick", 100 * spent.share_of_core, TICK)
    report.ratio("wake-ups per tick", spent.switches / spent.wall_seconds, WAKE_UPS)
    report.ratio("resident memory", (resident - answers_bytes) / _MEBIBYTE, MEMORY)
    report.ratio("wire / gzipped text, bytes per value", wire_bytes / text_bytes, WIRE)
    per_tick = values / spent.wall_seconds
    report.figure(
        "tick",
        f"{spent.share_of_core * 1e3:.2f} ms CPU per tick of {per_tick:,.0f} values,"
        f" {spent.cpu_seconds / values * 1e6:.2f} us per value",
    )
    recorded = f"and {harness.mebibytes(answers_bytes)} of recorded answers"
    report.figure("memory", f"{harness.mebibytes(resident - answers_bytes)}, {recorded}")
    report.figure(
        "bytes per value", f"{wire_bytes:.2f} on the wire, {text_bytes:.2f} as gzipped text"
    )


if __name__ == "__main__":
    main()
