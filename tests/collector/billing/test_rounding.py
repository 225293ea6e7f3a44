"""Rounding once per invoice and spreading it over the lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from railscope_collector.billing.charges import (
    EXPONENTS,
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


@pytest.mark.parametrize(
    ("currency", "minor"),
    [("JPY", 12), ("EUR", 1235), ("USD", 1235), ("CNY", 1235), ("KWD", 12346), ("BHD", 12346)],
)
def test_every_currency_has_its_own_minor_unit(currency, minor):
    assert to_minor(Fraction("12.3456"), currency_exponent(currency)) == minor


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


@given(amounts, exponents, st.randoms())
def test_the_order_of_lines_does_not_matter(exact, exponent, random):
    keys = random.sample(sorted(exact), len(exact))
    assert spread_rounding({key: exact[key] for key in keys}, exponent) == spread_rounding(
        exact, exponent
    )
