"""Statistics of an mlx5 interface, in the driver's order.

Names and units: linux, Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst.
Only a priority with PFC has pause counters; global pause is off.
"""

from __future__ import annotations

from simulator.fabric import Cable
from simulator.nic_models import LANES
from simulator.port_counters import NEIGHBOUR_FRAME_BYTES, by_priority, on_the_wire
from simulator.port_settings import PRIORITIES
from simulator.span import NS_PER_SECOND, NS_PER_US

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


def statistics(cable: Cable) -> dict[str, int]:
    """Return the statistics of `ethtool -S`."""
    seen = cable.counters
    wire = on_the_wire(seen)
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
        "rx_vport_rdma_unicast_packets": seen.received.packets,
        "rx_vport_rdma_unicast_bytes": seen.received.data_bytes,
        "tx_vport_rdma_unicast_packets": seen.sent.packets,
        "tx_vport_rdma_unicast_bytes": seen.sent.data_bytes,
        "rx_bytes_phy": wire.received_bytes,
        "rx_packets_phy": wire.received_packets,
        "rx_discards_phy": wire.discards,
        "tx_bytes_phy": wire.sent_bytes,
        "tx_packets_phy": wire.sent_packets,
        "tx_discards_phy": 0,
        "rx_crc_errors_phy": seen.checksum_errors,
        "rx_symbol_err_phy": seen.symbol_errors,
        "rx_pause_ctrl_phy": seen.pause_frames_received,
        "tx_pause_ctrl_phy": seen.pause_frames_sent,
        "rx_pcs_symbol_err_phy": seen.symbol_errors,
        "rx_corrected_bits_phy": sum(seen.mended_bits),
        "rx_bits_phy": seen.observed_bits,
        **dict(zip(_LANE_NAMES, seen.mended_bits, strict=True)),
        "link_down_events_phy": seen.link_downs,
        "rx_buffer_passed_thres_phy": seen.buffer_alarms,
        "rx_pci_signal_integrity": seen.pcie_errors,
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
    for names, values in zip(_PRIORITY_NAMES, by_priority(seen), strict=True):
        found.update(zip(names, values, strict=True))
    if cable.settings.pausing:
        found["rx_prio3_pause"] = seen.pause_frames_received
        found["rx_prio3_pause_duration"] = seen.paused_ns // NS_PER_US
        found["rx_prio3_pause_transition"] = seen.pause_frames_received // 2
        found["tx_prio3_pause"] = seen.pause_frames_sent
        found["tx_prio3_pause_duration"] = seen.pausing_ns // NS_PER_US
    found["tx_pause_storm_warning_events"] = seen.storm_warnings
    found["tx_pause_storm_error_events"] = seen.storm_errors
    return found
