"""Job lists as ledgers: every tenant has the time of the list, to the nanosecond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.job_books import job_days, with_placeholders, write_jobs
from support.shared import capture_path

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS
from railscope_collector.jobs.clustercockpit import read_clustercockpit
from railscope_collector.jobs.job_list import ListedJob, UnnamedGpus
from railscope_collector.jobs.job_list_import import ImportCounts
from railscope_collector.jobs.job_metering import meter_jobs
from railscope_collector.jobs.job_reconciliation import DifferenceKind, compare_jobs
from railscope_collector.ledger.day_tiling import check_tiling
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Tiling
from railscope_collector.tables import metadata

S = 1_000_000_000


@pytest.fixture
def ledger(tmp_path: Path):
    found = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}", metadata)
    yield found
    found.close()


def held(ledger: Ledger, state: SlotState) -> dict[str, int]:
    """GPU-nanoseconds by tenant."""
    totals = ledger.totals(0, FOREVER_NS).items()
    return {
        of.tenant: quantity // GPU_CAPACITY
        for of, quantity in totals
        if (of.tiling, of.state) == (Tiling.COMPUTE, state)
    }


def counted_jobs() -> st.SearchStrategy[list[ListedJob]]:
    one = st.tuples(
        st.integers(0, 200_000), st.integers(0, 200_000), st.sampled_from("abc"), st.integers(0, 5)
    )
    return st.lists(one, max_size=12).map(
        lambda found: [
            ListedJob(
                start * S,
                str(number),
                tenant,
                "u",
                (start + seconds) * S,
                unplaced=(UnnamedGpus("n1", gpus, "counted"),) if gpus else (),
            )
            for number, (start, seconds, tenant, gpus) in enumerate(found)
        ]
    )


def max_at_once(jobs: Sequence[ListedJob]) -> int:
    """Maximum number of GPUs held at once; jobs that last no time need one, too."""
    edges = [
        (at, way, sum(part.gpus for part in job.unplaced))
        for job in jobs
        for at, way in ((job.start_ns, 1), (job.end_ns, -1))
        if job.start_ns < job.end_ns
    ]
    present = most = 0
    for _, way, gpus in sorted(edges):
        present += way * gpus
        most = max(most, present)
    return most


@given(counted_jobs())
def test_stand_ins_are_as_many_as_were_held_at_once_and_never_overlap(jobs):
    placed = with_placeholders(jobs)
    assert [job.unplaced for job in placed] == [()] * len(jobs)
    expected: Counter[str] = Counter()
    for job in jobs:
        expected[job.tenant] += sum(part.gpus for part in job.unplaced) * job.duration_ns
    metered = meter_jobs(placed)
    assert metered.overlaps == ()
    assert metered.balances
    assert {tenant: time for tenant, time in metered.tenants.items() if time} == {
        tenant: time for tenant, time in expected.items() if time
    }
    lasting = [job for job in placed if job.duration_ns]
    assert len({gpu for job in lasting for gpu in job.gpus}) <= max_at_once(jobs) + max(
        (sum(p.gpus for p in job.unplaced) for job in jobs if not job.duration_ns), default=0
    )
    assert compare_jobs([e for day in job_days(placed) for e in day.entries], jobs, 0).agrees


@given(counted_jobs())
def test_every_day_is_a_complete_tiling_of_whole_days(jobs):
    for as_observed in (False, True):
        for day in job_days(with_placeholders(jobs), as_observed=as_observed):
            check_tiling(day)
            states = {entry.state for entry in day.entries if entry.tenant}
            assert states <= {SlotState.OBSERVED if as_observed else SlotState.INFERRED}


def test_a_real_cluster_is_in_the_ledger_to_the_nanosecond(ledger):
    lines = capture_path("jobs/clustercockpit-alex-60pct.jsonl").read_text().splitlines()
    jobs = read_clustercockpit(lines).jobs
    expected = {tenant: time for tenant, time in meter_jobs(jobs).tenants.items() if time}
    first = write_jobs(ledger, jobs)
    assert first.unchanged == 0
    assert held(ledger, SlotState.INFERRED) == expected
    assert write_jobs(ledger, jobs) == ImportCounts(0, first.added)
    lacking = compare_jobs(ledger.entries(0, FOREVER_NS), jobs, 0).differences
    assert [one.job for one in lacking] == [job.id for job in jobs if job.unplaced]
    assert {one.kinds for one in lacking} == {(DifferenceKind.NOT_IN_LEDGER,)}
    write_jobs(ledger, with_placeholders(jobs))
    assert compare_jobs(ledger.entries(0, FOREVER_NS), jobs, 0).agrees
