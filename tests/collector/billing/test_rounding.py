"""Rounding once per invoice and spreading it over the lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import Phase, given, settings, strategies as st

from railscope_collector.billing.charges import (
    EXPONENTS,
    UnknownCurrencyError,
    currency_exponent,
    spread_rounding,
    to_minor,
)

Spread = Callable[[Mapping[str, Fraction], int], dict[str, int]]
amounts = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=6),
    st.fractions(-(10**6), 10**6) | st.sampled_from([Fraction(n, 8) for n in range(-9, 10)]),
    max_size=12,
)
exponents = st.sampled_from(sorted(set(EXPONENTS.values())))


@pytest.mark.parametrize(
    ("amount", "cents"),
    [("0.005", 0), ("0.015", 2), ("0.025", 2), ("0.0250001", 3), ("-0.005", 0), ("-0.015", -2)],
)
def test_half_a_cent_goes_to_the_even_one(amount, cents):
    assert to_minor(Fraction(amount), 2) == cents


def test_three_thirds_of_a_euro_are_a_euro():
    thirds = dict.fromkeys("abc", Fraction(1, 3))
    assert spread_rounding(thirds, 2) == {"a": 34, "b": 33, "c": 33}


def test_the_cents_that_are_missing_go_to_the_lines_that_lost_most():
    lines = {"a": Fraction("0.101"), "b": Fraction("0.109"), "c": Fraction("0.105")}
    assert spread_rounding(lines, 2) == {"a": 10, "b": 11, "c": 11}, "0.315 rounds to 0.32"


def test_exact_lines_stay_as_they_are():
    assert spread_rounding(
        {"a": Fraction(1), "b": Fraction("2.50"), "c": Fraction("-0.25")}, 2
    ) == {
        "a": 100,
        "b": 250,
        "c": -25,
    }


@pytest.mark.parametrize(
    ("currency", "minor"),
    [("JPY", 12), ("EUR", 1235), ("USD", 1235), ("CNY", 1235), ("KWD", 12346), ("BHD", 12346)],
)
def test_every_currency_has_its_own_minor_unit(currency, minor):
    assert to_minor(Fraction("12.3456"), currency_exponent(currency)) == minor


@pytest.mark.parametrize("currency", ["", "eur", "XXX", "BTC"])
def test_a_currency_that_is_not_known_is_an_error(currency):
    with pytest.raises(UnknownCurrencyError, match="expected one of AED"):
        currency_exponent(currency)


def lines_add_up(implementation: Spread) -> Callable[[], None]:
    """P8, for any implementation of spreading."""

    @given(amounts, exponents)
    def holds(exact, exponent) -> None:
        lines = implementation(exact, exponent)
        assert sum(lines.values()) == to_minor(sum(exact.values(), Fraction(0)), exponent)
        assert all(abs(lines[key] - exact[key] * 10**exponent) < 1 for key in exact)
        assert lines.keys() == exact.keys()

    return holds


def test_rounded_lines_add_up_to_the_rounded_total_each_within_one_minor_unit():
    lines_add_up(spread_rounding)()


def per_line(exact: Mapping[str, Fraction], exponent: int) -> dict[str, int]:
    """Wrong: every line is rounded for itself."""
    return {key: to_minor(amount, exponent) for key, amount in exact.items()}


def last_line_pays(exact: Mapping[str, Fraction], exponent: int) -> dict[str, int]:
    """Wrong: the whole difference goes to one line."""
    lines = per_line(exact, exponent)
    if lines:
        total = to_minor(sum(exact.values(), Fraction(0)), exponent)
        lines[max(lines)] += total - sum(lines.values())
    return lines


@pytest.mark.parametrize("wrong", [per_line, last_line_pays])
def test_wrong_rounding_is_detected(wrong):
    search = settings(max_examples=1000, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        search(lines_add_up(wrong))()


@given(amounts, exponents, st.randoms())
def test_the_order_of_lines_does_not_matter(exact, exponent, random):
    keys = random.sample(sorted(exact), len(exact))
    assert spread_rounding({key: exact[key] for key in keys}, exponent) == spread_rounding(
        exact, exponent
    )
