"""Slurm's notation of nodes, resources and jobs: lists of nodes, generic resources, times, states, users.

  n[01-03,07],login1       nodes (SchedMD/slurm:src/common/hostlist.c)
  gpu:h100:4(IDX:0-3)      four GPUs by their index in gres.conf
  gpu(CNT:1)               one, which is not counted by device
  shard:8(8/16,0/16)       shares of GPUs: for each GPU in index order, allocated of total
  gres/gpu:h100=4          in a list of trackable resources (TRES)

Sources: SchedMD/slurm:src/interfaces/gres.c, src/stepmgr/gres_stepmgr.c,
src/common/slurm_protocol_defs.c.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from fractions import Fraction
from typing import Any

from railscope.slurm import SlurmFormatError
from railscope.timestamps import SECOND_NS, from_datetime, parse_local_time, to_datetime

MAX_NODES = 65_536
"""Maximum number of names in a list; Slurm's own bound of one range (MAX_RANGE)."""

_PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile("([0-9]{1,10})(?:-([0-9]{1,10}))?")
_NO_NODES = {"", "(null)", "None assigned"}


def expand_nodes(text: str) -> tuple[str, ...]:
    """Return the nodes of a list, in its order; none for `(null)`. Raises SlurmFormatError."""
    if text in _NO_NODES:
        return ()
    parts = _PART.findall(text)
    if ",".join(parts) != text:
        raise _invalid_list(text)
    names: list[str] = []
    for part in parts:
        names += _names(part, MAX_NODES - len(names))
    return tuple(names)


def expand_numbers(text: str, max_count: int = MAX_NODES) -> tuple[int, ...]:
    """Return the numbers of `0,2-3`. Raises SlurmFormatError."""
    return tuple(number for number, _ in _numbers(text, max_count))


def _names(part: str, max_count: int) -> list[str]:
    """Return the names of `rack[0-1]n[00-31]-ib`: the last bracket varies fastest."""
    literal, *rest = _BRACKET.split(part)
    choices: list[list[str]] = [[literal]]
    count = 1
    for inside, literal in zip(rest[::2], rest[1::2], strict=True):
        choices.append(
            [f"{number:0{width}d}{literal}" for number, width in _numbers(inside, MAX_NODES)]
        )
        count *= len(choices[-1])
        if count > max_count:
            raise _invalid_list(part, f"at most {MAX_NODES} names")
    return ["".join(choice) for choice in itertools.product(*choices)]


def _numbers(text: str, max_count: int) -> list[tuple[int, int]]:
    """Return numbers with their printed width; a range has the width of its first number."""
    ranges: list[tuple[int, int]] = []
    for piece in text.split(","):
        matched = _RANGE.fullmatch(piece)
        if matched is None:
            raise _invalid_list(text)
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first:
            raise _invalid_list(text)
        if len(ranges) + last - first >= max_count:
            raise _invalid_list(text, f"at most {max_count} numbers")
        ranges += [(number, len(matched[1])) for number in range(first, last + 1)]
    return ranges


def _invalid_list(text: str, expected: str = "a list in Slurm's notation") -> SlurmFormatError:
    return SlurmFormatError(f"invalid list {text[:200]!r}: expected {expected}")


MAX_INDICES = 1024


@dataclass(frozen=True, slots=True)
class ShardShare:
    """Shares of one GPU: number allocated, and total."""

    allocated: int
    total: int


@dataclass(frozen=True, slots=True)
class Gres:
    """Resource on one node. Indices and shares are None if Slurm does not report them.

    An index is a position in gres.conf, not the number of a device: see gres_conf.
    """

    name: str
    type: str
    count: int
    indices: tuple[int, ...] | None = None
    shares: tuple[ShardShare, ...] | None = None


_SEPARATOR = re.compile(r",(?![^()]*\))")
_ENTRY = re.compile(r"([^:()=]+)((?::[^:()=]+)*)((?:\([^()]*\))*)")
_DETAIL = re.compile(r"\(([^()]*)\)")
_SHARES = re.compile("[0-9]{1,19}/[0-9]{1,19}(?:,[0-9]{1,19}/[0-9]{1,19})*")
_QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)([KMGTPE]?)")
_POWERS = {suffix: 1024**power for power, suffix in enumerate(["", *"KMGTPE"])}
_NO_RESOURCES = {"", "(null)", "N/A"}


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Parse the resources of one node: entries with commas between and within them. Raises SlurmFormatError."""
    if text in _NO_RESOURCES:
        return ()
    return tuple(_entry(entry) for entry in _SEPARATOR.split(text))


def parse_tres(text: str) -> dict[str, int]:
    """Return generic resources by name from a list such as `cpu=24,gres/gpu=2,gres/gpu:h100=2`.

    The name is the text after `gres/`; an entry with a type repeats the same devices. Values in bytes
    stay in bytes. Raises SlurmFormatError.
    """
    counts: dict[str, int] = {}
    for entry in [] if text in _NO_RESOURCES else text.split(","):
        name, equals, amount = entry.partition("=")
        if not equals:
            raise _invalid_resource(entry)
        if name.startswith("gres/"):
            if name in counts:
                message = f"duplicate {name}: expected it once"
                raise SlurmFormatError(message)
            counts[name] = _quantity(amount)
    return {name.removeprefix("gres/"): count for name, count in counts.items()}


def _entry(entry: str) -> Gres:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise _invalid_resource(entry)
    parts = match[2].split(":")[1:]
    counted = bool(parts) and _QUANTITY.fullmatch(parts[-1]) is not None
    count = _quantity(parts.pop()) if counted else None
    indices: tuple[int, ...] | None = None
    shares: tuple[ShardShare, ...] | None = None
    for detail in _DETAIL.findall(match[3]):
        kind, _, value = detail.partition(":")
        if kind == "IDX":
            indices = expand_numbers(value, MAX_INDICES) if value else ()
        elif kind == "CNT":
            count = _quantity(value)
        elif _SHARES.fullmatch(detail):
            shares = tuple(ShardShare(*map(int, pair.split("/"))) for pair in detail.split(","))
        elif kind != "S":  # not a list of nearby sockets
            raise _invalid_resource(entry)
    return Gres(match[1], ":".join(parts), 1 if count is None else count, indices, shares)


def _quantity(text: str) -> int:
    """Parse a count, or bytes with a binary suffix; Slurm prints them rounded to two digits."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _invalid_resource(text)
    return int(Fraction(match[1]) * _POWERS[match[2]])


def _invalid_resource(text: str) -> SlurmFormatError:
    return SlurmFormatError(f"invalid generic resource {text[:200]!r}: expected Slurm's notation")


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """Resources that a job holds on one node."""

    node: str
    gres: tuple[Gres, ...]


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """Slurm job at one time. Times are Unix seconds.

    `id` is unique, also among the elements of an array. A pending job has no start and a running one has no
    end: for these Slurm prints plans. `allocations` is None if the allocation is not reported per node;
    `gres_counts` is over all nodes, by names such as `gpu` and `gpu:h100`.
    """

    id: int
    user: str
    account: str
    state: str
    start_seconds: int | None
    end_seconds: int | None
    nodes: tuple[str, ...]
    allocations: tuple[NodeAllocation, ...] | None = None
    gres_counts: dict[str, int] = field(default_factory=dict)


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


def times(state: str, start: int | None, end: int | None) -> tuple[int | None, int | None]:
    """Return start and end of a job from the printed ones, which are plans in some states."""
    if state in _NOT_STARTED:
        return None, None
    return start, end if state in _ENDED else None


def seconds(text: str, zone: tzinfo) -> int | None:
    """Parse a printed time: local time of the cluster, or Unix seconds (SLURM_TIME_FORMAT=%s).

    A local time that occurs twice at the end of summer time means the first. Raises SlurmFormatError.
    """
    printed = _parse_time(text)
    return None if printed is None else _in_seconds(printed, zone)


def sure_seconds(text: str, zone: tzinfo | None) -> int | None:
    """Parse a printed time for billing: ambiguous and nonexistent local times are rejected.

    Local time without a zone is rejected, too. Raises SlurmFormatError.
    """
    printed = _parse_time(text)
    if printed is None:
        return None
    if printed.tzinfo is None:
        if zone is None:
            message = f"invalid time {text}: expected a time zone"
            raise SlurmFormatError(message)
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


def json_number(value: Any) -> int | None:
    """Return a number of Slurm's JSON, plain or with a `set` flag. Raises TypeError, LookupError."""
    if isinstance(value, Mapping):
        value = value["number"] if value["set"] and not value.get("infinite") else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        message = f"invalid value {value!r}: expected a number"
        raise TypeError(message)
    return value


def json_text(value: Any) -> str:
    """Return a text of Slurm's JSON, empty if it is null. Raises TypeError."""
    if value is not None and not isinstance(value, str):
        message = f"invalid value {value!r}: expected a string"
        raise TypeError(message)
    return value or ""
