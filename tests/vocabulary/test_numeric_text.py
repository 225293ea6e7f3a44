"""Numbers in text form are bounded before they are computed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from railscope.untrusted_text import NumberError, parse_decimal, parse_whole

NO_NUMBERS = ["", " ", "x", "1e9", "1e999999999", "1E-999999999", "inf", "nan", "1/3", "1/0", "²", "٣",
              "1_000", "+1", "1.", ".5", "0x10", "--1", "1\n", "9" * 5000, "0." + "1" * 5000]  # fmt: skip


@pytest.mark.parametrize("text", NO_NUMBERS, ids=range(len(NO_NUMBERS)))
def test_a_number_out_of_bounds_is_rejected(text: str) -> None:
    for read in (parse_decimal, lambda one: parse_whole(one, 1 << 63)):
        with pytest.raises(NumberError) as raised:
            read(text)
        assert len(str(raised.value)) < 250


@given(st.integers(-(10**15) + 1, 10**15 - 1), st.integers(0, 9))
def test_a_decimal_number_is_exact(counted: int, places: int) -> None:
    number = Fraction(counted, 10**places)
    digits = f"{abs(counted):0{places + 1}}"
    point = f"{digits[:-places]}.{digits[-places:]}" if places else digits
    assert parse_decimal(("-" if counted < 0 else "") + point) == number


@given(st.integers(0, 1 << 70), st.integers(1, 1 << 70))
def test_a_whole_number_is_below_its_limit(number: int, limit: int) -> None:
    if number < limit:
        assert parse_whole(str(number), limit) == number
        return
    with pytest.raises(NumberError, match=f"expected a whole number below {limit}"):
        parse_whole(str(number), limit)


def test_a_minimum_is_named() -> None:
    assert parse_decimal("0", minimum=0) == 0
    with pytest.raises(NumberError, match=r"'-0\.5': expected a decimal number .*, at least 0"):
        parse_decimal("-0.5", minimum=0)
