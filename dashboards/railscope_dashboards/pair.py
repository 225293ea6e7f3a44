"""The dashboard of one GPU and its NIC as a pair, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, panels, query, switch_panels

HERE = '{node="$node"}'
GPU = '{node="$node", gpu="$gpu"}'
NIC = '{node="$node", interface="$interface"}'
PORT = '{node="$node", device="$device"}'
ON_RAIL = '{node="$node", rail="$rail"}'
CHOICES = (
    dashboard_parts.DashboardVariable("node", "Node", "railscope_node_info"),
    dashboard_parts.DashboardVariable("rail", "Rail", 'railscope_gpu_info{node="$node", rail!=""}'),
    dashboard_parts.DashboardVariable("gpu", "GPU", f"railscope_gpu_info{ON_RAIL}", hidden=True),
    dashboard_parts.DashboardVariable("interface", "Interface", f"railscope_nic_info{ON_RAIL}", hidden=True),
    dashboard_parts.DashboardVariable("device", "RDMA device", f"railscope_rdma_port_info{ON_RAIL}", hidden=True),
    dashboard_parts.DashboardVariable("gpu_address", "GPU's PCI address", f"railscope_gpu_info{ON_RAIL}", hidden=True, of="pci_address"),
    dashboard_parts.DashboardVariable("nic_address", "NIC's PCI address", f"railscope_nic_info{ON_RAIL}", hidden=True, of="pci_address"),
    dashboard_parts.DashboardVariable("switch", "Switch", f"railscope_switch_link_info{NIC}", hidden=True),
    dashboard_parts.DashboardVariable("port", "Switch port", f"railscope_switch_link_info{NIC}", hidden=True),
)  # fmt: skip


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    marks = (
        dashboard_parts.xid_marks(HERE),
        dashboard_parts.claim_marks(GPU),
        dashboard_parts.settings_marks(NIC),
    )
    return dashboard_parts.assemble(
        "GPU and its NIC",
        "railscope-pair",
        "Does this GPU wait for its NIC, or the NIC for the GPU?",
        SECTIONS,
        console="/nodes/${node:percentencode}/gpus/${gpu:percentencode}?to=${__to}",
        choices=CHOICES,
        marks=marks,
        tags=("gpu", "rdma"),
    )


def _gpu(name: str) -> query.Query:
    return query.build_query(f"max(railscope_gpu_{name}{GPU})")


def _nic(name: str) -> query.Query:
    return query.build_query(f"max(railscope_nic_{name}{NIC})")


def _pause(direction: str) -> query.Query:
    return query.build_query(f"max({query.pause_shares(direction, NIC)})")


def _rdma(name: str, unit: str = "") -> query.Query:
    return query.build_query(
        f"sum(rate(railscope_rdma_{name}_total{PORT}[$__rate_interval]))", unit
    )


def _events(name: str) -> query.Query:
    return _rdma(name, query.EVENTS_PER_SECOND)


def _pcie(name: str, variable: str) -> query.Query:
    selector = f'{{node="$node", pci_address="${variable}"}}'
    return query.build_query(f"max(railscope_pcie_link_{name}{selector})", query.COUNT)


def _summary() -> Iterator[panels.Panel]:
    port_up, port_rate = (
        query.build_query(f"max(railscope_rdma_port_{name}{PORT})")
        for name in ("up", "rate_bytes_per_second")
    )
    yield from (
        panels.number(101, "GPU utilization", "Share of time in which any kernel ran.", _gpu("utilization_ratio")),
        panels.number(102, "GPU temperature", "Temperature of the die.", _gpu("temperature_celsius"), panels.HOT),
        panels.number(103, "GPU power", "Power of the GPU.", _gpu("power_watts")),
        panels.number(104, "Port", "1 is active.", port_up),
        panels.number(105, "Port speed", "Negotiated speed of the port.", port_rate),
        panels.number(106, "PCIe lanes of the GPU", "In use now.", _pcie("width_lanes", "gpu_address")),
        panels.number(107, "PCIe lanes of the NIC", "In use now.", _pcie("width_lanes", "nic_address")),
        panels.number(108, "Transceiver", "Temperature of the transceiver; none for copper.", _nic("transceiver_temperature_celsius")),
    )  # fmt: skip


def _pair() -> Iterator[panels.Panel]:
    yield from (
        panels.lines(201, "Activity of the GPU", "Shares of cycles. A waiting GPU does neither.",
              _gpu("sm_activity_ratio").with_name("SMs"), _gpu("tensor_activity_ratio").with_name("tensor cores"), _gpu("dram_bandwidth_ratio").with_name("memory bandwidth"), span=24),
        panels.lines(202, "NVLink traffic of the GPU", "Total of all NVLinks of the GPU.",
              _gpu("nvlink_transmit_bytes_per_second").with_name("out"), _gpu("nvlink_receive_bytes_per_second").with_name("in"), span=24),
        panels.lines(203, "PCIe traffic of the GPU", "Traffic of the GPU to its NIC, to memory and to storage.",
              _gpu("pcie_transmit_bytes_per_second").with_name("out"), _gpu("pcie_receive_bytes_per_second").with_name("in"), span=24),
        panels.lines(204, "RDMA traffic of the NIC", "RDMA traffic of the port.",
              _rdma("transmit_bytes").with_name("out"), _rdma("receive_bytes").with_name("in"), span=24),
        panels.lines(205, "Pause", "Received: the switch stops the NIC. Sent: the NIC stops the switch.",
              _pause("receive").with_name("received"), _pause("transmit").with_name("sent"), steps=panels.PAUSE, span=24),
        panels.lines(206, "Congestion", "Received marks, and notifications for them.",
              _events("ecn_marked_packets").with_name("marked packets"),
              _events("congestion_notifications_sent").with_name("notifications sent"),
              _events("congestion_notifications_handled").with_name("notifications handled"), span=24),
        panels.lines(207, "Signs of retransmission", "Packets lost, late or repeated.",
              _events("packet_sequence_errors").with_name("lost"), _events("ack_timeouts").with_name("timeouts"), _events("out_of_sequence_packets").with_name("out of order"), span=24),
    )  # fmt: skip


def _between() -> Iterator[panels.Panel]:
    speed, width = "speed_transfers_per_second", "width_lanes"
    throttled = f"rate(railscope_gpu_throttle_seconds_total{GPU}[$__rate_interval])"
    by_reason = query.build_query(f"sum by (reason) ({throttled}) > 0", legend="{{reason}}")
    within = '{node="$node", interface="$interface", le="0.5"}'
    short, counted = (
        f"sum by (direction) (rate(railscope_nic_burst_pause_ratio_{series}[$__rate_interval]))"
        for series in (f"bucket{within}", f"count{NIC}")
    )
    windows = query.build_query(f"1 - {short} / ({counted} > 0)", query.SHARE, "{{direction}}")
    discarded = f"rate(railscope_nic_receive_discarded_packets_total{NIC}[$__rate_interval])"
    yield from (
        panels.lines(301, "PCIe speed", "Transfers per second on each lane, as negotiated.",
              _pcie(speed, "gpu_address").with_name("GPU"), _pcie(speed, "nic_address").with_name("NIC")),
        panels.lines(302, "PCIe lanes", "In use; fewer than available indicate a bad contact.",
              _pcie(width, "gpu_address").with_name("GPU"), _pcie(width, "nic_address").with_name("NIC")),
        panels.lines(303, "PCIe stall of the NIC", "Share of time in which it waited for memory.",
              _nic("pcie_read_stall_ratio").with_name("reads"), _nic("pcie_write_stall_ratio").with_name("writes"), steps=panels.STALL),
        panels.lines(304, "Throttled time of the GPU", "By reason; reasons include low utilization.", by_reason),
        panels.bars(305, "Short windows in pause", "Share of windows paused for more than half of them.", windows),
        panels.lines(306, "Packets discarded by the NIC", "RoCE expects none.", query.build_query(f"sum({discarded})", query.EVENTS_PER_SECOND)),
    )  # fmt: skip


SECTIONS = (
    ("", _summary),
    ("What happens on both at the same time?", _pair),
    ("What is between them?", _between),
    ("What do the switch and the NIC count on their link?", switch_panels.pair_panels),
)
