"""Timestamps: exact conversions, and the form of times in files, commands and requests."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from railscope.timestamps import (
    DAY_NS,
    FOREVER_NS,
    SECOND_NS,
    TimestampError,
    format_timestamp,
    from_datetime,
    parse_timestamp,
    to_datetime,
)

OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=OFFSETS))  # noqa: DTZ001 - with `timezones`
def test_every_conversion_is_exact(moment: datetime) -> None:
    timestamp_ns = parse_timestamp(moment.isoformat())
    assert timestamp_ns == parse_timestamp(moment) == from_datetime(moment)
    assert to_datetime(timestamp_ns) == moment
    assert parse_timestamp(format_timestamp(timestamp_ns)) == timestamp_ns


@pytest.mark.parametrize(
    ("timestamp_ns", "timespec", "text"),
    [
        (0, "auto", "1970-01-01T00:00:00Z"),
        (DAY_NS + 1_999, "auto", "1970-01-02T00:00:00.000001Z"),
        (-1, "seconds", "1969-12-31T23:59:59Z"),
        (SECOND_NS + 999_999, "milliseconds", "1970-01-01T00:00:01.000Z"),
        (FOREVER_NS, "auto", "open"),
    ],
)
def test_a_timestamp_is_formatted_in_utc(timestamp_ns: int, timespec: str, text: str) -> None:
    assert format_timestamp(timestamp_ns, timespec) == text


@pytest.mark.parametrize(
    "value", ["", "tomorrow", "2026-01-01T00:00:00", "2026-01-01", "2026-13-01T00:00:00Z", 0, None,
              True, date(2026, 1, 1), datetime(2026, 1, 1), "9" * 100_000],  # noqa: DTZ001 - without an offset
)  # fmt: skip
def test_anything_else_is_rejected(value: object) -> None:
    with pytest.raises(TimestampError, match="expected RFC 3339 with an offset") as rejected:
        parse_timestamp(value)
    assert len(str(rejected.value)) < 200


def test_a_time_without_an_offset_may_have_a_zone() -> None:
    assert parse_timestamp("1970-01-02", UTC) == DAY_NS


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])
def test_a_year_that_utc_does_not_have_is_rejected(text: str) -> None:
    with pytest.raises(TimestampError, match="years 1 to 9999"):
        parse_timestamp(text)
