"""The dashboard of one node: its GPUs, its ports, and its host metrics."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import dashboard_parts, panels, query
from dashboards.health import HEALTH_WORDS, health
from dashboards.self_monitoring import unhealthy_sources

UID = "railscope-node"
QUESTION = "What is the state of this node?"
HERE = '{node="$node"}'
CHOICES = (dashboard_parts.DashboardVariable("node", "Node", "railscope_node_info"),)
GPU, RAIL = "GPU {{index}}", "rail {{rail}}"
ON_RAIL = '{node="$node", rail!=""}'


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    marks = (
        dashboard_parts.xid_marks(HERE),
        dashboard_parts.claim_marks(HERE),
        dashboard_parts.settings_marks(HERE),
    )
    return dashboard_parts.assemble(
        "Node", UID, QUESTION, SECTIONS, choices=CHOICES, marks=marks, tags=("gpu", "rdma")
    )


def _gpu(name: str, unit: str = "") -> query.Query:
    """Return a gauge of each GPU of the node, by its index."""
    return query.ask(_by_index(f"max by (node, gpu) ({name}{HERE})"), unit, GPU)


def _by_index(expression: str) -> str:
    """Aggregate by the index of each GPU alone, so that curves are in that order."""
    return f"max by (index) ({query.with_index(expression, HERE)})"


def _port(name: str) -> str:
    return (
        f"sum by (rail) ({query.with_port_rail(f'rate({name}{HERE}[$__rate_interval])', ON_RAIL)})"
    )


def _summary() -> Iterator[panels.Panel]:
    yield panels.number(
        101,
        "Last frame",
        "Age of the newest frame at the collector.",
        query.ask(f"min(railscope_node_last_frame_age_seconds{HERE})"),
        panels.OLD,
    )
    yield panels.number(
        102,
        "GPUs",
        "GPUs that the driver reports.",
        query.ask(f"count(railscope_gpu_utilization_ratio{HERE})", query.COUNT),
    )
    yield panels.number(
        103,
        "GPUs not healthy",
        "Degraded, failed or unknown.",
        query.ask('sum(railscope_gpu_health{node="$node", state!="healthy"})'),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        104,
        "Devices missing",
        "GPUs that the node had and that left the bus.",
        query.ask('sum(railscope_gpu_device_state{node="$node", state="missing"})'),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        105,
        "Ports down",
        "RDMA ports on rails that are not active.",
        query.ask(
            f"count({query.with_port_rail(f'railscope_rdma_port_up{HERE}', ON_RAIL)}) - "
            f"sum({query.with_port_rail(f'railscope_rdma_port_up{HERE}', ON_RAIL)})",
            query.COUNT,
        ),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        106, "GPU power", "All boards together.", query.ask(f"sum(railscope_gpu_power_watts{HERE})")
    )
    yield panels.number(
        107,
        "Hottest GPU",
        "The highest die temperature.",
        query.ask(f"max(railscope_gpu_temperature_celsius{HERE})"),
        panels.HOT,
    )
    yield panels.number(
        108,
        "Memory available",
        "Of the node, not of its GPUs.",
        query.ask(f"max(railscope_memory_available_bytes{HERE})"),
    )


def _gpus() -> Iterator[panels.Panel]:
    yield panels.states(
        201,
        "Health",
        "State of each GPU; unknown where readings are missing.",
        query.ask(_by_index(health("node, gpu", HERE)), query.COUNT, GPU),
        panels.HEALTH,
        span=12,
    )
    facts = {"index": "GPU", "gpu": "UUID", "pci_address": "PCI address", "rail": "Rail"}
    of_each = f"max by (gpu) ({health('node, gpu', HERE)})"
    yield panels.rows(
        202,
        "GPUs",
        "One row per GPU.",
        facts,
        panels.Column(
            "Observed",
            query.ask(
                f"max by (index, gpu, pci_address, rail) (railscope_gpu_info{HERE})", query.COUNT
            ),
        ),
        panels.Column(
            "Health", query.ask(of_each, query.COUNT), panels.NONE_IS_GOOD, HEALTH_WORDS, "highest"
        ),
    )
    yield panels.lines(
        203,
        "Utilisation",
        "Share of time in which a GPU ran any kernel.",
        _gpu("railscope_gpu_utilization_ratio"),
    )
    yield panels.lines(
        204,
        "Tensor activity",
        "Share of cycles in which tensor cores worked.",
        _gpu("railscope_gpu_tensor_activity_ratio"),
    )
    yield panels.lines(
        205, "Memory used", "Frame buffer in use.", _gpu("railscope_gpu_memory_used_bytes")
    )
    yield panels.lines(206, "Power", "Of each board.", _gpu("railscope_gpu_power_watts"))
    yield panels.lines(
        207,
        "Temperature",
        "Of the die.",
        _gpu("railscope_gpu_temperature_celsius"),
        steps=panels.HOT,
    )
    clock = 'max by (node, gpu) (railscope_gpu_clock_hertz{node="$node", clock="sm"})'
    yield panels.lines(
        208,
        "SM clock",
        "Falls when power or temperature throttle the GPU.",
        query.ask(_by_index(clock), legend=GPU),
    )
    held = (
        "max by (node, gpu) (rate(railscope_gpu_throttle_seconds_total"
        '{node="$node", reason!~"low_utilization|application_clocks"}[$__rate_interval]))'
    )
    yield panels.lines(
        209,
        "Throttled time",
        "Share of time below the requested clock, by the most frequent cause.",
        query.ask(_by_index(held), legend=GPU),
    )
    for ident, title, name in (
        (210, "NVLink out", "railscope_gpu_nvlink_transmit_bytes_per_second"),
        (211, "NVLink in", "railscope_gpu_nvlink_receive_bytes_per_second"),
    ):
        yield panels.lines(ident, title, "All links of a GPU together.", _gpu(name))
    xids = query.ask(
        f"sum by (node, pci_address, xid) (railscope_gpu_xid_errors_total{HERE})", query.COUNT
    )
    named = query.with_device_names(xids, query.GPU_AT_ADDRESS).expression
    yield panels.rows(
        212,
        "Xids in the kernel log",
        "Reports of the driver, by device.",
        query.with_device_titles(
            {"pci_address": "PCI address", "xid": "Xid"}, query.GPU_AT_ADDRESS
        ),
        panels.Column(
            "Messages",
            query.ask(f"max by (index, gpu, pci_address, xid) ({named})", query.COUNT),
            worst="highest",
        ),
        span=8,
    )


def _ports() -> Iterator[panels.Panel]:
    pause = "railscope_nic_{}_pfc_pause_seconds_total"
    yield panels.lines(
        301,
        "Out",
        "RDMA traffic of each rail.",
        query.ask(_port("railscope_rdma_transmit_bytes_total"), legend=RAIL),
    )
    yield panels.lines(
        302,
        "In",
        "RDMA traffic of each rail.",
        query.ask(_port("railscope_rdma_receive_bytes_total"), legend=RAIL),
    )
    yield panels.lines(
        303,
        "Ports up",
        "1 is active.",
        query.ask(
            f"min by (rail) ({query.with_port_rail(f'railscope_rdma_port_up{HERE}', ON_RAIL)})",
            legend=RAIL,
        ),
    )
    for ident, title, about, direction in (
        (304, "Pause received", "The switch stops the port from sending.", "receive"),
        (305, "Pause sent", "The port stops the switch from sending.", "transmit"),
    ):
        rate = f"rate({pause.format(direction)}{HERE}[$__rate_interval])"
        paused = f"max by (rail) ({query.with_rail(rate, ON_RAIL)})"
        yield panels.lines(ident, title, about, query.ask(paused, legend=RAIL), steps=panels.PAUSE)
    yield panels.lines(
        306,
        "Congestion notifications sent",
        "For marks that the port received.",
        query.ask(
            _port("railscope_rdma_congestion_notifications_sent_total"),
            query.EVENTS_PER_SECOND,
            RAIL,
        ),
    )
    for ident, title, name in (
        (307, "Lost packets", "railscope_rdma_packet_sequence_errors_total"),
        (308, "Timeouts", "railscope_rdma_ack_timeouts_total"),
    ):
        yield panels.lines(
            ident,
            title,
            "Signs of retransmission.",
            query.ask(_port(name), query.EVENTS_PER_SECOND, RAIL),
        )
    discards = f"rate(railscope_nic_receive_discarded_packets_total{HERE}[$__rate_interval])"
    yield panels.lines(
        309,
        "Packets discarded",
        "For lack of a buffer; RoCE expects none.",
        query.ask(
            f"sum by (rail) ({query.with_rail(discards, ON_RAIL)})", query.EVENTS_PER_SECOND, RAIL
        ),
        steps=panels.ANY_IS_BAD,
    )


def _machine() -> Iterator[panels.Panel]:
    rate = 'rate(railscope_cpu_seconds_total{node="$node", mode!="idle"}[$__rate_interval])'
    yield panels.layers(
        401,
        "CPU time",
        "Seconds of CPU per second, by mode, without idle.",
        query.ask(f"sum by (mode) ({rate})", query.COUNT, "{{mode}}"),
    )
    stalled = f"rate(railscope_pressure_stalled_seconds_total{HERE}[$__rate_interval])"
    yield panels.lines(
        402,
        "Pressure",
        "Share of time in which tasks waited for a resource.",
        query.ask(
            f"max by (resource, severity) ({stalled})", query.SHARE, "{{resource}}, {{severity}}"
        ),
    )
    yield panels.lines(
        403,
        "Memory",
        "Of the node.",
        query.ask(f"railscope_memory_size_bytes{HERE}").named("size"),
        query.ask(f"railscope_memory_available_bytes{HERE}").named("available"),
    )
    yield panels.rows(
        404,
        "Sources with failures",
        "Their readings are absent, not zero.",
        {"source": "Source"},
        unhealthy_sources("source", HERE),
        span=12,
    )
    yield panels.lines(
        405,
        "Cost of the agent",
        "Share of one CPU.",
        query.ask(f"railscope_agent_cpu_use_ratio{HERE}").named("agent"),
        span=12,
    )


SECTIONS = (
    ("", _summary),
    ("Are its GPUs healthy, busy and cool?", _gpus),
    ("Do its ports carry traffic without pauses and losses?", _ports),
    ("Does the host keep up?", _machine),
)
