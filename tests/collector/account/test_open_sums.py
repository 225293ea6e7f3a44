"""Time of many GPUs added up at once, against GPU by GPU."""

from hypothesis import given, strategies as st

from railscope.timestamps import DAY_NS
from railscope_collector.account.account_sums import OpenSums, Rates, StateUnits, TimeSums, add_span
from railscope_collector.metering.tiling import SlotState

states = st.builds(
    StateUnits, st.sampled_from(SlotState), st.sampled_from(["", "a", "b"]), st.integers(1, 840)
)
rates = st.tuples(*[st.lists(states, max_size=3).map(tuple)] * 2)
NOW_NS = 20_000 * DAY_NS + 7
gpus = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3 * DAY_NS), st.floats(0, 1, allow_nan=False)),
    max_size=12,
)
"""Number of the rates, age of the last sample of the computation, position of the newest sample."""


@given(st.tuples(rates, rates, rates), gpus, st.integers(0, DAY_NS - 1))
def test_equal_states_are_added_up_at_once(
    profiles: tuple[Rates, Rates, Rates], found: list[tuple[int, int, float]], time_of_day: int
):
    now_ns = NOW_NS // DAY_NS * DAY_NS + time_of_day
    totals = OpenSums(now_ns)
    expected: TimeSums = {}
    for number, age_ns, position in found:
        since_ns = now_ns - age_ns
        first_ns = max(since_ns, totals.today_ns)
        observed_ns = first_ns + int((now_ns - first_ns) * position)
        totals.add(profiles[number], since_ns, observed_ns)
        observed, unobserved = profiles[number]
        for rate in observed:
            add_span(expected, rate, since_ns, observed_ns)
        for rate in unobserved:
            add_span(expected, rate, observed_ns, now_ns)
    assert totals.close() == expected
