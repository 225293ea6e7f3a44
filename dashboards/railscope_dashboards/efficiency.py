"""The dashboard of the use of GPUs: held, busy, active, and their cost."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope.catalog import Rollup, gpu
from railscope_dashboards.dashboard_parts import assemble, claim_marks
from railscope_dashboards.panels import COUNTED_AS, Column, Panel, in_colours, lines, number, rows
from railscope_dashboards.query import COUNT, SHARE, active_gpus, build_query, mean, rollup

MEAN, SUM = Rollup.MEAN, Rollup.SUM
HELD_GPUS = "sum(railscope_tenant_held_gpus)"
GPUS = "sum(railscope_cluster_gpus)"
ACTIVITIES = {"utilization": "busy", "sm_activity": "SMs", "tensor_activity": "tensor cores"}
USED = "sum(railscope_cluster_sum_gpu_memory_used_bytes)"
SIZE = "sum(railscope_cluster_sum_gpu_memory_size_bytes)"
CLAIMED = "max by (node, gpu) (railscope_gpu_claims) > 0"


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    question, marks = "How are the GPUs used: held, busy, computing?", (claim_marks(),)
    uid = "railscope-efficiency"
    return assemble(
        "GPU efficiency", uid, question, SECTIONS, console="/tenants", marks=marks, tags=("gpu",)
    )


def _summary() -> Iterator[Panel]:
    idle = "max by (node, gpu) (railscope_gpu_utilization_ratio) < 0.01"
    unused = build_query(f"count(({CLAIMED}) and ({idle})) or vector(0)", COUNT)
    yield from (
        number(101, "GPUs", "GPUs of all nodes, those of stale nodes too.", build_query(GPUS)),
        number(102, "Held", "GPUs that tenants hold, as a share of all.", build_query(f"{HELD_GPUS} / {GPUS}", SHARE)),
        number(103, "Busy", "Mean share of time in which any kernel ran.", rollup("cluster", gpu.GPU_UTILIZATION, MEAN)),
        number(104, "SM activity", "Mean share of cycles; a busy GPU may do little.", rollup("cluster", gpu.GPU_SM_ACTIVITY, MEAN)),
        number(105, "Tensor core activity", "Mean share of cycles.", rollup("cluster", gpu.GPU_TENSOR_ACTIVITY, MEAN)),
        number(106, "Memory used", "Share of all GPU memory.", build_query(f"{USED} / {SIZE}", SHARE)),
        number(107, "Power", "Total of all GPUs.", rollup("cluster", gpu.GPU_POWER, SUM)),
        number(108, "Held and idle", "GPUs that tenants hold and that run no kernel.", unused),
    )  # fmt: skip


def _steps() -> Iterator[Panel]:
    rate = "sum by (state) (deriv(railscope_cluster_gpu_time_seconds[$__rate_interval]))"
    pipes = mean("railscope_cluster_mean_gpu_pipe_activity_ratio", "pipe")
    counted = lines(
        202,
        "GPUs by state",
        "GPU time per second equals GPUs.",
        build_query(rate, COUNT, "{{state}}"),
        span=12,
    )
    yield from (
        lines(201, "From all GPUs to active GPUs", "Each step is a part of the previous one. A wide gap: GPUs are held and unused, or busy and waiting.",
              build_query(GPUS).with_name("all"), build_query(HELD_GPUS).with_name("held"),
              *(build_query(active_gpus(name), COUNT).with_name(shown) for name, shown in ACTIVITIES.items()), span=12),
        in_colours(counted, COUNTED_AS),
        lines(203, "Activity by rail", "Tensor cores; GPUs of one job work in step.", rollup("rail", gpu.GPU_TENSOR_ACTIVITY, MEAN)),
        lines(204, "Activity of pipes", "Mean share of cycles, by pipe.", build_query(pipes, legend="{{pipe}}")),
        lines(205, "Memory bandwidth", "Mean share of the available bandwidth.", rollup("cluster", gpu.GPU_DRAM_ACTIVITY, MEAN)),
    )  # fmt: skip


def _cost() -> Iterator[Panel]:
    limit = build_query("sum(railscope_cluster_sum_gpu_power_limit_watts)")
    work = active_gpus("tensor_activity")
    per_work = build_query(f"sum(railscope_cluster_sum_gpu_power_watts) / ({work} > 0)", "watt")
    low = f"max by (node, gpu) (railscope_gpu_utilization_ratio) and ({CLAIMED})"
    lowest = Column("Utilization", build_query(f"bottomk(10, {low})"), worst="lowest")
    unclaimed = "sum by (node, gpu) (railscope_gpu_unclaimed_processes) > 0"
    processes = Column("Processes", build_query(unclaimed), worst="highest")
    keys = {"node": "Node", "gpu": "GPU"}
    yield from (
        lines(301, "Power", "Total power of all GPUs, and their limits.", rollup("cluster", gpu.GPU_POWER, SUM).with_name("drawn"), limit.with_name("limit")),
        lines(302, "Power for a GPU of tensor work", "Watts of all GPUs, per GPU with permanently active tensor cores.", per_work),
        lines(303, "GPU memory", "Used and total GPU memory.", build_query(USED).with_name("used"), build_query(SIZE).with_name("size")),
        rows(304, "Least used of the held GPUs", "The ten held GPUs with the lowest utilization.", keys, lowest),
        rows(305, "GPUs used without a claim", "Processes without a claim on the GPU.", keys, processes),
    )  # fmt: skip


SECTIONS = (
    ("", _summary),
    ("Where is time lost between holding and computing?", _steps),
    ("What does it cost, and which tenants hold GPUs without using them?", _cost),
)
