"""Properties of metering for any history of a GPU."""

from __future__ import annotations

import claim_properties
import numpy as np
import properties
import pytest
from histories import S, metering_cases
from hypothesis import given, strategies as st

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.metering import counter_increments

PROPERTIES = [*properties.PROPERTIES, *claim_properties.PROPERTIES]


@pytest.mark.parametrize("has_property", PROPERTIES, ids=lambda has_property: has_property.__name__)
@given(case=metering_cases())
def test_metering(has_property, case):
    has_property(case)


quarters = st.integers(0, 3 * 96).map(lambda quarter: 900 * S * quarter)
readings_of_boots = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.tuples(st.lists(quarters, min_size=1, unique=True).map(sorted), st.integers(0, 4)),
)


def list_readings(drawn, first_ns, last_ns):
    """Return the readings of each boot from one time to another."""
    found = []
    for boot, (times, age) in drawn.items():
        at = np.array([time for time in times if first_ns <= time <= last_ns], np.int64)
        ages_ns = at + age * DAY_NS
        found.append(counter_increments.CounterReadings(boot, at, at // S * 7, ages_ns=ages_ns))
    return found


@given(readings_of_boots, st.integers(0, 2))
def test_increments_of_a_day_need_only_its_readings_and_those_just_before(drawn, day):
    start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
    first_ns = start_ns - counter_increments.MAX_INTERLEAVED_NS
    all_times = [time for times, _ in drawn.values() for time in times]
    if not any(first_ns <= time <= start_ns for time in all_times):
        first_ns = max((time for time in all_times if time < first_ns), default=first_ns)
    days = []
    for counted in (
        counter_increments.compute_increments(list_readings(drawn, first_ns, end_ns)),
        counter_increments.compute_increments(list_readings(drawn, 0, FOREVER_NS)),
    ):
        rows = zip(
            *(getattr(counted, field).tolist() for field in counted.__struct_fields__), strict=True
        )
        days.append([row for row in rows if start_ns < row[1] <= end_ns])
    assert days[0] == days[1]
