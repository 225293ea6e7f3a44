"""Numbers as the kernel prints them, and as frames hold them."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, strategies as st

from railscope.reading import (
    SIGNED_LIMIT,
    UNSIGNED_RANGE,
    Absent,
    from_stored,
    known_speed,
    parse_integer,
    reason_of,
    to_stored,
)

UNSUPPORTED, ERROR = Absent.UNSUPPORTED, Absent.ERROR
UNSIGNED = st.integers(0, UNSIGNED_RANGE - 1)
SIGNED = st.integers(-SIGNED_LIMIT, SIGNED_LIMIT - 1)


@given(UNSIGNED)
def test_unsigned_numbers_come_back_as_counters(value: int) -> None:
    assert from_stored(to_stored(value), counter=True) == value


@given(UNSIGNED | SIGNED)
def test_what_is_stored_has_64_bits_and_a_sign(value: int) -> None:
    assert -SIGNED_LIMIT <= to_stored(value) < SIGNED_LIMIT


@given(UNSIGNED)
def test_the_kernel_prints_unsigned_numbers(value: int) -> None:
    stored = parse_integer(b"%d\n" % value)
    assert isinstance(stored, int)
    assert from_stored(stored, counter=True) == value


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        (b"41\n", 41),
        (b"-1\n", -1),
        (b"  7", 7),
        (b"", UNSUPPORTED),
        (b"\n", UNSUPPORTED),
        (b"N/A (no PMA)\n", UNSUPPORTED),
        (b"0x1f\n", ERROR),
        (b"12.5\n", ERROR),
        (b"1 2\n", ERROR),
        (b"garbage", ERROR),
        (b"\xff\xfe", ERROR),
        (b"\0\0\0\0", ERROR),
        (b"18446744073709551615\n", 18446744073709551615),
        (b"18446744073709551616\n", ERROR),
        (b"-9223372036854775809", ERROR),
        (b"9" * 5_000, ERROR),
    ],
    ids=str,
)
def test_texts_of_counter_files(text: bytes, reading: int | Absent) -> None:
    assert parse_integer(text) == reading


@given(st.binary(max_size=80))
def test_any_bytes_are_a_reading(text: bytes) -> None:
    assert isinstance(parse_integer(text), int | Absent)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, Absent.DENIED),
        (errno.EPERM, Absent.DENIED),
        (errno.ENOENT, Absent.GONE),
        (errno.ENOTDIR, Absent.GONE),
        (errno.ENODEV, Absent.GONE),
        (errno.ENXIO, Absent.GONE),
        (errno.EOPNOTSUPP, Absent.UNSUPPORTED),
        (errno.EINVAL, Absent.UNSUPPORTED),
        (errno.ETIMEDOUT, Absent.TIMEOUT),
        (errno.EIO, Absent.ERROR),
    ],
)
def test_errors_are_reasons(number: int, reason: Absent) -> None:
    assert reason_of(OSError(number, "as the kernel says")) is reason


@pytest.mark.parametrize("number", [0, -1, 2**16 - 1, 2**32 - 1, 2**64 - 1])
def test_a_marker_of_an_unknown_speed_is_no_speed(number: int) -> None:
    assert known_speed(number) is Absent.UNSUPPORTED
