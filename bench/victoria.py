"""The same values written to VictoriaMetrics by its fastest way: Prometheus' remote write.

It receives every series once before the measurement starts, so that building its index does not
count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from bench import load, remote_write
from bench.processes import HOST, BenchError, Server, free_port
from bench.wires import Request, post_all
from railscope.catalog import KINDS, METRICS

PROGRAM = "victoria-metrics"
PATH = "/api/v1/write"
CONNECTIONS = 4
_MAX_WAITS, _IDLE_SHARE = 15, 0.03
_MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class StoreCost:
    """Cost of the store."""

    values: int
    cpu_seconds: float
    wall_seconds: float

    @property
    def cpu_a_value(self) -> float:
        """Processor seconds per value."""
        return self.cpu_seconds / self.values

    def __str__(self) -> str:
        return (
            f"{self.cpu_a_value * 1e9:.0f} ns CPU a value,"
            f" {1 / self.cpu_a_value / 1e6:.2f} M values a CPU second,"
            f" {self.values / self.wall_seconds / 1e6:.2f} M values/s by the wall"
            " (remote write, known series)"
        )


def measure(streams: Sequence[load.Stream], nodes: int, turns: int, directory: Path) -> StoreCost:
    """Write some turns of some nodes; its later merges, until it is idle, count too."""
    port = free_port()
    command = [PROGRAM, f"-storageDataPath={directory / 'victoria'}", f"-httpListenAddr={HOST}:{port}",
               "-retentionPeriod=100y", "-loggerLevel=WARN"]  # fmt: skip
    prefixes = [_prefixes(streams, number) for number in range(nodes)]
    with Server(command, port=port, log=directory / "victoria.log", ready_path="/health") as server:
        post_all(port, _requests(streams, prefixes, 0), CONNECTIONS)
        _flush(port)
        _rest(server)
        requests = [r for turn in range(1, turns + 1) for r in _requests(streams, prefixes, turn)]
        cpu, started = server.cpu_seconds(), time.monotonic()
        post_all(port, requests, CONNECTIONS)
        _flush(port)
        wall = time.monotonic() - started
        _rest(server)
        cpu = server.cpu_seconds() - cpu
        inserted = _inserted(port)
    values = load.Nodes(streams, 1).values_a_turn * nodes * turns
    expected = values + values // turns
    if inserted < expected:
        message = f"the store took {inserted} values of {expected}"
        raise BenchError(message)
    return StoreCost(values, cpu, wall)


def _rest(server: Server) -> None:
    """Wait until the process is almost idle."""
    for _ in range(_MAX_WAITS):
        before = server.cpu_seconds()
        time.sleep(1.0)
        if server.cpu_seconds() - before < _IDLE_SHARE:
            return


def _flush(port: int) -> None:
    _get(port, "/internal/force_flush")


def _inserted(port: int) -> int:
    lines = _get(port, "/metrics").splitlines()
    return sum(
        int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vm_rows_added_to_storage")
    )


def _get(port: int, path: str) -> str:
    connection = HTTPConnection(HOST, port, timeout=120)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


# Written data --------------------------------------------------------------------------------------


def _requests(
    streams: Sequence[load.Stream], prefixes: Sequence[list[bytes]], turn: int
) -> list[Request]:
    variants = [_samples(streams, variant, turn) for variant in range(load.VARIANTS)]
    found = []
    for number, own in enumerate(prefixes):
        samples = variants[number % len(variants)]
        parts = (p + s for p, s in zip(own, samples, strict=True))
        found.append(remote_write.request(PATH, parts))
    return found


def _samples(streams: Sequence[load.Stream], variant: int, turn: int) -> list[bytes]:
    """Encode the samples of every column."""
    now_ns = time.time_ns() // load.TICK_NS * load.TICK_NS
    times = remote_write.instants(
        (now_ns + (turn * load.ROWS + row) * load.TICK_NS) // _MILLISECOND
        for row in range(load.ROWS)
    )
    found = []
    for position, stream in enumerate(streams):
        rows = load.rows_of(stream.schema, variant * 100 + position, turn)[-stream.rows :]
        own = times[:: -(load.ROWS // len(rows))][: len(rows)][::-1]
        block = remote_write.samples(rows.T.astype(np.float64), own)
        data, size = block.tobytes(), block.itemsize * len(rows)
        found += [data[i : i + size] for i in range(0, len(data), size)]
    return found


def _prefixes(streams: Sequence[load.Stream], number: int) -> list[bytes]:
    """Return the bytes before the samples of every column of a node: size and labels."""
    label = remote_write.label
    node = label("instance", load.name(number))
    found = []
    for stream in streams:
        own = load.of_node(stream.schema, number)
        entities = [node + b"".join(map(label, KINDS[e.kind].labels, e.key)) for e in own.entities]
        for group in own.groups:
            metric = label("__name__", METRICS[group.metric].name)
            for member in group.entities:
                labels = metric + entities[member]
                size = remote_write.SAMPLE.itemsize * stream.rows
                found.append(remote_write.series(labels, size))
    return found
