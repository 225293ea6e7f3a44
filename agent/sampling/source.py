"""What a source is, and the table it fills.

A source has no timer, no logger and no configuration beyond its constructor. `probe` says what
exists and may be called again at any time; `read` fills the columns of the last probe;
`close` gives back what they opened. All run on the thread of the source's device family, never two
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from agent.host import Host, NvmlError
from railscope.catalog.declare import Metric
from railscope.entity import Entity
from railscope.frame import Column, Event
from railscope.reading import PRESENT, Absent, Reading, reason_of


class Verdict(StrEnum):
    """What a probe found out about one part of the machine."""

    SUPPORTED = "supported"
    ABSENT = "absent"
    DENIED = "denied"
    BROKEN = "broken"
    AWAITED = "awaited"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `railscope agent check`: what was looked for, what came of it, how to mend it."""

    what: str
    verdict: Verdict
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a source found: its columns, in the order `read` fills them, and what to say of it."""

    columns: tuple[Column, ...] = ()
    bystanders: tuple[Entity, ...] = ()
    findings: tuple[Finding, ...] = ()


class Table:
    """One row under construction: a stored integer and a reason code for each column."""

    def __init__(self, columns: int) -> None:
        self.values = [0] * columns
        self.reasons = bytearray(columns)
        self.events: list[Event] = []
        self.grown = False
        """Set by a source that met something the last probe knew nothing of."""
        self.kept_back = False
        """Set by a source that only looked: what it saw comes with a later read."""

    def put(self, column: int, reading: Reading) -> None:
        """Set one column."""
        if isinstance(reading, Absent):
            self.values[column] = 0
            self.reasons[column] = reading.value
        else:
            self.values[column] = reading
            self.reasons[column] = PRESENT

    def put_all(self, start: int, readings: Sequence[int]) -> None:
        """Set consecutive columns that all have a value."""
        self.values[start : start + len(readings)] = readings
        self.reasons[start : start + len(readings)] = bytes(len(readings))

    def put_none(self, start: int, count: int, reason: Absent) -> None:
        """Leave consecutive columns without a value, all for one reason."""
        self.values[start : start + count] = [0] * count
        self.reasons[start : start + count] = bytes([reason.value]) * count


LONGEST_PERIOD_SECONDS = 120.0


class Source(Protocol):
    """Reads one place of the machine.

    A source may say the longest period that what it reads bears, however dear it is, as
    `longest_period_seconds`: events that wait in a bounded queue, counters that wrap. Without it
    that is `LONGEST_PERIOD_SECONDS`. It never lowers a configured period.
    """

    name: str
    family: str
    period_seconds: float

    def probe(self, host: Host) -> Inventory:
        """Say what exists here. Raises OSError or NvmlError where that cannot be found out."""
        ...

    def read(self, host: Host, into: Table) -> None:
        """Fill the columns of the last probe. Raises OSError or NvmlError if nothing can be read."""
        ...

    def close(self) -> None:
        """Give back what is held of the machine. A later probe takes it up again."""
        ...


def longest_period_seconds(source: Source) -> float:
    """The longest period that a source bears."""
    longest: float = getattr(source, "longest_period_seconds", LONGEST_PERIOD_SECONDS)
    return max(longest, source.period_seconds)


OTHER_FORM = (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError)
"""What picking a reading out of an answer of an unexpected form raises."""
Answer = TypeVar("Answer")


def picked(pick: Callable[[Answer], Reading], answer: Answer) -> Reading:
    """The reading in an answer; one of an unexpected form is an error of its own."""
    try:
        return pick(answer)
    except OTHER_FORM:
        return Absent.ERROR


class HoldsNothing:
    """What a source without open files builds on: it has nothing to give back."""

    def close(self) -> None:
        """Nothing is held open."""


@dataclass(slots=True)
class Columns:
    """Columns in the making, and what reads each of them."""

    columns: list[Column] = field(default_factory=list)

    def add(self, metric: Metric, entity: Entity) -> int:
        """Append a column and say its position."""
        self.columns.append((metric, entity))
        return len(self.columns) - 1


# NVML return codes: nvml.h, nvmlReturn_t.
_NVML_REASONS = {
    1: Absent.GONE,  # UNINITIALIZED
    2: Absent.GONE,  # INVALID_ARGUMENT: the device vanished
    3: Absent.UNSUPPORTED,  # NOT_SUPPORTED
    4: Absent.DENIED,  # NO_PERMISSION
    6: Absent.UNSUPPORTED,  # NOT_FOUND
    9: Absent.GONE,  # DRIVER_NOT_LOADED
    10: Absent.TIMEOUT,  # TIMEOUT
    27: Absent.NOT_DUE,  # NOT_READY
    12: Absent.UNSUPPORTED,  # LIBRARY_NOT_FOUND
    13: Absent.UNSUPPORTED,  # FUNCTION_NOT_FOUND
    15: Absent.GONE,  # GPU_IS_LOST
    16: Absent.GONE,  # RESET_REQUIRED: it answers nothing until then
    21: Absent.UNSUPPORTED,  # NO_DATA
    22: Absent.UNSUPPORTED,  # VGPU_ECC_NOT_SUPPORTED
    25: Absent.UNSUPPORTED,  # ARGUMENT_VERSION_MISMATCH
    26: Absent.UNSUPPORTED,  # DEPRECATED
    28: Absent.UNSUPPORTED,  # GPU_NOT_FOUND
}


def nvml_reason(code: int) -> Absent:
    """The reason an NVML return code gives for a missing value."""
    return _NVML_REASONS.get(code, Absent.ERROR)


def reason_for(error: OSError | NvmlError) -> Absent:
    """The reason a failed call gives for a missing value."""
    return nvml_reason(error.code) if isinstance(error, NvmlError) else reason_of(error)


_NVML_REMEDIES = {
    4: "run the agent as root or give it access to /dev/nvidia*",
    9: "load the nvidia kernel module: modprobe nvidia, then nvidia-smi",
    18: "the driver was updated without a reload: reload it, or reboot",
}


def nvml_remedy(code: int) -> str:
    """What to do about an NVML return code that keeps all GPUs from being read."""
    return _NVML_REMEDIES.get(code, "run nvidia-smi and look into the kernel log")
