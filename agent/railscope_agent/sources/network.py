"""The kernel's network: links and bonds of interfaces, and counters of its protocols.

Counts are those of the agent's network namespace. RDMA traffic bypasses all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from railscope.catalog import declare, entities, host as host_catalog, network as network_catalog
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading, parse_integer, reason_of
from railscope_agent.host import Host, Json
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source,
)
from railscope_agent.sources.source_bases import KeyedFileSource, ParseFile, whole_lines
from railscope_agent.topology.network import NetworkScanner

NET = "/sys/class/net"


def parse_speed(content: bytes) -> Reading:
    """Speed in Mb/s; -1 marks a down link or a driver that does not report it, and is unsupported."""
    reading = parse_integer(content)
    return Absent.UNSUPPORTED if isinstance(reading, int) and reading < 0 else reading


_FILES: tuple[tuple[str, declare.Metric, Callable[[bytes], Reading]], ...] = (
    ("speed", host_catalog.LINK_SPEED, parse_speed),
    ("carrier", host_catalog.LINK_UP, parse_integer),
    ("carrier_changes", host_catalog.LINK_CHANGES, parse_integer),
)


class LinkSource(source.SourceWithFiles):
    """Speed, carrier and carrier changes of every interface.

    One answer of rtnetlink contains the carrier of all interfaces, up or not; without rtnetlink, as
    in a copied tree, the files of each interface are read.

    It is separate from the source of the node, because the kernel queries the NIC's driver for some values.
    """

    name = "link"
    family = "network"

    def __init__(self, wiring: NetworkScanner | None = None) -> None:
        self._wiring = wiring or NetworkScanner()
        self._parsers: list[Callable[[bytes], Reading]] = []
        self._with_carrier: list[str] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the interfaces; files that fail now are not read again until the next probe."""
        columns = probe_result.ColumnBuilder()
        paths: list[str] = []
        self._parsers = []
        interfaces = fact_readers.list_names(host, NET)
        try:
            links = _links(host)
        except OSError:
            links = {}
        self._with_carrier = [name for name in interfaces if "carrier" in links.get(name, {})]
        for interface in interfaces:
            for file, metric, parse in _FILES[:1] if interface in self._with_carrier else _FILES:
                path = f"{NET}/{interface}/{file}"
                if fact_readers.read_text(host, path):
                    columns.add(metric, Entity(entities.NIC, (interface,)))
                    paths.append(path)
                    self._parsers.append(parse)
        for interface in self._with_carrier:
            metrics = host_catalog.LINK_UP, host_catalog.LINK_CHANGES
            columns.add_each(metrics, Entity(entities.NIC, (interface,)))
        self._keep(host, paths)
        verdict = (
            probe_result.ProbeVerdict.SUPPORTED
            if columns.columns
            else probe_result.ProbeVerdict.ABSENT
        )
        detail = probe_result.format_count(len(interfaces), "interface")
        finding = probe_result.ProbeFinding("network links", verdict, detail)
        return columns.result(finding, columnless_entities=self._wiring.find_nics(host))

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read every file, and all carriers in one call."""
        for files in self._files:
            for column, parse in enumerate(self._parsers):
                into.put(column, answer_readings.parsed_reading(files.text, column, parse))
        if self._with_carrier:
            self._read_carriers(host, into, len(self._parsers))

    def _read_carriers(self, host: Host, into: row_builder.RowBuilder, column: int) -> None:
        try:
            links = _links(host)
        except OSError as error:
            into.put_none(column, 2 * len(self._with_carrier), reason_of(error))
            return
        for first, interface in enumerate(self._with_carrier):
            link = links.get(interface)
            carrier = (
                answer_readings.pick_reading(lambda of: int(of["up"] and of["carrier"]), link)
                if link
                else Absent.GONE
            )
            changes = link.get("carrier_changes", Absent.ERROR) if link else Absent.GONE
            into.put_readings(column + 2 * first, (carrier, changes))


def _links(host: Host) -> dict[str, Json]:
    """Interfaces by name. Raises OSError."""
    return {link["name"]: link for link in host.call("netlink", "links")}


_LACP = "802.3ad"
ReadColumn = Callable[[Host], Reading]


class BondSource(source.SourceWithoutResources):
    """Links, active members, LACP state and link failures of every bond.

    The values are from the bonding driver. Files: torvalds/linux drivers/net/bonding/bond_sysfs.c and
    bond_sysfs_slave.c; /proc/net/bonding has the same content as prose, but hides the active aggregator
    from readers without CAP_NET_ADMIN.
    """

    name = "bonds"
    family = "host"

    def __init__(self) -> None:
        self._readers: list[ReadColumn] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the bonds and their members."""
        columns = probe_result.ColumnBuilder()
        self._readers = []

        def add(metric: declare.Metric, about: Entity, read: ReadColumn) -> None:
            columns.add(metric, about)
            self._readers.append(read)

        findings = []
        for bond in fact_readers.read_text(host, f"{NET}/bonding_masters").split():
            directory = f"{NET}/{bond}/bonding"
            mode = fact_readers.read_text(host, f"{directory}/mode").split(" ")[0]  # "802.3ad 4"
            entity = Entity(entities.BOND, (bond,), fact_readers.nonempty_facts(mode=mode))
            members = fact_readers.read_text(host, f"{directory}/slaves").split()
            add(network_catalog.BOND_UP, entity, _state_reader(f"{directory}/mii_status", b"up"))
            add(network_catalog.BOND_MEMBERS, entity, _count_reader(f"{directory}/slaves"))
            for member in members:
                _add_member(add, entity, member, lacp=mode == _LACP)
            detail = f"{mode or 'unknown mode'}, {', '.join(members) or 'no members'}"
            findings.append(probe_result.ProbeFinding.supported(f"bond {bond}", detail))
        if not findings:
            findings.append(
                probe_result.ProbeFinding.absent("bonds", "the node has no bonded interface")
            )
        return columns.result(*findings)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read every file."""
        for column, read in enumerate(self._readers):
            try:
                into.put(column, read(host))
            except OSError as error:
                into.put(column, reason_of(error))


def _add_member(
    add: Callable[[declare.Metric, Entity, ReadColumn], None],
    bond: Entity,
    member: str,
    *,
    lacp: bool,
) -> None:
    about = bond.child(entities.BOND_MEMBER, member)
    directory = f"{NET}/{member}/bonding_slave"
    failures = f"{directory}/link_failure_count"
    add(network_catalog.BOND_MEMBER_UP, about, _state_reader(f"{directory}/mii_status", b"up"))
    add(network_catalog.BOND_MEMBER_ACTIVE, about, _state_reader(f"{directory}/state", b"active"))
    add(
        network_catalog.BOND_MEMBER_FAILURES, about, lambda host: parse_integer(host.read(failures))
    )
    if lacp:
        active = f"{NET}/{bond.key[0]}/bonding/ad_aggregator"
        same = _same_aggregator(active, f"{directory}/ad_aggregator_id")
        add(network_catalog.BOND_MEMBER_AGGREGATED, about, same)


def _state_reader(path: str, state: bytes) -> ReadColumn:
    return lambda host: int(host.read(path).strip().lower() == state)


def _count_reader(path: str) -> ReadColumn:
    return lambda host: len(host.read(path).split())


def _same_aggregator(active_path: str, member_path: str) -> ReadColumn:
    """Column that is 1 if two files contain the same aggregator; 0 and N/A mean that there is none."""

    def read(host: Host) -> Reading:
        active, member = (
            parse_integer(host.read(active_path)),
            parse_integer(host.read(member_path)),
        )
        return active if isinstance(active, Absent) else int(active == member != 0)

    return read


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


_NODE = Entity(entities.NODE)
_NUMBER = "number"
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
        steps = {cpu: (count - self._last.get(cpu, 0)) % _WRAP for cpu, count in counts.items()}
        common = steps.keys() & self._last.keys()
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


class ProtocolSource(KeyedFileSource):
    """Retransmits, drops, full buffers, congestion marks and full tables of the node."""

    name = "protocols"
    family = "host"

    def __init__(self) -> None:
        super().__init__()
        self._softnet = ProcessorTable(parse_softnet)
        self._conntrack = ProcessorTable(parse_conntrack)

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the counters that this kernel has."""
        columns = probe_result.ColumnBuilder()
        self._files = []
        files: tuple[tuple[str, ParseFile, Mapping[Hashable, Column]], ...] = (
            (fact_readers.network_file(host, SNMP), parse_pairs, _SNMP_COLUMNS),
            (fact_readers.network_file(host, NETSTAT), parse_pairs, _NETSTAT_COLUMNS),
            (fact_readers.network_file(host, SOFTNET), self._softnet.read, _of_node(_SOFTNET)),
            (
                fact_readers.network_file(host, CONNTRACK),
                self._conntrack.read,
                _of_node(_CONNTRACK),
            ),
            (
                f"{_LIMITS}_count",
                _single_number,
                {_NUMBER: (network_catalog.CONNTRACK_ENTRIES, _NODE)},
            ),
            (f"{_LIMITS}_max", _single_number, {_NUMBER: (network_catalog.CONNTRACK_LIMIT, _NODE)}),
        )
        for path, parse, metrics_of_file in files:
            self._add_file(host, columns, path, parse, metrics_of_file.get)
        names = [file.path.rsplit("/", 1)[-1] for file in self._files]
        detail = "/proc/net contains no statistics"
        if not names:
            return columns.result(probe_result.ProbeFinding.absent("network protocols", detail))
        detail = (
            f"{probe_result.format_count(len(columns.columns), 'reading')} of {', '.join(names)}"
        )
        return columns.result(probe_result.ProbeFinding.supported("network protocols", detail))


def _single_number(content: bytes) -> dict[Hashable, Reading]:
    return {_NUMBER: parse_integer(content)}
