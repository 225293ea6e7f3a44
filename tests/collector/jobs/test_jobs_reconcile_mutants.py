"""Defective implementations of R3, each of which the cases of R3 must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import groupby

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings, strategies as st
from support.job_books import GPUS, SEEDS, TOLERANCE, S, in_fractions, ledger, queues

from railscope_collector.jobs.job_list import ListedJob, UnnamedGpus
from railscope_collector.jobs.job_reconciliation import DifferenceKind, JobComparison, compare_jobs
from railscope_collector.metering.tiling import TilingEntry
from railscope_collector.metering.units import Tiling

Compare = Callable[[Iterable[TilingEntry], Iterable[ListedJob], int], JobComparison]


def totals_only(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], tolerance: int
) -> JobComparison:
    """Compare the time of tenants, and not its origin."""
    return replace(compare_jobs(entries, records, tolerance), differences=())


def jobs_only(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], tolerance: int
) -> JobComparison:
    """Jobs in only one of the two lists are skipped."""
    found = compare_jobs(entries, records, tolerance)
    alone = {DifferenceKind.NOT_IN_LEDGER, DifferenceKind.NOT_IN_RECORDS}
    kept = tuple(
        difference for difference in found.differences if not alone.intersection(difference.kinds)
    )
    return replace(found, differences=kept, tenants=())


def last_interval_dropped(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], tolerance: int
) -> JobComparison:
    """The last entry of each claim on a GPU is forgotten."""
    ordered = sorted(entries, key=lambda e: (e.tiling, e.gpu, e.claim, e.t0_ns))
    groups = groupby(ordered, key=lambda e: (e.tiling, e.gpu, e.claim))
    return compare_jobs([e for _, own in groups for e in list(own)[:-1]], records, tolerance)


def one_gpu_of_each_job(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], tolerance: int
) -> JobComparison:
    """A job has as many GPUs as it has records."""
    one = [msgspec.structs.replace(job, gpus=job.gpus[:1]) for job in records]
    return compare_jobs(entries, one, tolerance)


def tenants_ignored(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], tolerance: int
) -> JobComparison:
    """Ignore the tenant."""
    return compare_jobs(
        [msgspec.structs.replace(entry, tenant="all") for entry in entries],
        [msgspec.structs.replace(job, tenant="all") for job in records],
        tolerance,
    )


def patient(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], tolerance: int
) -> JobComparison:
    """The tolerance is ten times too large."""
    return compare_jobs(entries, records, 10 * tolerance)


def impatient(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], _: int
) -> JobComparison:
    """Clocks are taken to be exact."""
    return compare_jobs(entries, records, 0)


def both_tilings(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], tolerance: int
) -> JobComparison:
    """Memory is counted like compute."""
    alike = [msgspec.structs.replace(entry, tiling=Tiling.COMPUTE) for entry in entries]
    return compare_jobs(alike, records, tolerance)


def fractions_by_times(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], tolerance: int
) -> JobComparison:
    """Jobs with parts of GPUs are compared by their times only."""
    unsized = [
        msgspec.structs.replace(job, gpus=(), parts=(), unplaced=(UnnamedGpus("", 0, "a part"),))
        for job in records
    ]
    return compare_jobs(entries, unsized, tolerance)


def fractions_as_whole(
    entries: Iterable[TilingEntry], records: Iterable[ListedJob], tolerance: int
) -> JobComparison:
    """A part of a GPU counts as the GPU."""
    whole = [msgspec.structs.replace(job, parts=()) for job in records]
    return compare_jobs(entries, whole, tolerance)


@pytest.mark.parametrize("implementation", [compare_jobs, fractions_by_times, fractions_as_whole])
def test_a_comparison_of_fractions_agrees_and_finds_what_differs(implementation):
    """Of these only the comparison itself does both."""
    job = ListedJob(0, "7", "a", "u", 100 * S, tuple(GPUS[:2]))
    (half,), (third,) = (in_fractions([job], [Fraction(1, of)]) for of in (2, 3))
    agrees = implementation(ledger([half]), [half], TOLERANCE).agrees
    finds = not implementation(ledger([half]), [third], TOLERANCE).agrees
    assert (agrees and finds) == (implementation is compare_jobs)


MUTANTS = [
    totals_only, jobs_only, last_interval_dropped, one_gpu_of_each_job, tenants_ignored, patient,
    impatient, both_tilings,
]  # fmt: skip


def holds(implementation: Compare, jobs: list[ListedJob], data: st.DataObject) -> None:
    """Required result of a comparison: nothing for equal jobs, the job's name for others."""
    assert implementation(ledger(jobs), jobs, TOLERANCE).agrees
    off = data.draw(st.integers(-2 * S, 2 * S))
    late = [
        msgspec.structs.replace(job, end_ns=max(job.start_ns, job.end_ns + off)) for job in jobs
    ]
    assert implementation(ledger(jobs), late, TOLERANCE).agrees
    numbered = [msgspec.structs.replace(job, id=str(number)) for number, job in enumerate(jobs)]
    lasting = [job for job in numbered if job.duration_ns > 30 * S]
    assume(lasting)
    job = data.draw(st.sampled_from(lasting))
    make, kind = SEEDS[data.draw(st.sampled_from(sorted(SEEDS)))]
    found = implementation(*make(numbered, job), TOLERANCE)
    assert [(difference.job, difference.kinds) for difference in found.differences] == [
        (job.id, (kind,))
    ]


def refuted(implementation: Compare) -> bool:
    @settings(
        max_examples=300,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(queues(), st.data())
    def attempt(jobs: list[ListedJob], data: st.DataObject) -> None:
        holds(implementation, jobs, data)

    try:
        attempt()
    except AssertionError:
        return True
    return False


def test_the_comparison_itself_is_not_refuted():
    assert not refuted(compare_jobs)


@pytest.mark.parametrize("wrong", MUTANTS)
def test_a_wrong_comparison_is_detected(wrong):
    assert refuted(wrong)
