"""Time of tenants, compared with a calculation that is independent of metering."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import given, strategies as st
from support.job_books import job_days
from support.shared import capture_path

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.billing.ledger_usage import usages_of_days
from railscope_collector.jobs.clustercockpit import read_clustercockpit
from railscope_collector.jobs.job_list import ListedGpu, ListedJob
from railscope_collector.jobs.job_metering import meter_jobs

S = 1_000_000_000


class JobUse(NamedTuple):
    """A job's use of one GPU; in the order in which the later prevails."""

    start: int
    claim: str
    end: int
    tenant: str


def swept(uses: Iterable[JobUse]) -> tuple[Counter[str], int]:
    """Time of one GPU by tenant, and from the first start to the last end.

    At each instant the job that began last has it; of two that began at once the one with the
    greater number. When it ends, the one before has it again.
    """
    every = list(uses)
    edges = sorted({edge for use in every for edge in (use.start, use.end)})
    held: Counter[str] = Counter()
    for start, end in pairwise(edges):
        running = [use for use in every if use.start <= start < use.end]
        if running:
            last = max(running, key=lambda use: (use.start, int(use.claim.split("@")[0])))
            held[last.tenant] += end - start
    return held, max(use.end for use in every) - min(use.start for use in every)


def straight(uses: dict[Any, list[JobUse]]) -> tuple[dict[str, int], int]:
    """Of all GPUs: the tenants, and the capacity."""
    found = [swept(each) for each in uses.values()]
    tenants = {use.tenant: 0 for each in uses.values() for use in each}
    for held, _ in found:
        for tenant, time in held.items():
            tenants[tenant] += time
    return tenants, sum(capacity for _, capacity in found)


def uses_of(jobs: Sequence[ListedJob]) -> dict[ListedGpu, list[JobUse]]:
    found = defaultdict(list)
    for job in jobs:
        for gpu in job.gpus:
            found[gpu].append(JobUse(job.start_ns, job.claim, job.end_ns, job.tenant))
    return found


GPUS = [ListedGpu(node, f"00000000:0{number}:00.0") for node in ("n1", "n2") for number in range(2)]


def made(
    number: int, start: int, seconds: int, tenant: str, gpus: Sequence[ListedGpu]
) -> ListedJob:
    return ListedJob(
        start * S,
        str(number),
        tenant,
        f"user of {number}",
        (start + seconds) * S,
        tuple(sorted(gpus)),
    )


@st.composite
def job_lists(draw: st.DrawFn) -> list[ListedJob]:
    """Jobs that crowd a few GPUs, so that most overlap; some last no time at all."""
    one = st.tuples(
        st.integers(0, 30),
        st.integers(0, 20),
        st.sampled_from("abc"),
        st.lists(st.sampled_from(GPUS), unique=True, max_size=3),
    )
    return [made(number, *job) for number, job in enumerate(draw(st.lists(one, max_size=12)), 1)]


@given(job_lists())
def test_tenants_have_the_time_of_a_sweep_over_the_intervals(jobs):
    metered = meter_jobs(jobs)
    tenants, capacity = straight(uses_of(jobs))
    assert metered.tenants == tenants
    assert metered.capacity_ns == capacity
    assert metered.free_ns == capacity - sum(tenants.values())
    assert metered.balances


@given(job_lists())
def test_what_would_be_rated_is_what_tenants_have(jobs):
    rated: Counter[str] = Counter()
    for usage in usages_of_days(job_days(jobs, "gpu")):
        if usage.tenant:
            time = usage.capacity_units * (usage.end_ns - usage.start_ns)
            rated[usage.tenant] += time // GPU_CAPACITY
    assert rated == Counter(meter_jobs(jobs).tenants)


CAPTURE = "jobs/clustercockpit-alex-60pct.jsonl"


def test_every_project_of_a_real_cluster_has_its_time_to_the_nanosecond():
    text = capture_path(CAPTURE).read_text()
    uses: dict[Any, list[JobUse]] = defaultdict(list)
    nameless: Counter[str] = Counter()
    lines = text.splitlines()
    for job in map(json.loads, lines):
        start, end = job["start_time"] * S, (job["start_time"] + job["duration"]) * S
        claim = f"{job['job_id']}@{job['start_time']}"
        for resource in job["resources"]:
            for address in resource["accelerators"]:
                if not address:
                    nameless[job["project"]] += end - start
                    continue
                where = (resource["hostname"], address)
                uses[where].append(JobUse(start, claim, end, job["project"]))
    tenants, capacity = straight(uses)
    metered = meter_jobs(read_clustercockpit(lines).jobs)
    assert metered.tenants == tenants
    assert metered.capacity_ns == capacity
    assert metered.balances
    assert metered.unplaced_ns == nameless
    assert metered.gpus == len(uses) > 100
    assert len(tenants) > 20
