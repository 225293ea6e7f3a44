"""Slurm jobs: their states, times and numbers, as its commands print them.

Source: SchedMD/slurm:src/common/slurm_protocol_defs.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from railscope.slurm import SlurmFormatError
from railscope.timestamps import SECOND_NS, from_datetime, parse_local_time, to_datetime

_ENDED = frozenset([
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "STAGE_OUT", "TIMEOUT",
])  # fmt: skip
_NOT_STARTED = frozenset(
    ["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"]
)
"""Base states and flags, of which Slurm prints one: src/common/slurm_protocol_defs.c."""

_PLACEHOLDERS = {"", "(null)", "None", "N/A", "Unknown", "NONE"}
_TIME = re.compile(
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_UNIX = re.compile("[0-9]{1,11}")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """Slurm job at one time. Times are Unix seconds.

    `id` is unique, also among the elements of an array. A pending job has no start and a running one has no
    end: for these Slurm prints plans. `gres_counts` is over all nodes, by names such as `gpu` and `gpu:h100`.
    """

    id: int
    user: str
    account: str
    state: str
    start_seconds: int | None
    end_seconds: int | None
    nodes: tuple[str, ...]
    gres_counts: dict[str, int] = field(default_factory=dict)


def times(state: str, start: int | None, end: int | None) -> tuple[int | None, int | None]:
    """Return start and end of a job from the printed ones, which are plans in some states."""
    if state in _NOT_STARTED:
        return None, None
    return start, end if state in _ENDED else None


def sure_seconds(text: str, zone: tzinfo | None) -> int | None:
    """Parse a printed time for billing: ambiguous and nonexistent local times are rejected.

    Local time without a zone is rejected, too. Raises SlurmFormatError.
    """
    printed = _parse_time(text)
    if printed is None:
        return None
    if printed.tzinfo is None:
        if zone is None:
            message = f"invalid time {text}: expected a time zone; fix: name that of the cluster by --timezone, such as --timezone Europe/Berlin"
            raise SlurmFormatError(message)
        # Both readings of a local time: they differ in the hour that occurs twice, and in the one that does not exist.
        first, second = (printed.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
        if first.utcoffset() != second.utcoffset():
            message = f"ambiguous or nonexistent time {text}: expected a time with an offset"
            raise SlurmFormatError(message)
    return _in_seconds(printed, zone or UTC)


def _in_seconds(printed: datetime, zone: tzinfo) -> int:
    return from_datetime(printed if printed.tzinfo else printed.replace(tzinfo=zone)) // SECOND_NS


def _parse_time(text: str) -> datetime | None:
    """Parse a time; the result has no zone if the text names none."""
    if text in _PLACEHOLDERS:
        return None
    try:
        if _UNIX.fullmatch(text):
            return to_datetime(int(text) * SECOND_NS)
        if _TIME.fullmatch(text):
            return parse_local_time(text)
    except (ValueError, OverflowError):
        pass  # digits out of range, such as hour 25: an error like any other text
    message = f"invalid time {text[:200]!r}: expected Slurm's format"
    raise SlurmFormatError(message)


def value_or_empty(text: str) -> str:
    """Return a value; empty if Slurm prints a placeholder for no value."""
    return "" if text in _PLACEHOLDERS else text


def job_number(text: str) -> int:
    """Parse a job's id. Raises SlurmFormatError."""
    if not re.fullmatch("[0-9]{1,10}", text):
        message = f"invalid job ID {text[:200]!r}: expected 1 to 10 digits"
        raise SlurmFormatError(message)
    return int(text)
