"""Invoices: draft, then issued, then possibly void. An issued invoice never changes.

An invoice contains one tenant's charges of one period, rounded once. Its content hash covers all
amounts and their reasons; it does not depend on when or in which order the charges are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import groupby

from collector.billing.canonical import Content, canonical, digest
from collector.billing.charges import Charge, Kind
from collector.billing.rounding import exponent_of, spread
from collector.metering.instants import DAY_NS, Period

CLOSE_AFTER_NS = 3 * DAY_NS


class InvoiceError(ValueError):
    """An inconsistent invoice, or an operation that its status does not permit."""


class Status(StrEnum):
    """Status of an invoice."""

    DRAFT = "draft"
    ISSUED = "issued"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Line:
    """One charge, and its share of the rounded total in minor units of the currency."""

    charge: Charge
    minor: int


@dataclass(frozen=True, slots=True)
class Invoice:
    """Payable charges of one tenant for one period. Made by `draft`; lines are in order of their id.

    `replaces` is the id of the void invoice that it replaces. `audit_seq` is the index of its
    record in the audit log. Raises InvoiceError for lines of another tenant, duplicate lines, lines
    that are not the rounding of their charges, and a hash that does not match the content: an
    altered invoice cannot be constructed.
    """

    tenant: str
    period: Period
    currency: str
    lines: tuple[Line, ...]
    content_hash: str
    replaces: str = ""
    status: Status = Status.DRAFT
    issued_ns: int | None = None
    audit_seq: int | None = None

    def __post_init__(self) -> None:
        wrong = self._wrong()
        if wrong:
            message = f"invoice of {self.tenant}: {wrong}"
            raise InvoiceError(message)

    def _wrong(self) -> str:
        amounts = {line.charge.charge_id: line.charge.amount for line in self.lines}
        minor = {line.charge.charge_id: line.minor for line in self.lines}
        charges = [line.charge for line in self.lines]
        undated = (self.status is Status.DRAFT) != (self.issued_ns is None)
        checks = {
            "a charge is on it twice": len(minor) != len(charges),
            "a charge of another tenant is on it": any(c.tenant != self.tenant for c in charges),
            "what was used in another period is on it, and is no correction": any(
                _outside(charge, self.period) for charge in charges
            ),
            "its lines are not the rounding of its charges": minor
            != spread(amounts, exponent_of(self.currency)),
            "its content is not that of its hash": self.content_hash != digest(self._content),
            "what is issued, and nothing else, has an instant of issue": undated,
        }
        return next((wrong for wrong, is_so in checks.items() if is_so), "")

    @property
    def _content(self) -> Content:
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
        return Fraction(self.total_minor, 10 ** exponent_of(self.currency))

    @property
    def exact(self) -> Fraction:
        """Sum of the charges without rounding."""
        return sum((line.charge.amount for line in self.lines), Fraction(0))

    @property
    def text(self) -> str:
        """Canonical text that the content hash covers."""
        return canonical(self._content)

    @property
    def rounding(self) -> Charge:
        """The rounding difference, as a charge over the whole period."""
        return Charge(
            tenant=self.tenant,
            kind=Kind.ROUNDING,
            service_t0_ns=self.period.start_ns,
            service_t1_ns=self.period.end_ns,
            amount=self.payable - self.exact,
            note="Rounding to the minor unit of the currency",
        )


# Steps -----------------------------------------------------------------------------------------


def draft(
    charges: Iterable[Charge], tenant: str, period: Period, currency: str, replaces: str = ""
) -> Invoice:
    """The invoice of a tenant's charges, in any order. Raises InvoiceError, UnknownCurrencyError."""
    ordered = sorted(charges, key=lambda charge: charge.charge_id)
    exact = {charge.charge_id: charge.amount for charge in ordered}
    minor = spread(exact, exponent_of(currency))
    lines = tuple(Line(charge, minor[charge.charge_id]) for charge in ordered)
    content_hash = digest(_content(tenant, period, currency, replaces, lines))
    return Invoice(tenant, period, currency, lines, content_hash, replaces)


def close(charges: Iterable[Charge], period: Period, currency: str) -> tuple[Invoice, ...]:
    """The drafts of a period, one for every tenant with charges, in order of tenant."""
    ordered = sorted(charges, key=lambda charge: (charge.tenant, charge.charge_id))
    by_tenant = groupby(ordered, key=lambda charge: charge.tenant)
    return tuple(draft(own, tenant, period, currency) for tenant, own in by_tenant)


def issue(invoice: Invoice, issued_ns: int, audit_seq: int | None = None) -> Invoice:
    """Issue a draft. Raises InvoiceError if it is no draft or its period can still change.

    Evidence of a period is accepted until three days after its end.
    """
    if invoice.status is not Status.DRAFT:
        message = f"{invoice.invoice_id}: is {invoice.status}, so it cannot be issued"
        raise InvoiceError(message)
    if issued_ns < invoice.period.end_ns + CLOSE_AFTER_NS:
        message = f"{invoice.invoice_id}: evidence may still come until three days after the period"
        raise InvoiceError(message)
    return replace(invoice, status=Status.ISSUED, issued_ns=issued_ns, audit_seq=audit_seq)


def void(invoice: Invoice) -> Invoice:
    """Void an issued invoice; its content is unchanged. Raises InvoiceError if not issued."""
    if invoice.status is not Status.ISSUED:
        message = f"{invoice.invoice_id}: is {invoice.status}, so it cannot be voided"
        raise InvoiceError(message)
    return replace(invoice, status=Status.VOID)


def root(invoices: Iterable[Invoice]) -> str:
    """Hash over the contents of all invoices, in any order; used to compare closings."""
    return digest(sorted(invoice.content_hash for invoice in invoices))


def enter(register: Mapping[str, Invoice], invoice: Invoice) -> dict[str, Invoice]:
    """Enter an issued or voided invoice in the register. Entering twice changes nothing.

    Raises InvoiceError for a draft, for any other change of an entered invoice, and for a second
    invoice of a tenant for any part of a period that has a valid one.
    """
    known = register.get(invoice.invoice_id)
    standing = [
        other.invoice_id
        for other in register.values()
        if other.tenant == invoice.tenant
        and other.period.overlaps(invoice.period)
        and other.status is Status.ISSUED
        and known is None
    ]
    wrong = ""
    if invoice.status is Status.DRAFT:
        wrong = "is a draft"
    elif standing:
        wrong = f"its tenant has {standing[0]} in that period"
    elif known is None and invoice.status is Status.VOID:
        wrong = "is void, but was never issued"
    elif known is not None and invoice not in (known, replace(known, status=Status.VOID)):
        wrong = f"was entered as {known.status} and is changed"
    if wrong:
        message = f"{invoice.invoice_id}: {wrong}"
        raise InvoiceError(message)
    return {**register, invoice.invoice_id: invoice}


def _outside(charge: Charge, period: Period) -> bool:
    within = period.start_ns <= charge.service_t0_ns and charge.service_t1_ns <= period.end_ns
    return bool(charge.unit) and not charge.corrects and not within


def _content(
    tenant: str, period: Period, currency: str, replaces: str, lines: Sequence[Line]
) -> Content:
    return {
        "tenant": tenant,
        "period": [period.start_ns, period.end_ns],
        "currency": currency,
        "replaces": replaces,
        "lines": [[line.charge.charge_id, line.charge.amount, line.minor] for line in lines],
        "total_minor": sum(line.minor for line in lines),
    }
