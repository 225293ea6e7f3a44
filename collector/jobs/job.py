"""What a job list tells, whichever scheduler it is of."""

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
"""No job starts after this (the year 2106) or lasts so long: its end fits into 63 bits of ns."""

MAX_GPUS_OF_NODE = 1024
"""GPUs of a job on one node, as many as the claims that may be in force there."""
MAX_GPUS = 1 << 16
"""GPUs of a job: a list that only counts them writes each of them into the ledger."""

_ADDRESS = re.compile(r"(?:[0-9A-F]{4}|[0-9A-F]{8}):[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]")
_DOMAIN_DIGITS = 8


class JobListError(ValueError):
    """A line is no job. The message names the line, counted from 1, and the field.

    A list that is no lines is counted in whatever it is a list of.
    """

    def __init__(self, place: int, field: str, reason: str, what: str = "line") -> None:
        """`field` is empty where the line as a whole is wrong."""
        self.place, self.field, self.reason, self.what = place, field, reason, what
        where = f"{what} {place}"
        super().__init__(f"{where}: {field}: {reason}" if field else f"{where}: {reason}")


class BadLines:
    """Lines of a list that are no jobs: raised at once, or collected while the rest is read.

    `now_ns` is the time of the import: a list has no job that starts or ends after it.
    """

    def __init__(self, *, collect: bool = False, now_ns: int = FOREVER_NS) -> None:
        self.found: list[JobListError] = []
        self.now_ns = now_ns
        self._collect = collect

    def add(self, error: JobListError) -> None:
        """Collect an error, or raise it where none may be."""
        if not self._collect:
            raise error
        self.found.append(error)


RAISED = BadLines()
"""Every bad line is raised."""


def future(instant_ns: int, now_ns: int) -> str:
    """Reason to reject an instant of a job after `now_ns`; empty for one that has passed."""
    if instant_ns <= now_ns:
        return ""
    return f"{spelled(instant_ns)}: expected a time not after now, {spelled(now_ns)}"


def excess(gpus: int, nodes: int) -> str:
    """Reason to reject a number of GPUs that so many nodes do not have; empty for a possible one.

    A job whose nodes are not named is taken as one on a single node.
    """
    most = min(max(nodes, 1) * MAX_GPUS_OF_NODE, MAX_GPUS)
    if gpus <= most:
        return ""
    return f"{gpus} GPUs, nodes {max(nodes, 1)}: expected at most {most} GPUs"


class Gpu(NamedTuple):
    """One GPU: its node and its PCI address, as `pci_address` makes it."""

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
        """How much of the GPU it is."""
        return self.high - self.low


WHOLE = Part(Fraction(0), Fraction(1))


class Unplaced(msgspec.Struct, frozen=True, order=True):
    """GPUs of a job that a list does not name: what they are is not guessed.

    `where` is the node or nodes in the scheduler's notation, empty where it told none.
    """

    where: str
    gpus: int
    reason: str
    model: str = ""
    share: Fraction = Fraction(1)
    """Part of each GPU."""

    @property
    def capacity(self) -> Fraction:
        """How many whole GPUs the time of all parts is."""
        return self.gpus * self.share


class Job(msgspec.Struct, frozen=True, order=True):
    """A job that had GPUs in [start, end). `tenant` is the account it is charged to.

    `user` is who ran it, empty where the list does not say.
    """

    start_ns: int
    id: str
    tenant: str
    user: str
    end_ns: int
    gpus: tuple[Gpu, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    model: str = ""
    """Model of its GPUs where the list names one."""
    parts: tuple[Part, ...] = ()
    """Part of each GPU, in their order; empty if it had whole GPUs."""

    @property
    def claim(self) -> str:
        """The id of its claim. A job that is requeued runs twice, and those are two claims."""
        return f"{self.id}@{self.start_ns // NS_PER_SECOND}"

    def part_of(self, gpu: Gpu) -> Part:
        """The part of one of its GPUs that it had."""
        return self.parts[self.gpus.index(gpu)] if self.parts else WHOLE

    @property
    def duration_ns(self) -> int:
        """How long it had its GPUs."""
        return self.end_ns - self.start_ns


class JobList(msgspec.Struct, frozen=True):
    """All jobs of a list in order, and how many of its lines are no job with GPUs that ended."""

    jobs: tuple[Job, ...]
    without_gpus: int = 0
    never_started: int = 0
    unended: tuple[Job, ...] = ()
    """The jobs that had not ended when the list was made: their end is the end of time."""
    rejected: tuple[JobListError, ...] = ()
    """Lines that are no jobs."""
    cluster: str = ""
    """Cluster that all jobs are of, where the list names exactly one."""

    @property
    def running(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(job.id for job in self.unended)


def job_list(every: Iterable[Job], without_gpus: int, never_started: int) -> JobList:
    """A list of jobs, of which those that last for ever have not ended."""
    ended: list[Job] = []
    unended: list[Job] = []
    for job in every:
        (ended if job.end_ns < FOREVER_NS else unended).append(job)
    return JobList(tuple(ended), without_gpus, never_started, tuple(unended))


def settled(jobs: JobList, until_ns: int) -> JobList:
    """The list with the jobs that have not ended, and began before an instant, until then."""
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
    """The same with only the time of jobs in [start, end)."""
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
    """The jobs in order, each once; one that has ended counts before the same while it ran.

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
    """A PCI address with eight digits of domain and in capitals; None where it is none."""
    address = text.upper()
    if not _ADDRESS.fullmatch(address):
        return None
    domain, _, rest = address.partition(":")
    return f"{domain.rjust(_DOMAIN_DIGITS, '0')}:{rest}"
