"""Invoices: closing is deterministic, and issued invoices are unchanged."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from support.billing import MONTH, NEXT_MONTH, book, books, price, timelines, usage

from railscope.timestamps import HOUR_NS
from railscope_collector.billing.charges import Charge, ChargeKind, currency_exponent
from railscope_collector.billing.invoices import (
    CLOSE_AFTER_NS,
    Invoice,
    InvoiceError,
    InvoiceLine,
    InvoiceStatus,
    adjustment_charge,
    credit_charge,
    draft_invoice,
    draft_invoices,
    issue_invoice,
)
from railscope_collector.billing.rating import rate

EUR = 10**9
DUE_NS = MONTH.end_ns + CLOSE_AFTER_NS


def third_of_an_hour(gpu: int) -> Charge:
    used = usage(0, HOUR_NS // 3, resource=f"GPU-{gpu}")
    return rate([used], book(price(EUR)), MONTH).charges[0]


def three_thirds() -> Invoice:
    return draft_invoice([third_of_an_hour(n) for n in range(3)], "team-a", MONTH, "EUR")


def test_two_thirds_are_67_cents_and_the_difference_is_known():
    invoice = draft_invoice([third_of_an_hour(n) for n in range(2)], "team-a", MONTH, "EUR")
    assert invoice.total_minor == 67
    assert invoice.rounding.amount == Fraction(67, 100) - Fraction(2, 3)
    assert invoice.rounding.kind is ChargeKind.ROUNDING


def test_credits_and_adjustments_are_lines():
    charges = [
        *(third_of_an_hour(n) for n in range(3)),
        credit_charge("team-a", Fraction(1, 4), MONTH, "Outage of 3 January"),
        adjustment_charge("team-a", Fraction(1, 10), MONTH, "Reading by hand"),
    ]
    assert draft_invoice(charges, "team-a", MONTH, "EUR").total_minor == 100 - 25 + 10
    for amount, reason in ((-1, "Backwards"), (0, "Nothing"), (1, "")):
        with pytest.raises(ValueError, match="expected a positive amount and a reason"):
            credit_charge("team-a", Fraction(amount), MONTH, reason)
    with pytest.raises(ValueError, match="expected a reason"):
        adjustment_charge("team-a", Fraction(1), MONTH, "")


@given(timelines(), books(), st.randoms())
def test_closing_twice_gives_the_same(usages, prices, random):
    charges = rate(usages, prices, MONTH).charges
    first = draft_invoices(charges, MONTH, prices.currency)
    again = rate(random.sample(usages, len(usages)), prices, MONTH).charges
    second = draft_invoices(random.sample(again, len(again)), MONTH, prices.currency)
    assert first == second
    assert [one.content_hash for one in first] == [one.content_hash for one in second]
    assert sum((one.exact for one in first), Fraction(0)) == sum(c.amount for c in charges)
    for one in first:
        assert abs(one.rounding.amount) * 10 ** currency_exponent(prices.currency) <= Fraction(1, 2)


@given(timelines(), books(), st.data())
def test_anything_changed_in_an_issued_invoice_is_rejected(usages, prices, data):
    for invoice in draft_invoices(rate(usages, prices, MONTH).charges, MONTH, prices.currency):
        issued = issue_invoice(invoice, DUE_NS)
        line = data.draw(st.sampled_from(issued.lines))
        more = replace(line, minor=line.minor + 1)
        others = tuple(one for one in issued.lines if one is not line)
        dearer = replace(line.charge, note="as if it had always been so")
        wrong = [
            {"tenant": "team-c"}, {"period": NEXT_MONTH}, {"currency": "USD"}, {"replaces": "inv-"},
            {"lines": others}, {"lines": (*others, more)}, {"lines": (*issued.lines, line)},
            {"lines": (*others, InvoiceLine(dearer, line.minor))}, {"content_hash": "0" * 64},
            {"status": InvoiceStatus.DRAFT}, {"issued_ns": None},
        ]  # fmt: skip
        for change in wrong:
            with pytest.raises(InvoiceError):
                replace(issued, **change)


def test_nothing_is_issued_while_evidence_may_still_come():
    with pytest.raises(InvoiceError, match="three days"):
        issue_invoice(three_thirds(), DUE_NS - 1)
