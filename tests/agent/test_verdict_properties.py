"""Properties of every verdict: unknown is never healthy, and no fault improves a GPU."""

from __future__ import annotations

from hypothesis import assume, given, strategies as st
from support.faults import FAULTS
from support.health import HealthFault, healthy, with_faults

from railscope.catalog import gpu as c, gpu_health as h, gpu_sharing as s, nvlink as n
from railscope.catalog.declare import Metric
from railscope.reading import Absent
from railscope_agent.health import RULES, judge
from railscope_agent.health.rule import (
    ACTIONS_BY_SEVERITY,
    DEGRADED,
    FAILED,
    HEALTHY,
    UNKNOWN,
    HealthRule,
)

BY_REASON = {rule.reason: rule for rule in RULES}
BADNESS = (HEALTHY, DEGRADED, UNKNOWN, FAILED)
BROKEN = [reason for reason in Absent if reason is not Absent.UNSUPPORTED]
SOME_FAULTS = st.lists(st.sampled_from([fault for _, fault in FAULTS]), max_size=4)


def places_of(metric: Metric) -> list[tuple[Metric, tuple[str, ...]]]:
    return [(metric, part) for part in healthy().readings.get(metric, {})]


def fault_without(metric: Metric, reason: Absent) -> HealthFault:
    """Return a fault in which no reading of a metric has a value."""
    return HealthFault(dict.fromkeys(places_of(metric), reason))


def required_metrics(rule: HealthRule) -> set[Metric]:
    """Return the readings that a rule requires on a healthy GPU."""
    return {
        metric
        for metric in rule.metrics
        if places_of(metric)
        and rule.evaluate(with_faults([fault_without(metric, Absent.ERROR)])) is not False
    }


def needed_metrics() -> list[Metric]:
    found = {metric for rule in RULES if rule.is_needed for metric in required_metrics(rule)}
    return sorted(found, key=lambda metric: metric.name)


def test_nearly_every_metric_is_one_that_a_verdict_cannot_do_without() -> None:
    of_rules = {metric for rule in RULES if rule.is_needed for metric in rule.metrics}
    assert of_rules - set(needed_metrics()) == {
        # one pulse is enough, and speed matters under load only
        c.GPU_POWER, c.GPU_TEMPERATURE, c.GPU_MEMORY_TOTAL, c.GPU_PERFORMANCE_STATE,
        c.GPU_UTILIZATION,
        # links that are up need no explanation
        s.GPU_MIG_MODE, n.NVLINK_ACTIVE, n.NVLINK_RAW_TRANSMITTED, n.NVLINK_RAW_RECEIVED, n.NVLINK_TRANSMITTED,
        n.NVLINK_RECEIVED,
    }  # fmt: skip


@given(
    st.sampled_from(needed_metrics()),
    st.sampled_from(BROKEN),
    SOME_FAULTS,
)
def test_a_gpu_that_something_needed_is_not_known_of_is_never_healthy(
    metric: Metric, reason: Absent, faults: list[HealthFault]
) -> None:
    verdict = judge(with_faults([*faults, fault_without(metric, reason)]))
    assert verdict.state in {UNKNOWN, FAILED}


@given(st.sampled_from(["gpu", "gpu_health", "nvlink"]), st.sampled_from(BROKEN), SOME_FAULTS)
def test_a_gpu_without_readings_of_a_needed_source_is_never_healthy(
    source: str, reason: Absent, faults: list[HealthFault]
) -> None:
    verdict = judge(with_faults([*faults, HealthFault(absent_sources={source: reason})]))
    assert verdict.state in {UNKNOWN, FAILED}


@given(
    SOME_FAULTS,
    # Missing readings add no fault; they remove facts, those of faults included.
    st.sampled_from([fault for _, fault in FAULTS if not fault.absent_sources]),
    st.lists(st.tuples(st.sampled_from(needed_metrics()), st.sampled_from(BROKEN)), max_size=2),
)
def test_one_more_fault_never_makes_a_gpu_better(
    faults: list[HealthFault], another: HealthFault, missing: list[tuple[Metric, Absent]]
) -> None:
    # Two faults that require different values of one reading cannot both be present.
    assume(all(another.places.isdisjoint(fault.places) for fault in faults))
    unknown = [fault_without(*what) for what in missing]
    before = judge(with_faults([*faults, *unknown]))
    after = judge(with_faults([*faults, another, *unknown]))
    assert BADNESS.index(after.state) >= BADNESS.index(before.state)


@given(SOME_FAULTS)
def test_the_action_is_the_most_severe_of_all_faults(faults: list[HealthFault]) -> None:
    facts = with_faults(faults)
    verdict = judge(facts)
    asked = {
        a for reason in verdict.reasons for a in BY_REASON[reason].required_actions(facts).actions
    }
    assert set(verdict.actions) == asked
    assert "ignore" not in asked
    if asked:
        hardest = max(asked, key=ACTIONS_BY_SEVERITY.index)
        assert verdict.action == next(c for c, w in h.GPU_ACTION.states.items() if w == hardest)
    assert (verdict.action == 0) == (verdict.state == HEALTHY)
