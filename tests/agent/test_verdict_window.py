"""Growth of counters over the last minutes."""

from __future__ import annotations

from agent.health.gpu_facts import STEP_NS, WINDOW_NS, CounterWindow
from agent.health.rule import MINUTE_NS


def test_a_window_is_bounded_however_long_it_is_used() -> None:
    window: CounterWindow[str] = CounterWindow()
    window.set_keys(["a", "b"])
    for second in range(0, 86_400, 5):
        window.add(second * 10**9, {"a": second, "b": 7})
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
        window.add(second * 10**9, {"a": second})
    window.add(300 * 10**9, {"a": 4})
    change = window.change("a")
    assert change
    assert (change.increase, change.over_ns, change.recent) == (4, 5 * 10**9, 4)
    for second in range(305, 600, 5):
        window.add(second * 10**9, {"a": 4 + second - 300})
    change = window.change("a")
    assert change
    assert (change.increase, change.over_ns) == (299, 300 * 10**9)
    assert MINUTE_NS <= change.recent_ns == change.recent * 10**9


def test_a_window_keeps_the_past_of_counters_that_stay() -> None:
    window: CounterWindow[str] = CounterWindow()
    window.set_keys(["a", "b"])
    for second in range(0, 300, 5):
        window.add(second * 10**9, {"a": second, "b": second})
    window.set_keys(["c", "b"])
    window.add(300 * 10**9, {"b": 300, "c": 5})
    assert window.change("a") is None
    assert window.change("c") is None
    kept = window.change("b")
    assert kept
    assert (kept.increase, kept.over_ns) == (300, 300 * 10**9)


def test_a_counter_of_64_bits_may_stand_at_its_end() -> None:
    window: CounterWindow[str] = CounterWindow()
    window.set_keys(["a"])
    for second, value in enumerate((0, 2**64 - 1, 3, 2**64 - 1)):
        window.add(second * 10**9, {"a": value})
    change = window.change("a")
    assert change
    assert change.increase == 2**64 - 1
