"""Administrators' files about devices: the inventory, retired GPUs, the calendar.

The inventory has the expected numbers of GPUs and RDMA ports of each node, over time: CSV with the
columns node, gpus, rdma_ports, from, to. `gpus` and `rdma_ports` are whole numbers, or empty if the
number is not specified; times are RFC 3339 with an offset; an empty `to` means no end. Of two rows
of a node that are in force, the later start takes precedence.

Retired GPUs have no capacity in the account for a time, with the reason: CSV with the columns gpu,
from, to, reason. `gpu` is a UUID; times are RFC 3339 with an offset; an empty `to` means permanently,
otherwise the GPU is back from then on. Observations of such a GPU in the meantime stay in the
evidence, and count again if the row is removed.

The calendar has announced maintenance, outages and reservations: TOML with the tables
[[maintenance]], [[outage]] (holds, from, to) and [[reservation]] (name, tenant, holds, from, to).
`holds` is a GPU's UUID, a node's name or `*` for all; times have an offset; without `to` the entry
has no end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec

from railscope import convert_errors
from railscope.untrusted_text import NumberError, TomlError, parse_toml, parse_whole
from railscope_collector.files.watched_file import FileError, group_rows, parse_span, read_rows
from railscope_collector.metering import evidence, timeline

INVENTORY_HEADER = ("node", "gpus", "rdma_ports", "from", "to")
MAX_DEVICES = 10_000
_COLUMNS = (", from", ", to")


@dataclass(frozen=True, slots=True)
class ExpectedDevices:
    """Expected devices of a node in [start, end); None if not specified."""

    start_ns: int
    end_ns: int
    node: str
    gpus: int | None
    rdma_ports: int | None


@dataclass(frozen=True)
class DeviceInventory:
    """All rows of the file, by node and start."""

    by_node: dict[str, tuple[ExpectedDevices, ...]] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Iterable[ExpectedDevices]) -> DeviceInventory:
        """Build an inventory from rows in any order."""
        return cls(
            dict(sorted(group_rows(rows, attrgetter("node"), attrgetter("start_ns")).items()))
        )

    def __iter__(self) -> Iterator[ExpectedDevices]:
        return (row for rows in self.by_node.values() for row in rows)

    def expected_devices(self, timestamp_ns: int) -> dict[str, ExpectedDevices]:
        """Expected devices of each node in the inventory at an instant."""
        devices: dict[str, ExpectedDevices] = {}
        for row in self:
            if row.start_ns <= timestamp_ns < row.end_ns:
                devices[row.node] = row
        return devices

    def is_removed(self, node: str, timestamp_ns: int) -> bool:
        """True if a node was in the inventory before an instant, and is not at that instant."""
        rows = self.by_node.get(node, ())
        ended = any(row.end_ns <= timestamp_ns for row in rows)
        return ended and not any(row.start_ns <= timestamp_ns < row.end_ns for row in rows)


def parse_inventory(text: str) -> DeviceInventory:
    """Parse the inventory from the text of a file. Raises FileError that names line and column."""
    rows_by_start: dict[tuple[str, int], ExpectedDevices] = {}
    for number, (node, gpus, rdma_ports, start, end) in read_rows(text, INVENTORY_HEADER):
        line = f"line {number}"
        if not node:
            message = f"{line}: empty node: expected a name"
            raise FileError(message)
        row = ExpectedDevices(
            *parse_span(start, end or None, line, _COLUMNS),
            node,
            _count(gpus, f"{line}, gpus"),
            _count(rdma_ports, f"{line}, rdma_ports"),
        )
        if (node, row.start_ns) in rows_by_start:
            message = f"{line}: duplicate row of {node}: expected one per start time"
            raise FileError(message)
        rows_by_start[node, row.start_ns] = row
    return DeviceInventory.from_rows(rows_by_start.values())


def _count(text: str, location: str) -> int | None:
    if not text:
        return None
    with convert_errors(NumberError, FileError, f"{location}: "):
        return parse_whole(text, MAX_DEVICES + 1)


RETIREMENTS_HEADER = ("gpu", "from", "to", "reason")
MAX_CHARACTERS = 400


@dataclass(frozen=True, slots=True, order=True)
class Retirement:
    """A GPU is retired in [start, end)."""

    start_ns: int
    end_ns: int
    gpu: str
    reason: str = ""


@dataclass(frozen=True)
class RetiredGpus:
    """All rows of the file, by GPU."""

    by_gpu: dict[str, tuple[Retirement, ...]] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, found: Iterable[Retirement]) -> RetiredGpus:
        """Build from rows in any order."""
        return cls(dict(sorted(group_rows(found, attrgetter("gpu"), lambda row: row).items())))

    def __iter__(self) -> Iterator[Retirement]:
        return (row for rows in self.by_gpu.values() for row in rows)

    def find_retirement(self, gpu: str, timestamp_ns: int) -> Retirement | None:
        """The row by which a GPU is retired at an instant; None if it is not."""
        for retirement in self.by_gpu.get(gpu, ()):
            if retirement.start_ns <= timestamp_ns < retirement.end_ns:
                return retirement
        return None

    def service_stays(
        self, gpu: str, stays: Iterable[evidence.NodeStay]
    ) -> tuple[evidence.NodeStay, ...]:
        """The stays of a GPU without the time in which it is retired."""
        retired = self.by_gpu.get(gpu, ())
        if not retired:
            return tuple(stays)
        spans = [(row.start_ns, row.end_ns) for row in retired]
        return tuple(
            evidence.NodeStay(piece.start_ns, stay.node, piece.end_ns)
            for stay in stays
            for piece in timeline.subtract_spans(
                timeline.TimePiece(stay.start_ns, stay.end_ns, stay), spans
            )
        )

    def clip(self, gpu: str, claim: evidence.MeteredClaim) -> Iterator[evidence.MeteredClaim]:
        """A claim without the time in which its GPU is retired; the part after it is another claim."""
        spans = [(row.start_ns, row.end_ns) for row in self.by_gpu.get(gpu, ())]
        for start, end, _ in timeline.subtract_spans(
            timeline.TimePiece(claim.start_ns, claim.end_ns, claim), spans
        ):
            name = claim.id if start == claim.start_ns else f"{claim.id}#{start}"
            yield msgspec.structs.replace(claim, id=name, start_ns=start, end_ns=end)


def parse_retirements(text: str) -> RetiredGpus:
    """Parse retirements from the text of a file. Raises FileError that names line and column."""
    retirements: set[Retirement] = set()
    for number, (gpu, start, end, reason) in read_rows(text, RETIREMENTS_HEADER):
        line = f"line {number}"
        for column, value in (("gpu", gpu), ("reason", reason)):
            if len(value) > MAX_CHARACTERS:
                message = f"{line}: invalid {column}: expected at most {MAX_CHARACTERS} characters"
                raise FileError(message)
        if not gpu:
            message = f"{line}: empty gpu: expected a UUID"
            raise FileError(message)
        retirements.add(Retirement(*parse_span(start, end or None, line, _COLUMNS), gpu, reason))
    return RetiredGpus.from_rows(retirements)


ALL_DEVICES = "*"
_KEYS = {
    "maintenance": {"holds", "from", "to"},
    "outage": {"holds", "from", "to"},
    "reservation": {"name", "tenant", "holds", "from", "to"},
}


@dataclass(frozen=True, slots=True, order=True)
class CalendarEntry:
    """A maintenance, outage or reservation of a GPU, a node or everything."""

    start_ns: int
    end_ns: int
    target: str
    kind: str
    name: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Calendar:
    """All entries of the file."""

    entries: tuple[CalendarEntry, ...] = ()

    def __iter__(self) -> Iterator[CalendarEntry]:
        return iter(self.entries)

    def _entries_of_gpu(
        self, gpu: str, stays: Iterable[tuple[int, int, str]]
    ) -> Iterator[CalendarEntry]:
        """Entries on a GPU, cut to the time in which it was in the node that they name."""
        places = list(stays)
        for entry in self.entries:
            if entry.target in {gpu, ALL_DEVICES}:
                yield entry
                continue
            for start, end, node in places:
                first, last = max(start, entry.start_ns), min(end, entry.end_ns)
                if entry.target == node and first < last:
                    yield CalendarEntry(first, last, node, entry.kind, entry.name, entry.tenant)

    def outages(self, gpu: str, stays: Iterable[tuple[int, int, str]]) -> list[evidence.GpuOutage]:
        """Outages of a GPU that was in these nodes."""
        return [
            evidence.GpuOutage(entry.kind == "maintenance", entry.start_ns, entry.end_ns)
            for entry in self._entries_of_gpu(gpu, stays)
            if entry.kind != "reservation"
        ]

    def reservations(
        self, gpu: str, stays: Iterable[tuple[int, int, str]]
    ) -> list[evidence.SlotReservation]:
        """Reservations of a GPU that was in these nodes."""
        return [
            evidence.SlotReservation(entry.start_ns, entry.name, entry.tenant, entry.end_ns)
            for entry in self._entries_of_gpu(gpu, stays)
            if entry.kind == "reservation"
        ]


def parse_calendar(text: str) -> Calendar:
    """Parse the entries of a file. Raises FileError that names the entry."""
    with convert_errors(TomlError, FileError):
        document = parse_toml(text)
    if unknown := sorted(document.keys() - _KEYS.keys()):
        message = (
            f"unknown section [[{unknown[0]}]]: expected one of "
            f"{', '.join(f'[[{kind_name}]]' for kind_name in _KEYS)}"
        )
        raise FileError(message)
    entries = []
    for kind, tables in document.items():
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            message = f"invalid {kind}: expected tables: [[{kind}]]"
            raise FileError(message)
        entries += [_entry(kind, table, f"{kind} {n}") for n, table in enumerate(tables, 1)]
    return Calendar(tuple(sorted(entries)))


def _entry(kind: str, table: dict[str, Any], location: str) -> CalendarEntry:
    if unknown := sorted(table.keys() - _KEYS[kind]):
        message = f"{location}: unknown key {unknown[0]}: expected one of {', '.join(sorted(_KEYS[kind]))}"
        raise FileError(message)
    required = sorted(_KEYS[kind] - {"to"})
    if missing := [key for key in required if key not in table]:
        message = f"{location}: missing key {missing[0]}: expected all of {', '.join(required)}"
        raise FileError(message)
    texts = {name: table[name] for name in _KEYS[kind] & table.keys() - {"from", "to"}}
    for name, text in texts.items():
        if not isinstance(text, str) or not text or "\0" in text:
            message = f"{location}: invalid {name}: expected a string that is not empty"
            raise FileError(message)
    span = parse_span(table["from"], table.get("to"), location)
    return CalendarEntry(*span, texts.pop("holds"), kind, **texts)
