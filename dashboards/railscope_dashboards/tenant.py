"""The dashboard that a tenant may access: its own GPUs and traffic, and no data of other tenants."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, job_panels, panels, query

UID = "railscope-tenant"
OF_TENANT = '{tenant="$tenant"}'


def build_dashboard() -> Dashboard:
    """Build the dashboard; every query names the tenant, and no link leads to other dashboards.

    All its metrics are among those that a tenant's own credential can read at the collector's
    `/metrics`, so it works on a tenant's own Prometheus, which has no other tenant to select.
    """
    question = "What does this tenant hold, and how busy are its GPUs?"
    choices = (dashboard_parts.DashboardVariable("tenant", "Tenant", "railscope_tenant_held_gpus"),)
    return dashboard_parts.assemble(
        "Tenant",
        UID,
        question,
        SECTIONS,
        console="/tenants/${tenant:percentencode}",
        choices=choices,
        marks=(dashboard_parts.loss_marks(OF_TENANT),),
        tags=("tenant",),
        shared=True,
    )


def _tenant_rollup(aggregation: str, name: str, unit: str = "") -> query.Query:
    """Return a roll-up of the tenant; several collectors may each hold a part of it."""
    found = f"railscope_tenant_{name}{OF_TENANT}"
    found = query.pauses_of_any_kind(found) if "_pfc_" in name else found
    return query.build_query(f"{aggregation}({found})", unit)


def _tenant_mean(name: str) -> query.Query:
    return query.build_query(
        query.mean(f"railscope_tenant_mean_gpu_{name}_ratio", selector=OF_TENANT)
    )


def _own_by(label: str, aggregation: str, name: str, unit: str = "") -> query.Query:
    return query.build_query(
        f"{aggregation} by ({label}) (railscope_tenant_{name}{OF_TENANT})", unit, f"{{{{{label}}}}}"
    )


def _summary() -> Iterator[panels.Panel]:
    month = '_seconds{tenant="$tenant", period="month"}'
    used = f"sum(railscope_tenant_quota_used_gpu_time{month})"
    bound = f"max(railscope_tenant_quota_gpu_time{month})"
    yield from (
        panels.number(101, "GPUs held", "GPUs held now; a share of a GPU counts as that share.", _tenant_rollup("sum", "held_gpus")),
        panels.number(102, "Busy", "Mean share of time in which any kernel ran.", _tenant_mean("utilization")),
        panels.number(103, "Tensor core activity", "Mean share of cycles.", _tenant_mean("tensor_activity")),
        panels.number(104, "Power", "Total power of the GPUs held.", _tenant_rollup("sum", "sum_gpu_power_watts")),
        panels.number(105, "Hottest GPU", "Highest die temperature of the GPUs held.", _tenant_rollup("max", "max_gpu_temperature_celsius"), panels.HOT),
        panels.number(106, "GPUs with faults", "Active reasons of the health of held GPUs.", _tenant_rollup("sum", "sum_gpu_health_reason_active"), panels.NONE_IS_GOOD),
        panels.number(107, "Month's quota used", "GPU time held in this month, relative to the quota.", query.build_query(f"{used} / {bound}", query.SHARE), panels.FULL),
        panels.number(108, "GPU quota", "Maximum GPUs at once.", _tenant_rollup("max", "quota_gpus")),
    )  # fmt: skip


def _jobs() -> Iterator[panels.Panel]:
    yield panels.rows(
        501,
        "Jobs",
        "GPUs and activity of each now. In pause: its worst port; furthest behind: its worst GPU.",
        {"source": "Source", "workload": "Job"},
        *job_panels.job_columns("source, workload", OF_TENANT),
        span=24,
    )
    busy = query.mean(
        "railscope_job_mean_gpu_sm_activity_ratio", "source", "workload", selector=OF_TENANT
    )
    yield panels.lines(
        502,
        "SM activity of jobs",
        "Means over the GPUs of each job; the ten busiest.",
        query.build_query(f"topk(10, {busy})", legend="{{workload}}"),
    )
    behind = f"max by (workload, measure, node, gpu) (railscope_job_straggler_deviation_ratio{OF_TENANT})"
    yield panels.rows(
        503,
        "The GPU of each job that is furthest behind",
        "Deviation from the median of its job.",
        {"workload": "Job", "measure": "By", "node": "Node", "gpu": "GPU"},
        panels.Column(
            "Deviation from the median",
            query.build_query(f"bottomk(30, {behind})"),
            panels.BELOW_OTHERS,
            worst="lowest",
        ),
        span=16,
        leads_on=False,
    )


def _incidents() -> Iterator[panels.Panel]:
    affected = f"count by (source, workload, class) (railscope_job_incident{OF_TENANT})"
    lost = f"rate(railscope_tenant_incident_lost_gpu_seconds_total{OF_TENANT}[$__rate_interval])"
    yield panels.rows(
        601,
        "Incidents",
        "Open faults of the cluster that affect a job.",
        {"source": "Source", "workload": "Job", "class": "Class"},
        panels.Column("Incidents", query.build_query(affected, query.COUNT), worst="highest"),
    )
    yield panels.layers(
        602,
        "GPUs lost by class",
        "GPU-seconds lost per second, estimated.",
        query.build_query(f"sum by (class) ({lost})", query.COUNT, "{{class}}"),
        span=12,
    )


def _work() -> Iterator[panels.Panel]:
    faults = f"sum by (reason) (railscope_tenant_sum_gpu_health_reason_active{OF_TENANT}) > 0"
    yield from (
        panels.lines(201, "Activity", "Means of all GPUs held.",
                     _tenant_mean("utilization").with_name("any kernel"),
                     _tenant_mean("sm_activity").with_name("SMs"),
                     _tenant_mean("tensor_activity").with_name("tensor cores")),
        panels.lines(202, "Slowest GPU", "Lowest activity of a held GPU; its job waits for it.",
                     _tenant_rollup("min", "min_gpu_sm_activity_ratio").with_name("SMs"),
                     _tenant_rollup("min", "min_gpu_tensor_activity_ratio").with_name("tensor cores")),
        panels.lines(203, "GPU memory", "Used and total memory of the GPUs held.",
                     _tenant_rollup("sum", "sum_gpu_memory_used_bytes").with_name("used"),
                     _tenant_rollup("sum", "sum_gpu_memory_size_bytes").with_name("size")),
        panels.lines(204, "Power", "Total power of the GPUs held.", _tenant_rollup("sum", "sum_gpu_power_watts")),
        panels.layers(205, "Throttled GPUs by reason", "Reasons include low utilization.", _own_by("reason", "sum", "sum_gpu_throttle_ratio", query.COUNT)),
        panels.layers(206, "Faults of the held GPUs", "Active health reasons; none if all GPUs are healthy.", query.build_query(faults, legend="{{reason}}")),
    )  # fmt: skip


def _traffic() -> Iterator[panels.Panel]:
    notified = _tenant_rollup(
        "sum", "sum_rdma_congestion_notifications_sent_per_second", query.EVENTS_PER_SECOND
    )
    yield from (
        panels.lines(301, "RDMA traffic", "Traffic of the ports on the rails of the GPUs held.",
                     _tenant_rollup("sum", "sum_rdma_transmit_bytes_per_second").with_name("out"),
                     _tenant_rollup("sum", "sum_rdma_receive_bytes_per_second").with_name("in")),
        panels.lines(302, "Pause", "The worst port. Received pause: the fabric is congested.",
                     _tenant_rollup("max", "max_nic_receive_pfc_pause_ratio").with_name("received"),
                     _tenant_rollup("max", "max_nic_transmit_pfc_pause_ratio").with_name("sent"), steps=panels.PAUSE),
        panels.lines(303, "Congestion", "Marks received, and notifications sent for them.",
                     _tenant_rollup("sum", "sum_rdma_ecn_marked_packets_per_second", query.EVENTS_PER_SECOND).with_name("marks"),
                     notified.with_name("notifications")),
    )  # fmt: skip


def _account() -> Iterator[panels.Panel]:
    rate = f"sum by (state) (deriv(railscope_tenant_gpu_time_seconds{OF_TENANT}[$__rate_interval]))"
    description = "Total of the GPUs while they were held; some minutes old."
    yield from (
        panels.layers(401, "Held GPUs by state", "GPU time per second equals GPUs.", query.build_query(rate, query.COUNT, "{{state}}")),
        panels.lines(402, "GPU time so far", "By state, since the first evidence.", _own_by("state", "sum", "gpu_time_seconds")),
        panels.lines(403, "Quota", "GPU time of this day or month (UTC), and the quota.",
                     _own_by("period", "sum", "quota_used_gpu_time_seconds").with_name("used"),
                     _own_by("period", "max", "quota_gpu_time_seconds").with_name("agreed")),
        panels.lines(404, "Energy so far", description, _tenant_rollup("sum", "energy_joules")),
        panels.lines(405, "Time computing so far", description, _tenant_rollup("sum", "gpu_busy_time_seconds")),
        panels.lines(406, "Network traffic so far", "Traffic of the GPUs' ports while the GPUs were held.",
                     _tenant_rollup("sum", "network_transmitted_bytes").with_name("sent"),
                     _tenant_rollup("sum", "network_received_bytes").with_name("received")),
    )  # fmt: skip


SECTIONS = (
    ("", _summary),
    ("Which jobs run, and how busy are they?", _jobs),
    ("Which incidents affect its jobs?", _incidents),
    ("Do its GPUs work as expected?", _work),
    ("Is its traffic congested?", _traffic),
    ("What will be accounted for?", _account),
)
