"""Corrections: differences that late evidence makes in a closed period, billed in the open one.

The difference, of either sign, becomes separate charges with the original service dates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from railscope_collector.billing import charges as charge_types
from railscope_collector.billing.invoices import Invoice, InvoiceStatus, is_within
from railscope_collector.metering.units import Period


def invoiced_charges(
    invoices: Iterable[Invoice], period: Period
) -> tuple[charge_types.Charge, ...]:
    """Charges on valid invoices for service in a period, corrections included.

    `invoices` are those of the period and of all later ones. Drafts and void invoices do not count,
    nor do credits, adjustments and taxes, which do not depend on evidence.
    """
    return tuple(
        line.charge
        for invoice in invoices
        if invoice.status is InvoiceStatus.ISSUED
        for line in invoice.lines
        if line.charge.unit and is_within(line.charge, period)
    )


def correction_charges(
    invoices: Iterable[Invoice],
    recomputed: Iterable[charge_types.Charge],
    period: Period,
    open_start_ns: int,
) -> tuple[charge_types.Charge, ...]:
    """The signed difference between a closed period as rated again and as invoiced so far.

    The charges go on the invoices of the open period that starts at `open_start_ns`. If only the
    splitting of the time or the certainty of a state has changed, but no amount billed at any
    instant, nothing is corrected. Per tenant, invoiced + corrections = recomputed.
    """
    issued = [invoice for invoice in invoices if invoice.status is InvoiceStatus.ISSUED]
    closed = {invoice.tenant: invoice.invoice_id for invoice in issued if invoice.period == period}
    missing: dict[charge_types.Charge, Fraction] = defaultdict(Fraction)
    states: dict[charge_types.Charge, str] = {}
    for sign, charges in ((-1, invoiced_charges(issued, period)), (1, tuple(recomputed))):
        for charge in charges:
            missing[_charge_subject(charge)] += sign * charge.quantity
            states[_charge_subject(charge)] = charge.state
    changed = _changed_matters(missing)
    corrections = (
        _correction(
            replace(matter, state=states[matter], corrected_in_ns=open_start_ns),
            quantity,
            closed.get(matter.tenant, f"period:{period.start_ns}"),
        )
        for matter, quantity in missing.items()
        if quantity and _without_dates(matter) in changed
    )
    return tuple(sorted(corrections, key=lambda charge: (charge.tenant, charge.charge_id)))


def _charge_subject(charge: charge_types.Charge) -> charge_types.Charge:
    """The charge without quantity, amount, state and correction references."""
    nothing = Fraction(0)
    return replace(
        # Without the state: observed time that was inferred before is billed equally.
        charge,
        quantity=nothing,
        amount=nothing,
        state="",
        corrects="",
        corrected_in_ns=None,
    )


def _without_dates(matter: charge_types.Charge) -> charge_types.Charge:
    return replace(matter, service_t0_ns=0, service_t1_ns=0)


def _changed_matters(missing: Mapping[charge_types.Charge, Fraction]) -> set[charge_types.Charge]:
    """The matters, without dates, of which the billed quantity changed at some instant."""
    steps: dict[charge_types.Charge, dict[int, Fraction]] = defaultdict(
        lambda: defaultdict(Fraction)
    )
    for matter, quantity in missing.items():
        if matter.kind is charge_types.ChargeKind.MINIMUM_TOPUP:
            # Due at the end of the claim: its start is that of the last interval, however the time is divided.
            steps[_without_dates(matter)][matter.service_t1_ns] += quantity
            continue
        # Per nanosecond: charges that are only divided differently cancel at each instant.
        density = quantity / (matter.service_t1_ns - matter.service_t0_ns)
        step = steps[_without_dates(matter)]
        step[matter.service_t0_ns] += density
        step[matter.service_t1_ns] -= density
    return {matter for matter, step in steps.items() if any(step.values())}


def _correction(
    matter: charge_types.Charge, quantity: Fraction, corrects: str
) -> charge_types.Charge:
    if matter.unit is None:
        message = f"cannot correct a {matter.kind}: expected a rated charge"
        raise ValueError(message)
    amount = charge_types.price_quantity(quantity, matter.unit, matter.price_nano)
    return replace(matter, quantity=quantity, amount=amount, corrects=corrects)
