"""The dashboard that a tenant may access: its own GPUs and traffic, and no data of other tenants."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import panels
from dashboards.dashboard_parts import DashboardVariable, assemble
from dashboards.job_panels import job_columns
from dashboards.query import COUNT, EVENTS_PER_SECOND, SHARE, Query, ask

UID = "railscope-tenant"
QUESTION = "What does this tenant hold, and how busy are its GPUs?"
OWN = '{tenant="$tenant"}'
CHOICES = (DashboardVariable("tenant", "Tenant", "railscope_tenant_held_gpus"),)


def build_dashboard() -> Dashboard:
    """Build the dashboard; every query names the tenant, and no link leads to other dashboards.

    All its metrics are among those that a tenant's own credential can read at the collector's
    `/metrics`, so it works on a tenant's own Prometheus, which has no other tenant to select.
    """
    return assemble(
        "Tenant", UID, QUESTION, SECTIONS, choices=CHOICES, tags=("tenant",), shared=True
    )


def _own(how: str, name: str, unit: str = "") -> Query:
    """Return a roll-up of the tenant; several collectors may each hold a part of it."""
    return ask(f"{how}(railscope_tenant_{name}{OWN})", unit)


def _summary() -> Iterator[panels.Panel]:
    yield panels.number(
        101, "GPUs held", "Now; a share of a GPU counts as that share.", _own("sum", "held_gpus")
    )
    yield panels.number(
        102,
        "Busy",
        "Mean share of time in which any kernel ran.",
        _own("avg", "mean_gpu_utilization_ratio"),
    )
    yield panels.number(
        103,
        "Tensor cores at work",
        "Mean share of cycles.",
        _own("avg", "mean_gpu_tensor_activity_ratio"),
    )
    yield panels.number(104, "Power", "Of all boards held.", _own("sum", "sum_gpu_power_watts"))
    yield panels.number(
        105, "Hottest GPU", "Of those held.", _own("max", "max_gpu_temperature_celsius"), panels.HOT
    )
    yield panels.number(
        106,
        "GPUs with faults",
        "Active reasons of the health of held GPUs.",
        _own("sum", "sum_gpu_health_reason_active"),
        panels.NONE_IS_GOOD,
    )
    used = 'max(railscope_tenant_quota_used_gpu_time_seconds{tenant="$tenant", period="month"})'
    bound = 'max(railscope_tenant_quota_gpu_time_seconds{tenant="$tenant", period="month"})'
    yield panels.number(
        107,
        "Month's quota used",
        "GPU time held in this month, relative to the quota.",
        ask(f"{used} / {bound}", SHARE),
        panels.FULL,
    )
    yield panels.number(108, "GPU quota", "Maximum GPUs at once.", _own("max", "quota_gpus"))


def _jobs() -> Iterator[panels.Panel]:
    yield panels.rows(
        501,
        "Jobs",
        "GPUs and activity of each now. In pause: its worst port; furthest behind: its worst GPU.",
        {"source": "Source", "workload": "Job"},
        *job_columns("source, workload", OWN),
        span=24,
    )
    busy = f"avg by (source, workload) (railscope_job_mean_gpu_sm_activity_ratio{OWN})"
    yield panels.lines(
        502,
        "SM activity of jobs",
        "Means over the GPUs of each; the ten busiest.",
        ask(f"topk(10, {busy})", legend="{{workload}}"),
    )
    behind = f"max by (workload, measure, node, gpu) (railscope_job_straggler_deviation_ratio{OWN})"
    yield panels.rows(
        503,
        "The GPU of each job that is furthest behind",
        "Against the median of its job.",
        {"workload": "Job", "measure": "By", "node": "Node", "gpu": "GPU"},
        panels.Column(
            "Against the median", ask(f"bottomk(30, {behind})"), panels.BELOW_OTHERS, worst="lowest"
        ),
        span=16,
        leads_on=False,
    )


def _work() -> Iterator[panels.Panel]:
    yield panels.lines(
        201,
        "Activity",
        "Means of all GPUs held.",
        _own("avg", "mean_gpu_utilization_ratio").named("any kernel"),
        _own("avg", "mean_gpu_sm_activity_ratio").named("SMs"),
        _own("avg", "mean_gpu_tensor_activity_ratio").named("tensor cores"),
    )
    yield panels.lines(
        202,
        "The slowest GPU",
        "Jobs wait for it.",
        _own("min", "min_gpu_sm_activity_ratio").named("SMs"),
        _own("min", "min_gpu_tensor_activity_ratio").named("tensor cores"),
    )
    yield panels.lines(
        203,
        "Frame buffer",
        "Of all GPUs held.",
        _own("sum", "sum_gpu_memory_used_bytes").named("used"),
        _own("sum", "sum_gpu_memory_size_bytes").named("size"),
    )
    yield panels.lines(204, "Power", "Of all boards held.", _own("sum", "sum_gpu_power_watts"))
    yield panels.layers(
        205,
        "Throttled GPUs by reason",
        "Low utilisation is one.",
        ask(f"sum by (reason) (railscope_tenant_sum_gpu_throttle_ratio{OWN})", COUNT, "{{reason}}"),
    )
    yield panels.layers(
        206,
        "Faults of the held GPUs",
        "Reasons of their health; none if all are healthy.",
        ask(
            f"sum by (reason) (railscope_tenant_sum_gpu_health_reason_active{OWN}) > 0",
            legend="{{reason}}",
        ),
    )


def _traffic() -> Iterator[panels.Panel]:
    yield panels.lines(
        301,
        "RDMA traffic",
        "Of the ports on the rails of GPUs held.",
        _own("sum", "sum_rdma_transmit_bytes_per_second").named("out"),
        _own("sum", "sum_rdma_receive_bytes_per_second").named("in"),
    )
    yield panels.lines(
        302,
        "Pause",
        "The worst port. Received: the fabric is congested.",
        _own("max", "max_nic_receive_pfc_pause_ratio").named("received"),
        _own("max", "max_nic_transmit_pfc_pause_ratio").named("sent"),
        steps=panels.PAUSE,
    )
    congestion = "sum_rdma_congestion_notifications_sent_per_second"
    yield panels.lines(
        303,
        "Congestion",
        "Marks received, and notifications sent for them.",
        _own("sum", "sum_rdma_ecn_marked_packets_per_second", EVENTS_PER_SECOND).named("marks"),
        _own("sum", congestion, EVENTS_PER_SECOND).named("notifications"),
    )


def _account() -> Iterator[panels.Panel]:
    yield panels.layers(
        401,
        "Held GPUs by state",
        "GPU time per second equals GPUs.",
        ask(
            f"sum by (state) (deriv(railscope_tenant_gpu_time_seconds{OWN}[$__rate_interval]))",
            COUNT,
            "{{state}}",
        ),
    )
    yield panels.lines(
        402,
        "GPU time so far",
        "By state, from the first evidence on.",
        ask(f"sum by (state) (railscope_tenant_gpu_time_seconds{OWN})", legend="{{state}}"),
    )
    yield panels.lines(
        403,
        "Quota",
        "GPU time of this day or month (UTC), and the quota.",
        ask(
            f"max by (period) (railscope_tenant_quota_used_gpu_time_seconds{OWN})",
            legend="used, {{period}}",
        ),
        ask(
            f"max by (period) (railscope_tenant_quota_gpu_time_seconds{OWN})",
            legend="agreed, {{period}}",
        ),
    )
    yield panels.lines(
        404,
        "Energy so far",
        "Of GPUs while they were held; some minutes old.",
        _own("sum", "energy_joules"),
    )
    yield panels.lines(
        405,
        "Time computing so far",
        "Of GPUs while they were held; some minutes old.",
        _own("sum", "gpu_busy_time_seconds"),
    )
    yield panels.lines(
        406,
        "Network traffic so far",
        "By ports of GPUs while they were held.",
        _own("sum", "network_transmitted_bytes").named("sent"),
        _own("sum", "network_received_bytes").named("received"),
    )


SECTIONS = (
    ("", _summary),
    ("Which jobs run, and how busy are they?", _jobs),
    ("Do its GPUs work as expected?", _work),
    ("Is its traffic congested?", _traffic),
    ("What will be accounted for?", _account),
)
