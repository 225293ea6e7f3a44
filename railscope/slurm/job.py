"""A job of Slurm, and what its printed forms have in common: times, states, ids of users."""

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
    """What a job holds on one node."""

    node: str
    gres: tuple[Gres, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A job as Slurm tells it at one moment. Times are Unix seconds.

    `id` is unique; an element of an array also has `array` (`30185_28`), as have those of an array that
    wait together (`30185_28-59%100`). A job that waits has no
    start and one that runs has no end: what Slurm prints there are plans, and the planned end is
    told apart. `allocations` is None where what is held is not told node by node; `gres_counts` is
    over all nodes, by names such as `gpu` and `gpu:h100`.
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
    """Start, end and planned end of a job, by what its state says that they are."""

    start_seconds: int | None
    end_seconds: int | None
    planned_end_seconds: int | None


def times(state: str, start: int | None, end: int | None) -> Times:
    """What a start and an end mean for a job in a state."""
    if state in _NOT_STARTED:
        return Times(None, None, None)
    return Times(start, end, None) if state in _ENDED else Times(start, None, end)


def seconds(text: str, zone: tzinfo) -> int | None:
    """A printed time: local time of the cluster, or Unix seconds (SLURM_TIME_FORMAT=%s).

    In the hour that comes twice when summer time ends, the first is meant. Raises FormatError.
    """
    printed = _printed(text)
    return None if printed is None else int(_in_zone(printed, zone).timestamp())


def sure_seconds(text: str, zone: tzinfo | None) -> int | None:
    """The same, of which a bill is made: what could be two instants is refused.

    So is local time without a zone. Raises FormatError.
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
    """A time, without a zone where it names none."""
    if text in _UNTOLD:
        return None
    try:
        if _UNIX.fullmatch(text):
            return datetime.fromtimestamp(int(text), UTC)
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        pass  # digits that are no day or hour: as wrong as any other text
    message = f"{text[:200]!r} is no time as Slurm prints it"
    raise FormatError(message)


def told(text: str) -> str:
    """A value, empty where Slurm prints that it has none."""
    return "" if text in _UNTOLD else text


def job_number(text: str) -> int:
    """A job's id. Raises FormatError."""
    if not re.fullmatch("[0-9]{1,10}", text):
        message = f"{text[:200]!r} is no id of a job"
        raise FormatError(message)
    return int(text)


def json_number(value: Any) -> int | None:
    """A number of Slurm's JSON, plain or with whether it is set. Raises TypeError, LookupError."""
    if isinstance(value, Mapping):
        value = value["number"] if value["set"] and not value.get("infinite") else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        message = f"{value!r} is no number"
        raise TypeError(message)
    return value


def json_text(value: Any) -> str:
    """A text of Slurm's JSON, empty where it is null. Raises TypeError."""
    if value is not None and not isinstance(value, str):
        message = f"{value!r} is no text"
        raise TypeError(message)
    return value or ""
