"""The governor's arithmetic: properties for any set of sources, and its intended cases."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st
from support.examples import fewer_examples
from support.governed import MS, NS, GovernedSources, SimulatedSource

from railscope_agent.sampling.governor import (
    AT_LIMIT,
    HOLD_NS,
    SOURCES_SHARE,
    STRETCHING,
    THREAD_SHARE,
    WITHIN,
    GovernedLoad,
    GovernedSource,
    Governor,
    PeriodFactorFitter,
)
from railscope_agent.sampling.meter import ReadCost, ThreadCost

STABLE_AFTER_SECONDS = 600.0
BUDGET = 0.01


@st.composite
def sets_of_sources(draw: st.DrawFn) -> list[SimulatedSource]:
    """Some sources, of which a few share a thread; costs over four orders of magnitude."""
    count = draw(st.integers(1, 8))
    return [
        SimulatedSource(
            name=f"s{number}",
            period_seconds=draw(st.sampled_from([0.25, 0.5, 1.0, 5.0, 10.0, 60.0])),
            cpu_ms=draw(st.sampled_from([0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 40.0])),
            wall_ms=draw(st.sampled_from([None, 50.0, 400.0])),
            probe_cpu_ms=draw(st.sampled_from([0.0, 2.0, 30.0])),
            family=draw(st.sampled_from(["", "shared"])),
            longest_seconds=draw(st.sampled_from([5.0, 20.0, 120.0])),
        )
        for number in range(count)
    ]


@given(sources=sets_of_sources(), rest=st.sampled_from([0.0, 0.002, 0.006, 0.03]))
@fewer_examples(30)
def test_the_budget_is_kept_wherever_periods_can_keep_it(
    sources: list[SimulatedSource], rest: float
) -> None:
    run = GovernedSources(sources, BUDGET, rest)
    run.run(STABLE_AFTER_SECONDS)
    allowance = max(BUDGET - rest, SOURCES_SHARE * BUDGET) * 1.02
    fair = allowance / len(sources)
    spent_out = all(
        run.period_factor(source.name) == source.governed.max_period_factor
        or run.share(source) <= fair
        for source in sources
    )
    assert run.shares <= allowance or spent_out
    if run.shares + rest < BUDGET * 0.98:
        assert run.governor.state in {WITHIN, STRETCHING}
    if run.shares + rest > BUDGET * 1.05:
        assert run.governor.state == AT_LIMIT


@given(sources=sets_of_sources())
@fewer_examples(30)
def test_no_thread_is_held_longer_than_its_share_where_periods_can_help(
    sources: list[SimulatedSource],
) -> None:
    run = GovernedSources(sources, BUDGET)
    run.run(STABLE_AFTER_SECONDS)
    for family in {source.governed.family for source in sources}:
        members = [source for source in sources if source.governed.family == family]
        waits = {
            s.name: run.governor.loads[s.name].wall_share(run.period_factor(s.name))
            for s in members
        }
        fair = THREAD_SHARE / len(members)
        assert sum(waits.values()) <= THREAD_SHARE or all(
            run.period_factor(s.name) == s.governed.max_period_factor
            or waits[s.name] <= fair * 1.01
            for s in members
        )


@given(sources=sets_of_sources(), rest=st.sampled_from([0.0, 0.002, 0.006]))
@fewer_examples(25)
def test_at_constant_costs_nothing_changes_once_stable(
    sources: list[SimulatedSource], rest: float
) -> None:
    run = GovernedSources(sources, BUDGET, rest)
    run.run(STABLE_AFTER_SECONDS)
    run.changes.clear()
    run.run(STABLE_AFTER_SECONDS)
    assert run.changes == []


@given(sources=sets_of_sources())
@fewer_examples(25)
def test_periods_come_back_when_the_cause_is_gone(sources: list[SimulatedSource]) -> None:
    run = GovernedSources(sources, BUDGET)
    run.run(STABLE_AFTER_SECONDS)
    for source in sources:
        source.cpu_ms, source.wall_ms, source.probe_cpu_ms = 0.0001, None, 0.0
    run.run(3600)
    assert run.lengthened_periods == {}
    assert run.governor.state == WITHIN


@given(
    costs=st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=12),
    allowance=st.floats(1e-4, 0.5),
    part=st.floats(0.1, 1.0),
)
def test_a_smaller_allowance_lengthens_no_period_less(
    costs: list[float], allowance: float, part: float
) -> None:
    """Relaxing a period relies on this: a stable point exists between both bounds."""
    loads = []
    for number, cost in enumerate(costs):
        load = GovernedLoad(GovernedSource(str(number), "", NS, 120 * NS), min_values=1)
        load.record_cost(ReadCost(ThreadCost(round(cost))), 0)
        loads.append(load)
    full = PeriodFactorFitter(loads, GovernedLoad.cpu_share).fit(allowance)
    less = PeriodFactorFitter(loads, GovernedLoad.cpu_share).fit(part * allowance)
    assert all(less[name] >= period_factor for name, period_factor in full.items())
    both = PeriodFactorFitter(loads, GovernedLoad.cpu_share)
    assert (both.fit(allowance), both.fit(part * allowance)) == (full, less)


def four(**changes: float) -> list[SimulatedSource]:
    """Sources of ordinary cost: together 0.4 % of a core."""
    names = {"gpu": 2.0, "rdma": 1.0, "nic": 0.6, "agent": 0.4}
    return [
        SimulatedSource(name, cpu_ms=changes.get(name, cpu_ms), family="shared")
        for name, cpu_ms in names.items()
    ]


def test_sources_within_the_budget_are_unchanged() -> None:
    run = GovernedSources(four(), BUDGET)
    run.run(STABLE_AFTER_SECONDS)
    assert (run.changes, run.governor.state) == ([], WITHIN)
    assert run.governor.expected_use == pytest.approx(0.004)
    assert run.governor.use == pytest.approx(0.004, rel=0.02)


def test_a_source_that_becomes_a_hundred_times_as_expensive_pays_alone_and_within_a_few_reads() -> (
    None
):
    sources = four()
    run = GovernedSources(sources, BUDGET)
    run.run(120)
    rdma = sources[1]
    rdma.cpu_ms *= 100
    began_ns = run.now_ns
    run.run(8)
    assert run.lengthened_periods == {"rdma": 16}
    assert {name for _, name, _ in run.changes} == {"rdma"}
    assert run.changes[-1][0] - began_ns <= 5 * NS
    assert run.governor.state == STRETCHING
    assert run.governor.loads["rdma"].why == "processor time"
    run.run(300)
    assert run.shares <= BUDGET
    assert run.governor.use is not None
    assert run.governor.use <= BUDGET
    rdma.cpu_ms /= 100
    run.run(900)
    assert (run.lengthened_periods, run.governor.state) == ({}, WITHIN)
    assert run.governor.loads["rdma"].why == "within budget"


def test_a_source_that_only_makes_its_thread_wait_is_lengthened_too() -> None:
    sources = four()
    run = GovernedSources(sources, BUDGET)
    run.run(120)
    rdma = sources[1]
    rdma.wall_ms = 900.0
    run.run(30)
    assert run.lengthened_periods == {"rdma": 4}
    assert run.governor.loads["rdma"].why == "blocks its thread"
    assert run.governor.expected_use < BUDGET
    rdma.wall_ms = None
    run.run(900)
    assert run.lengthened_periods == {}


@pytest.mark.parametrize("what", ["cpu_ms", "wall_ms", "probe_cpu_ms"])
def test_a_lone_outlier_changes_nothing(what: str) -> None:
    """A garbage collection, a page fault, a driver that hung once for half a minute."""
    sources = four()
    run = GovernedSources(sources, BUDGET)
    run.run(120)
    setattr(sources[0], what, 30_000.0)
    run.run(1)
    setattr(sources[0], what, 0.0 if what == "probe_cpu_ms" else 2.0)
    run.run(600)
    assert run.changes == []


def test_an_expensive_start_changes_no_period() -> None:
    """The first probe and the first read load libraries and open files."""
    sources = four()
    for source in sources:
        source.cpu_ms, source.probe_cpu_ms = 80.0, 900.0
    run = GovernedSources(sources, BUDGET)
    run.run(0.5)
    for source in sources:
        source.cpu_ms, source.probe_cpu_ms = 1.0, 2.0
    run.run(600)
    assert run.changes == []


def test_costs_that_waver_do_not_make_periods_waver() -> None:
    chance = random.Random(7)  # noqa: S311 - the same noise in every run
    sources = four(gpu=16.0)
    for source in sources:
        source.noise = lambda: chance.uniform(0.6, 1.4)
    run = GovernedSources(sources, BUDGET)
    run.run(1800)
    assert run.lengthened_periods
    assert len(run.changes) <= 4, run.changes


def test_a_longer_period_stays_a_minute_at_least() -> None:
    """A source therefore causes at most two events per minute at any cost."""
    sources = four()
    run = GovernedSources(sources, BUDGET)
    run.run(60)
    for _ in range(20):
        sources[0].cpu_ms = 14.0
        run.run(12)
        sources[0].cpu_ms = 0.2
        run.run(28)
    times = [at_ns for at_ns, _, _ in run.changes]
    period_factors = [period_factor for _, _, period_factor in run.changes]
    relaxed = [
        i for i in range(1, len(period_factors)) if period_factors[i] < period_factors[i - 1]
    ]
    assert relaxed
    assert all(times[i] - times[i - 1] >= HOLD_NS for i in relaxed)


def test_the_most_expensive_period_is_lengthened_first_and_restored_last() -> None:
    sources = four(gpu=30.0, rdma=12.0)
    run = GovernedSources(sources, BUDGET)
    run.run(STABLE_AFTER_SECONDS)
    assert run.period_factor("gpu") > run.period_factor("rdma") > 1
    assert run.lengthened_periods.keys() == {"gpu", "rdma"}
    for source in sources:
        source.cpu_ms /= 4
    run.changes.clear()
    run.run(STABLE_AFTER_SECONDS)
    assert run.lengthened_periods.keys() == {"gpu"}
    assert run.shares <= BUDGET


def test_a_source_at_its_longest_period_does_not_slow_cheap_ones() -> None:
    sources = four()
    sources[0].cpu_ms, sources[0].longest_seconds = 200.0, 5.0
    run = GovernedSources(sources, BUDGET)
    run.run(STABLE_AFTER_SECONDS)
    assert run.lengthened_periods == {"gpu": 4}
    assert run.governor.state == AT_LIMIT


def test_a_page_that_is_scraped_without_pause_does_not_blind_the_sources() -> None:
    run = GovernedSources(four(), BUDGET, rest_ratio=0.05)
    run.run(STABLE_AFTER_SECONDS)
    assert run.governor.state == AT_LIMIT
    assert run.governor.other_use == pytest.approx(0.05, rel=0.02)
    assert run.lengthened_periods == {"gpu": 4}
    run.rest_ratio = 0.0
    run.run(STABLE_AFTER_SECONDS)
    assert (run.lengthened_periods, run.governor.state) == ({}, WITHIN)


def test_expensive_probes_count_at_their_own_rate() -> None:
    """Once per minute they are cheap; at every read, as for a failing source, they are not."""
    sources = four()
    sources[0].probe_cpu_ms = 100.0
    run = GovernedSources(sources, BUDGET)
    run.run(STABLE_AFTER_SECONDS)
    assert run.lengthened_periods == {}
    governor = run.governor
    for second in range(10):
        at_ns = run.now_ns + second * NS
        governor.record_read("gpu", ReadCost(ThreadCost(2 * MS), ThreadCost(100 * MS)), at_ns)
        governor.decide(lambda: 0, at_ns)
    assert governor.loads["gpu"].period_factor == 16


def test_a_source_that_is_not_here_takes_nothing() -> None:
    governor = Governor(BUDGET, [source.governed for source in four()])
    for second in range(5):
        governor.record_read("gpu", ReadCost(ThreadCost(200 * MS)), second * NS)
        governor.decide(lambda: 0, second * NS)
    assert governor.loads["gpu"].period_factor > 1
    governor.record_absence("gpu")
    governor.decide(lambda: 0, 300 * NS)
    assert governor.loads["gpu"].period_factor == 1
    assert governor.expected_use == 0


def test_without_a_budget_no_period_is_lengthened_and_use_is_measured() -> None:
    run = GovernedSources(four(gpu=500.0), 0)
    run.run(120)
    assert (run.changes, run.governor.state) == ([], WITHIN)
    assert run.governor.use == pytest.approx(0.502, rel=0.02)


@pytest.mark.parametrize(
    ("period", "longest", "most"),
    [(1, 120, 64), (1, 5, 4), (10, 120, 8), (60, 60, 1), (0.02, 10, 64)],
)
def test_no_period_exceeds_the_longest_of_its_source(
    period: float, longest: float, most: int
) -> None:
    assert GovernedSource("s", "f", round(period * NS), longest * NS).max_period_factor == most
