"""Numbers of the audit log's components for the collector's metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from collector.audit.collector_records import OutboxDrain
from collector.audit.event_recorder import EventRecorder
from collector.audit.housekeeping_files import CosignatureStore
from collector.audit.ledger_watch import LedgerWatch
from collector.audit.signing_guard import SigningGuard
from collector.audit.verification import PeriodicVerification
from collector.fleet.view_cells import ViewCell
from railscope.catalog import collector as c


@dataclass(slots=True)
class AuditMetrics:
    """Sources of the numbers."""

    observed: EventRecorder
    drain: OutboxDrain
    guard: SigningGuard
    witnesses: CosignatureStore
    rereading: PeriodicVerification
    watch: LedgerWatch

    def cells(self) -> list[ViewCell]:
        """Return all cells."""
        whole, age = self.rereading.whole, self.rereading.age_seconds
        numbers = (
            (c.AUDIT_WAITING, self.observed.waiting),
            (c.AUDIT_OVERFLOWED, self.observed.overflowed),
            (c.AUDIT_UNNUMBERED, self.observed.unnumbered),
            (c.OUTBOX_WAITING, self.drain.waiting),
            (c.AUDIT_DISPUTED, int(bool(self.guard.refused))),
            (c.AUDIT_WITNESSES, len(self.witnesses.nodes)),
            (c.LEDGER_REPLACED, int(bool(self.watch.problem))),
            (c.AUDIT_VERIFIED, None if whole is None else int(whole)),
            (c.AUDIT_VERIFIED_AGE, age),
        )
        return [ViewCell(metric, (), value) for metric, value in numbers if value is not None]
