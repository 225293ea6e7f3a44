"""Rounding: once per invoice, half to even, at the currency's exponent.

Exponents: ISO 4217, list one, "minor unit". The table is small; a currency that is not in it is an
error, with no default of two decimals.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

_TWO = (
    "AED AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF IDR ILS INR MXN MYR NOK NZD PHP PLN RON SAR"
    " SEK SGD THB TRY TWD USD ZAR"
)
EXPONENTS: dict[str, int] = (
    dict.fromkeys(_TWO.split(), 2)
    | dict.fromkeys(("CLP", "ISK", "JPY", "KRW", "VND"), 0)
    | dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3)
)


class UnknownCurrencyError(ValueError):
    """A currency whose minor unit is not in the table."""


def exponent_of(currency: str) -> int:
    """Number of decimals of the currency's minor unit. Raises UnknownCurrencyError."""
    if currency not in EXPONENTS:
        message = f"currency {currency!r} is not known; known are {', '.join(sorted(EXPONENTS))}"
        raise UnknownCurrencyError(message)
    return EXPONENTS[currency]


def to_minor(amount: Fraction, exponent: int) -> int:
    """The nearest whole number of minor units, half to even."""
    units: int = 10**exponent
    return round(amount * units)


def decimal(value: Fraction, places: int) -> str:
    """A fraction with the given number of decimals, half to even."""
    scaled = to_minor(value, places)
    sign, digits = "-" if scaled < 0 else "", str(abs(scaled)).rjust(places + 1, "0")
    whole = f"{int(digits[: len(digits) - places]):,}"
    return f"{sign}{whole}.{digits[-places:]}" if places else f"{sign}{whole}"


def spread(amounts: Mapping[str, Fraction], exponent: int) -> dict[str, int]:
    """Minor units of every line, such that they add up to the rounded total.

    Largest remainder: every line is rounded down, and the missing units of the total are added, one
    each, to the lines with the largest remainders; of equal remainders, to the smaller key. Every
    line is within one minor unit of its exact amount, exact lines are unchanged, and order does not
    matter.
    """
    exact = {key: amount * 10**exponent for key, amount in amounts.items()}
    lines = {key: amount.numerator // amount.denominator for key, amount in exact.items()}
    missing = round(sum(exact.values(), Fraction(0))) - sum(lines.values())
    by_loss = sorted(exact, key=lambda key: (lines[key] - exact[key], key))
    for key in by_loss[:missing]:
        lines[key] += 1
    return lines
