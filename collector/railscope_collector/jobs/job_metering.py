"""Metering of jobs without samples.

Each GPU of a job has a claim. All held time is inferred. A GPU
is assumed present from the start of the first job that names it to the end of the last. Of two jobs
on one GPU the later holds it while it lasts, in order of start and claim id. Times are exact and
computed with integers only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

import msgspec

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.jobs.job_list import ListedGpu, ListedGpuPart, ListedJob
from railscope_collector.metering import evidence, gpu_timeline, slot_state, timeline, units


class MeteredJobs(msgspec.Struct, frozen=True):
    """GPU time in GPU-nanoseconds: whole GPUs times nanoseconds.

    `unplaced_ns` is the time of tenants on GPUs that the list does not name. It is in no other sum,
    as it cannot be divided among the jobs of a GPU.
    """

    gpus: int
    capacity_ns: int
    free_ns: Fraction
    tenants: dict[str, Fraction]
    unplaced_ns: dict[str, Fraction]

    @property
    def held_ns(self) -> Fraction:
        """Time of all tenants on named GPUs."""
        return sum(self.tenants.values(), Fraction(0))

    @property
    def balances(self) -> bool:
        """True if held and free time add up to capacity times time."""
        return self.held_ns + self.free_ns == self.capacity_ns


def job_timelines(
    jobs: Iterable[ListedJob], period: units.Period | None = None
) -> dict[ListedGpu, gpu_timeline.GpuTimeline]:
    """Timeline of each GPU that the jobs name, in order of GPU.

    A GPU is present throughout a period, or without one from its first job to its last.
    """
    by_gpu: dict[ListedGpu, list[ListedJob]] = defaultdict(list)
    for job in jobs:
        for gpu in job.gpus:
            by_gpu[gpu].append(job)
    return {gpu: _timeline(gpu, by_gpu[gpu], period) for gpu in sorted(by_gpu)}


def _timeline(
    gpu: ListedGpu, jobs: Sequence[ListedJob], period: units.Period | None
) -> gpu_timeline.GpuTimeline:
    first_ns, last_ns = min(job.start_ns for job in jobs), max(job.end_ns for job in jobs)
    if period is not None:
        first_ns, last_ns = period.start_ns, period.end_ns
    claims = [
        claim_since(
            job.run_start_ns,
            evidence.MeteredClaim(
                ClaimAuthority.SCHEDULER_LIST,
                job.start_ns,
                job.claim,
                job.tenant,
                job.end_ns,
                job.id,
                gpu.node,
                part_slots(job.part_on(gpu)),
            ),
        )
        for job in jobs
    ]
    return claims_timeline(str(gpu), timeline.TimePiece(first_ns, last_ns, gpu.node), claims)


def claim_since(run_start_ns: int, part: evidence.MeteredClaim) -> evidence.MeteredClaim:
    """The claim of a part of a run, with the start of the run, which decides its precedence and price."""
    if run_start_ns >= part.start_ns:
        return part
    return msgspec.structs.replace(part, start_ns=run_start_ns, from_ns=part.start_ns)


def claims_timeline(
    gpu: str,
    stay: timeline.TimePiece[str],
    claims: Sequence[evidence.MeteredClaim],
    model: str = "",
    *,
    as_observed: bool = False,
) -> gpu_timeline.GpuTimeline:
    """Timeline of a GPU by claims of job lists alone; `as_observed` if these count as observation."""
    ends: dict[str, int] = {}
    for claim in claims:
        ends[claim.id] = min(claim.end_ns, ends.get(claim.id, claim.end_ns))
    ended = [msgspec.structs.replace(claim, end_ns=ends[claim.id]) for claim in claims]
    reported = timeline.resolve_overlaps(
        timeline.TimePiece(claim.begins_ns, claim.end_ns, 0) for claim in claims
    )
    never = timeline.TimePiece(-FOREVER_NS, FOREVER_NS, FOREVER_NS)
    spans = [(piece.start_ns, piece.end_ns) for piece in reported] if as_observed else []
    unobserved = timeline.subtract_spans(never, spans)
    return gpu_timeline.GpuTimeline(
        gpu,
        [stay],
        gpu_timeline.place_claims(ended, [stay]),
        sorted([*unobserved, *(reported if as_observed else ())]),
        skus=[timeline.TimePiece(0, FOREVER_NS, model)] if model else [],
    )


def part_slots(part: ListedGpuPart) -> units.CapacityRange:
    """The slots of a part, exactly."""
    return units.CapacityRange(
        units.exact(part.low * GPU_CAPACITY), units.exact(part.high * GPU_CAPACITY)
    )


def meter_jobs(jobs: Sequence[ListedJob], period: units.Period | None = None) -> MeteredJobs:
    """The GPU time of every tenant, within a period if there is one.

    Jobs have their own start, also before the period: of two jobs on one GPU the later one holds it.
    """
    timelines = job_timelines(jobs, period)
    tenants = {job.tenant: Fraction(0) for job in jobs if job.gpus}
    unplaced: dict[str, Fraction] = defaultdict(Fraction)
    capacity = 0
    free = Fraction(0)
    for found in timelines.values():
        (stay,) = found.service
        capacity += stay.end_ns - stay.start_ns
        for piece in found.pieces(stay.start_ns, stay.end_ns):
            for part in piece.parts:
                quantity = Fraction(part.size) * (piece.end_ns - piece.start_ns)
                if part.state is slot_state.SlotState.INFERRED:
                    tenants[part.tenant] += quantity
                else:
                    free += quantity
    for job in jobs:
        if job.unplaced:
            unplaced[job.tenant] += _duration_ns(job, period) * sum(
                (part.capacity for part in job.unplaced), Fraction(0)
            )
    return MeteredJobs(
        gpus=len(timelines),
        capacity_ns=capacity,
        free_ns=_gpu_ns(free),
        tenants={tenant: _gpu_ns(quantity) for tenant, quantity in sorted(tenants.items())},
        unplaced_ns=dict(sorted(unplaced.items())),
    )


def _duration_ns(job: ListedJob, period: units.Period | None) -> int:
    """Time for which a job had its GPUs, within a period."""
    if period is None:
        return job.duration_ns
    return max(min(job.end_ns, period.end_ns) - max(job.start_ns, period.start_ns), 0)


def _gpu_ns(quantity: Fraction) -> Fraction:
    """Capacity times time as whole GPUs times nanoseconds."""
    return quantity / GPU_CAPACITY
