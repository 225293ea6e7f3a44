"""Statements: an invoice or a preview, with the data needed to verify it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import itemgetter
from typing import NamedTuple

from railscope.timestamps import DAY_NS
from railscope_collector.billing import charges as charge_types, invoices, undecided_use
from railscope_collector.jobs.imported_lists import is_listed_gpu
from railscope_collector.ledger import audit_outbox
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering import slot_state, units

_QUANTITY_PLACES = 6
_PERCENT_PLACES = 3
_JOB_CLAIM = re.compile(r"(slurm)/(.+)@\d+")
"""Claim of a job: its name, and the second of its start."""
_NO_AGENT = "job list; no agent measured it"
_UNSEEN = "part of the time was not observed: it is billed as the scheduler reported it"


class SummaryLine(NamedTuple):
    """Lines of one kind and price summed up, as text."""

    item: str
    product: str
    state: str
    start: str
    end: str
    gpus: str
    quantity: str
    unit: str
    price: str
    amount: str


class ClaimSummary(NamedTuple):
    """Sum of one claim, as text."""

    claim: str
    gpus: str
    start: str
    end: str
    gpu_hours: str
    energy: str
    amount: str


@dataclass(frozen=True, slots=True)
class TenantStatement:
    """An invoice, the evidence it was computed from, and the use that is not on it.

    `revisions` are the ledger revisions that its lines were computed from, `roots` are named hashes
    over larger parts of the ledger. `marks` are the reasons why it may still change.
    """

    invoice: invoices.Invoice
    seller: str = ""
    undecided: Sequence[undecided_use.UndecidedUse] = ()
    revisions: Mapping[GpuDay, int] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)
    audit: audit_outbox.LogPosition | None = None
    marks: Sequence[str] = ()
    closed_ns: int | None = None
    """Time of closing of its period, if that issued no invoice to the tenant."""

    @property
    def invoice_id(self) -> str:
        """Id of its invoice; empty if there is none."""
        return self.invoice.invoice_id if self.closed_ns is None else ""

    @property
    def status(self) -> str:
        """Status of its invoice; `none` if there is none."""
        return self.invoice.status.value if self.closed_ns is None else "none"

    @property
    def title(self) -> str:
        """Kind of document, tenant and period."""
        kind = {"draft": "PREVIEW, not an invoice", "void": "VOID STATEMENT"}
        name = f"{self.invoice.tenant}  {units.period_name(self.invoice.period)}"
        return f"{kind.get(self.status, 'STATEMENT')}  {name}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Named properties of the invoice."""
        invoice, period = self.invoice, self.invoice.period
        rows = [
            ("Billed by", self.seller),
            ("Tenant", invoice.tenant),
            (
                "Service",
                f"{charge_types.show_time(period.start_ns)} to {charge_types.show_time(period.end_ns)}",
            ),
        ]
        if invoice.status is not invoices.InvoiceStatus.DRAFT:
            rows += [
                ("Invoice", invoice.invoice_id),
                ("Issued", charge_types.show_time(invoice.issued_ns or 0)),
                ("Replaces", invoice.replaces),
            ]
        if self.closed_ns is not None:
            rows += [
                ("Invoice", "none: nothing is billed"),
                ("Closed", charge_types.show_time(self.closed_ns)),
            ]
        basis = "Basis" if self.coverage is None else "Observed"
        rows += [(basis, self._coverage_text), ("States", self._states)]
        return [(name, text) for name, text in rows if text]

    @property
    def proof(self) -> list[tuple[str, str]]:
        """Hashes and records by which the invoice is verified."""
        rows = [("Ledger", self._ledger), *self.roots.items()]
        if self.invoice.status is not invoices.InvoiceStatus.DRAFT:
            hashed = f"sha256 {self.invoice.content_hash}"
            rows = [("Content hash", hashed), ("Audit log", self._audit), *rows]
        return [(name, text) for name, text in rows if text]

    @property
    def _audit(self) -> str:
        if self.audit is None:
            return "not recorded yet"
        size = self.audit.checkpoint_size
        checkpoint = f", under the checkpoint of size {size:,}" if size is not None else ""
        return f"record {self.audit.leaf:,}{checkpoint}"

    @property
    def _ledger(self) -> str:
        days = {key for line in self.invoice.lines if (key := source_day(line.charge))}
        return f"{len(days):,} GPU-days, revisions in the CSV and JSON forms" if days else ""

    @property
    def coverage(self) -> Fraction | None:
        """The observed share of the billed time; None if no agent reported any."""
        observed = whole = Fraction(0)
        for charge, hours in self._billed_usage:
            # A job list that is taken as observation states no more than any other.
            if not is_listed_gpu(charge.resource):
                observed += hours if charge.state == slot_state.SlotState.OBSERVED else 0
            whole += hours
        has_agent = any(not is_listed_gpu(charge.resource) for charge, _ in self._billed_usage)
        return observed / whole if has_agent else None

    @property
    def _billed_usage(self) -> list[tuple[charge_types.Charge, Fraction]]:
        """The charges for some time, without corrections, and their time."""
        usage = [
            (line.charge, line.charge.quantity / line.charge.unit.size)
            for line in self.invoice.lines
            if line.charge.kind is charge_types.ChargeKind.USAGE
            and not line.charge.corrects
            and line.charge.unit
        ]
        return [(charge, hours) for charge, hours in usage if hours]

    @property
    def _coverage_text(self) -> str:
        ratio = self.coverage
        if ratio is None:
            return _NO_AGENT if self._billed_usage else ""
        shown = charge_types.format_decimal(100 * ratio, _PERCENT_PLACES)
        return f"{shown} % of the time billed" + (f"; {_UNSEEN}" if ratio < 1 else "")

    @property
    def _states(self) -> str:
        """The meaning of each state of GPU time in the table of charges."""
        stated = {line.charge.state for line in self.invoice.lines}
        return "; ".join(
            f"{state}: {slot_state.MEANINGS[state]}"
            for state in slot_state.SlotState
            if state in stated
        )

    @property
    def summary(self) -> list[SummaryLine]:
        """Lines of one kind and price summed up, in a fixed order, with rounded amounts.

        The amounts add up to the total, and each is within one minor unit of the exact amount.
        """
        return [
            _summary_line(charges, amount)
            for _, charges, amount in sorted(self._sums(_summary_key), key=itemgetter(0))
        ]

    @property
    def claims(self) -> list[ClaimSummary]:
        """Sum of each claim without corrections; the most expensive first."""
        sums = self._sums(lambda charge: "" if charge.corrects else charge.claim)
        ordered = sorted(sums, key=lambda each: (-_exact_sum(each[1]), each[0]))
        return [_claim_summary(*each) for each in ordered if each[0]]

    def _sums(
        self, key_of: Callable[[charge_types.Charge], str]
    ) -> list[tuple[str, Sequence[charge_types.Charge], str]]:
        """Key, charges and amount of each group of charges; the amounts add up to the rounded total."""
        grouped: dict[str, list[charge_types.Charge]] = defaultdict(list)
        for line in self.invoice.lines:
            grouped[key_of(line.charge)].append(line.charge)
        places = charge_types.currency_exponent(self.invoice.currency)
        exact = {key: _exact_sum(charges) for key, charges in grouped.items()}
        minor = charge_types.spread_rounding(exact, places)
        return [
            (key, charges, charge_types.format_decimal(Fraction(minor[key], 10**places), places))
            for key, charges in grouped.items()
        ]

    @property
    def total(self) -> str:
        """Amount to be paid or credited."""
        payable = self.invoice.payable
        shown = abs(payable) if self.invoice.status is invoices.InvoiceStatus.ISSUED else payable
        return charge_types.format_decimal(
            shown, charge_types.currency_exponent(self.invoice.currency)
        )

    @property
    def total_label(self) -> str:
        """Label of the total."""
        owed = "To pay" if self.invoice.total_minor >= 0 else "To be credited"
        return {"draft": "Would be", "void": "Void, was"}.get(self.status, owed)


def source_day(charge: charge_types.Charge) -> GpuDay | None:
    """The GPU-day of the ledger that a charge was computed from; None for an administrative charge."""
    if not charge.unit or not charge.resource:
        return None
    return GpuDay(charge.resource, charge.service_t0_ns // DAY_NS)


def unit_price(price_nano: int) -> str:
    """A price with all of its decimals, at least two."""
    text = charge_types.format_decimal(Fraction(price_nano, charge_types.NANO), 9).rstrip("0")
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals.ljust(2, '0')}"


def _summary_key(charge: charge_types.Charge) -> str:
    """Key of the lines that are summed up, and of their order."""
    unit = charge.unit.label if charge.unit else ""
    # Keys are sorted as texts: with leading zeros, that is the order of prices.
    price = f"{charge.price_nano:020d}"
    reason = (charge.state, charge.mig_profile, charge.note)
    return "\0".join((charge.corrects, charge.kind, charge.sku, unit, price, *reason))


def _exact_sum(charges: Iterable[charge_types.Charge]) -> Fraction:
    return sum((charge.amount for charge in charges), Fraction(0))


def _summary_line(charges: Sequence[charge_types.Charge], amount: str) -> SummaryLine:
    first, unit = charges[0], charges[0].unit
    quantity = sum((charge.quantity for charge in charges), Fraction(0))
    return SummaryLine(
        item=f"{first.kind}, correction" if first.corrects else first.kind.replace("_", " "),
        product=" ".join(part for part in (first.sku, first.mig_profile, first.note) if part),
        state=first.state,
        start=charge_types.show_time(min(charge.service_t0_ns for charge in charges)),
        end=charge_types.show_time(max(charge.service_t1_ns for charge in charges)),
        gpus=str(len({charge.resource for charge in charges if charge.resource}) or ""),
        quantity=charge_types.show_quantity(quantity / unit.size, _QUANTITY_PLACES) if unit else "",
        unit=unit.label if unit else "",
        price=unit_price(first.price_nano) if unit else "",
        amount=amount,
    )


def _claim_summary(claim: str, charges: Sequence[charge_types.Charge], amount: str) -> ClaimSummary:
    hours = _hours(charges, charge_types.PriceUnit.GPU_HOURS) + _hours(
        charges, charge_types.PriceUnit.INSTANCE_HOURS
    )
    energy = _hours(charges, charge_types.PriceUnit.KILOWATT_HOURS)
    return ClaimSummary(
        _JOB_CLAIM.sub(r"job \2 of \1", claim),
        str(len({charge.resource for charge in charges})),
        charge_types.show_time(min(charge.service_t0_ns for charge in charges)),
        charge_types.show_time(max(charge.service_t1_ns for charge in charges)),
        charge_types.show_quantity(hours, _PERCENT_PLACES),
        charge_types.show_quantity(energy, _PERCENT_PLACES) if energy else "",
        amount,
    )


def _hours(charges: Sequence[charge_types.Charge], unit: charge_types.PriceUnit) -> Fraction:
    quantities = (charge.quantity / unit.size for charge in charges if charge.unit is unit)
    return sum(quantities, Fraction(0))
