"""Timestamps: integer nanoseconds since the UTC epoch, and their conversion from and to other forms.

Every conversion to a timestamp is exact; RFC 3339 and datetimes have microseconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from railscope import RailscopeError
from railscope.untrusted_text import quote_text

MICROSECOND_NS, MILLISECOND_NS = 1_000, 1_000_000
SECOND_NS = 1_000_000_000
HOUR_NS = 3_600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
FOREVER_NS = (1 << 63) - 1
"""The end of time, of a period without an end."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimestampError(RailscopeError, ValueError):
    """A value that is not a time; the message contains it and the expected form."""


def parse_timestamp(value: object, zone: tzinfo | None = None) -> int:
    """Convert RFC 3339 text, or a datetime of TOML or JSON.

    Without an offset it is a time in `zone`. Raises TimestampError, also without either, and outside the
    years 1 to 9999 in UTC.
    """
    try:
        moment = value if isinstance(value, datetime) else parse_local_time(value)  # type: ignore[arg-type]  # TypeError is caught
        if moment.tzinfo is None and zone is not None:
            moment = moment.replace(tzinfo=zone)
        return from_datetime(moment.astimezone(UTC) if moment.tzinfo else moment)
    except OverflowError as error:
        message = f"invalid time {value}: expected a time of the years 1 to 9999 in UTC"
        raise TimestampError(message) from error
    except (TypeError, ValueError) as error:
        raise _invalid(value) from error


def parse_start(value: object) -> int:
    """Convert the start of a time that a person states, as `parse_timestamp` does.

    Ledgers and frames have times from 1970 to `FOREVER_NS`: an earlier start is the start of 1970. Raises
    TimestampError, also for a later one.
    """
    start_ns = max(parse_timestamp(value), 0)
    if start_ns >= FOREVER_NS:
        message = f"invalid time {quote_text(str(value))}: expected a start before the year 2262"
        raise TimestampError(message)
    return start_ns


def parse_end(value: object) -> int:
    """Convert the end of a time that a person states: `FOREVER_NS` for one after it, such as 9999-12-31.

    An end before 1970 is the start of 1970. Raises TimestampError.
    """
    return min(max(parse_timestamp(value), 0), FOREVER_NS)


def parse_local_time(text: str) -> datetime:
    """Parse an ISO 8601 time; without an offset the result has no zone. Raises ValueError."""
    return datetime.fromisoformat(text)  # noqa: TID251 - all other modules call this one


def parse_date(text: str) -> datetime:
    """Parse a date such as 2026-01-31: its start in UTC. Raises ValueError."""
    return parse_local_time(text).replace(tzinfo=UTC)


def from_datetime(moment: datetime) -> int:
    """Convert a datetime with an offset. Raises TimestampError without one."""
    if moment.tzinfo is None:
        raise _invalid(moment.isoformat())
    since = moment - _EPOCH
    # In integers: `total_seconds` returns a float.
    return (since.days * 86_400 + since.seconds) * SECOND_NS + since.microseconds * 1_000


def to_datetime(timestamp_ns: int) -> datetime:
    """Convert a timestamp to UTC, rounded down to the microsecond."""
    return _EPOCH + timedelta(microseconds=timestamp_ns // 1_000)


def format_timestamp(timestamp_ns: int, timespec: str = "auto") -> str:
    """Format as RFC 3339 in UTC; "open" for the end of time.

    With microseconds if they are not zero, or with the precision that `datetime.isoformat` names.
    """
    if timestamp_ns == FOREVER_NS:
        return "open"
    return format_datetime(to_datetime(timestamp_ns), timespec)


def utc_text(timestamp_ns: int) -> str:
    """Return a time for people, to the second, such as 2026-11-04 00:00:00 UTC."""
    text = format_timestamp(timestamp_ns // SECOND_NS * SECOND_NS, "seconds")
    return f"{text.replace('T', ' ').removesuffix('Z')} UTC"


def format_datetime(moment: datetime, timespec: str = "auto") -> str:
    """Format a datetime with an offset as RFC 3339 in UTC."""
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def _invalid(value: object) -> TimestampError:
    return TimestampError(
        f"invalid time {quote_text(str(value))}: expected RFC 3339 with an offset, "
        "such as 2026-01-31T08:00:00Z"
    )
