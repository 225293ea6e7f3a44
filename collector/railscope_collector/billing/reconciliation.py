"""Reconciliation of a period: exact comparisons of quantities that must be equal, without tolerance.

R1  per GPU and day the states in the ledger add up to capacity times time
R2  the cluster's sum is its inventory times time
R3  the scheduler's own records, see `railscope_collector.jobs`
R4  attributed + idle + unattributed amounts in the ledger = counter increments, per GPU and day
R5  ledger, charges, stored invoices, FOCUS rows and the files read back have the same amount
R6  shares of inferred and unknown time, with their bounds
R7  a closed period, computed again from the revisions and the prices of its closing, has the same
    root, and the evidence has the same ledger days
R8  every row equals the hash in its ledger head and in its record in the audit log's outbox
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from fractions import Fraction

from railscope_collector.audit.ledger_check import (
    compare_ledger,
    read_outbox_records,
    summarize_differences,
)
from railscope_collector.billing import focus_csv, focus_rows, period_closing, period_rating
from railscope_collector.billing.charges import Charge
from railscope_collector.billing.closing_recomputation import RecomputedClosing, recompute_closing
from railscope_collector.billing.closing_record import PeriodClosing
from railscope_collector.billing.evidence_reconciliation import evidence_checks
from railscope_collector.billing.invoices import Invoice, InvoiceStatus
from railscope_collector.billing.reconciliation_check import ReconciliationCheck, worst_check
from railscope_collector.files import seller_file
from railscope_collector.jobs import imported_lists
from railscope_collector.ledger import (
    ledger_store,
)
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.metering.units import Period, period_name


def check_amounts(
    invoices: Sequence[Invoice], seller: seller_file.Seller
) -> Iterator[ReconciliationCheck]:
    """Compare the payable amount with rounded lines, FOCUS rows and CSV read back."""
    issued = [invoice for invoice in invoices if invoice.status is InvoiceStatus.ISSUED]
    payable = sum((invoice.payable for invoice in issued), Fraction(0))
    lines = sum((Fraction(line.minor) for invoice in issued for line in invoice.lines), Fraction(0))
    minor = sum((Fraction(invoice.total_minor) for invoice in issued), Fraction(0))
    yield ReconciliationCheck("R5", "lines, rounded = invoices", lines, minor, len(issued))
    rows = [row for invoice in issued for row in focus_rows.invoice_rows(invoice, seller)]
    yield ReconciliationCheck(
        "R5", "FOCUS rows = payable", focus_rows.billed_cost(rows), payable, len(rows)
    )
    file = io.BytesIO()
    focus_csv.Writer(file).add(rows)
    # Read from the file itself: errors in writing numbers must show.
    file.seek(0)
    again = list(focus_csv.read_csv(file))
    yield ReconciliationCheck(
        "R5", "CSV, read again = payable", focus_rows.billed_cost(again), payable, len(again)
    )


NOT_OBSERVED = "no agent ran: not observed"
MAX_INFERRED = Fraction(1, 100)
MAX_UNKNOWN = Fraction(1, 1000)
"""Shares of GPU time that R6 reports against; an excess fails no check (docs/billing.md)."""


def reconcile_period(
    books: period_closing.BillingBooks, period: Period, seller: seller_file.Seller
) -> list[ReconciliationCheck]:
    """All checks of a period; R1, R2, R4 and R7 compare the ledger with its evidence.

    Raises UnusableLedgerError, ClosingError, MissingPriceError.
    """
    checks = list(check_records(books, period))
    if books.evidence is not None:
        checks += evidence_checks(books.ledger, books.evidence, period)
    closings = [closing for closing in books.store.closings() if closing.period.overlaps(period)]
    for closing in closings:
        checks += closing_checks(books, closing, seller)
    if not closings:
        bill = books.bill(period)
        checks += [
            check_billable_time(bill.rated),
            check_charged_amount(bill.rated.charges, bill.drafts),
        ]
    return sorted(
        [*checks, *check_unobserved_time(books.ledger, period)], key=lambda check: check.rule
    )


def check_records(
    books: period_closing.BillingBooks, period: Period
) -> Iterator[ReconciliationCheck]:
    """R8: rows changed, added or removed by hand; of ledger days, those of the period."""
    with books.ledger.database.transaction() as connection:
        compared = compare_ledger(
            connection, read_outbox_records(connection), period_rating.rating_days(period)
        )
    title = "rows as written, as committed by heads, as recorded"
    rows, wrong = compared.rows.total(), len(compared.differences) + compared.unlisted
    place = summarize_differences(compared)
    yield ReconciliationCheck("R8", title, Fraction(rows - wrong), Fraction(rows), rows, place)


def closing_checks(
    books: period_closing.BillingBooks, closing: PeriodClosing, seller: seller_file.Seller
) -> Iterator[ReconciliationCheck]:
    """R5 and R7 of a closing."""
    issued = books.store.of_closing(closing.number)
    again = recompute_closing(books, closing, issued)
    charged = [charge for charge in again.rated.charges if closing.tenant in ("", charge.tenant)]
    yield check_billable_time(again.rated)
    yield check_charged_amount(charged, issued)
    yield from check_amounts(issued, seller)
    yield from check_recomputed(closing, issued, again)


def check_billable_time(rated: period_rating.RatedPeriod) -> ReconciliationCheck:
    """R5: billable time in the ledger is charged, free by tariff, or undecided."""
    pairs = (
        (", ".join(of), rated.charged_time.get(of, 0), rated.held_time.get(of, 0))
        for of in sorted({*rated.held_time, *rated.charged_time})
    )
    return worst_check(
        "R5", "charges + undecided + free by tariff = ledger, by tenant and state", pairs
    )


def check_charged_amount(
    charges: Sequence[Charge], invoices: Sequence[Invoice]
) -> ReconciliationCheck:
    """R5: the exact amount of the period's use, as rated and as invoiced."""
    exact = sum((charge.amount for charge in charges), Fraction(0))
    billed = [line.charge for invoice in invoices for line in invoice.lines]
    used = [charge.amount for charge in billed if charge.unit and not charge.corrects]
    title = "invoices, exact = charges"
    return ReconciliationCheck("R5", title, sum(used, Fraction(0)), exact, len(charges))


def check_unobserved_time(
    ledger: ledger_store.Ledger, period: Period
) -> Iterator[ReconciliationCheck]:
    """R6: the shares of inferred and unknown time, of all GPUs that agents have reported.

    On a GPU that only job lists name, nothing can have been observed: a share of its time states nothing about agents.
    """
    time: dict[SlotState, Fraction] = dict.fromkeys(SlotState, Fraction(0))
    days = period_rating.period_days(period)
    newest = ledger.newest(days.start, days.stop)
    observable = {key: n for key, n in newest.items() if not imported_lists.is_listed_gpu(key.gpu)}
    for revision in ledger.revisions(observable):
        for piece in revision.day.pieces:
            for part in piece.parts:
                time[part.state] += Fraction(part.size) * (piece.end_ns - piece.start_ns)
    whole = sum(time.values(), Fraction(0))
    parts, absence = (1, "") if whole else (0, NOT_OBSERVED)
    for state, bound in ((SlotState.INFERRED, MAX_INFERRED), (SlotState.UNKNOWN, MAX_UNKNOWN)):
        title = f"share of {state} time"
        share = time[state] / whole if whole else Fraction(0)
        yield ReconciliationCheck(
            "R6", title, share, Fraction(0), parts, bound=bound, absence=absence
        )


def check_recomputed(
    closing: PeriodClosing, issued: Sequence[Invoice], again: RecomputedClosing
) -> Iterator[ReconciliationCheck]:
    """R7: equal roots of the closing and of each of its invoices."""
    name = period_name(closing.period)
    root = int(again.manifest_root == closing.manifest_root)
    yield ReconciliationCheck("R7", f"root of {name}, computed again", Fraction(root), Fraction(1))
    recomputed_hashes = {draft.content_hash for draft in again.drafts}
    expected = {draft.content_hash for draft in issued}
    title = f"invoices of {name}, computed again"
    yield ReconciliationCheck(
        "R7",
        title,
        Fraction(len(recomputed_hashes & expected)),
        Fraction(len(recomputed_hashes | expected)),
        len(expected),
    )
