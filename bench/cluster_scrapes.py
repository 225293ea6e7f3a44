"""Metrics of a cluster as Prometheus would store them: scrapes of few real nodes, copied to many.

The real agent reads simulated nodes on a clock moved by hand and renders its metrics every 15
seconds. Every node gets the metrics of one simulated node under its own name: its own GPUs,
counters with another start and another speed, and its own position in the loop of scrapes. The
collector's metrics are those of a real collector with as many reporting nodes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from bench import harness, load, remote_write
from bench.collector_servers import start_collector, wait_for_refreshes
from bench.http_requests import Request
from bench.load_sender import sending
from railscope import catalog, exposition, log_output
from railscope.catalog.declare import BASIC, MetricDetail
from railscope.timestamps import SECOND_NS
from railscope_agent.config import AgentSettings, MetricsSettings
from railscope_agent.host.recorded_clock import RecordedClock
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.service import Agent
from railscope_dashboards.promql import metric_named
from railscope_simulator import NodeSpec, simulate

SCRAPE_SECONDS = 15
HEALTHY = (("training", "slurm"), ("training", "kubernetes"))
FAULTY = ("xid79", "pause_storm", "pcie_degraded", "flapping", "nvlink_errors", "thermal")
ONE_FAULTY_IN = 20
_SAMPLE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_GPU = "GPU-"
_SERIES_PER_REQUEST = 1000
_COLLECTOR_TURNS = 2
_TENANTS = 50
_OWN_SPEED, _OWN_LEVEL = (0.5, 1.5), (0.97, 1.03)

NODE = NodeSpec("node")
"""A healthy node with 8 GPUs and 10 NICs."""
UP = (("__name__", "up"),)

Labels = tuple[tuple[str, str], ...]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScrapeLoop:
    """The series of consecutive scrapes: rows are series, columns are scrapes."""

    series: tuple[Labels, ...]
    values: Values
    """NaN if a scrape lacks the series."""
    counters: npt.NDArray[np.bool_]
    measured: npt.NDArray[np.bool_]
    """Gauges of measured values, which differ between nodes; settings are equal on all nodes."""

    def node_values(self, length: int, rng: np.random.Generator) -> Values:
        """Return the values of one node at the given number of scrapes."""
        pages = self.values.shape[1]
        at = (np.arange(length) + rng.integers(pages)) % pages
        values: Values = self.values[:, at]
        count = len(self.series)
        speed = round(rng.uniform(*_OWN_SPEED), 2)
        grown = np.cumsum(self._grown()[:, at], axis=1) * speed
        start = np.nan_to_num(np.nanmin(self.values, axis=1, keepdims=True)) * speed
        level = np.where(self.measured[:, None], rng.uniform(*_OWN_LEVEL, (count, 1)), 1.0)
        counted = np.where(np.isnan(values), np.nan, np.round(start + grown, 3))
        return np.where(self.counters[:, None], counted, values * level)

    def _grown(self) -> Values:
        """Growth of each counter before each scrape; 0 after a reset or a gap."""
        steps = np.diff(self.values, axis=1, prepend=self.values[:, :1])
        return np.clip(np.nan_to_num(steps), 0, None)


@dataclass(frozen=True, slots=True)
class ClusterScrapes:
    """The loops that nodes replay, and the loop of the collector."""

    healthy: Sequence[ScrapeLoop]
    faulty: Sequence[ScrapeLoop]
    collector: ScrapeLoop

    def loop_of_node(self, number: int) -> ScrapeLoop:
        """Return the loop of a node; one in `ONE_FAULTY_IN` nodes has a fault."""
        turn, faultless = divmod(number, ONE_FAULTY_IN)
        if faultless:
            return self.healthy[number % len(self.healthy)]
        return self.faulty[turn % len(self.faulty)]


def loop_of(scrapes: Sequence[str], names: Container[str]) -> ScrapeLoop:
    """Parse scrapes, keeping the metrics in `held`."""
    rows: dict[Labels, list[float]] = {}
    for position, scrape in enumerate(scrapes):
        for line in scrape.splitlines():
            match = _SAMPLE.fullmatch(line)
            if match and match["name"] in names:
                row = rows.setdefault(_labels(match), [np.nan] * len(scrapes))
                row[position] = float(match["value"])
    metrics = [metric_named(dict(labels)["__name__"]) for labels in rows]
    values = np.array(list(rows.values())).reshape(len(rows), len(scrapes))
    gauges = np.array(
        [m is not None and m.kind is catalog.MetricKind.GAUGE and m.unit != "" for m in metrics],
        bool,
    )
    return ScrapeLoop(
        tuple(rows),
        values,
        np.array(
            [
                m is not None
                and m.kind in {catalog.MetricKind.COUNTER, catalog.MetricKind.HISTOGRAM}
                for m in metrics
            ],
            bool,
        ),
        gauges & (np.nanmin(values, axis=1) < np.nanmax(values, axis=1)),
    )


def _labels(sample: re.Match[str]) -> Labels:
    pairs = _LABEL.findall(sample["labels"] or "")
    values = ((name, _ESCAPE.sub(_unescape, value)) for name, value in pairs)
    return (("__name__", sample["name"]), *values)


def _unescape(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]


def cluster_scrapes_of(
    nodes: int, loop_scrapes: int, faults: int, names: Container[str]
) -> ClusterScrapes:
    """Render scrapes of healthy nodes, of nodes with the given number of faults, and of their collector.

    A fault starts at half of its node's scrapes. Only the metrics in `held` are kept.
    """
    log_output.configure_logs("error")
    scenarios = (*HEALTHY, *((scenario, "slurm") for scenario in FAULTY[:faults]))
    specs = (
        NodeSpec(f"s{seed}", seed, scenario=scenario, scheduler=scheduler)
        for seed, (scenario, scheduler) in enumerate(scenarios)
    )
    loops = [loop_of(agent_scrapes(spec, loop_scrapes), names) for spec in specs]
    with TemporaryDirectory(prefix="bench-") as directory:
        collector = _collector_loop(nodes, Path(directory), names)
    return ClusterScrapes(loops[: len(HEALTHY)], loops[len(HEALTHY) :], collector)


def agent_scrapes(spec: NodeSpec, loop_scrapes: int, detail: MetricDetail = BASIC) -> list[str]:
    """Render scrapes of a simulated node."""
    capture = simulate(spec, loop_scrapes * SCRAPE_SECONDS, 1)
    clock = RecordedClock(capture.about)
    agent = Agent(
        AgentSettings(node=spec.node, metrics=MetricsSettings(detail=detail.value)),
        RecordedHost(capture, clock, lambda: clock.offset_ns),
    )

    async def read() -> list[str]:
        texts = []
        for scrape in range(1, loop_scrapes + 1):
            for second in (scrape * SCRAPE_SECONDS - 1, scrape * SCRAPE_SECONDS):
                clock.go_to(second * SECOND_NS)
                await agent.once()
            texts.append(agent.endpoint.text(exposition.TextFormat.PROMETHEUS))
        return texts

    return asyncio.run(read())


def _collector_loop(nodes: int, directory: Path, names: Container[str]) -> ScrapeLoop:
    """Render scrapes of a collector with reporting nodes, each held by one of several tenants."""
    claims = directory / "claims.csv"
    rows = (
        f"tenant-{n % _TENANTS},{load.node_name(n)},2020-01-01T00:00:00Z," for n in range(nodes)
    )
    claims.write_text("\n".join(["tenant,holds,from,to", *rows, ""]), encoding="ascii")
    fleet = load.Load.of_agent(directory, nodes)
    with (
        start_collector(nodes, directory, CLAIMS_FILE=str(claims)) as server,
        sending(fleet, server) as sender,
    ):
        texts = []
        for turn in range(_COLLECTOR_TURNS):
            sender.send_turn(turn)
            wait_for_refreshes(server, 2)
            texts.append(harness.http_get(server.port, "/metrics"))
    return loop_of(texts, names)


class SeriesWriter:
    """Requests that write series at the timestamps of some scrapes, the last of them at `until`."""

    def __init__(self, until: float, scrapes: int) -> None:
        last = round(until) // SCRAPE_SECONDS * SCRAPE_SECONDS
        self.seconds = [last - (scrapes - 1 - at) * SCRAPE_SECONDS for at in range(scrapes)]
        self._times = remote_write.encode_timestamps(second * 1000 for second in self.seconds)

    def of_node(self, cluster: ClusterScrapes, number: int) -> Iterator[Request]:
        """Return the requests that write the scrapes of a node."""
        loop, name = cluster.loop_of_node(number), load.node_name(number)
        target = (("job", "railscope-agent"), ("instance", f"{name}:9469"), ("node", name))
        series = [_labels_on_node(number, labels) for labels in loop.series]
        return self._scrape_requests(loop, series, target, number)

    def of_collector(self, loop: ScrapeLoop) -> Iterator[Request]:
        """Return the requests that write the scrapes of the collector."""
        target = (("job", "railscope-collector"), ("instance", "localhost:9470"))
        return self._scrape_requests(loop, loop.series, target, 0)

    def _scrape_requests(
        self, loop: ScrapeLoop, series: Sequence[Labels], target: Labels, number: int
    ) -> Iterator[Request]:
        values = loop.node_values(len(self.seconds), np.random.default_rng(number))
        up = np.ones((1, len(self.seconds)))
        return self.write_requests([UP, *series], np.concatenate((up, values)), target)

    def write_requests(
        self, series: Sequence[Labels], values: Values, target: Labels = ()
    ) -> Iterator[Request]:
        """Yield requests with these series; NaN values are omitted."""
        common = b"".join(remote_write.encode_label(*pair) for pair in target)
        for first in range(0, len(series), _SERIES_PER_REQUEST):
            part = slice(first, first + _SERIES_PER_REQUEST)
            there = ~np.isnan(values[part])
            block = remote_write.encode_samples(values[part], self._times)
            parts = []
            for labels, row, present in zip(series[part], block, there, strict=True):
                data = row[present].tobytes()
                text = common + b"".join(remote_write.encode_label(*pair) for pair in labels)
                parts += [remote_write.encode_series_head(text, len(data)), data]
            yield remote_write.encode_request(parts)


def _labels_on_node(number: int, labels: Labels) -> Labels:
    """Return the labels of a series on another node, with other GPUs."""
    return tuple(
        (name, f"{_GPU}{number:08x}{value[12:]}" if value.startswith(_GPU) else value)
        for name, value in labels
    )
