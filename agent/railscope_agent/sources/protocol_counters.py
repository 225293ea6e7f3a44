"""Counters of the kernel's network protocols: retransmits, drops, full buffers, congestion marks.

Counts are those of the agent's network namespace. RDMA traffic bypasses all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from railscope.catalog import declare, entities, network as network_catalog
from railscope.frame import Column, Entity
from railscope.reading import Reading, parse_integer
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers
from railscope_agent.sampling.source import SYSTEM
from railscope_agent.sources.scan_source import Found, ParseFile, ScanSource, whole_lines

SNMP = "/proc/self/net/snmp"
NETSTAT = "/proc/self/net/netstat"
SOFTNET = "/proc/net/softnet_stat"
CONNTRACK = "/proc/net/stat/nf_conntrack"
_LIMITS = "/proc/sys/net/netfilter/nf_conntrack"
_WRAP = 1 << 32
_CPU_COLUMN = 12  # since Linux 5.10; earlier kernels also omit the lines of offline processors
_SOFTNET = {
    1: network_catalog.SOFTNET_DROPPED,
    2: network_catalog.SOFTNET_SQUEEZED,
    10: network_catalog.SOFTNET_FLOW_LIMITED,
}
_CONNTRACK = {
    "insert_failed": network_catalog.CONNTRACK_INSERT_FAILED,
    "drop": network_catalog.CONNTRACK_DROPPED,
    "early_drop": network_catalog.CONNTRACK_EVICTED,
}
_ECN = {
    ("IpExt", "InNoECTPkts"): "not_ect",
    ("IpExt", "InECT0Pkts"): "ect0",
    ("IpExt", "InECT1Pkts"): "ect1",
    ("IpExt", "InCEPkts"): "ce",
}
_TRUNCATED = re.compile(rb"(?:^|\s)[^\s]{1,7}$")
"""Numbers have eight digits each (net/core/net-procfs.c): a shorter last one is truncated."""

_NODE = Entity(entities.NODE)
_NUMBER = "number"


def parse_pairs(content: bytes) -> dict[Hashable, Reading]:
    """Values by protocol and name, from a line of names and the line of values after it.

    A line without its other half, as at the end of a truncated file, is skipped.

    Format of /proc/net/snmp and netstat: RFC 4293, 4022, 4113 and torvalds/linux
    include/uapi/linux/snmp.h.
    """
    readings: dict[Hashable, Reading] = {}
    names: dict[str, list[str]] = {}
    for line in whole_lines(content):
        protocol, *cells = line.split() or [""]
        if protocol not in names or len(names[protocol]) != len(cells):
            names[protocol] = cells
            continue
        for name, value in zip(names.pop(protocol), cells, strict=True):
            readings[protocol.rstrip(":"), name] = parse_integer(value.encode())
    return readings


def parse_softnet(content: bytes) -> dict[int, dict[Hashable, int]]:
    """Counts by processor and column, from a table of hexadecimal numbers without names.

    Format of /proc/net/softnet_stat: net/core/net-procfs.c.
    """
    rows: dict[int, dict[Hashable, int]] = {}
    lines = content.decode(errors="replace").splitlines()
    is_truncated = not content.endswith(b"\n") and bool(_TRUNCATED.search(content))
    for number, line in enumerate(lines[:-1] if is_truncated else lines):
        if row := _hexadecimal(line):
            processor = row[_CPU_COLUMN] if len(row) > _CPU_COLUMN else number
            rows[processor] = {i: row[i] for i in _SOFTNET if i < len(row)}
    return rows


def parse_conntrack(content: bytes) -> dict[int, dict[Hashable, int]]:
    """Counts by processor and name, from a line of names and one line of numbers per processor."""
    head, *lines = whole_lines(content) or [""]
    names = head.split()
    rows = (_hexadecimal(line) for line in lines)
    return {
        number: {name: row[names.index(name)] for name in _CONNTRACK if name in names}
        for number, row in enumerate(rows)
        if len(row) == len(names)
    }


def _hexadecimal(line: str) -> list[int]:
    """Return the numbers of a line, none if one of them is not of 32 bits, as those of both tables are."""
    try:
        numbers = [int(number, 16) for number in line.split()]
    except ValueError:
        return []
    return numbers if all(0 <= number < _WRAP for number in numbers) else []


def _of_node(metrics: Mapping[Any, declare.Metric]) -> dict[Hashable, Column]:
    return {key: (metric, _NODE) for key, metric in metrics.items()}


_SNMP_COLUMNS = _of_node(
    {**network_catalog.SNMP, ("Tcp", "CurrEstab"): network_catalog.TCP_CONNECTIONS}
)
_NETSTAT_COLUMNS = _of_node(network_catalog.NETSTAT) | {
    key: (network_catalog.ECN, Entity(entities.ECN_CODE, (code,))) for key, code in _ECN.items()
}


@dataclass(slots=True)
class ProcessorSum:
    """32-bit counts of each processor as one 64-bit sum, which continues when they wrap."""

    total: int = 0
    _last: dict[int, int] = field(default_factory=dict)

    def advance(self, counts: Mapping[int, int]) -> int:
        """Return the updated sum. If a count fell by more than a wrap, the sum restarts."""
        # Modulo the width of the kernel's counters: a wrap is an increase as any other.
        steps = {cpu: (count - self._last.get(cpu, 0)) % _WRAP for cpu, count in counts.items()}
        # A processor that was offline has no last count: its first one may be large.
        common = steps.keys() & self._last.keys()
        # A step of more than half the range within a period is not traffic, but a lower count: the counters
        # were restarted.
        if any(steps[cpu] >= _WRAP // 2 for cpu in common):
            self.total = sum(counts.values())
            self._last = dict(counts)
        else:
            self.total += sum(steps.values())
            self._last |= counts
        return self.total


@dataclass(slots=True)
class ProcessorTable:
    """A table with one line per processor, summed over processors by column."""

    parse: Callable[[bytes], Mapping[int, Mapping[Hashable, int]]]
    _sums: dict[Hashable, ProcessorSum] = field(default_factory=dict)

    def read(self, content: bytes) -> dict[Hashable, Reading]:
        """Sums by column."""
        rows = self.parse(content)
        columns = dict.fromkeys(column for row in rows.values() for column in row)
        return {
            column: self._sums.setdefault(column, ProcessorSum()).advance(
                {cpu: row[column] for cpu, row in rows.items() if column in row}
            )
            for column in columns
        }


_LIMIT_COLUMNS: dict[str, dict[Hashable, Column]] = {
    f"{_LIMITS}_count": {_NUMBER: (network_catalog.CONNTRACK_ENTRIES, _NODE)},
    f"{_LIMITS}_max": {_NUMBER: (network_catalog.CONNTRACK_LIMIT, _NODE)},
}


class ProtocolSource(ScanSource):
    """Retransmits, drops, full buffers, congestion marks and full tables of the node."""

    name = "protocols"
    lane = SYSTEM
    period_seconds = 5.0

    def __init__(self) -> None:
        super().__init__()
        softnet, conntrack = ProcessorTable(parse_softnet), ProcessorTable(parse_conntrack)
        self._tables: tuple[tuple[str, ParseFile, Mapping[Hashable, Column]], ...] = (
            (SNMP, parse_pairs, _SNMP_COLUMNS),
            (NETSTAT, parse_pairs, _NETSTAT_COLUMNS),
            (SOFTNET, softnet.read, _of_node(_SOFTNET)),
            (CONNTRACK, conntrack.read, _of_node(_CONNTRACK)),
            *((path, _single_number, columns) for path, columns in _LIMIT_COLUMNS.items()),
        )
        self._paths = {path: path for path in _LIMIT_COLUMNS}
        """Path of each file once it is found: /proc/self/net has the files of /proc/net too."""

    def readings(self, host: Host) -> Iterator[Found]:
        """Yield the counters that this kernel has."""
        for file, parse, columns in self._tables:
            path = self._paths.get(file) or fact_readers.network_file(host, file)
            if found := list(self.keyed(host, path, parse, columns.get)):
                self._paths[file] = path
                yield from found


def _single_number(content: bytes) -> dict[Hashable, Reading]:
    return {_NUMBER: parse_integer(content)}
