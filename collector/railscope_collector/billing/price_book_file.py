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

from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from railscope import convert_errors
from railscope.timestamps import FOREVER_NS, SECOND_NS, parse_timestamp
from railscope.untrusted_text import TomlError, parse_toml
from railscope_collector.billing.charges import PriceUnit, UnknownCurrencyError
from railscope_collector.billing.price_book import Price, PriceBook, PriceBookError, Tariff

_MAX = (1 << 63) - 1
"""Maximum of a database integer."""
_StoredInteger = Annotated[int, msgspec.Meta(ge=0, le=_MAX)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=_MAX)]
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Table = TypeVar("_Table", bound=msgspec.Struct)


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
    book = _convert(document, _BookTable, f"price book {file}")
    prices = tuple(
        _price(table, f"price book {file}: [[price]] number {number}")
        for number, table in enumerate(book.price, start=1)
    )
    try:
        published_ns = _timestamp_ns(book.published, "published")
        return PriceBook(book.version, published_ns, book.currency, prices)
    except (PriceBookError, UnknownCurrencyError) as error:
        message = f"invalid price book {file}: {error}"
        raise PriceBookError(message) from error


def _convert(document: dict[str, Any], kind: type[_Table], location: str) -> _Table:
    with convert_errors(msgspec.ValidationError, PriceBookError, f"invalid {location}: "):
        return msgspec.convert(document, kind, strict=True)


def _timestamp_ns(moment: datetime, key: str) -> int:
    with convert_errors(ValueError, PriceBookError, f"invalid {key}: "):
        return parse_timestamp(moment)


def _price(document: dict[str, Any], location: str) -> Price:
    table = _convert(document, _PriceTable, location)
    prices_by_unit = {
        PriceUnit.GPU_HOURS: table.nano_per_gpu_hour,
        PriceUnit.INSTANCE_HOURS: table.nano_per_instance_hour,
        PriceUnit.KILOWATT_HOURS: table.nano_per_kilowatt_hour,
    }
    prices = [(unit, nano) for unit, nano in prices_by_unit.items() if nano is not None]
    if len(prices) != 1:
        message = (
            f"invalid {location}: {table.sku}, {table.tariff}: {len(prices)} prices: expected one of"
            " nano_per_gpu_hour, nano_per_instance_hour and nano_per_kilowatt_hour"
        )
        raise PriceBookError(message)
    ((unit, nano),) = prices
    granularity = table.granularity_seconds
    with convert_errors(PriceBookError, PriceBookError, f"invalid {location}: "):
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
