"""Corrections: late evidence changes the amount due, and no issued invoice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from hypothesis import given, strategies as st
from support.billing import MONTH, NEXT_MONTH, TENANTS, book, books, price, timelines, usage

from railscope.timestamps import HOUR_NS
from railscope_collector.billing.charges import Charge, ChargeKind, PriceUnit
from railscope_collector.billing.invoices import (
    CLOSE_AFTER_NS,
    Invoice,
    InvoiceStatus,
    credit_charge,
    draft_invoice,
    draft_invoices,
    issue_invoice,
)
from railscope_collector.billing.period_corrections import correction_charges, invoiced_charges
from railscope_collector.billing.price_book import Tariff
from railscope_collector.billing.rating import rate
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Period

EUR = 10**9


def issued(charges: Iterable[Charge], period: Period, currency: str = "EUR") -> list[Invoice]:
    drafts = draft_invoices(charges, period, currency)
    return [issue_invoice(draft, period.end_ns + CLOSE_AFTER_NS) for draft in drafts]


def per_tenant(charges: Iterable[Charge]) -> dict[str, Fraction]:
    found = dict.fromkeys(TENANTS, Fraction(0))
    for charge in charges:
        found[charge.tenant] += charge.amount
    return found


def added(*totals: dict[str, Fraction]) -> dict[str, Fraction]:
    return {tenant: sum((total[tenant] for total in totals), Fraction(0)) for tenant in TENANTS}


def test_half_an_hour_that_was_not_used_is_given_back_with_its_dates():
    prices = book(price(2 * EUR))
    (invoice,) = issued(rate([usage(0, HOUR_NS)], prices, MONTH).charges, MONTH)
    late = [usage(0, HOUR_NS // 2), usage(HOUR_NS // 2, HOUR_NS, state=SlotState.DOWN)]
    found = correction_charges(
        [invoice], rate(late, prices, MONTH).charges, MONTH, NEXT_MONTH.start_ns
    )
    assert sorted(charge.amount for charge in found) == [-2, 1]
    assert {charge.corrects for charge in found} == {invoice.invoice_id}
    assert all(charge.service_t1_ns <= HOUR_NS for charge in found)
    assert draft_invoice(found, "team-a", NEXT_MONTH, "EUR").total_minor == -100
    assert invoice.total_minor == 200, "what was issued stays"


def test_a_claim_that_moves_to_another_tenant_moves_the_charge():
    prices = book(price(2 * EUR))
    (invoice,) = issued(rate([usage(0, HOUR_NS)], prices, MONTH).charges, MONTH)
    theirs = rate([usage(0, HOUR_NS, tenant="team-b")], prices, MONTH).charges
    found = correction_charges([invoice], theirs, MONTH, NEXT_MONTH.start_ns)
    assert [(c.tenant, c.amount, c.corrects) for c in found] == [
        ("team-a", -2, invoice.invoice_id),
        ("team-b", 2, f"period:{MONTH.start_ns}"),
    ]


def test_time_that_turns_out_to_be_observed_is_not_a_correction():
    prices = book(price(2 * EUR))
    silent = usage(0, HOUR_NS, state=SlotState.INFERRED, node_evidence=NodeEvidence.BMC)
    invoices = issued(rate([silent], prices, MONTH).charges, MONTH)
    half = HOUR_NS // 2
    late = [replace(silent, end_ns=half), usage(half, HOUR_NS)]
    assert not correction_charges(invoices, rate(late, prices, MONTH).charges, MONTH, MONTH.end_ns)


def test_a_minimum_of_time_that_turns_out_to_be_observed_is_not_a_correction():
    """Neither if the last interval of the claim is longer now, nor if it is shorter."""
    prices = book(price(2 * EUR, minimum_ns=2 * HOUR_NS))
    silent = usage(0, HOUR_NS, state=SlotState.INFERRED, node_evidence=NodeEvidence.BMC)
    half = HOUR_NS // 2
    divided = [replace(silent, end_ns=half), usage(half, HOUR_NS)]
    for first, second in (([silent], divided), (divided, [silent])):
        invoices = issued(rate(first, prices, MONTH).charges, MONTH)
        assert [invoice.total_minor for invoice in invoices] == [400]
        again = rate(second, prices, MONTH).charges
        assert not correction_charges(invoices, again, MONTH, MONTH.end_ns)


def test_only_energy_that_came_late_is_billed_on():
    prices = book(price(2 * EUR), price(EUR, tariff=Tariff.ENERGY, unit=PriceUnit.KILOWATT_HOURS))
    before = rate([usage(0, HOUR_NS, energy_millijoules=3_600_000_000)], prices, MONTH).charges
    after = rate([usage(0, HOUR_NS, energy_millijoules=7_200_000_000)], prices, MONTH).charges
    (found,) = correction_charges(issued(before, MONTH), after, MONTH, MONTH.end_ns)
    assert (found.kind, found.amount) == (ChargeKind.ENERGY, 1)


@given(timelines(), timelines(), timelines(), books())
def test_invoiced_and_corrections_are_what_was_recomputed(first, second, third, prices):
    rated = [rate(usages, prices, MONTH).charges for usages in (first, second, third)]
    invoices = issued(rated[0], MONTH, prices.currency)
    for later, recomputed in enumerate(rated[1:], start=1):
        period = Period(MONTH.end_ns * later, MONTH.end_ns * (later + 1))
        found = correction_charges(invoices, recomputed, MONTH, period.start_ns)
        before = per_tenant(invoiced_charges(invoices, MONTH))
        assert added(before, per_tenant(found)) == per_tenant(recomputed)
        billed = {
            tenant: sum(c.quantity for c in invoiced_charges(invoices, MONTH) if c.tenant == tenant)
            for tenant in TENANTS
        }
        for tenant in TENANTS:
            changed = sum(c.quantity for c in found if c.tenant == tenant)
            assert billed[tenant] + changed == sum(
                c.quantity for c in recomputed if c.tenant == tenant
            )
        invoices += issued(found, period, prices.currency)
    assert per_tenant(invoiced_charges(invoices, MONTH)) == per_tenant(rated[2])
    assert not correction_charges(invoices, rated[2], MONTH, 3 * MONTH.end_ns), "nothing is left"


@given(timelines(), timelines(), books(), st.integers(0, 1))
def test_a_void_invoice_counts_for_nothing(first, second, prices, which):
    invoices = issued(rate(first, prices, MONTH).charges, MONTH, prices.currency)
    invoices[which : which + 1] = [
        replace(invoice, status=InvoiceStatus.VOID) for invoice in invoices[which : which + 1]
    ]
    recomputed = rate(second, prices, MONTH).charges
    found = correction_charges(invoices, recomputed, MONTH, MONTH.end_ns)
    assert added(per_tenant(invoiced_charges(invoices, MONTH)), per_tenant(found)) == per_tenant(
        recomputed
    )


@given(timelines(), books())
def test_the_same_evidence_again_corrects_nothing(usages, prices):
    charges = rate(usages, prices, MONTH).charges
    paid = [*charges, *(credit_charge(holder, Fraction(1), MONTH, "Thanks") for holder in TENANTS)]
    assert not correction_charges(
        issued(paid, MONTH, prices.currency), charges, MONTH, MONTH.end_ns
    )
