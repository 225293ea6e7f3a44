"""Periods by name: `2026-10` for a month, `2026-10-01..2026-10-15` for days, both included, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from collector.metering.instants import Period, from_datetime, to_datetime

_MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_DAYS = re.compile(r"(\d{4}-\d{2}-\d{2})\.\.(\d{4}-\d{2}-\d{2})", re.ASCII)


class PeriodError(ValueError):
    """Text that is not a valid period."""


def parse(text: str) -> Period:
    """Parse the name of a period. Raises PeriodError."""
    try:
        if match := _MONTH.fullmatch(text):
            start = datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)
            return _period(start, _next_month(start))
        if match := _DAYS.fullmatch(text):
            start, last = (
                datetime.fromisoformat(day).replace(tzinfo=UTC) for day in match.groups()
            )
            return _period(start, last + timedelta(days=1))
    except (ValueError, OverflowError) as error:
        message = f"{text!r} is no period: {error}"
        raise PeriodError(message) from error
    message = f"{text!r} is no period: write 2026-10, or 2026-10-01..2026-10-15"
    raise PeriodError(message)


def name_of(period: Period) -> str:
    """Return the name of a period of whole days; the month if it is one."""
    start, end = to_datetime(period.start_ns), to_datetime(period.end_ns)
    if start.day == 1 and start == start.replace(hour=0, minute=0) and end == _next_month(start):
        return f"{start:%Y-%m}"
    return f"{start:%Y-%m-%d}..{end - timedelta(days=1):%Y-%m-%d}"


def _period(start: datetime, end: datetime) -> Period:
    return Period(from_datetime(start), from_datetime(end))


def _next_month(start: datetime) -> datetime:
    return (start + timedelta(days=31)).replace(day=1)
