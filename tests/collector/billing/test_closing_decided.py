"""Closed periods are unchanged; late or decided evidence is billed by the next closing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from support.books import (
    ALL,
    GREEN,
    ONE,
    PRICES,
    RED,
    START,
    THREE,
    TWO,
    books_after,
    books_with,
    claim,
    evidence_of,
    exact_amounts,
    gpu,
    hours,
    in_outbox,
    manager_after,
    released_gpu,
)

from railscope.timestamps import DAY_NS
from railscope_collector.billing import administration, tables
from railscope_collector.billing.billing_demo import SimulatedEvidence
from railscope_collector.billing.closing_recomputation import recompute_closing
from railscope_collector.billing.closing_record import ClosingError
from railscope_collector.billing.invoices import adjustment_charge, credit_charge
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.price_book import PriceBookError
from railscope_collector.billing.tenant_statements import read_statement
from railscope_collector.ledger.audit_outbox import (
    LogPosition as AuditPlace,
    store_positions,
    take_rows,
)
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.metering.evidence import SlotReservation
from railscope_collector.metering.observation import BootSampleSpan


def test_what_comes_late_is_corrected_in_the_next_period(ledger):
    books = books_with(ledger, ALL)
    closed = books.close(ONE, manager_after(ONE))
    # Both facts are about the first period; one of them moves time from one tenant to another.
    news = evidence_of(
        released_gpu(gpu("GPU-0", RED), RED.id, 50),
        gpu("GPU-1", GREEN, claim("blue", 24, 30)),
    )
    books = books_after(books, news)
    later = books.close(TWO, manager_after(TWO))
    assert later.closing.corrected == (ONE,)
    corrections = [
        line.charge for invoice in later.invoices for line in invoice.lines if line.charge.corrects
    ]
    assert {one.corrects for one in corrections if one.tenant == "red"} == {
        invoice.invoice_id for invoice in closed.invoices if invoice.tenant == "red"
    }
    assert all(ONE.start_ns <= one.service_t0_ns < ONE.end_ns for one in corrections)
    rate = Fraction("2.49") + Fraction("0.31") / 2
    owed = exact_amounts(books.store.invoices())
    assert owed["red"] == 45 * rate
    # An increment of the counter across a handover is charged to no tenant.
    assert owed["blue"] == 6 * rate
    # When the later claim has ended, the earlier one holds again.
    assert owed["green"] == 126 * rate
    assert tuple(books.store.of_closing(1)) == closed.invoices


def test_what_was_corrected_is_not_corrected_again(ledger):
    books = books_with(ledger, ALL)
    books.close(ONE, manager_after(ONE))
    books = books_after(
        books, evidence_of(released_gpu(gpu("GPU-0", RED), RED.id, 50), gpu("GPU-1", GREEN))
    )
    books.close(TWO, manager_after(TWO))
    last = books.close(THREE, manager_after(THREE))
    assert last.closing.corrected == ()
    assert not [line for invoice in last.invoices for line in invoice.lines if line.charge.corrects]


# Issued invoices are unchanged
# ----------------------------------------------------------------------------


@pytest.mark.parametrize("table", tables.BILLING_TABLES, ids=lambda table: table.name)
@pytest.mark.parametrize("change", ["UPDATE {0} SET {1} = {1}", "DELETE FROM {0}"])
def test_the_database_rejects_to_change_what_is_billed(ledger, table, change):
    books = books_with(
        ledger, evidence_of(gpu("GPU-0", RED), gpu("GPU-1", claim("pid", 1, 2, system=False)))
    )
    administration.record(
        books, credit_charge("red", Fraction(1), ONE, "why"), manager_after(ONE), force=True
    )
    closed = books.close(ONE, manager_after(ONE))
    administration.void(books, closed.invoices[0].invoice_id, "wrong", manager_after(ONE))
    administration.set_opening(books, ONE.start_ns, "start of the contract", manager_after(ONE))
    column = table.primary_key.columns.keys()[0]
    review = "INSERT INTO billing_review VALUES (1, 0, 't', 'r', 's', 'c', 'x', 1, 0, 1, 'w', NULL)"
    with ledger.database.transaction(writes=True) as connection:
        if table is tables.reviews:
            connection.execute(text(review))
        assert connection.execute(select(table)).first() is not None
    statement_ = text(change.format(table.name, column))
    with (
        ledger.database.engine.begin() as connection,
        pytest.raises(DBAPIError, match="append-only"),
    ):
        connection.execute(statement_)


def test_an_invoice_that_was_altered_behind_the_triggers_is_detected(ledger):
    books = books_with(ledger, ALL)
    books.close(ONE, manager_after(ONE))
    drop = {
        "sqlite": "DROP TRIGGER billing_charge_no_update",
        "postgresql": "DROP TRIGGER billing_charge_append_only ON billing_charge",
    }
    with ledger.database.transaction(writes=True) as connection:
        connection.execute(text(drop[connection.dialect.name]))
        connection.execute(text("UPDATE billing_charge SET amount_minor = amount_minor - 1"))
    with pytest.raises(
        UnusableLedgerError, match=r"was altered: inv-\w+ does not match what was issued"
    ):
        books.store.invoices()


def test_a_line_that_was_added_to_an_invoice_is_detected(ledger):
    books = books_with(ledger, ALL)
    books.close(ONE, manager_after(ONE))
    copy = "INSERT INTO billing_charge SELECT invoice_id, 'f00'"
    rest = ", ".join(column.name for column in list(tables.charges.columns)[2:])
    with ledger.database.transaction(writes=True) as connection:
        connection.execute(text(f"{copy}, {rest} FROM billing_charge LIMIT 1"))
    with pytest.raises(UnusableLedgerError, match="was altered"):
        books.store.invoices()


# Decisions ---------------------------------------------------------------------------------------


def test_a_void_invoice_is_billed_by_the_next_closing(ledger):
    books = books_with(ledger, ALL)
    closed = books.close(ONE, manager_after(ONE))
    before = exact_amounts(closed.invoices)
    red = next(invoice for invoice in closed.invoices if invoice.tenant == "red")
    administration.void(books, red.invoice_id, "sent to the wrong person", manager_after(ONE))
    assert exact_amounts(books.store.invoices()) == {"green": before["green"]}
    assert "VOID: sent to the wrong person" in read_statement(books, "red", ONE).marks[0]
    with pytest.raises(ClosingError, match="status void: expected an issued invoice"):
        administration.void(books, red.invoice_id, "again", manager_after(ONE))
    with pytest.raises(ClosingError, match="unknown invoice inv-0"):
        administration.void(books, "inv-0", "again", manager_after(ONE))
    later = books.close(TWO, manager_after(TWO))
    assert later.closing.corrected == (ONE,)
    assert exact_amounts(books.store.invoices())["red"] == before["red"]
    last = books.close(THREE, manager_after(THREE))
    assert [invoice.tenant for invoice in last.invoices] == ["green"]
    for one in (closed, later, last):
        again = recompute_closing(books, one.closing, books.store.of_closing(one.closing.number))
        assert again.manifest_root == one.closing.manifest_root


def test_an_invoice_is_replaced_by_what_is_known_now(ledger):
    books = books_with(ledger, ALL)
    administration.record(
        books, credit_charge("red", Fraction(5), ONE, "sorry"), manager_after(ONE), force=True
    )
    closed = books.close(ONE, manager_after(ONE))
    red = next(invoice for invoice in closed.invoices if invoice.tenant == "red")
    news = evidence_of(
        released_gpu(gpu("GPU-0", RED), RED.id, 50), released_gpu(gpu("GPU-1", GREEN), GREEN.id, 70)
    )
    books = books_after(books, news)
    replaced = administration.replace(
        books, red.invoice_id, "the job had ended", manager_after(ONE)
    )
    (fresh,) = replaced.invoices
    rate = Fraction("2.49") + Fraction("0.31") / 2
    assert (fresh.replaces, fresh.exact) == (red.invoice_id, 45 * rate - 5)
    assert read_statement(books, "red", ONE).invoice == fresh
    again = recompute_closing(books, replaced.closing, replaced.invoices)
    assert again.manifest_root == replaced.closing.manifest_root
    # Late evidence about the other tenant is preserved.
    books.close(TWO, manager_after(TWO))
    owed = exact_amounts(books.store.invoices())
    assert owed == {"red": 45 * rate - 5, "green": 58 * rate}
    with pytest.raises(ClosingError, match="was closed after it"):
        administration.replace(books, fresh.invoice_id, "again", manager_after(TWO))


def test_an_invoice_that_waits_for_days_is_not_replaced_and_says_what_to_do(ledger):
    books = books_with(ledger, ALL)
    (invoice, _) = books.close(ONE, manager_after(ONE)).invoices
    known = SimulatedEvidence({**ALL.assembled, "GPU-2": gpu("GPU-2")})
    waiting = BillingBooks.for_ledger(ledger, known)
    message = r"missing in the ledger: 3 GPU-days .*; fix: wait for the GPU-days$"
    with pytest.raises(ClosingError, match=message):
        administration.replace(waiting, invoice.invoice_id, "wrong", manager_after(ONE))


def test_credits_and_adjustments_are_billed_once(ledger):
    books = books_with(ledger, ALL)
    given = credit_charge("red", Fraction("12.5"), ONE, "power cut")
    assert administration.record(books, given, manager_after(ONE), force=True) == (True, "EUR")
    assert administration.record(books, given, manager_after(TWO)) == (False, "EUR")
    with pytest.raises(ClosingError, match="unknown tenant 'nobody'"):
        administration.record(
            books, adjustment_charge("nobody", Fraction(1), ONE, "x"), manager_after(ONE)
        )
    closed = books.close(ONE, manager_after(ONE))
    administration.record(
        books, adjustment_charge("red", Fraction(3), ONE, "phone"), manager_after(ONE)
    )
    later = books.close(TWO, manager_after(TWO))
    decided = [
        (line.charge.kind.value, line.charge.amount, line.charge.note)
        for one in (*closed.invoices, *later.invoices)
        for line in one.lines
        if line.charge.unit is None
    ]
    assert decided == [
        ("credit", Fraction("-12.5"), "power cut"),
        ("adjustment", Fraction(3), "phone"),
    ]
    names = in_outbox(ledger.database)
    assert sum(name.startswith("billing.adjust/") for name in names) == 2


@dataclass
class InterruptedEvidence(SimulatedEvidence):
    """Evidence that is read in the middle of a closing, when a person records a credit."""

    meddle: list[Callable[[], None]] = field(default_factory=list)

    def gpus(self, start_ns: int, end_ns: int) -> list[str]:
        while self.meddle:
            self.meddle.pop()()
        return super().gpus(start_ns, end_ns)


def test_what_is_decided_while_a_period_is_computed_is_on_its_invoice(ledger):
    books = books_with(ledger, ALL)
    given = credit_charge("red", Fraction(7), ONE, "just in time")
    meddling = InterruptedEvidence(
        ALL.assembled, [lambda: administration.record(books, given, manager_after(ONE), force=True)]
    )
    closed = BillingBooks.for_ledger(ledger, meddling).close(ONE, manager_after(ONE))
    red = next(invoice for invoice in closed.invoices if invoice.tenant == "red")
    assert [line.charge.amount for line in red.lines if line.charge.unit is None] == [-7]


def test_constant_changes_keep_a_period_open(ledger):
    books = books_with(ledger, ALL)
    credits_ = [credit_charge("red", Fraction(n), ONE, "again") for n in range(1, 9)]

    class Always(SimulatedEvidence):
        """A person records a credit whenever it is read."""

        def gpus(self, start_ns: int, end_ns: int) -> list[str]:
            administration.record(books, credits_.pop(), manager_after(ONE), force=True)
            return super().gpus(start_ns, end_ns)

    with pytest.raises(ClosingError, match="prices, invoices or closings keep changing"):
        BillingBooks.for_ledger(ledger, Always(ALL.assembled)).close(ONE, manager_after(ONE))
    assert books.store.closings() == []


def test_prices_change_only_what_is_not_closed(ledger):
    books = books_with(ledger, ALL)
    _, added = administration.publish(books, PRICES, "p", manager_after(ONE))
    assert not added
    books.close(ONE, manager_after(ONE))
    dearer = PRICES.replace("version = 1", "version = 2", 1)
    dearer = dearer.replace("published = 2024-01-01", "published = 2024-10-06")
    with pytest.raises(PriceBookError, match="expected at least 2024-10-07T00:00:00Z"):
        administration.publish(books, dearer, "p", manager_after(ONE))
    changed = PRICES.replace("2_490", "2_500")
    with pytest.raises(PriceBookError, match="version 1: expected a later version and publication"):
        administration.publish(books, changed, "p", manager_after(ONE))
    fine = dearer.replace("published = 2024-10-06", "published = 2024-10-07")
    assert administration.publish(books, fine, "p", manager_after(ONE))[1]
    assert books.store.book().book.version == 2
    assert books.store.book(1).book.version == 1


def test_prices_that_are_dated_after_now_are_not_billed_by(ledger):
    books = books_with(ledger, ALL)
    later = PRICES.replace("version = 1", "version = 2", 1).replace("2024-01-01", "2024-10-12", 1)
    with pytest.raises(PriceBookError, match=r"price book version 2: 2024-10-12T.*expected a time"):
        administration.publish(books, later, "p", manager_after(ONE))
    administration.publish(books, later, "p", manager_after(THREE))
    with pytest.raises(PriceBookError, match="expected a time up to now"):
        books.close(ONE, manager_after(ONE))
    assert books.store.closings() == []


def test_a_statement_names_its_record_in_the_audit_log(ledger):
    books = books_with(ledger, ALL)
    closed = books.close(ONE, manager_after(ONE))
    name = f"billing.issue/{closed.invoices[0].invoice_id}"
    with ledger.database.transaction(writes=True) as connection:
        take_rows(connection, "log", 100)
        store_positions(connection, "log", [AuditPlace(name, 41, 50)])
    found = read_statement(books, "green", ONE)
    assert found.invoice.audit_seq == 41
    assert ("Audit log", "record 41, under the checkpoint of size 50") in found.proof


def test_reservations_and_unobserved_time(ledger):
    kept = SlotReservation(hours(0), "kept-1", "blue", hours(24))
    silent = gpu("GPU-1", GREEN, sample_spans=(), reservations=(kept,))
    books = books_with(ledger, evidence_of(gpu("GPU-0", RED), silent))
    closed = books.close(ONE, manager_after(ONE))
    assert exact_amounts(closed.invoices)["blue"] == 12 * Fraction("0.9")
    reviews = books.store.reviews(closed.closing.number)
    (time,) = [review for review in reviews if review.tenant == "green"]
    assert (time.start_ns, time.end_ns) == (GREEN.start_ns, ONE.end_ns)
    assert time.reason == "inferred over a gap of more than 1 h"


def test_a_gap_has_its_length_whatever_claims_hold_the_gpu(ledger):
    sample_spans = (
        BootSampleSpan("boot", START - DAY_NS, hours(10)),
        BootSampleSpan("next", hours(30), TWO.end_ns),
    )
    kept = SlotReservation(hours(10.5), "kept-1", "blue", hours(30))
    silent = gpu("GPU-0", claim("red", 5, 10.5), sample_spans=sample_spans, reservations=(kept,))
    books = books_with(ledger, evidence_of(silent))
    closed = books.close(ONE, manager_after(ONE))
    times = [
        review for review in books.store.reviews(closed.closing.number) if review.tenant == "red"
    ]
    assert [(time.start_ns, time.end_ns) for time in times] == [(hours(10), hours(10.5))]
    assert times[0].reason == "inferred over a gap of more than 1 h"
