"""The cost of a whole tick: reading about 3,000 values, making frames, encoding, spooling, pushing."""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from bench.processes import HOST, BenchError, Memory, Server, free_port
from bench.scrapes import UNBOUNDED, shows_value
from bench.sink import Sink
from bench.tree import Mover


@dataclass(frozen=True, slots=True)
class TickCost:
    """Cost of one agent over a period of time."""

    share_of_core: float
    cpu_a_tick: float
    values_a_tick: float
    switches_a_tick: float
    wire_bytes_a_value: float
    page_bytes_a_value: float
    memory: Memory
    calls_a_tick: float | None = None
    preads_a_tick: float | None = None

    @property
    def wire_to_text(self) -> float:
        """Bytes per value on the wire, against gzipped Prometheus text of the same node."""
        return self.wire_bytes_a_value / self.page_bytes_a_value

    def __str__(self) -> str:
        return (
            f"{self.cpu_a_tick * 1e3:.2f} ms CPU a tick of {self.values_a_tick:,.0f} values,"
            f" {self.cpu_a_tick / self.values_a_tick * 1e6:.2f} us a value,"
            f" {self.switches_a_tick:.1f} wake-ups a tick"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The agent to measure, its periods and durations."""

    root: Path
    directory: Path
    moving: Sequence[Path]
    period_seconds: float
    seconds: float
    settle_seconds: float
    push_seconds: float
    answers: Path | None = None
    """With answers the agent runs on a bench host, without them it is `railscope agent run` on the tree."""


def measure(plan: Plan) -> TickCost:
    """Run an agent that ships to a sink, and return its cost."""
    calls = plan.directory / "calls.json"
    state = plan.directory / f"state-{time.monotonic_ns()}"
    with Sink() as sink, Mover(list(plan.moving), plan.period_seconds):
        with _server(plan, sink.url, state, calls) as server:
            time.sleep(plan.settle_seconds)
            cpu, switches, started = server.cpu_seconds(), server.switches(), time.monotonic()
            values, wire = sink.received.values, sink.received.wire_bytes
            time.sleep(plan.seconds)
            elapsed = time.monotonic() - started
            cpu, switches = server.cpu_seconds() - cpu, server.switches() - switches
            values, wire = sink.received.values - values, sink.received.wire_bytes - wire
            memory = server.memory()
            page, shown = _page(server.port)
        lived = sink.received.values / max(values, 1) * elapsed
    ticks = elapsed / plan.period_seconds
    if values < ticks * shown / 4:  # many of the metrics are read less often
        message = f"the agent delivered {values} values in {ticks:.0f} ticks of {shown}"
        raise BenchError(message)
    counts = msgspec.json.decode(calls.read_bytes()) if plan.answers else {}
    preads = counts.pop("pread", 0)
    return TickCost(
        cpu / elapsed, cpu / ticks, values / ticks, switches / ticks, wire / values,
        len(gzip.compress(page)) / shown, memory,
        sum(counts.values()) / (lived / plan.period_seconds) if counts else None,
        preads / (lived / plan.period_seconds) if counts else None,
    )  # fmt: skip


def _server(plan: Plan, url: str, state: Path, calls: Path) -> Server:
    port = free_port()
    common = ["--root", str(plan.root), "--listen", f"{HOST}:{port}", "--collector", url,
              "--state-directory", str(state)]  # fmt: skip
    if plan.answers:
        command = [sys.executable, "-m", "bench.installed", "bench.node", *common, "--answers", str(plan.answers),
                   "--period", str(plan.period_seconds), "--push-seconds", str(plan.push_seconds), "--calls", str(calls)]  # fmt: skip
        return Server(command, port=port, log=plan.directory / "node.log", ready_path="/-/ready")
    period = str(plan.period_seconds)
    command = [
        sys.executable,
        "-m",
        "bench.installed",
        "railscope",
        "agent",
        "run",
        "--node",
        "bench-node",
        *common,
    ]
    names = ("RDMA", "GPU", "NIC", "KERNEL", "AGENT")
    environment = {f"RAILSCOPE_AGENT_PERIODS__{name}": period for name in names}
    environment |= UNBOUNDED
    environment["RAILSCOPE_AGENT_COLLECTOR__PUSH_SECONDS"] = str(plan.push_seconds)
    environment["RAILSCOPE_AGENT_COLLECTOR__TOKEN"] = "bench"  # noqa: S105 - no secret
    return Server(
        command, port=port, log=plan.directory / "agent.log", ready_path="/-/ready",
        environment=environment,
    )  # fmt: skip


def _page(port: int) -> tuple[bytes, int]:
    """Return the agent's own metrics, and the number of values in them (a state counts once)."""
    connection = HTTPConnection(HOST, port, timeout=30)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read()
    connection.close()
    lines = page.decode().splitlines()
    shown = sum(
        not line.startswith("#") and "_info{" not in line and shows_value(line) for line in lines
    )
    return page, shown
