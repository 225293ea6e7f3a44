"""Job lists of any scheduler: jobs, GPUs of jobs and their models, tenants of accounts.

Also the parser of consecutive JSON values, on separate lines or spanning several, that the list
formats share.

Models of GPUs, by GPU or by node, come from a CSV file with the columns node, gpu, model. `gpu` is
the PCI address, or empty for all GPUs of the node; `model` is the name used in prices. A GPU's own
row takes precedence over that of its node. Tenants of a scheduler's accounts and namespaces come
from the tenants file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

import msgspec

from railscope.timestamps import FOREVER_NS, SECOND_NS, format_timestamp
from railscope.untrusted_text import ShapeError
from railscope_collector.files.tenancy_files import TenantMappings, unmapped_tenant
from railscope_collector.files.watched_file import FileError, read_rows
from railscope_collector.jobs import JobsError

LATEST_SECONDS = 1 << 32
"""Limit of start and duration of a job (the year 2106): its end fits into 63 bits of ns."""

MAX_GPUS_OF_NODE = 1024
"""GPUs of a job on one node, the same limit as for claims in force there."""
MAX_GPUS = 1 << 16
"""GPUs of a job: a list that only counts them writes each of them into the ledger."""

_ADDRESS = re.compile(r"(?:[0-9A-F]{4}|[0-9A-F]{8}):[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]")
_DOMAIN_DIGITS = 8


class JobListError(JobsError, ValueError):
    """A line is not a valid job. The message names the line, counted from 1, and the field.

    In a list that does not consist of lines, `noun` names the unit that is counted.
    """

    def __init__(self, place: int, field: str, reason: str, noun: str = "line") -> None:
        """`field` is empty if the line as a whole is invalid."""
        self.place, self.field, self.reason, self.noun = place, field, reason, noun
        location = f"{noun} {place}"
        super().__init__(f"{location}: {field}: {reason}" if field else f"{location}: {reason}")


def reject(field: str, reason: str) -> NoReturn:
    """Raise ShapeError: the line is not a valid job; `field` is empty for the line as a whole."""
    raise ShapeError(field, reason)


class BadLines:
    """Invalid lines of a list: raised at once, or collected while the rest is read.

    `now_ns` is the time of the import: a job that starts or ends after it is invalid.
    """

    def __init__(self, *, collect: bool = False, now_ns: int = FOREVER_NS) -> None:
        self.errors: list[JobListError] = []
        self.now_ns = now_ns
        self._collect = collect

    def add(self, error: JobListError) -> None:
        """Collect an error, or raise it if errors are not collected."""
        if not self._collect:
            raise error
        self.errors.append(error)

    def check_past(self, field: str, timestamp_ns: int, prefix: str = "") -> None:
        """Check that an instant of a job is not later than now. Raises ShapeError."""
        if timestamp_ns > self.now_ns:
            reason = (
                f"{prefix}{format_timestamp(timestamp_ns)}: expected a time not after now, "
                f"{format_timestamp(self.now_ns)}"
            )
            reject(field, reason)


RAISE_BAD_LINES = BadLines()
"""Raises on every bad line."""


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

    @property
    def claim(self) -> str:
        """The id of its claim. A requeued job runs twice, and those are two claims."""
        return f"{self.id}@{self.start_ns // SECOND_NS}"

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
    """Jobs that had not ended when the list was made; their end is `FOREVER_NS`."""
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
    """The list with unended jobs that began before an instant, ended at that instant."""
    unended = tuple(job for job in jobs.unended if job.start_ns < until_ns)
    lasting = (msgspec.structs.replace(job, end_ns=until_ns) for job in unended)
    return msgspec.structs.replace(
        jobs, jobs=tuple(sorted((*jobs.jobs, *lasting))), unended=unended
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

    @contextmanager
    def line(self, number: int) -> Iterator[None]:
        """Context manager of the reading of one line, which is bad if it raises ShapeError."""
        self._number = number
        try:
            yield
        except ShapeError as error:
            self.bad.add(JobListError(number, error.field, error.reason, self.noun))

    def add(self, job: ListedJob, *, started: bool = True) -> None:
        """Add the job of the current line; an ended job replaces its unended version.

        Raises ShapeError if it contradicts an earlier line.
        """
        if not job.gpus and not job.unplaced:
            self.without_gpus += 1
            return
        if not started:
            self.never_started += 1
            return
        first, other = self._jobs.get(job.claim, (self._number, job))
        ended, ran = sorted((job, other), key=lambda run: run.end_ns)
        if ran != ended and ran != msgspec.structs.replace(ended, end_ns=FOREVER_NS):
            reason = f"job {job.id} differs from {self.noun} {first}"
            reject("", reason)
        self._jobs[job.claim] = (self._number if ended is job else first), ended

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


def json_documents(text: str, bad: BadLines) -> Iterator[tuple[int, Any]]:
    """The values of a text, counted from 1.

    Invalid JSON is a bad line; parsing continues at the next line that begins with a brace.
    """
    decoder = json.JSONDecoder()
    offset, number = 0, 0
    while offset < len(text):
        if text[offset].isspace():
            offset += 1
            continue
        number += 1
        try:
            value, offset = decoder.raw_decode(text, offset)
        except (ValueError, RecursionError) as error:
            bad.add(JobListError(number, "", f"invalid JSON: {error}", "document"))
            following = text.find("\n{", offset + 1)
            offset = following if following >= 0 else len(text)
            continue
        yield number, value


MODELS_HEADER = ("node", "gpu", "model")


@dataclass(frozen=True, slots=True)
class GpuModels:
    """Models by GPU, and by node; `default` if neither these nor a job list name one."""

    by_gpu: dict[ListedGpu, str] = field(default_factory=dict)
    by_node: dict[str, str] = field(default_factory=dict)
    default: str = ""

    def model(self, gpu: ListedGpu, listed: str) -> str:
        """The model of a GPU; `listed` is its model in the list, empty without one."""
        return self.by_gpu.get(gpu) or self.unnamed_model(gpu.node, listed)

    def unnamed_model(self, node: str, listed: str) -> str:
        """The model of an unnamed GPU of a node."""
        return self.by_node.get(node) or listed or self.default


def parse_models(text: str, default: str = "") -> GpuModels:
    """Parse models from the text of a file. Raises FileError that names the line."""
    models = GpuModels(default=default)
    for number, (node, gpu, model) in read_rows(text, MODELS_HEADER):
        location = f"line {number}"
        if not node or not model:
            message = (
                f"invalid GPU model: {location}: node {node!r}, model {model!r}: expected both"
            )
            raise FileError(message)
        if gpu:
            key = ListedGpu(node, pci_address(gpu) or gpu)
            before = models.by_gpu.setdefault(key, model)
        else:
            before = models.by_node.setdefault(node, model)
        if before != model:
            message = (
                f"conflicting GPU models: {location}: {model!r} of {node} {gpu}".rstrip()
                + f": expected {before!r} as in an earlier line"
            )
            raise FileError(message)
    return models


TENANT_SOURCES = {
    "clustercockpit": "slurm",
    "sacct": "slurm",
    "kubernetes": "kubernetes",
    "alibaba": "alibaba",
}
"""Source of claims of a format's jobs."""


def map_tenants(jobs: Iterable[ListedJob], source: str, tenants: TenantMappings) -> list[ListedJob]:
    """The jobs with the tenants of their accounts, split where the tenant of an account changes.

    An account without a row keeps its name.
    """
    mapped: list[ListedJob] = []
    for job in jobs:
        default = unmapped_tenant(source, job.tenant)
        pieces = tenants.timeline(source, job.tenant, job.start_ns, job.end_ns)
        if not pieces:
            mapped.append(job)  # it has no duration
        for start_ns, end_ns, tenant in pieces:
            name = job.tenant if tenant == default else tenant
            part = msgspec.structs.replace(job, start_ns=start_ns, end_ns=end_ns, tenant=name)
            mapped.append(part)
    return sorted(mapped)


def map_list_tenants(jobs: JobList, source: str, tenants: TenantMappings) -> JobList:
    """A list with the tenants of its accounts."""
    mapped_jobs = map_tenants([*jobs.jobs, *jobs.unended], source, tenants)
    mapped = build_job_list(mapped_jobs, jobs.without_gpus, jobs.never_started)
    return msgspec.structs.replace(jobs, jobs=mapped.jobs, unended=mapped.unended)


def account_name(tenant: str) -> str:
    """A tenant of the ledger as named in a list: `slurm:physics` is an account without a row."""
    source, colon, owner = tenant.partition(":")
    return owner if colon and source in TENANT_SOURCES.values() else tenant
