"""With too many jobs, no node hides those of another."""

from __future__ import annotations

from hypothesis import given, strategies as st

from railscope_collector.workloads.job_roster import (
    MAX_JOBS_OF_A_NODE,
    JobGpu,
    JobHolding,
    JobKey,
    RunningJob,
    fair_selection,
)


def job(number: int, *nodes: str) -> RunningJob:
    key = JobKey("tenant", "slurm", str(number))
    places = (
        JobGpu(f"GPU-{number}-{n}", 0, JobHolding(key, n, 840, 0), is_alone=True) for n in nodes
    )
    return RunningJob(key, number, tuple(places))


def test_thousands_of_invented_jobs_hide_none_of_another_node():
    invented = [job(number, "hostile") for number in range(5880)]
    honest = [job(10_000 + number, "n1") for number in range(8)]
    wide = job(20_000, "hostile", "n1", "n2")
    chosen = fair_selection([*invented, *honest, wide], 5000)
    assert [one for one in chosen if one in honest] == honest
    assert wide in chosen
    assert len(chosen) == MAX_JOBS_OF_A_NODE + len(honest) + 1


@given(st.lists(st.sets(st.sampled_from("abcd"), min_size=1), max_size=40), st.integers(0, 20))
def test_the_selection_is_bounded_in_order_and_without_gaps(nodes: list[set[str]], bound: int):
    jobs = [job(number, *sorted(some)) for number, some in enumerate(nodes)]
    chosen = fair_selection(jobs, bound)
    assert len(chosen) == min(bound, len(jobs))
    assert chosen == [job for job in jobs if job in chosen]
    if len({name for some in nodes for name in some}) <= bound:
        first = {
            name: next(one for one, some in zip(jobs, nodes, strict=True) if name in some)
            for name in set().union(*nodes, set())
        }
        assert all(one in chosen for one in first.values())
