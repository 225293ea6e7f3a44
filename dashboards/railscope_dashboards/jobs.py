"""The dashboard of jobs: running jobs, holders of GPUs, and the GPU or port that delays the others."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, job_panels, panels, query

BY_JOB = "{{tenant}}, {{workload}}"
STRAGGLERS = f"(railscope_job_straggler_deviation_ratio{job_panels.SELECTED_JOBS})"
CHOICES = (
    dashboard_parts.DashboardVariable(
        "tenant", "Tenant", "railscope_job_gpus", allows_several=True
    ),
    dashboard_parts.DashboardVariable(
        "workload", "Job", 'railscope_job_gpus{tenant=~"$tenant"}', allows_several=True
    ),
    dashboard_parts.DashboardVariable("node", "Node", "railscope_node_info", allows_several=True),
)


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return dashboard_parts.assemble(
        "Jobs and stragglers",
        "railscope-jobs",
        "Which jobs run, and which GPU or port does each wait for?",
        SECTIONS,
        console="/jobs",
        choices=CHOICES,
        marks=(
            dashboard_parts.claim_marks(query.NODES),
            dashboard_parts.xid_marks(query.NODES),
        ),
        tags=("gpu", "job"),
    )


def _top_jobs(name: str) -> query.Query:
    """Return the ten jobs with most of a metric; several collectors may each hold a part of a job."""
    jobs = f"sum by ({job_panels.JOB_LABELS}) (railscope_job_{name}{job_panels.SELECTED_JOBS})"
    return query.build_query(f"topk(10, {jobs})", legend=BY_JOB)


def _of_held_gpus(name: str, more: str = "") -> str:
    """Return a metric of each GPU of the jobs, with the job."""
    value = f"max by (node, gpu) ({name}{more})"
    return f"{job_panels.HOLDERS} * on (node, gpu) group_left () {value}"


def _of_gpus(name: str, more: str = "") -> str:
    """Return a metric of each GPU of the jobs, with its index in place of its UUID, and the job."""
    with_indexes = query.with_index(_of_held_gpus(name, more))
    return f"max by (node, index, {job_panels.JOB_LABELS}) ({with_indexes})"


def _against_median(ident: int, title: str, about: str, name: str, more: str = "") -> panels.Panel:
    gpus = _of_gpus(name, more)
    median = f"quantile by (tenant, workload) (0.5, {gpus})"
    return panels.lines(
        ident,
        title,
        about,
        query.build_query(query.lowest(gpus), legend="{{node}}, {{index}}"),
        query.build_query(query.highest(median), legend=f"median, {BY_JOB}"),
    )


def _summary() -> Iterator[panels.Panel]:
    late = query.build_query(
        f"count(min by ({job_panels.JOB_LABELS}) {STRAGGLERS} < -0.2) or vector(0)", query.COUNT
    )
    held_gpus, free = (
        query.build_query(
            f"count(max by (node, gpu) (railscope_gpu_claims) {claims} 0) or vector(0)", query.COUNT
        )
        for claims in (">", "==")
    )
    stale = query.build_query(f"sum(railscope_job_stale_gpus{job_panels.SELECTED_JOBS})")
    active = query.build_query(f"avg({_of_gpus('railscope_gpu_sm_activity_ratio')})")
    suppressed = query.build_query("sum(railscope_cluster_suppressed_jobs)")
    listed = f"count(count by ({job_panels.JOB_LABELS}) (railscope_job_gpus)) or vector(0)"
    jobs = query.build_query(f"({listed}) + {suppressed.expression}", query.COUNT)
    unclaimed = query.build_query("sum(railscope_gpu_unclaimed_processes)")
    yield from (
        panels.number(109, "Jobs", "Jobs that hold GPUs.", jobs),
        panels.number(110, "Jobs with a straggler", "Jobs with a GPU or a port 20 % below their median.", late, panels.NONE_IS_GOOD),
        panels.number(101, "GPUs held", "GPUs held by jobs and other claims.", held_gpus),
        panels.number(102, "GPUs free", "GPUs without a holder.", free),
        panels.number(103, "Used without a claim", "Processes on GPUs without a claim.", unclaimed, panels.NONE_IS_GOOD),
        panels.number(111, "GPUs on stale nodes", "GPUs of jobs whose nodes are stale.", stale, panels.NONE_IS_GOOD),
        panels.number(107, "SM activity", "Mean share of cycles, of the jobs' GPUs.", active),
        panels.number(112, "Suppressed jobs", "Jobs beyond the maximum that the collector exposes.", suppressed, panels.NONE_IS_GOOD),
    )  # fmt: skip


def _jobs() -> Iterator[panels.Panel]:
    columns = job_panels.job_columns(job_panels.JOB_LABELS, job_panels.SELECTED_JOBS)
    about = (
        "GPUs and activity of each now. In pause: its worst port; furthest behind: its worst GPU."
    )
    active = query.mean(
        "railscope_job_mean_gpu_sm_activity_ratio",
        job_panels.JOB_LABELS,
        selector=job_panels.SELECTED_JOBS,
    )
    yield from (
        panels.rows(501, "Jobs", about, job_panels.JOB, *columns, span=24),
        panels.lines(502, "SM activity", "Means over the GPUs of each job; the ten busiest.", query.build_query(f"topk(10, {active})", legend=BY_JOB)),
        panels.layers(503, "Power", "Total of the GPUs of each job; the ten highest.", _top_jobs("sum_gpu_power_watts")),
        panels.lines(504, "RDMA traffic out", "Of the ports on the rails of each job's GPUs; the ten with most.", _top_jobs("sum_rdma_transmit_bytes_per_second")),
    )  # fmt: skip


def _stragglers() -> Iterator[panels.Panel]:
    found = query.build_query(
        f"bottomk(30, max by (tenant, workload, measure, node, gpu) {STRAGGLERS})"
    )
    yield panels.rows(
        601,
        "The GPU of each job that is furthest behind",
        "Against the median of its job over all nodes. Ranks in step wait for the slowest, so check the clock and the port too.",
        {"tenant": "Tenant", "workload": "Job", "measure": "By", "node": "Node", "gpu": "GPU"},
        panels.Column("Deviation from the median", found, panels.BELOW_OTHERS, worst="lowest"),
    )
    behind = f"topk(10, 0 - min by (tenant, workload, measure) {STRAGGLERS})"
    sent = query.with_port_rail("rate(railscope_rdma_transmit_bytes_total[$__rate_interval])")
    ports = query.lowest(f"sum by (node, rail) ({sent}) {job_panels.ON_ITS_RAILS}")
    yield from (
        panels.lines(602, "Deviation of stragglers from the median of their jobs", "The ten worst.", query.build_query(behind, query.SHARE, f"{BY_JOB}, {{{{measure}}}}"), span=12),
        _against_median(603, "SM activity of the jobs' GPUs", "The ten that are least active now, and the median of their jobs.", "railscope_gpu_sm_activity_ratio"),
        _against_median(604, "SM clock of the jobs' GPUs", "The ten that are slowest now, and the median of their jobs.", "railscope_gpu_clock_hertz", '{clock="sm"}'),
        panels.lines(605, "RDMA out of the jobs' ports", "The ten that send least now.", query.build_query(ports, legend="{{node}}, rail {{rail}}")),
    )  # fmt: skip


def _holders() -> Iterator[panels.Panel]:
    held_gpus = query.build_query(
        "sum by (tenant) (railscope_tenant_held_gpus)", legend="{{tenant}}"
    )
    tensor = query.mean("railscope_tenant_mean_gpu_tensor_activity_ratio", "tenant")
    activity, power = (
        query.build_query(_of_held_gpus(f"railscope_gpu_{name}"))
        for name in ("sm_activity_ratio", "power_watts")
    )
    yield from (
        panels.layers(401, "GPUs held by tenant", "A share of a GPU counts as that share.", held_gpus, span=12),
        panels.lines(402, "Tensor activity by tenant", "Mean of the held GPUs.", query.build_query(tensor, legend="{{tenant}}"), span=12),
    )  # fmt: skip
    yield panels.rows(
        405,
        "Holders of each GPU",
        "A shared GPU has a row per holder; its activity is that of all of them.",
        {"node": "Node", "gpu": "GPU", **job_panels.JOB},
        panels.Column("Held", query.build_query(job_panels.HOLDERS, query.COUNT)),
        panels.Column("SM activity", activity, worst="lowest"),
        panels.Column("Power", power),
        span=24,
    )


SECTIONS = (
    ("", _summary),
    ("Which jobs run, for which tenant, and how busy are they?", _jobs),
    ("Which GPU or port is behind the others of its job?", _stragglers),
    ("What is the cause?", job_panels.cause_panels),
    ("Which job holds which GPUs?", _holders),
    ("Which GPU or port is behind the others of its node?", job_panels.stragglers),
    ("What slows nodes down?", job_panels.causes),
)
