"""Units of metering: capacity, timestamps and periods, in integers and exact fractions only.

Every sum is exact. A timestamp is in integer nanoseconds since the UTC epoch; intervals and
periods are half-open. A GPU has 840 units of capacity, the least common multiple of 1 to 8, so
that MIG slices are whole; shares of a GPU are exact fractions of a unit.

A period of whole days has a name: `2026-10` for a month, `2026-10-01..2026-10-15` for days, both
included, in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import NamedTuple, TypeAlias, TypeVar

from railscope import convert_errors
from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS, HOUR_NS, from_datetime, parse_date, to_datetime

COMPUTE_SLICE = GPU_CAPACITY // 7
"""Whole units: GPUs with MIG have seven compute slices."""
GPU_HOUR = GPU_CAPACITY * HOUR_NS

Name = TypeVar("Name", bound=str)
Units: TypeAlias = int | Fraction
"""Capacity, or capacity times time: an integer if it is whole."""


def exact(value: Units) -> Units:
    """Return the same number, as an integer if it is whole."""
    return value if isinstance(value, int) or value.denominator != 1 else value.numerator


def round_parts(parts: Mapping[Name, Fraction], total: int) -> dict[Name, int]:
    """Return whole numbers, each within one of its part, that add up to the rounded total.

    Largest remainder: every part is rounded down, and the missing units of the total are added, one
    each, to the parts with the largest remainders; of equal remainders, to the smaller name.
    """
    rounded = {name: part.numerator // part.denominator for name, part in parts.items()}
    missing = total - sum(rounded.values())
    by_loss = sorted(parts, key=lambda name: (rounded[name] - parts[name], name))
    for name in by_loss[:missing]:
        rounded[name] += 1
    return rounded


class CapacityRange(NamedTuple):
    """A range [low, high) of a GPU's capacity."""

    low: Units
    high: Units


WHOLE = CapacityRange(0, GPU_CAPACITY)


def compute_slices(first: int, count: int) -> CapacityRange:
    """Return the slots of `count` MIG compute slices, of which a GPU has seven."""
    return check_slots(CapacityRange(first * COMPUTE_SLICE, (first + count) * COMPUTE_SLICE))


def check_slots(slots: CapacityRange) -> CapacityRange:
    """Return the same slots. Raises ValueError if a GPU does not have them."""
    if not 0 <= slots.low <= slots.high <= GPU_CAPACITY:
        message = f"invalid slots {slots.low} to {slots.high}: expected a range within 0 to {GPU_CAPACITY}"
        raise ValueError(message)
    return slots


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """The half-open interval [start, end). Raises ValueError if it is empty."""

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.start_ns >= self.end_ns:
            message = (
                f"invalid period {self.start_ns} to {self.end_ns}: expected an end after the start"
            )
            raise ValueError(message)

    def overlaps(self, other: Period) -> bool:
        """True if the periods have a time in common."""
        return self.start_ns < other.end_ns and other.start_ns < self.end_ns


_MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_DAYS = re.compile(r"(\d{4}-\d{2}-\d{2})\.\.(\d{4}-\d{2}-\d{2})", re.ASCII)


class PeriodError(ValueError):
    """Text that is not a valid period."""


def parse_period(text: str) -> Period:
    """Parse the name of a period. Raises PeriodError."""
    with convert_errors((ValueError, OverflowError), PeriodError, f"invalid period {text!r}: "):
        if match := _MONTH.fullmatch(text):
            start = datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)
            return _period(start, _next_month(start))
        if match := _DAYS.fullmatch(text):
            start, last = map(parse_date, match.groups())
            return _period(start, last + timedelta(days=1))
    message = f"invalid period {text!r}: expected 2026-10, or 2026-10-01..2026-10-15"
    raise PeriodError(message)


def period_name(period: Period) -> str:
    """Return the name of a period of whole days; the month if it is one."""
    start, end = to_datetime(period.start_ns), to_datetime(period.end_ns)
    if start.day == 1 and start == start.replace(hour=0, minute=0) and end == _next_month(start):
        return f"{start:%Y-%m}"
    return f"{start:%Y-%m-%d}..{end - timedelta(days=1):%Y-%m-%d}"


def _period(start: datetime, end: datetime) -> Period:
    period = Period(from_datetime(start), from_datetime(end))
    # Beyond the range of a database's integers, no ledger has a day.
    if period.start_ns < 0 or period.end_ns >= FOREVER_NS:
        message = "expected a period from 1970 to 2262"
        raise ValueError(message)
    return period


def _next_month(start: datetime) -> datetime:
    # 31 days after the first of a month is always in the next month.
    return (start + timedelta(days=31)).replace(day=1)
