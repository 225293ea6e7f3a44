"""Where the charges of an invoice come from: the GPU-days of the ledger that they rest on.

A charge leads back to the GPU and the days of its service, each in the revision that the closing
of its invoice rested on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from sqlalchemy import case, func, select

from collector.billing.canonical import digest
from collector.billing.charges import Charge
from collector.billing.focus import Provenance
from collector.billing.invoice import Invoice
from collector.billing.store import BillingStore
from collector.ledger.queries import by_day
from collector.ledger.rows import GpuDay
from collector.ledger.schema import entries, revisions
from collector.ledger.tiling import DAY_NS
from collector.metering.tiling import State
from collector.metering.units import Tiling

_UNSEEN = (State.INFERRED.value, State.UNKNOWN.value)


class _Day(NamedTuple):
    """A GPU-day in one revision: its evidence, its capacity times time, and what nobody saw of it."""

    revision: int
    evidence_root: str
    quantity: int
    unseen: int


@dataclass(frozen=True, slots=True)
class Origins:
    """The GPU-days that an invoice rests on."""

    days: Mapping[GpuDay, _Day]

    def of(self, charge: Charge) -> Provenance:
        """Of one charge; nothing where the ledger has none of its days.

        The evidence hash is the evidence root of its day; of several days, the SHA-256 of their
        roots in order, as a JSON list.
        """
        found = [self.days[key] for key in gpu_days(charge) if key in self.days]
        if not found:
            return Provenance()
        quantity = sum(day.quantity for day in found)
        roots = [day.evidence_root for day in found]
        return Provenance(
            coverage_ratio=1 - Fraction(sum(day.unseen for day in found), quantity),
            evidence_hash=roots[0] if len(roots) == 1 else digest(roots),
            ledger_revisions=tuple(sorted({day.revision for day in found})),
        )


def gpu_days(charge: Charge) -> list[GpuDay]:
    """The days of the charge's service on its GPU, in order; none for what is about no GPU."""
    if not charge.resource:
        return []
    first, last = charge.service_t0_ns // DAY_NS, (charge.service_t1_ns - 1) // DAY_NS
    return [GpuDay(charge.resource, day) for day in range(first, last + 1)]


def origins(store: BillingStore, invoice: Invoice) -> Origins:
    """What an issued invoice rests on. Raises LedgerError."""
    found = store.invoice(invoice.invoice_id)
    if found is None:
        return Origins({})
    numbers = store.revisions(found[1])
    wanted = {key for line in invoice.lines for key in gpu_days(line.charge)}
    return Origins(_read(store, {key: numbers[key] for key in wanted if key in numbers}))


def of_lines(store: BillingStore, invoice: Invoice) -> dict[str, Provenance]:
    """The provenance of each of its charges, by charge id. Raises LedgerError."""
    rests_on = origins(store, invoice)
    return {line.charge.charge_id: rests_on.of(line.charge) for line in invoice.lines}


def _read(store: BillingStore, numbers: Mapping[GpuDay, int]) -> dict[GpuDay, _Day]:
    unseen = case((entries.c.state.in_(_UNSEEN), entries.c.qty_capns), else_=0)
    found: dict[GpuDay, _Day] = {}
    with store.database.transaction() as connection:
        for day, gpus in by_day(numbers):
            key = (revisions.c.gpu_uuid, revisions.c.revision, revisions.c.evidence_root)
            # Sums of one day are within 64 bits.
            query = (
                select(
                    *key,
                    func.sum(entries.c.qty_capns).label("quantity"),
                    func.sum(unseen).label("unseen"),
                )
                .join_from(entries, revisions)
                .where(
                    entries.c.day == day,
                    entries.c.gpu_uuid.in_(gpus),
                    entries.c.tiling == Tiling.COMPUTE.value,
                )
                .group_by(*key)
            )
            for row in connection.execute(query):
                at = GpuDay(row.gpu_uuid, day)
                if numbers[at] == row.revision:
                    found[at] = _Day(
                        row.revision, row.evidence_root, int(row.quantity), int(row.unseen)
                    )
    return found
