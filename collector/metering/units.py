"""Units of metering: integers and exact fractions only, so that every sum is exact.

A timestamp is in nanoseconds since the UTC epoch, an interval is half-open. A GPU has 840 units of
capacity, the least common multiple of 1 to 8, so that MIG slices are whole; shares of a GPU are
exact fractions of a unit. Capacity is tiled twice, once for compute and once for memory.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple, TypeAlias

GPU_CAPACITY = 840
COMPUTE_SLICE = GPU_CAPACITY // 7
MEMORY_SLICE = GPU_CAPACITY // 8
GPU_HOUR = GPU_CAPACITY * 3600 * 1_000_000_000
FOREVER_NS = (1 << 63) - 1

Units: TypeAlias = int | Fraction
"""Capacity, or capacity times time: an integer if it is whole."""


def exact(value: Units) -> Units:
    """Return the same number, as an integer if it is whole."""
    return value if isinstance(value, int) or value.denominator != 1 else value.numerator


class Tiling(StrEnum):
    """The resource of a GPU that is divided."""

    COMPUTE = "compute"
    MEMORY = "memory"


class Slots(NamedTuple):
    """A range [low, high) of a GPU's capacity, in one tiling."""

    low: Units
    high: Units


WHOLE = Slots(0, GPU_CAPACITY)


def replica(index: int, of: int) -> Slots:
    """Return the slots of replica `index` of a GPU that is shared by `of`. Raises ValueError."""
    if not 0 <= index < of:
        message = f"there is no replica {index} of {of}"
        raise ValueError(message)
    return Slots(GPU_CAPACITY * index // of, GPU_CAPACITY * (index + 1) // of)


def compute_slices(first: int, count: int) -> Slots:
    """Return the slots of `count` MIG compute slices, of which a GPU has seven."""
    return checked(Slots(first * COMPUTE_SLICE, (first + count) * COMPUTE_SLICE))


def memory_slices(first: int, count: int) -> Slots:
    """Return the slots of `count` MIG memory slices, of which a GPU has eight."""
    return checked(Slots(first * MEMORY_SLICE, (first + count) * MEMORY_SLICE))


def checked(slots: Slots) -> Slots:
    """Return the same slots. Raises ValueError if a GPU does not have them."""
    if not 0 <= slots.low <= slots.high <= GPU_CAPACITY:
        message = f"slots {slots.low} to {slots.high} are not within 0 to {GPU_CAPACITY}"
        raise ValueError(message)
    return slots
