"""The calendar: announced maintenance, outages and reservations.

TOML with the tables [[maintenance]], [[outage]] (holds, from, to) and [[reservation]] (name, tenant, holds, from, to).
`holds` is a GPU's UUID, a node's name or `*` for all; times have an offset; without `to` the entry
has no end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from railscope import claim_terms, convert_errors
from railscope.untrusted_text import TomlError, parse_toml
from railscope_collector.files.watched_file import (
    FileError,
    parse_span,
)
from railscope_collector.metering import evidence, timeline

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
    ) -> Iterator[timeline.TimePiece[CalendarEntry]]:
        """Entries on a GPU, each in its time: that of a node while the GPU was in it."""
        places, whole = list(stays), {ALL_DEVICES}
        if gpu.startswith(claim_terms.GPU_UUID_PREFIX):
            whole.add(gpu)
        for entry in self.entries:
            if entry.target in whole:
                yield timeline.TimePiece(entry.start_ns, entry.end_ns, entry)
                continue
            for start, end, node in places:
                first, last = max(start, entry.start_ns), min(end, entry.end_ns)
                if entry.target == node and first < last:
                    yield timeline.TimePiece(first, last, entry)

    def outages(self, gpu: str, stays: Iterable[tuple[int, int, str]]) -> list[evidence.GpuOutage]:
        """Outages of a GPU that was in these nodes."""
        return [
            evidence.GpuOutage(entry.kind == "maintenance", start_ns, end_ns)
            for start_ns, end_ns, entry in self._entries_of_gpu(gpu, stays)
            if entry.kind != "reservation"
        ]

    def reservations(
        self, gpu: str, stays: Iterable[tuple[int, int, str]]
    ) -> list[evidence.SlotReservation]:
        """Reservations of a GPU that was in these nodes."""
        return [
            # With the start of the entry: of two reservations the one that began last holds, whenever the GPU arrived.
            evidence.SlotReservation(
                entry.start_ns, entry.name, entry.tenant, end_ns, from_ns=start_ns
            )
            for start_ns, end_ns, entry in self._entries_of_gpu(gpu, stays)
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
