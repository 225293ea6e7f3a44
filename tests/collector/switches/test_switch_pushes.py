"""Pushes of a switch become readings: by the table, exactly, once, and as counters that may be reset."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from support import cumulus_pushes as cumulus
from support.cumulus_pushes import START_NS, Pushed, priority, queue
from support.shared import capture_path

from railscope import otlp_metrics
from railscope.frame import NodeTimestamp
from railscope.reading import Absent
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector.switches.cumulus_metrics import PointResult
from railscope_collector.switches.switch_frames import SwitchFrames
from railscope_collector.switches.switch_pushes import DecodedPush, SwitchPushes


def new_pushes() -> SwitchPushes:
    return SwitchPushes("leaf-08", SwitchFrames("leaf-08", "run"))


def decode(
    pushes: SwitchPushes, values: list[Pushed], at_seconds: int = 0, **more: str
) -> DecodedPush:
    request = otlp_metrics.decode_metrics(cumulus.body(values, **more), otlp_metrics.PROTOBUF)
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


def test_repeated_and_overtaken_requests_change_nothing():
    pushes = new_pushes()
    push(pushes, at(10, 7), 10)
    for seconds in (10, 5):
        decoded = decode(pushes, at(seconds, 6), 11)
        assert decoded.results[PointResult.OLD] == 1
        assert not decoded.reading.streams
        assert not decoded.has_reset


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
    text = capture_path("switch/otlp/cumulus-interface-derived.json").read_text()
    body = json_format.Parse(text, ExportMetricsServiceRequest()).SerializeToString()
    pushes = SwitchPushes("leaf-07", SwitchFrames("leaf-07", "run"))
    decoded = pushes.decode(otlp_metrics.decode_metrics(body, otlp_metrics.PROTOBUF), timestamp(0))
    assert readings(decoded) == {
        ("port_up", "swp1"): 1,
        PFC: 42,
        ("port_receive_pfc_pause_seconds_total", "swp1", "3"): 120_000,
        ("queue_ecn_marked_packets_total", "swp1", "3"): 1007,
        ("clock_offset_seconds",): 0,
    }
    assert decoded.unmapped == {"nvswitch_histogram_interface_egress_buffer": 1}
    assert not decoded.has_other_name
