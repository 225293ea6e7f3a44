"""The TOML file of the price book.

    version = 2
    published = 2026-06-20T09:00:00Z
    currency = "EUR"

    [[price]]
    sku = "h100-sxm"
    tariff = "allocated"                  # or used, reservation, energy
    nano_per_gpu_hour = 2_490_000_000     # 2.49; or nano_per_instance_hour, nano_per_kilowatt_hour
    from = 2026-01-01T00:00:00Z
    to = 2026-07-01T00:00:00Z             # optional; default: no end
    version = 1                           # version of the book that introduced this price

Further keys of a price: tenant, mig_profile, minimum_seconds, granularity_seconds, at_claim_start.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from railscope import convert_errors
from railscope.timestamps import FOREVER_NS, SECOND_NS, parse_timestamp
from railscope.untrusted_text import TomlError, format_json_value, parse_toml
from railscope_collector.billing.charges import PriceUnit, UnknownCurrencyError
from railscope_collector.billing.price_book import Price, PriceBook, PriceBookError, Tariff

_MAX = (1 << 63) - 1
"""Maximum of a database integer."""
_StoredInteger = Annotated[int, msgspec.Meta(ge=0, le=_MAX)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=_MAX)]
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Table = TypeVar("_Table", bound=msgspec.Struct)
_HEAD = re.compile(r"\s*\[\[\s*price\s*\]\]")
_ABOUT = re.compile(r"(.*) - at `\$\.(\w+)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_EXAMPLES = {
    "version": "expected version = 1, or the next number",
    "published": "expected a time with an offset, such as published = 2026-06-20T09:00:00Z",
    "currency": 'expected currency = "EUR", or another one',
}
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`", re.DOTALL)


class _PriceTable(msgspec.Struct, forbid_unknown_fields=True):
    sku: _Name
    tariff: Tariff
    version: _Positive
    from_: _Moment = msgspec.field(name="from")
    to: _Moment | None = None
    tenant: str = ""
    mig_profile: str = ""
    nano_per_gpu_hour: _StoredInteger | None = None
    nano_per_instance_hour: _StoredInteger | None = None
    nano_per_kilowatt_hour: _StoredInteger | None = None
    minimum_seconds: _StoredInteger = 0
    granularity_seconds: _Positive | None = None
    at_claim_start: bool = False


class _BookTable(msgspec.Struct, forbid_unknown_fields=True):
    version: _Positive
    published: _Moment
    currency: str
    price: list[dict[str, Any]] = []


def parse_price_book(text: str, file: str) -> PriceBook:
    """Parse the price book in a file's text; `file` is its name, for messages.

    Raises PriceBookError with the file, the table and the error.
    """
    try:
        document = parse_toml(text)
    except TomlError as error:
        message = f"cannot read the price book {file}: invalid TOML: {error}"
        raise PriceBookError(message) from error
    book = _convert(document, _BookTable, _Location(file, text))
    prices = tuple(
        _price(table, _Location(file, text, number))
        for number, table in enumerate(book.price, start=1)
    )
    try:
        published_ns = _timestamp_ns(book.published, "published")
        return PriceBook(book.version, published_ns, book.currency, prices)
    except (PriceBookError, UnknownCurrencyError) as error:
        message = f"invalid price book {file}: {error}"
        raise PriceBookError(message) from error


class _Location(NamedTuple):
    """Table of a price book: the head of the file, or a price by its number from 1."""

    file: str
    text: str
    number: int = 0

    def named(self, key: str = "") -> str:
        """Return file, line and table of a key; the line is that of the table for a key that is missing."""
        lines = self.text.splitlines()
        heads = [-1, *(place for place, line in enumerate(lines) if _HEAD.match(line)), len(lines)]
        table = f": [[price]] number {self.number}" if self.number else ""
        if self.number + 1 >= len(heads):  # prices in one line
            return f"price book {self.file}{table}"
        start, end = heads[self.number : self.number + 2]
        its_key = re.compile(rf"\s*{re.escape(key)}\s*=")
        places = (place for place in range(start + 1, end) if key and its_key.match(lines[place]))
        return f"price book {self.file}, line {next(places, max(start, 0)) + 1}{table}"


def _convert(document: dict[str, Any], kind: type[_Table], location: _Location) -> _Table:
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        problem, key = str(error), ""
        if match := _ABOUT.fullmatch(problem):
            problem, key = match[1][:1].lower() + match[1][1:], match[2]
            problem = f"{key} {format_json_value(document.get(key))}: {problem}"
        elif match := _MISSING.fullmatch(problem):
            problem = ": ".join(filter(None, (f"missing {match[1]}", _EXAMPLES.get(match[1]))))
        elif match := _UNKNOWN.fullmatch(problem):
            key = match[1]
            problem = (
                f"unknown key {key}: expected one of {', '.join(kind.__struct_encode_fields__)}"
            )
        if key == "tariff":
            problem = (
                f"tariff {format_json_value(document[key])}: expected one of {', '.join(Tariff)}"
            )
        message = f"invalid {location.named(key)}: {problem}"
        raise PriceBookError(message) from error


def _timestamp_ns(moment: datetime, key: str) -> int:
    with convert_errors(ValueError, PriceBookError, f"invalid {key}: "):
        return parse_timestamp(moment)


def _price(document: dict[str, Any], location: _Location) -> Price:
    table = _convert(document, _PriceTable, location)
    prices_by_unit = {
        PriceUnit.GPU_HOURS: table.nano_per_gpu_hour,
        PriceUnit.INSTANCE_HOURS: table.nano_per_instance_hour,
        PriceUnit.KILOWATT_HOURS: table.nano_per_kilowatt_hour,
    }
    prices = [(unit, nano) for unit, nano in prices_by_unit.items() if nano is not None]
    if len(prices) != 1:
        message = (
            f"invalid {location.named()}: {table.sku}, {table.tariff}: {len(prices)} prices: expected one of"
            " nano_per_gpu_hour, nano_per_instance_hour and nano_per_kilowatt_hour"
        )
        raise PriceBookError(message)
    ((unit, nano),) = prices
    granularity = table.granularity_seconds
    with convert_errors(PriceBookError, PriceBookError, f"invalid {location.named()}: "):
        return Price(
            sku=table.sku,
            tariff=table.tariff,
            nano=nano,
            from_ns=_timestamp_ns(table.from_, "from"),
            to_ns=FOREVER_NS if table.to is None else _timestamp_ns(table.to, "to"),
            tenant=table.tenant,
            mig_profile=table.mig_profile,
            unit=unit,
            version=table.version,
            minimum_ns=table.minimum_seconds * SECOND_NS,
            granularity_ns=1 if granularity is None else granularity * SECOND_NS,
            at_claim_start=table.at_claim_start,
        )
