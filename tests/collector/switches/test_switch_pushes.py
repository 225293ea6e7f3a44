"""Pushes of a switch become readings: by the table, exactly, once, and as counters that may be reset."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support import cumulus_pushes as cumulus
from support.cumulus_pushes import START_NS, Pushed, priority, queue
from support.shared import capture_path

from railscope import otlp_metrics
from railscope.frame import NodeTimestamp
from railscope.reading import Absent
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector.switches import cumulus_metrics
from railscope_collector.switches.cumulus_metrics import PointResult
from railscope_collector.switches.switch_frames import SwitchFrames
from railscope_collector.switches.switch_pushes import DecodedPush, SwitchPushes

PORT = ("swp1",)


def new_pushes() -> SwitchPushes:
    return SwitchPushes("leaf-08", SwitchFrames("leaf-08", "run"))


def decode(
    pushes: SwitchPushes, values: list[Pushed], at_seconds: int = 0, **more: str
) -> DecodedPush:
    request = otlp_metrics.decode_metrics(cumulus.json_body(values, **more), otlp_metrics.JSON)
    return pushes.decode(request, timestamp(at_seconds))


def timestamp(at_seconds: int) -> NodeTimestamp:
    return NodeTimestamp(START_NS + at_seconds * SECOND_NS, at_seconds * SECOND_NS, 0)


def push(
    pushes: SwitchPushes, values: list[Pushed], at_seconds: int = 0
) -> dict[tuple[str, ...], Any]:
    decoded = decode(pushes, values, at_seconds)
    pushes.keep(decoded, timestamp(at_seconds))
    return readings(decoded)


def readings(decoded: DecodedPush) -> dict[tuple[str, ...], Any]:
    return {
        (metric.name.removeprefix("railscope_switch_"), *entity.key[1:]): value
        for part in decoded.reading.streams.values()
        for (metric, entity), value in part
    }


def at(seconds: int, value: float = 5) -> list[Pushed]:
    return [priority("sp_rx_pause", value, timestamp_ns=START_NS + seconds * SECOND_NS)]


PFC = ("port_receive_pfc_pause_frames_total", "swp1", "3")


@pytest.mark.parametrize("bits", [0, -1, 2**32 - 1, 5])
def test_a_port_of_unknown_speed_has_none(bits):
    found = push(new_pushes(), [Pushed("oper_aggregate_speed", float(bits))])
    assert found["port_speed_bytes_per_second", "swp1"] is Absent.UNSUPPORTED


def test_names_and_attributes_become_metrics_and_entities():
    found = push(
        new_pushes(),
        [
            Pushed("oper_state", 2),
            Pushed("oper_aggregate_speed", 400e9),
            Pushed("if_in_octets", 2.0**53 - 1),
            Pushed("phy_stats_phy_corrected_bits", 71),
            Pushed("phy_stats_phy_symbol_errors", 3),
            priority("sp_tx_pause_duration", 120_000),
            queue("tc_tx_ecn_marked_tc", 1007, 15),
            Pushed("pg_rx_buffer_discard", 1, attributes=(("pg", "0"),)),
        ],
    )
    assert found == {
        ("port_up", "swp1"): 0,
        ("port_speed_bytes_per_second", "swp1"): 400_000,
        ("port_receive_bytes_total", "swp1"): 2**53 - 1,
        ("port_receive_corrected_errors_total", "swp1"): 71,
        ("port_receive_uncorrected_symbol_errors_total", "swp1"): 3,
        ("port_transmit_pfc_pause_seconds_total", "swp1", "3"): 120_000,
        ("queue_ecn_marked_packets_total", "swp1", "15"): 1007,
        ("priority_group_dropped_packets_total", "swp1", "0"): 1,
        ("clock_offset_seconds",): 0,
    }


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (2.0**53, PointResult.INEXACT),
        (1.5, PointResult.INVALID),
        (-1.0, PointResult.INVALID),
        ("NaN", PointResult.INVALID),
        ("Infinity", PointResult.INVALID),
    ],
)
def test_counters_are_exact_integers_or_absent(value, result):
    decoded = decode(new_pushes(), [priority("sp_rx_pause", value)])
    assert decoded.results[result] == sum(decoded.rejected.values()) == 1
    assert not decoded.reading.streams


@given(st.integers(0, 2**53 - 1))
def test_every_integer_below_2_53_is_exact(value):
    assert push(new_pushes(), at(0, float(value)))[PFC] == value


@pytest.mark.parametrize(
    "wrong",
    [
        priority("sp_rx_pause", 1, 8),
        queue("sp_rx_pause", 1),
        priority("sp_rx_pause", 1, port=""),
        priority("sp_rx_pause", 1, port="x" * 65),
        priority("sp_rx_pause", 1, port="swp1\n"),
        priority("sp_rx_pause", -1),
    ],
)
def test_invalid_attributes_and_values_are_counted(wrong):
    decoded = decode(new_pushes(), [wrong])
    assert decoded.results[PointResult.INVALID] == 1
    assert not decoded.reading.streams


@pytest.mark.parametrize(
    ("state", "is_up"),
    [(0, 0), (1, 1), (2, 0), (3, 0), (4, 0), (5, 0), (8, 0), (9, 0), (16, 0), (17, 1), (1 << 40 | 1, 1), (-1, 0)],
)  # fmt: skip
def test_state_of_a_port_is_a_bitmap(state, is_up):
    assert push(new_pushes(), [Pushed("oper_state", state)])["port_up", "swp1"] == is_up


def test_other_metrics_are_counted_by_name_up_to_a_bound():
    pushes = new_pushes()
    decoded = decode(pushes, [Pushed(f"later_{n}", 1) for n in range(600)])
    assert len(pushes.keep(decoded, timestamp(0))) == 500
    assert len(pushes.unmapped) == 501
    assert pushes.unmapped["(others)"] == 100
    assert pushes.results[PointResult.UNMAPPED] == 600
    assert not any(decoded.rejected.values())


def test_repeated_and_overtaken_requests_change_nothing():
    pushes = new_pushes()
    push(pushes, at(10, 7), 10)
    for seconds in (10, 5):
        decoded = decode(pushes, at(seconds, 6), 11)
        assert decoded.results[PointResult.OLD] == 1
        assert not decoded.reading.streams
        assert not decoded.has_reset


def test_switch_whose_clock_was_set_back_is_accepted_again_after_five_minutes():
    pushes = new_pushes()
    push(pushes, at(3600, 7), 10)
    assert decode(pushes, at(0, 8), 309).results[PointResult.OLD] == 1
    assert push(pushes, at(1, 8), 310)[PFC] == 8


def test_points_of_a_sender_that_states_no_time_count_as_they_arrive():
    pushes = new_pushes()
    for seconds, value in ((0, 5), (30, 6), (60, 6)):
        pushed = [priority("sp_rx_pause", value, timestamp_ns=0)]
        assert push(pushes, pushed, seconds)[PFC] == value
    assert pushes.results == {PointResult.STORED: 3}


def test_the_newest_of_several_points_is_taken():
    pushes = new_pushes()
    found = push(pushes, [*at(2, 9), *at(1, 8)], 2)
    assert found[PFC] == 9
    assert pushes.results == {PointResult.STORED: 1, PointResult.OLD: 1}


def test_a_falling_counter_is_a_reset_and_a_falling_state_is_not():
    pushes = new_pushes()
    push(pushes, [*at(0, 7), Pushed("oper_state", 1)])
    push(pushes, [Pushed("oper_state", 2, timestamp_ns=START_NS + SECOND_NS)], 1)
    assert pushes.resets == 0
    assert push(pushes, at(2, 3), 2)[PFC] == 3
    assert pushes.resets == 1


def test_what_a_push_does_not_have_is_not_due_and_ends_after_an_hour():
    pushes = new_pushes()
    push(pushes, [*at(0), Pushed("oper_state", 1)])
    found = push(pushes, [*at(1), priority("sp_tx_pause", 1, 4, timestamp_ns=START_NS + 1)], 1)
    assert ("port_up", "swp1") not in found, "another stream"
    found = push(pushes, at(2), 2)
    assert found["port_transmit_pfc_pause_frames_total", "swp1", "4"] is Absent.NOT_DUE
    later = 2 + HOUR_NS // SECOND_NS
    found = push(pushes, at(later), later)
    assert ("port_transmit_pfc_pause_frames_total", "swp1", "4") not in found


def test_packets_are_the_sum_of_three_metrics_of_one_time():
    names = ("if_in_ucast_pkts", "if_in_multicast_pkts", "if_in_broadcast_pkts")
    parts = [Pushed(name, 10**place) for place, name in enumerate(names)]
    packets = ("port_receive_packets_total", "swp1")
    assert push(new_pushes(), parts)[packets] == 111
    assert push(new_pushes(), parts[:2])[packets] is Absent.ERROR
    assert push(new_pushes(), [*parts[:2], parts[0]])[packets] is Absent.ERROR


def test_point_without_a_value_is_gone():
    document = cumulus.document(at(0))
    (metric,) = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    metric["gauge"]["dataPoints"][0] |= {"asDouble": 0, "flags": 1}
    request = otlp_metrics.decode_metrics(json.dumps(document).encode(), otlp_metrics.JSON)
    assert readings(new_pushes().decode(request, timestamp(0)))[PFC] is Absent.GONE


def test_columns_of_a_stream_are_bounded():
    pushes = new_pushes()
    values = [Pushed("oper_state", 1, port=f"swp{n}") for n in range(20_010)]
    decoded = decode(pushes, values)
    assert decoded.results[PointResult.LIMIT] == sum(decoded.rejected.values()) == 10
    assert len(decoded.columns) == 20_000


def test_other_names_and_times_of_the_sender_are_reported():
    pushes = new_pushes()
    decoded = decode(pushes, at(0), 90, host="leaf-09")
    assert decoded.has_other_name
    assert readings(decoded)["clock_offset_seconds",] == decoded.offset_ns == -90 * SECOND_NS
    assert not decode(pushes, at(0), host="leaf-08").has_other_name
    assert not decode(pushes, at(0), host="").has_other_name


def test_all_metrics_of_the_table_are_counters_or_the_three_gauges():
    gauges = {
        metric.name for metric in cumulus_metrics.METRICS.values() if metric.kind != "counter"
    }
    assert gauges == {
        "railscope_switch_port_up",
        "railscope_switch_port_speed_bytes_per_second",
        "railscope_switch_neighbour_known",
    }


def neighbours(pushes: SwitchPushes, pushed: list[Pushed], at_seconds: int) -> dict[str, Any]:
    """Return the facts of the neighbours after a push, by port."""
    later = [
        each._replace(timestamp_ns=START_NS + at_seconds * SECOND_NS)
        for each in (*pushed, Pushed("oper_state", 1))
    ]
    decoded = decode(pushes, later, at_seconds)
    pushes.keep(decoded, timestamp(at_seconds))
    part = decoded.reading.streams.get("switch_neighbours", [])
    return {entity.key[1]: dict(entity.facts) for (_, entity), _ in part}


def test_neighbours_are_those_that_the_switch_received_last():
    pushes, mac = new_pushes(), "94:6d:ae:ab:00:42"
    server = cumulus.neighbour("swp1", system_name="gpu-0001", chassis_id=mac, port_id=mac)
    other = cumulus.neighbour("swp2", system_name="gpu-0002", port_id="eth\u202e0")
    moved = cumulus.neighbour("swp1", system_name="gpu-0003", port_description="ens3f0np0")
    facts = {"chassis": mac, "neighbour_port": mac, "port_description": ""}
    of_other = {
        "system_name": "gpu-0002", "chassis": "", "neighbour_port": "eth\\u202e0", "port_description": "",
    }  # fmt: skip
    of_moved = {
        "system_name": "gpu-0003", "chassis": "", "neighbour_port": "", "port_description": "ens3f0np0",
    }  # fmt: skip
    found = neighbours(pushes, [server, other], 0)
    assert found == {"swp1": {"system_name": "gpu-0001", **facts}, "swp2": of_other}
    assert neighbours(pushes, [moved], 10) == {"swp1": of_moved, "swp2": of_other}
    assert neighbours(pushes, [moved], 299) == {"swp1": of_moved, "swp2": of_other}
    assert neighbours(pushes, [moved], 300) == {"swp1": of_moved}


def test_sample_of_cumulus():
    body = capture_path("switch/otlp/cumulus-interface-derived.json").read_bytes()
    pushes = SwitchPushes("leaf-07", SwitchFrames("leaf-07", "run"))
    decoded = pushes.decode(otlp_metrics.decode_metrics(body, otlp_metrics.JSON), timestamp(0))
    assert readings(decoded) == {
        ("port_up", "swp1"): 1,
        PFC: 42,
        ("port_receive_pfc_pause_seconds_total", "swp1", "3"): 120_000,
        ("queue_ecn_marked_packets_total", "swp1", "3"): 1007,
        ("clock_offset_seconds",): 0,
    }
    assert decoded.unmapped == {"nvswitch_histogram_interface_egress_buffer": 1}
    assert not decoded.has_other_name
