"""Whether every source's records are all there: each counts its own without a gap."""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope.audit.record import Record, Source

MOST_FINDINGS = 1000


@dataclass(slots=True)
class Continuity:
    """Follows the counters of all sources, in the order of the log."""

    _next: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _findings: list[str] = field(default_factory=list)
    _more: int = 0

    def add(self, record: Record) -> None:
        """Take the next record of the log."""
        source = record.src
        key = (source.kind, source.id, source.boot)
        expected = self._next.get(key, 0)
        if source.n != expected:
            self._report(record.seq, source, expected)
        self._next[key] = max(expected, source.n + 1)

    def _report(self, sequence: int, source: Source, expected: int) -> None:
        if len(self._findings) >= MOST_FINDINGS:
            self._more += 1
            return
        who = f"{source.kind} {source.id}, boot {source.boot}"
        if source.n > expected:
            what = f"its records {expected} to {source.n - 1} are missing"
        else:
            what = f"its record {source.n} comes again or late"
        self._findings.append(f"before record {sequence}: {who}: {what}")

    def findings(self) -> tuple[str, ...]:
        """What somebody must explain, in the order of the log."""
        more = (f"and {self._more} more",) if self._more else ()
        return (*self._findings, *more)
