"""Check that the records of every source are complete: each source numbers its records without a gap.

The records of an agent arrive in envelopes and may be late; those of the log's own writer cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from collector.framelog.sequences import Ranges
from railscope.audit.record import Record, Source

MAX_FINDINGS = 1000
MAY_BE_LATE = "agent"


@dataclass(slots=True)
class _Counter:
    """Record numbers received from one source."""

    next: int = 0
    late: Ranges | None = None
    """Late arrivals: numbers that were missing when a higher number arrived, and arrived afterwards."""


@dataclass(slots=True)
class _Gap:
    """Range of numbers that had not arrived before a record."""

    before: int
    source: Source
    first: int
    last: int


@dataclass(slots=True)
class Continuity:
    """Tracks the counters of all sources, in the order of the log."""

    _counters: dict[tuple[str, str, str], _Counter] = field(default_factory=dict)
    _gaps: list[_Gap] = field(default_factory=list)
    _again: list[tuple[int, str]] = field(default_factory=list)
    _more: int = 0

    def add(self, record: Record) -> None:
        """Process the next record of the log."""
        source = record.src
        key = (source.kind, source.id, source.boot)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = _Counter()
        if source.n > counter.next:
            self._miss(_Gap(record.seq, source, counter.next, source.n - 1))
        elif source.n < counter.next:
            self._late(record, counter)
        counter.next = max(counter.next, source.n + 1)

    def _miss(self, gap: _Gap) -> None:
        if len(self._gaps) < MAX_FINDINGS:
            self._gaps.append(gap)
        else:
            self._more += 1

    def _late(self, record: Record, counter: _Counter) -> None:
        source, late = record.src, counter.late
        awaited = source.kind == MAY_BE_LATE and any(
            gap.first <= source.n <= gap.last and _of(gap.source) == _of(source)
            for gap in self._gaps
        )
        if late is None:
            late = counter.late = Ranges([], [])
        if awaited and late.missing_in(source.n, source.n):
            late.add(source.n, source.n)
        elif len(self._again) < MAX_FINDINGS:
            what = f"{_name(source)}: its record {source.n} comes again or late"
            self._again.append((record.seq, what))
        else:
            self._more += 1

    def findings(self) -> tuple[str, ...]:
        """Return the findings that a person must explain, in the order of the log."""
        found = list(self._again)
        for gap in self._gaps:
            late = self._counters[_of(gap.source)].late or Ranges([], [])
            found += [
                (gap.before, f"{_name(gap.source)}: its records {first} to {last} are missing")
                for first, last in late.missing_in(gap.first, gap.last)
            ]
        more = (f"and {self._more} more",) if self._more else ()
        return (*(f"before record {before}: {what}" for before, what in sorted(found)), *more)


def _of(source: Source) -> tuple[str, str, str]:
    return source.kind, source.id, source.boot


def _name(source: Source) -> str:
    return f"{source.kind} {source.id}, boot {source.boot}"
