"""Invoices: draft, then issued, then possibly void.

An issued invoice never changes. An invoice contains one tenant's charges of one period, rounded
once. Its content hash covers all amounts and their reasons; it does not depend on when or in which
order the charges are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import groupby

from railscope.timestamps import DAY_NS
from railscope_collector.billing import BillingError, charges as charge_types
from railscope_collector.metering.units import Period

CLOSE_AFTER_NS = 3 * DAY_NS
"""Time in which evidence of a period may still be received; later evidence becomes a correction."""


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
                # Credits and adjustments have no unit and may be for any period.
                c.unit and not c.corrects and not is_within(c, self.period)
                for c in charges
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
    # By id, so that the content does not depend on the order of rating.
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


def is_within(charge: charge_types.Charge, period: Period) -> bool:
    """True if the whole service of a charge is in a period."""
    return period.start_ns <= charge.service_t0_ns and charge.service_t1_ns <= period.end_ns
