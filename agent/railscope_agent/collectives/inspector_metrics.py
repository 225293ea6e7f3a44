"""Metrics files of NCCL Inspector: bandwidth and duration of the last dump, by GPU, communicator, kind and size.

Source: NVIDIA/nccl plugins/profiler/inspector (inspector_prom.cc), NCCL 2.29.3 and later. The plugin rewrites the file of a
GPU, and does not escape labels. Its bandwidths are geometric means: they cannot be added up, neither over time
nor over ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import msgspec

from railscope.untrusted_text import printable
from railscope_agent.collectives import CollectiveFormatError
from railscope_agent.collectives.inspector import MAX_BANDWIDTH_GBS, MAX_DURATION_NS

MAX_METRICS_BYTES = 256 << 10
"""Some 500 combinations of communicator, kind and size."""
_LABEL = re.compile(r'([a-z0-9_]{1,20})="([^"\\{}]{0,256})"')
_LINE = re.compile(
    rf"(nccl_[a-z0-9_]{{1,60}})\{{({_LABEL.pattern}(?:,{_LABEL.pattern})*)\}} ([0-9.e+-]{{1,32}})"
)
_KIND = re.compile(r"[A-Za-z0-9_]{1,32}")
_SIZE = re.compile(r"0B|\d{1,4}-\d{1,4}(?:B|KB|MB|GB|TB)", re.ASCII)
_COUNT = re.compile(r"\d{1,7}", re.ASCII)
_KIND_LABELS = {
    "nccl_bus_bandwidth_gbs": "collective",
    "nccl_collective_exec_time_microseconds": "collective",
    "nccl_p2p_bus_bandwidth_gbs": "p2p_operation",
    "nccl_p2p_exec_time_microseconds": "p2p_operation",
}
"""Label with the kind, by the name of a metric."""
_COUNTS = {
    "nccl_collectives_total": "calls",
    "nccl_p2p_total": "calls",
    "nccl_collectives_dropped_total": "dropped",
    "nccl_p2p_dropped_total": "dropped",
}
"""Counts of the process, which the plugin writes on request."""
_MICROSECOND_NS = 1000
_MAX_COUNT = 1 << 62


class ReportedCalls(msgspec.Struct, array_like=True):
    """Means of the last dump; None if the file has none."""

    key: tuple[str, ...]
    """Communicator's name, ranks and nodes, kind, size class, algorithm with protocol."""
    bus_bytes_per_second: int | None = None
    duration_ns: int | None = None


class InspectorMetrics(msgspec.Struct):
    """Content of a file: its reports, the number of lines by state, and the counts of the process."""

    reports: list[ReportedCalls] = []
    lines: dict[str, int] = {}
    calls: int | None = None
    dropped: int | None = None


def parse_metrics(content: bytes) -> InspectorMetrics:
    """Parse a file. Raises CollectiveFormatError if it is not complete."""
    # The plugin rewrites the file in place, so that a read may find a part of it.
    if not content.endswith(b"\n"):
        message = "no line break at the end"
        raise CollectiveFormatError(message)
    collector, lines = MetricsCollector(), Counter[str]()
    for line in content.decode(errors="surrogateescape").split("\n")[:-1]:
        if line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            is_read = match and collector.add(
                match[1], dict(_LABEL.findall(match[2])), _parse_value(match.groups()[-1])
            )
            lines["read" if is_read else "malformed"] += 1
    return collector.collect(lines)


class MetricsCollector:
    """Values of one dump of a process, which become its reports."""

    def __init__(self) -> None:
        self._reports: dict[tuple[str, ...], ReportedCalls] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, labels: Mapping[str, str], value: float) -> bool:
        """Add a value; False if it, or one of its labels, is malformed."""
        # This also excludes NaN, for which every comparison is false.
        if not 0 <= value < _MAX_COUNT:
            return False
        if count := _COUNTS.get(name):
            # Counts of collectives and of point-to-point operations have one name here.
            self._counts[count] = self._counts.get(count, 0) + round(value)
            return True
        key = _key(labels, _KIND_LABELS.get(name, ""))
        is_time = name.endswith("microseconds")
        largest = MAX_DURATION_NS / _MICROSECOND_NS if is_time else MAX_BANDWIDTH_GBS
        if not key or value > largest:
            return False
        report = self._reports.setdefault(key, ReportedCalls(key))
        if is_time:
            report.duration_ns = round(value * _MICROSECOND_NS)
        else:
            report.bus_bytes_per_second = round(value * 10**9)
        return True

    def collect(self, lines: dict[str, int]) -> InspectorMetrics:
        """Return the reports, with the number of lines by state."""
        return InspectorMetrics(list(self._reports.values()), lines, **self._counts)


def _parse_value(text: str) -> float:
    """Return a number; -1, which no metric has, if it is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0


def _key(labels: Mapping[str, str], kind_label: str) -> tuple[str, ...]:
    """Return the key of a line; empty if one of its labels is invalid."""
    kind, size = labels.get(kind_label, ""), labels.get("message_size", "")
    counts = labels.get("nranks", ""), labels.get("n_nodes", "")
    if not (_KIND.fullmatch(kind) and _SIZE.fullmatch(size) and all(map(_COUNT.fullmatch, counts))):
        return ()
    name, algorithm = (printable(labels.get(label, "")) for label in ("comm_name", "algo_proto"))
    return name, *counts, kind, size, algorithm
