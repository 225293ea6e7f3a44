"""Slurm jobs, and the common elements of their printed forms: times, states, user ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any

from railscope.slurm import FormatError
from railscope.slurm.gres import Gres


@dataclass(frozen=True, slots=True)
class Allocation:
    """Resources that a job holds on one node."""

    node: str
    gres: tuple[Gres, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """Slurm job at one time. Times are Unix seconds.

    `id` is unique; an element of an array also has `array` (`30185_28`), as does the pending part of an
    array (`30185_28-59%100`). A pending job has no start and a running one has no end: for these Slurm
    prints plans, and the planned end is a separate field. `allocations` is None if the allocation is not
    reported per node; `gres_counts` is over all nodes, by names such as `gpu` and `gpu:h100`.
    """

    id: int
    user: str
    user_id: int | None
    account: str
    state: str
    start_seconds: int | None
    end_seconds: int | None
    planned_end_seconds: int | None
    nodes: tuple[str, ...]
    allocations: tuple[Allocation, ...] | None = None
    gres_counts: dict[str, int] = field(default_factory=dict)
    array: str = ""
    sluid: str = ""


_ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "COMPLETING",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "STAGE_OUT",
        "TIMEOUT",
    ]
)
_NOT_STARTED = frozenset(
    ["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"]
)
"""Base states and flags, of which Slurm prints one: src/common/slurm_protocol_defs.c."""

_UNTOLD = {"", "(null)", "None", "N/A", "Unknown", "NONE"}
_TIME = re.compile(
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_UNIX = re.compile("[0-9]{1,11}")


@dataclass(frozen=True, slots=True)
class Times:
    """Start, end and planned end of a job, interpreted by its state."""

    start_seconds: int | None
    end_seconds: int | None
    planned_end_seconds: int | None


def times(state: str, start: int | None, end: int | None) -> Times:
    """Interpret a printed start and end of a job in a state."""
    if state in _NOT_STARTED:
        return Times(None, None, None)
    return Times(start, end, None) if state in _ENDED else Times(start, None, end)


def seconds(text: str, zone: tzinfo) -> int | None:
    """Parse a printed time: local time of the cluster, or Unix seconds (SLURM_TIME_FORMAT=%s).

    A local time that occurs twice at the end of summer time means the first. Raises FormatError.
    """
    printed = _printed(text)
    return None if printed is None else int(_in_zone(printed, zone).timestamp())


def sure_seconds(text: str, zone: tzinfo | None) -> int | None:
    """Parse a printed time for billing: ambiguous and nonexistent local times are rejected.

    Local time without a zone is rejected, too. Raises FormatError.
    """
    printed = _printed(text)
    if printed is None:
        return None
    if printed.tzinfo is None:
        if zone is None:
            message = f"{text} has no time zone, and none is given"
            raise FormatError(message)
        first, second = (printed.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
        if first.utcoffset() != second.utcoffset():
            message = f"{text} is not one instant: clocks were changed"
            raise FormatError(message)
    return int(_in_zone(printed, zone or UTC).timestamp())


def _in_zone(printed: datetime, zone: tzinfo) -> datetime:
    return printed if printed.tzinfo else printed.replace(tzinfo=zone)


def _printed(text: str) -> datetime | None:
    """Parse a time; the result has no zone if the text names none."""
    if text in _UNTOLD:
        return None
    try:
        if _UNIX.fullmatch(text):
            return datetime.fromtimestamp(int(text), UTC)
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        pass  # digits out of range, such as hour 25: an error like any other text
    message = f"{text[:200]!r} is no time as Slurm prints it"
    raise FormatError(message)


def told(text: str) -> str:
    """Return a value; empty if Slurm prints a placeholder for no value."""
    return "" if text in _UNTOLD else text


def job_number(text: str) -> int:
    """Parse a job's id. Raises FormatError."""
    if not re.fullmatch("[0-9]{1,10}", text):
        message = f"{text[:200]!r} is no id of a job"
        raise FormatError(message)
    return int(text)


def json_number(value: Any) -> int | None:
    """Return a number of Slurm's JSON, plain or with a `set` flag. Raises TypeError, LookupError."""
    if isinstance(value, Mapping):
        value = value["number"] if value["set"] and not value.get("infinite") else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        message = f"{value!r} is no number"
        raise TypeError(message)
    return value


def json_text(value: Any) -> str:
    """Return a text of Slurm's JSON, empty if it is null. Raises TypeError."""
    if value is not None and not isinstance(value, str):
        message = f"{value!r} is no text"
        raise TypeError(message)
    return value or ""
