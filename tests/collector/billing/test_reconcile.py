"""Reconciliation finds each of these defects by the rule for it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import msgspec
from sqlalchemy import text
from support.books import (
    ALL,
    ONE,
    PRICES,
    RED,
    SELLER,
    SKU,
    START,
    TWO,
    SimulatedEvidence,
    books_after,
    books_with,
    evidence_of,
    gpu,
    hours,
    manager_after,
    released_gpu,
)
from support.gpu_evidence import NodeSighting
from support.metered import write_day

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS, HOUR_NS
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.period_rating import newest_revisions, rate_period
from railscope_collector.billing.reconciliation import (
    NOT_OBSERVED,
    check_amounts,
    check_billable_time,
    check_charged_amount,
    reconcile_period,
)
from railscope_collector.billing.reconciliation_check import ReconciliationCheck
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.observation import BootSampleSpan


def failing(checks: list[ReconciliationCheck]) -> set[str]:
    return {f"{check.rule} {check.title.split(',')[0]}" for check in checks if not check.passes}


def rules(checks: list[ReconciliationCheck]) -> set[str]:
    return {check.rule for check in checks if not check.passes}


def closed(ledger: Ledger, known: SimulatedEvidence = ALL) -> BillingBooks:
    books = books_with(ledger, known)
    books.close(ONE, manager_after(ONE))
    return books


def test_all_is_equal(ledger: Ledger) -> None:
    checks = reconcile_period(closed(ledger), ONE, SELLER)
    assert rules(checks) == set()
    assert {check.rule for check in checks} == {"R1", "R2", "R4", "R5", "R6", "R7", "R8"}
    whole = 2 * 3 * GPU_CAPACITY * DAY_NS
    (cluster,) = [check for check in checks if check.rule == "R2"]
    assert (cluster.found, cluster.expected) == (whole, whole)


def test_missing_days_and_gpus_without_evidence_are_differences(ledger: Ledger) -> None:
    books = closed(ledger)
    known = SimulatedEvidence({**ALL.assembled, "GPU-2": gpu("GPU-2")})
    checks = reconcile_period(BillingBooks.for_ledger(books.ledger, known), ONE, SELLER)
    assert {"R1", "R2", "R4", "R7"} <= rules(checks)


def test_energy_that_is_not_what_was_counted_is_found(ledger: Ledger) -> None:
    books = closed(ledger)
    red = ALL.assembled["GPU-0"]
    wrong = red.day(START // DAY_NS)
    first, *rest = wrong.amounts
    more = msgspec.structs.replace(first, amount=first.amount + 7)
    write_day(ledger, msgspec.structs.replace(wrong, amounts=(more, *rest)))
    checks = reconcile_period(books, ONE, SELLER)
    assert rules(checks) == {"R4", "R7"}
    (energy,) = [check for check in checks if check.rule == "R4"]
    assert (energy.difference, energy.place) == (7, "GPU-0 on 2024-10-04")


def test_different_evidence_is_found(ledger: Ledger) -> None:
    books = closed(ledger)
    known = evidence_of(released_gpu(ALL.assembled["GPU-0"], RED.id, 50), ALL.assembled["GPU-1"])
    checks = reconcile_period(BillingBooks.for_ledger(ledger, known), ONE, SELLER)
    assert rules(checks) == {"R7"}
    assert [check.place for check in checks if not check.passes] == ["GPU-0 on 2024-10-06"]
    # Once the ledger has it, all is equal again; the closed period stays what it was.
    informed = books_after(books, known)
    assert rules(reconcile_period(informed, ONE, SELLER)) == set()


def test_a_lost_charge_a_lost_invoice_and_free_time_are_differences(ledger: Ledger) -> None:
    books = closed(ledger)
    invoices = books.store.invoices()
    published = books.store.book()
    assert published is not None
    rated = rate_period(ledger, published.book, ONE, newest_revisions(ledger))
    assert check_billable_time(rated).passes
    taken = {of: quantity for of, quantity in rated.charged_time.items() if of.tenant == "red"}
    check = check_billable_time(replace(rated, charged_time=taken))
    assert check.difference == -60 * GPU_CAPACITY * HOUR_NS
    assert check.place == f"green, {SKU}, observed"
    assert check_charged_amount(rated.charges, invoices).passes
    assert check_charged_amount(rated.charges[1:], invoices).difference == rated.charges[0].amount
    assert check_charged_amount(rated.charges, invoices[1:]).difference == -invoices[0].exact
    assert all(check.passes for check in check_amounts(invoices, SELLER))


def test_prices_that_were_changed_behind_the_triggers_are_found(ledger: Ledger) -> None:
    books = closed(ledger)
    drop = {
        "sqlite": "DROP TRIGGER billing_price_book_no_update",
        "postgresql": "DROP TRIGGER billing_price_book_append_only ON billing_price_book",
    }
    with ledger.database.transaction(writes=True) as connection:
        connection.execute(text(drop[connection.dialect.name]))
        cheaper = PRICES.replace("2_490", "2_480")
        connection.execute(text("UPDATE billing_price_book SET text = :text"), {"text": cheaper})
    found = failing(reconcile_period(books, ONE, SELLER))
    assert "R7 root of 2024-10-04..2024-10-06" in found
    assert "R5 invoices" in found


def test_where_no_agent_reported_there_is_no_share_of_unobserved_time(ledger: Ledger) -> None:
    """A GPU that only job lists name has no observer. Beside it, the GPU of an agent has its own shares."""
    half = (BootSampleSpan("boot", START, hours(36)),)
    seen = (NodeSighting(NodeEvidence.SCHEDULER, START, TWO.end_ns),)
    listed = gpu("gpu-001/00000000:01:00.0", RED, sample_spans=())
    observed = gpu("GPU-0", RED, sample_spans=half, sightings=seen)
    books = books_with(ledger, evidence_of(listed))
    checks = [check for check in reconcile_period(books, ONE, SELLER) if check.rule == "R6"]
    assert [(check.parts, check.absence) for check in checks] == [(0, NOT_OBSERVED)] * 2
    books = books_after(books, evidence_of(listed, observed))
    checks = [check for check in reconcile_period(books, ONE, SELLER) if check.rule == "R6"]
    assert [(check.found, check.absence) for check in checks] == [
        (Fraction(24, 72), ""),
        (Fraction(12, 72), ""),
    ]
