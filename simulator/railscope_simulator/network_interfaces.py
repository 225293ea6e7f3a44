"""Network interfaces in ethtool, /sys/class/net and rtnetlink, with transceivers.

Statistics are those of each NIC's driver. RDMA traffic has priority 3 and congestion notifications
priority 6 if the port trusts DSCP; all other traffic has priority 0. In the kernel's routing
netlink interface all interfaces are in one reply, with the names of linux,
include/uapi/linux/if_link.h, struct rtnl_link_stats64. The kernel counts only its own traffic; RDMA
traffic bypasses it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from railscope.capture import CaptureMoment, Json, failure
from railscope_simulator import (
    data,
    device_models,
    driver_counters,
    fabric,
    host_activity,
    host_files,
    node_hardware,
    node_model,
    pci_layout,
)
from railscope_simulator.spec import NodeSpec

_COPPER_METRES = 2

_FIRST_INDEX = 3


@dataclass(frozen=True)
class InterfaceTables:
    """The file data/interfaces.toml."""

    link_statistics: tuple[str, ...]
    standard_statistics: dict[str, dict[str, str]]
    rings: dict[str, dict[str, Json]]
    link_modes: dict[str, dict[str, list[Json]]]
    unknown_link_mode: dict[str, Json]
    transceivers: dict[str, dict[str, dict[str, Json]]]
    transceiver_thresholds: dict[str, Json]
    files: dict[str, dict[str, Json]]
    link: dict[str, Json]
    links: dict[str, dict[str, Json]]


INTERFACES = data.read_table("interfaces", InterfaceTables)


def show_interfaces(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add all interfaces to a `CaptureMoment`."""
    interfaces = [cable.port.interface for cable in model.present_cables]
    into.names["/sys/class/net"] = sorted(
        [*interfaces, node_hardware.ETHERNET, node_hardware.LOOPBACK]
    )
    paths = {device.address: device.path for device in model.machine.pci}
    for cable in model.present_cables:
        port = cable.port
        statistics = driver_counters.ethtool_statistics(cable)
        _show_files(into, port.interface, _interface_files(cable), paths[port.pci_address])
        driver = (
            port.nic.driver,
            node_hardware.KERNEL,
            port.nic.interface_firmware,
            port.pci_address,
        )
        _show_ethtool(into, port.interface, driver, statistics)
    _show_management(
        into, model.server.traffic[node_hardware.ETHERNET], paths[pci_layout.MANAGEMENT_ADDRESS]
    )
    _show_loopback(into)


def _interface_files(cable: fabric.Cable) -> dict[str, Json]:
    port = cable.port
    return {
        "speed": cable.gigabits * 1000 if cable.up else -1,
        "carrier": int(cable.up),
        "carrier_changes": cable.counters.carrier_changes,
        "mtu": cable.settings.mtu_bytes,
        "operstate": "up" if cable.up else "down",
        "address": port.mac,
        "dev_port": 0,
        "phys_port_name": "p0",
    }


def _show_files(into: CaptureMoment, interface: str, files: dict[str, Json], device: Json) -> None:
    directory = f"/sys/class/net/{interface}"
    host_files.show_files(into, directory, files)
    into.links[f"{directory}/device"] = device


def _show_ethtool(
    into: CaptureMoment, interface: str, driver: tuple[str, str, str, str], found: dict[str, int]
) -> None:
    """Add the driver (name, version, firmware and bus) of an interface, and its statistics."""
    names = ("driver", "version", "firmware", "bus")
    into.calls[f"ethtool.driver({interface})"] = dict(zip(names, driver, strict=True))
    statistics = {"names": list(found), "values": list(found.values())}
    into.calls[f"ethtool.statistics({interface})"] = statistics


def _show_management(
    into: CaptureMoment, traffic: host_activity.InterfaceTraffic, pci_path: str
) -> None:
    _show_files(
        into,
        node_hardware.ETHERNET,
        INTERFACES.files[node_hardware.ETHERNET],
        f"{pci_path}/virtio0",
    )
    statistics = {
        "rx_queue_0_packets": traffic.received_packets,
        "rx_queue_0_bytes": traffic.received_bytes,
        "tx_queue_0_packets": traffic.sent_packets,
        "tx_queue_0_bytes": traffic.sent_bytes,
    }
    _show_ethtool(
        into,
        node_hardware.ETHERNET,
        ("virtio_net", "1.0.0", "", pci_layout.MANAGEMENT_ADDRESS),
        statistics,
    )


def _show_loopback(into: CaptureMoment) -> None:
    files = {
        "speed": failure(OSError(errno.EINVAL, "")),
        **INTERFACES.files[node_hardware.LOOPBACK],
    }
    _show_files(into, node_hardware.LOOPBACK, files, failure(OSError(errno.ENOENT, "")))
    for function in ("driver", "statistics"):
        into.calls[f"ethtool.{function}({node_hardware.LOOPBACK})"] = failure(
            OSError(errno.EOPNOTSUPP, "")
        )


def show_links(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add all interfaces to a `CaptureMoment`."""
    traffic = host_files.network(model)
    interfaces = [
        _link(index, name, traffic[name]) | INTERFACES.links[name]
        for index, name in enumerate((node_hardware.LOOPBACK, node_hardware.ETHERNET), 1)
    ]
    # All cables are counted, so that the index of an interface remains after another NIC is removed.
    for place, cable in enumerate(model.cables):
        if cable.removed:
            continue
        name, counters = cable.port.interface, cable.counters
        interfaces.append(
            _link(_FIRST_INDEX + place, name, traffic[name])
            | {
                "operational_state": "up" if cable.up else "down",
                "carrier": int(cable.up),
                "mtu": cable.settings.mtu_bytes,
                "address": cable.port.mac,
                "carrier_changes": counters.carrier_changes,
                "carrier_up_count": counters.carrier_changes - counters.link_downs,
                "carrier_down_count": counters.link_downs,
            }
        )
    into.calls["netlink.links()"] = interfaces


def _link(index: int, name: str, traffic: host_activity.InterfaceTraffic) -> dict[str, Json]:
    """Return an interface that has been up since boot."""
    return {
        "index": index,
        "name": name,
        **INTERFACES.link,
        "statistics": dict.fromkeys(INTERFACES.link_statistics, 0)
        | {
            "rx_packets": traffic.received_packets,
            "tx_packets": traffic.sent_packets,
            "rx_bytes": traffic.received_bytes,
            "tx_bytes": traffic.sent_bytes,
            "rx_errors": traffic.receive_errors,
            "rx_crc_errors": traffic.receive_errors,
        },
    }


def show_transceivers(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add the transceivers of all ports to a `CaptureMoment`.

    Rails have optics with four lanes, storage has passive copper, which has no measurements. Measurements
    are those of CMIS 5.2 and SFF-8636.
    """
    for cable in model.present_cables:
        into.calls[f"netlink.module({cable.port.interface})"] = _module(model.spec, cable)


def _module(spec: NodeSpec, cable: fabric.Cable) -> dict[str, Json]:
    optical = cable.port.rail is not None
    models = INTERFACES.transceivers["optical" if optical else "copper"]
    serial = spec.stream(f"module {cable.port.rdma_device}").randrange(10**9)
    found: dict[str, Json] = {
        **models[cable.port.nic.driver],
        "serial": f"MT{serial:09d}",
        "media": "optical single-mode" if optical else "passive copper",
    }
    if not optical:
        return found | {"length_metres": _COPPER_METRES}
    optics = cable.optics
    return found | {
        "temperature_millicelsius": optics.millicelsius,
        "voltage_microvolts": optics.microvolts,
        "lanes": [
            {
                "receive_power_nanowatts": optics.receive_nanowatts(lane),
                "transmit_power_nanowatts": optics.transmit_nanowatts(lane),
                "bias_microamperes": optics.bias_microamperes(lane),
            }
            for lane in range(device_models.LANES)
        ],
        "thresholds": INTERFACES.transceiver_thresholds,
    }
