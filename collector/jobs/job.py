"""Content of a job list of any scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

import msgspec

from collector.metering.instants import spelled
from collector.metering.units import FOREVER_NS

NS_PER_SECOND = 1_000_000_000
LATEST_SECONDS = 1 << 32
"""Limit of start and duration of a job (the year 2106): its end fits into 63 bits of ns."""

MAX_GPUS_OF_NODE = 1024
"""GPUs of a job on one node, the same limit as for claims in force there."""
MAX_GPUS = 1 << 16
"""GPUs of a job: a list that only counts them writes each of them into the ledger."""

_ADDRESS = re.compile(r"(?:[0-9A-F]{4}|[0-9A-F]{8}):[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]")
_DOMAIN_DIGITS = 8


class JobListError(ValueError):
    """A line is not a valid job. The message names the line, counted from 1, and the field.

    In a list that does not consist of lines, `what` names the unit that is counted.
    """

    def __init__(self, place: int, field: str, reason: str, what: str = "line") -> None:
        """`field` is empty if the line as a whole is invalid."""
        self.place, self.field, self.reason, self.what = place, field, reason, what
        where = f"{what} {place}"
        super().__init__(f"{where}: {field}: {reason}" if field else f"{where}: {reason}")


class BadLines:
    """Invalid lines of a list: raised at once, or collected while the rest is read.

    `now_ns` is the time of the import: a job that starts or ends after it is invalid.
    """

    def __init__(self, *, collect: bool = False, now_ns: int = FOREVER_NS) -> None:
        self.found: list[JobListError] = []
        self.now_ns = now_ns
        self._collect = collect

    def add(self, error: JobListError) -> None:
        """Collect an error, or raise it if errors are not collected."""
        if not self._collect:
            raise error
        self.found.append(error)


RAISED = BadLines()
"""Raises on every bad line."""


def future(instant_ns: int, now_ns: int) -> str:
    """Reason to reject an instant of a job after `now_ns`; empty if it is not later."""
    if instant_ns <= now_ns:
        return ""
    return f"{spelled(instant_ns)}: expected a time not after now, {spelled(now_ns)}"


def excess(gpus: int, nodes: int) -> str:
    """Reason to reject a number of GPUs that exceeds the limit of so many nodes; else empty.

    A job without named nodes is treated as one on a single node.
    """
    most = min(max(nodes, 1) * MAX_GPUS_OF_NODE, MAX_GPUS)
    if gpus <= most:
        return ""
    return f"{gpus} GPUs, nodes {max(nodes, 1)}: expected at most {most} GPUs"


class Gpu(NamedTuple):
    """One GPU: its node and its PCI address in the form of `pci_address`."""

    node: str
    address: str

    def __str__(self) -> str:
        """`node/address`."""
        return f"{self.node}/{self.address}"


class Part(NamedTuple):
    """A part [low, high) of a GPU, as fractions of it."""

    low: Fraction
    high: Fraction

    @property
    def share(self) -> Fraction:
        """Size as a fraction of the GPU."""
        return self.high - self.low


WHOLE = Part(Fraction(0), Fraction(1))


class Unplaced(msgspec.Struct, frozen=True, order=True):
    """GPUs of a job that a list does not name; their identity is not guessed.

    `where` is the node or nodes in the scheduler's notation, empty if there is none.
    """

    where: str
    gpus: int
    reason: str
    model: str = ""
    share: Fraction = Fraction(1)
    """Part of each GPU."""

    @property
    def capacity(self) -> Fraction:
        """Total of all parts in whole GPUs."""
        return self.gpus * self.share


class Job(msgspec.Struct, frozen=True, order=True):
    """A job that had GPUs in [start, end). `tenant` is the account it is charged to.

    `user` is the user that ran it, empty if the list does not contain it.
    """

    start_ns: int
    id: str
    tenant: str
    user: str
    end_ns: int
    gpus: tuple[Gpu, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    model: str = ""
    """Model of its GPUs, if the list names one."""
    parts: tuple[Part, ...] = ()
    """Part of each GPU, in their order; empty if it had whole GPUs."""

    @property
    def claim(self) -> str:
        """The id of its claim. A requeued job runs twice, and those are two claims."""
        return f"{self.id}@{self.start_ns // NS_PER_SECOND}"

    def part_of(self, gpu: Gpu) -> Part:
        """The part of one of its GPUs that it had."""
        return self.parts[self.gpus.index(gpu)] if self.parts else WHOLE

    @property
    def duration_ns(self) -> int:
        """Time for which it had its GPUs."""
        return self.end_ns - self.start_ns


class JobList(msgspec.Struct, frozen=True):
    """All jobs of a list in order, and the numbers of lines without an ended GPU job."""

    jobs: tuple[Job, ...]
    without_gpus: int = 0
    never_started: int = 0
    unended: tuple[Job, ...] = ()
    """Jobs that had not ended when the list was made; their end is `FOREVER_NS`."""
    rejected: tuple[JobListError, ...] = ()
    """Lines that are not valid jobs."""
    cluster: str = ""
    """Cluster of all jobs, if the list names exactly one."""

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the jobs that had not ended."""
        return tuple(job.id for job in self.unended)


def job_list(every: Iterable[Job], without_gpus: int, never_started: int) -> JobList:
    """Build a list; jobs that end at `FOREVER_NS` have not ended."""
    ended: list[Job] = []
    unended: list[Job] = []
    for job in every:
        (ended if job.end_ns < FOREVER_NS else unended).append(job)
    return JobList(tuple(ended), without_gpus, never_started, tuple(unended))


def settled(jobs: JobList, until_ns: int) -> JobList:
    """The list with unended jobs that began before an instant, ended at that instant."""
    unended = tuple(job for job in jobs.unended if job.start_ns < until_ns)
    lasting = (msgspec.structs.replace(job, end_ns=until_ns) for job in unended)
    return msgspec.structs.replace(
        jobs, jobs=tuple(sorted((*jobs.jobs, *lasting))), unended=unended
    )


def within(jobs: JobList, start_ns: int, end_ns: int) -> JobList:
    """The list with only the jobs that have time in [start, end)."""
    found = tuple(job for job in jobs.jobs if job.start_ns < end_ns and job.end_ns > start_ns)
    return msgspec.structs.replace(jobs, jobs=found)


def clipped(jobs: JobList, start_ns: int, end_ns: int) -> JobList:
    """The list with jobs clipped to [start, end)."""
    found = (
        msgspec.structs.replace(
            job, start_ns=max(job.start_ns, start_ns), end_ns=min(job.end_ns, end_ns)
        )
        for job in jobs.jobs
    )
    return msgspec.structs.replace(jobs, jobs=tuple(sorted(found)))


def without_repetitions(
    told: Iterable[tuple[int, Job]], what: str = "line", bad: BadLines = RAISED
) -> tuple[Job, ...]:
    """The jobs in order, without duplicates; an ended job replaces its unended version.

    A line that contradicts an earlier one is bad.
    """
    found: dict[str, tuple[int, Job]] = {}
    for line, job in told:
        first, other = found.setdefault(job.claim, (line, job))
        ended, ran = sorted((job, other), key=lambda one: one.end_ns)
        if ran != ended and ran != msgspec.structs.replace(ended, end_ns=FOREVER_NS):
            reason = f"job {job.id} is told differently on {what} {first}"
            bad.add(JobListError(line, "", reason, what))
            continue
        found[job.claim] = (line if ended is job else first), ended
    return tuple(sorted(job for _, job in found.values()))


def pci_address(text: str) -> str | None:
    """A PCI address in capitals with an eight-digit domain; None if it is invalid."""
    address = text.upper()
    if not _ADDRESS.fullmatch(address):
        return None
    domain, _, rest = address.partition(":")
    return f"{domain.rjust(_DOMAIN_DIGITS, '0')}:{rest}"
