"""R3: comparison of the ledger with the scheduler's records, by tenant and by job.

Claims on GPUs in the ledger are paired with scheduler records by run of their job. Start and end of
a claim may each differ by the tolerance: the possible clock difference, and the time until an agent
detects a change. So a claim on a GPU may differ by twice the tolerance, and a tenant by that for
each of its claims. Anything beyond is reported as a difference.

Jobs and ledger entries are matched by the job's id, which is the entry's workload: `123` of Slurm,
`research/train-0` of Kubernetes; other sources may add the scheduler, such as `slurm:123`. Tenants
are compared literally: map the accounts of the records first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TypeAlias

import msgspec

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS
from railscope_collector.jobs.job_list import ListedJob
from railscope_collector.metering import evidence, slot_state, units
from railscope_collector.metering.metered_day import DayPart, MeteredDay

_CLAIM_STATES = frozenset(
    {
        slot_state.SlotState.OBSERVED,
        slot_state.SlotState.INFERRED,
        slot_state.SlotState.SYSTEM,
        slot_state.SlotState.MAINTENANCE,
        slot_state.SlotState.DOWN,
    }
)
"""States of a held slot; scheduler records do not contain the activity of the GPU."""


ALL_TIME = units.Period(0, FOREVER_NS)


class LedgerTime(msgspec.Struct, frozen=True):
    """Time in the ledger in which a claim has a size of a GPU."""

    gpu: str
    start_ns: int
    end_ns: int
    part: DayPart


def times_of_day(day: MeteredDay) -> Iterator[LedgerTime]:
    """Yield the times of claims of a GPU-day."""
    for piece in day.pieces:
        for part in piece.parts:
            if part.claim:
                yield LedgerTime(day.gpu, piece.start_ns, piece.end_ns, part)


class ClaimTime(msgspec.Struct):
    """Ledger time of one claim on one GPU."""

    gpu: str
    claim: str
    tenant: str
    start_ns: int
    end_ns: int
    quantity: units.Units = 0


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job of the scheduler records, or none, and its claims; times are within the window."""

    id: str
    job: ListedJob | None
    start_ns: int
    end_ns: int
    claim_times: tuple[ClaimTime, ...]

    @property
    def gpus(self) -> int:
        """Number of GPUs in the scheduler records."""
        job = self.job
        return len(job.gpus) + sum(part.gpus for part in job.unplaced) if job else 0

    @property
    def is_in_parts(self) -> bool:
        """True if it had parts of GPUs without a size in the records."""
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
        named = sum((job.part_on(gpu).share for gpu in job.gpus), Fraction(0))
        return named + sum((part.capacity for part in job.unplaced), Fraction(0))

    @property
    def recorded_time(self) -> Fraction:
        """Capacity times time in the scheduler records."""
        return GPU_CAPACITY * self.capacity * (self.end_ns - self.start_ns)

    @property
    def ledger_time(self) -> Fraction:
        """Capacity times time in the ledger."""
        return sum((Fraction(claim_time.quantity) for claim_time in self.claim_times), Fraction(0))

    @property
    def ledger_gpus(self) -> set[str]:
        """GPUs in the ledger."""
        return {claim_time.gpu for claim_time in self.claim_times}


def pair_runs(
    entries: Iterable[LedgerTime],
    records: Iterable[ListedJob],
    window: units.Period,
    unended: Collection[ListedJob],
) -> list[JobRun]:
    """Every run of every job, by job; runs without an end in the records, and their claims, are left out."""
    claim_times = _claim_times(entries, window)
    left_out = set(unended)
    jobs: dict[str, list[ListedJob]] = defaultdict(list)
    for job in (*records, *unended):
        jobs[job.id].append(job)
    return [
        run
        for name in sorted(claim_times.keys() | jobs.keys())
        for run in _pair_claims(name, sorted(jobs[name]), claim_times[name], window)
        if run.job not in left_out
    ]


def _claim_times(entries: Iterable[LedgerTime], window: units.Period) -> dict[str, list[ClaimTime]]:
    """Claims on GPUs by job, each from first to last entry, with its quantity."""
    times: dict[tuple[str, str, str], ClaimTime] = {}
    by_job: dict[str, list[ClaimTime]] = defaultdict(list)
    for entry in entries:
        part = entry.part
        if part.state not in _CLAIM_STATES:
            continue
        name = evidence.job_id(part.workload)
        t0_ns, t1_ns = _clip(window, entry.start_ns, entry.end_ns)
        if t0_ns >= t1_ns:
            continue
        key = (entry.gpu, part.claim, part.tenant)
        if key not in times:
            times[key] = ClaimTime(*key, t0_ns, t1_ns)
            by_job[name].append(times[key])
        time = times[key]
        time.start_ns, time.end_ns = min(time.start_ns, t0_ns), max(time.end_ns, t1_ns)
        time.quantity = units.exact(time.quantity + part.size * (t1_ns - t0_ns))
    return by_job


def _pair_claims(
    name: str, jobs: list[ListedJob], claim_times: list[ClaimTime], window: units.Period
) -> Iterator[JobRun]:
    """The runs of a job, each with the claims that overlap it most."""
    spans = [_clip(window, job.start_ns, job.end_ns) for job in jobs]
    by_position: dict[int, list[ClaimTime]] = defaultdict(list)
    unmatched: list[ClaimTime] = []
    for claim in claim_times:
        common = [min(claim.end_ns, end) - max(claim.start_ns, start) for start, end in spans]
        best = max(range(len(spans)), key=common.__getitem__, default=None)
        # A claim without overlap belongs to the only run as well: the difference is one of times.
        if best is None or (common[best] <= 0 and len(spans) > 1):
            unmatched.append(claim)
        else:
            by_position[best].append(claim)
    for position, (job, (start, end)) in enumerate(zip(jobs, spans, strict=True)):
        if start < end or by_position[position]:
            yield JobRun(name, job, start, max(start, end), tuple(by_position[position]))
    if unmatched:
        start, end = min(s.start_ns for s in unmatched), max(s.end_ns for s in unmatched)
        yield JobRun(name, None, start, end, tuple(unmatched))


def _clip(window: units.Period, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Clip an interval to the window; without overlap, its end is not after its start."""
    return max(start_ns, window.start_ns), min(end_ns, window.end_ns)


class DifferenceKind(StrEnum):
    """Kind of a difference between ledger and scheduler records of a job."""

    NOT_IN_LEDGER = "in the scheduler's records and not in the ledger"
    NOT_IN_RECORDS = "in the ledger and not in the scheduler's records"
    TENANT = "another tenant"
    GPUS = "other GPUs"
    TIMES = "another start or end"
    HELD_TIME = "held for another time between start and end, or in part"


@dataclass(frozen=True, slots=True)
class JobDifference:
    """A run of a job with a difference.

    `start_off_ns` and `end_off_ns` are the ledger's times minus those of the scheduler records, on
    the GPU with the largest difference.
    """

    run: JobRun
    kinds: tuple[DifferenceKind, ...]
    start_off_ns: int = 0
    end_off_ns: int = 0

    @property
    def job(self) -> str:
        """Id of the job."""
        return self.run.id

    @property
    def difference(self) -> Fraction:
        """Excess of GPU time in the ledger, in GPU-nanoseconds."""
        return (self.run.ledger_time - self.run.recorded_time) / GPU_CAPACITY


@dataclass(frozen=True, slots=True)
class TenantCheck:
    """Time of a tenant in ledger and scheduler records, in GPU-ns; `parts` is the number of claims."""

    tenant: str
    found: Fraction
    expected: Fraction
    parts: int
    allowed: int

    @property
    def difference(self) -> Fraction:
        """Excess of GPU time in the ledger."""
        return self.found - self.expected

    @property
    def agrees(self) -> bool:
        """True if the difference is within the tolerance of all claims."""
        return abs(self.difference) <= self.allowed


@dataclass(frozen=True, slots=True)
class JobComparison:
    """All tenants in order, the jobs that differ, and those compared by times only.

    `unended` are jobs with a run without an end in the scheduler records, which is not compared; `rejected` are
    messages about lines of the records that are not valid jobs.
    """

    tenants: tuple[TenantCheck, ...]
    differences: tuple[JobDifference, ...]
    jobs: int
    in_parts: tuple[str, ...] = ()
    unended: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    other_sources: tuple[str, ...] = ()
    """Sources of job lists in the ledger that are not compared."""

    @property
    def agrees(self) -> bool:
        """True if there is no difference beyond the tolerance."""
        return not self.differences and all(tenant.agrees for tenant in self.tenants)

    @property
    def is_complete(self) -> bool:
        """True if all lines of the scheduler records are valid."""
        return not self.rejected


def compare_jobs(
    entries: Iterable[LedgerTime],
    records: Iterable[ListedJob],
    tolerance_ns: int,
    window: units.Period = ALL_TIME,
    unended: Collection[ListedJob] = (),
) -> JobComparison:
    """Compare the ledger's entries with the jobs of one or several schedulers.

    If the records name no GPUs, their number is compared; fractions of GPUs are compared by their
    exact GPU time. Jobs with parts of GPUs whose size the records do not state are compared by
    times only.
    """
    paired = pair_runs(entries, records, window, unended)
    compared = [(run, *_kinds(run, tolerance_ns)) for run in paired]
    return JobComparison(
        tenants=_tenants([run for run in paired if not run.is_in_parts], tolerance_ns),
        differences=tuple(
            JobDifference(run, tuple(kinds), *off) for run, kinds, off in compared if kinds
        ),
        jobs=sum(run.job is not None for run in paired),
        in_parts=tuple(sorted({run.id for run in paired if run.is_in_parts})),
        unended=tuple(sorted({job.id for job in unended})),
    )


# Comparing -----------------------------------------------------------------------------------------


def _kinds(run: JobRun, tolerance_ns: int) -> tuple[list[DifferenceKind], tuple[int, int]]:
    """Kinds of differences, and the largest offsets of start and end."""
    if not run.claim_times:
        had_some = run.gpus or run.is_in_parts
        # A shorter one may be missed within the tolerance of start and end.
        missed = had_some and run.end_ns - run.start_ns > 2 * tolerance_ns
        return ([DifferenceKind.NOT_IN_LEDGER] if missed else []), (0, 0)
    if run.job is None:
        longest = max(claim_time.end_ns - claim_time.start_ns for claim_time in run.claim_times)
        return ([DifferenceKind.NOT_IN_RECORDS] if longest > 2 * tolerance_ns else []), (0, 0)
    kinds: list[DifferenceKind] = []
    spans = _spans(run.claim_times)
    if {claim_time.tenant for claim_time in run.claim_times} != {run.job.tenant}:
        kinds.append(DifferenceKind.TENANT)
    may_move = _may_move(run, spans, tolerance_ns)
    if not run.is_in_parts and not _same_gpus(run, set(spans), may_move=may_move):
        kinds.append(DifferenceKind.GPUS)
    starts = [start - run.start_ns for start, _, _ in spans.values()]
    ends = [end - run.end_ns for _, end, _ in spans.values()]
    # Of GPUs in sequence, the first start and the last end are those of the job.
    off = (min(starts), max(ends)) if may_move else (max(starts, key=abs), max(ends, key=abs))
    if max(map(abs, off)) > tolerance_ns:
        kinds.append(DifferenceKind.TIMES)
    if not run.is_in_parts and _is_held_otherwise(run, spans, tolerance_ns, may_move=may_move):
        kinds.append(DifferenceKind.HELD_TIME)
    return kinds, off


def _may_move(run: JobRun, spans: _Spans, tolerance_ns: int) -> bool:
    """True for a job on GPUs that are only counted, which may be on several in sequence.

    Whole GPUs have moved if the ledger has more GPUs than the records count, but not more GPU time.
    """
    if run.job is None or not run.job.unplaced:
        return False
    allowed = 2 * tolerance_ns * run.capacity
    return run.is_shared or (len(spans) > run.gpus and _excess(run, spans) <= allowed)


def _excess(run: JobRun, spans: _Spans) -> Fraction:
    """GPU time in the ledger minus that of the records over the ledger's first start to last end."""
    length = max(end for _, end, _ in spans.values()) - min(start for start, _, _ in spans.values())
    return run.ledger_time / GPU_CAPACITY - run.capacity * length


def _is_held_otherwise(run: JobRun, spans: _Spans, tolerance_ns: int, *, may_move: bool) -> bool:
    """True if the time held between start and end differs from the records beyond the tolerance."""
    job = run.job
    shares = {str(gpu): job.part_on(gpu).share for gpu in job.gpus} if job else {}
    if not (run.is_shared or may_move) or shares.keys() == spans.keys():
        allowed_ns = 2 * tolerance_ns
        return any(
            abs(quantity / (GPU_CAPACITY * shares.get(gpu, Fraction(1))) - (end - start))
            > allowed_ns
            for gpu, (start, end, quantity) in spans.items()
        )
    return abs(_excess(run, spans)) > 2 * tolerance_ns * run.capacity


_Spans: TypeAlias = Mapping[str, tuple[int, int, units.Units]]


def _spans(claim_times: Iterable[ClaimTime]) -> _Spans:
    """Start, end and quantity of each GPU."""
    spans: dict[str, tuple[int, int, units.Units]] = {}
    for item in claim_times:
        start, end, quantity = spans.get(item.gpu, (item.start_ns, item.end_ns, 0))
        spans[item.gpu] = (
            min(start, item.start_ns),
            max(end, item.end_ns),
            quantity + item.quantity,
        )
    return spans


def _same_gpus(run: JobRun, gpus: set[str], *, may_move: bool) -> bool:
    """True if the number of GPUs is equal (or GPUs moved), and the named ones match if comparable.

    In a ledger of job lists GPUs are named as in the list, `node/address`; agents report UUIDs.
    """
    if run.job is None or (len(gpus) != run.gpus and not may_move):
        return False
    named = {str(gpu) for gpu in run.job.gpus}
    return named <= gpus if any("/" in gpu for gpu in gpus) else True


def _tenants(paired: Iterable[JobRun], tolerance_ns: int) -> tuple[TenantCheck, ...]:
    ledger: dict[str, Fraction] = defaultdict(Fraction)
    recorded: dict[str, Fraction] = defaultdict(Fraction)
    claims: Counter[str] = Counter()
    for run in paired:
        if run.job:
            recorded[run.job.tenant] += run.recorded_time
        tenants: Counter[str] = Counter()
        for claim_time in run.claim_times:
            ledger[claim_time.tenant] += claim_time.quantity
            tenants[claim_time.tenant] += 1
        if run.job:
            # GPUs without a claim count as well: each may be off by the tolerance.
            tenants[run.job.tenant] = max(tenants[run.job.tenant], run.gpus)
        claims += tenants
    return tuple(
        TenantCheck(
            tenant,
            ledger[tenant] / GPU_CAPACITY,
            recorded[tenant] / GPU_CAPACITY,
            claims[tenant],
            2 * tolerance_ns * claims[tenant],
        )
        for tenant in sorted(ledger.keys() | recorded.keys())
    )
