"""Statistics of the virtual NICs of clouds: one table per driver.

Sources: torvalds/linux drivers/net/ethernet/amazon/ena/ena_ethtool.c,
microsoft/mana/mana_ethtool.c, google/gve/gve_ethtool.c, and drivers/net/hyperv/netvsc_drv.c.
"""

from __future__ import annotations

from railscope.catalog import nic as c
from railscope.catalog import nic_detail as d
from railscope.catalog.declare import Metric

Row = tuple[str, Metric]

ENA: tuple[Row, ...] = (
    ("bw_in_allowance_exceeded", d.LIMITED_RECEIVED),
    ("bw_out_allowance_exceeded", d.LIMITED_SENT),
    ("pps_allowance_exceeded", d.LIMITED_RATE),
    ("conntrack_allowance_exceeded", d.LIMITED_CONNECTIONS),
    ("linklocal_allowance_exceeded", d.LIMITED_LOCAL),
    ("conntrack_allowance_available", d.CONNECTIONS_LEFT),
    ("ena_srd_tx_pkts", d.SRD_SENT),
    ("ena_srd_eligible_tx_pkts", d.SRD_ELIGIBLE),
    ("ena_srd_rx_pkts", d.SRD_RECEIVED),
    ("ena_srd_resource_utilization", d.SRD_USE),
    ("tx_timeout", d.TIMEOUTS),
    ("wd_expired", d.WATCHDOGS),
    ("interface_down", d.INTERFACE_DOWNS),
    ("ena_admin_q_no_completion", d.COMMAND_ERRORS),
)

MANA: tuple[Row, ...] = (
    ("hc_rx_bytes", c.RECEIVED),
    ("hc_tx_bytes", c.SENT),
    ("hc_rx_ucast_pkts", d.RECEIVED_UNICAST),
    ("hc_tx_ucast_pkts", d.SENT_UNICAST),
    ("hc_rx_mcast_pkts", d.RECEIVED_MULTICAST),
    ("hc_tx_mcast_pkts", d.SENT_MULTICAST),
    ("hc_rx_bcast_pkts", d.RECEIVED_BROADCAST),
    ("hc_tx_bcast_pkts", d.SENT_BROADCAST),
    ("hc_rx_discards_no_wqe", c.OUT_OF_BUFFER),
    ("hc_rx_err_vport_disabled", d.DOWN_DROPS),
    ("tx_cqe_err", d.COMPLETION_ERRORS),
    ("stop_queue", d.QUEUE_STOPS),
    ("wake_queue", d.QUEUE_WAKES),
)

GVE: tuple[Row, ...] = (
    ("rx_bytes", c.RECEIVED),
    ("tx_bytes", c.SENT),
    ("rx_packets", c.RECEIVED_PACKETS),
    ("tx_packets", c.SENT_PACKETS),
    ("rx_dropped", c.DISCARDS_RECEIVED),
    ("tx_dropped", c.DISCARDS_SENT),
    ("rx_desc_err_dropped_pkt", d.RECEIVE_ERRORS),
    ("rx_buf_alloc_fail", d.ALLOCATION_FAILURES),
    ("tx_timeouts", d.TIMEOUTS),
    ("reset_cnt", d.DEVICE_RESETS),
    ("interface_down_cnt", d.INTERFACE_DOWNS),
    ("dma_mapping_error", d.MAPPING_ERRORS),
)

NETVSC: tuple[Row, ...] = (
    ("rx_no_memory", d.MEMORY_DROPS),
    ("tx_send_full", d.SEND_BUFFER_FULL),
    ("tx_busy", d.SEND_BUSY),
    ("stop_queue", d.QUEUE_STOPS),
    ("wake_queue", d.QUEUE_WAKES),
)
