"""Counters of 32 bits extended to 64: traffic, wraps, resets, gaps, missing readings."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from railscope.counter_unwrap import CounterUnwrapper
from railscope.reading import PRESENT, Absent

RANGE = 2**32
HALF = RANGE // 2
NAMES = ("writes", "reads", "marked", "errors")
WIDE = len(NAMES)
ABSENT = Absent.ERROR.value


@dataclass
class HardwareCounters:
    """A counter set in hardware: counts since the last reset, exported modulo 2^32."""

    counted: list[int]
    wide: int = 0
    shown: list[int] = field(default_factory=list)

    def row(self) -> list[int]:
        return [*(number % RANGE for number in self.counted), self.wide]


def unwrap(before: CounterUnwrapper | None = None) -> CounterUnwrapper:
    columns = {name: column for column, name in enumerate(NAMES)}
    return CounterUnwrapper(columns, [WIDE], before.state if before else None)


def unwrap_row(
    carrier: CounterUnwrapper, row: list[int], missing: frozenset[int] = frozenset()
) -> list[int]:
    values = [0 if column in missing else number for column, number in enumerate(row)]
    reasons = bytearray(ABSENT if column in missing else PRESENT for column in range(len(row)))
    carrier.extend_values(values, reasons)
    assert all(values[column] == 0 for column in missing), "nothing is made up"
    return values[:WIDE]


def rows(carrier: CounterUnwrapper, *all_rows: list[int]) -> list[list[int]]:
    return [unwrap_row(carrier, row) for row in all_rows]


step = st.integers(0, HALF - 1)
steps = st.lists(st.tuples(step, step, step, st.integers(0, 3)), min_size=1, max_size=12)
missing = st.frozensets(st.integers(0, WIDE - 1), max_size=2)


@given(st.lists(st.tuples(step, missing), min_size=1, max_size=20))
def test_one_busy_counter_among_quiet_ones_is_carried_on_exactly(
    walk: list[tuple[int, frozenset[int]]],
) -> None:
    """Also with gaps: a missing reading affects only itself while growth is below half the range."""
    hardware, carrier = HardwareCounters([0, 7, 11, 3]), unwrap()
    assert unwrap_row(carrier, hardware.row()) == hardware.counted
    unread = 0
    for ahead, without in walk:
        ahead = min(ahead, HALF - 1 - unread)  # noqa: PLW2901 - the gap counts as well
        hardware.counted[0] += ahead
        unread = unread + ahead if 0 in without else 0
        found = unwrap_row(carrier, hardware.row(), without)
        for column in set(range(WIDE)) - without:
            assert found[column] == hardware.counted[column]


@given(steps, st.booleans())
def test_unwrapped_counters_equal_the_total_or_the_growth_since_a_reset(
    walk: list[tuple[int, int, int, int]],
    probed: bool,  # noqa: FBT001 - a case
) -> None:
    """For any traffic: never more growth than real, and less only if wraps resemble a reset."""
    hardware, carrier = HardwareCounters([5, 6, 7, 8]), unwrap()
    before = unwrap_row(carrier, hardware.row())
    counted = list(hardware.counted)
    for ahead in walk:
        hardware.counted = [
            number + more for number, more in zip(hardware.counted, ahead, strict=True)
        ]
        if probed:
            carrier = unwrap(carrier)
        found = unwrap_row(carrier, hardware.row())
        for column in range(WIDE):
            grown = found[column] - before[column]
            if grown >= 0:
                assert grown == hardware.counted[column] - counted[column]
            else:
                assert found[column] == hardware.counted[column] % RANGE, "shown as a reset"
        before, counted = found, list(hardware.counted)


@given(
    st.lists(st.integers(0, 2**40), min_size=WIDE, max_size=WIDE),
    st.lists(st.integers(0, HALF - 1), min_size=WIDE, max_size=WIDE),
    st.integers(0, 2**40),
)
@settings(max_examples=300)
def test_after_a_reset_with_a_witness_all_begin_again(
    counted: list[int], since: list[int], wide: int
) -> None:
    """The witness: a 64-bit counter that fell, or an error counter that fell back to less."""
    carrier = unwrap()
    for share in (8, 4, 2, 1):  # in steps of less than half a range, as it would be read
        hardware = HardwareCounters([number // share for number in counted], wide // share)
        unwrap_row(carrier, hardware.row())
    last = hardware.row()
    hardware = HardwareCounters(since, wide // 2)
    found = unwrap_row(carrier, hardware.row())
    fell = any(now < before for now, before in zip(hardware.row()[:WIDE], last[:WIDE], strict=True))
    if fell and wide // 2 < wide:
        assert found == since
        assert carrier.wraps == 0


def test_a_wrap_a_second_wrap_and_no_more() -> None:
    high = RANGE - 10
    found = rows(
        unwrap(), [high, 1, 1, 1, 0], [20, 1, 1, 1, 0], [high, 1, 2, 1, 0], [5, 1, 2, 1, 0]
    )
    assert [row[0] for row in found] == [high, RANGE + 20, RANGE + high, 2 * RANGE + 5]
    assert [row[2] for row in found] == [1, 1, 2, 2]


def test_an_error_counter_that_falls_takes_the_whole_set_back() -> None:
    found = rows(unwrap(), [RANGE - 10, 0, 0, 41, 0], [20, 0, 0, 41, 0], [30, 9, 0, 0, 0])
    assert found[1:] == [[RANGE + 20, 0, 0, 41], [30, 9, 0, 0]]


def test_two_that_fall_together_are_a_reset_and_one_of_many_is_a_wrap() -> None:
    high = RANGE - 10
    assert rows(unwrap(), [high, high, 0, 0, 0], [20, 20, 0, 0, 0])[-1] == [20, 20, 0, 0]
    assert rows(unwrap(), [high, high, 5, 5, 0], [20, high, 5, 5, 0])[-1] == [
        RANGE + 20,
        high,
        5,
        5,
    ]


def test_half_a_range_is_the_farthest_a_wrap_goes() -> None:
    last = RANGE - 1
    assert rows(unwrap(), [last, 0, 0, 0, 0], [HALF - 2, 0, 0, 0, 0])[-1][0] == RANGE + HALF - 2
    assert rows(unwrap(), [last, 0, 0, 0, 0], [HALF - 1, 0, 0, 0, 0])[-1][0] == HALF - 1


def test_a_device_that_was_gone_begins_again() -> None:
    carrier = unwrap()
    assert rows(carrier, [RANGE - 10, 9, 0, 0, 0], [20, 9, 0, 0, 0])[-1][0] == RANGE + 20
    reasons = bytearray([Absent.GONE.value] * (WIDE + 1))
    carrier.extend_values([0] * (WIDE + 1), reasons)
    assert unwrap_row(carrier, [25, 9, 0, 0, 0]) == [25, 9, 0, 0]


def test_a_missing_witness_does_not_count() -> None:
    carrier = unwrap()
    unwrap_row(carrier, [RANGE - 10, 9, 0, 0, 500])
    assert unwrap_row(carrier, [20, 9, 0, 0, 500], frozenset({WIDE}))[0] == RANGE + 20


@pytest.mark.parametrize("number", [-10, -(2**63), 2**63, 2**64 - 1])
def test_a_number_no_narrow_counter_can_have_is_shown_as_it_is(number: int) -> None:
    carrier = unwrap()
    found = rows(carrier, [7, 1, 0, 0, 0], [number, 1, 0, 0, 0], [9, 1, 0, 0, 0])
    assert [row[0] for row in found] == [7, number, 9]


def test_a_new_probe_with_other_columns_keeps_the_carried_state() -> None:
    first = unwrap()
    rows(first, [RANGE - 10, 2, 0, 0, 0], [20, 2, 0, 0, 0])
    second = CounterUnwrapper({"errors": 0, "writes": 2, "new": 1}, (), first.state)
    values = [0, 6, 30]
    second.extend_values(values, bytearray(3))
    assert values == [0, 6, RANGE + 30]


@given(
    st.lists(st.integers(0, 2**40), min_size=3, max_size=3),
    st.integers(1, HALF),
    st.lists(st.integers(0, HALF - 1), min_size=3, max_size=3),
    st.data(),
)
def test_an_error_counter_that_fell_back_marks_a_reset_despite_busy_ones(
    busy: list[int], errors: int, since: list[int], data: st.DataObject
) -> None:
    """Error counters stay in the lower half; only a reset, not a wrap, reduces them."""
    carrier = unwrap()
    unwrap_row(carrier, [*(number % RANGE for number in busy), errors, 0])
    after = [*since, data.draw(st.integers(0, errors - 1))]
    assert unwrap_row(carrier, [*after, 0]) == after
    assert carrier.wraps == 0
