"""The dashboard of one node: its GPUs, its ports, and its host metrics."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, panels, query, self_monitoring
from railscope_dashboards.health import HEALTH_TEXTS, health

HERE = '{node="$node"}'
GPU, RAIL = "GPU {{index}}", "rail {{rail}}"
ON_RAIL = '{node="$node", rail!=""}'
PORT_UP = query.with_port_rail(f"railscope_rdma_port_up{HERE}", ON_RAIL)


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    marks = (
        dashboard_parts.xid_marks(HERE),
        dashboard_parts.claim_marks(HERE),
        dashboard_parts.settings_marks(HERE),
    )
    return dashboard_parts.assemble(
        "Node",
        "railscope-node",
        "What is the state of this node?",
        SECTIONS,
        console="/nodes/${node:percentencode}",
        choices=(dashboard_parts.DashboardVariable("node", "Node", "railscope_node_info"),),
        marks=marks,
        tags=("gpu", "rdma"),
    )


def _here(aggregation: str, metric: str, unit: str = "") -> query.Query:
    return query.build_query(f"{aggregation}(railscope_{metric}{HERE})", unit)


def _gpu(name: str) -> query.Query:
    """Return a gauge of each GPU of the node, by its index."""
    return _by_index(f"max by (node, gpu) (railscope_gpu_{name}{HERE})")


def _by_index(expression: str, unit: str = "") -> query.Query:
    """Aggregate by the index of each GPU alone, so that curves are in that order."""
    return query.build_query(f"max by (index) ({query.with_index(expression, HERE)})", unit, GPU)


def _port(name: str, unit: str = "") -> query.Query:
    rate = f"rate(railscope_rdma_{name}_total{HERE}[$__rate_interval])"
    return query.build_query(f"sum by (rail) ({query.with_port_rail(rate, ON_RAIL)})", unit, RAIL)


def _nic(name: str, unit: str = "") -> query.Query:
    rate = f"rate(railscope_nic_{name}_total{HERE}[$__rate_interval])"
    return query.build_query(f"sum by (rail) ({query.with_rail(rate, ON_RAIL)})", unit, RAIL)


def _pause(direction: str) -> query.Query:
    shares = query.with_rail(query.pause_shares(direction, HERE), ON_RAIL)
    return query.build_query(f"max by (rail) ({shares})", "", RAIL)


def _summary() -> Iterator[panels.Panel]:
    unhealthy = query.in_state("railscope_gpu_health", HERE, 'state!="healthy"')
    missing = query.in_state("railscope_gpu_device_state", HERE, 'state="missing"')
    ports_down = query.build_query(f"count({PORT_UP}) - sum({PORT_UP})", query.COUNT)
    yield from (
        panels.number(101, "Last frame", "Age of the newest frame at the collector.", _here("min", "node_last_frame_age_seconds"), panels.OLD),
        panels.number(102, "GPUs", "GPUs that the driver reports.", _here("count", "gpu_utilization_ratio", query.COUNT)),
        panels.number(103, "Unhealthy GPUs", "Degraded, failed or unknown.", unhealthy, panels.NONE_IS_GOOD),
        panels.number(104, "Devices missing", "GPUs that the node had and that left the bus.", missing, panels.NONE_IS_GOOD),
        panels.number(105, "Ports down", "RDMA ports on rails that are not active.", ports_down, panels.NONE_IS_GOOD),
        panels.number(106, "GPU power", "Total of all GPUs.", _here("sum", "gpu_power_watts")),
        panels.number(107, "Hottest GPU", "The highest die temperature.", _here("max", "gpu_temperature_celsius"), panels.HOT),
        panels.number(108, "Memory available", "Memory of the node, not of its GPUs.", _here("max", "memory_available_bytes")),
    )  # fmt: skip


def _gpus() -> Iterator[panels.Panel]:
    verdict = query.build_query(f"max by (gpu) ({health('node, gpu', HERE)})", query.COUNT)
    gpu_info = f"max by (index, gpu, pci_address, rail) (railscope_gpu_info{HERE})"
    yield panels.states(
        201,
        "Health",
        "State of each GPU; unknown where readings are missing.",
        _by_index(health("node, gpu", HERE), query.COUNT),
        panels.HEALTH,
        span=12,
    )
    yield panels.rows(
        202,
        "GPUs",
        "One row per GPU.",
        {"index": "GPU", "gpu": "UUID", "pci_address": "PCI address", "rail": "Rail"},
        panels.Column("Observed", query.build_query(gpu_info, query.COUNT)),
        panels.Column("Health", verdict, panels.NONE_IS_GOOD, HEALTH_TEXTS, "highest"),
    )
    clock = 'max by (node, gpu) (railscope_gpu_clock_hertz{node="$node", clock="sm"})'
    throttled = (
        "max by (node, gpu) (rate(railscope_gpu_throttle_seconds_total"
        '{node="$node", reason!~"low_utilization|application_clocks"}[$__rate_interval]))'
    )
    links = "Total of all links of a GPU."
    yield from (
        panels.lines(203, "Utilization", "Share of time in which a GPU ran any kernel.", _gpu("utilization_ratio")),
        panels.lines(204, "Tensor activity", "Share of cycles in which tensor cores worked.", _gpu("tensor_activity_ratio")),
        panels.lines(205, "Memory used", "GPU memory in use.", _gpu("memory_used_bytes")),
        panels.lines(206, "Power", "Power of each GPU.", _gpu("power_watts")),
        panels.lines(207, "Temperature", "Die temperature of each GPU.", _gpu("temperature_celsius"), steps=panels.HOT),
        panels.lines(208, "SM clock", "Falls when power or temperature throttle the GPU.", _by_index(clock)),
        panels.lines(209, "Throttled time", "Share of time below the requested clock, by the most frequent cause.", _by_index(throttled)),
        panels.lines(210, "NVLink out", links, _gpu("nvlink_transmit_bytes_per_second")),
        panels.lines(211, "NVLink in", links, _gpu("nvlink_receive_bytes_per_second")),
    )  # fmt: skip
    xids = query.build_query(
        f"sum by (node, pci_address, xid) (railscope_gpu_xid_errors_total{HERE})", query.COUNT
    )
    named = query.with_device_names(xids, query.GPU_AT_ADDRESS).expression
    messages = query.build_query(f"max by (index, gpu, pci_address, xid) ({named})", query.COUNT)
    keys = {"pci_address": "PCI address", "xid": "Xid"}
    yield panels.rows(
        212,
        "Xids in the kernel log",
        "Reports of the driver, by device.",
        query.with_device_titles(keys, query.GPU_AT_ADDRESS),
        panels.Column("Messages", messages, worst="highest"),
        span=8,
    )


def _ports() -> Iterator[panels.Panel]:
    lost, discarded = (
        "Signs of retransmission.",
        "Packets dropped for lack of a buffer; RoCE expects none.",
    )
    events = query.EVENTS_PER_SECOND
    yield from (
        panels.lines(301, "Out", "RDMA traffic of each rail.", _port("transmit_bytes")),
        panels.lines(302, "In", "RDMA traffic of each rail.", _port("receive_bytes")),
        panels.lines(303, "Ports up", "1 if all ports of the rail are active.", query.build_query(f"min by (rail) ({PORT_UP})", legend=RAIL)),
        panels.lines(304, "Pause received", "The switch stops the port from sending.", _pause("receive"), steps=panels.PAUSE),
        panels.lines(305, "Pause sent", "The port stops the switch from sending.", _pause("transmit"), steps=panels.PAUSE),
        panels.lines(306, "Congestion notifications sent", "Notifications that the port sent for received marks.", _port("congestion_notifications_sent", events)),
        panels.lines(307, "Lost packets", lost, _port("packet_sequence_errors", events)),
        panels.lines(308, "Timeouts", lost, _port("ack_timeouts", events)),
        panels.lines(309, "Packets discarded", discarded, _nic("receive_discarded_packets", events), steps=panels.ANY_IS_BAD),
    )  # fmt: skip


def _machine() -> Iterator[panels.Panel]:
    rate = 'rate(railscope_cpu_seconds_total{node="$node", mode!="idle"}[$__rate_interval])'
    busy = query.build_query(f"sum by (mode) ({rate})", query.COUNT, "{{mode}}")
    stalled = f"rate(railscope_pressure_stalled_seconds_total{HERE}[$__rate_interval])"
    waited = query.build_query(
        f"max by (resource, severity) ({stalled})", query.SHARE, "{{resource}}, {{severity}}"
    )
    used = f"rate(railscope_agent_cpu_seconds_total{HERE}[$__rate_interval])"
    cost = query.build_query(used, query.SHARE).with_name("agent")
    size, available = (
        query.build_query(f"railscope_{name}{HERE}").with_name(title)
        for name, title in (("memory_size_bytes", "size"), ("memory_available_bytes", "available"))
    )
    failures = self_monitoring.unhealthy_sources("source", HERE)
    yield from (
        panels.layers(401, "CPU time", "Seconds of CPU per second, by mode, without idle.", busy),
        panels.lines(402, "Pressure", "Share of time in which tasks waited for a resource.", waited),
        panels.lines(403, "Memory", "Size and available memory of the node.", size, available),
        panels.rows(404, "Sources with failures", "Their readings are absent, not zero.", {"source": "Source"}, failures, span=12),
        panels.lines(405, "Cost of the agent", "Share of one CPU.", cost, span=12),
    )  # fmt: skip


SECTIONS = (
    ("", _summary),
    ("Are its GPUs healthy, busy and cool?", _gpus),
    ("Do its ports carry traffic without pauses and losses?", _ports),
    ("Does the host keep up?", _machine),
)
