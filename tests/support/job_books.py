"""Job lists in agreement with their ledger, and ways in which the two may differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

import msgspec
from hypothesis import strategies as st

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS
from railscope_collector.jobs.job_list import ListedGpu, ListedGpuPart, ListedJob, UnnamedGpus
from railscope_collector.jobs.job_list_import import list_source
from railscope_collector.jobs.job_metering import job_timelines
from railscope_collector.jobs.job_reconciliation import DifferenceKind, LedgerTime
from railscope_collector.metering.metered_day import MeteredDay

S = 1_000_000_000
GPUS = [ListedGpu(node, f"00000000:0{number}:00.0") for node in ("n1", "n2") for number in range(3)]
START = 1_767_225_600


def job_days(jobs: Iterable[ListedJob], sku: str = "") -> Iterator[MeteredDay]:
    """Yield the days of every GPU that the jobs name, by GPU and day."""
    for known in job_timelines(jobs).values():
        (stay,) = known.service
        for day in range(stay.start_ns // DAY_NS, -(-stay.end_ns // DAY_NS)):
            yield msgspec.structs.replace(known.meter(day, list_source()), sku=sku)


def ledger(jobs: Sequence[ListedJob]) -> list[LedgerTime]:
    """Return the times of claims that metering makes of jobs."""
    return [
        LedgerTime(known.gpu, piece.start_ns, piece.end_ns, part)
        for known in job_timelines(jobs).values()
        for piece in known.pieces(known.service[0].start_ns, known.service[0].end_ns)
        for part in piece.parts
        if part.claim
    ]


@st.composite
def queues(draw: st.DrawFn) -> list[ListedJob]:
    """Jobs of one to three GPUs, none of which overlap on a GPU."""
    free = dict.fromkeys(GPUS, START)
    found: list[ListedJob] = []
    for number in range(draw(st.integers(1, 8))):
        gpus = draw(st.lists(st.sampled_from(GPUS), unique=True, min_size=1, max_size=3))
        start = max(free[gpu] for gpu in gpus) + draw(st.integers(0, 9))
        end = start + draw(st.integers(0, 500))
        free |= dict.fromkeys(gpus, end)
        tenant = draw(st.sampled_from("abc"))
        # A job that is requeued runs again under its id, some time after its end.
        again = [
            job.id for job in found if all(o.end_ns < start * S for o in found if o.id == job.id)
        ]
        name = draw(st.sampled_from([str(number), *again]))
        found.append(ListedJob(start * S, name, tenant, "u", end * S, tuple(sorted(gpus))))
    return found


def with_unnamed_gpus(jobs: Sequence[ListedJob]) -> list[ListedJob]:
    """Return the same jobs in books that count GPUs without names."""
    return [
        msgspec.structs.replace(job, gpus=(), unplaced=(UnnamedGpus("", len(job.gpus), "counted"),))
        for job in jobs
    ]


def in_fractions(jobs: Sequence[ListedJob], shares: Sequence[Fraction]) -> list[ListedJob]:
    """Return the same jobs with a fraction of each of their GPUs, its lowest part; shares rotate."""
    return [
        msgspec.structs.replace(
            job,
            parts=tuple(
                ListedGpuPart(Fraction(0), shares[(at + place) % len(shares)])
                for place in range(len(job.gpus))
            ),
        )
        for at, job in enumerate(jobs)
    ]


def counted_fractions(jobs: Sequence[ListedJob]) -> list[ListedJob]:
    """Return the same jobs in books that state fractions and no GPU names."""
    return [
        msgspec.structs.replace(
            job,
            gpus=(),
            parts=(),
            unplaced=tuple(UnnamedGpus("", 1, "counted", share=part.share) for part in job.parts),
        )
        for job in jobs
    ]


def without_entries(
    jobs: list[ListedJob], job: ListedJob
) -> tuple[list[LedgerTime], list[ListedJob]]:
    return ledger([one for one in jobs if one != job]), jobs


def without_record(
    jobs: list[ListedJob], job: ListedJob
) -> tuple[list[LedgerTime], list[ListedJob]]:
    return ledger(jobs), [one for one in jobs if one != job]


def changed(
    **fields: object,
) -> Callable[[list[ListedJob], ListedJob], tuple[list[LedgerTime], list[ListedJob]]]:
    """Change fields of the job in the books."""

    def of(jobs: list[ListedJob], job: ListedJob) -> tuple[list[LedgerTime], list[ListedJob]]:
        other = {name: value(job) if callable(value) else value for name, value in fields.items()}
        return ledger(jobs), [
            msgspec.structs.replace(one, **other) if one == job else one for one in jobs
        ]

    return of


def with_a_hole(jobs: list[ListedJob], job: ListedJob) -> tuple[list[LedgerTime], list[ListedJob]]:
    """Leave ten seconds in the middle of the job without a holder."""
    middle = (job.start_ns + job.end_ns) // 2
    found = []
    for entry in ledger(jobs):
        if entry.part.claim == job.claim and entry.gpu == str(job.gpus[0]):
            found.append(msgspec.structs.replace(entry, end_ns=middle))
            found.append(msgspec.structs.replace(entry, start_ns=middle + 10 * S))
        else:
            found.append(entry)
    return found, jobs


def in_half(jobs: list[ListedJob], job: ListedJob) -> tuple[list[LedgerTime], list[ListedJob]]:
    """Reduce each GPU in the ledger to its half."""
    half = GPU_CAPACITY // 2
    return [
        msgspec.structs.replace(entry, part=msgspec.structs.replace(entry.part, size=half))
        if entry.part.claim == job.claim
        else entry
        for entry in ledger(jobs)
    ], jobs


def another(job: ListedJob) -> tuple[ListedGpu, ...]:
    return tuple(sorted({*job.gpus[1:], next(gpu for gpu in GPUS if gpu not in job.gpus)}))


SEEDS = {
    "not in the ledger": (without_entries, DifferenceKind.NOT_IN_LEDGER),
    "not in the books": (without_record, DifferenceKind.NOT_IN_RECORDS),
    "another tenant": (changed(tenant="x"), DifferenceKind.TENANT),
    "a GPU more": (changed(unplaced=(UnnamedGpus("", 1, "more"),)), DifferenceKind.GPUS),
    "a GPU less": (changed(gpus=lambda job: job.gpus[1:]), DifferenceKind.GPUS),
    "another GPU": (changed(gpus=another), DifferenceKind.GPUS),
    "an earlier start": (changed(start_ns=lambda job: job.start_ns - 6 * S), DifferenceKind.TIMES),
    "a later start": (changed(start_ns=lambda job: job.start_ns + 6 * S), DifferenceKind.TIMES),
    "an earlier end": (changed(end_ns=lambda job: job.end_ns - 6 * S), DifferenceKind.TIMES),
    "a later end": (changed(end_ns=lambda job: job.end_ns + 6 * S), DifferenceKind.TIMES),
    "a hole": (with_a_hole, DifferenceKind.HELD_TIME),
    "in half": (in_half, DifferenceKind.HELD_TIME),
}
TOLERANCE = 2 * S
