"""NICs of other vendors: their drivers' names, and the same meaning under all of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings, strategies as st
from support.examples import fewer_examples

from railscope.capture import Json
from railscope.catalog import nic as catalog, rdma as rdma_catalog
from railscope.timestamps import SECOND_NS
from railscope_agent.sources.ethtool_statistics import match_statistics
from railscope_agent.topology.network_interface import NetworkInterface
from railscope_simulator import NICS, NodeSpec, simulate
from railscope_simulator.device_models import CONNECTX7, E810, THOR2
from railscope_simulator.driver_counters import (
    counters,
    ethtool_statistics,
    hw_counters,
    optional_counters,
)
from railscope_simulator.fabric import Cable
from railscope_simulator.node_model import NodeModel
from railscope_simulator.port import by_priority, on_the_wire

SHORT = settings(fewer_examples(40), deadline=None)
FAULTS = ("training", "incast", "pause_storm", "flapping", "settings_drift", "optics", "speed_down")
MODELS = st.builds(
    NodeSpec,
    node=st.just("gpu-001"),
    seed=st.integers(0, 1000),
    gpus=st.sampled_from((1, 3, 5)),
    scenario=st.sampled_from(FAULTS),
    nic=st.sampled_from(list(NICS)),
)
NAMES = {
    "cx7": [f"mlx5_{n}" for n in (0, 3, 4, 5, 6, 9, 10, 11, 1, 7)],
    "bnxt": [f"bnxt_re{n}" for n in (0, 2, 3, 4, 5, 7, 8, 9, 1, 6)],
    "irdma": [f"rocep{bus}s0" for bus in (24, 64, 79, 94, 154, 192, 206, 220, 41, 170)],
    "mixed": [
        *(f"mlx5_{n}" for n in (0, 3, 4, 5)), *(f"bnxt_re{n}" for n in range(4)), "mlx5_1", "mlx5_7",
    ],
}  # fmt: skip
RDMA_DRIVERS = {"mlx5_core": CONNECTX7, "bnxt_en": THOR2, "ice": E810}


@pytest.mark.parametrize("nic", NICS)
def test_each_nic_is_named_and_numbered_as_by_its_driver(nic: str) -> None:
    start = simulate(NodeSpec("gpu-001", nic=nic), 1).moments[0]
    assert start.names["/sys/class/infiniband"] == sorted(NAMES[nic])
    for device in NAMES[nic]:
        (interface,) = start.names[f"/sys/class/infiniband/{device}/device/net"]
        reported = start.calls[f"ethtool.driver({interface})"]
        model = RDMA_DRIVERS[reported["driver"]]
        directory = f"/sys/bus/pci/devices/{reported['bus']}"
        assert start.files[f"{directory}/vendor"] == f"0x{model.pci_vendor:04x}\n"
        assert start.files[f"{directory}/device"] == f"0x{model.pci_device:04x}\n"
        assert start.links[f"{directory}/driver"].endswith(f"/{reported['driver']}")
        assert start.files[f"/sys/class/infiniband/{device}/fw_ver"] == f"{model.firmware}\n"
        assert reported["firmware"] == model.interface_firmware
        statistics = start.calls[f"ethtool.statistics({interface})"]["names"]
        assert len(set(statistics)) == len(statistics)
        assert all(len(name) < 32 for name in statistics)


def test_nics_on_trays_have_names_with_their_pci_domain() -> None:
    spec = NodeSpec("gpu-001", gpus=4, model="gb200", nic="irdma")
    devices = simulate(spec, 1).moments[0].names["/sys/class/infiniband"]
    assert len(set(devices)) == 6
    assert {"rocep3s0", "roceP2p3s0", "roceP16p3s0", "roceP18p3s0"} <= set(devices)


def by_metric(cable: Cable) -> Mapping[tuple[str, str], int]:
    """Values that the agent derives from a NIC's statistics, by metric and part."""
    found = ethtool_statistics(cable)
    names = list(found)
    columns = match_statistics(NetworkInterface("eth0", driver=cable.port.nic.driver), names)
    return {(metric.name, part): found[names[place]] for metric, part, place in columns}


def worked(spec: NodeSpec) -> NodeModel:
    """A model after its fault."""
    model = NodeModel(spec, 40 * SECOND_NS)
    for second in range(1, 41):
        model.advance(second * SECOND_NS)
    return model


@SHORT
@given(MODELS)
def test_every_driver_reports_the_same_values_of_a_port(spec: NodeSpec) -> None:
    for cable in worked(spec).cables:
        seen, reported, wire = cable.counters, by_metric(cable), on_the_wire(cable.counters)
        assert reported[catalog.RECEIVED.name, ""] == wire.received_bytes
        assert reported[catalog.SENT.name, ""] == wire.sent_bytes
        assert reported[catalog.DISCARDS_RECEIVED.name, ""] == wire.discards
        assert reported[catalog.CRC_ERRORS.name, ""] == seen.checksum_errors
        driver = cable.port.nic.driver
        sent = reported.get((catalog.PFC_SENT.name, "3"), 0)
        received = reported.get((catalog.PFC_RECEIVED.name, "3"), 0)
        if driver == "ice":
            sent += reported[catalog.PFC_RESUMED_SENT.name, "3"]
            received += reported[catalog.PFC_RESUMED_RECEIVED.name, "3"]
        if driver != "mlx5_core" or cable.settings.pausing:
            assert (sent, received) == (seen.pause_frames_sent, seen.pause_frames_received)
        if driver == "ice":
            assert not any("pause_seconds" in name for name, _ in reported)
            continue
        assert reported[catalog.LINK_DOWNS.name, ""] == seen.link_downs
        assert reported[catalog.CORRECTED.name, ""] == sum(seen.corrected_bits)
        assert reported[catalog.LINE_RECEIVED.name, ""] == seen.observed_bits
        assert reported[catalog.UNCORRECTED_SYMBOLS.name, ""] == seen.symbol_errors
        for priority, traffic in enumerate(by_priority(seen)):
            part = str(priority)
            assert reported[catalog.PRIORITY_RECEIVED.name, part] == traffic.received_bytes
            assert reported[catalog.PRIORITY_SENT_PACKETS.name, part] == traffic.sent_packets
        if cable.settings.pausing:
            assert reported[catalog.PFC_SENT_TIME.name, "3"] == seen.pausing_ns // 1000
            assert reported[catalog.PFC_RECEIVED_TIME.name, "3"] == seen.paused_ns // 1000


def meaning(name: str) -> str:
    """The metric of a counter file."""
    metric = rdma_catalog.COUNTER_FILES.get(name)
    return metric.name if metric else ""


@SHORT
@given(MODELS)
def test_every_rdma_driver_counts_the_same(spec: NodeSpec) -> None:
    for cable in worked(spec).cables:
        seen, driver = cable.counters, cable.port.nic.driver
        files = hw_counters(cable)
        reported = {meaning(name): value for name, value in files.items()}
        assert reported[meaning("np_ecn_marked_roce_packets")] == seen.marked_packets
        assert reported[meaning("np_cnp_sent")] == seen.notifications_sent
        assert reported[meaning("rp_cnp_handled")] == seen.notifications_handled
        if driver == "ice":
            assert counters(cable) is None
            assert files["ip4InPkts"] == files["RxUDP"] == seen.received.packets
            assert files["ip4OutOctets"] == seen.sent.data_bytes - 14 * seen.sent.packets
            continue
        assert reported[meaning("out_of_sequence")] == seen.out_of_sequence
        assert reported[meaning("local_ack_timeout_err")] == seen.ack_timeouts
        assert reported[meaning("packet_seq_err")] == seen.sequence_errors
        terms = counters(cable) or {}
        assert terms["port_rcv_data"] * 4 == seen.received.data_bytes
        if driver == "bnxt_en":
            assert files["tx_bytes"] == terms["port_xmit_data"] * 4
            assert files["rx_write_req"] == seen.write_requests
            assert optional_counters(cable) == {}
        else:
            assert files["rx_write_requests"] == seen.write_requests % 2**32
            assert optional_counters(cable)["rdma_tx_bytes"] == terms["port_xmit_data"] * 4


def test_a_b200_has_functions_that_are_not_nics() -> None:
    start = simulate(NodeSpec("gpu-001", model="b200"), 1).moments[0]
    devices = start.names["/sys/class/infiniband"]
    assert len(devices) == 14
    assert devices == sorted(f"mlx5_{number}" for number in range(14))

    def vital(device: str) -> str:
        data: Json = start.files[f"/sys/class/infiniband/{device}/device/vpd"]
        address = start.links[f"/sys/class/infiniband/{device}/device"].rpartition("/")[2]
        assert start.files[f"/sys/bus/pci/devices/{address}/vpd"] == data
        return str(data)

    bridges = [device for device in devices if "SW_MNG" in vital(device)]
    assert len(bridges) == 4
    for device in devices:
        layer = start.files[f"/sys/class/infiniband/{device}/ports/1/link_layer"]
        net = start.names[f"/sys/class/infiniband/{device}/device/net"]
        raw = vital(device).encode(errors="surrogateescape")
        assert (layer == "InfiniBand\n") == (net == {"error": ["os", 2]}) == (device in bridges)
        assert raw[0] == 0x82
        assert raw[-1] == 0x78
        assert sum(raw[:-1]) % 256 == 0
    h100 = simulate(NodeSpec("gpu-001"), 1).moments[0]
    assert not any("SW_MNG" in str(text) for text in h100.files.values())
