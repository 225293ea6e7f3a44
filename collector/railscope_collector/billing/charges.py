"""Charges: the exact lines of an invoice, their canonical text and hash, and their rounding.

Canonical text of a content is JSON with sorted keys and no whitespace, strings in NFC; numbers are
written as strings, so that no parser converts them to floating point.

Rounding takes place once per invoice, half to even, at the currency's exponent. Exponents: ISO 4217,
list one, "minor unit". The table is small; a currency that is not in it is an error, with no default
of two decimals.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

from railscope import claim_terms, timestamps
from railscope_collector.billing import BillingError
from railscope_collector.metering.units import round_parts

Content: TypeAlias = "str | int | Fraction | Sequence[Content] | Mapping[str, Content] | None"


def content_digest(content: Content) -> str:
    """SHA-256 of the canonical text, in hexadecimal. Raises TypeError for another type, such as float."""
    text = json.dumps(
        _plain_content(content), ensure_ascii=False, separators=(",", ":"), sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _plain_content(content: object) -> object:
    if content is None:
        return None
    if isinstance(content, str):
        # One form: the same name may be stored in two forms, and must have one hash.
        return unicodedata.normalize("NFC", content)
    if isinstance(content, int | Fraction):
        return str(content)
    if isinstance(content, Mapping):
        return {_plain_content(key): _plain_content(value) for key, value in content.items()}
    if isinstance(content, Sequence):
        return [_plain_content(item) for item in content]
    message = f"{type(content).__name__}: expected a type with a canonical text"
    raise TypeError(message)


NANO = 10**9
_MILLIJOULES_PER_KILOWATT_HOUR = 3_600 * 10**6


class ChargeKind(StrEnum):
    """Kind of a charge."""

    USAGE = "usage"
    MINIMUM_TOPUP = "minimum_topup"
    RESERVATION = "reservation"
    ENERGY = "energy"
    CREDIT = "credit"
    ADJUSTMENT = "adjustment"
    ROUNDING = "rounding"
    TAX = "tax"


class PriceUnit(Enum):
    """Unit of a price: its name, and its size in metered units.

    GPU time is metered in units of capacity times nanoseconds, the time of a MIG instance with its
    own price in nanoseconds times the share of it that is held, energy in millijoules.
    """

    GPU_HOURS = ("GPU-Hours", claim_terms.GPU_CAPACITY * timestamps.HOUR_NS)
    INSTANCE_HOURS = ("Instance-Hours", timestamps.HOUR_NS)
    KILOWATT_HOURS = ("kWh", _MILLIJOULES_PER_KILOWATT_HOUR)

    @property
    def label(self) -> str:
        """The name of the unit."""
        return self.value[0]

    @property
    def size(self) -> int:
        """Number of metered units in one unit."""
        return self.value[1]


@dataclass(frozen=True)
class Charge:
    """One exact line: tenant, resource, service time, quantity, price and reason.

    `quantity` counts metered units of `unit`; it and `amount` are negative in a charge that
    reverses an earlier one. `price_nano` and `list_nano` are nano-currency per unit. `corrects`
    names the closed invoice that is corrected; `corrected_in_ns` is the start of the open period in
    which the correction is billed.

    Raises ValueError if a priced charge is not exactly quantity times price, or if a number is
    neither an integer nor a fraction.
    """

    tenant: str
    kind: ChargeKind
    service_t0_ns: int
    service_t1_ns: int
    amount: Fraction
    sku: str = ""
    quantity: Fraction = Fraction(0)
    unit: PriceUnit | None = None
    price_nano: int = 0
    list_nano: int = 0
    price_version: int = 0
    resource: str = ""
    mig_profile: str = ""
    claim: str = ""
    state: str = ""
    note: str = ""
    corrects: str = ""
    corrected_in_ns: int | None = None

    def __post_init__(self) -> None:
        # `type` and not `isinstance`: True is an int, and a float subclass could pass otherwise.
        exact = type(self.amount) is Fraction and type(self.quantity) is Fraction
        if not (exact and type(self.price_nano) is int and type(self.list_nano) is int):
            message = (
                "invalid charge: expected fractions for amount and quantity, integers for prices"
            )
            raise ValueError(message)
        if self.unit and self.amount != price_quantity(self.quantity, self.unit, self.price_nano):
            message = (
                f"invalid amount {self.amount}: expected {self.quantity} at {self.price_nano} nano"
            )
            raise ValueError(message)

    @cached_property
    def charge_id(self) -> str:
        """SHA-256 of the content: the same charge has the same id whenever it is computed."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return content_digest(content | {"unit": self.unit.label if self.unit else None})


def price_quantity(quantity: Fraction, unit: PriceUnit, price_nano: int) -> Fraction:
    """The exact amount, in units of the currency."""
    return Fraction(quantity * price_nano, unit.size * NANO)


_TWO_DECIMALS = (
    "AED AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF IDR ILS INR MXN MYR NOK NZD PHP PLN RON SAR"
    " SEK SGD THB TRY TWD USD ZAR"
)
EXPONENTS: dict[str, int] = (
    dict.fromkeys(_TWO_DECIMALS.split(), 2)
    | dict.fromkeys(("CLP", "ISK", "JPY", "KRW", "VND"), 0)
    | dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3)
)


class UnknownCurrencyError(BillingError, ValueError):
    """A currency whose minor unit is not in the table."""


def currency_exponent(currency: str) -> int:
    """Number of decimals of the currency's minor unit. Raises UnknownCurrencyError."""
    if currency not in EXPONENTS:
        message = f"unknown currency {currency!r}: expected one of {', '.join(sorted(EXPONENTS))}"
        raise UnknownCurrencyError(message)
    return EXPONENTS[currency]


def to_minor(amount: Fraction, exponent: int) -> int:
    """The nearest whole number of minor units, half to even."""
    units: int = 10**exponent
    # `round` of a Fraction is exact, and rounds half to even.
    return round(amount * units)


def format_decimal(value: Fraction, places: int) -> str:
    """A fraction with the given number of decimals, half to even."""
    scaled = to_minor(value, places)
    sign, digits = "-" if scaled < 0 else "", str(abs(scaled)).rjust(places + 1, "0")
    whole = f"{int(digits[: len(digits) - places]):,}"
    return f"{sign}{whole}.{digits[-places:]}" if places else f"{sign}{whole}"


def plain_decimal(value: Fraction, places: int) -> str:
    """As `format_decimal`, for programs: without commas."""
    return format_decimal(value, places).replace(",", "")


def show_time(timestamp_ns: int) -> str:
    """Return a time for readers to the second, without seconds that are zero."""
    return timestamps.utc_text(timestamp_ns).replace(":00 UTC", " UTC")


def show_quantity(value: Fraction, places: int) -> str:
    """Return a quantity without zeros at its end."""
    return format_decimal(value, places).rstrip("0").rstrip(".")


def format_amount(value: Fraction, currency: str) -> str:
    """An amount with the decimals of its currency, for programs: -12.50."""
    return plain_decimal(value, currency_exponent(currency))


def spread_rounding(amounts: Mapping[str, Fraction], exponent: int) -> dict[str, int]:
    """Minor units of every line, such that they add up to the rounded total.

    Every line is within one minor unit of its exact amount, exact lines are unchanged, and order
    does not matter.
    """
    exact = {key: amount * 10**exponent for key, amount in amounts.items()}
    return round_parts(exact, round(sum(exact.values(), Fraction(0))))
