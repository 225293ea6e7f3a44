"""Switches of simulated nodes: both ends of each link count the same, as readers of gNMI see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from support.examples import fewer_examples

from railscope.timestamps import SECOND_NS
from railscope_simulator import (
    lldp_neighbours,
    node_model,
    switch_ports,
)
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.cluster_switches import ClusterSwitches
from railscope_simulator.cluster.scenario import (
    FAULT_KINDS,
    ClusterScenario,
    JobPlan,
    PlannedClusterFault,
    SimulatedClusterSize,
)
from railscope_simulator.fabric import Cable
from railscope_simulator.live import LiveNode, LiveSwitches, LiveTimeline, PlannedFault
from railscope_simulator.port import on_the_wire
from railscope_simulator.spec import TimeSpan
from tests.simulator.test_cluster import target

RAIL = 3
FAULTS = sorted(
    name for name, kind in FAULT_KINDS.items() if kind.entity in {"nic", "leaf"} and kind.effects
)


def advance(model: ClusterModel, switches: ClusterSwitches, until_seconds: float) -> None:
    span = TimeSpan(model.offset_ns, round(until_seconds * SECOND_NS))
    model.advance(span.end_ns)
    switches.count(span)


def cluster(*faults: str, pods: int = 1, nodes: int = 3) -> tuple[ClusterModel, ClusterSwitches]:
    """A cluster with one job on all nodes, and faults from second 1 on."""
    size = SimulatedClusterSize(pods=pods, nodes_per_pod=nodes, uplinks=0.5)
    planned = [
        PlannedClusterFault(name, 1.0, strength=0.8, **target(name) | {"length_seconds": 9.0})
        for name in faults
    ]
    job = JobPlan("train", list(range(pods * nodes)), checkpoint_period_seconds=0)
    model = ClusterModel(ClusterScenario(10, cluster=size, jobs=[job], faults=planned))
    return model, ClusterSwitches(model)


def port_of(
    switches: dict[str, switch_ports.SimulatedSwitch], node: node_model.NodeModel, cable: Cable
) -> switch_ports.SwitchPort:
    leaf = lldp_neighbours.neighbours_of(node)[cable.port.interface]
    (port,) = (port for port in switches[leaf.switch].ports.values() if port.alias == leaf.alias)
    assert port.neighbour.port == cable.port.mac
    return port


def links(
    model: ClusterModel, switches: ClusterSwitches
) -> Iterator[tuple[Cable, switch_ports.SwitchPort]]:
    for node in model.nodes:
        for cable in node.cables:
            yield cable, port_of(switches.switches, node, cable)


def sent_bytes(port: switch_ports.SwitchPort) -> int:
    return sum(queue.bytes for queue in port.counters.queues)


def assert_ends_agree(cable: Cable, port: switch_ports.SwitchPort) -> None:
    """Directions are those of the port; the difference in bytes is what the cable has corrupted."""
    nic, wire, counters = cable.counters, on_the_wire(cable.counters), port.counters
    assert counters.pauses_received == nic.pause_frames_sent
    assert counters.pauses_sent == nic.pause_frames_received
    assert counters.paused_ns == nic.pausing_ns
    corrupted = counters.received_errors * switch_ports.FRAME_BYTES
    assert counters.received_bytes + corrupted == wire.sent_bytes
    assert counters.received_packets + counters.received_errors == wire.sent_packets
    unreadable = nic.checksum_errors * switch_ports.FRAME_BYTES
    assert sent_bytes(port) == wire.received_bytes + unreadable


def assert_uplinks_agree(switches: ClusterSwitches) -> None:
    for name, spine in switches.switches.items():
        if not name.startswith("spine"):
            continue
        for port in spine.ports.values():
            other = switches.switches[port.neighbour.system_name].ports["Ethernet256"]
            for here, there in (port, other), (other, port):
                assert here.counters.received_bytes == sent_bytes(there)
                assert here.counters.pauses_received == there.counters.pauses_sent


@fewer_examples(30)
@given(
    faults=st.lists(st.sampled_from(FAULTS), max_size=2, unique=True),
    pods=st.integers(1, 2),
    steps=st.lists(st.floats(0.2, 3.0), min_size=2, max_size=4),
)
def test_both_ends_of_each_link_count_the_same(faults: list[str], pods: int, steps: list[float]):
    model, switches = cluster(*faults, pods=pods)
    seconds = 0.0
    for step in steps:
        advance(model, switches, seconds := seconds + step)
        for cable, port in links(model, switches):
            assert_ends_agree(cable, port)
            for queue in port.counters.queues:
                assert queue.marked_packets <= queue.packets
                assert 0 <= queue.occupancy_bytes <= switch_ports.PAUSE_FROM_BYTES
        assert_uplinks_agree(switches)


def test_a_slow_receiver_pauses_its_port_and_fills_the_queue_to_it():
    model, switches = cluster("slow_receiver")
    advance(model, switches, 1)
    ends = {(cable.port.rail, port.neighbour.system_name): port for cable, port in links(model, switches)}  # fmt: skip
    slow, other = ends[RAIL, "gpu-node-2"], ends[RAIL, "gpu-node-3"]
    paused_before = slow.counters.paused_ns
    advance(model, switches, 8)
    assert slow.counters.paused_ns - paused_before > SECOND_NS
    assert slow.counters.lossless.watermark_bytes == switch_ports.PAUSE_FROM_BYTES
    assert slow.counters.lossless.occupancy_bytes > other.counters.lossless.occupancy_bytes


LIVE = LiveNode(
    "gpu-node-2", 3, "slurm", 10**18, 10**18 + 10**14, 10**12, gpus=2, round_seconds=60,
    faults=(PlannedFault("stalled_receiver", 5, 40),),
)  # fmt: skip


def pfc_rows(timeline: LiveTimeline, interface: str, seconds: float) -> tuple[str, str]:
    """Pause frames that a NIC sent and received, as ethtool reports them."""
    answer = timeline.result_at(
        "calls", f"ethtool.statistics({interface})", round(seconds * SECOND_NS)
    )
    found = dict(zip(answer["names"], answer["values"], strict=True))
    return str(found["tx_prio3_pause"]), str(found["rx_prio3_pause"])


def test_switches_of_live_nodes_count_what_their_agents_read_whenever_these_start():
    now = [LIVE.started_boot_ns + 3 * SECOND_NS]
    answers = LiveSwitches([LIVE], lambda: now[0]).answers()
    early = LiveTimeline(LIVE, 0)
    restarted = LiveTimeline(LIVE, round(21.7 * SECOND_NS))
    node = node_model.NodeModel(LIVE.spec, 10 * SECOND_NS, 0)
    largest = 0
    for seconds in (22.2, 40.9, 41.0):
        now[0] = LIVE.started_boot_ns + round(seconds * SECOND_NS)
        for cable in node.cables:
            interface = cable.port.interface
            leaf = lldp_neighbours.neighbours_of(node)[interface]
            rows = answers[leaf.switch](("COUNTERS_DB", "COUNTERS", "Ethernet*"))
            (row,) = rows.values()
            counted = tuple(row[f"SAI_PORT_STAT_PFC_3_{side}_PKTS"] for side in ("RX", "TX"))
            assert counted == pfc_rows(early, interface, seconds)
            assert counted == pfc_rows(restarted, interface, seconds)
            largest = max(largest, int(counted[0]))
    assert largest > 1000


def test_live_nodes_that_started_at_different_times_are_rejected():
    later = replace(LIVE, started_boot_ns=LIVE.started_boot_ns + 1)
    with pytest.raises(ValueError, match="the same started_boot_ns"):
        LiveSwitches([LIVE, later], lambda: LIVE.started_boot_ns)
