"""Counters of both ends of a link, sampled at other times: the times alone never make them differ."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, strategies as st
from support.schemas import wire_schema

from railscope import batch_encoding
from railscope.catalog import nic, switches as catalog
from railscope.catalog.declare import Metric
from railscope.frame import Column, Entity, NodeTimestamp
from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis import switch_counters, switch_evidence
from railscope_collector.diagnosis.switch_counters import (
    CounterTrack,
    PartLabel,
    SenderReadings,
    TrackedSender,
)
from railscope_collector.diagnosis.switch_evidence import ComparedPauses, LinkedPort
from railscope_collector.switches.switch_frames import SwitchFrames
from railscope_collector.switches.switch_reading import PRIORITY, SwitchReading

SECONDS = 240
PAUSING = True, "3"
LINK = LinkedPort("leaf-1", "Ethernet1", "n1", "eth0", is_certain=True)
SWITCH_COLUMN: Column = (
    catalog.PFC_RECEIVED,
    Entity(catalog.PFC_RECEIVED.about, ("leaf-1", "Ethernet1", "3")),
)
HOST_COLUMN: Column = nic.PFC_SENT, Entity(nic.PFC_SENT.about, ("eth0", "3"))


def track(
    column: Column, samples: list[tuple[float, Reading]], *, boots: frozenset[int] = frozenset()
) -> CounterTrack:
    """Return the track of a counter with these values by time; another boot begins with some of the samples."""
    metric: Metric = column[0]
    is_host = metric is nic.PFC_SENT
    readings = SenderReadings(
        switch_counters.HOST_QUANTITIES if is_host else switch_counters.SWITCH_QUANTITIES,
        switch_counters.host_key if is_host else switch_counters.switch_key,
    )
    made, run = SwitchFrames("leaf-1", "run", has_narrow_counters=False), 0
    for number, (seconds, value) in enumerate(samples):
        time_ns = round(seconds * SECOND_NS)
        run += number in boots
        reading = SwitchReading({PRIORITY: [(column, value)]})
        stamp = NodeTimestamp(time_ns, time_ns)
        (frame,) = made.frames(reading, stamp)
        batch, schema = batch_encoding.encode_batch([frame]), wire_schema(frame.schema)
        readings.add(
            "sender", str(run), (batch,), {batch.schema: schema}.__getitem__, lambda ns: ns
        )
    (found,) = readings.senders["sender"].tracks()
    return found


def compare(switch: CounterTrack, host: CounterTrack) -> ComparedPauses | None:
    counts = switch_evidence.compare_counts(switch, 0, host, 0, 0)
    return ComparedPauses(LINK, 0, *PAUSING, *counts) if counts else None


rates = st.lists(st.sampled_from([0, 0, 3, 400, 90_000]), min_size=12, max_size=12)


@given(
    rates,
    st.sampled_from([5.0, 10.0, 30.0, 60.0]),
    st.sampled_from([4.0, 10.0, 23.0]),
    st.lists(st.floats(0, 10), min_size=60, max_size=60),
    st.floats(-1, 1),
    st.floats(0, 5),
)
def test_ends_that_count_the_same_agree(  # noqa: PLR0913, PLR0917 - drawn values
    frames_per_second: list[int],
    switch_period: float,
    host_period: float,
    ages: list[float],
    clock_error: float,
    phase: float,
) -> None:
    steps = [frames_per_second[second // 20] for second in range(SECONDS)]
    counted = [0, *accumulate(steps)]

    def value(seconds: float) -> int:
        whole = min(max(int(seconds), 0), SECONDS - 1)
        return counted[whole] + int(steps[whole] * (seconds - whole)) if seconds > 0 else 0

    polls = int((SECONDS - 10) / switch_period)
    times = [1 + phase + number * switch_period for number in range(polls)]
    shown = sorted(value(at - age) for at, age in zip(times, ages, strict=False))
    switch = track(SWITCH_COLUMN, list(zip(times, shown, strict=True)))
    samples = [
        (at, value(at + clock_error))
        for at in (1 + n * host_period for n in range(int(SECONDS / host_period)))
    ]
    compared = compare(switch, track(HOST_COLUMN, samples))
    if compared is not None:
        assert compared.agrees
        assert not compared.differs


def test_ends_that_count_otherwise_differ() -> None:
    seconds = range(1, SECONDS, 10)
    host = track(HOST_COLUMN, [(at, 500 * at) for at in seconds])
    for factor in (0.0, 0.1, 8.0):
        switch = track(SWITCH_COLUMN, [(at, int(factor * 500 * at)) for at in seconds])
        compared = compare(switch, host)
        assert compared is not None
        assert compared.differs
        assert not compared.agrees


@pytest.mark.parametrize(
    ("values", "boots"),
    [
        ([5000, 10, 20, 30, 40, 50], ()),
        ([0, 10, Absent.TIMEOUT, 30, 40, 50], ()),
        ([0, 10, 1 << 60, (1 << 60) + 1, (1 << 60) + 2, (1 << 60) + 3], ()),
        ([0, 10, 20, 30, 40, 50], (2,)),
    ],
    ids=["falls", "is absent once", "leaps", "another boot"],
)
def test_a_counter_is_known_since_its_last_interruption(
    values: list[Reading], boots: tuple[int, ...]
) -> None:
    times = [10.0 * number for number in range(1, 7)]
    found = track(SWITCH_COLUMN, list(zip(times, values, strict=True)), boots=frozenset(boots))
    position = found.index[PartLabel("pauses_received", "Ethernet1", "3")]
    assert found.bounds(position, (10 * SECOND_NS,) * 2, (60 * SECOND_NS,) * 2) is None
    low_high = found.bounds(position, (50 * SECOND_NS,) * 2, (60 * SECOND_NS,) * 2)
    assert low_high is not None
    assert low_high[0] == low_high[1]
    assert low_high[0] in {1, 10}


def test_a_column_that_is_not_due_keeps_its_last_value() -> None:
    values: list[Reading] = [0, Absent.NOT_DUE, 30]
    found = track(SWITCH_COLUMN, [(10.0 * n, value) for n, value in enumerate(values, 1)])
    assert found.bounds(0, (10 * SECOND_NS,) * 2, (30 * SECOND_NS,) * 2) == (30, 30)
    assert found.bounds(0, (10 * SECOND_NS,) * 2, (20 * SECOND_NS,) * 2) == (0, 30)


@pytest.mark.parametrize(
    ("values", "is_lacking"),
    [
        ([Absent.NOT_DUE], False),
        ([Absent.TIMEOUT], False),
        ([0], False),
        ([Absent.UNSUPPORTED], True),
        ([Absent.UNSUPPORTED, Absent.NOT_DUE], True),
        ([Absent.UNSUPPORTED, Absent.TIMEOUT], False),
    ],
)
def test_a_switch_lacks_only_what_it_states_not_to_have(
    values: list[Reading], *, is_lacking: bool
) -> None:
    found = track(SWITCH_COLUMN, [(10.0 * n, value) for n, value in enumerate(values, 1)])
    sender = TrackedSender({PRIORITY: (b"", found)})
    assert sender.lacks("pauses_received", "all_pauses_received") is is_lacking
    assert sender.lacks("pauses_received", port="Ethernet1") is is_lacking
    assert not sender.lacks("pauses_received", port="Ethernet2")
    assert not sender.lacks("errors"), "nothing of whole ports is read"


@pytest.mark.parametrize(("value", "is_lacking"), [(0, True), (Absent.TIMEOUT, False)])
def test_a_switch_lacks_what_its_dialect_has_no_column_for(
    value: Reading, *, is_lacking: bool
) -> None:
    """It reports another count of its priorities. If that fails, nothing is known."""
    sender = TrackedSender({PRIORITY: (b"", track(SWITCH_COLUMN, [(10.0, value)]))})
    assert sender.lacks("pauses_sent") is is_lacking
    assert sender.lacks("pauses_sent", port="Ethernet1") is is_lacking
    assert not sender.lacks("pauses_sent", port="Ethernet2")
    assert sender.lacks("marks") is is_lacking
