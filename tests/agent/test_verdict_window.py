"""Growth of counters over the last minutes, and facts that stay the same objects while nothing changes."""

from __future__ import annotations

from array import array
from dataclasses import replace

from hypothesis import given, strategies as st

from railscope.catalog import entities, gpu_health as h, nvlink as n
from railscope.catalog.declare import Metric
from railscope.frame import Entity, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.reading import PRESENT, REASONS
from railscope_agent.health import RuleResults, judge
from railscope_agent.health.counter_window import (
    HOUR_STEP_NS,
    STEP_NS,
    WINDOW_NS,
    CounterWindow,
)
from railscope_agent.health.gpu_facts import FactCollector
from railscope_agent.health.health_facts import HOUR_NS, MINUTE_NS, CounterIncrease, DevicePart
from railscope_agent.streams.xid_matcher import XidMatcher


def test_a_window_is_bounded_however_long_it_is_used() -> None:
    window: CounterWindow[str] = CounterWindow()
    window.set_keys(["a", "b"])
    for second in range(0, 86_400, 5):
        window.add(second * 10**9, [second, 7])
    assert len(window._marks) <= WINDOW_NS // STEP_NS + 2  # noqa: SLF001 - the bound on memory
    change = window.change("a")
    assert change
    assert WINDOW_NS <= change.over_ns <= WINDOW_NS + STEP_NS
    assert change.increase * 10**9 == change.over_ns
    assert MINUTE_NS <= change.recent_ns <= MINUTE_NS + STEP_NS
    assert change.recent * 10**9 == change.recent_ns
    still = window.change("b")
    assert still
    assert still.increase == 0


def test_growth_before_a_reset_is_forgotten() -> None:
    window: CounterWindow[str] = CounterWindow()
    window.set_keys(["a"])
    for second in range(0, 300, 5):
        window.add(second * 10**9, [second])
    window.add(300 * 10**9, [4])
    change = window.change("a")
    assert change
    assert (change.increase, change.over_ns, change.recent) == (4, 5 * 10**9, 4)
    for second in range(305, 600, 5):
        window.add(second * 10**9, [4 + second - 300])
    change = window.change("a")
    assert change
    assert (change.increase, change.over_ns) == (299, 300 * 10**9)
    assert MINUTE_NS <= change.recent_ns == change.recent * 10**9


def test_a_counter_that_steps_back_has_not_grown() -> None:
    window: CounterWindow[str] = CounterWindow()
    window.set_keys(["a"])
    for second, value in enumerate((4_294_967_290, 4_294_967_287, 4_294_967_284, 4_294_967_289)):
        window.add(second * 10**9, [value])
    change = window.change("a")
    assert change
    assert (change.increase, change.over_ns) == (5, 2 * 10**9)


def test_an_hour_is_kept_in_few_marks_and_ends_with_a_reset() -> None:
    window: CounterWindow[str] = CounterWindow()
    window.set_keys(["a", "b"])
    for second in range(0, 3 * 3600, 5):
        window.set_keys(["a", "b"])
        window.add(second * 10**9, [second, 500 if second > 3600 else 0])
    change, burst = window.change("a"), window.change("b")
    assert change
    assert burst
    assert HOUR_NS <= change.hour_ns <= HOUR_NS + HOUR_STEP_NS
    assert change.per_hour() == 3600
    assert burst.per_hour() == 0
    window.add(3 * 3600 * 10**9, [4, 500])
    window.add((3 * 3600 + 90) * 10**9, [4, 500])
    after = window.change("a")
    assert after
    assert (after.hour, after.hour_ns) == (4, 95 * 10**9)


def test_a_window_keeps_the_past_of_counters_that_stay() -> None:
    window: CounterWindow[str] = CounterWindow()
    window.set_keys(["a", "b"])
    for second in range(0, 300, 5):
        window.add(second * 10**9, [second, second])
    window.set_keys(["c", "b"])
    window.add(300 * 10**9, [5, 300])
    assert window.change("a") is None
    assert window.change("c") is None
    kept = window.change("b")
    assert kept
    assert (kept.increase, kept.over_ns) == (300, 300 * 10**9)


def test_a_counter_of_64_bits_may_stand_at_its_end() -> None:
    window: CounterWindow[str] = CounterWindow()
    window.set_keys(["a"])
    for second, value in enumerate((0, 2**64 - 1, 3, 2**64 - 1)):
        window.add(second * 10**9, [value])
    change = window.change("a")
    assert change
    assert change.increase == 2**64 - 1


GPU = Entity(entities.GPU, ("GPU-0",), {"pci_address": "0000:01:00.0"})
LINKS = [GPU.child(entities.NVLINK_ERROR, str(link), "crc") for link in range(2)]
COLUMNS = (
    (h.GPU_PCIE_GENERATION, GPU),
    (h.GPU_PCIE_REPLAYS, GPU),
    *((n.NVLINK_ERRORS, link) for link in LINKS),
)
SCHEMA = Schema("gpu_health", COLUMNS)
STILL = (0,) * (len(COLUMNS) - 1)
GROWTH = st.tuples(*[st.sampled_from([-1, 0, 1, 100_000])] * len(STILL))
ABSENCES = st.binary(min_size=len(COLUMNS), max_size=len(COLUMNS))
STEPS = st.lists(
    st.tuples(
        st.sampled_from([5, 10, 40]),
        st.one_of(*[st.just(STILL)] * 5, GROWTH),
        st.one_of(*[st.just(b"")] * 5, ABSENCES),
    ),
    min_size=8,
    max_size=30,
)


@given(STEPS)
def test_facts_that_stay_the_same_objects_have_the_verdict_of_exact_ones(
    steps: list[tuple[int, tuple[int, ...], bytes]],
) -> None:
    collector, kept = FactCollector(XidMatcher()), RuleResults()
    values, second = [4, 0, 0, 0], 0
    for seconds, growth, absences in steps:
        second += seconds
        values[1:] = [max(v + grown, 0) for v, grown in zip(values[1:], growth, strict=True)]
        reasons = bytes(byte if byte in REASONS else PRESENT for byte in absences)
        at = NodeTimestamp(0, second * 10**9)
        frame = Frame(FrameOrigin("n", "r", "b"), SCHEMA, 1, at, array("q", values), reasons)
        collector.update({"gpu_health": frame}, second * 10**9)
        facts = collector.facts(GPU)
        window = collector._readings["gpu_health"]._window  # noqa: SLF001 - exact increases
        exact: dict[Metric, dict[DevicePart, CounterIncrease]] = {}
        for metric, entity in COLUMNS:
            part = entity.key[1:]
            if increase := window.change((("gpu", "GPU-0"), metric, part)):
                exact.setdefault(metric, {})[part] = increase
        assert {m: {p: i.increase for p, i in of.items()} for m, of in facts.changes.items()} == {
            m: {p: i.increase for p, i in of.items()} for m, of in exact.items()
        }
        assert {m: dict(of) for m, of in facts.readings.items()} == {
            metric: {e.key[1:]: frame.reading(i) for i, (m, e) in enumerate(COLUMNS) if m is metric}
            for metric, _ in COLUMNS
        }
        assert judge(facts, results=kept) == judge(replace(facts, changes=exact))
