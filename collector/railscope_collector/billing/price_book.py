"""The price book: prices of GPU-hours, reserved GPU-hours and kilowatt-hours, and its TOML file.

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

Prices are by tenant and time. A tenant's own price takes precedence over the list price. At every
instant at most one price of a group applies: time (allocated or used), reservation, energy.
Published books are append-only: see `check_appended`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, StrEnum
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from railscope import convert_errors
from railscope.timestamps import FOREVER_NS, SECOND_NS, format_timestamp, parse_timestamp
from railscope.untrusted_text import TomlError, parse_toml
from railscope_collector.billing import BillingError
from railscope_collector.billing.charges import PriceUnit, UnknownCurrencyError, currency_exponent


class PriceBookError(BillingError, ValueError):
    """An inconsistent price book, or an invalid change of the previous one; the message names the entry."""


class PriceGroup(Enum):
    """Group of prices: those of one group exclude each other; those of different groups add up."""

    TIME = "time"
    RESERVATION = "reservation"
    ENERGY = "energy"


class Tariff(StrEnum):
    """Basis of a price: time as scheduled, time observed in use, a reservation, or energy."""

    ALLOCATED = "allocated"
    USED = "used"
    RESERVATION = "reservation"
    ENERGY = "energy"

    @property
    def group(self) -> PriceGroup:
        """The group of prices it belongs to."""
        return _GROUPS.get(self, PriceGroup.TIME)


_GROUPS = {Tariff.RESERVATION: PriceGroup.RESERVATION, Tariff.ENERGY: PriceGroup.ENERGY}

PriceKey: TypeAlias = tuple[str, str, PriceGroup]  # sku, MIG profile, group


@dataclass(frozen=True, slots=True)
class Price:
    """One price, valid in [from, to): nano-currency per unit of `unit`.

    Without a tenant it is the list price. `version` is the book that introduced it. A claim is
    billed at least `minimum_ns`, and whole multiples of `granularity_ns`. A claim that starts under
    a price with `at_claim_start` is billed at that price until its end.
    """

    sku: str
    tariff: Tariff
    nano: int
    from_ns: int
    to_ns: int = FOREVER_NS
    tenant: str = ""
    mig_profile: str = ""
    unit: PriceUnit = PriceUnit.GPU_HOURS
    version: int = 1
    minimum_ns: int = 0
    granularity_ns: int = 1
    at_claim_start: bool = False

    def __post_init__(self) -> None:
        numbers = [self.nano, self.minimum_ns, self.granularity_ns, self.from_ns, self.to_ns]
        extras = (self.minimum_ns, self.granularity_ns)
        wrong = ""
        if any(type(number) is not int for number in numbers):
            wrong = "expected integers as prices, minimums and times"
        elif self.nano < 0 or self.minimum_ns < 0 or self.granularity_ns < 1:
            wrong = "expected prices and minimums of 0 or more, and a granularity of 1 ns or more"
        elif self.from_ns >= self.to_ns:
            wrong = "expected an end after the start"
        elif self.tariff.group is not PriceGroup.TIME and extras != (0, 1):
            wrong = f"expected a minimum and a granularity only for time, not for {self.tariff}"
        elif (self.tariff is Tariff.ENERGY) != (self.unit is PriceUnit.KILOWATT_HOURS):
            wrong = "expected a price per kilowatt-hour for energy, and only for energy"
        elif self.tariff is Tariff.ENERGY and self.mig_profile:
            wrong = "expected no MIG profile: energy is metered per GPU"
        elif self.unit is PriceUnit.INSTANCE_HOURS and not self.mig_profile:
            wrong = "expected a MIG profile for a price per instance-hour"
        if wrong:
            message = f"invalid price: {self}: {wrong}"
            raise PriceBookError(message)

    @property
    def key(self) -> PriceKey:
        """SKU, MIG profile and group that it applies to."""
        return self.sku, self.mig_profile, self.tariff.group

    def __str__(self) -> str:
        profile = f" {self.mig_profile}" if self.mig_profile else ""
        scope = f"tenant {self.tenant}" if self.tenant else "list"
        return f"{self.sku}{profile}, {self.tariff}, {scope}, from {format_timestamp(self.from_ns)}"


class PriceInterval(NamedTuple):
    """An interval of time with one price; None if the book has none."""

    start_ns: int
    end_ns: int
    price: Price | None
    list_nano: int


@dataclass(frozen=True, slots=True)
class PriceTimeline:
    """The prices of one group for one tenant and SKU, consecutive and without gaps."""

    starts: Sequence[int]
    prices: Sequence[tuple[Price | None, int]]

    @property
    def begins_ns(self) -> int:
        """Start of its first price; `FOREVER_NS` if it has none."""
        priced_starts = (
            start for start, (price, _) in zip(self.starts, self.prices, strict=True) if price
        )
        return next(priced_starts, FOREVER_NS)

    def price_at(self, timestamp_ns: int) -> tuple[Price | None, int]:
        """The price at an instant, and the list price in nano-currency."""
        return self.prices[bisect_right(self.starts, timestamp_ns) - 1]

    def intervals(self, start_ns: int, end_ns: int) -> Iterator[PriceInterval]:
        """[start, end), split wherever the price or the list price changes."""
        at = bisect_right(self.starts, start_ns) - 1
        while start_ns < end_ns:
            last = at + 1 == len(self.starts)
            until = end_ns if last else min(end_ns, self.starts[at + 1])
            yield PriceInterval(start_ns, until, *self.prices[at])
            start_ns, at = until, at + 1


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All prices of one currency up to a version, and the time of that version's publication.

    Raises PriceBookError for prices that overlap or have a later version, and UnknownCurrencyError.
    """

    version: int
    published_ns: int
    currency: str
    prices: tuple[Price, ...]

    def __post_init__(self) -> None:
        currency_exponent(self.currency)
        for price in self.prices:
            if not 1 <= price.version <= self.version:
                message = (
                    f"invalid price: {price}: version {price.version}: expected 1 to {self.version}"
                    ", the version of the book"
                )
                raise PriceBookError(message)
        ordered = sorted(self.prices, key=_price_place)
        for earlier, later in pairwise(ordered):
            same = (earlier.tenant, earlier.key) == (later.tenant, later.key)
            if same and later.from_ns < earlier.to_ns:
                message = f"overlapping prices: {later}: expected a start at or after the end of {earlier}"
                raise PriceBookError(message)

    def timeline(self, tenant: str, key: PriceKey) -> PriceTimeline:
        """The tenant's prices of a SKU over all time."""
        matching = [p for p in self.prices if p.key == key and p.tenant in ("", tenant)]
        edges = {edge for price in matching for edge in (price.from_ns, price.to_ns)}
        starts = sorted({-FOREVER_NS} | edges - {FOREVER_NS})
        return PriceTimeline(starts, [_applying(matching, start) for start in starts])


def _price_place(price: Price) -> tuple[str, str, str, str, int]:
    return (price.tenant, price.sku, price.mig_profile, price.tariff.group.value, price.from_ns)


def _applying(matching: Sequence[Price], timestamp_ns: int) -> tuple[Price | None, int]:
    valid = {p.tenant: p for p in matching if p.from_ns <= timestamp_ns < p.to_ns}
    listed = valid.get("")
    price = next((p for tenant, p in valid.items() if tenant), listed)
    if price is None:
        return None, 0
    comparable = listed is not None and listed.unit is price.unit
    return price, listed.nano if listed and comparable else price.nano


# Versions --------------------------------------------------------------------------------------


def check_published(book: PriceBook, now_ns: int) -> None:
    """Reject a book that is dated in the future as the current one. Raises PriceBookError."""
    if book.published_ns > now_ns:
        message = (
            f"invalid publication of price book version {book.version}: "
            f"{format_timestamp(book.published_ns)}: expected a time up to now, "
            f"{format_timestamp(now_ns)}; fix: date the book today, and start later prices"
            " with their `from`"
        )
        raise PriceBookError(message)


def check_appended(before: PriceBook, after: PriceBook) -> None:
    """Reject a new version of a book that changes past prices of the previous one.

    The past is the time before the new version's publication. Prices may be added from then on, and
    prices that start later may be ended, changed or withdrawn. Raises PriceBookError that names the
    entry.
    """
    if after.version <= before.version or after.published_ns < before.published_ns:
        message = (
            f"invalid price book version {after.version}: expected a later version and publication"
            f" than those of version {before.version}"
        )
        raise PriceBookError(message)
    if after.currency != before.currency:
        message = (
            f"invalid currency of price book version {after.version}: {after.currency}: expected "
            f"{before.currency}, the currency of the book"
        )
        raise PriceBookError(message)
    old, new = _by_place(before), _by_place(after)
    for place in sorted(old.keys() | new.keys()):
        wrong = _change_of_past(old.get(place), new.get(place), after)
        if wrong:
            message = f"invalid change of a price: {new.get(place) or old[place]}: {wrong}"
            raise PriceBookError(message)


def _by_place(book: PriceBook) -> Mapping[tuple[str, str, str, str, int], Price]:
    return {_price_place(price): price for price in book.prices}


def _change_of_past(old: Price | None, new: Price | None, after: PriceBook) -> str:
    """Description of an invalid change in a version; empty if there is none."""
    published = after.published_ns
    if old is None or new is None:
        return _change_of_set(old, new, after)
    rest = replace(old, to_ns=new.to_ns) != new
    if old.from_ns >= published:
        wrong = rest and new.version != after.version
        return f"changed in {_expected_version(new, after)}" if wrong else ""
    if rest:
        return f"changed, although it was valid before {format_timestamp(published)}"
    if old.to_ns != new.to_ns and min(old.to_ns, new.to_ns) < published:
        return (
            f"its end is changed in the past: {format_timestamp(old.to_ns)} to "
            f"{format_timestamp(new.to_ns)}"
        )
    return ""


def _change_of_set(old: Price | None, new: Price | None, after: PriceBook) -> str:
    published = after.published_ns
    if old is not None and old.from_ns < published:
        return f"missing, although it was valid before {format_timestamp(published)}"
    if new is not None and new.from_ns < published:
        return (
            f"added with a start before {format_timestamp(published)}, the publication of the book"
        )
    if new is not None and new.version != after.version:
        return f"added in {_expected_version(new, after)}"
    return ""


def _expected_version(price: Price, book: PriceBook) -> str:
    return f"version {book.version}: expected version = {book.version}, not {price.version}"


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
