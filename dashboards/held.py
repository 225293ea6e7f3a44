"""Expressions for the devices that jobs hold, restricted by a dashboard's variables."""

from __future__ import annotations

OWN = '{tenant=~"$tenant", workload=~"$workload"}'
BY = "tenant, source, workload"
JOB = {"tenant": "Tenant", "source": "Source", "workload": "Job"}
HOLDERS = f"max by (node, gpu, {BY}) (railscope_gpu_holder_info{OWN})"
HELD = f"and on (node, gpu) railscope_gpu_holder_info{OWN}"
ON_ITS_RAILS = f'and on (node, rail) (railscope_gpu_info{{rail!=""}} {HELD})'


def of_held(expression: str, *labels: str) -> str:
    """Restrict an expression of GPU metrics to GPUs held by jobs."""
    return f"max by (node, {', '.join(labels)}) ({expression} {HELD})"
