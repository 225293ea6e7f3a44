"""R3: the ledger against the scheduler's records. Every seeded difference is found, and nothing else."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import assume, given, strategies as st
from support.job_books import (
    GPUS,
    SEEDS,
    TOLERANCE,
    S,
    counted_fractions,
    in_fractions,
    ledger,
    queues,
    with_unnamed_gpus,
)

from railscope_collector.jobs.job_list import ListedJob, UnnamedGpus
from railscope_collector.jobs.job_reconciliation import DifferenceKind, compare_jobs

# Without a difference ------------------------------------------------------------------------------


@given(queues())
def test_a_ledger_made_of_the_records_has_no_difference(jobs):
    for records in (jobs, with_unnamed_gpus(jobs)):
        found = compare_jobs(ledger(jobs), records, 0)
        assert found.agrees
        assert [tenant.difference for tenant in found.tenants] == [0] * len(found.tenants)
        expected = {job.tenant: Fraction() for job in jobs}
        for job in jobs:
            expected[job.tenant] += len(job.gpus) * job.duration_ns
        assert {t.tenant: t.expected for t in found.tenants if t.expected} == {
            tenant: total for tenant, total in expected.items() if total
        }


@given(queues(), st.randoms(use_true_random=False), st.integers(1, 400))
def test_days_and_order_of_the_entries_mean_nothing(jobs, random, step):
    whole = ledger(jobs)
    cut = [
        msgspec.structs.replace(entry, start_ns=start, end_ns=min(start + step * S, entry.end_ns))
        for entry in whole
        for start in range(entry.start_ns, entry.end_ns, step * S)
    ]
    random.shuffle(cut)
    shuffled = random.sample(jobs, len(jobs))
    assert compare_jobs(cut, shuffled, 0) == compare_jobs(whole, jobs, 0)


@given(queues(), st.data())
def test_a_deviation_within_clock_tolerance_is_not_a_difference(jobs, data):
    off = st.integers(-2 * S, 2 * S)
    moved = [
        msgspec.structs.replace(job, start_ns=start, end_ns=max(start, job.end_ns + data.draw(off)))
        for job in jobs
        for start in [job.start_ns + data.draw(off)]
    ]
    assert compare_jobs(ledger(jobs), moved, 2 * S).agrees


# Seeded differences ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@given(queues(), st.data())
def test_each_difference_is_found_and_named(seed, jobs, data):
    jobs = [msgspec.structs.replace(job, id=str(number)) for number, job in enumerate(jobs)]
    lasting = [job for job in jobs if job.duration_ns > 30 * S]
    assume(lasting)
    job = data.draw(st.sampled_from(lasting))
    make, kind = SEEDS[seed]
    entries, records = make(jobs, job)
    found = compare_jobs(entries, records, TOLERANCE)
    assert not found.agrees
    (difference,) = found.differences
    assert (difference.job, difference.kinds) == (job.id, (kind,))
    by_tenant = sum((tenant.difference for tenant in found.tenants), Fraction())
    assert difference.difference == by_tenant


fractions = st.lists(
    st.fractions(Fraction(1, 840), Fraction(839, 840), max_denominator=1000), min_size=1, max_size=4
)


@given(queues(), fractions)
def test_fractions_of_gpus_are_compared_exactly(jobs, shares):
    shared = in_fractions(jobs, shares)
    for books in (shared, counted_fractions(shared)):
        found = compare_jobs(ledger(shared), books, 0)
        assert found.agrees
        assert not found.in_parts
        expected: dict[str, Fraction] = {}
        for job in shared:
            size = sum((part.share for part in job.parts), Fraction())
            expected[job.tenant] = expected.get(job.tenant, Fraction()) + size * job.duration_ns
        totals = {t.tenant: (t.found, t.expected) for t in found.tenants if t.expected}
        assert totals == {tenant: (total, total) for tenant, total in expected.items() if total}


def test_a_number_of_whole_gpus_that_moves_from_gpu_to_gpu_is_one_job():
    """Two GPUs are counted: the first stays, the second is on three devices one after the other."""
    job = ListedJob(0, "7", "a", "u", 100 * S, (), (UnnamedGpus("n1", 2, "no device"),))
    spans = [(GPUS[0], 0, 100), (GPUS[1], 0, 30), (GPUS[2], 30, 60), (GPUS[3], 60, 100)]
    parts = [ListedJob(t0 * S, "7", "a", "u", t1 * S, (gpu,)) for gpu, t0, t1 in spans]
    assert compare_jobs(ledger(parts), [job], 0).agrees

    (shorter,) = compare_jobs(ledger([parts[0], parts[1], parts[3]]), [job], S).differences
    assert shorter.kinds == (DifferenceKind.HELD_TIME,), "30 s of it nobody had"
    (later,) = compare_jobs(ledger([*parts[:3]]), [job], S).differences
    assert later.kinds == (DifferenceKind.HELD_TIME,)
    (fewer,) = compare_jobs(ledger([parts[0]]), [job], S).differences
    assert fewer.kinds == (DifferenceKind.GPUS,), "one GPU instead of two"
    longer = [msgspec.structs.replace(part, start_ns=0, end_ns=100 * S) for part in parts]
    (more,) = compare_jobs(ledger(longer), [job], S).differences
    assert more.kinds == (DifferenceKind.GPUS,), "four GPUs at a time"
    late = [
        msgspec.structs.replace(part, start_ns=part.start_ns + 10 * S)
        if part.start_ns == 0
        else part
        for part in parts
    ]
    (begins,) = compare_jobs(ledger(late), [job], S).differences
    assert begins.kinds == (DifferenceKind.TIMES,)
    assert begins.start_off_ns == 10 * S
