"""Closing a period: once and completely; conditions that prevent it; on SQLite and PostgreSQL."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError
from support.books import (
    ALL,
    ONE,
    RED,
    THREE,
    TWO,
    books_with,
    claim,
    evidence_of,
    exact_amounts,
    gpu,
    in_outbox,
    manager_after,
    meter,
    released_gpu,
)
from support.fork_server import ForkServer
from support.postgresql import PostgreSQL

from railscope_collector.billing import administration, tables
from railscope_collector.billing.charges import ChargeKind
from railscope_collector.billing.closing_recomputation import recompute_closing
from railscope_collector.billing.invoices import InvoiceStatus, adjustment_charge, credit_charge
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata


@pytest.mark.statements
def test_a_period_is_billed_from_the_ledger_once(ledger):
    books = books_with(ledger, ALL)
    closed = books.close(ONE, manager_after(ONE))
    assert closed.added
    assert [(invoice.tenant, invoice.status, invoice.period) for invoice in closed.invoices] == [
        ("green", InvoiceStatus.ISSUED, ONE),
        ("red", InvoiceStatus.ISSUED, ONE),
    ]
    price, energy = Fraction("2.49"), Fraction("0.31") / 2
    assert exact_amounts(closed.invoices) == {
        "red": 55 * (price + energy),
        "green": 60 * (price + energy),
    }
    again = books.close(ONE, manager_after(THREE))
    assert (again.closing, again.invoices, again.added) == (closed.closing, closed.invoices, False)
    assert tuple(books.store.invoices()) == closed.invoices
    assert in_outbox(ledger.database) == [
        next(name for name in in_outbox(ledger.database) if name.startswith("billing.price/1/")),
        f"billing.close/{closed.closing.manifest_root}",
        *(f"billing.issue/{invoice.invoice_id}" for invoice in closed.invoices),
    ]


# Rejected closings ---------------------------------------------------------------------------


# Concurrent and interrupted closings
# ----------------------------------------------------------------------


@cache
def closers() -> ForkServer:
    """Return the server of processes that close the period."""
    return ForkServer(str(Path(__file__).with_name("closer.py")))


@pytest.mark.statements
def test_processes_that_close_at_once_issue_one_set_of_invoices(url, ledger, tmp_path):
    books = books_with(ledger, ALL)
    status, output = closers().run(str(tmp_path), url, "", "4")
    *roots, ends = output.splitlines()
    assert (status, ends) == (0, "[0, 0, 0, 0]"), output
    (closing,) = books.store.closings()
    assert roots == [closing.manifest_root] * 4
    assert [invoice.tenant for invoice in books.store.invoices()] == ["green", "red"]
    assert sum(name.startswith("billing.issue/") for name in in_outbox(ledger.database)) == 2


@pytest.mark.parametrize("meanwhile", ["closed", "adjusted", "revised"])
def test_a_closing_that_is_paused_after_its_computation_bills_nothing_outdated(
    server: PostgreSQL, new_ledger_database: str, meanwhile: str
):
    """Paused before it locks billing; what changed meanwhile is in it, or in the next closing."""
    address = server.database(new_ledger_database)
    ledger, own = Ledger.open(address, metadata), Ledger.open(address, metadata)
    books = books_with(ledger, ALL)
    paused, resumed = Event(), Event()

    def pause(*arguments: object) -> None:
        if "pg_advisory_xact_lock" in str(arguments[2]) and not paused.is_set():
            paused.set()
            assert resumed.wait(60)

    event.listen(own.database.engine, "before_cursor_execute", pause)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(BillingBooks.for_ledger(own, ALL).close, ONE, manager_after(ONE))
        assert paused.wait(60)
        if meanwhile == "closed":
            books.close(ONE, manager_after(ONE))
        elif meanwhile == "adjusted":
            charge = adjustment_charge("green", Fraction(1), ONE, "late")
            administration.record(books, charge, manager_after(ONE))
        else:
            meter(ledger, evidence_of(released_gpu(ALL.assembled["GPU-0"], RED.id, 59)))
        resumed.set()
        closed = closing.result()
    assert closed.added == (meanwhile != "closed")
    assert books.store.closings() == [closed.closing]
    kinds = [line.charge.kind for invoice in closed.invoices for line in invoice.lines]
    assert (ChargeKind.ADJUSTMENT in kinds) == (meanwhile == "adjusted")
    recomputed = recompute_closing(books, closed.closing, closed.invoices)
    assert recomputed.manifest_root == closed.closing.manifest_root
    corrected = books.close(TWO, manager_after(TWO)).closing.corrected
    assert corrected == ((ONE,) if meanwhile == "revised" else ())
    for each in (ledger, own):
        each.close()
    server.drop(address)


@pytest.mark.parametrize(
    "dies",
    ["INSERT INTO billing_closing ", "INSERT INTO billing_charge", "INSERT INTO audit_outbox"],
)
def test_a_closing_that_is_killed_leaves_nothing(url, ledger, tmp_path, dies):
    books = books_with(ledger, ALL)
    killed = f"[{-signal.SIGKILL}]\n"
    assert closers().run(str(tmp_path), url, dies, "1") == (0, killed)
    with ledger.database.transaction() as connection:
        rows = {
            table.name: connection.execute(select(table)).all()
            for table in tables.BILLING_TABLES
            if table is not tables.price_books
        }
    assert not any(rows.values())
    assert [name.partition("/")[0] for name in in_outbox(ledger.database)] == ["billing.price"]
    closed = books.close(ONE, manager_after(ONE))
    assert closed.added
    assert recompute_closing(books, closed.closing, closed.invoices).manifest_root == (
        closed.closing.manifest_root
    )


def test_a_ledger_that_is_not_there_is_not_made(tmp_path):
    file = tmp_path / "ledger.sqlite"
    with pytest.raises(UnusableLedgerError, match="no ledger in sqlite:"):
        Ledger.open(f"sqlite:///{file}", metadata, make=False)
    assert not file.exists()
    file.touch()
    with pytest.raises(UnusableLedgerError, match="no ledger in sqlite:"):
        Ledger.open(f"sqlite:///{file}", metadata, make=False)


@pytest.mark.statements
def test_the_database_rejects_to_change_what_is_billed(ledger):
    books = books_with(
        ledger, evidence_of(gpu("GPU-0", RED), gpu("GPU-1", claim("pid", 1, 2, system=False)))
    )
    administration.record(
        books, credit_charge("red", Fraction(1), ONE, "why"), manager_after(ONE), force=True
    )
    closed = books.close(ONE, manager_after(ONE))
    administration.void(books, closed.invoices[0].invoice_id, "wrong", manager_after(ONE))
    administration.set_opening(books, ONE.start_ns, "start of the contract", manager_after(ONE))
    review = "INSERT INTO billing_review VALUES (1, 0, 't', 'r', 's', 'c', 'x', 1, 0, 1, 'w', NULL)"
    with ledger.database.transaction(writes=True) as connection:
        connection.execute(text(review))
        written = set(tables.BILLING_TABLES) - {tables.closing_revisions}
        for table in written:
            assert connection.execute(select(table)).first() is not None
    for table in sorted(written, key=lambda table: table.name):
        column = table.primary_key.columns.keys()[0]
        for change in ("UPDATE {0} SET {1} = {1}", "DELETE FROM {0}"):
            with (
                ledger.database.engine.begin() as connection,
                pytest.raises(DBAPIError, match="append-only"),
            ):
                connection.execute(text(change.format(table.name, column)))


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
