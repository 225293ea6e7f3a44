"""A real collector under the load of many nodes: its cost, memory and response times."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench import harness, load
from railscope import envelopes
from railscope_collector.access.credentials import digest_token
from railscope_simulator.demo.process import free_port

CONNECTIONS = 32
MAX_WAIT_SECONDS = 180.0
_POLL_SECONDS = 0.2
_VIEWS = re.compile(r"^railscope_collector_views_refresh_seconds (\S+)", re.MULTILINE)


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


class LoadProcess:
    """The load generator, controlled by one command per line."""

    def __init__(
        self, server: harness.ServerProcess, nodes: int, streams: Path, first: int = 0
    ) -> None:
        arguments = [str(server.port), str(nodes), str(streams), str(first)]
        self._command = [sys.executable, "-m", "bench.loader", *arguments]
        self._server = server
        self.reconnections = 0

    def __enter__(self) -> Self:
        """Start."""
        self._process = subprocess.Popen(  # noqa: S603 - the bench starts its own parts
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the process by its own pid."""
        self._process.terminate()
        self._process.communicate()

    def execute(self, *parts: object) -> dict[str, Any]:
        """Send one command and wait for the answer."""
        if self._process.stdin is None or self._process.stdout is None:
            message = "a command to the load generator failed: it is not started"
            raise harness.BenchError(message)
        self._process.stdin.write(" ".join(map(str, parts)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            message = (
                "a command to the load generator failed: it has ended; its error is above. The last"
                f" output of the collector:\n{self._server.log_end()}"
            )
            raise harness.BenchError(message)
        answer: dict[str, Any] = json.loads(line)
        self.reconnections += answer.get("reconnections", 0)
        return answer


def measure(size: FleetSize, streams: Path, directory: Path) -> FleetCost:
    """Register nodes, flood, wait for the views, then continue at the natural period."""
    with (
        collector(size.nodes, directory) as server,
        LoadProcess(server, size.nodes, streams) as loader,
    ):
        refreshes_of(server, 1)
        empty = server.memory().resident
        loader.execute("prepare", 0, 1)
        with server.measure() as registration:
            loader.execute("post", CONNECTIONS)
        prepared = loader.execute("prepare", 1, 1 + size.turns)
        # Registration takes long: one turn and the views after it, so that no node was stale recently.
        loader.execute("post", CONNECTIONS, 1)
        refreshes_of(server, 2)
        with server.measure() as flooding:
            flood = loader.execute("post", CONNECTIONS)
            os.sync()
        refreshes = refreshes_of(server, 5)
        first, views = max(refreshes), statistics.median(refreshes[-3:])
        loader.execute("prepare", 2 + size.turns, 1)
        with server.measure() as sending:
            periodic = loader.execute("periodic", CONNECTIONS, size.period_seconds)
        full = server.memory().resident
    a_turn = flooding.cpu_seconds / size.turns
    return FleetCost(
        size,
        values=flood["values"],
        cpu_seconds=flooding.cpu_seconds,
        wall_seconds=flood["seconds"],
        first_views_seconds=first,
        views_seconds=views,
        bytes_per_node=(full - empty) / size.nodes,
        p50=periodic["p50"],
        p99=periodic["p99"],
        worst=periodic["worst"],
        periodic_share=sending.cpu_seconds / periodic["seconds"],
        wire_bytes_per_value=prepared["bytes_per_value"],
        registration_cpu_per_node=max(0.0, registration.cpu_seconds - a_turn) / size.nodes,
        reconnections=loader.reconnections,
    )


def collector(nodes: int, directory: Path, **environment: str) -> harness.ServerProcess:
    """Start `railscope collector run` with the tokens of all nodes."""
    port = free_port()
    tokens = directory / f"tokens-{nodes}.toml"
    lines = [f'"{load.name(n)}" = "{digest_token(load.token(n))}"' for n in range(nodes)]
    tokens.write_text("\n".join(["[nodes]", *lines, ""]), encoding="ascii")
    command = [sys.executable, "-m", "railscope", "collector", "run", "--allow-anonymous-read"]
    command += ["--listen", f"{harness.HOST}:{port}", "--tokens-file", str(tokens)]
    command += ["--state-directory", str(directory / f"collector-{nodes}")]
    log = directory / f"collector-{nodes}.log"
    return harness.ServerProcess(command, port=port, log=log, environment=environment)


def refreshes_of(server: harness.ServerProcess, count: int) -> list[float]:
    """Return the duration in seconds of each of the next refreshes of all views, as they end."""
    refreshes = [_newest_refresh(server)]
    until = time.monotonic() + MAX_WAIT_SECONDS
    while len(refreshes) <= count:
        time.sleep(_POLL_SECONDS)
        newest = _newest_refresh(server)
        if newest != refreshes[-1]:
            refreshes.append(newest)
        elif time.monotonic() > until:
            done = len(refreshes) - 1
            message = f"refreshes in {MAX_WAIT_SECONDS:g} s: {done}: expected {count}"
            raise harness.BenchError(message)
    return refreshes[1:]


def _newest_refresh(server: harness.ServerProcess) -> float:
    match = _VIEWS.search(harness.http_get(server.port, "/metrics"))
    return float(match[1]) if match else 0.0


_REFERENCE_SECONDS, _MAX_BYTES = 0.3, 1 << 24


class FrameCosts(NamedTuple):
    """Processor time per envelope."""

    receiving_seconds: float
    """Of a collector that receives it and passes it on."""
    head_seconds: float
    """Of the head, which applies it."""
    reference_seconds: float
    """Of the benchmark itself, to unpack it: it differs between steps with other load of the machine only."""

    def __truediv__(self, first: FrameCosts) -> FrameCosts:
        """Return the ratios to those of another step."""
        return FrameCosts(*(seconds / before for seconds, before in zip(self, first, strict=True)))


def unpack_seconds(streams: Path) -> float:
    """Return the processor time to unpack an envelope."""
    bodies = load.LoadNodes(load.load(streams), load.VARIANTS).bodies(1)
    started, count = time.thread_time(), 0
    while time.thread_time() < started + _REFERENCE_SECONDS:
        envelopes.unpack(bodies[count % len(bodies)], _MAX_BYTES)
        count += 1
    return (time.thread_time() - started) / count


@dataclass(frozen=True, slots=True)
class StepCost:
    """Cost of one size of the cluster."""

    nodes: int
    receiving_seconds: float
    head_seconds: float
    reference_seconds: float
    periodic_shares: tuple[float, float]
    """Share of a core without frames: of a collector that receives, and of the head."""
    registration_seconds: float
    """Processor time of receiving collector and head to register a node."""
    receiving_bytes: int
    """Resident memory of a collector that receives."""
    head_bytes: int

    @property
    def costs(self) -> FrameCosts:
        """Processor time per envelope."""
        return FrameCosts(self.receiving_seconds, self.head_seconds, self.reference_seconds)

    def text(self, frames: int) -> str:
        """Return all figures; an envelope has a number of frames."""
        per_frame = [1e6 * each / frames for each in (self.receiving_seconds, self.head_seconds)]
        periodic = ", ".join(f"{100 * each:.1f} %" for each in self.periodic_shares)
        memory = ", ".join(map(harness.mebibytes, (self.receiving_bytes, self.head_bytes)))
        return (
            f"per envelope {1e3 * self.receiving_seconds:.2f} ms where received, {1e3 * self.head_seconds:.2f} ms at the head"
            f" (per frame {per_frame[0]:.1f} and {per_frame[1]:.1f} us), {1e3 * self.reference_seconds:.2f} ms to unpack it; periodic work {periodic} of a core (receiving, head);"
            f" {1e3 * self.registration_seconds:.1f} ms to register a node, in all collectors; resident {memory}"
        )
