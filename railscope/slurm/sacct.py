"""Jobs in Slurm's accounting output: `sacct --parsable2 --allocations`, or `sacct --json`.

The first line of the text names the columns. Use
`--format=JobIDRaw,JobID,User,UID,Account,State,Start,End,NodeList,AllocTRES`, without names and comments:
a user may write the separator into them. Sources: SchedMD/slurm:src/sacct/print.c,
src/plugins/data_parser (job of slurmdbd).

Accounting contains past allocations, not plans: with --duplicates a requeued job appears once for each
run, in the state REQUEUED and with an end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Annotated, Any, NamedTuple

import msgspec

from railscope.slurm import SlurmFormatError, job_record, node_lists, resources
from railscope.untrusted_text import ShapeError, convert_json

COLUMNS = ("JobIDRaw", "User", "Account", "Start", "End", "NodeList", "AllocTRES")
"""Required columns. `JobID` may replace `JobIDRaw`, but does not distinguish arrays."""


class AccountingError(SlurmFormatError):
    """A line, or a job of the JSON, both counted from 1, that is not in the format of sacct."""

    def __init__(self, place: int, field: str, reason: str) -> None:
        """Create the error; `field` is empty if the line or job as a whole is invalid."""
        self.place, self.field, self.reason = place, field, reason
        super().__init__(f"invalid entry {place}: {field and f'{field}: '}{reason}")


class AccountedJob(NamedTuple):
    """A job with its position in the input, its nodes as printed, and its cluster if the input has it."""

    place: int
    job: job_record.SlurmJob
    node_list: str
    cluster: str = ""


_SEPARATOR = "|"


def _raise(error: AccountingError) -> None:
    raise error


def parse_sacct(
    text: str,
    zone: tzinfo | None,
    rejected: Callable[[AccountingError], None] = _raise,
) -> tuple[AccountedJob, ...]:
    """Return the jobs of a text, without their steps; `zone` is the time zone in which sacct ran.

    Without a zone, times must name theirs or be Unix seconds. `rejected` is called with the error of each
    invalid line. Raises AccountingError for an invalid header.
    """
    jobs: list[AccountedJob] = []
    header, *lines = text.split("\n")
    names = _check_header(header.rstrip("\r").split(_SEPARATOR))
    for place, line in enumerate(lines, start=2):
        try:
            row = _row(place, line.rstrip("\r"), names)
            if row is not None:
                jobs.append(_record(row, zone))
        except AccountingError as error:
            rejected(error)
    return tuple(jobs)


@dataclass(frozen=True, slots=True)
class _SacctRow:
    """One line by column name."""

    place: int
    values: Mapping[str, str]

    def __getitem__(self, column: str) -> str:
        value = self.values.get(column, "")
        if not value.isprintable():
            raise AccountingError(self.place, column, f"{value!r}: expected printable characters")
        return value

    @property
    def id(self) -> str:
        return self["JobIDRaw"] if "JobIDRaw" in self.values else self["JobID"]


def _row(place: int, line: str, names: list[str]) -> _SacctRow | None:
    """Return the job of a line; None for an empty line and for a job step."""
    if not line:
        return None
    values = line.split(_SEPARATOR)
    if len(values) != len(names):
        reason = f"invalid line of {len(values)} columns: expected {len(names)}"
        raise AccountingError(place, "", reason)
    row = _SacctRow(place, dict(zip(names, values, strict=True)))
    # Steps have names such as 123.batch and 123.0.
    return None if "." in row.id else row


def _check_header(names: list[str]) -> list[str]:
    for column in COLUMNS:
        count = names.count(column)
        if column == "JobIDRaw" and not count:
            column, count = "JobID", names.count("JobID")  # noqa: PLW2901 - accepted as a replacement
        if not count:
            reason = f"missing in the header: expected the columns {','.join(COLUMNS)}"
            raise AccountingError(1, column, reason)
        if count > 1:
            raise AccountingError(1, column, "duplicate in the header")
    return names


def _record(row: _SacctRow, zone: tzinfo | None) -> AccountedJob:
    column = ""
    try:
        column = "JobIDRaw"
        number = job_record.job_number(row.id)
        column = "Start"
        start = job_record.sure_seconds(row["Start"], zone)
        column = "End"
        end = job_record.sure_seconds(row["End"], zone)
        column = "NodeList"
        nodes = node_lists.expand_nodes(job_record.value_or_empty(row["NodeList"]))
        column = "AllocTRES"
        counts = resources.parse_tres(row["AllocTRES"])
    except AccountingError:
        raise
    except SlurmFormatError as error:
        raise AccountingError(row.place, column, str(error)) from error
    job = job_record.SlurmJob(
        id=number,
        user=row["User"],
        account=row["Account"],
        # Such as CANCELLED by 1000.
        state=row["State"].partition(" ")[0],
        start_seconds=start,
        # A job that was cancelled before its start has only an end.
        end_seconds=end if start is not None else None,
        nodes=nodes,
        gres_counts=counts,
    )
    return AccountedJob(row.place, job, row["NodeList"], row["Cluster"])


# JSON ----------------------------------------------------------------------------------------------


class _SacctJobs(msgspec.Struct):
    jobs: list[Any]


class _SacctNumber(msgspec.Struct):
    """A number with a `set` flag."""

    set: bool
    number: int | None
    infinite: bool = False


_Number = int | _SacctNumber | None


class _SacctTime(msgspec.Struct):
    start: _Number
    end: _Number


class _SacctState(msgspec.Struct):
    current: str | Annotated[list[str], msgspec.Meta(min_length=1)]


class _SacctResource(msgspec.Struct):
    type: str | None
    name: str | None = None
    count: _Number = None


class _SacctResources(msgspec.Struct):
    allocated: list[_SacctResource]


class _SacctJob(msgspec.Struct):
    """Job fields that are read."""

    job_id: _Number
    state: _SacctState
    time: _SacctTime
    tres: _SacctResources
    user: str | None = None
    account: str | None = None
    nodes: str | None = None
    cluster: str | None = None


def parse_sacct_json(
    text: str | bytes, rejected: Callable[[AccountingError], None] = _raise
) -> tuple[AccountedJob, ...]:
    """Return the jobs of `sacct --json`; `rejected` as above. Raises AccountingError for other text."""
    try:
        listed = convert_json(json.loads(text), _SacctJobs).jobs
    except (ValueError, RecursionError) as error:
        reason = f"invalid JSON of sacct: {error}"
        raise AccountingError(1, "", reason) from error
    jobs: list[AccountedJob] = []
    for place, job in enumerate(listed, start=1):
        try:
            jobs.append(_record_of(place, job))
        except AccountingError as error:
            rejected(error)
    return tuple(jobs)


def _record_of(place: int, listed: Any) -> AccountedJob:
    try:
        job = convert_json(listed, _SacctJob)
        return AccountedJob(place, _job_of(job), job.nodes or "", job.cluster or "")
    except ShapeError as error:
        raise AccountingError(place, error.field, error.reason) from error
    except SlurmFormatError as error:
        raise AccountingError(place, "", str(error)) from error


def _job_of(job: _SacctJob) -> job_record.SlurmJob:
    number = _value(job.job_id)
    if number is None:
        message = "missing job ID: expected an integer"
        raise SlurmFormatError(message)
    states = job.state.current
    # Slurm writes 0 for a time that is not set.
    start, end = _value(job.time.start) or None, _value(job.time.end) or None
    return job_record.SlurmJob(
        id=number,
        user=job.user or "",
        account=job.account or "",
        state=states if isinstance(states, str) else states[0],
        start_seconds=start,
        end_seconds=end if start is not None else None,
        nodes=node_lists.expand_nodes(job_record.value_or_empty(job.nodes or "")),
        gres_counts=_counts(job.tres.allocated),
    )


def _value(number: _Number) -> int | None:
    if isinstance(number, _SacctNumber):
        return number.number if number.set and not number.infinite else None
    return number


def _counts(allocated: Iterable[_SacctResource]) -> dict[str, int]:
    """Return generic resources by name, with the type if present, as `parse_tres` does."""
    counts: dict[str, int] = {}
    for resource in allocated:
        if resource.type != "gres":
            continue
        name, count = resource.name or "", _value(resource.count)
        if count is None or count < 0 or name in counts:
            message = f"invalid count of {name!r}: expected one number, at least 0"
            raise SlurmFormatError(message)
        counts[name] = count
    return counts
