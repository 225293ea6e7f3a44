"""Statements, closed periods and their comparison with the ledger. Amounts are the text of the statements."""

from __future__ import annotations

from typing import Any

import msgspec


class IssuedInvoice(msgspec.Struct, frozen=True):
    """An invoice that has a statement; one without an identity has only usage that is not decided."""

    tenant: str
    period: str
    invoice: str
    void: bool
    total: str = ""
    """Payable amount in `currency`; negative for a credit."""
    currency: str = ""
    issued_ns: int | None = None
    replaces: str = ""


class StatementList(msgspec.Struct, frozen=True):
    """A part of the statements, the newest period first."""

    statements: tuple[IssuedInvoice, ...]
    forms: tuple[str, ...]
    """Formats of a statement."""
    found: int
    offset: int = 0
    tenant: str = ""
    """The only tenant; empty for all."""


class Statement(msgspec.Struct, frozen=True):
    """The statement of a tenant and period, as in its text: rounded lines that add up to the total."""

    title: str
    tenant: str
    period: str
    facts: tuple[tuple[str, str], ...]
    """Parties, period and invoice."""
    proof: tuple[tuple[str, str], ...]
    """Hashes and records by which the statement is verified."""
    marks: tuple[str, ...]
    """Reasons why it may still change."""
    summary: tuple[dict[str, str], ...]
    summary_count: int
    total_label: str
    total: str
    currency: str
    claims: tuple[dict[str, str], ...]
    """The most expensive ones."""
    claim_count: int
    undecided: tuple[str, ...]
    undecided_count: int
    forms: tuple[str, ...]
    """Formats of the API."""


class ClosedPeriod(msgspec.Struct, frozen=True):
    """A closed period in the list."""

    period: str
    closings: int
    invoices: int
    void: int
    totals: tuple[str, ...]
    """Sum of the valid invoices, with its currency."""
    is_provisional: bool


class ClosedPeriodList(msgspec.Struct, frozen=True):
    """A part of the closed periods, the newest first."""

    opening: str
    """Start of the billed time, with its reason; empty if none is set."""
    rows: tuple[ClosedPeriod, ...]
    found: int
    offset: int = 0


class PeriodDetail(msgspec.Struct, frozen=True):
    """One period: its closings as `railscope bill list` prints them, and a part of its invoices."""

    period: str
    closings: tuple[dict[str, Any], ...]
    totals: tuple[str, ...]
    invoices: tuple[IssuedInvoice, ...]
    found: int
    undecided: tuple[str, ...]
    undecided_count: int
    export_forms: tuple[str, ...]
    offset: int = 0


class Comparison(msgspec.Struct, frozen=True):
    """Result of one comparison; sums are exact."""

    rule: str
    title: str
    parts: int
    found: str
    expected: str
    difference: str
    """Empty for a share that has a bound."""
    result: str
    """`equal`, `DIFFERS`, `within` or `ABOVE`, with the place or the bound; or the reason why nothing was compared."""
    passes: bool | None
    """Null if nothing was compared."""


class Reconciliation(msgspec.Struct, frozen=True):
    """All comparisons of a period with the ledger."""

    period: str
    computed_ns: int
    rows: tuple[Comparison, ...]
    failed: int
    above_bound: int


class MonthCharges(msgspec.Struct, frozen=True):
    """Charges of a tenant in the newest month with finalized days, and its budget. Empty if unknown or none."""

    period: str
    last_day: str
    """The last finalized day; open days are not included."""
    currency: str
    problem: str
    """Reason why there is no amount."""
    amount: str = ""
    budget: str = ""
    used_percent: str = ""
    remaining: str = ""
    """Budget less the amount; negative if it is exceeded."""
    is_outdated: bool = False
    """True while a newer ledger or newer prices are being rated."""

    @property
    def is_charged(self) -> bool:
        """True if the amount is not zero."""
        return bool(self.amount.strip("0.,"))
