"""Invoices: draft, then issued, then possibly void; corrections of them; and closed periods.

An issued invoice never changes. An invoice contains one tenant's charges of one period, rounded
once. Its content hash covers all amounts and their reasons; it does not depend on when or in which
order the charges are computed.

Corrections are differences that late evidence makes in a closed period, billed in the open one. The
difference, of either sign, becomes separate charges with the original service dates.

A closed period consists of its invoices and of the evidence they were computed from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import groupby

from railscope.timestamps import DAY_NS
from railscope_collector.billing import BillingError, charges as charge_types
from railscope_collector.ledger.row_conversion import GpuDay
from railscope_collector.metering.units import Period

CLOSE_AFTER_NS = 3 * DAY_NS


class InvoiceError(BillingError, ValueError):
    """An inconsistent invoice, or an operation that its status does not permit."""


class InvoiceStatus(StrEnum):
    """Status of an invoice."""

    DRAFT = "draft"
    ISSUED = "issued"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One charge, and its share of the rounded total in minor units of the currency."""

    charge: charge_types.Charge
    minor: int


@dataclass(frozen=True, slots=True)
class Invoice:
    """Payable charges of one tenant for one period. Made by `draft_invoice`; lines are in order of their id.

    `replaces` is the id of the void invoice that it replaces. `audit_seq` is the index of its
    record in the audit log. Raises InvoiceError for lines of another tenant, duplicate lines, lines
    that are not the rounding of their charges, and a hash that does not match the content: an
    altered invoice cannot be constructed.
    """

    tenant: str
    period: Period
    currency: str
    lines: tuple[InvoiceLine, ...]
    content_hash: str
    replaces: str = ""
    status: InvoiceStatus = InvoiceStatus.DRAFT
    issued_ns: int | None = None
    audit_seq: int | None = None

    def __post_init__(self) -> None:
        wrong = self._find_problem()
        if wrong:
            message = f"invalid invoice of {self.tenant}: {wrong}"
            raise InvoiceError(message)

    def _find_problem(self) -> str:
        amounts = {line.charge.charge_id: line.charge.amount for line in self.lines}
        minor = {line.charge.charge_id: line.minor for line in self.lines}
        charges = [line.charge for line in self.lines]
        undated = (self.status is InvoiceStatus.DRAFT) != (self.issued_ns is None)
        checks = {
            "duplicate charge": len(minor) != len(charges),
            "charge of another tenant": any(c.tenant != self.tenant for c in charges),
            "usage of another period that is not a correction": any(
                c.unit and not c.corrects and not _is_within(c, self.period) for c in charges
            ),
            "its lines differ from its rounded charges": minor
            != charge_types.spread_rounding(amounts, charge_types.currency_exponent(self.currency)),
            "its content does not match its hash": self.content_hash
            != charge_types.content_digest(self._content),
            "expected an issue time, unless it is a draft": undated,
        }
        return next((wrong for wrong, is_so in checks.items() if is_so), "")

    @property
    def _content(self) -> charge_types.Content:
        return _content(self.tenant, self.period, self.currency, self.replaces, self.lines)

    @property
    def invoice_id(self) -> str:
        """Identifier from the content hash: the same content has the same id."""
        return f"inv-{self.content_hash[:24]}"

    @property
    def total_minor(self) -> int:
        """Payable amount in minor units."""
        return sum(line.minor for line in self.lines)

    @property
    def payable(self) -> Fraction:
        """Payable amount in units of the currency."""
        return Fraction(self.total_minor, 10 ** charge_types.currency_exponent(self.currency))

    @property
    def exact(self) -> Fraction:
        """Sum of the charges without rounding."""
        return sum((line.charge.amount for line in self.lines), Fraction(0))

    @property
    def rounding(self) -> charge_types.Charge:
        """The rounding difference, as a charge over the whole period."""
        return charge_types.Charge(
            tenant=self.tenant,
            kind=charge_types.ChargeKind.ROUNDING,
            service_t0_ns=self.period.start_ns,
            service_t1_ns=self.period.end_ns,
            amount=self.payable - self.exact,
            note="Rounding to the minor unit of the currency",
        )


# Steps -----------------------------------------------------------------------------------------


def draft_invoice(
    charges: Iterable[charge_types.Charge],
    tenant: str,
    period: Period,
    currency: str,
    replaces: str = "",
) -> Invoice:
    """The invoice of a tenant's charges, in any order. Raises InvoiceError, UnknownCurrencyError."""
    ordered = sorted(charges, key=lambda charge: charge.charge_id)
    exact = {charge.charge_id: charge.amount for charge in ordered}
    minor = charge_types.spread_rounding(exact, charge_types.currency_exponent(currency))
    lines = tuple(InvoiceLine(charge, minor[charge.charge_id]) for charge in ordered)
    content_hash = charge_types.content_digest(_content(tenant, period, currency, replaces, lines))
    return Invoice(tenant, period, currency, lines, content_hash, replaces)


def draft_invoices(
    charges: Iterable[charge_types.Charge], period: Period, currency: str
) -> tuple[Invoice, ...]:
    """The drafts of a period, one for every tenant with charges, in order of tenant."""
    ordered = sorted(charges, key=lambda charge: (charge.tenant, charge.charge_id))
    by_tenant = groupby(ordered, key=lambda charge: charge.tenant)
    return tuple(
        draft_invoice(tenant_charges, tenant, period, currency)
        for tenant, tenant_charges in by_tenant
    )


def issue_invoice(invoice: Invoice, issued_ns: int) -> Invoice:
    """Issue a draft. Raises InvoiceError if it is not a draft or its period can still change.

    Evidence of a period is accepted until three days after its end.
    """
    if invoice.status is not InvoiceStatus.DRAFT:
        message = f"cannot issue {invoice.invoice_id}: status {invoice.status}: expected a draft"
        raise InvoiceError(message)
    if issued_ns < invoice.period.end_ns + CLOSE_AFTER_NS:
        message = (
            f"cannot issue {invoice.invoice_id}: evidence may be received until three days"
            " after the period"
        )
        raise InvoiceError(message)
    return replace(invoice, status=InvoiceStatus.ISSUED, issued_ns=issued_ns)


def _content(
    tenant: str, period: Period, currency: str, replaces: str, lines: Sequence[InvoiceLine]
) -> charge_types.Content:
    return {
        "tenant": tenant,
        "period": [period.start_ns, period.end_ns],
        "currency": currency,
        "replaces": replaces,
        "lines": [[line.charge.charge_id, line.charge.amount, line.minor] for line in lines],
        "total_minor": sum(line.minor for line in lines),
    }


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
        if line.charge.unit and _is_within(line.charge, period)
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


def credit_charge(tenant: str, amount: Fraction, period: Period, note: str) -> charge_types.Charge:
    """A credit for service in a period. Raises ValueError if the amount is not positive."""
    if amount <= 0 or not note:
        message = (
            f"invalid credit of {amount} for {tenant}: expected a positive amount and a reason"
        )
        raise ValueError(message)
    return charge_types.Charge(
        tenant, charge_types.ChargeKind.CREDIT, period.start_ns, period.end_ns, -amount, note=note
    )


def adjustment_charge(
    tenant: str, amount: Fraction, period: Period, note: str
) -> charge_types.Charge:
    """An amount of either sign, by decision and not by rating. Raises ValueError without a note."""
    if not note:
        message = f"invalid adjustment of {amount} for {tenant}: expected a reason"
        raise ValueError(message)
    return charge_types.Charge(
        tenant,
        charge_types.ChargeKind.ADJUSTMENT,
        period.start_ns,
        period.end_ns,
        amount,
        note=note,
    )


def _is_within(charge: charge_types.Charge, period: Period) -> bool:
    return period.start_ns <= charge.service_t0_ns and charge.service_t1_ns <= period.end_ns


def _charge_subject(charge: charge_types.Charge) -> charge_types.Charge:
    """The charge without quantity, amount, state and correction references."""
    nothing = Fraction(0)
    return replace(
        charge, quantity=nothing, amount=nothing, state="", corrects="", corrected_in_ns=None
    )


def _without_dates(matter: charge_types.Charge) -> charge_types.Charge:
    return replace(matter, service_t0_ns=0, service_t1_ns=0)


def _changed_matters(missing: Mapping[charge_types.Charge, Fraction]) -> set[charge_types.Charge]:
    """The matters, without dates, of which the billed quantity changed at some instant."""
    steps: dict[charge_types.Charge, dict[int, Fraction]] = defaultdict(
        lambda: defaultdict(Fraction)
    )
    for matter, quantity in missing.items():
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


class ClosingError(BillingError, ValueError):
    """A period cannot be closed or billed as requested; the message contains reason and remedy."""


@dataclass(frozen=True, slots=True)
class PeriodClosing:
    """A period that was closed, for all tenants or (to replace a void invoice) for one.

    `manifest_root` is a hash over all inputs and outputs. `corrected` are the earlier periods that
    were computed again with it. `missing` are GPU-days that were missing or not final when a
    provisional closing was made.
    """

    number: int
    period: Period
    tenant: str
    closed_ns: int
    closed_by: str
    currency: str
    price_version: int
    ledger_root: str
    manifest_root: str
    corrected: tuple[Period, ...] = ()
    missing: tuple[GpuDay, ...] = ()

    @property
    def provisional(self) -> bool:
        """True if it was closed with missing or provisional GPU-days."""
        return bool(self.missing)


def manifest_root(
    period: Period, price_version: int, ledger_root: str, invoices: Iterable[Invoice]
) -> str:
    """Hash over a period, the prices, the ledger's revisions and the resulting invoices."""
    content: charge_types.Content = {
        "period": [period.start_ns, period.end_ns],
        "price_version": price_version,
        "ledger": ledger_root,
        "invoices": sorted(invoice.content_hash for invoice in invoices),
    }
    return charge_types.content_digest(content)
