"""Ports and counters as printed by ibstat and perfquery, given to the RDMA source as files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from support.machine import FakeHost
from support.reading import numbers, read_once, readings
from support.shared import capture_path

from railscope_agent.sources.rdma import RdmaSource

ROOT = "/sys/class/infiniband"
STATES = {"Down": "1: DOWN", "Initializing": "2: INIT", "Active": "4: ACTIVE"}
PHYSICAL = {"Disabled": "3: Disabled", "Polling": "2: Polling", "LinkUp": "5: LinkUp"}
IBSTAT = [
    "ibstat.47.0.a100.all.active.0",
    "ibstat.47.0.h100.all.active.1",
    "ibstat.47.0.some.down.0",
]


@dataclass
class IbstatPort:
    """Attributes of one port in the output of ibstat."""

    device: str
    number: str
    firmware: str
    attributes: dict[str, str] = field(default_factory=dict)


def ports(file: str) -> list[IbstatPort]:
    found: list[IbstatPort] = []
    device = firmware = ""
    for line in capture_path(f"ib/{file}").read_text().splitlines():
        name, _, text = (part.strip() for part in line.partition(":"))
        if match := re.fullmatch(r"CA '(\w+)'", line):
            device = match[1]
        elif match := re.fullmatch(r"\s*Port (\d+):", line):
            found.append(IbstatPort(device, match[1], firmware))
        elif name == "Firmware version":
            firmware = text
        elif line.startswith("\t\t"):
            found[-1].attributes[name] = text
    return found


def machine(all_ports: list[IbstatPort]) -> FakeHost:
    """Return a host with the kernel files of the ports that ibstat read."""
    host = FakeHost()
    for port in all_ports:
        directory = f"{ROOT}/{port.device}/ports/{port.number}"
        host.files |= {
            f"{ROOT}/{port.device}/fw_ver": f"{port.firmware}\n",
            f"{directory}/state": f"{STATES[port.attributes['State']]}\n",
            f"{directory}/phys_state": f"{PHYSICAL[port.attributes['Physical state']]}\n",
            f"{directory}/rate": f"{port.attributes['Rate']} Gb/sec (4X NDR)\n",
            f"{directory}/link_layer": f"{port.attributes['Link layer']}\n",
        }
    return host


@pytest.mark.parametrize("file", IBSTAT)
def test_state_rate_and_facts_are_those_of_ibstat(file: str) -> None:
    all_ports = ports(file)
    assert len(all_ports) >= 9
    frame = read_once(RdmaSource(), machine(all_ports)).frame
    assert frame is not None
    found = numbers(frame)
    facts = {entity.key: dict(entity.facts) for entity in frame.schema.entities}
    for port in all_ports:
        key, attributes = (port.device, port.number), port.attributes
        assert found["railscope_rdma_port_up", key] == float(attributes["State"] == "Active")
        assert found["railscope_rdma_port_state", key] == int(STATES[attributes["State"]][0])
        assert found["railscope_rdma_port_physical_state", key] == int(
            PHYSICAL[attributes["Physical state"]][0]
        )
        assert found["railscope_rdma_port_rate_bytes_per_second", key] == (
            float(attributes["Rate"]) * 1e9 / 8
        )
        assert facts[key]["firmware"] == port.firmware
        assert facts[key]["link_layer"] == attributes["Link layer"]
    assert sum(found["railscope_rdma_port_up", (p.device, p.number)] for p in all_ports) == sum(
        p.attributes["State"] == "Active" for p in all_ports
    )


def test_the_ports_that_are_down_are_the_ones_ibstat_calls_down() -> None:
    all_ports = ports("ibstat.47.0.some.down.0")
    found = numbers(read_once(RdmaSource(), machine(all_ports)).frame)
    down = {
        key
        for (name, key), value in found.items()
        if name == "railscope_rdma_port_up" and value == 0
    }
    assert down == {(p.device, p.number) for p in all_ports if p.attributes["State"] == "Down"}
    assert len(down) == 3


# perfquery: the same counters, read by management datagrams. File name, metric, bits in sysfs.
COUNTERS = {
    "PortXmitData": ("port_xmit_data", "transmit_bytes", 64),
    "PortRcvData": ("port_rcv_data", "receive_bytes", 64),
    "PortXmitPkts": ("port_xmit_packets", "transmit_packets", 64),
    "PortRcvPkts": ("port_rcv_packets", "receive_packets", 64),
    "PortUnicastXmitPkts": ("unicast_xmit_packets", "transmit_unicast_packets", 64),
    "PortUnicastRcvPkts": ("unicast_rcv_packets", "receive_unicast_packets", 64),
    "PortMulticastXmitPkts": ("multicast_xmit_packets", "transmit_multicast_packets", 64),
    "PortMulticastRcvPkts": ("multicast_rcv_packets", "receive_multicast_packets", 64),
    "SymbolErrorCounter": ("symbol_error", "symbol_errors", 16),
    "LinkErrorRecoveryCounter": ("link_error_recovery", "link_error_recoveries", 8),
    "LinkDownedCounter": ("link_downed", "link_downs", 8),
    "PortRcvErrors": ("port_rcv_errors", "receive_errors", 16),
    "PortRcvRemotePhysicalErrors": (
        "port_rcv_remote_physical_errors", "receive_remote_physical_errors", 16,
    ),
    "PortRcvSwitchRelayErrors": ("port_rcv_switch_relay_errors", "receive_switch_relay_errors", 16),
    "PortXmitDiscards": ("port_xmit_discards", "transmit_discarded_packets", 16),
    "PortXmitConstraintErrors": ("port_xmit_constraint_errors", "transmit_constraint_errors", 8),
    "PortRcvConstraintErrors": ("port_rcv_constraint_errors", "receive_constraint_errors", 8),
    "LocalLinkIntegrityErrors": ("local_link_integrity_errors", "local_link_integrity_errors", 4),
    "ExcessiveBufferOverrunErrors": (
        "excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors", 4,
    ),
    "VL15Dropped": ("VL15_dropped", "vl15_dropped_packets", 16),
    "PortXmitWait": ("port_xmit_wait", "transmit_wait_ticks", 32),
}  # fmt: skip
NO_FILE = {"PortSelect", "CounterSelect", "CounterSelect2", "QP1Dropped"}
BYTES_PER_UNIT = 4


def queried_counters(file: str) -> list[dict[str, int]]:
    """Return the counters of each queried port."""
    found: list[dict[str, int]] = []
    for line in capture_path(f"ib/fabric/{file}").read_text().splitlines():
        if line.startswith("# Port"):
            found.append({})
        elif match := re.fullmatch(r"(\w+):\.*(0x[0-9a-f]+|\d+)", line):
            found[-1][match[1]] = int(match[2], 0)
    return found


FABRIC = ["perfquery-0x506b4b03005c2740.out", "perfquery-0x7cfe9003009ce5b0.out"]


@pytest.mark.parametrize("file", FABRIC)
def test_counters_are_those_of_perfquery(file: str) -> None:
    """A narrow file stays at its maximum where perfquery reports more, and counts as saturated."""
    host, expected = FakeHost(), {}
    for number, counters in enumerate(queried_counters(file), 1):
        assert set(counters) - NO_FILE == set(COUNTERS)
        key, saturated = ("mlx5_0", str(number)), 0
        for name, (path, metric, bits) in COUNTERS.items():
            shown = min(counters[name], 2**bits - 1)
            saturated += bits < 64 and shown == 2**bits - 1
            host.files[f"{ROOT}/mlx5_0/ports/{number}/counters/{path}"] = f"{shown}\n"
            step = BYTES_PER_UNIT if metric.endswith("_bytes") else 1
            expected[f"railscope_rdma_{metric}_total", key] = float(shown * step)
        expected["railscope_rdma_saturated_counters", key] = float(saturated)
    assert len(expected) > 20
    found = numbers(read_once(RdmaSource(), host).frame)
    assert found == expected


def test_error_details_that_have_no_metric_come_under_their_own_names() -> None:
    (counters,) = queried_counters("perfquery-rcv-error-0x7cfe9003003b4b96-1.out")
    host = FakeHost()
    for name, number in counters.items():
        host.files[f"{ROOT}/mlx5_0/ports/1/hw_counters/{name}"] = str(number)
    found = readings(read_once(RdmaSource(), host).frame)
    for name, number in counters.items():
        key = ("mlx5_0", "1", name)
        assert found["railscope_rdma_vendor_total", key] == number
