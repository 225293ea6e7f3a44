"""Properties of billing that hold for results read back from the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import msgspec
from hypothesis import HealthCheck, given, settings, strategies as st
from support.billing import CURRENCIES, nanos, price
from support.books import (
    BOSS,
    ONE,
    START,
    THREE,
    TWO,
    AssembledGpu,
    SimulatedEvidence,
    as_toml,
    evidence_of,
    gpu,
    hours,
    manager_after,
    meter,
)
from support.examples import fewer_examples
from support.exports import parse_csv, write_csv
from support.gpu_evidence import ClaimRelease
from support.metered import replica
from support.statement_readers import from_csv, from_json, total_amount

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS, HOUR_NS, SECOND_NS
from railscope_collector.billing import administration, focus_rows, statement_forms
from railscope_collector.billing.billing_listing import read_listing
from railscope_collector.billing.billing_reader import BillingReader
from railscope_collector.billing.charges import Charge, ChargeKind, PriceUnit, currency_exponent
from railscope_collector.billing.closing_recomputation import recompute_closing
from railscope_collector.billing.invoices import InvoiceStatus
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.period_rating import newest_revisions, rate_period
from railscope_collector.billing.price_book import Price, PriceBook, Tariff
from railscope_collector.billing.reconciliation import reconcile_period
from railscope_collector.billing.tenant_statements import read_statement
from railscope_collector.billing.undecided_use import merge_reviews
from railscope_collector.files.seller_file import PayerAccount, Seller
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.evidence import GpuOutage, MeteredClaim, SlotReservation
from railscope_collector.metering.units import (
    WHOLE,
    Period,
    compute_slices,
    parse_period,
    period_name,
)
from railscope_collector.tables import metadata

SELLER = Seller("Hall", {"team-a": PayerAccount("a"), "team-b": PayerAccount("b")})
few = settings(
    fewer_examples(25),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

timestamps_ns = st.one_of(
    st.integers(hours(0), TWO.end_ns), st.sampled_from([ONE.end_ns, hours(24), hours(48)])
)
tenants = st.sampled_from(["team-a", "team-b"])
parts = st.sampled_from(
    [
        WHOLE,
        replica(0, 2),
        replica(1, 3),
        compute_slices(0, 3),
    ]
)


@st.composite
def claims(draw: st.DrawFn, number: int) -> MeteredClaim:
    start = draw(timestamps_ns)
    longest = draw(st.sampled_from([1, 40, 120])) * HOUR_NS
    end = draw(st.one_of(st.just(FOREVER_NS), st.integers(start + 1, start + longest)))
    return MeteredClaim(
        ClaimAuthority.SCHEDULER,
        start,
        f"c{number}",
        draw(tenants),
        end,
        compute=draw(parts),
    )


@st.composite
def gpus(draw: st.DrawFn, name: str) -> AssembledGpu:
    held = tuple(draw(claims(number)) for number in range(draw(st.integers(0, 4))))
    span = sorted(draw(st.tuples(timestamps_ns, timestamps_ns)))
    more: dict[str, object] = {}
    if draw(st.booleans()):
        more["outages"] = (GpuOutage(draw(st.booleans()), *span),)
    if draw(st.booleans()):
        more["reservations"] = (SlotReservation(span[0], "kept", draw(tenants), span[1]),)
    if draw(st.booleans()):
        more["sample_spans"] = ()
    return gpu(name, *held, **more)


@st.composite
def worlds(draw: st.DrawFn) -> SimulatedEvidence:
    return evidence_of(*(draw(gpus(f"GPU-{number}")) for number in range(draw(st.integers(1, 2)))))


@st.composite
def later(draw: st.DrawFn, known: SimulatedEvidence) -> SimulatedEvidence:
    """The same with releases that were not known before, or with a claim more or less."""
    found = []
    for one in known.assembled.values():
        evidence = one.evidence
        for claim in evidence.claims:
            if draw(st.booleans()):
                release = ClaimRelease(claim.id, draw(timestamps_ns))
                evidence = msgspec.structs.replace(evidence, releases=(*evidence.releases, release))
        if draw(st.booleans()):
            evidence = msgspec.structs.replace(
                evidence, claims=(*evidence.claims[1:], draw(claims(9)))
            )
        found.append(AssembledGpu(evidence, one.counted, one.skus))
    return evidence_of(*found)


@st.composite
def rows_of_prices(draw: st.DrawFn, **more: object) -> list[Price]:
    """Prices one after the other over all time, changing within the periods."""
    edges = sorted(draw(st.sets(st.integers(1, 143), max_size=2)))
    spans = pairwise([-FOREVER_NS, *(hour * HOUR_NS for hour in edges), FOREVER_NS])
    return [price(draw(nanos), start, end, **more) for start, end in spans]


@st.composite
def expensive_books(draw: st.DrawFn) -> PriceBook:
    """Prices of time, energy and reservation; their dates count from the start of the worlds."""
    extras = {
        "minimum_ns": draw(st.sampled_from([0, 60 * SECOND_NS, HOUR_NS])),
        "granularity_ns": draw(st.sampled_from([1, SECOND_NS, HOUR_NS])),
        "at_claim_start": draw(st.booleans()),
        "tariff": draw(st.sampled_from([Tariff.ALLOCATED, Tariff.USED])),
    }
    prices = draw(rows_of_prices(**extras))
    prices += draw(rows_of_prices(tariff=Tariff.ENERGY, unit=PriceUnit.KILOWATT_HOURS))
    prices += draw(rows_of_prices(tariff=Tariff.RESERVATION))
    return PriceBook(1, 0, draw(st.sampled_from(CURRENCIES)), tuple(prices))


@contextmanager
def opened(known: SimulatedEvidence, book: PriceBook) -> Iterator[BillingBooks]:
    """Books in memory, with the ledger of the known evidence."""
    ledger = Ledger.open("sqlite://", metadata)
    meter(ledger, known)
    books = BillingBooks.for_ledger(ledger, known)
    administration.publish(books, as_toml(book, START), "drawn", TimedActor(BOSS, START))
    yield books
    ledger.close()


@few
@given(worlds(), expensive_books())
def test_p8_p11_a_closing_is_exact_and_the_same_when_computed_again(
    known: SimulatedEvidence, book: PriceBook
) -> None:
    with opened(known, book) as books:
        closed = books.close(ONE, manager_after(ONE))
        for invoice in closed.invoices:
            units = 10 ** currency_exponent(invoice.currency)
            assert invoice.total_minor == round(invoice.exact * units)
            for line in invoice.lines:
                assert abs(line.minor - line.charge.amount * units) < 1
        assert tuple(books.store.invoices()) == closed.invoices
        assert books.close(ONE, manager_after(TWO)).closing == closed.closing
        again = recompute_closing(books, closed.closing, closed.invoices)
        assert again.manifest_root == closed.closing.manifest_root
        for check in reconcile_period(books, ONE, SELLER):
            assert check.passes, check


@few
@given(worlds(), expensive_books(), st.data())
def test_p10_invoiced_and_corrections_are_what_is_known_now(
    known: SimulatedEvidence, book: PriceBook, data: st.DataObject
) -> None:
    with opened(known, book) as books:
        books.close(ONE, manager_after(ONE))
        news = data.draw(later(known))
        meter(books.ledger, news)
        informed = BillingBooks.for_ledger(books.ledger, news)
        informed.close(TWO, manager_after(TWO))
        owed = _exact(informed)
        published = informed.store.book()
        assert published is not None
        known_now: dict[str, Fraction] = {}
        for period in (ONE, TWO):
            rated = rate_period(
                books.ledger, published.book, period, newest_revisions(books.ledger)
            )
            for charge in rated.charges:
                before = known_now.get(charge.tenant, Fraction(0))
                known_now[charge.tenant] = before + charge.amount
        assert {t: a for t, a in owed.items() if a} == {t: a for t, a in known_now.items() if a}
        assert _time_billed(informed) == _time_known(informed, published.book)
        for period in (ONE, TWO):
            for check in reconcile_period(informed, period, SELLER):
                assert check.passes, check


@few
@given(worlds(), expensive_books())
def test_p18_what_is_written_is_read_again(known: SimulatedEvidence, book: PriceBook) -> None:
    with opened(known, book) as books:
        for invoice in books.close(ONE, manager_after(ONE)).invoices:
            made = read_statement(books, invoice.tenant, ONE)
            rows = from_csv(statement_forms.as_csv(made))
            document = from_json(statement_forms.as_json(made))
            found = parse_csv(write_csv(focus_rows.invoice_rows(invoice, SELLER)))
            assert (
                total_amount(rows)
                == Fraction(document.total)
                == focus_rows.billed_cost(found)
                == invoice.payable
            )
            shown = sum(Fraction(row.amount.replace(",", "")) for row in made.summary)
            assert shown == invoice.payable


@given(st.integers(0, 3000), st.integers(0, 400))
def test_a_period_has_the_name_that_it_is_read_from(first: int, more: int) -> None:
    period = replace(ONE, start_ns=first * 24 * HOUR_NS, end_ns=(first + more + 1) * 24 * HOUR_NS)
    assert parse_period(period_name(period)) == period


@few
@given(worlds(), expensive_books(), st.sets(st.integers(1, 5), min_size=1))
def test_p27_any_cut_into_periods_bills_the_same(
    known: SimulatedEvidence, book: PriceBook, cuts: set[int]
) -> None:
    edges = [ONE.start_ns, *(ONE.start_ns + day * DAY_NS for day in sorted(cuts)), TWO.end_ns]
    with opened(known, book) as books:
        published = books.store.book()
        assert published is not None
        whole = Period(ONE.start_ns, TWO.end_ns)
        once = _amounts(books, published.book, whole)
        parts: dict[str, Fraction] = {}
        for start, end in pairwise(edges):
            for tenant, amount in _amounts(books, published.book, Period(start, end)).items():
                parts[tenant] = parts.get(tenant, Fraction(0)) + amount
        assert parts == once


@few
@given(worlds(), expensive_books())
def test_charges_so_far_are_those_of_closing_the_month_now(
    known: SimulatedEvidence, book: PriceBook
) -> None:
    with opened(known, book) as books:
        reader = BillingReader(books, lambda _: SELLER)
        month = reader.month_charges()
        assert month.problem == ""
        assert month.period == parse_period("2024-10")
        assert month.last_day == THREE.end_ns // DAY_NS
        drafts = books.bill(month.period, correcting=False).drafts
        assert month.totals == {draft.tenant: draft.exact for draft in drafts}


def _amounts(books: BillingBooks, book: PriceBook, period: Period) -> dict[str, Fraction]:
    """Total of a period by tenant, with amounts on none of its days."""
    found: dict[str, Fraction] = {}
    for charge in rate_period(books.ledger, book, period, newest_revisions(books.ledger)).charges:
        found[charge.tenant] = found.get(charge.tenant, Fraction(0)) + charge.amount
    return found


def _time_billed(books: BillingBooks) -> dict[str, Fraction]:
    """Capacity times time by tenant: on valid invoices, or undecided."""
    found: dict[str, Fraction] = {}
    for invoice in books.store.invoices():
        for line in invoice.lines:
            _add_time(found, line.charge)
    for _, one in read_listing(books).undecided:
        found[one.tenant] = found.get(one.tenant, Fraction(0)) + one.gpu_hours
    return {tenant: time for tenant, time in found.items() if time}


def _time_known(books: BillingBooks, book: PriceBook) -> dict[str, Fraction]:
    """The same as the ledger has it now."""
    found: dict[str, Fraction] = {}
    for period in (ONE, TWO):
        rated = rate_period(books.ledger, book, period, newest_revisions(books.ledger))
        for charge in rated.charges:
            _add_time(found, charge)
        for review in merge_reviews(rated.reviews):
            found[review.tenant] = found.get(review.tenant, Fraction(0)) + review.gpu_hours
    return {tenant: time for tenant, time in found.items() if time}


def _add_time(found: dict[str, Fraction], charge: Charge) -> None:
    if charge.kind in (ChargeKind.USAGE, ChargeKind.RESERVATION) and charge.unit:
        time = charge.quantity / charge.unit.size
        found[charge.tenant] = found.get(charge.tenant, Fraction(0)) + time


def _exact(books: BillingBooks) -> dict[str, Fraction]:
    found: dict[str, Fraction] = {}
    for invoice in books.store.invoices():
        if invoice.status is InvoiceStatus.ISSUED:
            found[invoice.tenant] = found.get(invoice.tenant, Fraction(0)) + invoice.exact
    return found
