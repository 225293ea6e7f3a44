"""Pairing of ledger and scheduler records: claims on GPUs, by run of their job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from collector.jobs.job import Job
from collector.metering.evidence import job_id
from collector.metering.instants import Period
from collector.metering.tiling import Entry, State
from collector.metering.units import FOREVER_NS, GPU_CAPACITY, Tiling, Units, exact

_GIVEN = frozenset(
    {State.OBSERVED, State.INFERRED, State.SYSTEM, State.MAINTENANCE, State.DOWN}
)  # fmt: skip
"""States of a held slot; scheduler records do not contain the activity of the GPU."""


ALL_TIME = Period(0, FOREVER_NS)


class Held(msgspec.Struct):
    """Ledger time of one claim on one GPU."""

    gpu: str
    claim: str
    tenant: str
    start_ns: int
    end_ns: int
    quantity: Units = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A job of the scheduler records, or none, and its claims; times are within the window."""

    id: str
    job: Job | None
    start_ns: int
    end_ns: int
    held: tuple[Held, ...]

    @property
    def gpus(self) -> int:
        """Number of GPUs in the scheduler records."""
        job = self.job
        return len(job.gpus) + sum(part.gpus for part in job.unplaced) if job else 0

    @property
    def in_parts(self) -> bool:
        """True if it had parts of GPUs whose size the records do not state."""
        return self.job is not None and any(not part.gpus for part in self.job.unplaced)

    @property
    def is_shared(self) -> bool:
        """True if it had fractions of GPUs."""
        return self.job is not None and (
            bool(self.job.parts) or any(part.share != 1 for part in self.job.unplaced)
        )

    @property
    def capacity(self) -> Fraction:
        """Capacity in the scheduler records, in whole GPUs."""
        job = self.job
        if job is None:
            return Fraction(0)
        named = sum((job.part_of(gpu).share for gpu in job.gpus), Fraction(0))
        return named + sum((part.capacity for part in job.unplaced), Fraction(0))

    @property
    def books(self) -> Fraction:
        """Capacity times time in the scheduler records."""
        return GPU_CAPACITY * self.capacity * (self.end_ns - self.start_ns)

    @property
    def ledger(self) -> Units:
        """Capacity times time in the ledger."""
        return exact(sum((Fraction(held.quantity) for held in self.held), Fraction(0)))


def runs(
    entries: Iterable[Entry], records: Iterable[Job], window: Period, unended: set[str]
) -> list[Run]:
    """Every run of every job, by job; jobs without an end in the records are left out."""
    held = _held(entries, window, unended)
    jobs: dict[str, list[Job]] = defaultdict(list)
    for job in records:
        if job.id not in unended:
            jobs[job.id].append(job)
    found: list[Run] = []
    for name in sorted(held.keys() | jobs.keys()):
        found += _paired(name, sorted(jobs[name]), held[name], window)
    return found


def _held(entries: Iterable[Entry], window: Period, unended: set[str]) -> dict[str, list[Held]]:
    """Claims on GPUs by job, each from first to last entry, with its quantity."""
    found: dict[tuple[str, str, str], Held] = {}
    by_job: dict[str, list[Held]] = defaultdict(list)
    for entry in entries:
        if entry.tiling is not Tiling.COMPUTE or entry.state not in _GIVEN or not entry.claim:
            continue
        name = job_id(entry.workload)
        t0_ns, t1_ns = _clipped(window, entry.t0_ns, entry.t1_ns)
        if name in unended or t0_ns >= t1_ns:
            continue
        key = (entry.gpu, entry.claim, entry.tenant)
        if key not in found:
            found[key] = Held(*key, t0_ns, t1_ns)
            by_job[name].append(found[key])
        one = found[key]
        one.start_ns, one.end_ns = min(one.start_ns, t0_ns), max(one.end_ns, t1_ns)
        one.quantity = exact(one.quantity + (entry.slot_hi - entry.slot_lo) * (t1_ns - t0_ns))
    return by_job


def _paired(name: str, jobs: list[Job], held: list[Held], window: Period) -> Iterator[Run]:
    """The runs of a job, each with the claims that overlap it most."""
    spans = [_clipped(window, job.start_ns, job.end_ns) for job in jobs]
    own: dict[int, list[Held]] = defaultdict(list)
    strangers: list[Held] = []
    for one in held:
        common = [min(one.end_ns, end) - max(one.start_ns, start) for start, end in spans]
        best = max(range(len(spans)), key=common.__getitem__, default=None)
        if best is None or (common[best] <= 0 and len(spans) > 1):
            strangers.append(one)
        else:
            own[best].append(one)
    for at, (job, (start, end)) in enumerate(zip(jobs, spans, strict=True)):
        if start < end or own[at]:
            yield Run(name, job, start, max(start, end), tuple(own[at]))
    if strangers:
        start, end = min(s.start_ns for s in strangers), max(s.end_ns for s in strangers)
        yield Run(name, None, start, end, tuple(strangers))


def _clipped(window: Period, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Clip an interval to the window; without overlap, its end is not after its start."""
    return max(start_ns, window.start_ns), min(end_ns, window.end_ns)
