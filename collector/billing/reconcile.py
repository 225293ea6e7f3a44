"""Reconciliation: exact comparisons of quantities that must be equal, without tolerance.

R1  per GPU, day and tiling the states in the ledger add up to capacity times time
R2  the cluster's sum is its inventory times time
R3  the scheduler's own records, see `collector.jobs`
R4  attributed + idle + unattributed amounts in the ledger = counter increments, per GPU and day
R5  ledger, charges, invoices, FOCUS rows and the files read back have the same amount
R6  shares of inferred and unknown time, with their bounds
R7  a closed period computed again gives the same root, and evidence the same ledger
R8  every row equals the hash in its ledger head and in its record in the audit log's outbox
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from collector.audit.ledger_check import compare_ledger, outbox_records, summary
from collector.billing.amounts import amounts
from collector.billing.charges import Charge
from collector.billing.checks import Check, worst
from collector.billing.closed import Closing
from collector.billing.closing import Books
from collector.billing.focus import Seller
from collector.billing.invoice import Invoice
from collector.billing.known import evidence_checks
from collector.billing.rated import Rated, window
from collector.billing.recompute import Recomputed, recompute
from collector.ledger.store import Ledger
from collector.metering.instants import Period
from collector.metering.periods import name_of
from collector.metering.tiling import State
from collector.metering.units import Tiling

MAX_INFERRED = Fraction(1, 100)
MAX_UNKNOWN = Fraction(1, 1000)


def reconcile(books: Books, period: Period, seller: Seller) -> list[Check]:
    """All checks of a period; R1, R2 and R4 need evidence.

    Raises LedgerError, ClosingError, MissingPriceError.
    """
    found = list(recorded(books, period))
    if books.evidence is not None:
        found += evidence_checks(books.ledger, books.evidence, period)
    closings = [one for one in books.store.closings() if one.period.overlaps(period)]
    for closing in closings:
        found += closing_checks(books, closing, seller)
    if not closings:
        bill = books.bill(period)
        found += [held(bill.rated), charged(bill.rated.charges, bill.drafts)]
    return sorted([*found, *unseen(books.ledger, period)], key=lambda check: check.rule)


def recorded(books: Books, period: Period) -> Iterator[Check]:
    """R8: rows changed, added or removed by hand; of ledger days, those of the period."""
    with books.ledger.database.transaction() as connection:
        compared = compare_ledger(connection, outbox_records(connection), window(period))
    what = "rows as written, as committed to by heads, as recorded"
    rows, wrong = compared.rows.total(), len(compared.wrong) + compared.more
    where = summary(compared)
    yield Check("R8", what, Fraction(rows - wrong), Fraction(rows), rows, where)


def closing_checks(books: Books, closing: Closing, seller: Seller) -> Iterator[Check]:
    """R5 and R7 of a closing."""
    issued = books.store.of_closing(closing.number)
    again = recompute(books, closing, issued)
    own = [one for one in again.rated.charges if closing.tenant in ("", one.tenant)]
    yield held(again.rated)
    yield charged(own, issued)
    yield from amounts(issued, seller)
    yield from recomputed(closing, issued, again)


def held(rated: Rated) -> Check:
    """R5: billable time in the ledger is charged, free by tariff, or undecided."""
    pairs = (
        (f"{of.tenant}, {of.sku}, {of.state}", rated.taken.get(of, 0), rated.held.get(of, 0))
        for of in sorted({*rated.held, *rated.taken})
    )
    return worst("R5", "charges + undecided + free by tariff = ledger, by tenant and state", pairs)


def charged(charges: Sequence[Charge], invoices: Sequence[Invoice]) -> Check:
    """R5: the exact amount of the period's use, as rated and as invoiced."""
    exact = sum((charge.amount for charge in charges), Fraction(0))
    billed = [line.charge for one in invoices for line in one.lines]
    used = [charge.amount for charge in billed if charge.unit and not charge.corrects]
    what = "invoices, exact = charges"
    return Check("R5", what, sum(used, Fraction(0)), exact, len(charges))


def unseen(ledger: Ledger, period: Period) -> Iterator[Check]:
    """R6: the shares of all GPU time that are inferred and unknown."""
    time: dict[State, Fraction] = dict.fromkeys(State, Fraction(0))
    for total, quantity in ledger.totals(period.start_ns, period.end_ns).items():
        if total.tiling is Tiling.COMPUTE:
            time[total.state] += quantity
    whole = sum(time.values(), Fraction(0))
    for state, bound in ((State.INFERRED, MAX_INFERRED), (State.UNKNOWN, MAX_UNKNOWN)):
        share = time[state] / whole if whole else Fraction(0)
        yield Check("R6", f"share of {state} time", share, Fraction(0), bound=bound)


def recomputed(closing: Closing, issued: Sequence[Invoice], again: Recomputed) -> Iterator[Check]:
    """R7: equal roots of the closing and of each of its invoices."""
    name = name_of(closing.period)
    root = int(again.manifest_root == closing.manifest_root)
    yield Check("R7", f"root of {name}, computed again", Fraction(root), Fraction(1))
    found = {one.content_hash for one in again.drafts}
    expected = {one.content_hash for one in issued}
    what = f"invoices of {name}, computed again"
    yield Check("R7", what, Fraction(len(found & expected)), Fraction(len(found | expected)),
                len(expected))  # fmt: skip
