"""Job lists of any scheduler: jobs and their GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import msgspec

from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope.untrusted_text import ShapeError
from railscope_collector.jobs.bad_lines import BadLines, JobListError, reject

LATEST_SECONDS = 1 << 32
"""Limit of start and duration of a job (the year 2106): its end fits into 63 bits of ns."""

MAX_GPUS_OF_NODE = 1024
"""GPUs of a job on one node, the same limit as for claims in force there."""
MAX_GPUS = 1 << 16
"""GPUs of a job: a list that only counts them writes each of them into the ledger."""

_ADDRESS = re.compile(r"(?:[0-9A-F]{4}|[0-9A-F]{8}):[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]")
_DOMAIN_DIGITS = 8
"""NVML returns the domain with eight digits (`00000000:3B:00.0`), sysfs with four."""


def check_gpu_count(field: str, gpus: int, nodes: int) -> None:
    """Check a number of GPUs against the limit of so many nodes. Raises ShapeError.

    A job without named nodes is treated as one on a single node.
    """
    limit = min(max(nodes, 1) * MAX_GPUS_OF_NODE, MAX_GPUS)
    if gpus > limit:
        place = f"{nodes} nodes" if nodes > 1 else "1 node"
        reason = f"{gpus} GPUs on {place}: expected at most {limit}"
        reject(field, reason)


class ListedGpu(NamedTuple):
    """One GPU: its node and its PCI address in the form of `pci_address`."""

    node: str
    address: str

    def __str__(self) -> str:
        """`node/address`."""
        return f"{self.node}/{self.address}"


class ListedGpuPart(NamedTuple):
    """A part [low, high) of a GPU, as fractions of it."""

    low: Fraction
    high: Fraction

    @property
    def share(self) -> Fraction:
        """Size as a fraction of the GPU."""
        return self.high - self.low


WHOLE_GPU_PART = ListedGpuPart(Fraction(0), Fraction(1))


class UnnamedGpus(msgspec.Struct, frozen=True, order=True):
    """GPUs of a job that a list does not name; their identity is not guessed.

    `node` is the node or nodes in the scheduler's notation, empty if there is none.
    """

    node: str = msgspec.field(name="where")
    gpus: int
    reason: str
    model: str = ""
    share: Fraction = Fraction(1)
    """Part of each GPU."""

    @property
    def capacity(self) -> Fraction:
        """Total of all parts in whole GPUs."""
        return self.gpus * self.share


class ListedJob(msgspec.Struct, frozen=True, order=True):
    """A job that had GPUs in [start, end). `tenant` is the account it is charged to.

    `user` is the user that ran it, empty if the list does not contain it.
    """

    start_ns: int
    id: str
    tenant: str
    user: str
    end_ns: int
    gpus: tuple[ListedGpu, ...] = ()
    unplaced: tuple[UnnamedGpus, ...] = ()
    model: str = ""
    """Model of its GPUs, if the list names one."""
    parts: tuple[ListedGpuPart, ...] = ()
    """Part of each GPU, in their order; empty if it had whole GPUs."""
    run_start_ns: int = FOREVER_NS
    """Start of its run, if this is a later part of the run, for another tenant."""

    @property
    def claim(self) -> str:
        """The id of its claim. A requeued job runs twice, and those are two claims."""
        return f"{self.id}@{self.start_ns // SECOND_NS}"

    @property
    def run(self) -> tuple[str, int]:
        """Id and start of its run, the same for all of its parts."""
        return self.id, min(self.start_ns, self.run_start_ns)

    def part_on(self, gpu: ListedGpu) -> ListedGpuPart:
        """The part of one of its GPUs that it had."""
        return self.parts[self.gpus.index(gpu)] if self.parts else WHOLE_GPU_PART

    @property
    def duration_ns(self) -> int:
        """Time for which it had its GPUs."""
        return self.end_ns - self.start_ns


class JobList(msgspec.Struct, frozen=True):
    """All jobs of a list in order, and the numbers of lines without an ended GPU job."""

    jobs: tuple[ListedJob, ...]
    without_gpus: int = 0
    never_started: int = 0
    unended: tuple[ListedJob, ...] = ()
    """Jobs that had not ended when the list was made; their end is `FOREVER_NS`, or that of a part for one tenant."""
    rejected: tuple[JobListError, ...] = ()
    """Lines that are not valid jobs."""
    cluster: str = ""
    """Cluster of all jobs, if the list names exactly one."""

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the jobs that had not ended."""
        return tuple(job.id for job in self.unended)


def build_job_list(jobs: Iterable[ListedJob], without_gpus: int, never_started: int) -> JobList:
    """Build a list; jobs that end at `FOREVER_NS` have not ended."""
    ended: list[ListedJob] = []
    unended: list[ListedJob] = []
    for job in jobs:
        (ended if job.end_ns < FOREVER_NS else unended).append(job)
    return JobList(tuple(ended), without_gpus, never_started, tuple(unended))


def end_running_jobs(jobs: JobList, until_ns: int) -> JobList:
    """The list with unended jobs that began before an instant, ended at that instant.

    `unended` then has the last part of each that began before the instant: it is unfinished if it ends later.
    """
    running = {job.run for job in jobs.unended}
    parts = [
        job
        for job in sorted((*jobs.jobs, *jobs.unended))
        if job.run in running and job.start_ns < until_ns
    ]
    ended = [job for job in jobs.jobs if job.run not in running]
    # A tenant of a later time must not make a running job longer.
    cut = [msgspec.structs.replace(job, end_ns=min(job.end_ns, until_ns)) for job in parts]
    return msgspec.structs.replace(
        jobs,
        jobs=tuple(sorted([*ended, *cut])),
        unended=tuple({job.run: job for job in parts}.values()),
    )


def jobs_within(jobs: JobList, start_ns: int, end_ns: int) -> JobList:
    """The list with only the jobs that have time in [start, end)."""
    found = tuple(job for job in jobs.jobs if job.start_ns < end_ns and job.end_ns > start_ns)
    return msgspec.structs.replace(jobs, jobs=found)


def clip_jobs(jobs: JobList, start_ns: int, end_ns: int) -> JobList:
    """The list with jobs clipped to [start, end)."""
    clipped = (
        msgspec.structs.replace(
            job, start_ns=max(job.start_ns, start_ns), end_ns=min(job.end_ns, end_ns)
        )
        for job in jobs.jobs
    )
    return msgspec.structs.replace(jobs, jobs=tuple(sorted(clipped)))


@dataclass(slots=True)
class JobListBuilder:
    """A list while its lines are read; `what` is the unit that is counted."""

    bad: BadLines
    noun: str = "line"
    without_gpus: int = 0
    never_started: int = 0
    _number: int = 0
    _jobs: dict[str, tuple[int, ListedJob]] = field(default_factory=dict)
    _cluster: tuple[int, str] | None = None
    """Cluster of the jobs, with the first line that names it."""

    @contextmanager
    def line(self, number: int, name: str = "") -> Iterator[None]:
        """Context manager of the reading of one line, which is bad if it raises ShapeError."""
        self._number = number
        try:
            yield
        except ShapeError as error:
            self.bad.add(JobListError(number, error.field, error.reason, self.noun, name))

    def add(self, job: ListedJob, *, started: bool = True, cluster: str = "") -> None:
        """Add the job of the current line; an ended job replaces its unended version.

        Raises ShapeError if it contradicts an earlier line, and JobListError for a second cluster.
        """
        if not job.gpus and not job.unplaced:
            self.without_gpus += 1
            return
        if not started:
            self.never_started += 1
            return
        if cluster:
            self._check_cluster(cluster)
        first, other = self._jobs.get(job.claim, (self._number, job))
        # A list may contain a job twice: as running, and later as ended.
        ended, ran = sorted((job, other), key=lambda run: run.end_ns)
        if ran != ended and ran != msgspec.structs.replace(ended, end_ns=FOREVER_NS):
            reason = f"job {job.id} differs from {self.noun} {first}"
            reject("", reason)
        self._jobs[job.claim] = (self._number if ended is job else first), ended

    def _check_cluster(self, cluster: str) -> None:
        """Raise JobListError for the second cluster of a list: it is no bad line, but a list of its own.

        Ids of jobs and names of nodes are unique within a cluster only.
        """
        first, other = self._cluster = self._cluster or (self._number, cluster)
        if cluster != other:
            reason = (
                f"{cluster!r}: expected {other!r}, the cluster of {self.noun} {first}; fix: import "
                "a list of each cluster, with a --source of its own"
            )
            raise JobListError(self._number, "cluster", reason, self.noun)

    def build(self, cluster: str = "") -> JobList:
        """The list: each job once, in order."""
        jobs = sorted(job for _, job in self._jobs.values())
        built = build_job_list(jobs, self.without_gpus, self.never_started)
        return msgspec.structs.replace(built, rejected=tuple(self.bad.errors), cluster=cluster)


def pci_address(text: str) -> str | None:
    """A PCI address in capitals with an eight-digit domain; None if it is invalid."""
    address = text.upper()
    if not _ADDRESS.fullmatch(address):
        return None
    domain, _, rest = address.partition(":")
    return f"{domain.rjust(_DOMAIN_DIGITS, '0')}:{rest}"
