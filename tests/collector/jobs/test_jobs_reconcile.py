"""R3: the ledger against the scheduler's records. Every seeded difference is found, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC
from fractions import Fraction

import msgspec
import pytest
from hypothesis import assume, given, strategies as st
from support.job_books import (
    GPUS,
    SEEDS,
    START,
    TOLERANCE,
    S,
    counted_fractions,
    in_fractions,
    ledger,
    queues,
    with_unnamed_gpus,
)
from support.shared import capture_path

from railscope.claim_terms import GPU_CAPACITY
from railscope.slurm.sacct import COLUMNS
from railscope.slurm.scontrol import parse_text
from railscope.timestamps import FOREVER_NS
from railscope_collector.jobs.clustercockpit import read_clustercockpit
from railscope_collector.jobs.job_list import ListedGpu, ListedGpuPart, ListedJob, UnnamedGpus
from railscope_collector.jobs.job_list_reader import read_sacct
from railscope_collector.jobs.job_reconciliation import DifferenceKind, JobComparison, compare_jobs
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Period, Tiling

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


@given(queues(), st.integers(0, 3000), st.integers(0, 3000))
def test_so_has_any_window_of_it(jobs, first, last):
    window = Period((START + min(first, last)) * S, (START + max(first, last) + 1) * S)
    assert compare_jobs(ledger(jobs), jobs, 0, window).agrees


@given(queues(), st.randoms(use_true_random=False), st.integers(1, 400))
def test_days_and_order_of_the_entries_mean_nothing(jobs, random, step):
    whole = ledger(jobs)
    cut = [
        msgspec.structs.replace(entry, t0_ns=t0, t1_ns=min(t0 + step * S, entry.t1_ns))
        for entry in whole
        for t0 in range(entry.t0_ns, entry.t1_ns, step * S)
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


def test_how_much_and_in_which_direction():
    job = ListedJob(0, "7", "a", "u", 100 * S, tuple(GPUS[:2]))
    later = msgspec.structs.replace(job, start_ns=10 * S, end_ns=70 * S)
    (difference,) = compare_jobs(ledger([job]), [later], S).differences
    assert difference.kinds == (DifferenceKind.TIMES,)
    assert (difference.start_off_ns, difference.end_off_ns) == (-10 * S, 30 * S)
    assert difference.run.ledger_time == 200 * S * GPU_CAPACITY
    assert difference.run.recorded_time == 120 * S * GPU_CAPACITY
    assert difference.difference == 80 * S
    assert (difference.run.ledger_gpus, difference.run.gpus) == (set(map(str, GPUS[:2])), 2)
    (check,) = compare_jobs(ledger([job]), [later], S).tenants
    assert (check.found, check.expected, check.parts) == (200 * S, 120 * S, 2)
    assert check.allowed == 4 * S
    assert not check.agrees


def test_many_small_differences_of_one_tenant_stay_within_its_claims():
    jobs = [
        ListedJob(at * 100 * S, str(at), "a", "u", (at * 100 + 50) * S, (GPUS[0],))
        for at in range(9)
    ]
    late = [msgspec.structs.replace(job, end_ns=job.end_ns + S) for job in jobs]
    found = compare_jobs(ledger(jobs), late, S)
    assert found.agrees
    assert found.tenants[0].difference == -9 * S


def test_a_job_that_lost_its_gpu_to_another_is_named():
    jobs = [
        ListedJob(0, "1", "a", "u", 100 * S, (GPUS[0],)),
        ListedJob(40 * S, "2", "b", "u", 90 * S, (GPUS[0],)),
    ]
    found = compare_jobs(ledger(jobs), jobs, S)
    assert [
        (difference.job, difference.kinds, difference.difference)
        for difference in found.differences
    ] == [("1", (DifferenceKind.HELD_TIME,), -50 * S)]


def test_a_source_may_name_the_job_of_a_workload_and_states_of_the_node_are_not_in_the_books():
    job = ListedJob(0, "7", "a", "u", 100 * S, (GPUS[0],))
    entries = [
        msgspec.structs.replace(entry, workload="slurm:7", state=state)
        for entry in ledger([job])
        for state in (SlotState.DOWN, SlotState.UNCLAIMED)
    ]
    assert compare_jobs(entries, [job], 0).agrees


def test_a_job_without_an_end_is_not_compared():
    ran = ListedJob(0, "7", "a", "u", 100 * S, (GPUS[0],))
    running = msgspec.structs.replace(ran, end_ns=FOREVER_NS)
    found = compare_jobs(ledger([ran]), [], 0, unended=[running])
    assert found == JobComparison((), (), 0, unended=("7",))


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


@pytest.mark.parametrize("books_of", [list, counted_fractions], ids=["named", "counted"])
@given(
    st.integers(300, 5000),
    st.lists(st.fractions(Fraction(1, 9), Fraction(8, 9)), min_size=1, max_size=3),
)
def test_another_fraction_is_a_difference(books_of, seconds, shares):
    """The books have half of what the ledger has of the first GPU."""
    whole = ListedJob(0, "7", "a", "u", seconds * S, tuple(GPUS[: len(shares)]))
    (job,) = in_fractions([whole], shares)
    (other,) = in_fractions([whole], [shares[0] / 2, *shares[1:]])
    (difference,) = compare_jobs(ledger([job]), books_of([other]), TOLERANCE).differences
    assert (difference.kinds, difference.difference) == (
        (DifferenceKind.HELD_TIME,),
        shares[0] / 2 * seconds * S,
    )


def test_fractions_of_two_gpus_that_are_exchanged_are_a_difference():
    job = ListedJob(
        0,
        "7",
        "a",
        "u",
        100 * S,
        tuple(GPUS[:2]),
        parts=(
            ListedGpuPart(Fraction(0), Fraction(1, 4)),
            ListedGpuPart(Fraction(0), Fraction(3, 4)),
        ),
    )
    other = msgspec.structs.replace(job, parts=job.parts[::-1])
    assert compare_jobs(ledger([job]), [other], S).differences[0].kinds == (
        DifferenceKind.HELD_TIME,
    )
    assert compare_jobs(ledger([job]), counted_fractions([other]), S).agrees, (
        "no GPU is named there"
    )


def test_a_fraction_that_moves_from_gpu_to_gpu_is_one_job():
    """As metering places a share without a device: 1/2 of one GPU, later 1/4 of each of two."""
    job = ListedJob(0, "7", "a", "u", 100 * S, tuple(GPUS[:1]))
    (whole,) = [one for one in ledger([job]) if one.tiling is Tiling.COMPUTE]
    cut = msgspec.structs.replace
    other = {"gpu": str(GPUS[1]), "claim": f"{whole.claim}#60"}
    entries = [
        cut(whole, t1_ns=60 * S, slot_hi=420),
        cut(whole, t0_ns=60 * S, slot_hi=210),
        cut(whole, t0_ns=60 * S, slot_hi=210, **other),
    ]
    books = cut(job, gpus=(), unplaced=(UnnamedGpus("n1", 1, "no device", share=Fraction(1, 2)),))
    found = compare_jobs(entries, [books], S)
    assert found.agrees
    assert found.tenants[0].difference == 0
    assert compare_jobs(entries[:2], [books], S).differences[0].kinds == (DifferenceKind.HELD_TIME,)
    late = cut(books, start_ns=10 * S)
    assert compare_jobs(entries, [late], S).differences[0].kinds == (DifferenceKind.TIMES,)


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


def test_parts_of_gpus_of_no_stated_size_are_compared_by_their_times():
    job = ListedJob(0, "7", "a", "u", 100 * S, (GPUS[0],))
    part = (UnnamedGpus("n1", 0, "a part of a GPU"),)
    books = msgspec.structs.replace(job, gpus=(), unplaced=part)
    entries = [msgspec.structs.replace(entry, slot_hi=120) for entry in ledger([job])]
    found = compare_jobs(entries, [books], S)
    assert found.agrees
    assert (found.in_parts, found.tenants) == (("7",), ())
    late = msgspec.structs.replace(books, start_ns=5 * S)
    assert compare_jobs(entries, [late], S).differences[0].kinds == (DifferenceKind.TIMES,)


# Real books ----------------------------------------------------------------------------------------


def as_sacct(jobs: Sequence[ListedJob]) -> str:
    """Jobs as sacct prints them."""
    lines = ["|".join(COLUMNS)]
    lines += [
        f"{job.id}|{job.user}|{job.tenant}|{job.start_ns // S}|{job.end_ns // S}"
        f"|{','.join(sorted({gpu.node for gpu in job.gpus}))}|gres/gpu={len(job.gpus)}"
        for job in jobs
    ]
    return "\n".join(lines)


def test_the_ledger_of_a_real_cluster_equals_its_accounting():
    lines = capture_path("jobs/clustercockpit-alex-60pct.jsonl").read_text().splitlines()
    jobs = [job for job in read_clustercockpit(lines).jobs if job.gpus and not job.unplaced]
    books = read_sacct(as_sacct(jobs)).jobs
    found = compare_jobs(ledger(jobs), books, 0)
    assert found.agrees
    assert (found.jobs, len(found.tenants) > 20) == (len(jobs), True)
    dropped = next(job for job in jobs if job.duration_ns)
    without = compare_jobs(ledger(jobs), [book for book in books if book.id != dropped.id], 0)
    assert {difference.job for difference in without.differences} == {dropped.id}


def test_running_jobs_of_slurm_and_its_accounting_are_one_ledger():
    """Indices of GPUs by scontrol, and the same jobs as sacct would print them at their planned end."""
    reported, rows = {}, []
    for name in ("main_array_job", "multi_node"):
        text = capture_path(f"jobs/slurm/scontrol_out_{name}.txt").read_text()
        for job in parse_text(text.replace("=RUNNING", "=COMPLETED"), UTC):
            assert job.start_seconds is not None
            assert job.end_seconds is not None
            gpus = tuple(
                ListedGpu(held.node, str(index))
                for held in job.allocations or ()
                for gres in held.gres
                for index in gres.indices or ()
            )
            span = job.start_seconds, job.end_seconds
            reported[str(job.id)] = ListedJob(
                span[0] * S, str(job.id), job.account, job.user, span[1] * S, tuple(sorted(gpus))
            )
            where = ",".join(job.nodes)
            ids = f"{job.id}|{job.user}|{job.account}"
            rows.append(f"{ids}|{span[0]}|{span[1]}|{where}|gres/gpu={len(gpus)}")
    books = read_sacct("\n".join(["|".join(COLUMNS), *rows])).jobs
    found = compare_jobs(ledger(list(reported.values())), books, 0)
    assert found.agrees
    assert found.jobs == len(books) == len(reported) == 3
    expected: Counter[str] = Counter()
    for book in books:
        expected[book.tenant] += book.unplaced[0].gpus * book.duration_ns
    assert {check.tenant: check.found for check in found.tenants} == expected
