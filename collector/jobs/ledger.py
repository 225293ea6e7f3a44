"""A job list as a ledger: the days of every GPU that its jobs had.

All time is on the scheduler's word (`inferred`), which rating leaves for a decision where no agent saw
the GPU for more than an hour. An operator who has no agent may take that word for observation: then it
is told as such, under an engine version of its own.

For a period of which the list has all jobs, also those that run on at its end, every GPU that it names by
then is there all through it: then the period's days are complete, and those of the next one go on.

GPUs that a list counts and does not name can be written as stand-ins: numbered, as many as were held at
once. Whose time it is does not depend on which of them a job is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

import msgspec

from collector.billing.instants import Period
from collector.jobs.job import Gpu, Job, JobList, job_list
from collector.jobs.meter import evidence
from collector.ledger.metered import Computed, MeteredGpu
from collector.ledger.rows import GpuDay
from collector.ledger.store import Ledger
from collector.ledger.tiling import DAY_NS, DayTiling, content_root
from collector.metering.evidence import Evidence, Stay, Stretch
from railscope import __version__

STAND_IN = "unnamed"
"""The node of GPUs that a list does not name."""
_AT_ONCE = 1000


class JobLedgerError(Exception):
    """The list cannot be written; says why."""


class Imported(NamedTuple):
    """How many GPU-days were written, and how many were there already as they are."""

    added: int
    unchanged: int


class Terms(NamedTuple):
    """How a list is written: the GPUs' model, when, and whether the scheduler's word is enough."""

    sku: str
    instant_ns: int
    as_observed: bool = False

    @property
    def computed(self) -> Computed:
        """By what and when."""
        word = "taken as observed" if self.as_observed else "on the scheduler's word"
        return Computed(f"{__version__} job list, {word}", self.instant_ns)


def with_stand_ins(jobs: Iterable[Job]) -> list[Job]:
    """The jobs in order, and a numbered GPU in the place of each that is only counted."""
    free: list[int] = []
    held: list[tuple[int, int]] = []
    made = 0
    found: list[Job] = []
    for job in sorted(jobs):
        while held and held[0][0] <= job.start_ns:
            heappush(free, heappop(held)[1])
        gpus: list[Gpu] = []
        for _ in range(sum(part.gpus for part in job.unplaced)):
            if not free:
                made += 1
                heappush(free, made)
            number = heappop(free)
            heappush(held, (job.end_ns, number))
            gpus.append(Gpu(STAND_IN, f"{number:06}"))
        rest = tuple(part for part in job.unplaced if not part.gpus)
        every = (*job.gpus, *sorted(gpus))
        found.append(msgspec.structs.replace(job, gpus=every, unplaced=rest))
    return found


def listed_with_stand_ins(jobs: JobList) -> JobList:
    """The same of a list, also of its jobs that have not ended."""
    every = with_stand_ins([*jobs.jobs, *jobs.unended])
    return job_list(every, jobs.without_gpus, jobs.never_started)


def days(jobs: Iterable[Job], terms: Terms) -> Iterator[DayTiling]:
    """The days of every GPU that the jobs name, by GPU and day."""
    for known in evidence(jobs).values():
        (stay,) = known.stays
        within = range(stay.start_ns // DAY_NS, -(-stay.end_ns // DAY_NS))
        yield from _days(known, within, terms)


def days_of_period(
    jobs: JobList, period: Period, terms: Terms, others: Iterable[str] = ()
) -> Iterator[DayTiling]:
    """All days of a period, of all GPUs that the jobs name by its end and of others by their names.

    The period is of whole days. Jobs that have not ended last until its end.
    """
    until = [
        msgspec.structs.replace(job, end_ns=period.end_ns)
        for job in jobs.unended
        if job.start_ns < period.end_ns
    ]
    within = range(period.start_ns // DAY_NS, period.end_ns // DAY_NS)
    begun = [job for job in (*jobs.jobs, *until) if job.start_ns < period.end_ns]
    found = {str(gpu): known for gpu, known in evidence(begun).items()}
    for name in sorted(found.keys() | set(others)):
        known = found.get(name, Evidence(name, stays=()))
        starts = [stay.start_ns for stay in known.stays]
        ends = [stay.end_ns for stay in known.stays]
        stay = Stay(
            min([period.start_ns, *starts]), name.rpartition("/")[0], max([period.end_ns, *ends])
        )
        yield from _days(msgspec.structs.replace(known, stays=(stay,)), within, terms)


def listed_gpus(ledger: Ledger, before_day: int) -> set[str]:
    """The GPUs of earlier lists in a ledger, which were named `node/address`. Raises LedgerError."""
    return {key.gpu for key in ledger.newest(0, before_day) if "/" in key.gpu}


def _days(known: Evidence, within: range, terms: Terms) -> Iterator[DayTiling]:
    one = _observed(known) if terms.as_observed else known
    metered = MeteredGpu.of(one, {}, terms.sku)
    for day in within:
        yield metered.day(day, terms.computed)


def _observed(known: Evidence) -> Evidence:
    """The scheduler's sightings as if they were samples."""
    merged: list[tuple[int, int]] = []
    for one in sorted(known.sightings, key=lambda sighting: sighting.start_ns):
        if merged and one.start_ns <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], one.end_ns)
        else:
            merged.append((one.start_ns, one.end_ns))
    stretches = tuple(Stretch(f"jobs from {start}", start, end) for start, end in merged)
    return msgspec.structs.replace(known, stretches=stretches)


def write(ledger: Ledger, tilings: Iterable[DayTiling], *, replace: bool = False) -> Imported:
    """Write days, in transactions of many; what is there as it is stays.

    A day that is there with other contents is only written where `replace` says so: the list may not
    know all of it. Raises JobLedgerError and LedgerError.
    """
    added = unchanged = 0
    rest = iter(tilings)
    while chunk := list(islice(rest, _AT_ONCE)):
        if not replace:
            _refuse_other(ledger, chunk)
        for written in ledger.write_days(chunk):
            added += written.added
            unchanged += not written.added
    return Imported(added, unchanged)


def _refuse_other(ledger: Ledger, chunk: Sequence[DayTiling]) -> None:
    first, last = min(t.day for t in chunk), max(t.day for t in chunk)
    present = ledger.newest(first, last + 1)
    known = {GpuDay(tiling.gpu, tiling.day): tiling for tiling in chunk}
    wanted = {key: present[key] for key in known.keys() & present.keys()}
    for revision in ledger.revisions(wanted):
        there = revision.tiling
        if revision.content_root != content_root(known[GpuDay(there.gpu, there.day)]):
            message = (
                f"the ledger has other contents for {there.gpu} on day {there.day} since 1970: "
                "import all jobs of a day at once, or say --replace"
            )
            raise JobLedgerError(message)
