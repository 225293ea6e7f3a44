"""Readings: a number, or the reason for its absence."""

from __future__ import annotations

import errno
from enum import Enum
from typing import TypeAlias


class Absent(Enum):
    """Reason for the absence of a value. The codes are those of the wire format; 0 stands for a value.

    Not present (`UNSUPPORTED`, `GONE`) and broken (the others) are different results. A device that must be
    reset is present, and has no value until then.
    """

    UNSUPPORTED = 1
    DENIED = 2
    GONE = 3
    TIMEOUT = 4
    ERROR = 5
    NOT_DUE = 6
    RESET_REQUIRED = 7

    @property
    def label(self) -> str:
        """Name of the reason in metrics and messages."""
        return self.name.lower()


Reading: TypeAlias = int | Absent

PRESENT = 0
REASONS: dict[int, Absent] = {reason.value: reason for reason in Absent}
_UNKNOWN_SPEEDS = {(1 << bits) - 1 for bits in (16, 32, 64)}
SIGNED_LIMIT = 1 << 63
UNSIGNED_RANGE = 1 << 64


def to_stored(value: int) -> int:
    """Convert an unsigned 64-bit number to the signed 64-bit integers of frames.

    Raises OverflowError for a number that does not fit in 64 bits.
    """
    if -SIGNED_LIMIT <= value < SIGNED_LIMIT:
        return value
    if value < UNSIGNED_RANGE and value > 0:
        return value - UNSIGNED_RANGE
    message = f"number of {value.bit_length()} bits: expected at most 64"
    raise OverflowError(message)


def from_stored(value: int, *, counter: bool) -> int:
    """Convert a frame's integer back to its number: counters are unsigned, gauges signed."""
    return value + UNSIGNED_RANGE if counter and value < 0 else value


def parse_integer(text: bytes) -> Reading:
    """Parse one decimal integer of at most 64 bits as the kernel prints it.

    An empty file and "N/A (no PMA)" mean that the counter is not supported
    (torvalds/linux:drivers/infiniband/core/sysfs.c); any other text that is not a number is an error.
    """
    try:
        value = int(text)
        to_stored(value)
    except (ValueError, OverflowError):
        stripped = text.strip()
        return Absent.UNSUPPORTED if not stripped or stripped.startswith(b"N/A") else Absent.ERROR
    return value


def known_speed(speed: Reading) -> Reading:
    """Return the speed of a port, or unsupported for a marker of an unknown one.

    SPEED_UNKNOWN is -1, or all bits of the type that a driver stores it in (linux/ethtool.h); some report 0.
    """
    is_unknown = isinstance(speed, int) and (speed <= 0 or speed in _UNKNOWN_SPEEDS)
    return Absent.UNSUPPORTED if is_unknown else speed


def reason_of(error: OSError) -> Absent:
    """Return the absence reason for an operating-system error."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Absent.GONE
    if isinstance(error, PermissionError):
        return Absent.DENIED
    if isinstance(error, TimeoutError):
        return Absent.TIMEOUT
    return _REASON_OF_ERRNO.get(error.errno or 0, Absent.ERROR)


def is_failure(error: OSError) -> bool:
    """True if a call about a listed device failed; false if the device, or the copy of a tree, has no such thing."""
    absent = isinstance(error, FileNotFoundError | NotADirectoryError)
    return not absent and reason_of(error) is not Absent.UNSUPPORTED


_REASON_OF_ERRNO = {
    errno.ENODEV: Absent.GONE,
    errno.ENXIO: Absent.GONE,
    errno.EOPNOTSUPP: Absent.UNSUPPORTED,
    errno.EINVAL: Absent.UNSUPPORTED,
    errno.ENODATA: Absent.UNSUPPORTED,  # a sensor that is switched off: hwmon/sysfs-interface.rst
}
