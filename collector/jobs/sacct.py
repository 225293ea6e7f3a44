"""Job lists of Slurm: `sacct -P` with a header. It counts the GPUs of a job and names none.

Fields and times: sacct(1); TRES: slurm.conf(5), AccountingStorageTRES. sacct prints local times
without a zone; with SLURM_TIME_FORMAT=%s it prints seconds since the epoch, which leave no doubt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NoReturn

from collector.jobs.job import (
    LATEST_SECONDS,
    NS_PER_SECOND,
    Job,
    JobList,
    JobListError,
    Unplaced,
    without_repetitions,
)

FIELDS = ("JobIDRaw", "Account", "User", "Start", "End", "AllocTRES", "NodeList")
NOT_NAMED = "sacct does not tell which GPUs"

_NEVER = frozenset({"", "Unknown", "None", "NONE", "N/A", "(null)"})
_JOB = re.compile(r"[0-9]+")
_STEP = re.compile(r"[0-9]+\..+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GPU = "gres/gpu"
_MIG = re.compile(r"gres/gpu:.*[0-9]g\.[0-9]+gb")
_SHARES = ("gres/shard", "gres/mps")


class _Row:
    """One line by the names of its fields, with its number for what is wrong in it."""

    def __init__(self, number: int, values: Mapping[str, str], zone: tzinfo | None) -> None:
        self.number = number
        self.values = values
        self.zone = zone
        for field in FIELDS:
            if not values[field].isprintable():
                self.refuse(field, f"{values[field]!r} cannot be printed")

    def refuse(self, field: str, reason: str) -> NoReturn:
        """Raises JobListError about a field."""
        raise JobListError(self.number, field, reason)

    def name(self, field: str) -> str:
        """A field that is not empty."""
        value = self.values[field]
        if not value:
            self.refuse(field, "is empty")
        return value

    def instant_ns(self, field: str) -> int:
        """A time: seconds since the epoch, or a date and time with a zone or in `zone`."""
        text = self.values[field]
        if _JOB.fullmatch(text):
            found_ns = int(text) * NS_PER_SECOND
        else:
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                self.refuse(field, f"{text!r} is no time")
            found_ns = (self._zoned(field, moment) - _EPOCH) // timedelta(microseconds=1) * 1000
        if not 0 <= found_ns < LATEST_SECONDS * NS_PER_SECOND:
            self.refuse(field, f"{text!r} is not from 1970 to 2105")
        return found_ns

    def _zoned(self, field: str, moment: datetime) -> datetime:
        if moment.tzinfo:
            return moment
        if not self.zone:
            self.refuse(field, f"{moment.isoformat()} has no time zone, and none is given")
        first, second = (moment.replace(tzinfo=self.zone, fold=fold) for fold in (0, 1))
        if first.utcoffset() != second.utcoffset():
            self.refuse(field, f"{moment.isoformat()} is not one instant: clocks were changed")
        return first


def read_sacct(lines: Iterable[str], zone: tzinfo | None = None) -> JobList:
    """The jobs of a list; steps are left out, for what they have is their job's.

    `zone` is that of the machine on which sacct ran, for times that name none. Raises JobListError.
    """
    told: list[tuple[int, Job]] = []
    without_gpus = never_started = 0
    running: list[str] = []
    header: list[str] = []
    for number, line in enumerate(lines, 1):
        values = line.rstrip("\r\n").split("|")
        if not header:
            header = _header(number, values)
            continue
        if values == [""]:
            continue
        if len(values) != len(header):
            raise JobListError(
                number, "", f"has {len(values)} fields, but the header has {len(header)}"
            )
        row = _Row(number, dict(zip(header, values, strict=True)), zone)
        if _STEP.fullmatch(row.values["JobIDRaw"]):
            continue
        if not _JOB.fullmatch(row.values["JobIDRaw"]):
            row.refuse("JobIDRaw", f"{row.values['JobIDRaw']!r} is no job")
        unplaced = _unplaced(row)
        if row.values["Start"] in _NEVER:
            never_started += 1
        elif not unplaced:
            without_gpus += 1
        elif row.values["End"] in _NEVER:
            running.append(row.values["JobIDRaw"])
        else:
            told.append((number, _job(row, unplaced)))
    return JobList(without_repetitions(told), without_gpus, never_started, tuple(running))


def _header(number: int, names: list[str]) -> list[str]:
    for field in FIELDS:
        if field not in names:
            raise JobListError(number, field, "is not in the header")
        if names.count(field) > 1:
            raise JobListError(number, field, "is twice in the header")
    return names


def _job(row: _Row, unplaced: tuple[Unplaced, ...]) -> Job:
    start_ns, end_ns = row.instant_ns("Start"), row.instant_ns("End")
    if end_ns < start_ns:
        row.refuse("End", f"{row.values['End']} is before Start, {row.values['Start']}")
    return Job(
        start_ns,
        row.values["JobIDRaw"],
        row.name("Account"),
        row.name("User"),
        end_ns,
        unplaced=unplaced,
    )


def _unplaced(row: _Row) -> tuple[Unplaced, ...]:
    """How many GPUs a job had, on which nodes. Parts of GPUs are told and not counted as GPUs."""
    tres = _tres(row)
    where = row.values["NodeList"]
    typed = {name: count for name, count in tres.items() if name.startswith(f"{_GPU}:")}
    instances = {name: count for name, count in typed.items() if _MIG.fullmatch(name)}
    gpus = tres.get(_GPU, sum(typed.values())) - sum(instances.values())
    if gpus < 0:
        row.refuse("AllocTRES", f"has more MIG instances than {_GPU}={tres[_GPU]}")
    parts = instances | {name: count for name, count in tres.items() if name.startswith(_SHARES)}
    found = [Unplaced(where, gpus, NOT_NAMED)] if gpus else []
    found += [
        Unplaced(where, 0, f"{name}={count} is a part of a GPU, of unknown size")
        for name, count in sorted(parts.items())
        if count
    ]
    return tuple(found)


def _tres(row: _Row) -> dict[str, int]:
    """The GPU resources of a job; others come in units of their own and are left out."""
    found: dict[str, int] = {}
    for part in filter(None, row.values["AllocTRES"].split(",")):
        name, equals, count = part.partition("=")
        if not equals:
            row.refuse("AllocTRES", f"{part!r} is no resource and its count")
        if name == _GPU or name.startswith((f"{_GPU}:", *_SHARES)):
            if not _JOB.fullmatch(count):
                row.refuse("AllocTRES", f"{part!r} is no count of GPUs")
            if name in found:
                row.refuse("AllocTRES", f"{name} is there twice")
            found[name] = int(count)
    return found
