"""Statements and exports from rows in memory, for tests of access to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from railscope_collector.billing.billing_reader import IssuedInvoice
from railscope_collector.metering.units import Period, period_name


@dataclass
class BookedRows:
    """Amounts due of each tenant in each month: (tenant, period) to lines of text and amount."""

    booked: dict[tuple[str, str], list[tuple[str, int]]] = field(default_factory=dict)
    statement_forms: Sequence[str] = ("json", "text")
    export_forms: Sequence[str] = ("csv", "json")

    def __call__(self) -> BookedRows:
        """Return the source of statements and exports."""
        return self

    def issued_invoices(self, tenant: str | None) -> list[IssuedInvoice]:
        """Return one for each tenant and month; the number of lines is that of the invoice."""
        return [
            IssuedInvoice(party, month, str(rows[0][1]), void=False)
            for (party, month), rows in sorted(self.booked.items())
            if tenant in (None, party)
        ]

    def statement(self, tenant: str, period: Period, form: str) -> bytes | None:
        """All lines of one tenant and month."""
        rows = self.booked.get((tenant, period_name(period)))
        if rows is None:
            return None
        if form == "text":
            return "".join(f"{tenant} {what} {amount}\n" for what, amount in rows).encode()
        return json.dumps({"tenant": tenant, "period": period_name(period), "lines": rows}).encode()

    def export(self, tenant: str | None, period: Period, form: str) -> bytes | None:
        """All lines of a month, of one tenant or of all."""
        found = [
            [party, what, amount]
            for (party, month), rows in sorted(self.booked.items())
            if month == period_name(period) and tenant in (None, party)
            for what, amount in rows
        ]
        if not found:
            return None
        if form == "json":
            return json.dumps(found).encode()
        return "".join(",".join(map(str, row)) + "\n" for row in found).encode()
