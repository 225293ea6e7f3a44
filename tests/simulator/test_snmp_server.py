"""SNMP of simulated switches: real datagrams, read by the collector, and datagrams that are no requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_collector.config import SwitchesSettings
from railscope_collector.switches import snmp_reader, switch_reading, switch_settings
from railscope_simulator import snmp_answers, snmp_server
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.cluster_switches import ClusterSwitches
from railscope_simulator.cluster.scenario import (
    ClusterScenario,
    JobPlan,
    PlannedClusterFault,
    SimulatedClusterSize,
)
from railscope_simulator.spec import TimeSpan

LEAF, PORT = "leaf-4", "Ethernet1/2"


@pytest.fixture(scope="module")
def fabric() -> ClusterSwitches:
    """Switches of a cluster in which the NIC at a port of a leaf is slow."""
    size = SimulatedClusterSize(pods=1, nodes_per_pod=3)
    fault = PlannedClusterFault("slow_receiver", 1.0, strength=0.8, nodes=[1], indices=[3])
    job = JobPlan("train", [0, 1, 2], checkpoint_period_seconds=0)
    model = ClusterModel(ClusterScenario(10, cluster=size, jobs=[job], faults=[fault]))
    switches = ClusterSwitches(model)
    for second in (2, 5):
        span = TimeSpan(model.offset_ns, second * SECOND_NS)
        model.advance(span.end_ns)
        switches.count(span)
    return switches


async def read(
    fabric: ClusterSwitches, directory: Path, community: str, **more: str
) -> switch_reading.SwitchReading:
    """Read the leaf as the collector does."""
    async with snmp_server.serve(fabric.communities()[LEAF], "127.0.0.1", 0) as port:
        credential, file = directory / "community.toml", directory / "switches.toml"
        credential.write_text(f'community = "{community}"\n')
        settings = {"address": f"127.0.0.1:{port}", "credential_file": str(credential)} | more
        lines = [f'{name} = "{value}"' for name, value in settings.items()]
        file.write_text("\n".join((f"[{LEAF}]", *lines)))
        (switch,) = switch_settings.read_switches(
            SwitchesSettings(file=str(file), timeout_seconds=2.0)
        )
        return await snmp_reader.SnmpReader(switch, time.monotonic).read()


def values(reading: switch_reading.SwitchReading) -> dict[tuple[str, ...], Any]:
    return {
        (metric.name.removeprefix("railscope_switch_"), *entity.key[1:]): value
        for part in reading.streams.values()
        for (metric, entity), value in part
    }


async def test_a_leaf_answers_as_comware(fabric: ClusterSwitches, tmp_path: Path):
    found = await read(fabric, tmp_path, "comware")
    assert found.dialect == "comware", "by sysObjectID"
    got, port = values(found), fabric.switches[LEAF].ports["Ethernet4"]
    counters = port.counters
    assert counters.pauses_received_per_second > 1000
    expected = {
        ("ports",): 3,
        ("port_up", PORT): 1,
        ("port_speed_bytes_per_second", PORT): 400_000,
        ("port_receive_bytes_total", PORT): counters.received_bytes,
        ("port_receive_packets_total", PORT): counters.received_packets,
        ("port_receive_pfc_pause_frames_per_second", PORT, "3"): counters.pauses_received_per_second,
        ("port_receive_pfc_pause_frames_per_second", PORT, "0"): 0,
        ("queue_transmit_packets_total", PORT, "3"): counters.lossless.packets,
        ("queue_occupancy_bytes", PORT, "3"): counters.lossless.occupancy_bytes,
        ("queue_buffer_peak_ratio", PORT, "3"): 50,
        ("neighbour_known", PORT): 1,
        # Comware has no counts of pauses, no marks, and no transceiver is in the port.
        ("port_receive_pfc_pause_frames_total", PORT, "3"): Absent.UNSUPPORTED,
        ("transceiver_receive_power_watts", PORT, "0"): Absent.UNSUPPORTED,
    }  # fmt: skip
    assert {key: got[key] for key in expected} == expected
    neighbours = {
        entity.key[1]: entity.facts["system_name"]
        for (_, entity), _ in found.streams[switch_reading.NEIGHBOURS]
    }
    assert neighbours == {
        "Ethernet1/1": "gpu-node-1",
        "Ethernet1/2": "gpu-node-2",
        "Ethernet2/1": "gpu-node-3",
    }


def test_another_community_has_no_answer(fabric: ClusterSwitches):
    assert snmp_server.answer_datagram(request(b"public"), fabric.communities()[LEAF]) == b""
    assert snmp_server.answer_datagram(request(b"comware"), fabric.communities()[LEAF])


def request(community: bytes) -> bytes:
    """A GetRequest of sysName."""
    row = b"\x30\x0c\x06\x08\x2b\x06\x01\x02\x01\x01\x05\x00\x05\x00"
    body = b"\x02\x01\x07\x02\x01\x00\x02\x01\x00\x30" + bytes((len(row),)) + row
    content = b"\x02\x01\x01\x04" + bytes((len(community),)) + community
    content += b"\xa0" + bytes((len(body),)) + body
    return b"\x30" + bytes((len(content),)) + content


@given(st.data())
def test_a_datagram_that_is_no_request_has_no_answer_or_one(data: st.DataObject):
    body = bytearray(request(b"comware"))
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    name = snmp_answers.SnmpObject((1, 3, 6), snmp_answers.SnmpType.OCTETS, b"leaf")
    answer = snmp_server.answer_datagram(bytes(body[:cut]), {"comware": lambda: [name]})
    assert len(answer) < 2000
