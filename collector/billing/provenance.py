"""Provenance of the charges of an invoice: the GPU-days of the ledger they were computed from.

A charge refers to the GPU and the days of its service, each in the revision that the closing of its
invoice used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from sqlalchemy import select

from collector.billing.canonical import digest
from collector.billing.charges import Charge
from collector.billing.focus import Provenance
from collector.billing.invoice import Invoice
from collector.billing.store import BillingStore
from collector.ledger.queries import by_day, quantities
from collector.ledger.rows import GpuDay
from collector.ledger.schema import entries, revisions
from collector.ledger.tiling import DAY_NS
from collector.metering.tiling import State
from collector.metering.units import Tiling, Units, exact

_UNSEEN = (State.INFERRED.value, State.UNKNOWN.value)


class _Day(NamedTuple):
    """A GPU-day in one revision: its evidence, its capacity times time, and the unobserved part."""

    revision: int
    evidence_root: str
    quantity: Units
    unseen: Units


@dataclass(frozen=True, slots=True)
class Origins:
    """The GPU-days that an invoice was computed from."""

    days: Mapping[GpuDay, _Day]

    def of(self, charge: Charge) -> Provenance:
        """Provenance of one charge; empty if the ledger has none of its days.

        The evidence hash is the evidence root of its day; of several days, the SHA-256 of their
        roots in order, as a JSON list.
        """
        found = [self.days[key] for key in gpu_days(charge) if key in self.days]
        if not found:
            return Provenance()
        quantity = sum((Fraction(day.quantity) for day in found), Fraction(0))
        roots = [day.evidence_root for day in found]
        return Provenance(
            coverage_ratio=1 - sum((Fraction(day.unseen) for day in found), Fraction(0)) / quantity,
            evidence_hash=roots[0] if len(roots) == 1 else digest(roots),
            ledger_revisions=tuple(sorted({day.revision for day in found})),
        )


def gpu_days(charge: Charge) -> list[GpuDay]:
    """The days of the charge's service on its GPU, in order; empty for a charge without a GPU."""
    if not charge.resource:
        return []
    first, last = charge.service_t0_ns // DAY_NS, (charge.service_t1_ns - 1) // DAY_NS
    return [GpuDay(charge.resource, day) for day in range(first, last + 1)]


def origins(store: BillingStore, invoice: Invoice) -> Origins:
    """The GPU-days that an issued invoice was computed from. Raises LedgerError."""
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
    found: dict[GpuDay, _Day] = {}
    with store.database.transaction() as connection:
        for day, gpus in by_day(numbers):
            heads = connection.execute(
                select(revisions.c.gpu_uuid, revisions.c.revision, revisions.c.evidence_root).where(
                    revisions.c.day == day, revisions.c.gpu_uuid.in_(gpus)
                )
            ).all()
            keys = (entries.c.gpu_uuid, entries.c.revision, entries.c.state.in_(_UNSEEN))
            which = [entries.c.day == day, entries.c.gpu_uuid.in_(gpus),
                     entries.c.tiling == Tiling.COMPUTE.value]  # fmt: skip
            length = entries.c.t1_ns - entries.c.t0_ns
            times = quantities(connection, keys, length, None, which)
            for gpu, revision, root in heads:
                at = GpuDay(gpu, day)
                if numbers[at] == revision:
                    unseen = times.get((gpu, revision, True), 0) or times.get((gpu, revision, 1), 0)
                    seen = times.get((gpu, revision, False), 0) or times.get((gpu, revision, 0), 0)
                    found[at] = _Day(revision, root, exact(seen + unseen), unseen)
    return found
