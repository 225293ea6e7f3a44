"""Frames of a switch: exact counters, wraps, restarts by the uptime, sequences, schemas."""

from __future__ import annotations

from hypothesis import given, strategies as st

from railscope import envelopes, wire
from railscope.catalog import entities, switches as catalog
from railscope.frame import Entity, Frame, NodeTimestamp
from railscope.reading import Absent, Reading
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_collector.switches.snmp_tables import UPTIME_RANGE_NS
from railscope_collector.switches.switch_frames import SwitchFrames, has_restarted, pack_frames
from railscope_collector.switches.switch_reading import PORTS, SwitchReading

PORT = Entity(entities.SWITCH_PORT, ("leaf-07", "Ethernet0"), {"alias": "etp1"})
PERIOD_NS = 30 * SECOND_NS


def reading(
    values: dict[object, Reading], uptime_ns: int | None = DAY_NS, port: Entity = PORT
) -> SwitchReading:
    columns = [((metric, port), value) for metric, value in values.items()]
    return SwitchReading({PORTS: columns}, uptime_ns, UPTIME_RANGE_NS)  # type: ignore[dict-item]


def polled(rows: list[tuple[dict[object, Reading], int | None]]) -> list[Frame]:
    """Frames of polls a period apart."""
    frames = SwitchFrames("leaf-07", "run")
    return [
        frames.frames(reading(values, uptime_ns), NodeTimestamp(10**18 + at, DAY_NS + at))[0]
        for at, (values, uptime_ns) in zip(range(0, 10**15, PERIOD_NS), rows, strict=False)
    ]


@given(st.integers(0, (1 << 64) - 1).filter(catalog.RECEIVED.accepts))
def test_counters_are_exact_in_all_64_bits(value):
    (frame,) = polled([({catalog.RECEIVED: value}, DAY_NS)])
    body, sent = pack_frames([frame], frame.timestamp, with_schemas=True)
    envelope = envelopes.unpack(body, 1 << 20)
    assert envelope.node == "switch/leaf-07"
    assert int.from_bytes(envelope.batches[0].base, "little") == value
    assert sent.boot_id == envelope.boot_id == "run-1"
    assert wire.content_hash(envelope.names[0]) == envelope.batches[0].names


@given(st.one_of(st.integers(max_value=-1), st.integers(min_value=(1 << 64) - 1)))
def test_numbers_beyond_64_bits_and_all_ones_are_errors(value):
    (frame,) = polled([({catalog.RECEIVED: value, catalog.SENT: 1}, DAY_NS)])
    assert [each for _, _, each in frame.readings()] == [Absent.ERROR, 1]


def test_wrap_of_a_narrow_counter_continues_it():
    rows = [4_294_967_290, 5, 20]
    frames = polled(
        [
            ({catalog.RECEIVED_ERRORS: n, catalog.RECEIVED: 7}, DAY_NS + i * PERIOD_NS)
            for i, n in enumerate(rows)
        ]
    )
    values = [{m: r for m, _, r in f.readings()}[catalog.RECEIVED_ERRORS] for f in frames]
    assert values == [4_294_967_290, (1 << 32) + 5, (1 << 32) + 20]
    assert {frame.origin.boot_id for frame in frames} == {"run-1"}


def test_restart_begins_another_boot_and_resets_narrow_counters():
    rows = [(4_294_967_290, DAY_NS), (5, 10 * SECOND_NS), (20, 10 * SECOND_NS + PERIOD_NS)]
    frames = polled([({catalog.RECEIVED_ERRORS: n}, uptime) for n, uptime in rows])
    assert [frame.values[0] for frame in frames] == [4_294_967_290, 5, 20]
    assert [frame.origin.boot_id for frame in frames] == ["run-1", "run-2", "run-2"]
    assert [frame.sequence for frame in frames] == [1, 2, 3]


@given(st.integers(DAY_NS, 400 * DAY_NS), st.integers(PERIOD_NS, DAY_NS), st.data())
def test_uptime_from_zero_is_a_restart(before_ns, elapsed_ns, data):
    after_ns = data.draw(st.integers(0, elapsed_ns))
    assert has_restarted(before_ns, after_ns, elapsed_ns, UPTIME_RANGE_NS)


def test_restart_during_a_long_gap_is_recognized_although_the_uptime_rose():
    assert has_restarted(100 * SECOND_NS, 200 * SECOND_NS, 3600 * SECOND_NS, UPTIME_RANGE_NS)


def test_changed_fact_is_another_schema_and_continues_the_sequence_and_wraps():
    frames = SwitchFrames("leaf-07", "run")
    other = Entity(entities.SWITCH_PORT, PORT.key, {"alias": "uplink"})
    made = [
        frames.frames(
            reading({catalog.SENT_ERRORS: n}, DAY_NS + at * PERIOD_NS, port),
            NodeTimestamp(10**18, DAY_NS + at * PERIOD_NS),
        )[0]
        for at, (n, port) in enumerate([((1 << 32) - 1, PORT), (3, PORT), (4, other), (9, other)])
    ]
    assert [frame.sequence for frame in made] == [1, 2, 3, 4]
    assert [frame.values[0] - (1 << 32) for frame in made] == [-1, 3, 4, 9]
    assert made[0].schema is made[1].schema
    assert made[1].schema != made[2].schema
    assert made[2].schema is made[3].schema


def test_counters_of_a_port_that_were_cleared_leave_those_of_other_ports():
    other = Entity(entities.SWITCH_PORT, ("leaf-07", "Ethernet4"), {})
    frames = SwitchFrames("leaf-07", "run")
    polls = [
        {PORT: (900, 4_294_967_000), other: (50, 4_294_967_200)},
        {PORT: (20, 3), other: (60, 40)},
        {PORT: (30, 4), other: (70, 45)},
    ]
    made = []
    for poll, ports in enumerate(polls):
        at = poll * PERIOD_NS
        columns = [
            ((metric, port), value)
            for port, values in ports.items()
            for metric, value in zip(
                (catalog.RECEIVED, catalog.RECEIVED_ERRORS), values, strict=True
            )
        ]
        (frame,) = frames.frames(
            SwitchReading({PORTS: columns}, DAY_NS + at), NodeTimestamp(10**18 + at, DAY_NS + at)
        )
        made.append({e.key[1]: r for m, e, r in frame.readings() if m is catalog.RECEIVED_ERRORS})
    assert [each["Ethernet0"] for each in made] == [4_294_967_000, 3, 4], "cleared, no wrap"
    assert [each["Ethernet4"] for each in made] == [
        4_294_967_200, (1 << 32) + 40, (1 << 32) + 45,
    ], "136 more"  # fmt: skip
