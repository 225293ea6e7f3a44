"""What ethtool and /sys/class/net show of the simulated interfaces.

Names and units are those of mlx5 (linux: Documentation/networking/device_drivers/ethernet/mellanox/
mlx5/counters.rst). PFC is on for one priority and global pause is off, so only that priority has
pause counters. RDMA traffic has priority 3, congestion notifications 6, everything else 0.
"""

from __future__ import annotations

import errno

from railscope.capture import Json, Moment, failure
from railscope.simulator.fabric import DATA_FRAME_WORDS, LANES, Cable, PortCounters
from railscope.simulator.machine import ETHERNET, KERNEL, LOOPBACK, NIC_BOARD, NIC_FIRMWARE
from railscope.simulator.model import NodeModel
from railscope.simulator.pci_layout import MANAGEMENT_ADDRESS
from railscope.simulator.server import Traffic
from railscope.simulator.span import NS_PER_SECOND, NS_PER_US

LOSSLESS, NOTIFICATION, BEST_EFFORT = 3, 6, 0
PRIORITIES = range(8)
MTU_BYTES = 4200
NEIGHBOUR_FRAME_BYTES = 196
NOTIFICATION_FRAME_BYTES = 74
DATA_FRAME_BYTES = DATA_FRAME_WORDS * 4
CHECKSUM_BYTES = 4

_PRIORITY_NAMES = [
    tuple(
        f"{direction}_prio{priority}_{what}"
        for direction, what in (
            ("rx", "bytes"), ("rx", "packets"), ("rx", "discards"), ("tx", "bytes"), ("tx", "packets"),
        )
    )
    for priority in PRIORITIES
]  # fmt: skip
_LANE_NAMES = [f"rx_err_lane_{lane}_phy" for lane in range(LANES)]


def show(model: NodeModel, into: Moment) -> None:
    """Put all interfaces into a moment."""
    interfaces = [cable.port.interface for cable in model.cables]
    into.names["/sys/class/net"] = sorted([*interfaces, ETHERNET, LOOPBACK])
    paths = {device.address: device.path for device in model.machine.pci}
    for cable in model.cables:
        port = cable.port
        found = statistics(cable)
        _show_files(into, port.interface, _interface_files(cable), paths[port.pci_address])
        into.calls[f"ethtool.driver({port.interface})"] = {
            "driver": "mlx5_core",
            "version": KERNEL,
            "firmware": f"{NIC_FIRMWARE} ({NIC_BOARD})",
            "bus": port.pci_address,
        }
        into.calls[f"ethtool.statistics({port.interface})"] = {
            "names": list(found),
            "values": list(found.values()),
        }
    _show_management(into, model.server.traffic[ETHERNET], paths[MANAGEMENT_ADDRESS])
    _show_loopback(into)


def statistics(cable: Cable) -> dict[str, int]:
    """Tell the statistics of an mlx5 interface, in the driver's order."""
    seen = cable.counters
    rdma_sent, rdma_received = seen.sent_words * 4, seen.received_words * 4
    priorities = _priorities(seen)
    wire = [sum(column) for column in zip(*priorities, strict=True)]
    frames, frame_bytes = seen.neighbour_frames, seen.neighbour_frames * NEIGHBOUR_FRAME_BYTES
    found = {
        "rx_packets": frames,
        "rx_bytes": frame_bytes,
        "tx_packets": frames,
        "tx_bytes": frame_bytes,
        "rx_ecn_mark": 0,
        "rx_out_of_buffer": 0,
        "ch0_events": 2 * frames,
        "ch0_poll": 2 * frames,
        "rx0_packets": frames,
        "rx0_bytes": frame_bytes,
        "tx0_packets": frames,
        "tx0_bytes": frame_bytes,
        "rx_vport_rdma_unicast_packets": seen.received_packets,
        "rx_vport_rdma_unicast_bytes": rdma_received,
        "tx_vport_rdma_unicast_packets": seen.sent_packets,
        "tx_vport_rdma_unicast_bytes": rdma_sent,
        "rx_bytes_phy": wire[0],
        "rx_packets_phy": wire[1],
        "rx_discards_phy": wire[2],
        "tx_bytes_phy": wire[3],
        "tx_packets_phy": wire[4],
        "tx_discards_phy": 0,
        "rx_crc_errors_phy": 0,
        "rx_symbol_err_phy": 0,
        "rx_pause_ctrl_phy": seen.pause_frames_received,
        "tx_pause_ctrl_phy": seen.pause_frames_sent,
        "rx_pcs_symbol_err_phy": 0,
        "rx_corrected_bits_phy": sum(seen.mended_bits),
        "rx_bits_phy": seen.observed_bits,
        **dict(zip(_LANE_NAMES, seen.mended_bits, strict=True)),
        "link_down_events_phy": seen.link_downs,
        "rx_buffer_passed_thres_phy": seen.buffer_alarms,
        "rx_pci_signal_integrity": 0,
        "tx_pci_signal_integrity": 0,
        "outbound_pci_stalled_rd": cable.pcie_read_stall_percent,
        "outbound_pci_stalled_wr": cable.pcie_write_stall_percent,
        "outbound_pci_stalled_rd_events": 0,
        "outbound_pci_stalled_wr_events": seen.write_stalled_ns // NS_PER_SECOND,
        "outbound_pci_buffer_overflow": 0,
        "module_unplug": 0,
        "module_bus_stuck": 0,
        "module_high_temp": 0,
        "module_bad_shorted": 0,
    }
    for names, values in zip(_PRIORITY_NAMES, priorities, strict=True):
        found.update(zip(names, values, strict=True))
    found["rx_prio3_pause"] = seen.pause_frames_received
    found["rx_prio3_pause_duration"] = seen.paused_ns // NS_PER_US
    found["rx_prio3_pause_transition"] = seen.pause_frames_received // 2
    found["tx_prio3_pause"] = seen.pause_frames_sent
    found["tx_prio3_pause_duration"] = seen.pausing_ns // NS_PER_US
    found["tx_pause_storm_warning_events"] = seen.storm_warnings
    found["tx_pause_storm_error_events"] = seen.storm_errors
    return found


def _priorities(seen: PortCounters) -> list[tuple[int, int, int, int, int]]:
    """Bytes, packets and discards received, bytes and packets sent, for each priority."""
    found = [(0, 0, 0, 0, 0)] * len(PRIORITIES)
    frame = NEIGHBOUR_FRAME_BYTES + CHECKSUM_BYTES
    frames = seen.neighbour_frames
    found[BEST_EFFORT] = (frames * frame, frames, 0, frames * frame, frames)
    arrived = seen.received_packets + seen.dropped_packets
    found[LOSSLESS] = (
        arrived * (DATA_FRAME_BYTES + CHECKSUM_BYTES),
        arrived,
        seen.dropped_packets,
        seen.sent_packets * (DATA_FRAME_BYTES + CHECKSUM_BYTES),
        seen.sent_packets,
    )
    frame = NOTIFICATION_FRAME_BYTES + CHECKSUM_BYTES
    handled, sent = seen.notifications_handled, seen.notifications_sent
    found[NOTIFICATION] = (handled * frame, handled, 0, sent * frame, sent)
    return found


def _interface_files(cable: Cable) -> dict[str, Json]:
    port = cable.port
    return {
        "speed": port.gigabits * 1000 if cable.up else -1,
        "carrier": int(cable.up),
        "carrier_changes": cable.counters.carrier_changes,
        "mtu": MTU_BYTES,
        "operstate": "up" if cable.up else "down",
        "address": port.mac,
        "dev_port": 0,
    }


def _show_files(into: Moment, interface: str, files: dict[str, Json], device: Json) -> None:
    folder = f"/sys/class/net/{interface}"
    for name, content in files.items():
        failed = isinstance(content, dict)
        into.files[f"{folder}/{name}"] = content if failed else f"{content}\n"
    into.links[f"{folder}/device"] = device


def _show_management(into: Moment, traffic: Traffic, pci_path: str) -> None:
    files = {
        "speed": -1,
        "carrier": 1,
        "carrier_changes": 1,
        "mtu": 1500,
        "operstate": "up",
        "address": "52:54:00:12:34:56",
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
        "mtu": 65536,
        "operstate": "unknown",
        "address": "00:00:00:00:00:00",
        "dev_port": 0,
    }
    _show_files(into, LOOPBACK, files, failure(OSError(errno.ENOENT, "")))
    for function in ("driver", "statistics"):
        into.calls[f"ethtool.{function}({LOOPBACK})"] = failure(OSError(errno.EOPNOTSUPP, ""))
