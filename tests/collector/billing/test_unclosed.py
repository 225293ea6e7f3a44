"""Time that a closing leaves out: earlier days, undecided use, credits above what was invoiced."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from support.books import (
    ALL,
    BOSS,
    FIRST_DAY,
    GREEN,
    ONE,
    PRICES,
    RED,
    SELLER,
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
    without_counter,
)

from railscope.claim_terms import GPU_CAPACITY
from railscope.cli import root as railscope
from railscope.timestamps import DAY_NS, HOUR_NS
from railscope_collector.billing import administration
from railscope_collector.billing.billing_listing import listing_document, read_listing
from railscope_collector.billing.billing_reader import STATEMENT_FORMATS, BillingReader
from railscope_collector.billing.charges import ChargeKind
from railscope_collector.billing.closing_record import ClosingError
from railscope_collector.billing.invoices import adjustment_charge, credit_charge
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.reconciliation import reconcile_period
from railscope_collector.billing.statement_text import as_text
from railscope_collector.billing.tenant_statements import (
    UnknownTenantError,
    read_statement,
)
from railscope_collector.evidence.gpu_evidence import AssembledGpu
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.evidence import GpuOutage, NodeStay
from railscope_collector.metering.observation import BootSampleSpan
from railscope_collector.metering.units import Period
from railscope_collector.tables import metadata

SEEN_FOR_AN_HOUR = {"sample_spans": (BootSampleSpan("boot", START - DAY_NS, hours(6)),)}
RATE = Fraction("2.49") + Fraction("0.31") / 2


# Earlier time ------------------------------------------------------------------------------------


def test_a_later_period_is_rejected_while_earlier_time_is_not_closed(ledger):
    books = books_with(ledger, ALL)
    with pytest.raises(ClosingError) as caught:
        books.close(TWO, manager_after(TWO))
    assert str(caught.value) == (
        "cannot close 2024-10-07..2024-10-09: earlier days are not closed and have billable or "
        "undecided time: 6 GPU-days (GPU-0 from 2024-10-04 to 2024-10-06, "
        "GPU-1 from 2024-10-04 to 2024-10-06); fix: close the period from 2024-10-04 on first, or "
        "exclude them with `railscope bill opening 2024-10-07 --reason TEXT`"
    )
    assert books.store.closings() == []
    books.close(ONE, manager_after(ONE))
    assert books.close(TWO, manager_after(TWO)).added


def test_time_without_a_claim_does_not_keep_a_later_period_open(ledger):
    books = books_with(ledger, evidence_of(gpu("GPU-0", claim("red", 80))))
    assert books.close(TWO, manager_after(TWO)).added


def test_undecided_time_keeps_a_later_period_open(ledger):
    silent = gpu("GPU-0", claim("red", 5, 20), **SEEN_FOR_AN_HOUR)
    books = books_with(ledger, evidence_of(silent))
    with pytest.raises(ClosingError, match=r"1 GPU-day \(GPU-0 on 2024-10-04\)"):
        books.close(TWO, manager_after(TWO))


def test_an_opening_date_excludes_earlier_time_and_is_recorded(ledger):
    books = books_with(ledger, ALL)
    administration.set_opening(books, TWO.start_ns, "the contract begins", manager_after(TWO))
    assert books.store.opening().reason == "the contract begins"
    assert "billing.opening/1" in in_outbox(ledger.database)
    with pytest.raises(ClosingError, match="it begins before the opening date"):
        books.close(ONE, manager_after(TWO))
    closed = books.close(TWO, manager_after(TWO))
    assert exact_amounts(closed.invoices)["green"] == 72 * RATE
    with pytest.raises(ClosingError, match="expected at most 2024-10-07T00:00:00Z, the start of"):
        administration.set_opening(books, TWO.end_ns, "less", manager_after(TWO))
    with pytest.raises(ClosingError, match="expected the start of a UTC day"):
        administration.set_opening(books, TWO.start_ns + 1, "less", manager_after(TWO))


def test_earlier_time_that_arrives_late_is_not_lost_unnoticed(ledger):
    late = evidence_of(gpu("GPU-0", claim("red", 80)), gpu("GPU-1", claim("green", 80)))
    books = books_with(ledger, late)
    books.close(TWO, manager_after(TWO))
    books = books_after(books, ALL)
    with pytest.raises(ClosingError, match="earlier days are not closed") as caught:
        books.close(THREE, manager_after(THREE))
    assert "fix: exclude them with `railscope bill opening 2024-10-07" in str(caught.value)
    administration.set_opening(books, TWO.start_ns, "given away", manager_after(THREE))
    assert books.close(THREE, manager_after(THREE)).added


def test_a_ledger_of_an_earlier_release_gets_the_new_tables(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    ledger = Ledger.open(url, metadata)
    with ledger.database.transaction(writes=True) as connection:
        connection.execute(text("DROP TABLE billing_opening"))
    ledger.close()
    again = Ledger.open(url, metadata)
    books = books_with(again, ALL)
    administration.set_opening(books, TWO.start_ns, "the contract begins", manager_after(TWO))
    assert books.close(TWO, manager_after(TWO)).added
    again.close()


# Undecided time ----------------------------------------------------------------------------------


def test_a_correction_that_leaves_time_undecided_is_on_the_next_statement(ledger):
    books = books_with(ledger, evidence_of(without_counter(gpu("GPU-0", RED))))
    books.close(ONE, manager_after(ONE))
    unseen = gpu("GPU-0", RED, sample_spans=(BootSampleSpan("b", START - DAY_NS, hours(10)),))
    books = books_after(books, evidence_of(without_counter(unseen)))
    waiting = read_listing(books)
    assert [(one[0], one[1][0].tenant) for one in waiting.pending.corrections] == [(ONE, "red")]
    assert sum(one.gpu_hours for _, one in waiting.undecided) == 0
    assert sum(one.gpu_hours for _, one in waiting.pending.undecided) == 50
    closed = books.close(TWO, manager_after(TWO))
    assert exact_amounts(books.store.invoices())["red"] == 5 * Fraction("2.49")
    found = read_statement(books, "red", TWO)
    assert [(one.start_ns, one.end_ns) for one in found.undecided if one.units] == [
        (hours(10), hours(60))
    ]
    assert sum(one.gpu_hours for one in found.undecided) == 50
    assert "50 GPU-hours: inferred over a gap" in as_text(found)
    assert {review.tenant for review in books.store.reviews(closed.closing.number)} == {"red"}
    after_it = read_listing(books)
    assert sum(one.gpu_hours for _, one in after_it.undecided) == 50
    assert after_it.pending.corrections == ()
    for check in reconcile_period(books, TWO, SELLER):
        assert check.passes, check


def test_a_tenant_with_only_undecided_time_has_a_statement(ledger):
    silent = without_counter(gpu("GPU-1", claim("blue", 5, 20), sample_spans=()))
    books = books_with(ledger, evidence_of(gpu("GPU-0", RED), silent))
    books.close(ONE, manager_after(ONE))
    assert exact_amounts(books.store.invoices()).keys() == {"red"}
    found = read_statement(books, "blue", ONE)
    assert sum(one.gpu_hours for one in found.undecided) == 15
    printed = as_text(found)
    assert printed.startswith("STATEMENT  blue  2024-10-04..2024-10-06\n")
    assert "To pay: 0.00 EUR" in printed
    assert "15 GPU-hours" in printed
    document = json.loads(STATEMENT_FORMATS["json"](found))
    assert (document["invoice"], document["status"], document["total"]) == ("", "none", "0.00")
    assert document["undecided"][0]["gpu_hours"] == "15.000000000000"
    assert b"Not billed" in STATEMENT_FORMATS["html"](found)
    served = BillingReader(books, lambda _tenants: SELLER)
    assert [
        (invoice.tenant, invoice.invoice != "") for invoice in served.issued_invoices(None)
    ] == [
        ("blue", False),
        ("red", True),
    ]
    assert served.statement("blue", "2024-10-04..2024-10-06", "json") == STATEMENT_FORMATS["json"](
        read_statement(books, "blue", ONE, "Hall")
    )
    with pytest.raises(UnknownTenantError, match="no invoice of 'nobody'"):
        read_statement(books, "nobody", ONE)


@pytest.mark.parametrize("share", [Fraction(9, 100), Fraction(1, 11), Fraction(1, 2)])
def test_undecided_time_of_a_share_keeps_its_exact_capacity(ledger, share: Fraction):
    part = claim("blue", 5, 20, exclusive=False, share=share)
    books = books_with(ledger, evidence_of(without_counter(gpu("GPU-1", part, sample_spans=()))))
    closed = books.close(ONE, manager_after(ONE))
    stored = books.store.reviews(closed.closing.number)
    assert sum(one.gpu_hours for one in stored) == 15 * share
    assert sum(one.gpu_hours for one in read_statement(books, "blue", ONE).undecided) == 15 * share
    assert {one.units for one in stored if one.tenant and one.units} == {share * GPU_CAPACITY}
    for check in reconcile_period(books, ONE, SELLER):
        assert check.passes, check


def test_undecided_energy_is_not_counted_as_time(ledger):
    books = books_with(ledger, evidence_of(without_counter(gpu("GPU-0", RED))))
    books.close(ONE, manager_after(ONE))
    assert exact_amounts(books.store.invoices())["red"] == 55 * Fraction("2.49")
    found = read_statement(books, "red", ONE).undecided
    assert {one.reason for one in found} == {"its energy is unknown: unsupported"}
    assert sum(one.gpu_hours for one in found) == 0


# Minimums at the cut -----------------------------------------------------------------------------

GRANULAR = PRICES.replace(
    "nano_per_gpu_hour = 2_490_000_000",
    "nano_per_gpu_hour = 2_490_000_000\nminimum_seconds = 86400\ngranularity_seconds = 7200",
)


def _metered(ledger: Ledger, days: range, *known: AssembledGpu) -> None:
    computed = MeteringComputation("1", (days.stop + 1) * DAY_NS)
    gpus = [MeteredGpu.compute(one.evidence, {}, one.skus) for one in known]
    ledger.write_days([each.day(day, computed) for each in gpus for day in days])


@pytest.mark.parametrize("days_known", [3, 4])
def test_a_running_job_is_not_charged_a_minimum_where_a_period_cuts_it(ledger, days_known):
    running = gpu("GPU-0", claim("red", 71.5, 73))
    _metered(ledger, range(FIRST_DAY, FIRST_DAY + days_known), running)
    books = BillingBooks.for_ledger(ledger)
    administration.publish(books, GRANULAR, "p", TimedActor(BOSS, START))
    first = books.close(ONE, manager_after(ONE))
    assert [line.charge.kind.value for invoice in first.invoices for line in invoice.lines] == [
        "usage"
    ]
    _metered(ledger, range(FIRST_DAY, FIRST_DAY + 7), running)
    second = books.close(TWO, manager_after(TWO))
    kinds = [line.charge.kind.value for invoice in second.invoices for line in invoice.lines]
    assert sorted(kinds) == ["minimum_topup", "usage"]
    assert exact_amounts(books.store.invoices()) == {"red": 24 * Fraction("2.49")}


@pytest.mark.parametrize("red", [{}, {"exclusive": False}])
def test_a_claim_that_lost_its_gpu_has_its_minimum_where_it_ends(ledger, red):
    lost = gpu("GPU-0", claim("red", 11, 100, **red), claim("blue", 48, 110))
    _metered(ledger, range(FIRST_DAY, FIRST_DAY + 7), lost)
    books = BillingBooks.for_ledger(ledger)
    administration.publish(books, GRANULAR, "p", TimedActor(BOSS, START))
    found = []
    for period in (ONE, TWO):
        lines = [
            line
            for invoice in books.close(period, manager_after(period)).invoices
            for line in invoice.lines
        ]
        found.append(
            [line.charge for line in lines if line.charge.kind is ChargeKind.MINIMUM_TOPUP]
        )
    first, (topup,) = found
    assert first == []
    assert (topup.tenant, topup.quantity) == ("red", HOUR_NS * GPU_CAPACITY)
    assert (topup.service_t0_ns, topup.service_t1_ns) == (hours(96), hours(100))
    assert exact_amounts(books.store.invoices())["red"] == 38 * Fraction("2.49")


def test_an_outage_over_the_end_of_a_period_does_not_end_a_claim_twice(ledger):
    paused = gpu(
        "GPU-0",
        claim("red", 47.5, 120.5),
        outages=(GpuOutage(announced=False, start_ns=hours(48), end_ns=hours(120)),),
    )
    books = books_with(ledger, evidence_of(without_counter(paused)), GRANULAR.replace("86400", "0"))
    first = books.close(ONE, manager_after(ONE))
    assert [line.charge.kind.value for invoice in first.invoices for line in invoice.lines] == [
        "usage"
    ]
    books.close(TWO, manager_after(TWO))
    assert exact_amounts(books.store.invoices()) == {"red": 2 * Fraction("2.49")}


# Credits -----------------------------------------------------------------------------------------


def test_a_credit_is_at_most_what_was_invoiced(ledger):
    books = books_with(ledger, ALL)
    closed = books.close(ONE, manager_after(ONE))
    (red,) = [invoice.payable for invoice in closed.invoices if invoice.tenant == "red"]
    with pytest.raises(ClosingError, match=r"expected at most 145\.4\d+, the invoiced amount"):
        administration.record(books, credit_charge("red", red + 1, ONE, "x"), manager_after(ONE))
    with pytest.raises(ClosingError, match="or use --force"):
        administration.record(
            books, adjustment_charge("red", -red - 1, ONE, "x"), manager_after(ONE)
        )
    assert administration.record(
        books, credit_charge("red", red - 1, ONE, "most of it"), manager_after(ONE)
    )[0]
    with pytest.raises(ClosingError, match=r"expected at most 1\.0+, the invoiced"):
        administration.record(
            books, credit_charge("red", Fraction(2), ONE, "more"), manager_after(ONE)
        )
    assert administration.record(
        books, credit_charge("red", Fraction(1), ONE, "the rest"), manager_after(ONE)
    )[0]
    forced = credit_charge("red", Fraction(2), ONE, "a present")
    assert administration.record(books, forced, manager_after(ONE), force=True)[0]
    assert administration.record(
        books, adjustment_charge("red", Fraction(7), TWO, "on top"), manager_after(ONE)
    )[0]


def test_a_credit_is_not_dated_after_now(ledger):
    books = books_with(ledger, ALL)
    books.close(ONE, manager_after(ONE))
    future = credit_charge("red", Fraction(1), Period(ONE.start_ns, THREE.end_ns), "x")
    with pytest.raises(ClosingError, match=r"period ends 2024-10-13T.*expected a period up to"):
        administration.record(books, future, manager_after(ONE))
    assert administration.record(books, future, manager_after(ONE), force=True)[0]


# Lists -------------------------------------------------------------------------------------------


def test_a_list_shows_periods_invoices_credits_and_corrections(ledger):
    books = books_with(ledger, ALL)
    closed = books.close(ONE, manager_after(ONE))
    administration.record(
        books, credit_charge("red", Fraction("12.5"), ONE, "power cut"), manager_after(ONE)
    )
    books = books_after(
        books, evidence_of(released_gpu(gpu("GPU-0", RED), RED.id, 50), gpu("GPU-1", GREEN))
    )
    document = listing_document(read_listing(books))
    assert [one["period"] for one in document["periods"]] == ["2024-10-04..2024-10-06"]
    assert {one["invoice"] for one in document["invoices"]} == {
        invoice.invoice_id for invoice in closed.invoices
    }
    assert [(one["tenant"], one["amount"], one["invoice"]) for one in document["credits"]] == [
        ("red", "-12.50", None)
    ]
    assert [
        (one["tenant"], one["period"], Fraction(one["amount"]))
        for one in document["pending_corrections"]
    ] == [("red", "2024-10-04..2024-10-06", -10 * RATE)]
    books.close(TWO, manager_after(TWO))
    document = listing_document(read_listing(books))
    assert document["pending_corrections"] == []
    assert document["credits"][0]["invoice"] is not None
    assert document["periods"][1]["corrected"] == ["2024-10-04..2024-10-06"]


def test_the_commands_list_and_open(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    ledger = Ledger.open(url, metadata)
    books = books_with(ledger, ALL)
    books.close(ONE, manager_after(ONE))
    ledger.close()

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(railscope, ["bill", *arguments, "--ledger", url])
        assert result.exit_code == 0, result.output
        return result.output

    assert run("opening", "2024-10-04", "--reason", "start") == (
        "opening date: 2024-10-04; earlier days are not billed\n"
    )
    printed = run("list").splitlines()
    assert printed[0] == "opening date: 2024-10-04 (start)"
    assert "periods closed: 1" in printed
    assert "invoices: 2" in printed
    assert "corrections that the next closing bills: 0" in printed
    assert json.loads(run("list", "--format", "json"))["opening"]["reason"] == "start"


def test_minimums_of_seconds_are_not_lost_where_a_claim_ends_at_the_cut(ledger):
    ended = gpu("GPU-0", claim("red", 71, 72))
    _metered(ledger, range(FIRST_DAY, FIRST_DAY + 4), ended)
    books = BillingBooks.for_ledger(ledger)
    prices = GRANULAR.replace("minimum_seconds = 86400", "minimum_seconds = 7200")
    administration.publish(books, prices, "p", TimedActor(BOSS, START))
    assert exact_amounts(books.close(ONE, manager_after(ONE)).invoices) == {
        "red": 2 * Fraction("2.49")
    }


@pytest.mark.parametrize(("ends_at", "billed"), [(101, 4), (60, 4), (200, 2)])
def test_a_claim_has_one_minimum_on_a_gpu_that_leaves_and_returns(ledger, ends_at, billed):
    """It has the GPU for an hour, and for another one after the cut, if it has not ended before."""
    stays = (
        NodeStay(START, "a", hours(50)),
        NodeStay(hours(50), "b", hours(100)),
        NodeStay(hours(100), "a", hours(101)),
        NodeStay(hours(101), "b"),
    )
    moved = gpu("GPU-0", claim("red", 49, ends_at, node="a"), stays=stays)
    _metered(ledger, range(FIRST_DAY, FIRST_DAY + 7), moved)
    books = BillingBooks.for_ledger(ledger)
    prices = GRANULAR.replace("minimum_seconds = 86400", "minimum_seconds = 14400")
    administration.publish(books, prices, "p", TimedActor(BOSS, START))
    for period in (ONE, TWO):
        books.close(period, manager_after(period))
    assert exact_amounts(books.store.invoices()) == {"red": billed * Fraction("2.49")}
