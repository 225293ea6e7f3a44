"""Metering of jobs without samples: a claim for each GPU of a job.

All held time is inferred, with the scheduler as its witness. A GPU is assumed present from the
start of the first job that names it to the end of the last. Of two jobs on one GPU the later holds
it while it lasts, in order of start and claim id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import msgspec

from collector.jobs.job import Gpu, Job, Part
from collector.metering.evidence import Claim, Evidence, Level, Sighting, Stay, Witness
from collector.metering.instants import Period
from collector.metering.overlaps import Overlap, OverlapKind, overlaps
from collector.metering.tiling import Entry, GpuTimeline, State
from collector.metering.units import GPU_CAPACITY, Slots, Tiling, exact


class Clash(NamedTuple):
    """Overlap of two jobs on one GPU."""

    gpu: Gpu
    conflict: Overlap


class MeteredJobs(msgspec.Struct, frozen=True):
    """GPU time in GPU-nanoseconds: whole GPUs times nanoseconds.

    `unplaced_ns` is the time of tenants on GPUs that the list does not name. It is in no other sum,
    as overlaps with other jobs cannot be detected.
    """

    gpus: int
    capacity_ns: int
    free_ns: Fraction
    tenants: dict[str, Fraction]
    unplaced_ns: dict[str, Fraction]
    clashes: tuple[Clash, ...]

    @property
    def held_ns(self) -> Fraction:
        """Time of all tenants on named GPUs."""
        return sum(self.tenants.values(), Fraction(0))

    @property
    def balances(self) -> bool:
        """True if held and free time add up to capacity times time."""
        return self.held_ns + self.free_ns == self.capacity_ns


def evidence(jobs: Iterable[Job], period: Period | None = None) -> dict[Gpu, Evidence]:
    """Evidence of each GPU that the jobs name, in order of GPU.

    A GPU is present throughout a period, or without one from its first job to its last.
    """
    by_gpu: dict[Gpu, list[Job]] = defaultdict(list)
    for job in jobs:
        for gpu in job.gpus:
            by_gpu[gpu].append(job)
    return {gpu: _evidence(gpu, by_gpu[gpu], period) for gpu in sorted(by_gpu)}


def _evidence(gpu: Gpu, jobs: Sequence[Job], period: Period | None) -> Evidence:
    first_ns, last_ns = min(job.start_ns for job in jobs), max(job.end_ns for job in jobs)
    if period is not None:
        first_ns, last_ns = period.start_ns, period.end_ns
    return Evidence(
        str(gpu),
        stays=(Stay(first_ns, gpu.node, last_ns),),
        claims=tuple(
            Claim(
                Level.SCHEDULER_LIST, job.start_ns, job.claim, job.tenant, job.end_ns, job.id,
                gpu.node, slots, slots,
            )
            for job in jobs
            for slots in (slots_of(job.part_of(gpu)),)
        ),
        sightings=tuple(
            sorted({Sighting(Witness.SCHEDULER, job.start_ns, job.end_ns) for job in jobs})
        ),
    )  # fmt: skip


def slots_of(part: Part) -> Slots:
    """The slots of a part, exactly."""
    return Slots(exact(part.low * GPU_CAPACITY), exact(part.high * GPU_CAPACITY))


def entries(known: Evidence) -> list[Entry]:
    """The timeline of a GPU over its whole stay."""
    (stay,) = known.stays
    return GpuTimeline.of(known).entries(stay.start_ns, stay.end_ns)


def meter(jobs: Sequence[Job], period: Period | None = None) -> MeteredJobs:
    """The GPU time of every tenant; with a period, of jobs within it."""
    known = evidence(jobs, period)
    tenants = {job.tenant: Fraction(0) for job in jobs if job.gpus}
    unplaced: dict[str, Fraction] = defaultdict(Fraction)
    capacity = 0
    free = Fraction(0)
    for one in known.values():
        (stay,) = one.stays
        capacity += stay.end_ns - stay.start_ns
        for entry in entries(one):
            if entry.tiling is not Tiling.COMPUTE:
                continue
            if entry.state is State.INFERRED:
                tenants[entry.tenant] += Fraction(entry.quantity)
            else:
                free += entry.quantity
    for job in jobs:
        if job.unplaced:
            unplaced[job.tenant] += job.duration_ns * sum(
                (part.capacity for part in job.unplaced), Fraction(0)
            )
    return MeteredJobs(
        gpus=len(known),
        capacity_ns=capacity,
        free_ns=_gpu_ns(free),
        tenants={tenant: _gpu_ns(quantity) for tenant, quantity in sorted(tenants.items())},
        unplaced_ns=dict(sorted(unplaced.items())),
        clashes=tuple(
            Clash(gpu, one)
            for gpu, evidence_ in known.items()
            for one in overlaps(evidence_)
            if one.tiling is Tiling.COMPUTE and one.kind is OverlapKind.CONFLICT
        ),
    )


def _gpu_ns(quantity: Fraction) -> Fraction:
    """Capacity times time as whole GPUs times nanoseconds."""
    return quantity / GPU_CAPACITY
