"""TCP, UDP, IP, processor backlogs and connection tracking: counters of the kernel's network stack.

Files: /proc/net/snmp and netstat (pairs of lines, names and values: RFC 4293, 4022, 4113 and
torvalds/linux include/uapi/linux/snmp.h), softnet_stat (net/core/net-procfs.c) and nf_conntrack.
Counts are those of the agent's network namespace. RDMA traffic bypasses all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from agent.host import Host
from agent.sampling.facts import counted, network_file
from agent.sampling.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.sources.picked import Picked, whole_lines
from railscope.catalog import network as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import ECN_CODE, NODE
from railscope.entity import Entity
from railscope.reading import Absent, Reading, parse_integer

SNMP = "/proc/self/net/snmp"
NETSTAT = "/proc/self/net/netstat"
SOFTNET = "/proc/net/softnet_stat"
CONNTRACK = "/proc/net/stat/nf_conntrack"
_LIMITS = "/proc/sys/net/netfilter/nf_conntrack"
_WRAP = 1 << 32
_CPU_COLUMN = 12  # since Linux 5.10; earlier kernels also omit the lines of offline processors
_SOFTNET = {1: c.SOFTNET_DROPPED, 2: c.SOFTNET_SQUEEZED, 10: c.SOFTNET_FLOW_LIMITED}
_CONNTRACK = {
    "insert_failed": c.CONNTRACK_INSERT_FAILED,
    "drop": c.CONNTRACK_DROPPED,
    "early_drop": c.CONNTRACK_EVICTED,
}
_ECN = {
    ("IpExt", "InNoECTPkts"): "not_ect",
    ("IpExt", "InECT0Pkts"): "ect0",
    ("IpExt", "InECT1Pkts"): "ect1",
    ("IpExt", "InCEPkts"): "ce",
}
_NUMBER = "number"
_CUT_WORD = re.compile(rb"(?:^|\s)[^\s]{1,7}$")
"""Words have eight digits each (net/core/net-procfs.c): a shorter last one is truncated."""
_Key = TypeVar("_Key", bound=Hashable)


def parse_pairs(content: bytes) -> dict[Hashable, Reading]:
    """Values by protocol and name, from a line of names and the line of values after it.

    A line without its other half, as at the end of a truncated file, is skipped.
    """
    found: dict[Hashable, Reading] = {}
    names: dict[str, list[str]] = {}
    for line in whole_lines(content):
        protocol, *words = line.split() or [""]
        if protocol not in names or len(names[protocol]) != len(words):
            names[protocol] = words
            continue
        for name, value in zip(names.pop(protocol), words, strict=True):
            found[protocol.rstrip(":"), name] = parse_integer(value.encode())
    return found


def parse_softnet(content: bytes) -> dict[int, dict[Hashable, int]]:
    """Counts by processor and column, from a table of hexadecimal words without names."""
    found: dict[int, dict[Hashable, int]] = {}
    lines = content.decode(errors="replace").splitlines()
    is_cut = not content.endswith(b"\n") and bool(_CUT_WORD.search(content))
    for number, line in enumerate(lines[:-1] if is_cut else lines):
        words = _hexadecimal(line)
        if words:
            processor = words[_CPU_COLUMN] if len(words) > _CPU_COLUMN else number
            found[processor] = {i: words[i] for i in _SOFTNET if i < len(words)}
    return found


def parse_conntrack(content: bytes) -> dict[int, dict[Hashable, int]]:
    """Counts by processor and name, from a line of names and one line of words per processor."""
    head, *lines = whole_lines(content) or [""]
    names = head.split()
    rows = (_hexadecimal(line) for line in lines)
    return {
        number: {name: row[names.index(name)] for name in _CONNTRACK if name in names}
        for number, row in enumerate(rows)
        if len(row) == len(names)
    }


def _hexadecimal(line: str) -> list[int]:
    try:
        return [int(word, 16) for word in line.split()]
    except ValueError:
        return []


@dataclass(slots=True)
class ProcessorSum:
    """32-bit counts of each processor as one 64-bit sum, which continues when they wrap."""

    total: int = 0
    _last: dict[int, int] = field(default_factory=dict)

    def advance(self, counts: Mapping[int, int]) -> int:
        """Return the updated sum. If a count fell by more than a wrap, the sum restarts."""
        steps = {cpu: (count - self._last.get(cpu, 0)) % _WRAP for cpu, count in counts.items()}
        known = steps.keys() & self._last.keys()
        if any(steps[cpu] >= _WRAP // 2 for cpu in known):
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
        columns = {column for row in rows.values() for column in row}
        return {
            column: self._sums.setdefault(column, ProcessorSum()).advance(
                {cpu: row[column] for cpu, row in rows.items() if column in row}
            )
            for column in columns
        }


class Protocols(HoldsNothing):
    """Retransmits, drops, full buffers, congestion marks and full tables of the node."""

    name = "protocols"
    family = "host"

    def __init__(self, period_seconds: float = 5.0) -> None:
        self.period_seconds = period_seconds
        self._files: list[Picked] = []
        self._softnet = ProcessorTable(parse_softnet)
        self._conntrack = ProcessorTable(parse_conntrack)

    def probe(self, host: Host) -> Inventory:
        """Find the counters that this kernel has."""
        columns = Columns()
        node = Entity(NODE)
        snmp = _of(c.SNMP, node) | {("Tcp", "CurrEstab"): (c.TCP_CONNECTIONS, node)}
        netstat = _of(c.NETSTAT, node)
        netstat |= {key: (c.ECN, Entity(ECN_CODE, (code,))) for key, code in _ECN.items()}
        wanted: list[tuple[Picked, Mapping[Hashable, tuple[Metric, Entity]]]] = [
            (Picked(network_file(host, SNMP), parse_pairs), snmp),
            (Picked(network_file(host, NETSTAT), parse_pairs), netstat),
            (Picked(network_file(host, SOFTNET), self._softnet.read), _of(_SOFTNET, node)),
            (Picked(network_file(host, CONNTRACK), self._conntrack.read), _of(_CONNTRACK, node)),
            (Picked(f"{_LIMITS}_count", _one), {_NUMBER: (c.CONNTRACK_ENTRIES, node)}),
            (Picked(f"{_LIMITS}_max", _one), {_NUMBER: (c.CONNTRACK_LIMIT, node)}),
        ]
        for file, metrics in wanted:
            present = file.present(host)
            for key, (metric, about) in metrics.items():
                if not isinstance(present.get(key, Absent.GONE), Absent):
                    file.columns.append((columns.add(metric, about), key))
        self._files = [file for file, _ in wanted if file.columns]
        return Inventory(tuple(columns.columns), (), (_finding(columns, self._files),))

    def read(self, host: Host, into: Table) -> None:
        """Read each file once."""
        for file in self._files:
            file.read(host, into)


def _of(metrics: Mapping[_Key, Metric], node: Entity) -> dict[Hashable, tuple[Metric, Entity]]:
    return {key: (metric, node) for key, metric in metrics.items()}


def _one(content: bytes) -> dict[Hashable, Reading]:
    return {_NUMBER: parse_integer(content)}


def _finding(columns: Columns, files: list[Picked]) -> Finding:
    if not files:
        return Finding("network protocols", Verdict.ABSENT, "/proc/net has no statistics")
    said = ", ".join(file.path.rsplit("/", 1)[-1] for file in files)
    detail = f"{counted(len(columns.columns), 'reading')} of {said}"
    return Finding("network protocols", Verdict.SUPPORTED, detail)
