"""Running jobs and the GPUs that they hold, updated GPU by GPU.

The tenant follows from metering: the claim with the highest authority counts. If that claim names
no job (an administrator assigned a node to a tenant), the job is the one that a scheduler reports
there; without such a report it is named after the assigned resource: the node, or the UUID of the
GPU.

Each GPU that is held has a position, which is its index in the arrays of readings. Returned jobs
are not changed afterwards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.claim_terms import ClaimAuthority
from railscope.settings import SettingsError
from railscope_collector.metering import holders, tiling
from railscope_collector.metering.evidence import Evidence, MeteredClaim
from railscope_collector.metering.units import Tiling, Units, exact

KUBERNETES = "kubernetes"
SCHEDULERS = frozenset({"slurm", KUBERNETES})
_BY_HAND = frozenset({"command", "file"})
"""Sources with workloads that may name a scheduler's: `slurm:123` is Slurm's 123."""
NO_PODS = re.compile(r"(?!)")
"""A pattern that joins no pods."""


class JobKey(NamedTuple):
    """Identity of a job across nodes."""

    tenant: str
    source: str
    workload: str


class JobHolding(NamedTuple):
    """Share of a GPU's compute (of 840 units) that a job holds in a node, since a timestamp."""

    job: JobKey
    node: str
    units: Units
    start_ns: int


def find_holdings(
    evidence: Evidence, entries: Iterable[tiling.TilingEntry], timestamp_ns: int
) -> tuple[JobHolding, ...]:
    """Return the holdings of a GPU; `entries` are those of the timestamp.

    A claim counts from its start, even if the GPU was first reported later.
    """
    present = [
        claim
        for start_ns, end_ns, claim in holders.claims_in_force(evidence)
        if start_ns <= timestamp_ns < end_ns
    ]
    by_id = {claim.id: claim for claim in present}
    starts = {claim.id: claim.start_ns for claim in evidence.claims}
    named = [
        claim for claim in present if claim.workload and claim.authority > ClaimAuthority.PROCESS
    ]
    holdings_by_job: dict[JobKey, JobHolding] = {}
    for entry in entries:
        claim = by_id.get(entry.claim)
        if (
            entry.tiling is not Tiling.COMPUTE
            or entry.state not in tiling.HELD_STATES
            or claim is None
        ):
            continue
        for low, high, naming in _find_named_claims(entry, claim, named):
            start_ns = max(starts[naming.id], starts[claim.id])
            job = _job(evidence.gpu, entry.tenant, naming)
            before = holdings_by_job.get(job, JobHolding(job, entry.node, 0, start_ns))
            units, start_ns = exact(before.units + high - low), min(before.start_ns, start_ns)
            holdings_by_job[job] = JobHolding(job, entry.node, units, start_ns)
    return tuple(holdings_by_job[job] for job in sorted(holdings_by_job))


def _find_named_claims(
    entry: tiling.TilingEntry, claim: MeteredClaim, named: Iterable[MeteredClaim]
) -> Iterator[tuple[Units, Units, MeteredClaim]]:
    """Yield the slots of an entry, with the claims that name the job on them."""
    if claim.workload:
        yield entry.slot_lo, entry.slot_hi, claim
        return
    cuts = {entry.slot_lo, entry.slot_hi}
    cuts |= {e for c in named for e in c.compute if entry.slot_lo < e < entry.slot_hi}
    for low, high in pairwise(sorted(cuts)):
        within = [c for c in named if c.compute.low <= low and high <= c.compute.high]
        yield low, high, max(within, key=holders.claim_order, default=claim)


def _job(gpu: str, tenant: str, claim: MeteredClaim) -> JobKey:
    source, workload = claim.source, claim.workload or claim.node or gpu
    scheduler, colon, name = workload.partition(":")
    if source in _BY_HAND and colon and scheduler in SCHEDULERS:
        source, workload = scheduler, name
    return JobKey(tenant, source, workload)


def job_of_pod(key: JobKey, pods: re.Pattern[str]) -> JobKey:
    """Return the job of a pod: names of pods of one job differ only outside the group `job`. Other jobs are returned as they are.

    The kubelet names pods and not their owners; controllers derive the names of pods from that of the job
    (kubeflow/trainer v1: pkg/core/job.go, GenGeneralName; kubernetes: pkg/controller/job/indexed_job_utils.go,
    podGenerateNameWithIndex, and the suffix of staging/src/k8s.io/apimachinery/pkg/util/rand/rand.go).
    """
    namespace, slash, pod = key.workload.partition("/")
    match = pods.fullmatch(pod) if slash and key.source == KUBERNETES else None
    return key._replace(workload=f"{namespace}/{match['job']}") if match else key


def join_pod_holdings(
    gpu_holdings: tuple[JobHolding, ...], pods: re.Pattern[str]
) -> tuple[JobHolding, ...]:
    """Join holdings of pods of one job."""
    jobs: dict[JobKey, JobHolding] = {}
    for holding in gpu_holdings:
        job = job_of_pod(holding.job, pods)
        before = jobs.get(job, holding._replace(units=0))
        start_ns = min(before.start_ns, holding.start_ns)
        jobs[job] = JobHolding(job, holding.node, before.units + holding.units, start_ns)
    return tuple(jobs[job] for job in sorted(jobs))


def compile_pattern(setting: str) -> re.Pattern[str]:
    """Compile the pattern of a setting. Raises SettingsError if it is invalid, or has no group `job`."""
    try:
        pattern = re.compile(setting) if setting else NO_PODS
    except re.error as error:
        message = f"invalid pod_job_pattern: expected a regular expression: {error}"
        raise SettingsError(message) from error
    if setting and "job" not in pattern.groupindex:
        message = "invalid pod_job_pattern: expected a group (?P<job>...)"
        raise SettingsError(message)
    return pattern


NO_JOB = -1
NO_POSITION = -1
_FIRST_POSITIONS = 64
Numbers: TypeAlias = npt.NDArray[np.int32]


class JobGpu(NamedTuple):
    """A GPU of a job: its position, and the job's holding of it."""

    gpu: str
    position: int
    holding: JobHolding
    is_alone: bool
    """True if no other job holds a part of the GPU."""


class RunningJob(NamedTuple):
    """A job and its GPUs."""

    key: JobKey
    number: int
    places: tuple[JobGpu, ...]

    @property
    def start_ns(self) -> int:
        """Start of the first of its claims."""
        return min(place.holding.start_ns for place in self.places)


MAX_JOBS_OF_A_NODE = 256


def fair_selection(jobs: Sequence[RunningJob], max_jobs: int) -> list[RunningJob]:
    """Return the jobs to report if there are too many, in their order.

    Nodes take turns: first one job of each, then a second one. So a node that invents thousands of
    jobs hides none of another node, and never exceeds its own bound.
    """
    taken: Counter[str] = Counter()
    ranks = []
    for job in jobs:
        nodes = {place.holding.node for place in job.places}
        ranks.append(min((taken[node] for node in nodes), default=0))
        taken.update(nodes)
    within = [index for index, rank in enumerate(ranks) if rank < MAX_JOBS_OF_A_NODE]
    chosen = sorted(within, key=ranks.__getitem__)[:max_jobs]
    return [jobs[index] for index in sorted(chosen)]


@dataclass(slots=True)
class _OpenJob:
    """A job with a changing set of GPUs."""

    number: int
    places: dict[str, JobGpu] = field(default_factory=dict)
    running: RunningJob | None = None


@dataclass(slots=True)
class JobRoster:
    """Jobs; positions by node and GPU; for each position the number of the job that holds the GPU exclusively."""

    positions: dict[str, Mapping[str, int]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    """Nodes with GPUs that changed holders since a reader last emptied this set."""
    job_of_position: Numbers = field(
        default_factory=lambda: np.full(_FIRST_POSITIONS, NO_JOB, np.int32)
    )
    numbers: int = 0
    """Exceeds every number of a job."""
    _jobs: dict[JobKey, _OpenJob] = field(default_factory=dict)
    _holdings: dict[str, tuple[int, tuple[JobHolding, ...]]] = field(default_factory=dict)
    _free_positions: list[int] = field(default_factory=lambda: list(range(_FIRST_POSITIONS)))
    _free_numbers: list[int] = field(default_factory=list)

    def jobs(self) -> list[RunningJob]:
        """Return all jobs, in the order of their first appearance."""
        for key, job in self._jobs.items():
            if job.running is None:
                job.running = RunningJob(key, job.number, tuple(job.places.values()))
        return [job.running for job in self._jobs.values() if job.running]

    def set_holdings(self, gpu: str, holdings: Sequence[JobHolding]) -> None:
        """Set the current holdings of a GPU: each job once."""
        position, before = self._holdings.get(gpu, (NO_POSITION, ()))
        now = tuple(holdings)
        if now == before:
            return
        position = self._take_position() if position == NO_POSITION else position
        alone = len(now) == 1
        for holding in now:
            self._enter(JobGpu(gpu, position, holding, alone))
        for job in {holding.job for holding in before} - {holding.job for holding in now}:
            self._leave(gpu, job)
        nodes = before[0].node if before else "", now[0].node if now else ""
        self._move(gpu, position, *nodes)
        self.touched |= {*nodes} - {""}
        self._holdings[gpu] = position, now
        self.job_of_position[position] = self._jobs[now[0].job].number if alone else NO_JOB
        if not now:
            del self._holdings[gpu]
            self._free_positions.append(position)

    def _enter(self, place: JobGpu) -> None:
        key = place.holding.job
        if key not in self._jobs:
            self._jobs[key] = _OpenJob(self._take_number())
        self._jobs[key].places[place.gpu] = place
        self._jobs[key].running = None

    def _leave(self, gpu: str, key: JobKey) -> None:
        job = self._jobs[key]
        del job.places[gpu]
        job.running = None
        if not job.places:
            del self._jobs[key]
            self._free_numbers.append(job.number)

    def _move(self, gpu: str, position: int, before: str, now: str) -> None:
        """Move a position between nodes; empty for none."""
        if before == now:
            return
        if before:
            left = {name: taken for name, taken in self.positions[before].items() if name != gpu}
            self.positions[before] = left
            if not left:
                del self.positions[before]
        if now:
            self.positions[now] = {**self.positions.get(now, {}), gpu: position}

    def _take_number(self) -> int:
        if self._free_numbers:
            return self._free_numbers.pop()
        self.numbers += 1
        return self.numbers - 1

    def _take_position(self) -> int:
        if not self._free_positions:
            size = len(self.job_of_position)
            self.job_of_position = np.concatenate(
                [self.job_of_position, np.full(size, NO_JOB, np.int32)]
            )
            self._free_positions.extend(range(size, 2 * size))
        return self._free_positions.pop()
