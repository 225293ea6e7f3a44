"""Findings that no signature covers but a person must explain: gaps, unpaired claims, clock errors.

Each source numbers its records without a gap. The records of an agent arrive in envelopes and may
be late; those of the log's own writer cannot be.

Where archived records are not read, nothing is reported that only they could explain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

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
class SourceContinuity:
    """Tracks the numbers of all sources, in the order of the log."""

    is_partial: bool = False
    """True if the records before were not read."""
    _received: dict[tuple[str, str, str], SequenceRanges] = field(default_factory=dict)
    """Numbers by kind, identity and boot of the source."""
    _first: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Number from which on they must all be there: those before may be in records that are not read."""
    _again: list[str] = field(default_factory=list)

    def add(self, record: AuditRecord) -> None:
        """Process the next record of the log."""
        number, source = record.src.n, (record.src.kind, record.src.id, record.src.boot)
        received = self._received.setdefault(source, SequenceRanges([], []))
        self._first.setdefault(source, number if self.is_partial else 0)
        is_again = not received.missing_in(number, number)
        is_late = bool(received.ends) and number < received.ends[-1]
        if is_again or (is_late and record.src.kind != MAY_BE_LATE):
            finding = f"its record {number} is received again or late"
            self._again.append(f"record {record.seq}: {_source_name(source)}: {finding}")
            del self._again[MAX_FINDINGS:]
        received.add(number, number)

    def findings(self) -> tuple[str, ...]:
        """Return the findings that a person must explain."""
        gaps = (
            f"{_source_name(source)}: its records {first} to {last} are missing"
            for source, received in self._received.items()
            for first, last in received.missing_in(self._first[source], received.ends[-1])
        )
        return *self._again, *islice(gaps, MAX_FINDINGS)


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


def _is_dated_by_event(record: AuditRecord) -> bool:
    """True if the time of a record of the log's own writer is that of its event, which may be hours before.

    Records from the outbox have the time of their transaction, those of incidents the time up to which the diagnosis
    has evaluated the data of the fleet.
    """
    return bool(record.ref) or record.type.startswith("evidence.incident_")


@dataclass(slots=True)
class RecordChecks:
    """All checks, applied record by record."""

    continuity: SourceContinuity = field(default_factory=SourceContinuity)
    witnesses: dict[str, str] = field(default_factory=dict)
    """Latest recorded key of each witness, by node."""
    ledger: LedgerRecords = field(default_factory=LedgerRecords)
    """Records of operations on the ledger's database."""
    genesis_key: str = ""
    """Public key of the log, from its first record."""
    archived: int = 0
    """Number of records, from the first on, that are archived according to the log."""
    _is_partial: bool = False
    """True if the records before were not read."""
    _problems: list[tuple[int, str]] = field(default_factory=list)
    _assigned: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Record of the assignment of each claim that was not released."""
    _latest_ns: int = 0
    """Latest time of the log's own writer."""

    def begin_after_unread_records(self) -> None:
        """Begin with the next record, because those before it are archived and not read."""
        self.continuity = SourceContinuity(is_partial=True)
        self._is_partial, self._assigned = True, {}

    def add(self, record: AuditRecord) -> None:
        """Process the next record of the log."""
        self.continuity.add(record)
        self.ledger.add(record)
        for problem in (self._check_claim(record), self._check_time(record), _find_loss(record)):
            if problem and len(self._problems) < MAX_FINDINGS:
                self._problems.append((record.seq, problem))
        if record.seq == 0:
            self.ledger.log = merkle.leaf_hash(encode_audit_record(record)).hex()
        key = record.data.get("key")
        if record.type == "log.genesis" and record.seq == 0 and isinstance(key, str):
            self.genesis_key = key
        elif record.type == ARCHIVE and record.src.kind != "agent":
            self.archived = max(self.archived, archived_end(record))
        elif (
            record.type == "log.witness"
            and record.out == claims_in_force.DONE
            and isinstance(key, str)
        ):
            self.witnesses[record.obj.node] = key

    def _check_claim(self, record: AuditRecord) -> str:
        """Check that claims are assigned before they are released, and only once."""
        claim = record.data.get("claim")
        if record.src.kind != "agent" or not isinstance(claim, str):
            return ""
        key, problem = (record.obj.node, record.obj.gpu, claim), ""
        since = self._assigned.get(key)
        assign, release = claims_in_force.ASSIGN, claims_in_force.RELEASE
        if record.type == assign and record.out == claims_in_force.DONE:
            self._assigned[key] = record.seq
            problem = f"was already assigned by record {since}" if since is not None else ""
        elif record.type in {assign, claims_in_force.TRANSFER, release}:
            problem = "had not been assigned" if since is None and not self._is_partial else ""
            if record.type == release:
                self._assigned.pop(key, None)
        return problem and f"{record.type} of claim {claim} on {record.obj.gpu}, which {problem}"

    def _check_time(self, record: AuditRecord) -> str:
        """Check that the time is possible according to the clock of the log's writer."""
        timestamp_ns, received = int(record.t), record.data.get("received_ns")
        uncertain_ns, problem = record.tu * MILLISECOND_NS, ""
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
        return problem and f"{record.type}: its time {problem}"

    def findings(self) -> tuple[str, ...]:
        """Return the findings that a person must explain."""
        problems = (f"record {sequence}: {problem}" for sequence, problem in self._problems)
        return *self.continuity.findings(), *problems


def _find_loss(record: AuditRecord) -> str:
    """Return the loss that a record of release 0.3.0 or earlier states."""
    if record.type != "log.recovered":
        return ""
    damaged, missing = record.data.get("damaged"), record.data.get("missing")
    return (
        f"damage found at a start: {damaged}"
        if damaged
        else f"{missing} earlier records were lost unsigned"
    )
