"""Findings that no signature covers but a person must explain: gaps, unpaired claims, impossible times."""

from __future__ import annotations

from dataclasses import dataclass, field

from collector.audit.continuity import MAX_FINDINGS, Continuity
from collector.audit.holding import ASSIGN, DONE, RELEASE, TRANSFER
from collector.audit.ownership import EPOCH
from collector.ledger.ledger_records import LedgerRecords
from railscope.audit.merkle import leaf_hash
from railscope.audit.record import Record, encode

TOLERANCE_NS = 2_000_000_000
"""Tolerated backward step of the clock of the log's own writer."""
AHEAD_NS = 60_000_000_000
"""Tolerated lead of an event's timestamp over the time of its receipt."""
_NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Pairing:
    """Check that claims are assigned before they are released, and only once."""

    findings: list[tuple[int, str]] = field(default_factory=list)
    _open: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Process the next record of the log."""
        claim = record.data.get("claim")
        if record.src.kind != "agent" or not isinstance(claim, str):
            return
        key = record.obj.node, record.obj.gpu, claim
        since = self._open.get(key)
        problem = ""
        if record.type == ASSIGN and record.out == DONE:
            self._open[key] = record.seq
            problem = f"was assigned by record {since} already" if since is not None else ""
        elif record.type in {ASSIGN, TRANSFER, RELEASE}:
            problem = "had not been assigned" if since is None else ""
            if record.type == RELEASE:
                self._open.pop(key, None)
        if problem and len(self.findings) < MAX_FINDINGS:
            what = f"{record.type} of claim {claim} on {record.obj.gpu}, which {problem}"
            self.findings.append((record.seq, what))


@dataclass(slots=True)
class Times:
    """Check that timestamps are possible according to the clock of the log's writer."""

    findings: list[tuple[int, str]] = field(default_factory=list)
    _latest_ns: int = 0

    def add(self, record: Record) -> None:
        """Process the next record of the log."""
        instant_ns, received = int(record.t), record.data.get("received_ns")
        uncertain_ns = record.tu * _NS_PER_MS
        problem = ""
        if isinstance(received, str) and received.isdecimal():
            ahead_ns = instant_ns - int(received)
            if ahead_ns > AHEAD_NS + uncertain_ns:
                problem = f"lies {ahead_ns // 10**9} s after the moment it came"
        elif record.src.kind != "agent" and not record.ref:
            back_ns = self._latest_ns - instant_ns
            if back_ns > TOLERANCE_NS + uncertain_ns:
                problem = f"lies {back_ns // 10**9} s before a record that was written earlier"
            self._latest_ns = max(self._latest_ns, instant_ns)
        if problem and len(self.findings) < MAX_FINDINGS:
            self.findings.append((record.seq, f"{record.type}: its time {problem}"))


@dataclass(slots=True)
class Explaining:
    """All checks, applied record by record."""

    continuity: Continuity = field(default_factory=Continuity)
    pairing: Pairing = field(default_factory=Pairing)
    times: Times = field(default_factory=Times)
    witnesses: dict[str, str] = field(default_factory=dict)
    """Latest recorded key of each witness, by node."""
    ledger: LedgerRecords = field(default_factory=LedgerRecords)
    """Records of operations on the ledger's database."""
    epoch: int = 0
    """Highest epoch recorded with a start of the collector."""
    genesis_key: str = ""
    """Public key of the log, from its first record."""
    losses: list[tuple[int, str]] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Process the next record of the log."""
        self.continuity.add(record)
        self.pairing.add(record)
        self.times.add(record)
        self.ledger.add(record)
        if record.seq == 0:
            self.ledger.log = leaf_hash(encode(record)).hex()
        key = record.data.get("key")
        epoch = record.data.get(EPOCH)
        if record.type == "log.genesis" and record.seq == 0 and isinstance(key, str):
            self.genesis_key = key
        elif (
            record.type == "admin.config" and record.src.kind != "agent" and isinstance(epoch, int)
        ):
            self.epoch = max(self.epoch, epoch)
        if record.type == "log.witness" and record.out == DONE and isinstance(key, str):
            self.witnesses[record.obj.node] = key
        elif record.type == "log.recovered" and len(self.losses) < MAX_FINDINGS:
            damaged, missing = record.data.get("damaged"), record.data.get("missing")
            what = f"{missing} records before it were lost unsigned"
            self.losses.append(
                (record.seq, f"damage found at a start: {damaged}" if damaged else what)
            )

    def findings(self) -> tuple[str, ...]:
        """Return the findings that a person must explain."""
        found = sorted([*self.pairing.findings, *self.times.findings, *self.losses])
        return (
            *self.continuity.findings(),
            *(f"record {sequence}: {what}" for sequence, what in found),
        )
