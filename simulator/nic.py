"""Simulated interfaces in ethtool and /sys/class/net.

Statistics are those of each NIC's driver. RDMA traffic has priority 3 and congestion notifications
priority 6 if the port trusts DSCP; all other traffic has priority 0.
"""

from __future__ import annotations

import errno

from railscope.capture import Json, Moment, failure
from simulator import bnxt_statistics, ice_statistics, mlx5_statistics
from simulator.fabric import Cable
from simulator.machine import ETHERNET, KERNEL, LOOPBACK
from simulator.model import NodeModel
from simulator.pci_layout import MANAGEMENT_ADDRESS
from simulator.server import Traffic

MANAGEMENT_MAC = "52:54:00:12:34:56"
MANAGEMENT_MTU_BYTES, LOOPBACK_MTU_BYTES = 1500, 65536

_STATISTICS = {
    "mlx5_core": mlx5_statistics.statistics,
    "bnxt_en": bnxt_statistics.statistics,
    "ice": ice_statistics.statistics,
}


def show(model: NodeModel, into: Moment) -> None:
    """Add all interfaces to a `Moment`."""
    interfaces = [cable.port.interface for cable in model.present_cables]
    into.names["/sys/class/net"] = sorted([*interfaces, ETHERNET, LOOPBACK])
    paths = {device.address: device.path for device in model.machine.pci}
    for cable in model.present_cables:
        port = cable.port
        found = statistics_of(cable)
        _show_files(into, port.interface, _interface_files(cable), paths[port.pci_address])
        into.calls[f"ethtool.driver({port.interface})"] = {
            "driver": port.nic.driver,
            "version": KERNEL,
            "firmware": port.nic.interface_firmware,
            "bus": port.pci_address,
        }
        into.calls[f"ethtool.statistics({port.interface})"] = {
            "names": list(found),
            "values": list(found.values()),
        }
    _show_management(into, model.server.traffic[ETHERNET], paths[MANAGEMENT_ADDRESS])
    _show_loopback(into)


def statistics_of(cable: Cable) -> dict[str, int]:
    """Return the statistics of a port, in the order of its driver."""
    return _STATISTICS[cable.port.nic.driver](cable)


def _interface_files(cable: Cable) -> dict[str, Json]:
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


def _show_files(into: Moment, interface: str, files: dict[str, Json], device: Json) -> None:
    directory = f"/sys/class/net/{interface}"
    for name, content in files.items():
        failed = isinstance(content, dict)
        into.files[f"{directory}/{name}"] = content if failed else f"{content}\n"
    into.links[f"{directory}/device"] = device


def _show_management(into: Moment, traffic: Traffic, pci_path: str) -> None:
    files = {
        "speed": -1,
        "carrier": 1,
        "carrier_changes": 1,
        "mtu": MANAGEMENT_MTU_BYTES,
        "operstate": "up",
        "address": MANAGEMENT_MAC,
        "dev_port": 0,
    }
    _show_files(into, ETHERNET, files, f"{pci_path}/virtio0")
    into.calls[f"ethtool.driver({ETHERNET})"] = {
        "driver": "virtio_net",
        "version": "1.0.0",
        "firmware": "",
        "bus": MANAGEMENT_ADDRESS,
    }
    into.calls[f"ethtool.statistics({ETHERNET})"] = {
        "names": [
            "rx_queue_0_packets", "rx_queue_0_bytes", "tx_queue_0_packets", "tx_queue_0_bytes",
        ],
        "values": [
            traffic.received_packets, traffic.received_bytes,
            traffic.sent_packets, traffic.sent_bytes,
        ],
    }  # fmt: skip


def _show_loopback(into: Moment) -> None:
    files = {
        "speed": failure(OSError(errno.EINVAL, "")),
        "carrier": 1,
        "carrier_changes": 0,
        "mtu": LOOPBACK_MTU_BYTES,
        "operstate": "unknown",
        "address": "00:00:00:00:00:00",
        "dev_port": 0,
    }
    _show_files(into, LOOPBACK, files, failure(OSError(errno.ENOENT, "")))
    for function in ("driver", "statistics"):
        into.calls[f"ethtool.{function}({LOOPBACK})"] = failure(OSError(errno.EOPNOTSUPP, ""))
