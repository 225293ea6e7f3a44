"""Terms of claims that agents and collectors share: capacity of a GPU, authorities, shares.

A GPU has 840 slots of compute and 840 slots of memory, the least common multiple of 1 to 8, so that
MIG slices are whole; a range of slots is written as `low-high`. A share is an exact fraction of a
device: `n/d` in lowest terms, 0 < n/d <= 1.
"""

from __future__ import annotations

import re
from enum import IntEnum
from fractions import Fraction

from railscope import RailscopeError

GPU_CAPACITY = 840
"""Slots of a GPU in claims, in events and in stored facts."""
GPU_UUID_PREFIX = "GPU-"
"""Beginning of the UUIDs of GPUs by the driver (nvml.h, nvmlDeviceGetUUID). What administrators' files name otherwise is a node,
whatever name a node invents for a GPU.
"""
_SLOTS = re.compile(r"([0-9]{1,3})-([0-9]{1,3})")


class ClaimAuthority(IntEnum):
    """Authority of a claim; the higher one prevails."""

    REVIEW = 0
    PROCESS = 1
    NODE_PLUGIN = 2
    SCHEDULER = 3
    SCHEDULER_LIST = 4
    ADMINISTRATOR = 5

    @property
    def label(self) -> str:
        """Name of the authority in events."""
        return self.name.lower()


MAX_NODE_AUTHORITY = ClaimAuthority.SCHEDULER
"""The highest authority of a claim that a node reports."""


class SlotsError(RailscopeError, ValueError):
    """A text that is not a range of slots of a GPU; the message states the expected form."""


def parse_slots(text: str) -> tuple[int, int]:
    """Parse a range of slots such as `0-420`. Raises SlotsError."""
    match = _SLOTS.fullmatch(text)
    low, high = (int(match[1]), int(match[2])) if match else (0, 0)
    if not low < high <= GPU_CAPACITY:
        message = f"invalid slot range {text[:50]!r}: expected START-END such as 0-{GPU_CAPACITY}"
        raise SlotsError(message)
    return low, high


MAX_DENOMINATOR = 1 << 30
"""Covers 1/840, millionths, and sums of percents and of MiB of a device. Sums of many fractions keep
small denominators."""
MAX_COUNT = 1024
"""Maximum GPUs of one claim that names none of them."""
_RATIO = re.compile(r"([0-9]{1,12})/([0-9]{1,12})")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s?%")


class ShareError(RailscopeError, ValueError):
    """A text that is not a share of a device; the message states the expected form."""


def parse_share(text: str) -> Fraction:
    """Parse a fraction such as `3/8`. Raises ShareError."""
    match = _RATIO.fullmatch(text)
    if match is None or not int(match[2]):
        raise _invalid(text)
    return _check_share(text, Fraction(int(match[1]), int(match[2])))


def parse_written_share(text: str) -> Fraction:
    """Parse a fraction in human notation: `3/8`, or `37.5%`. Raises ShareError."""
    percent = _PERCENT.fullmatch(text.strip())
    if percent is None:
        return parse_share(text.strip())
    return _check_share(text, Fraction(percent[1]) / 100)


def share_text(share: Fraction) -> str:
    """Format the fraction as `n/d`."""
    return f"{share.numerator}/{share.denominator}"


def _check_share(text: str, share: Fraction) -> Fraction:
    if not 0 < share <= 1 or share.denominator > MAX_DENOMINATOR:
        raise _invalid(text)
    return share


def _invalid(text: str) -> ShareError:
    return ShareError(
        f"invalid share {text[:50]!r}: expected a fraction such as 3/8, above 0 and at most 1, "
        f"with a denominator of at most {MAX_DENOMINATOR}"
    )
