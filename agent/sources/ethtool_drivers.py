"""Which ethtool statistic of which driver tells which metric: one table per driver.

A pattern may hold {priority} or {lane}. Where several statistics of a driver tell one metric, the
first that the card has counts. Sources: torvalds/linux drivers/net/ethernet, en_stats.c (mlx5),
bnxt_ethtool.c, ice_ethtool.c, i40e_ethtool.c, ena_ethtool.c.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from railscope.catalog import nic as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC, NIC_LANE, NIC_PRIORITY

Row = tuple[str, Metric]

MLX5: tuple[Row, ...] = (
    ("rx_prio{priority}_pause", c.PFC_RECEIVED),
    ("tx_prio{priority}_pause", c.PFC_SENT),
    ("rx_prio{priority}_pause_duration", c.PFC_RECEIVED_TIME),
    ("tx_prio{priority}_pause_duration", c.PFC_SENT_TIME),
    ("rx_prio{priority}_pause_transition", c.PFC_RECEIVED_TRANSITIONS),
    ("rx_prio{priority}_bytes", c.PRIORITY_RECEIVED),
    ("tx_prio{priority}_bytes", c.PRIORITY_SENT),
    ("rx_prio{priority}_packets", c.PRIORITY_RECEIVED_PACKETS),
    ("tx_prio{priority}_packets", c.PRIORITY_SENT_PACKETS),
    ("rx_prio{priority}_discards", c.PRIORITY_DISCARDS),
    ("rx_prio{priority}_buf_discard", c.PRIORITY_DISCARDS),
    ("rx_prio{priority}_cong_discard", c.PRIORITY_CONGESTION_DISCARDS),
    ("rx_prio{priority}_marked", c.PRIORITY_MARKED),
    ("rx_pause_ctrl_phy", c.PAUSE_RECEIVED),
    ("tx_pause_ctrl_phy", c.PAUSE_SENT),
    ("rx_global_pause_duration", c.GLOBAL_PAUSE_RECEIVED_TIME),
    ("tx_global_pause_duration", c.GLOBAL_PAUSE_SENT_TIME),
    ("tx_pause_storm_warning_events", c.STORM_WARNINGS),
    ("tx_pause_storm_error_events", c.STORM_ERRORS),
    ("rx_bytes_phy", c.RECEIVED),
    ("tx_bytes_phy", c.SENT),
    ("rx_packets_phy", c.RECEIVED_PACKETS),
    ("tx_packets_phy", c.SENT_PACKETS),
    ("rx_vport_rdma_unicast_bytes", c.RDMA_RECEIVED),
    ("tx_vport_rdma_unicast_bytes", c.RDMA_SENT),
    ("rx_discards_phy", c.DISCARDS_RECEIVED),
    ("tx_discards_phy", c.DISCARDS_SENT),
    ("rx_out_of_buffer", c.OUT_OF_BUFFER),
    ("rx_buffer_passed_thres_phy", c.BUFFER_ALMOST_FULL),
    ("rx_ecn_mark", c.ECN_MARKED),
    ("rx_crc_errors_phy", c.CRC_ERRORS),
    ("rx_symbol_err_phy", c.SYMBOL_ERRORS),
    ("rx_pcs_symbol_err_phy", c.UNCORRECTED_SYMBOLS),
    ("rx_bits_phy", c.BITS),
    ("rx_corrected_bits_phy", c.CORRECTED_BITS),
    ("rx_err_lane_{lane}_phy", c.LANE_ERRORS),
    ("link_down_events_phy", c.LINK_DOWNS),
    ("rx_pci_signal_integrity", c.PCIE_SIGNAL_ERRORS_RECEIVED),
    ("tx_pci_signal_integrity", c.PCIE_SIGNAL_ERRORS_SENT),
    ("outbound_pci_stalled_rd", c.PCIE_READ_STALL),
    ("outbound_pci_stalled_wr", c.PCIE_WRITE_STALL),
    ("outbound_pci_stalled_rd_events", c.PCIE_READ_STALLED),
    ("outbound_pci_stalled_wr_events", c.PCIE_WRITE_STALLED),
    ("outbound_pci_buffer_overflow", c.PCIE_OVERFLOWS),
    ("module_unplug", c.MODULE_UNPLUGS),
    ("module_high_temp", c.MODULE_TOO_HOT),
)

BNXT: tuple[Row, ...] = (
    ("rx_pfc_ena_frames_pri{priority}", c.PFC_RECEIVED),
    ("tx_pfc_ena_frames_pri{priority}", c.PFC_SENT),
    ("pfc_pri{priority}_rx_duration_us", c.PFC_RECEIVED_TIME),
    ("pfc_pri{priority}_tx_duration_us", c.PFC_SENT_TIME),
    ("pfc_pri{priority}_rx_transitions", c.PFC_RECEIVED_TRANSITIONS),
    ("pfc_pri{priority}_tx_transitions", c.PFC_SENT_TRANSITIONS),
    ("rx_bytes_pri{priority}", c.PRIORITY_RECEIVED),
    ("tx_bytes_pri{priority}", c.PRIORITY_SENT),
    ("rx_packets_pri{priority}", c.PRIORITY_RECEIVED_PACKETS),
    ("tx_packets_pri{priority}", c.PRIORITY_SENT_PACKETS),
    ("rx_pause_frames", c.PAUSE_RECEIVED),
    ("tx_pause_frames", c.PAUSE_SENT),
    ("rx_bytes", c.RECEIVED),
    ("tx_bytes", c.SENT),
    ("rx_stat_discard", c.DISCARDS_RECEIVED),
    ("tx_stat_discard", c.DISCARDS_SENT),
    ("rx_buffer_passed_threshold", c.BUFFER_ALMOST_FULL),
    ("rx_fcs_err_frames", c.CRC_ERRORS),
    ("rx_pcs_symbol_err", c.UNCORRECTED_SYMBOLS),
    ("rx_bits", c.BITS),
    ("rx_corrected_bits", c.CORRECTED_BITS),
    ("rx_fec_corrected_blocks", c.FEC_CORRECTED_BLOCKS),
    ("rx_fec_uncorrectable_blocks", c.FEC_UNCORRECTABLE_BLOCKS),
    ("link_down_events", c.LINK_DOWNS),
)

ICE: tuple[Row, ...] = (
    ("rx_priority_{priority}_xoff.nic", c.PFC_RECEIVED),
    ("tx_priority_{priority}_xoff.nic", c.PFC_SENT),
    ("rx_priority_{priority}_xon.nic", c.PFC_RESUMED_RECEIVED),
    ("tx_priority_{priority}_xon.nic", c.PFC_RESUMED_SENT),
    ("link_xoff_rx.nic", c.PAUSE_RECEIVED),
    ("link_xoff_tx.nic", c.PAUSE_SENT),
    ("rx_bytes.nic", c.RECEIVED),
    ("tx_bytes.nic", c.SENT),
    ("rx_dropped.nic", c.DISCARDS_RECEIVED),
    ("tx_dropped_link_down.nic", c.DISCARDS_SENT),
    ("rx_crc_errors.nic", c.CRC_ERRORS),
)

I40E: tuple[Row, ...] = (
    ("port.rx_priority_{priority}_xoff", c.PFC_RECEIVED),
    ("port.tx_priority_{priority}_xoff", c.PFC_SENT),
    ("port.rx_priority_{priority}_xon", c.PFC_RESUMED_RECEIVED),
    ("port.tx_priority_{priority}_xon", c.PFC_RESUMED_SENT),
    ("port.link_xoff_rx", c.PAUSE_RECEIVED),
    ("port.link_xoff_tx", c.PAUSE_SENT),
    ("port.rx_bytes", c.RECEIVED),
    ("port.tx_bytes", c.SENT),
    ("port.rx_dropped", c.DISCARDS_RECEIVED),
    ("port.tx_dropped_link_down", c.DISCARDS_SENT),
    ("port.rx_crc_errors", c.CRC_ERRORS),
)

ENA: tuple[Row, ...] = (("rx_drops", c.OUT_OF_BUFFER),)

DRIVERS: dict[str, tuple[Row, ...]] = {
    "mlx5_core": MLX5,
    "bnxt_en": BNXT,
    "ice": ICE,
    "i40e": I40E,
    "ena": ENA,
}

_PARTS = {NIC_PRIORITY.name: "{priority}", NIC_LANE.name: "{lane}", NIC.name: ""}


@lru_cache
def _patterns(driver: str) -> tuple[tuple[re.Pattern[str], Metric], ...]:
    rows = []
    for text, metric in DRIVERS.get(driver, ()):
        part = _PARTS[metric.about.name]
        before, _, after = text.partition(part) if part else (text, "", "")
        middle = r"(\d+)" if part else "()"
        rows.append((re.compile(re.escape(before) + middle + re.escape(after)), metric))
    return tuple(rows)


def typed(driver: str, names: Sequence[str]) -> list[tuple[Metric, str, int]]:
    """The metrics a list of statistics tells: (metric, priority or lane or "", position)."""
    found: dict[tuple[Metric, str], int] = {}
    positions = {name: position for position, name in enumerate(names)}
    for pattern, metric in _patterns(driver):
        for name, position in positions.items():
            if match := pattern.fullmatch(name):
                found.setdefault((metric, match[1]), position)
    return [(metric, part, position) for (metric, part), position in found.items()]
