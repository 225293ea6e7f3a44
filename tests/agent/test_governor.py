"""The governor's arithmetic: properties for any set of sources, and its intended cases."""

from __future__ import annotations

from hypothesis import given, strategies as st
from support.examples import fewer_examples
from support.governed import GovernedSources, SimulatedSource

from railscope_agent.sampling.governor import (
    AT_LIMIT,
    SOURCES_SHARE,
    STRETCHING,
    WITHIN,
)

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


def four(**changes: float) -> list[SimulatedSource]:
    """Sources of ordinary cost: together 0.4 % of a core."""
    names = {"gpu": 2.0, "rdma": 1.0, "nic": 0.6, "agent": 0.4}
    return [
        SimulatedSource(name, cpu_ms=changes.get(name, cpu_ms), family="shared")
        for name, cpu_ms in names.items()
    ]
