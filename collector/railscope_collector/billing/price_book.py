"""The price book: prices of GPU-hours, reserved GPU-hours and kilowatt-hours.

Prices are by tenant and time. A tenant's own price takes precedence over the list price. At every
instant at most one price of a group applies: time (allocated or used), reservation, energy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from railscope.timestamps import FOREVER_NS, format_timestamp
from railscope_collector.billing import BillingError
from railscope_collector.billing.charges import PriceUnit, currency_exponent


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
        # `type` and not `isinstance`: True is an int in Python.
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
        ordered = sorted(self.prices, key=price_place)
        for earlier, later in pairwise(ordered):
            same = (earlier.tenant, earlier.key) == (later.tenant, later.key)
            if same and later.from_ns < earlier.to_ns:
                message = f"overlapping prices: {later}: expected a start at or after the end of {earlier}"
                raise PriceBookError(message)

    def timeline(self, tenant: str, key: PriceKey) -> PriceTimeline:
        """The tenant's prices of a SKU over all time."""
        matching = [p for p in self.prices if p.key == key and p.tenant in ("", tenant)]
        edges = {edge for price in matching for edge in (price.from_ns, price.to_ns)}
        # From the beginning of time, so that the timeline has no place without an entry.
        starts = sorted({-FOREVER_NS} | edges - {FOREVER_NS})
        return PriceTimeline(starts, [_applying(matching, start) for start in starts])


def price_place(price: Price) -> tuple[str, str, str, str, int]:
    """Return the key of a price in all versions of the book: tenant, SKU, profile, group and start."""
    return (price.tenant, price.sku, price.mig_profile, price.tariff.group.value, price.from_ns)


def _applying(matching: Sequence[Price], timestamp_ns: int) -> tuple[Price | None, int]:
    valid = {p.tenant: p for p in matching if p.from_ns <= timestamp_ns < p.to_ns}
    listed = valid.get("")
    price = next((p for tenant, p in valid.items() if tenant), listed)
    if price is None:
        return None, 0
    # A list price per GPU-hour cannot be compared with a price per instance-hour.
    comparable = listed is not None and listed.unit is price.unit
    return price, listed.nano if listed and comparable else price.nano
