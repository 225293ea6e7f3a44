"""The dashboard of the use of GPUs: held, busy, at work, and their cost."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.dashboard_parts import assemble, claim_marks
from dashboards.panels import COUNTED_AS, Column, Panel, in_colours, lines, number, rows
from dashboards.query import COUNT, SHARE, Query, ask, over
from railscope.catalog import Rollup, gpu

UID = "railscope-efficiency"
QUESTION = "How are the GPUs used: held, busy, computing?"
MEAN, SUM = Rollup.MEAN, Rollup.SUM
HELD = "sum(railscope_tenant_held_gpus)"
GPUS = "sum(railscope_cluster_gpus)"
USED = "sum(railscope_cluster_sum_gpu_memory_used_bytes)"
SIZE = "sum(railscope_cluster_sum_gpu_memory_size_bytes)"


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return assemble(
        "GPU efficiency", UID, QUESTION, SECTIONS, marks=(claim_marks(),), tags=("gpu",)
    )


def _summary() -> Iterator[Panel]:
    yield number(101, "GPUs", "With fresh readings at the collector.", ask(GPUS))
    yield number(
        102, "Held", "GPUs that tenants hold, as a share of all.", ask(f"{HELD} / {GPUS}", SHARE)
    )
    yield number(
        103,
        "Busy",
        "Mean share of time in which any kernel ran.",
        over("cluster", gpu.GPU_UTILIZATION, MEAN),
    )
    yield number(
        104,
        "SMs at work",
        "Mean share of cycles; a busy GPU may do little.",
        over("cluster", gpu.GPU_SM_ACTIVITY, MEAN),
    )
    yield number(
        105,
        "Tensor cores at work",
        "Mean share of cycles.",
        over("cluster", gpu.GPU_TENSOR_ACTIVITY, MEAN),
    )
    yield number(106, "Memory used", "Share of all frame buffer.", ask(f"{USED} / {SIZE}", SHARE))
    yield number(107, "Power", "All boards together.", over("cluster", gpu.GPU_POWER, SUM))
    yield number(
        108, "Held and not used", "GPUs that tenants hold and that run no kernel.", _unused()
    )


def _unused() -> Query:
    held = "max by (node, gpu) (railscope_gpu_claims) > 0"
    idle = "max by (node, gpu) (railscope_gpu_utilization_ratio) < 0.01"
    return ask(f"count(({held}) and ({idle})) or vector(0)", COUNT)


def _steps() -> Iterator[Panel]:
    yield lines(
        201,
        "From all GPUs to GPUs at work",
        "Each step is a part of the previous one. Far apart: GPUs held and not used, or busy "
        "and waiting.",
        ask(GPUS).named("all"),
        ask(HELD).named("held"),
        ask(f"avg(railscope_cluster_mean_gpu_utilization_ratio) * {GPUS}", COUNT).named("busy"),
        ask(f"avg(railscope_cluster_mean_gpu_sm_activity_ratio) * {GPUS}", COUNT).named("SMs"),
        ask(f"avg(railscope_cluster_mean_gpu_tensor_activity_ratio) * {GPUS}", COUNT).named(
            "tensor cores"
        ),
        span=12,
    )
    rate = "sum by (state) (deriv(railscope_cluster_gpu_time_seconds[$__rate_interval]))"
    counted = lines(
        202,
        "GPUs by state",
        "GPU time per second equals GPUs.",
        ask(rate, COUNT, "{{state}}"),
        span=12,
    )
    yield in_colours(counted, COUNTED_AS)
    yield lines(
        203,
        "Activity by rail",
        "Tensor cores; GPUs of one job work in step.",
        over("rail", gpu.GPU_TENSOR_ACTIVITY, MEAN),
    )
    pipes = "avg by (pipe) (railscope_cluster_mean_gpu_pipe_activity_ratio)"
    yield lines(
        204,
        "Activity of pipes",
        "Mean share of cycles, by arithmetic.",
        ask(pipes, legend="{{pipe}}"),
    )
    yield lines(
        205,
        "Memory bandwidth",
        "Mean share of the available bandwidth.",
        over("cluster", gpu.GPU_DRAM_ACTIVITY, MEAN),
    )


def _cost() -> Iterator[Panel]:
    yield lines(
        301,
        "Power",
        "All boards, and their limits.",
        over("cluster", gpu.GPU_POWER, SUM).named("drawn"),
        ask("sum(railscope_cluster_sum_gpu_power_limit_watts)").named("limit"),
    )
    work = "avg(railscope_cluster_mean_gpu_tensor_activity_ratio)"
    yield lines(
        302,
        "Power for a GPU of tensor work",
        "Watts of all boards, per GPU with permanently active tensor cores.",
        ask(f"sum(railscope_cluster_sum_gpu_power_watts) / ({work} * {GPUS} > 0)", "watt"),
    )
    yield lines(
        303, "Frame buffer", "Used and total.", ask(USED).named("used"), ask(SIZE).named("size")
    )
    held = "max by (node, gpu) (railscope_gpu_claims) > 0"
    low = f"max by (node, gpu) (railscope_gpu_utilization_ratio) and ({held})"
    yield rows(
        304,
        "The least used of the held GPUs",
        "Ten of them.",
        {"node": "Node", "gpu": "GPU"},
        Column("Utilisation", ask(f"bottomk(10, {low})"), worst="lowest"),
    )
    unclaimed = "sum by (node, gpu) (railscope_gpu_unclaimed_processes) > 0"
    yield rows(
        305,
        "GPUs used without a claim",
        "Processes without a claim on the GPU.",
        {"node": "Node", "gpu": "GPU"},
        Column("Processes", ask(unclaimed), worst="highest"),
    )


SECTIONS = (
    ("", _summary),
    ("Where between holding and computing is time lost?", _steps),
    ("What does it cost, and who holds GPUs without using them?", _cost),
)
