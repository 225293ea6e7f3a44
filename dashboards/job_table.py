"""Columns of each job in tables of dashboards."""

from __future__ import annotations

from dashboards.colours import BEHIND_OTHERS, PAUSE
from dashboards.panels import Column
from dashboards.query import SHARE, ask


def job_columns(of_jobs: str, where: str) -> tuple[Column, ...]:
    """Return columns of the devices and activity of jobs; `of_jobs` are the labels that identify a job.

    Several collectors may each hold a part of a job.
    """

    def column(title: str, how: str, name: str) -> Column:
        return Column(title, ask(f"{how} by ({of_jobs}) (railscope_job_{name}{where})"))

    start = f"min by ({of_jobs}) (railscope_job_start_time_seconds{where})"
    paused = f"max by ({of_jobs}) (railscope_job_max_nic_receive_pfc_pause_ratio{where})"
    behind = f"0 - min by ({of_jobs}) (railscope_job_straggler_deviation_ratio{where})"
    return (
        column("GPUs", "sum", "gpus"),
        column("Nodes", "sum", "nodes"),
        Column("Held for", ask(f"time() - {start}", "s")),
        column("Busiest GPU", "max", "max_gpu_utilization_ratio"),
        column("SM activity", "avg", "mean_gpu_sm_activity_ratio"),
        column("Tensor activity", "avg", "mean_gpu_tensor_activity_ratio"),
        column("Power", "sum", "sum_gpu_power_watts"),
        column("Memory", "sum", "sum_gpu_memory_used_bytes"),
        column("RDMA out", "sum", "sum_rdma_transmit_bytes_per_second"),
        Column("In pause", ask(paused), PAUSE),
        Column("Furthest behind", ask(behind, SHARE), BEHIND_OTHERS, worst="highest"),
    )
