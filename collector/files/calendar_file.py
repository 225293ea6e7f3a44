"""Calendar of announced maintenance, outages and reservations, written by an administrator.

TOML with the tables [[maintenance]], [[outage]] (holds, from, to) and [[reservation]] (name,
tenant, holds, from, to). `holds` is a GPU's UUID, a node's name or `*` for all; times have an
offset; without `to` the entry has no end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from collector.files.watched import FileError, Watched, instant_ns, of_moment
from collector.metering.evidence import Outage, Reservation
from collector.metering.units import FOREVER_NS
from railscope.toml_text import TomlError, parse_toml

EVERYTHING = "*"
_WORDS = {
    "maintenance": {"holds", "from", "to"},
    "outage": {"holds", "from", "to"},
    "reservation": {"name", "tenant", "holds", "from", "to"},
}


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A maintenance, outage or reservation of a GPU, a node or everything."""

    start_ns: int
    end_ns: int
    holds: str
    kind: str
    name: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Calendar:
    """All entries of the file."""

    entries: tuple[Entry, ...] = ()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def _of(self, gpu: str, stays: Iterable[tuple[int, int, str]]) -> Iterator[Entry]:
        """Entries on a GPU, cut to the time in which it was in the node that they name."""
        places = list(stays)
        for entry in self.entries:
            if entry.holds in {gpu, EVERYTHING}:
                yield entry
                continue
            for start, end, node in places:
                first, last = max(start, entry.start_ns), min(end, entry.end_ns)
                if entry.holds == node and first < last:
                    yield Entry(first, last, node, entry.kind, entry.name, entry.tenant)

    def outages(self, gpu: str, stays: Iterable[tuple[int, int, str]]) -> list[Outage]:
        """Outages of a GPU that was in these nodes."""
        return [
            Outage(entry.kind == "maintenance", entry.start_ns, entry.end_ns)
            for entry in self._of(gpu, stays)
            if entry.kind != "reservation"
        ]

    def reservations(self, gpu: str, stays: Iterable[tuple[int, int, str]]) -> list[Reservation]:
        """Reservations of a GPU that was in these nodes."""
        return [
            Reservation(entry.start_ns, entry.name, entry.tenant, entry.end_ns)
            for entry in self._of(gpu, stays)
            if entry.kind == "reservation"
        ]


def parse(text: str) -> Calendar:
    """Parse the entries of a file. Raises FileError that names the entry."""
    try:
        document = parse_toml(text)
    except TomlError as error:
        raise FileError(str(error)) from error
    if unknown := sorted(document.keys() - _WORDS.keys()):
        message = f"[[{unknown[0]}]] is none of {', '.join(f'[[{word}]]' for word in _WORDS)}"
        raise FileError(message)
    found = []
    for kind, tables in document.items():
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            message = f"{kind} must be tables: [[{kind}]]"
            raise FileError(message)
        found += [_entry(kind, table, f"{kind} {n}") for n, table in enumerate(tables, 1)]
    return Calendar(tuple(sorted(found)))


def _entry(kind: str, table: dict[str, Any], where: str) -> Entry:
    if unknown := sorted(table.keys() - _WORDS[kind]):
        message = f"{where}: {unknown[0]} is none of {', '.join(sorted(_WORDS[kind]))}"
        raise FileError(message)
    if missing := sorted(_WORDS[kind] - table.keys() - {"to"}):
        message = f"{where}: {missing[0]} is missing"
        raise FileError(message)
    words = {name: table[name] for name in _WORDS[kind] & table.keys() - {"from", "to"}}
    for name, word in words.items():
        if not isinstance(word, str) or not word or "\0" in word:
            message = f"{where}: {name} must be a text that is not empty"
            raise FileError(message)
    start_ns = _moment(table["from"], where)
    end_ns = _moment(table["to"], where) if "to" in table else FOREVER_NS
    if end_ns <= start_ns:
        message = f"{where}: it ends before it begins"
        raise FileError(message)
    return Entry(start_ns, end_ns, kind=kind, **words)


def _moment(value: object, where: str) -> int:
    if isinstance(value, datetime):
        return of_moment(value, where)
    if isinstance(value, str):
        return instant_ns(value, where)
    message = f"{where}: {value!r} is no time"
    raise FileError(message)


def calendar_file(path: Path | None) -> Watched[Calendar]:
    """The watched calendar file of a path."""
    return Watched("calendar", path, parse, Calendar())
