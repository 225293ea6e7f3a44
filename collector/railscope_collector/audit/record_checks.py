"""Findings that no signature covers but a person must explain: gaps, unpaired claims, clock errors.

Each source numbers its records without a gap. The records of an agent arrive in envelopes and may
be late; those of the log's own writer cannot be.

Where archived records are not read, nothing is reported that only they could explain.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope.audit import merkle
from railscope.audit.record import (
    AuditRecord,
    encode_audit_record,
    parse_number,
)
from railscope.timestamps import MILLISECOND_NS, SECOND_NS
from railscope_collector.audit import claims_in_force
from railscope_collector.framelog.received_frames import SequenceRanges
from railscope_collector.ledger.ledger_records import LedgerRecords

MAX_FINDINGS = 1000
MAY_BE_LATE = "agent"


@dataclass(slots=True)
class _RecordGap:
    """Range of numbers of a source that had not arrived before a record."""

    before: int
    source: tuple[str, str, str]
    first: int
    last: int


@dataclass(slots=True)
class SourceContinuity:
    """Tracks the numbers of all sources, in the order of the log."""

    is_partial: bool = False
    """True if the records before were not read."""
    _received: dict[tuple[str, str, str], SequenceRanges] = field(default_factory=dict)
    """Numbers by kind, identity and boot of the source."""
    _gaps: list[_RecordGap] = field(default_factory=list)
    _again: list[tuple[int, str]] = field(default_factory=list)
    _uncounted: int = 0

    def add(self, record: AuditRecord) -> None:
        """Process the next record of the log."""
        number, source = record.src.n, (record.src.kind, record.src.id, record.src.boot)
        received = self._received.setdefault(source, SequenceRanges([], []))
        # The numbers before may be in records that are not read.
        first = number if self.is_partial else 0
        following = received.ends[-1] + 1 if received.ends else first
        is_first = bool(received.missing_in(number, number))
        received.add(number, number)
        if number == following:
            return
        is_late = number < following
        if is_late and is_first and record.src.kind == MAY_BE_LATE:
            return
        if len(self._again if is_late else self._gaps) >= MAX_FINDINGS:
            self._uncounted += 1
            received.add(min(number, following), number)  # holds no more ranges than findings
        elif is_late:
            finding = f"{_source_name(source)}: its record {number} is received again or late"
            self._again.append((record.seq, finding))
        else:
            self._gaps.append(_RecordGap(record.seq, source, following, number - 1))

    def findings(self) -> tuple[str, ...]:
        """Return the findings that a person must explain, in the order of the log."""
        findings = list(self._again)
        for gap in self._gaps:
            for first, last in self._received[gap.source].missing_in(gap.first, gap.last):
                finding = f"{_source_name(gap.source)}: its records {first} to {last} are missing"
                findings.append((gap.before, finding))
        more = (f"and {self._uncounted} more",) if self._uncounted else ()
        return (
            *(f"before record {before}: {finding}" for before, finding in sorted(findings)),
            *more,
        )


def _source_name(source: tuple[str, str, str]) -> str:
    kind, identity, boot = source
    return f"{kind} {identity}, boot {boot}"


ARCHIVE = "log.archive"
"""Type of the record that entries were archived; all entries before them were archived earlier."""


def archived_end(record: AuditRecord) -> int:
    """Return the number of records, from the first on, that are archived according to a record."""
    first, count = record.data.get("first"), record.data.get("records")
    return first + count if isinstance(first, int) and isinstance(count, int) else 0


TOLERANCE_NS = 2_000_000_000
"""Tolerated backward step of the clock of the log's own writer."""
AHEAD_NS = 60_000_000_000
"""Tolerated lead of an event's timestamp over the time of its receipt."""


@dataclass(slots=True)
class ClaimPairing:
    """Check that claims are assigned before they are released, and only once."""

    findings: list[tuple[int, str]] = field(default_factory=list)
    is_partial: bool = False
    """True if the records before were not read."""
    _open: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, record: AuditRecord) -> None:
        """Process the next record of the log."""
        claim = record.data.get("claim")
        if record.src.kind != "agent" or not isinstance(claim, str):
            return
        key = record.obj.node, record.obj.gpu, claim
        since = self._open.get(key)
        problem = ""
        if record.type == claims_in_force.ASSIGN and record.out == claims_in_force.DONE:
            self._open[key] = record.seq
            problem = f"was already assigned by record {since}" if since is not None else ""
        elif record.type in {
            claims_in_force.ASSIGN,
            claims_in_force.TRANSFER,
            claims_in_force.RELEASE,
        }:
            problem = "had not been assigned" if since is None and not self.is_partial else ""
            if record.type == claims_in_force.RELEASE:
                self._open.pop(key, None)
        if problem and len(self.findings) < MAX_FINDINGS:
            finding = f"{record.type} of claim {claim} on {record.obj.gpu}, which {problem}"
            self.findings.append((record.seq, finding))


def _is_dated_by_event(record: AuditRecord) -> bool:
    """True if the time of a record of the log's own writer is that of its event, which may be hours before.

    Records from the outbox have the time of their transaction, those of incidents the time up to which the diagnosis
    has evaluated the data of the fleet.
    """
    return bool(record.ref) or record.type.startswith("evidence.incident_")


@dataclass(slots=True)
class RecordTimes:
    """Check that timestamps are possible according to the clock of the log's writer."""

    findings: list[tuple[int, str]] = field(default_factory=list)
    _latest_ns: int = 0

    def add(self, record: AuditRecord) -> None:
        """Process the next record of the log."""
        timestamp_ns, received = int(record.t), record.data.get("received_ns")
        uncertain_ns = record.tu * MILLISECOND_NS
        problem = ""
        if isinstance(received, str):
            received_ns = parse_number(received)
            ahead_ns = 0 if received_ns is None else timestamp_ns - received_ns
            if received_ns is None:
                problem = f"cannot be checked: invalid received_ns {received[:30]!r}"
            elif ahead_ns > AHEAD_NS + uncertain_ns:
                problem = f"is {ahead_ns // SECOND_NS} s after its receipt"
        elif record.src.kind != "agent" and not _is_dated_by_event(record):
            back_ns = self._latest_ns - timestamp_ns
            if back_ns > TOLERANCE_NS + uncertain_ns:
                problem = f"is {back_ns // SECOND_NS} s before that of an earlier record"
            self._latest_ns = max(self._latest_ns, timestamp_ns)
        if problem and len(self.findings) < MAX_FINDINGS:
            self.findings.append((record.seq, f"{record.type}: its time {problem}"))


@dataclass(slots=True)
class RecordChecks:
    """All checks, applied record by record."""

    continuity: SourceContinuity = field(default_factory=SourceContinuity)
    pairing: ClaimPairing = field(default_factory=ClaimPairing)
    times: RecordTimes = field(default_factory=RecordTimes)
    witnesses: dict[str, str] = field(default_factory=dict)
    """Latest recorded key of each witness, by node."""
    ledger: LedgerRecords = field(default_factory=LedgerRecords)
    """Records of operations on the ledger's database."""
    genesis_key: str = ""
    """Public key of the log, from its first record."""
    archived: int = 0
    """Number of records, from the first on, that are archived according to the log."""
    losses: list[tuple[int, str]] = field(default_factory=list)

    def begin_after_unread_records(self) -> None:
        """Begin with the next record, because those before it are archived and not read."""
        self.continuity = SourceContinuity(is_partial=True)
        self.pairing = ClaimPairing(is_partial=True)

    def add(self, record: AuditRecord) -> None:
        """Process the next record of the log."""
        self.continuity.add(record)
        self.pairing.add(record)
        self.times.add(record)
        self.ledger.add(record)
        if record.seq == 0:
            self.ledger.log = merkle.leaf_hash(encode_audit_record(record)).hex()
        key = record.data.get("key")
        if record.type == "log.genesis" and record.seq == 0 and isinstance(key, str):
            self.genesis_key = key
        elif record.type == ARCHIVE and record.src.kind != "agent":
            self.archived = max(self.archived, archived_end(record))
        if (
            record.type == "log.witness"
            and record.out == claims_in_force.DONE
            and isinstance(key, str)
        ):
            self.witnesses[record.obj.node] = key
        elif record.type == "log.recovered" and len(self.losses) < MAX_FINDINGS:
            damaged, missing = record.data.get("damaged"), record.data.get("missing")
            finding = f"{missing} earlier records were lost unsigned"
            self.losses.append(
                (record.seq, f"damage found at a start: {damaged}" if damaged else finding)
            )

    def findings(self) -> tuple[str, ...]:
        """Return the findings that a person must explain."""
        findings = sorted([*self.pairing.findings, *self.times.findings, *self.losses])
        return (
            *self.continuity.findings(),
            *(f"record {sequence}: {finding}" for sequence, finding in findings),
        )
