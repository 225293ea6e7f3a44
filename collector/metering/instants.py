"""Timestamps in integer nanoseconds since the UTC epoch, and half-open periods of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from collector.metering.units import FOREVER_NS

SECOND_NS = 1_000_000_000
HOUR_NS = 3_600 * SECOND_NS
DAY_NS = 24 * HOUR_NS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """The half-open interval [start, end). Raises ValueError if it is empty."""

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.start_ns >= self.end_ns:
            message = f"a period ends after it starts: {self.start_ns} to {self.end_ns}"
            raise ValueError(message)

    def overlaps(self, other: Period) -> bool:
        """True if the periods have a time in common."""
        return self.start_ns < other.end_ns and other.start_ns < self.end_ns


def from_datetime(moment: datetime) -> int:
    """Convert a datetime with an offset to nanoseconds, exactly.

    Raises ValueError outside the years 1 to 9999 in UTC.
    """
    try:
        since = moment.astimezone(UTC) - _EPOCH
    except OverflowError as error:
        message = f"{moment.isoformat()}: expected a time of the years 1 to 9999 in UTC"
        raise ValueError(message) from error
    return (since.days * 86_400 + since.seconds) * SECOND_NS + since.microseconds * 1_000


def to_datetime(instant_ns: int) -> datetime:
    """Convert a timestamp to UTC, rounded down to the microsecond."""
    return _EPOCH + timedelta(microseconds=instant_ns // 1_000)


def spelled(instant_ns: int) -> str:
    """Format a timestamp as RFC 3339 in UTC, to the microsecond; "open" for the end of time."""
    if instant_ns == FOREVER_NS:
        return "open"
    return to_datetime(instant_ns).isoformat().replace("+00:00", "Z")
