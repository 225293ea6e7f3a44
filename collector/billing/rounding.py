"""Rounding: once per invoice, half to even, at the currency's exponent.

Exponents: ISO 4217, list one, "minor unit". A small table; what is not in it is an error and not
two decimals by guess.
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
    """A currency whose minor unit is not known here."""


def exponent_of(currency: str) -> int:
    """How many decimals the currency's minor unit has. Raises UnknownCurrencyError."""
    if currency not in EXPONENTS:
        message = f"currency {currency!r} is not known; known are {', '.join(sorted(EXPONENTS))}"
        raise UnknownCurrencyError(message)
    return EXPONENTS[currency]


def to_minor(amount: Fraction, exponent: int) -> int:
    """The nearest whole number of minor units; the even one of two equally near."""
    units: int = 10**exponent
    return round(amount * units)


def decimal(value: Fraction, places: int) -> str:
    """A fraction with so many decimals, half to even."""
    scaled = to_minor(value, places)
    sign, digits = "-" if scaled < 0 else "", str(abs(scaled)).rjust(places + 1, "0")
    whole = f"{int(digits[: len(digits) - places]):,}"
    return f"{sign}{whole}.{digits[-places:]}" if places else f"{sign}{whole}"


def spread(amounts: Mapping[str, Fraction], exponent: int) -> dict[str, int]:
    """Minor units of every line, such that they add up to the rounded total.

    Largest remainder: every line is rounded down, and what the total lacks goes, one unit each, to
    the lines that lost most; of equal losses, to the smaller key. Every line is within one minor
    unit of its exact amount, exact lines stay as they are, and order does not matter.
    """
    exact = {key: amount * 10**exponent for key, amount in amounts.items()}
    lines = {key: amount.numerator // amount.denominator for key, amount in exact.items()}
    missing = round(sum(exact.values(), Fraction(0))) - sum(lines.values())
    by_loss = sorted(exact, key=lambda key: (lines[key] - exact[key], key))
    for key in by_loss[:missing]:
        lines[key] += 1
    return lines
