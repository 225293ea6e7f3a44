"""The dashboard of one GPU and its NIC as a pair, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import dashboard_parts
from dashboards.panels import HOT, PAUSE, STALL, Panel, bars, lines, number
from dashboards.query import COUNT, EVENTS_PER_SECOND, SHARE, Query, ask

UID = "railscope-pair"
QUESTION = "Does this GPU wait for its NIC, or the NIC for the GPU?"
HERE = '{node="$node"}'
GPU = '{node="$node", gpu="$gpu"}'
NIC = '{node="$node", interface="$interface"}'
PORT = '{node="$node", device="$device"}'
ON_RAIL = '{node="$node", rail="$rail"}'
CHOICES = (
    dashboard_parts.DashboardVariable("node", "Node", "railscope_node_info"),
    dashboard_parts.DashboardVariable("rail", "Rail", 'railscope_gpu_info{node="$node", rail!=""}'),
    dashboard_parts.DashboardVariable("gpu", "GPU", f"railscope_gpu_info{ON_RAIL}", hidden=True),
    dashboard_parts.DashboardVariable(
        "interface", "Interface", f"railscope_nic_info{ON_RAIL}", hidden=True
    ),
    dashboard_parts.DashboardVariable(
        "device", "RDMA device", f"railscope_rdma_port_info{ON_RAIL}", hidden=True
    ),
    dashboard_parts.DashboardVariable(
        "gpu_address",
        "GPU's PCI address",
        f"railscope_gpu_info{ON_RAIL}",
        hidden=True,
        of="pci_address",
    ),
    dashboard_parts.DashboardVariable(
        "nic_address",
        "Card's PCI address",
        f"railscope_nic_info{ON_RAIL}",
        hidden=True,
        of="pci_address",
    ),
)


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    marks = (
        dashboard_parts.xid_marks(HERE),
        dashboard_parts.claim_marks(GPU),
        dashboard_parts.settings_marks(NIC),
    )
    return dashboard_parts.assemble(
        "GPU and its NIC",
        UID,
        QUESTION,
        SECTIONS,
        choices=CHOICES,
        marks=marks,
        tags=("gpu", "rdma"),
    )


def _gpu(name: str) -> Query:
    return ask(f"max(railscope_gpu_{name}{GPU})")


def _rate(name: str, where: str, unit: str = "") -> Query:
    return ask(f"sum(rate(railscope_{name}{where}[$__rate_interval]))", unit)


def _events(name: str, where: str) -> Query:
    return _rate(name, where, EVENTS_PER_SECOND)


def _summary() -> Iterator[Panel]:
    yield number(101, "GPU utilisation", "Any kernel at all.", _gpu("utilization_ratio"))
    yield number(102, "GPU temperature", "Of the die.", _gpu("temperature_celsius"), HOT)
    yield number(103, "GPU power", "Of the board.", _gpu("power_watts"))
    yield number(104, "Port", "1 is active.", ask(f"max(railscope_rdma_port_up{PORT})"))
    yield number(
        105,
        "Port speed",
        "As negotiated.",
        ask(f"max(railscope_rdma_port_rate_bytes_per_second{PORT})"),
    )
    for ident, who, address in ((106, "GPU", "gpu_address"), (107, "NIC", "nic_address")):
        width = f'max(railscope_pcie_link_width_lanes{{node="$node", pci_address="${address}"}})'
        yield number(ident, f"PCIe lanes of the {who}", "In use now.", ask(width, COUNT))
    yield number(
        108,
        "Transceiver",
        "Temperature of the transceiver; none for copper.",
        ask(f"max(railscope_nic_transceiver_temperature_celsius{NIC})"),
    )


def _pair() -> Iterator[Panel]:
    yield lines(
        201,
        "Activity of the GPU",
        "Shares of cycles. A waiting GPU does neither.",
        _gpu("sm_activity_ratio").named("SMs"),
        _gpu("tensor_activity_ratio").named("tensor cores"),
        _gpu("dram_bandwidth_ratio").named("memory bandwidth"),
        span=24,
    )
    yield lines(
        202,
        "NVLink traffic of the GPU",
        "All its NVLinks.",
        _gpu("nvlink_transmit_bytes_per_second").named("out"),
        _gpu("nvlink_receive_bytes_per_second").named("in"),
        span=24,
    )
    yield lines(
        203,
        "PCIe traffic of the GPU",
        "To its NIC, to memory, to storage.",
        _gpu("pcie_transmit_bytes_per_second").named("out"),
        _gpu("pcie_receive_bytes_per_second").named("in"),
        span=24,
    )
    yield lines(
        204,
        "RDMA traffic of the NIC",
        "RDMA traffic of the port.",
        _rate("rdma_transmit_bytes_total", PORT).named("out"),
        _rate("rdma_receive_bytes_total", PORT).named("in"),
        span=24,
    )
    paused = f"pfc_pause_seconds_total{NIC}[$__rate_interval]"
    yield lines(
        205,
        "Pause",
        "Received: the switch stops the NIC. Sent: the NIC stops the switch.",
        ask(f"max(rate(railscope_nic_receive_{paused}))").named("received"),
        ask(f"max(rate(railscope_nic_transmit_{paused}))").named("sent"),
        steps=PAUSE,
        span=24,
    )
    notifications = "rdma_congestion_notifications_{}_total"
    yield lines(
        206,
        "Congestion",
        "Received marks, and notifications for them.",
        _events("rdma_ecn_marked_packets_total", PORT).named("marked packets"),
        _events(notifications.format("sent"), PORT).named("notifications sent"),
        _events(notifications.format("handled"), PORT).named("notifications handled"),
        span=24,
    )
    yield lines(
        207,
        "Signs of retransmission",
        "Packets lost, late or repeated.",
        _events("rdma_packet_sequence_errors_total", PORT).named("lost"),
        _events("rdma_ack_timeouts_total", PORT).named("timeouts"),
        _events("rdma_out_of_sequence_packets_total", PORT).named("out of order"),
        span=24,
    )


def _between() -> Iterator[Panel]:
    speed = 'max(railscope_pcie_link_speed_transfers_per_second{{node="$node", pci_address="${}"}})'
    yield lines(
        301,
        "PCIe speed",
        "Transfers per second on each lane, as negotiated.",
        ask(speed.format("gpu_address"), COUNT).named("GPU"),
        ask(speed.format("nic_address"), COUNT).named("NIC"),
    )
    width = 'max(railscope_pcie_link_width_lanes{{node="$node", pci_address="${}"}})'
    yield lines(
        302,
        "PCIe lanes",
        "In use; fewer than available indicate a bad contact.",
        ask(width.format("gpu_address"), COUNT).named("GPU"),
        ask(width.format("nic_address"), COUNT).named("NIC"),
    )
    yield lines(
        303,
        "PCIe stall of the NIC",
        "Share of time in which it waited for memory.",
        ask(f"max(railscope_nic_pcie_read_stall_ratio{NIC})").named("reads"),
        ask(f"max(railscope_nic_pcie_write_stall_ratio{NIC})").named("writes"),
        steps=STALL,
    )
    held = f"sum by (reason) (rate(railscope_gpu_throttle_seconds_total{GPU}[$__rate_interval]))"
    yield lines(
        304,
        "Throttled time of the GPU",
        "By reason; low utilisation is one.",
        ask(f"{held} > 0", legend="{{reason}}"),
    )
    burst = "railscope_nic_burst_pause_ratio"
    within = '{node="$node", interface="$interface", le="0.5"}'
    counted = (
        f"sum by (direction) (rate({burst}_bucket{within}[$__rate_interval]))",
        f"sum by (direction) (rate({burst}_count{NIC}[$__rate_interval]))",
    )
    yield bars(
        305,
        "Short windows in pause",
        "Share of windows paused for more than half of them.",
        ask(f"1 - {counted[0]} / ({counted[1]} > 0)", SHARE, "{{direction}}"),
    )
    discarded = "nic_receive_discarded_packets_total"
    yield lines(306, "Packets discarded by the NIC", "RoCE expects none.", _events(discarded, NIC))


SECTIONS = (
    ("", _summary),
    ("What happens on both at the same time?", _pair),
    ("What is between them?", _between),
)
