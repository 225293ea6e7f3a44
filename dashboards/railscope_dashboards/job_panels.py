"""Parts of the jobs dashboard: columns of each job, causes that slow down jobs, comparison of nodes.

Expressions for the devices that jobs hold are restricted by a dashboard's variables. The comparison
of the GPUs and ports of a node is independent of their holders.
"""

from __future__ import annotations

from collections.abc import Iterator

from railscope_dashboards import panels
from railscope_dashboards.health import HEALTH_TEXTS, health
from railscope_dashboards.query import (
    COUNT,
    NODES,
    SHARE,
    Query,
    build_query,
    highest,
    mean,
    pause_shares,
    with_port_rail,
    with_rail,
)

SELECTED_JOBS = '{tenant=~"$tenant", workload=~"$workload"}'
JOB_LABELS = "tenant, source, workload"
JOB = {"tenant": "Tenant", "source": "Source", "workload": "Job"}
HOLDERS = f"max by (node, gpu, {JOB_LABELS}) (railscope_gpu_holder_info{SELECTED_JOBS})"
ON_HELD_GPUS = f"and on (node, gpu) railscope_gpu_holder_info{SELECTED_JOBS}"
ON_ITS_RAILS = f'and on (node, rail) (railscope_gpu_info{{rail!=""}} {ON_HELD_GPUS})'


def job_columns(of_jobs: str, selector: str) -> tuple[panels.Column, ...]:
    """Return columns of the devices and activity of jobs; `of_jobs` are the labels that identify a job.

    Several collectors may each hold a part of a job.
    """

    def column(title: str, aggregation: str, name: str) -> panels.Column:
        return panels.Column(
            title, build_query(f"{aggregation} by ({of_jobs}) (railscope_job_{name}{selector})")
        )

    def mean_column(title: str, name: str) -> panels.Column:
        name = f"railscope_job_mean_gpu_{name}_activity_ratio"
        return panels.Column(title, build_query(mean(name, of_jobs, selector=selector)))

    start = f"min by ({of_jobs}) (railscope_job_start_time_seconds{selector})"
    paused = f"max by ({of_jobs}) (railscope_job_max_nic_receive_pfc_pause_ratio{selector})"
    behind = f"0 - min by ({of_jobs}) (railscope_job_straggler_deviation_ratio{selector})"
    return (
        column("GPUs", "sum", "gpus"),
        column("Nodes", "sum", "nodes"),
        panels.Column("Held for", build_query(f"time() - {start}", "s")),
        column("Busiest GPU", "max", "max_gpu_utilization_ratio"),
        mean_column("SM activity", "sm"),
        mean_column("Tensor activity", "tensor"),
        column("Power", "sum", "sum_gpu_power_watts"),
        column("Memory", "sum", "sum_gpu_memory_used_bytes"),
        column("RDMA out", "sum", "sum_rdma_transmit_bytes_per_second"),
        panels.Column("In pause", build_query(paused), panels.PAUSE),
        panels.Column(
            "Furthest behind", build_query(behind, SHARE), panels.BEHIND_OTHERS, worst="highest"
        ),
    )


def _pause_of_jobs(direction: str) -> Query:
    rails = with_rail(f"max by (node, interface) ({pause_shares(direction)})")
    return build_query(highest(f"{rails} {ON_ITS_RAILS}"), legend="{{node}}, rail {{rail}}")


def cause_panels() -> Iterator[panels.Panel]:
    """Yield panels of the causes that slow down GPUs and ports of jobs, per device."""
    reasons = '{reason=~".*thermal|.*power.*|sync_boost|reliability"}'
    throttled = f"rate(railscope_gpu_throttle_seconds_total{reasons}[$__rate_interval])"
    held_back = f"sum by (node, gpu, reason) ({throttled} > 0.01) {ON_HELD_GPUS}"
    time = build_query(f"topk(30, max by (node, gpu, reason) ({held_back}))", SHARE)
    yield panels.rows(
        701,
        "Throttled GPUs of jobs",
        "Share of time, by reason; the thirty most.",
        {"node": "Node", "gpu": "GPU", "reason": "Reason"},
        panels.Column("Share of time", time, panels.STALL, worst="highest"),
        span=8,
    )
    yield panels.lines(
        702,
        "Ports of jobs in pause",
        "The ten highest now. Received: the fabric is congested. Sent: the node is slow to accept data.",
        _pause_of_jobs("receive").with_name("received"),
        _pause_of_jobs("transmit").with_name("sent"),
        steps=panels.PAUSE,
    )
    path = "max by (node, pci_address) (railscope_pcie_path_{}_bytes_per_second)"
    devices = f"railscope_gpu_info {ON_HELD_GPUS} or railscope_nic_info {ON_ITS_RAILS}"
    share = f"{path.format('bandwidth')} / ({path.format('limit')} > 0)"
    narrow = build_query(f"bottomk(10, {share} and on (node, pci_address) ({devices}))", SHARE)
    yield panels.rows(
        703,
        "PCIe bandwidth of jobs' GPUs and NICs",
        "Share of the slots' bandwidth; the ten lowest. Below 100 %: trained down.",
        {"node": "Node", "pci_address": "PCI address"},
        panels.Column("Share of capacity", narrow, panels.ALL_IS_GOOD, worst="lowest"),
        span=8,
    )
    errors = 'railscope_gpu_ecc_errors_total{lifetime="volatile"} > 0'
    failed = f"max by (node, gpu, error) (sum by (node, gpu, error) ({errors}) {ON_HELD_GPUS})"
    memory_errors = build_query(f"topk(30, {failed})", COUNT)
    yield panels.rows(
        704,
        "Memory errors of jobs' GPUs",
        "Since the driver was loaded, corrected and uncorrected; the thirty highest.",
        {"node": "Node", "gpu": "GPU", "error": "Error"},
        panels.Column("Errors", memory_errors, worst="highest"),
    )
    against = f"max by (node, gpu, reason) (railscope_gpu_health_reason_active == 1) {ON_HELD_GPUS}"
    any_node = health("node, gpu", '{node!=""}')
    verdict = build_query(f"topk(30, ({against}) * on (node, gpu) group_left () {any_node})", COUNT)
    yield panels.rows(
        705,
        "Faults of the jobs' GPUs",
        "Active reasons of their health.",
        {"node": "Node", "gpu": "GPU", "reason": "Reason"},
        panels.Column("Health", verdict, panels.NONE_IS_GOOD, HEALTH_TEXTS, "highest"),
    )


ON_RAIL = '{node=~"$node", rail!=""}'
GPU = {"node": "Node", "gpu": "GPU"}


def _of_gpus(name: str, more: str = "") -> str:
    selector = f'{{node=~"$node"{more}}}'
    return f"max by (node, gpu) (railscope_gpu_{name}{selector})"


def _behind(value: str) -> str:
    """Return the relative distance from the median of the node; no result if the median is 0."""
    median = f"quantile by (node) (0.5, {value})"
    return f"{value} / on (node) group_left () ({median} > 0) - 1"


def _furthest_behind(value: str) -> panels.Column:
    query = build_query(f"bottomk(10, {_behind(value)})", SHARE)
    return panels.Column("Deviation from the median", query, panels.BELOW_OTHERS, worst="lowest")


def stragglers() -> Iterator[panels.Panel]:
    """Yield panels of GPUs and ports that lag behind, whatever their holders."""
    activity = f"railscope_gpu_sm_activity_ratio{NODES}"
    slow = build_query(
        f"count({_behind(_of_gpus('sm_activity_ratio'))} < -0.2) or vector(0)", COUNT
    )
    busy = build_query(f"avg(railscope_gpu_utilization_ratio{NODES})")
    processes = build_query(f"sum(railscope_gpu_processes{NODES})")
    spread = f"max by (node) ({activity}) - min by (node) ({activity})"
    spreads = build_query(f"topk(10, {spread})", SHARE, "{{node}}")
    rate = f"rate(railscope_rdma_transmit_bytes_total{NODES}[$__rate_interval])"
    ports = f"sum by (node, device, port) ({with_port_rail(rate, ON_RAIL)})"
    port = {"node": "Node", "device": "RDMA device", "port": "Port"}
    about = "Against the median GPU of the same node; the ten furthest behind."
    yield from (
        panels.number(105, "GPUs behind their node", "20 % below the median GPU of their node.", slow, panels.NONE_IS_GOOD).span(6),
        panels.number(106, "Busy", "Mean share of time in which any kernel ran.", busy).span(6),
        panels.number(104, "Processes", "On all GPUs.", processes).span(6),
        panels.number(108, "Least active GPU", "Share of cycles of the least active one.", build_query(f"min({activity})")).span(6),
        panels.rows(201, "SM activity behind the others", about, GPU, _furthest_behind(_of_gpus("sm_activity_ratio")), span=8),
        panels.rows(202, "SM clock behind the others", about, GPU, _furthest_behind(_of_gpus("clock_hertz", ', clock="sm"')), span=8),
        panels.rows(203, "Power behind the others", about, GPU, _furthest_behind(_of_gpus("power_watts")), span=8),
        panels.lines(204, "Spread of SM activity in each node", "Between its most and its least active GPU: jobs in step have none.", spreads, span=12),
        panels.rows(205, "Ports behind the others", "Against the median port of the same node.", port, _furthest_behind(ports)),
    )  # fmt: skip


def causes() -> Iterator[panels.Panel]:
    """Yield panels of the causes of slow nodes, and of unclaimed use."""
    throttled = build_query(
        "sum by (node, reason) (railscope:node_gpu_throttle:rate5m"
        '{node=~"$node", reason=~".*thermal|.*power.*|sync_boost|reliability"}) > 0.01',
        COUNT,
        "{{node}}, {{reason}}",
    )
    received, sent = (
        build_query(f"topk(10, max by (node) ({pause_shares(way, NODES)}))", legend="{{node}}")
        for way in ("receive", "transmit")
    )
    waited = f"rate(railscope_pressure_stalled_seconds_total{NODES}[$__rate_interval])"
    stalled = build_query(f"topk(10, max by (node) ({waited}))", SHARE, "{{node}}")
    unclaimed = build_query(f"{_of_gpus('unclaimed_processes')} > 0", COUNT)
    memory = f"max by (node, gpu, pid) (railscope_gpu_process_memory_used_bytes{NODES})"
    largest = panels.Column("Memory", build_query(f"topk(20, {memory})"), worst="highest")
    yield from (
        panels.lines(301, "Throttled GPUs", "GPUs of each node with limited clocks, by reason.", throttled),
        panels.lines(302, "Ports in pause", "The worst port of each node; the ten worst nodes.", received.with_name("received"), sent.with_name("sent")),
        panels.lines(303, "Nodes under pressure", "Share of time in which tasks waited for a resource; the ten worst.", stalled),
        panels.rows(403, "GPUs used without a claim", "Processes without a claim on the GPU.", GPU, panels.Column("Processes", unclaimed, worst="highest")),
        panels.rows(404, "Largest processes", "By frame buffer.", GPU | {"pid": "Process"}, largest),
    )  # fmt: skip
