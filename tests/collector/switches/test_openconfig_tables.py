"""Readings of switches with OpenConfig and SR Linux, from captures and from constructed answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support import gnmi_captures as captures

from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_collector.switches import (
    openconfig_tables as tables,
    switch_reading as base,
)

ALL = frozenset(group.name for group in (*tables.GROUPS, *tables.SRL_GROUPS))
ARISTA, PUBLIC, SRL = (
    "arista-eos-lossless-derived",
    "openconfig-public-models-derived",
    "nokia-srl-native-derived",
)


def read(
    messages: Sequence[bytes],
    failures: Mapping[str, Absent] = {},
    known: tables.SwitchFacts | None = None,
) -> base.SwitchReading:
    leaves = captures.leaves_of(messages, tables.TREE)
    answers = tables.OpenConfigAnswers(leaves, ALL, failures)
    return tables.make_reading("leaf-01", answers, known or tables.SwitchFacts())


def state_of(capture: str) -> base.SwitchReading:
    return read(captures.until_sync(captures.capture_messages(capture)))


def values(reading: base.SwitchReading) -> dict[tuple[str, ...], Reading]:
    return {
        (metric.name.removeprefix("railscope_switch_"), *entity.key[1:]): value
        for part in reading.streams.values()
        for (metric, entity), value in part
    }


def facts(reading: base.SwitchReading, stream: str) -> dict[tuple[str, ...], Mapping[str, str]]:
    return {entity.key[1:]: entity.facts for (_, entity), _ in reading.streams[stream]}


def answer(**leaves: Any) -> bytes:
    """Return a notification with leaves of port e1, by their path below it."""
    return notification({"interfaces": {"interface": [{"name": "e1", **leaves}]}})


def notification(content: Mapping[str, Any], timestamp: int = 0) -> bytes:
    text = base64.b64encode(json.dumps(content).encode()).decode()
    update = {"path": {}, "val": {"jsonIetfVal": text}}
    return captures.encode_response({"update": {"timestamp": str(timestamp), "update": [update]}})


def test_arista_eos_by_public_models_and_its_own():
    reading = state_of(ARISTA)
    expected: dict[tuple[str, ...], Reading] = {
        ("ports",): 3,
        ("port_up", "Ethernet1/1"): 1,
        ("port_up", "Ethernet2/5"): 0,
        ("port_enabled", "Ethernet2/5"): 1,
        ("port_speed_bytes_per_second", "Ethernet1/1"): 400_000,
        ("port_receive_bytes_total", "Ethernet1/1"): 9_100_000_000_000_000,
        ("port_transmit_packets_total", "Ethernet1/1"): 5_990_000_000_000,
        ("port_transmit_discarded_packets_total", "Ethernet1/1"): 1200,
        ("port_receive_fcs_errors_total", "Ethernet1/1"): 0,
        ("port_receive_pause_frames_total", "Ethernet1/1"): 0,
        ("port_transmit_pfc_pause_frames_total", "Ethernet1/1", "3"): 771_000,
        ("port_receive_pfc_pause_frames_total", "Ethernet2/1", "3"): 5_000_000_000,
        ("port_all_priorities_receive_pfc_pause_frames_total", "Ethernet2/1"): 5_000_000_000,
        ("queue_transmit_bytes_total", "Ethernet1/1", "3"): 9_000_000_000_000_000,
        ("queue_dropped_packets_total", "Ethernet1/1", "3"): 1200,
        ("queue_ecn_marked_packets_total", "Ethernet1/1", "3"): 88_000,
        ("queue_wred_dropped_packets_total", "Ethernet1/1", "3"): 800,
        ("queue_transmit_packets_total", "Ethernet1/1", "7"): 0,
        ("queue_pfc_watchdog_detected_storms_total", "Ethernet2/1", "3"): 1,
        ("queue_pfc_watchdog_restored_storms_total", "Ethernet2/1", "3"): 1,
        ("queue_pfc_watchdog_detected_storms_total", "Ethernet2/1", "4"): Absent.UNSUPPORTED,
        ("port_receive_fec_corrected_frames_total", "Ethernet1/1"): Absent.UNSUPPORTED,
        ("neighbour_known", "Ethernet2/1"): 1,
        ("neighbour_known", "Ethernet2/5"): 0,
        ("uptime_seconds",): Absent.UNSUPPORTED,
    }
    found = values(reading)
    assert {key: found[key] for key in expected} == expected
    assert not any(value is Absent.ERROR for value in found.values())
    assert facts(reading, base.NEIGHBOURS)["Ethernet2/1",] == {
        "system_name": "gpu-node-01",
        "chassis": "02:00:00:00:03:01",
        "neighbour_port": "02:00:00:00:03:01",
        "port_description": "",
    }
    assert facts(reading, base.PORTS)["Ethernet2/1",] == {
        "index": "1101",
        "description": "400",
        "mac_address": "02:00:00:00:01:02",
        "alias": "",
        "lldp_port_id": "Ethernet2/1",
    }
    missing = facts(reading, base.SWITCH)[()]["missing_tables"]
    assert missing == "FEC, system, optics"


def test_public_models_with_fec_optics_and_text_numbers():
    found = values(state_of(PUBLIC))
    expected: dict[tuple[str, ...], Reading] = {
        ("port_receive_fec_corrected_frames_total", "et-1"): 993_210,
        ("port_receive_fec_uncorrectable_frames_total", "et-1"): 0,
        ("port_transmit_pause_frames_total", "et-1"): 12,
        ("port_up", "et-1"): 1,
        ("queue_transmit_packets_total", "et-1", "NC1"): 4_000_000_000,
        ("queue_ecn_marked_packets_total", "et-1", "NC1"): 88_000,
        ("queue_watermark_bytes", "et-1", "NC1"): 615_000,
        # -0.80 dBm, +1.12 dBm and -40 dBm: 0.8318 mW, 1.2942 mW and 0.1 uW.
        ("transceiver_receive_power_watts", "et-1", "1"): 831_764,
        ("transceiver_transmit_power_watts", "et-1", "1"): 1_294_196,
        ("transceiver_receive_power_watts", "et-1", "3"): 100,
        ("transceiver_bias_amperes", "et-1", "4"): 64_500,
        ("port_receive_pfc_pause_frames_total", "et-1", "3"): Absent.UNSUPPORTED,
    }
    assert {key: found[key] for key in expected} == expected


def test_nokia_sr_linux_by_its_native_models():
    reading = state_of(SRL)
    port = "ethernet-1/1"
    expected: dict[tuple[str, ...], Reading] = {
        ("ports",): 1,
        ("port_receive_bytes_total", port): 9_100_000_000_000_000,
        ("port_receive_packets_total", port): 6_000_000_000_000,
        ("port_transmit_discarded_packets_total", port): 1200,
        ("port_receive_pfc_pause_frames_total", port, "3"): 5_000_000_000,
        ("port_transmit_pfc_pause_frames_total", port, "3"): 771_000,
        ("port_all_priorities_transmit_pfc_pause_frames_total", port): 771_000,
        ("queue_pfc_watchdog_restored_storms_total", port, "3"): 1,
        ("queue_pfc_watchdog_detected_storms_total", port, "3"): Absent.UNSUPPORTED,
        ("queue_transmit_packets_total", port, "3"): 6_000_000_000_000,
        ("queue_dropped_bytes_total", port, "3"): 1_800_000,
        ("queue_ecn_marked_packets_total", port, "3"): 88_000,
        ("transceiver_receive_power_watts", port, "1"): 831_764,
        ("transceiver_transmit_power_watts", port, "1"): 1_294_196,
        ("transceiver_bias_amperes", port, "1"): Absent.UNSUPPORTED,
        ("neighbour_known", port): 1,
    }
    found = values(reading)
    assert {key: found[key] for key in expected} == expected
    assert facts(reading, base.NEIGHBOURS)[port,]["system_name"] == "gpu-node-01"


def test_group_that_failed_has_its_reason_and_keeps_the_queues_and_lanes_that_are_known():
    known = tables.SwitchFacts()
    messages = captures.until_sync(captures.capture_messages(PUBLIC))
    read(messages, known=known)
    ports = [body for body in messages if b"queues" not in body and b"components" not in body]
    failures = {"queues": Absent.TIMEOUT, "optics": Absent.ERROR, "LLDP": Absent.ERROR}
    found = values(read(ports, failures, known))
    assert found["queue_transmit_packets_total", "et-1", "NC1"] is Absent.TIMEOUT
    assert found["transceiver_receive_power_watts", "et-1", "1"] is Absent.ERROR
    assert found["neighbour_known", "et-1"] is Absent.ERROR
    assert found["port_transmit_pause_frames_total", "et-1"] == 12


@pytest.mark.parametrize(
    ("state", "up"),
    [
        ({"oper-status": "UP"}, 1),
        ({"oper-status": "LOWER_LAYER_DOWN"}, 0),
        ({"oper-status": "openconfig-interfaces:NOT_PRESENT"}, 0),
        ({"oper-status": "UNKNOWN"}, Absent.UNSUPPORTED),
        ({"oper-status": "SIDEWAYS"}, Absent.ERROR),
        ({"oper-status": True}, Absent.ERROR),
        ({"description": ""}, Absent.UNSUPPORTED),
    ],
)
def test_state_of_a_port(state: Mapping[str, Any], up: Reading):
    assert values(read([answer(state=state)]))["port_up", "e1"] == up


@pytest.mark.parametrize(
    ("speed", "megabits"),
    [
        ("SPEED_400GB", 400_000),
        ("openconfig-if-ethernet:SPEED_100MB", 100),
        ("SPEED_1600GB", 1_600_000),
        ("400G", 400_000),
        ("1T", 1_000_000),
        ("SPEED_UNKNOWN", Absent.UNSUPPORTED),
        ("", Absent.UNSUPPORTED),
        ("SPEED_FAST", Absent.ERROR),
        (400, Absent.ERROR),
    ],
)
def test_speed_of_a_port(speed: str | int, megabits: Reading):
    message = answer(state={"oper-status": "UP"}, ethernet={"state": {"port-speed": speed}})
    assert values(read([message]))["port_speed_bytes_per_second", "e1"] == megabits


def test_packets_of_a_switch_without_totals_are_the_sum_of_all_kinds():
    counters = {"in-unicast-pkts": "1", "in-multicast-pkts": "20", "in-broadcast-pkts": "300"}
    found = values(read([answer(state={"counters": counters})]))
    assert found["port_receive_packets_total", "e1"] == 321
    assert found["port_transmit_packets_total", "e1"] is Absent.UNSUPPORTED


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        (
            [("Ethernet10", {"type": "iana-if-type:ethernetCsmacd"}), ("Ethernet2", {"type": "ethernetCsmacd"}), ("Vlan1", {"type": "l3ipvlan"})],
            ["Ethernet2", "Ethernet10"],
        ),
        ([("e2", {"oper-status": "UP"}), ("e1", {"oper-status": "UP"})], ["e1", "e2"]),
    ],
)  # fmt: skip
def test_ports_are_the_interfaces_of_ethernet_in_the_order_of_their_numbers(
    interfaces: Sequence[tuple[str, Mapping[str, str]]], expected: Sequence[str]
):
    listed = [{"name": name, "state": state} for name, state in interfaces]
    reading = read([notification({"interfaces": {"interface": listed}})])
    assert [key[0] for key in facts(reading, base.PORTS)] == expected


def test_switch_without_ports_is_an_error():
    with pytest.raises(base.SwitchReadError, match="no Ethernet ports"):
        read([notification({"system": {"state": {"hostname": "leaf-01"}}})])


def test_more_ports_than_the_limit_are_counted():
    listed = [{"name": f"e{n}", "state": {"oper-status": "UP"}} for n in range(600)]
    reading = read([notification({"interfaces": {"interface": listed}})])
    assert values(reading)["ports",] == 600
    assert len(facts(reading, base.PORTS)) == base.MAX_PORTS


def test_queues_are_those_of_unicast_packets_and_bounded():
    queues = [
        {"name": f"UC{n}", "state": {"id": str(n), "queue-type": "UC", "transmit-pkts": str(n)}}
        for n in range(20)
    ]
    queues.append({"name": "MC1", "state": {"id": "1", "queue-type": "MC", "transmit-pkts": "9"}})
    content = {
        "interfaces": {"interface": [{"name": "e1", "state": {"oper-status": "UP"}}]},
        "qos": {"interfaces": {"interface": [{"interface-id": "e1", "output": {"queues": {"queue": queues}}}]}},
    }  # fmt: skip
    found = values(read([notification(content)]))
    sent = {
        key[2]: value for key, value in found.items() if key[0] == "queue_transmit_packets_total"
    }
    assert sent["1"] == 1
    assert list(sent) == [str(n) for n in range(tables.MAX_QUEUES)]


def test_uptime_follows_from_the_clock_of_the_switch():
    started = 1_764_000_000 * SECOND_NS
    content = {"system": {"state": {"boot-time": str(started), "hostname": "leaf-01"}}}
    messages = [
        answer(state={"oper-status": "UP"}),
        notification(content, started + 90 * SECOND_NS),
    ]
    reading = read(messages)
    assert reading.uptime_ns == 90 * SECOND_NS
    assert values(reading)["uptime_seconds",] == 9000
    assert facts(reading, base.SWITCH)[()]["system_name"] == "leaf-01"
    assert read([messages[0], notification(content, started - SECOND_NS)]).uptime_ns is None


def test_channels_count_from_0_or_1_and_belong_to_the_port_that_names_them():
    def channel(number: int) -> dict[str, Any]:
        return {"index": number, "state": {"input-power": {"instant": f"-{number}.0"}}}

    def component(name: str, first: int) -> dict[str, Any]:
        channels = [channel(number) for number in range(first, first + 4)]
        return {"name": name, "transceiver": {"physical-channels": {"channel": channels}}}

    ports = [
        {"name": "e1", "state": {"transceiver": "t1", "physical-channel": [0, 1]}},
        {"name": "e2", "state": {"transceiver": "t1", "physical-channel": [2, 3]}},
        {"name": "e3", "state": {"transceiver": "t3"}},
    ]
    content = {
        "interfaces": {"interface": ports},
        "components": {"component": [component("t1", 0), component("t3", 1)]},
    }
    found = values(read([notification(content)]))
    lanes = [key[1:] for key in found if key[0] == "transceiver_receive_power_watts"]
    assert lanes == [("e1", "1"), ("e1", "2"), ("e2", "3"), ("e2", "4"), *(("e3", str(n)) for n in range(1, 5))]  # fmt: skip
    assert found["transceiver_receive_power_watts", "e1", "1"] == 1_000_000
