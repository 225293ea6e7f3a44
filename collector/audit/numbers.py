"""Numbers of the audit log's components for the collector's metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from collector.audit.drain import Drain
from collector.audit.guard import Guard
from collector.audit.ledger_watch import LedgerWatch
from collector.audit.observed import Observed
from collector.audit.rereading import Rereading
from collector.audit.witnesses import Witnesses
from collector.fleet.cell import Cell
from railscope.catalog import audit as c


@dataclass(slots=True)
class AuditNumbers:
    """Sources of the numbers."""

    observed: Observed
    drain: Drain
    guard: Guard
    witnesses: Witnesses
    rereading: Rereading
    watch: LedgerWatch

    def cells(self) -> list[Cell]:
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
        return [Cell(metric, (), value) for metric, value in numbers if value is not None]
