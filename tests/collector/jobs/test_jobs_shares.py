"""Shares of GPUs in job lists: exact fractions on placeholders, or a reason."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from hypothesis import given, strategies as st

from railscope_collector.jobs.gpu_models import GpuModels
from railscope_collector.jobs.job_list import ListedJob, UnnamedGpus
from railscope_collector.jobs.job_metering import meter_jobs
from railscope_collector.jobs.placeholder_gpus import number_placeholders

S = 1_000_000_000


# Alibaba -----------------------------------------------------------------------------------------


# Properties --------------------------------------------------------------------------------------

one_job = st.tuples(
    st.integers(0, 50),
    st.integers(1, 50),
    st.sampled_from("abc"),
    st.integers(1, 3),
    st.sampled_from(
        [Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(3, 8), Fraction(1, 840)]
    ),
)


@given(st.lists(one_job, max_size=12))
def test_shares_are_exact_and_never_overlap(found):
    jobs = [
        ListedJob(
            start * S,
            str(number),
            tenant,
            "u",
            (start + seconds) * S,
            unplaced=(UnnamedGpus("n1", gpus, "counted", "", share),),
        )
        for number, (start, seconds, tenant, gpus, share) in enumerate(found)
    ]
    placed = number_placeholders(jobs, "s", GpuModels()).jobs
    assert not any(job.unplaced for job in placed)
    expected: dict[str, Fraction] = defaultdict(Fraction)
    for _, seconds, tenant, gpus, share in found:
        expected[tenant] += seconds * S * gpus * share
    metered = meter_jobs(placed)
    assert metered.tenants == expected
    assert metered.balances
    assert metered.overlaps == ()
    for job in placed:
        assert len(set(job.gpus)) == len(job.gpus), "each part is on a GPU of its own"
