"""The dashboard of one node: its GPUs, its ports, and its host metrics."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.dashboard_parts import (
    DashboardVariable,
    assemble,
    claim_marks,
    settings_marks,
    xid_marks,
)
from dashboards.health import HEALTH_WORDS, health
from dashboards.panels import (
    ANY_IS_BAD,
    HEALTH,
    HOT,
    NONE_IS_GOOD,
    OLD,
    PAUSE,
    Column,
    Panel,
    layers,
    lines,
    number,
    rows,
    states,
)
from dashboards.query import (
    COUNT,
    EVENTS_PER_SECOND,
    GPU_AT_ADDRESS,
    SHARE,
    Query,
    ask,
    with_device_names,
    with_device_titles,
    with_index,
    with_port_rail,
    with_rail,
)
from dashboards.self_monitoring import unhealthy_sources

UID = "railscope-node"
QUESTION = "What is the state of this node?"
HERE = '{node="$node"}'
CHOICES = (DashboardVariable("node", "Node", "railscope_node_info"),)
GPU, RAIL = "GPU {{index}}", "rail {{rail}}"
ON_RAIL = '{node="$node", rail!=""}'


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    marks = (xid_marks(HERE), claim_marks(HERE), settings_marks(HERE))
    return assemble(
        "Node", UID, QUESTION, SECTIONS, choices=CHOICES, marks=marks, tags=("gpu", "rdma")
    )


def _gpu(name: str, unit: str = "") -> Query:
    """Return a gauge of each GPU of the node, by its index."""
    return ask(_by_index(f"max by (node, gpu) ({name}{HERE})"), unit, GPU)


def _by_index(expression: str) -> str:
    """Aggregate by the index of each GPU alone, so that curves are in that order."""
    return f"max by (index) ({with_index(expression, HERE)})"


def _port(name: str) -> str:
    return f"sum by (rail) ({with_port_rail(f'rate({name}{HERE}[$__rate_interval])', ON_RAIL)})"


def _summary() -> Iterator[Panel]:
    yield number(
        101,
        "Last frame",
        "Age of the newest frame at the collector.",
        ask(f"min(railscope_node_last_frame_age_seconds{HERE})"),
        OLD,
    )
    yield number(
        102,
        "GPUs",
        "GPUs that the driver reports.",
        ask(f"count(railscope_gpu_utilization_ratio{HERE})", COUNT),
    )
    yield number(
        103,
        "GPUs not healthy",
        "Degraded, failed or unknown.",
        ask('sum(railscope_gpu_health{node="$node", state!="healthy"})'),
        NONE_IS_GOOD,
    )
    yield number(
        104,
        "Devices missing",
        "GPUs that the node had and that left the bus.",
        ask('sum(railscope_gpu_device_state{node="$node", state="missing"})'),
        NONE_IS_GOOD,
    )
    yield number(
        105,
        "Ports down",
        "RDMA ports on rails that are not active.",
        ask(
            f"count({with_port_rail(f'railscope_rdma_port_up{HERE}', ON_RAIL)}) - "
            f"sum({with_port_rail(f'railscope_rdma_port_up{HERE}', ON_RAIL)})",
            COUNT,
        ),
        NONE_IS_GOOD,
    )
    yield number(
        106, "GPU power", "All boards together.", ask(f"sum(railscope_gpu_power_watts{HERE})")
    )
    yield number(
        107,
        "Hottest GPU",
        "The highest die temperature.",
        ask(f"max(railscope_gpu_temperature_celsius{HERE})"),
        HOT,
    )
    yield number(
        108,
        "Memory available",
        "Of the node, not of its GPUs.",
        ask(f"max(railscope_memory_available_bytes{HERE})"),
    )


def _gpus() -> Iterator[Panel]:
    yield states(
        201,
        "Health",
        "State of each GPU; unknown where readings are missing.",
        ask(_by_index(health("node, gpu", HERE)), COUNT, GPU),
        HEALTH,
        span=12,
    )
    facts = {"index": "GPU", "gpu": "UUID", "pci_address": "PCI address", "rail": "Rail"}
    of_each = f"max by (gpu) ({health('node, gpu', HERE)})"
    yield rows(
        202,
        "GPUs",
        "One row per GPU.",
        facts,
        Column(
            "Observed",
            ask(f"max by (index, gpu, pci_address, rail) (railscope_gpu_info{HERE})", COUNT),
        ),
        Column("Health", ask(of_each, COUNT), NONE_IS_GOOD, HEALTH_WORDS, "highest"),
    )
    yield lines(
        203,
        "Utilisation",
        "Share of time in which a GPU ran any kernel.",
        _gpu("railscope_gpu_utilization_ratio"),
    )
    yield lines(
        204,
        "Tensor activity",
        "Share of cycles in which tensor cores worked.",
        _gpu("railscope_gpu_tensor_activity_ratio"),
    )
    yield lines(205, "Memory used", "Frame buffer in use.", _gpu("railscope_gpu_memory_used_bytes"))
    yield lines(206, "Power", "Of each board.", _gpu("railscope_gpu_power_watts"))
    yield lines(
        207, "Temperature", "Of the die.", _gpu("railscope_gpu_temperature_celsius"), steps=HOT
    )
    clock = 'max by (node, gpu) (railscope_gpu_clock_hertz{node="$node", clock="sm"})'
    yield lines(
        208,
        "SM clock",
        "Falls when power or temperature throttle the GPU.",
        ask(_by_index(clock), legend=GPU),
    )
    held = (
        "max by (node, gpu) (rate(railscope_gpu_throttle_seconds_total"
        '{node="$node", reason!~"low_utilization|application_clocks"}[$__rate_interval]))'
    )
    yield lines(
        209,
        "Throttled time",
        "Share of time below the requested clock, by the most frequent cause.",
        ask(_by_index(held), legend=GPU),
    )
    for ident, title, name in (
        (210, "NVLink out", "railscope_gpu_nvlink_transmit_bytes_per_second"),
        (211, "NVLink in", "railscope_gpu_nvlink_receive_bytes_per_second"),
    ):
        yield lines(ident, title, "All links of a GPU together.", _gpu(name))
    xids = ask(f"sum by (node, pci_address, xid) (railscope_gpu_xid_errors_total{HERE})", COUNT)
    named = with_device_names(xids, GPU_AT_ADDRESS).expression
    yield rows(
        212,
        "Xids in the kernel log",
        "Reports of the driver, by device.",
        with_device_titles({"pci_address": "PCI address", "xid": "Xid"}, GPU_AT_ADDRESS),
        Column(
            "Messages",
            ask(f"max by (index, gpu, pci_address, xid) ({named})", COUNT),
            worst="highest",
        ),
        span=8,
    )


def _ports() -> Iterator[Panel]:
    pause = "railscope_nic_{}_pfc_pause_seconds_total"
    yield lines(
        301,
        "Out",
        "RDMA traffic of each rail.",
        ask(_port("railscope_rdma_transmit_bytes_total"), legend=RAIL),
    )
    yield lines(
        302,
        "In",
        "RDMA traffic of each rail.",
        ask(_port("railscope_rdma_receive_bytes_total"), legend=RAIL),
    )
    yield lines(
        303,
        "Ports up",
        "1 is active.",
        ask(
            f"min by (rail) ({with_port_rail(f'railscope_rdma_port_up{HERE}', ON_RAIL)})",
            legend=RAIL,
        ),
    )
    for ident, title, about, direction in (
        (304, "Pause received", "The switch stops the port from sending.", "receive"),
        (305, "Pause sent", "The port stops the switch from sending.", "transmit"),
    ):
        rate = f"rate({pause.format(direction)}{HERE}[$__rate_interval])"
        paused = f"max by (rail) ({with_rail(rate, ON_RAIL)})"
        yield lines(ident, title, about, ask(paused, legend=RAIL), steps=PAUSE)
    yield lines(
        306,
        "Congestion notifications sent",
        "For marks that the port received.",
        ask(_port("railscope_rdma_congestion_notifications_sent_total"), EVENTS_PER_SECOND, RAIL),
    )
    for ident, title, name in (
        (307, "Lost packets", "railscope_rdma_packet_sequence_errors_total"),
        (308, "Timeouts", "railscope_rdma_ack_timeouts_total"),
    ):
        yield lines(
            ident, title, "Signs of retransmission.", ask(_port(name), EVENTS_PER_SECOND, RAIL)
        )
    discards = f"rate(railscope_nic_receive_discarded_packets_total{HERE}[$__rate_interval])"
    yield lines(
        309,
        "Packets discarded",
        "For lack of a buffer; RoCE expects none.",
        ask(f"sum by (rail) ({with_rail(discards, ON_RAIL)})", EVENTS_PER_SECOND, RAIL),
        steps=ANY_IS_BAD,
    )


def _machine() -> Iterator[Panel]:
    rate = 'rate(railscope_cpu_seconds_total{node="$node", mode!="idle"}[$__rate_interval])'
    yield layers(
        401,
        "CPU time",
        "Seconds of CPU per second, by mode, without idle.",
        ask(f"sum by (mode) ({rate})", COUNT, "{{mode}}"),
    )
    stalled = f"rate(railscope_pressure_stalled_seconds_total{HERE}[$__rate_interval])"
    yield lines(
        402,
        "Pressure",
        "Share of time in which tasks waited for a resource.",
        ask(f"max by (resource, severity) ({stalled})", SHARE, "{{resource}}, {{severity}}"),
    )
    yield lines(
        403,
        "Memory",
        "Of the node.",
        ask(f"railscope_memory_size_bytes{HERE}").named("size"),
        ask(f"railscope_memory_available_bytes{HERE}").named("available"),
    )
    yield rows(
        404,
        "Sources with failures",
        "Their readings are absent, not zero.",
        {"source": "Source"},
        unhealthy_sources("source", HERE),
        span=12,
    )
    yield lines(
        405,
        "Cost of the agent",
        "Share of one CPU.",
        ask(f"railscope_agent_cpu_use_ratio{HERE}").named("agent"),
        span=12,
    )


SECTIONS = (
    ("", _summary),
    ("Are its GPUs healthy, busy and cool?", _gpus),
    ("Do its ports carry traffic without pauses and losses?", _ports),
    ("Does the host keep up?", _machine),
)
