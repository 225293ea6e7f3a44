"""R5: stored invoices, their FOCUS rows and the exported files have the same amount."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from collector.billing import focus, focus_csv
from collector.billing.checks import Check
from collector.billing.focus import Seller
from collector.billing.invoice import Invoice, Status


def amounts(invoices: Sequence[Invoice], seller: Seller) -> Iterator[Check]:
    """Compare the payable amount with rounded lines, FOCUS rows and CSV read back."""
    own = [invoice for invoice in invoices if invoice.status is Status.ISSUED]
    payable = sum((invoice.payable for invoice in own), Fraction(0))
    lines = sum((Fraction(line.minor) for one in own for line in one.lines), Fraction(0))
    minor = sum((Fraction(one.total_minor) for one in own), Fraction(0))
    yield Check("R5", "lines, rounded = invoices", lines, minor, len(own))
    rows = [row for invoice in own for row in focus.rows(invoice, seller)]
    yield Check("R5", "FOCUS rows = payable", focus.billed(rows), payable, len(rows))
    again = focus_csv.parse(focus_csv.write(rows)) if rows else []
    yield Check("R5", "CSV, read again = payable", focus.billed(again), payable, len(again))
