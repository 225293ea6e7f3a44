"""The dashboard of jobs: running jobs, holders of GPUs, and the GPU or port that delays the others."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import job_panels
from dashboards.dashboard_parts import DashboardVariable, assemble, claim_marks, xid_marks
from dashboards.panels import BELOW_OTHERS, NONE_IS_GOOD, Column, Panel, layers, lines, number, rows
from dashboards.query import COUNT, SHARE, ask, highest, lowest, with_index, with_port_rail

UID = "railscope-jobs"
QUESTION = "Which jobs run, and which GPU or port does each wait for?"
CHOICES = (
    DashboardVariable("tenant", "Tenant", "railscope_job_gpus", several=True),
    DashboardVariable("workload", "Job", 'railscope_job_gpus{tenant=~"$tenant"}', several=True),
    DashboardVariable("node", "Node", "railscope_node_info", several=True),
)


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return assemble(
        "Jobs and stragglers",
        UID,
        QUESTION,
        SECTIONS,
        choices=CHOICES,
        marks=(claim_marks(job_panels.NODES), xid_marks(job_panels.NODES)),
        tags=("gpu", "job"),
    )


def _of_jobs(how: str, name: str, where: str = job_panels.SELECTED_JOBS) -> str:
    """Return a metric of each job; several collectors may each hold a part of it."""
    return f"{how} by ({job_panels.JOB_LABELS}) (railscope_job_{name}{where})"


def _of_gpus(name: str, more: str = "") -> str:
    """Return a metric of each GPU of the jobs, with its index and the job."""
    return _by_index(_of_held_gpus(name, more))


def _of_held_gpus(name: str, more: str = "") -> str:
    value = f"max by (node, gpu) ({name}{more})"
    return f"{job_panels.HOLDERS} * on (node, gpu) group_left () {value}"


def _by_index(expression: str) -> str:
    """Aggregate by the index of each GPU in its node, in place of its UUID, and the job."""
    return f"max by (node, index, {job_panels.JOB_LABELS}) ({with_index(expression)})"


def _median(name: str, more: str = "") -> str:
    return f"quantile by (tenant, workload) (0.5, {_of_gpus(name, more)})"


def _against_median(ident: int, title: str, about: str, name: str, more: str = "") -> Panel:
    return lines(
        ident,
        title,
        about,
        ask(lowest(_of_gpus(name, more)), legend="{{node}}, {{index}}"),
        ask(highest(_median(name, more)), legend="median, {{tenant}}, {{workload}}"),
    )


def _summary() -> Iterator[Panel]:
    yield number(109, "Jobs", "Jobs that hold GPUs.", ask("sum(railscope_cluster_jobs)"))
    late = f"min by ({job_panels.JOB_LABELS}) (railscope_job_straggler_deviation_ratio{job_panels.SELECTED_JOBS}) < -0.2"
    yield number(
        110,
        "Jobs with a straggler",
        "Jobs with a GPU or a port 20 % below their median.",
        ask(f"count({late}) or vector(0)", COUNT),
        NONE_IS_GOOD,
    )
    yield number(
        101,
        "GPUs held",
        "By jobs and other claims.",
        ask("count(max by (node, gpu) (railscope_gpu_claims) > 0) or vector(0)", COUNT),
    )
    yield number(
        102,
        "GPUs free",
        "GPUs without a holder.",
        ask("count(max by (node, gpu) (railscope_gpu_claims) == 0) or vector(0)", COUNT),
    )
    yield number(
        103,
        "Used without a claim",
        "Processes on GPUs without a claim.",
        ask("sum(railscope_gpu_unclaimed_processes)"),
        NONE_IS_GOOD,
    )
    yield number(
        111,
        "GPUs on stale nodes",
        "GPUs of jobs.",
        ask(f"sum(railscope_job_stale_gpus{job_panels.SELECTED_JOBS})"),
        NONE_IS_GOOD,
    )
    yield number(
        107,
        "SMs at work",
        "Mean share of cycles, of the jobs' GPUs.",
        ask(f"avg({_of_gpus('railscope_gpu_sm_activity_ratio')})"),
    )
    yield number(
        112,
        "Suppressed jobs",
        "Jobs beyond the maximum that the collector exposes.",
        ask("sum(railscope_cluster_suppressed_jobs)"),
        NONE_IS_GOOD,
    )


def _jobs() -> Iterator[Panel]:
    yield rows(
        501,
        "Jobs",
        "GPUs and activity of each now. In pause: its worst port; furthest behind: its worst GPU.",
        job_panels.JOB,
        *job_panels.job_columns(job_panels.JOB_LABELS, job_panels.SELECTED_JOBS),
        span=24,
    )
    legend = "{{tenant}}, {{workload}}"
    yield lines(
        502,
        "SM activity",
        "Means over the GPUs of each job; the ten busiest.",
        ask(f"topk(10, {_of_jobs('avg', 'mean_gpu_sm_activity_ratio')})", legend=legend),
    )
    yield layers(
        503,
        "Power",
        "Of all boards of each job; the ten with the highest.",
        ask(f"topk(10, {_of_jobs('sum', 'sum_gpu_power_watts')})", legend=legend),
    )
    yield lines(
        504,
        "RDMA traffic out",
        "Of the ports on the rails of each job's GPUs; the ten with most.",
        ask(f"topk(10, {_of_jobs('sum', 'sum_rdma_transmit_bytes_per_second')})", legend=legend),
    )


def _stragglers() -> Iterator[Panel]:
    name = "railscope_job_straggler_deviation_ratio"
    found = f"max by (tenant, workload, measure, node, gpu) ({name}{job_panels.SELECTED_JOBS})"
    keys = {"tenant": "Tenant", "workload": "Job", "measure": "By", "node": "Node", "gpu": "GPU"}
    yield rows(
        601,
        "The GPU of each job that is furthest behind",
        "Against the median of its job over all nodes. Ranks in step wait for the slowest, so check "
        "the clock and the port too.",
        keys,
        Column("Against the median", ask(f"bottomk(30, {found})"), BELOW_OTHERS, worst="lowest"),
    )
    yield lines(
        602,
        "How far jobs' stragglers are behind",
        "The ten worst.",
        ask(
            f"topk(10, 0 - min by (tenant, workload, measure) ({name}{job_panels.SELECTED_JOBS}))",
            SHARE,
            "{{tenant}}, {{workload}}, {{measure}}",
        ),
        span=12,
    )
    yield _against_median(
        603,
        "SM activity of the jobs' GPUs",
        "The ten that are least active now, and the median of their jobs.",
        "railscope_gpu_sm_activity_ratio",
    )
    yield _against_median(
        604,
        "SM clock of the jobs' GPUs",
        "The ten that are slowest now, and the median of their jobs.",
        "railscope_gpu_clock_hertz",
        '{clock="sm"}',
    )
    sent = with_port_rail("rate(railscope_rdma_transmit_bytes_total[$__rate_interval])")
    yield lines(
        605,
        "RDMA out of the jobs' ports",
        "The ten that send least now.",
        ask(
            lowest(f"sum by (node, rail) ({sent}) {job_panels.ON_ITS_RAILS}"),
            legend="{{node}}, rail {{rail}}",
        ),
    )


def _holders() -> Iterator[Panel]:
    yield layers(
        401,
        "GPUs held by tenant",
        "A share of a GPU counts as that share.",
        ask("sum by (tenant) (railscope_tenant_held_gpus)", legend="{{tenant}}"),
        span=12,
    )
    yield lines(
        402,
        "Tensor activity by tenant",
        "Mean of the held GPUs.",
        ask(
            "avg by (tenant) (railscope_tenant_mean_gpu_tensor_activity_ratio)", legend="{{tenant}}"
        ),
        span=12,
    )
    place = {"node": "Node", "gpu": "GPU", **job_panels.JOB}
    yield rows(
        405,
        "Who holds which GPU",
        "A shared GPU has a row per holder; its activity is that of all of them.",
        place,
        Column("Held", ask(job_panels.HOLDERS, COUNT)),
        Column(
            "SM activity", ask(_of_held_gpus("railscope_gpu_sm_activity_ratio")), worst="lowest"
        ),
        Column("Power", ask(_of_held_gpus("railscope_gpu_power_watts"))),
        span=24,
    )


SECTIONS = (
    ("", _summary),
    ("Which jobs run, for which tenant, and how busy are they?", _jobs),
    ("Which GPU or port is behind the others of its job?", _stragglers),
    ("What is the cause?", job_panels.cause_panels),
    ("Who holds which GPUs?", _holders),
    ("Which GPU or port is behind the others of its node?", job_panels.stragglers),
    ("What slows nodes down?", job_panels.causes),
)
