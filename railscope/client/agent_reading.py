"""Readings of a node from its agent's metrics, in the text format of Prometheus."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from railscope import api, timestamps
from railscope.catalog import METRICS
from railscope.client import gpu_tables, tables
from railscope.client.connection import ClientError, ReadClient

HEALTH, HEALTH_REASON = "railscope_gpu_health", "railscope_gpu_health_reason_active"
READ_AT = "railscope_source_read_timestamp_seconds"
CLAIMED, LINK_UP = "railscope_gpu_claimed_ratio", "railscope_network_link_up"
PORT_UP = "railscope_rdma_port_up"
_GPU_VALUES = {
    "utilization_ratio": "railscope_gpu_utilization_ratio",
    "power_watts": "railscope_gpu_power_watts",
    "temperature_celsius": "railscope_gpu_temperature_celsius",
    "memory_used_bytes": "railscope_gpu_memory_used_bytes",
    "memory_size_bytes": "railscope_gpu_memory_size_bytes",
}
_NIC_RATES = {
    "receive_bytes_per_second": "railscope_nic_receive_bytes_total",
    "transmit_bytes_per_second": "railscope_nic_transmit_bytes_total",
}
_UNCLAIMED = "railscope_gpu_unclaimed_processes"
MAX_AGE_SECONDS = 60.0
"""Age from which the readings of a source with a short period are stale."""
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: -?[0-9]+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPE = re.compile(r"\\(.)")
_QUERY = (
    ("detail", "full"),  # which the times of readings have
    *(
        ("collect[]", name)
        for name in ("gpu", "gpu_verdict", "tenancy", "link", "nic", "rdma", "agent")
    ),
)
_STATES = frozenset(METRICS[HEALTH].states.values())
_ABSENCES = gpu_tables.ABSENCES | {
    "holder": "no claim holds the GPU, or the agent does not expose it"
}
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
    """Yield the samples of a text; lines that are not samples, or have no finite value, are skipped."""
    for line in text.split("\n"):
        if line.startswith("#") or not (match := _SAMPLE.fullmatch(line.rstrip("\r"))):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if not math.isfinite(value):
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
    node: str = ""
    sources: dict[str, tables.Row] = field(default_factory=dict)
    is_agent: bool = False
    max_age_seconds: float = MAX_AGE_SECONDS
    values: dict[tuple[str, str], float] = field(default_factory=dict)
    """By metric and device."""
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    """Names of each GPU, by UUID."""
    nics: dict[str, str] = field(default_factory=dict)
    """NIC by rail."""
    rdma_devices: dict[str, str] = field(default_factory=dict)
    """RDMA device by NIC, whose port has the state where the interface has none: IP over InfiniBand."""
    states: dict[str, str] = field(default_factory=dict)
    """Verdict on each GPU."""
    reasons: dict[str, list[str]] = field(default_factory=dict)
    has_read_times: bool = False
    """True if the agent states when it read its sources."""
    counted_ns: int = 0
    """Time at which the counters of the NICs were read; 0 if it is unknown."""
    gpus: tuple[api.Gpu, ...] = ()

    def gpu_table(self) -> tables.ClientTable:
        """Return the GPUs, worst first."""
        reasons = _ABSENCES | dict.fromkeys(gpu_tables.RATES, self._absence_of_rates())
        return replace(gpu_tables.gpu_table(self.gpus), reasons=reasons)

    def _absence_of_rates(self) -> str:
        if self.has_read_times:
            return "a rate needs two readings"
        # Every agent exposes states of sources with the group that has the times.
        if any(row["state"] for row in self.sources.values()):
            return "the agent is older than this command and does not state when it read"
        return "the agent does not state when it read: its metrics group agent is off"

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
    _newest: AgentReading = field(default_factory=lambda: AgentReading(0))
    _before: AgentReading = field(default_factory=lambda: AgentReading(0))
    """The last two different readings: one that is received again has the rates that it had."""

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
        newest = self._newest
        if (found.node, found.counted_ns) != (newest.node, newest.counted_ns):
            self._before, self._newest = self._newest, found
        found.gpus = tuple(_make_gpu(found, self._before, gpu) for gpu in found.labels)
        return found


def read_metrics(text: str, sent_ns: int) -> AgentReading:
    """Return the readings of a node from the text of its metrics, without its GPUs."""
    found = AgentReading(sent_ns)
    for name, labels, value in parse_metrics(text):
        if not name.startswith("railscope_"):  # of a textfile, with any labels
            continue
        if name.startswith("railscope_agent_") or name == "railscope_node_info":
            found.is_agent = True
            found.node = labels.get("hostname", found.node)
        elif source := labels.get("source"):
            _add_source(found, name, source, labels, value)
        elif "gpu" in labels:
            _add_gpu(found, name, labels, value)
        elif interface := labels.get("interface"):
            if name == "railscope_nic_info" and labels.get("rail"):
                found.nics.setdefault(labels["rail"], interface)
                found.rdma_devices[interface] = labels.get("rdma_device", "")
            elif len(labels) == 1:
                found.values[name, interface] = value
        elif name == PORT_UP:
            found.values.setdefault((name, labels.get("device", "")), value)
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
    elif name == READ_AT:
        found.has_read_times = True
        if source == "nic":
            found.counted_ns = round(value * timestamps.SECOND_NS)


def _add_gpu(found: AgentReading, name: str, labels: dict[str, str], value: float) -> None:
    gpu = labels["gpu"]
    found.labels.setdefault(gpu, {})
    if name == "railscope_gpu_info":
        found.labels[gpu] = labels
    elif name == HEALTH and value:
        found.states[gpu] = labels.get("state", "")
    elif name == HEALTH_REASON and value:
        found.reasons.setdefault(gpu, []).append(labels.get("reason", ""))
    elif set(labels) == {"gpu"}:
        found.values[name, gpu] = value


def _make_gpu(found: AgentReading, before: AgentReading, gpu: str) -> api.Gpu:
    """Return a GPU with the NIC on its rail. Rates need the readings `before` these."""
    labels, values = found.labels[gpu], found.values
    rail, health = labels.get("rail", ""), found.states.get(gpu, "")
    health = health if health in _STATES else "unknown"
    nic = found.nics.get(rail, "")
    link_up = values.get((LINK_UP, nic), values.get((PORT_UP, found.rdma_devices.get(nic, ""))))
    unclaimed = values.get((_UNCLAIMED, gpu))
    claimed = values.get((CLAIMED, gpu), 0.0)
    readings: dict[str, Any] = {n: values.get((metric, gpu)) for n, metric in _GPU_VALUES.items()}
    readings |= {n: _rate(found, before, (metric, nic)) for n, metric in _NIC_RATES.items()}
    return api.Gpu(
        gpu,
        labels.get("index", ""),
        labels.get("pci_address", ""),
        int(rail) if rail.isdecimal() and len(rail) < 6 else None,  # noqa: PLR2004 - digits of a rail
        found.node,
        health,
        (nic,) if nic else (),
        health,
        tuple(found.reasons.get(gpu, ())),
        link_up=None if link_up is None else bool(link_up),
        unclaimed_processes=None if unclaimed is None else round(unclaimed),
        holders=(api.Holder("", "", "", claimed),) if claimed else (),
        **readings,
    )


def _rate(found: AgentReading, before: AgentReading, counter: tuple[str, str]) -> float | None:
    """Return the rate of a counter; None without two readings at different times, and at a reset."""
    new, old = found.values.get(counter), before.values.get(counter)
    seconds = (found.counted_ns - before.counted_ns) / timestamps.SECOND_NS
    is_timed = before.counted_ns > 0 and seconds > 0
    if new is None or old is None or not is_timed or new < old or before.node != found.node:
        return None
    return (new - old) / seconds
