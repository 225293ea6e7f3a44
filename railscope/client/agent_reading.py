"""Readings of a node from its agent's metrics, in the text format of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from railscope import api, timestamps
from railscope.client import tables
from railscope.client.connection import ClientError, ReadClient
from railscope.client.node_reading import (
    HEALTH,
    HEALTH_REASON,
    HEALTH_STATES,
    DeviceReadings,
    GpuRates,
)

MAX_AGE_SECONDS = 60.0
"""Age from which the readings of a source with a short period are stale."""
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: -?[0-9]+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPE = re.compile(r"\\(.)")
_QUERY = tuple(
    ("collect[]", name) for name in ("gpu", "gpu_verdict", "tenancy", "link", "nic", "agent")
)
_STATES = {name: number for number, name in HEALTH_STATES.items()}
SOURCE_COLUMNS = (
    tables.TableColumn("source", "SOURCE"),
    tables.TableColumn("state", "STATE"),
    tables.number("age_seconds", "AGE", tables.show_age),
)


class MetricSample(NamedTuple):
    """One line of the text format."""

    name: str
    labels: dict[str, str]
    value: float


def parse_metrics(text: str) -> Iterator[MetricSample]:
    """Yield the samples of a text; lines that are not samples are skipped."""
    for line in text.split("\n"):
        if line.startswith("#") or not (match := _SAMPLE.fullmatch(line.rstrip("\r"))):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = {
            name: _ESCAPE.sub(_unescape, quoted) for name, quoted in _LABEL.findall(match[2] or "")
        }
        yield MetricSample(match[1], labels, value)


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


@dataclass
class AgentReading:
    """Readings of a node, and the state of the sources of its agent."""

    sent_ns: int
    devices: DeviceReadings
    sources: dict[str, tables.Row] = field(default_factory=dict)
    is_agent: bool = False
    gpu_rows: list[tables.Row] = field(default_factory=list)
    max_age_seconds: float = MAX_AGE_SECONDS

    @property
    def age_seconds(self) -> float | None:
        """Age of the oldest reading that the GPUs are judged by; None if it is unknown."""
        ages = [
            row["age_seconds"]
            for name, row in self.sources.items()
            if name in {"gpu", "gpu_verdict"} and row.get("age_seconds") is not None
        ]
        return max(ages, default=None)

    @property
    def failed_sources(self) -> list[str]:
        """Names of the sources that fail."""
        return sorted(name for name, row in self.sources.items() if row.get("state") == "failed")

    def source_table(self) -> tables.ClientTable:
        """Return the sources, those that fail first."""
        order = {"failed": 0, "partial": 1}
        rows = sorted(
            self.sources.values(),
            key=lambda row: (order.get(row.get("state") or "", 2), row["source"]),
        )
        reasons = {"age_seconds": "the source has not been read"}
        return tables.ClientTable("sources", SOURCE_COLUMNS, rows, reasons=reasons)


@dataclass
class AgentReader:
    """Reads the metrics endpoint of an agent."""

    client: ReadClient

    rates: GpuRates = field(default_factory=GpuRates)

    def read(self) -> AgentReading:
        """Read the metrics. Raises ClientError."""
        answer = self.client.get("/metrics", _QUERY)
        try:
            text = answer.body.decode()
        except UnicodeDecodeError as error:
            message = (
                f"reading {self.client.address.url}/metrics failed: invalid text: expected UTF-8"
            )
            raise ClientError(message) from error
        found = read_metrics(text, answer.sent_ns)
        if not found.is_agent:
            url, is_collector = self.client.address.url, "\nrailscope_collector_" in text
            program = "a collector" if is_collector else "no Railscope agent"
            fix = f"--collector {url}" if is_collector else "check the URL"
            message = f"reading {url}/metrics failed: the server is {program}; fix: {fix}"
            raise ClientError(message)
        found.gpu_rows = self.rates.rows(found.devices)
        return found


def read_metrics(text: str, sent_ns: int) -> AgentReading:
    """Return the readings of a node from the text of its metrics."""
    found = AgentReading(sent_ns, DeviceReadings())
    devices = found.devices
    for name, labels, value in parse_metrics(text):
        if not name.startswith("railscope_"):  # of a textfile, with any labels
            continue
        if name.startswith("railscope_agent_") or name == "railscope_node_info":
            found.is_agent = True
            devices.node = labels.get("hostname", devices.node)
        elif source := labels.get("source"):
            _add_source(found, name, source, labels, value)
        elif "gpu" in labels:
            _add_gpu(devices, name, labels, value)
        elif interface := labels.get("interface"):
            if name == "railscope_nic_info" and labels.get("rail"):
                devices.nics.setdefault(labels["rail"], interface)
            elif len(labels) == 1:
                devices.values[name, interface] = value
    nic_age = found.sources.get("nic", {}).get("age_seconds") or 0.0
    # Rates are those of the time at which the counters were read.
    devices.counted_ns = sent_ns - round(nic_age * timestamps.SECOND_NS)
    return found


def _add_source(
    found: AgentReading, name: str, source: str, labels: dict[str, str], value: float
) -> None:
    row: dict[str, Any] = found.sources.setdefault(
        source, {"source": source, "state": None, "age_seconds": None}
    )
    if name == "railscope_source_state" and value:
        row["state"] = labels.get("state")
    elif name == "railscope_source_age_seconds":
        row["age_seconds"] = value


def _add_gpu(devices: DeviceReadings, name: str, labels: dict[str, str], value: float) -> None:
    gpu = labels["gpu"]
    facts = devices.gpus.setdefault(gpu, api.Gpu(gpu))
    if name == "railscope_gpu_info":
        rail = labels.get("rail", "")
        number = int(rail) if rail.isdecimal() and len(rail) < 6 else None  # noqa: PLR2004 - digits of a rail
        names = labels.get("index", ""), labels.get("pci_address", "")
        devices.gpus[gpu] = api.Gpu(gpu, *names, number)
    elif name == HEALTH and value:
        devices.values[name, gpu] = _STATES.get(labels.get("state", ""), 0)
    elif name == HEALTH_REASON and value:
        devices.health_reasons.setdefault(gpu, []).append(labels.get("reason", ""))
    elif set(labels) == {"gpu"}:
        devices.values[name, facts.gpu] = value
