"""Corrections: differences that late evidence makes in a closed period, billed in the open one.

Issued invoices are never changed. The difference, of either sign, becomes separate charges with the
original service dates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from collector.billing.charges import Charge, Kind, priced
from collector.billing.invoice import Invoice, Status
from collector.metering.instants import Period


def invoiced(invoices: Iterable[Invoice], period: Period) -> tuple[Charge, ...]:
    """Charges on valid invoices for service in a period, corrections included.

    `invoices` are those of the period and of all later ones. Drafts and void invoices do not count,
    nor do credits, adjustments and taxes, which do not depend on evidence.
    """
    return tuple(
        line.charge
        for invoice in invoices
        if invoice.status is Status.ISSUED
        for line in invoice.lines
        if line.charge.unit and _within(line.charge, period)
    )


def corrections(
    invoices: Iterable[Invoice], recomputed: Iterable[Charge], period: Period, open_start_ns: int
) -> tuple[Charge, ...]:
    """The signed difference between a closed period as rated again and as invoiced so far.

    The charges go on the invoices of the open period that starts at `open_start_ns`. If only the
    splitting of the time or the certainty of a state has changed, but no amount billed at any
    instant, nothing is corrected. Per tenant, invoiced + corrections = recomputed.
    """
    issued = [invoice for invoice in invoices if invoice.status is Status.ISSUED]
    closed = {one.tenant: one.invoice_id for one in issued if one.period == period}
    missing: dict[Charge, Fraction] = defaultdict(Fraction)
    states: dict[Charge, str] = {}
    for sign, charges in ((-1, invoiced(issued, period)), (1, tuple(recomputed))):
        for charge in charges:
            missing[_matter(charge)] += sign * charge.quantity
            states[_matter(charge)] = charge.state
    changed = _changed(missing)
    found = (
        _correction(
            replace(matter, state=states[matter], corrected_in_ns=open_start_ns),
            quantity,
            closed.get(matter.tenant, f"period:{period.start_ns}"),
        )
        for matter, quantity in missing.items()
        if quantity and _undated(matter) in changed
    )
    return tuple(sorted(found, key=lambda charge: (charge.tenant, charge.charge_id)))


def credit(tenant: str, amount: Fraction, period: Period, note: str) -> Charge:
    """A credit for service in a period. Raises ValueError if the amount is not positive."""
    if amount <= 0 or not note:
        message = f"a credit of {amount} to {tenant}: a credit is positive and says what it is for"
        raise ValueError(message)
    return Charge(tenant, Kind.CREDIT, period.start_ns, period.end_ns, -amount, note=note)


def adjustment(tenant: str, amount: Fraction, period: Period, note: str) -> Charge:
    """An amount of either sign, by decision and not by rating. Raises ValueError without a note."""
    if not note:
        message = f"an adjustment of {amount} for {tenant} says what it is for"
        raise ValueError(message)
    return Charge(tenant, Kind.ADJUSTMENT, period.start_ns, period.end_ns, amount, note=note)


def _within(charge: Charge, period: Period) -> bool:
    return period.start_ns <= charge.service_t0_ns and charge.service_t1_ns <= period.end_ns


def _matter(charge: Charge) -> Charge:
    """The charge without quantity, amount, state and correction references."""
    nothing = Fraction(0)
    return replace(
        charge, quantity=nothing, amount=nothing, state="", corrects="", corrected_in_ns=None
    )


def _undated(matter: Charge) -> Charge:
    return replace(matter, service_t0_ns=0, service_t1_ns=0)


def _changed(missing: Mapping[Charge, Fraction]) -> set[Charge]:
    """The matters, without dates, of which the billed quantity changed at some instant."""
    steps: dict[Charge, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for matter, quantity in missing.items():
        density = quantity / (matter.service_t1_ns - matter.service_t0_ns)
        step = steps[_undated(matter)]
        step[matter.service_t0_ns] += density
        step[matter.service_t1_ns] -= density
    return {matter for matter, step in steps.items() if any(step.values())}


def _correction(matter: Charge, quantity: Fraction, corrects: str) -> Charge:
    if matter.unit is None:
        message = f"a {matter.kind} is not rated, so no evidence corrects it"
        raise ValueError(message)
    amount = priced(quantity, matter.unit, matter.price_nano)
    return replace(matter, quantity=quantity, amount=amount, corrects=corrects)
