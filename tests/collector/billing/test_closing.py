"""Closing a period: once and completely; conditions that prevent it; on SQLite and PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import event, select
from support.books import (
    ALL,
    BOSS,
    GREEN,
    ONE,
    PRICES,
    RED,
    START,
    THREE,
    TWO,
    books_after,
    books_with,
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

from railscope.timestamps import DAY_NS
from railscope_collector.billing import administration, tables
from railscope_collector.billing.billing_store import BillingStore
from railscope_collector.billing.charges import ChargeKind
from railscope_collector.billing.closing_recomputation import recompute_closing
from railscope_collector.billing.closing_record import ClosingError, PeriodClosing
from railscope_collector.billing.invoices import InvoiceStatus, adjustment_charge
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.tenant_statements import read_statement
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.evidence import NodeStay
from railscope_collector.metering.units import Period
from railscope_collector.tables import metadata


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


def test_each_charge_leads_back_to_one_revision(ledger):
    books = books_with(ledger, ALL)
    closed = books.close(ONE, manager_after(ONE))
    numbers = books.store.revisions(closed.closing.number)
    for invoice in closed.invoices:
        for line in invoice.lines:
            charge = line.charge
            day = charge.service_t0_ns // DAY_NS
            assert charge.service_t1_ns <= (day + 1) * DAY_NS
            assert numbers[charge.resource, day] == 1


def test_computing_again_gives_the_same_whatever_came_since(ledger):
    books = books_with(ledger, ALL)
    closed = [books.close(ONE, manager_after(ONE))]
    books = books_after(
        books, evidence_of(released_gpu(gpu("GPU-0", RED), RED.id, 50), gpu("GPU-1", GREEN))
    )
    closed.append(books.close(TWO, manager_after(TWO)))
    books = books_after(books, evidence_of(gpu("GPU-0"), gpu("GPU-1")))
    for one in closed:
        again = recompute_closing(books, one.closing, one.invoices)
        assert again.manifest_root == one.closing.manifest_root
        assert [each.content_hash for each in again.drafts] == [
            each.content_hash for each in one.invoices
        ]


# Rejected closings ---------------------------------------------------------------------------


def test_a_period_that_is_not_over_is_rejected(ledger):
    books = books_with(ledger, ALL)
    with pytest.raises(ClosingError, match="yet: expected 2024-10-10T00:00:00Z or later"):
        books.close(ONE, TimedActor(BOSS, manager_after(ONE).now_ns - 1))
    assert books.store.closings() == []


def test_periods_follow_one_another(ledger):
    books = books_with(ledger, ALL)
    books.close(ONE, manager_after(ONE))
    with pytest.raises(ClosingError, match="expected the start 2024-10-07T00"):
        books.close(THREE, manager_after(THREE))
    overlapping = Period(ONE.end_ns - DAY_NS, TWO.end_ns)
    with pytest.raises(ClosingError, match=r"overlaps the closed period 2024-10-04\.\.2024-10-06"):
        books.close(overlapping, manager_after(TWO))


def test_without_prices_nothing_is_closed(ledger):
    meter(ledger, ALL)
    with pytest.raises(ClosingError, match="no price book is published"):
        BillingBooks.for_ledger(ledger).close(ONE, manager_after(ONE))


def test_days_that_lack_are_named_and_can_be_left_out(ledger):
    meter(ledger, evidence_of(ALL.assembled["GPU-0"]))
    meter(ledger, evidence_of(ALL.assembled["GPU-1"]), Period(START, START + DAY_NS))
    books = BillingBooks.for_ledger(ledger, ALL)
    administration.publish(books, PRICES, "p", manager_after(ONE))
    lacking = r"missing in the ledger: 1 GPU-day \(GPU-1 on 2024-10-06\); fix: wait for the GPU-days, or close with --prov"
    with pytest.raises(ClosingError, match=lacking):
        books.close(ONE, manager_after(ONE))
    assert books.store.closings() == []
    closed = books.close(ONE, manager_after(ONE), provisional=True)
    assert closed.closing.missing == (("GPU-1", START // DAY_NS + 2),)
    marks = read_statement(books, "green", ONE).marks
    assert "PROVISIONAL" in marks[0]
    assert "GPU-1" not in marks[0], "a tenant reads it, and the GPU may be of another"
    books = books_after(books, ALL)
    books.close(TWO, manager_after(TWO))
    rate = Fraction("2.49") + Fraction("0.31") / 2
    assert exact_amounts(books.store.invoices())["green"] == (60 + 72) * rate


def test_a_gpu_that_the_ledger_lacks_completely_is_missing_too(ledger):
    meter(ledger, evidence_of(ALL.assembled["GPU-0"]))
    books = BillingBooks.for_ledger(ledger, ALL)
    administration.publish(books, PRICES, "p", manager_after(ONE))
    with pytest.raises(ClosingError, match=r"GPU-1 from 2024-10-04 to 2024-10-06"):
        books.close(ONE, manager_after(ONE))


def test_days_on_which_a_gpu_was_nowhere_do_not_lack(ledger):
    gone = gpu("GPU-1", stays=(NodeStay(START, "node-1", START + DAY_NS),))
    meter(ledger, evidence_of(ALL.assembled["GPU-0"]))
    meter(ledger, evidence_of(gone), Period(START, START + 1))
    books = BillingBooks.for_ledger(ledger, evidence_of(ALL.assembled["GPU-0"], gone))
    administration.publish(books, PRICES, "p", manager_after(ONE))
    assert books.close(ONE, manager_after(ONE)).closing.missing == ()


def test_days_that_were_not_over_when_they_were_computed_are_not_final(ledger):
    from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation  # noqa: PLC0415

    books = books_with(ledger, ALL)
    known = released_gpu(ALL.assembled["GPU-0"], RED.id, 59)
    early = MeteredGpu.compute(known.evidence, known.counted, known.skus)
    day = START // DAY_NS + 2
    ledger.write(early.day(day, MeteringComputation("1", (day + 1) * DAY_NS - 1)))
    with pytest.raises(ClosingError, match=r"not final in the ledger: 1 GPU-day \(GPU-0 on"):
        books.close(ONE, manager_after(ONE))


# Concurrent and interrupted closings
# ----------------------------------------------------------------------


@cache
def closers() -> ForkServer:
    """Return the server of processes that close the period."""
    return ForkServer(str(Path(__file__).with_name("closer.py")))


def test_processes_that_close_at_once_issue_one_set_of_invoices(url, ledger, tmp_path):
    books = books_with(ledger, ALL)
    status, output = closers().run(str(tmp_path), url, "", "4")
    *roots, ends = output.splitlines()
    assert (status, ends) == (0, "[0, 0, 0, 0]"), output
    (closing,) = books.store.closings()
    assert roots == [closing.manifest_root] * 4
    assert [invoice.tenant for invoice in books.store.invoices()] == ["green", "red"]
    assert sum(name.startswith("billing.issue/") for name in in_outbox(ledger.database)) == 2


@dataclass(frozen=True)
class OvertakenStore(BillingStore):
    """After each read of the closings, another process does the next of these."""

    others: list[Callable[[], object]] = field(default_factory=list)

    def closings(self) -> list[PeriodClosing]:
        found = super().closings()
        if self.others:
            self.others.pop(0)()
        return found


@pytest.mark.parametrize("polls", [0, 1])
def test_a_slower_closing_finds_the_period_closed(ledger, polls):
    books = books_with(ledger, ALL)
    others = [*[object] * polls, lambda: books.close(ONE, manager_after(ONE))]
    found = BillingBooks(ledger, OvertakenStore(ledger.database, others)).close(
        ONE, manager_after(ONE)
    )
    assert not others
    assert not found.added
    assert books.store.closings() == [found.closing]


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


def test_an_invoice_is_not_replaced_while_a_later_period_is_closed(ledger):
    books = books_with(ledger, ALL)
    (green, _) = books.close(ONE, manager_after(ONE)).invoices
    others = [lambda: books.close(TWO, manager_after(TWO))]
    overtaken = BillingBooks(ledger, OvertakenStore(ledger.database, others))
    with pytest.raises(ClosingError, match="another process billed at the same time"):
        administration.replace(overtaken, green.invoice_id, "wrong", manager_after(TWO))
    assert [closing.period for closing in books.store.closings()] == [ONE, TWO]


@pytest.mark.parametrize(
    "dies",
    [
        "INSERT INTO billing_closing ",
        "INSERT INTO billing_closing_revision",
        "INSERT INTO billing_invoice",
        "INSERT INTO billing_charge",
        "INSERT INTO audit_outbox",
    ],
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
