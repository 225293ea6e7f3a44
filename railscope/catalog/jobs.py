"""Jobs as reported by the collector: their GPUs, utilization, and the slowest rank.

A job is the workload named in claims (railscope.catalog.tenancy): a Slurm job, a pod, a virtual machine,
or the name of a manual claim. It is identified by its tenant, the source that names it, and that name,
over all nodes. The label of the name is `workload`, as in claims: Prometheus has a label `job` of its
own, which identifies scrape configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from railscope.catalog import gpu, gpu_activity, nic
from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import CLUSTER, GPU_HOLDER, JOB, STRAGGLER
from railscope.catalog.rdma import RDMA_COUNTERS

_CLAIMS = "collector, claims in force"

JOB_GPUS = Metric(
    "railscope_job_gpus",
    Kind.GAUGE,
    JOB,
    help="GPUs that the job holds; a part of a GPU counts as that part.",
    origin=_CLAIMS,
)
JOB_NODES = Metric(
    "railscope_job_nodes",
    Kind.GAUGE,
    JOB,
    help="Nodes on which the job holds GPUs.",
    origin=_CLAIMS,
)
JOB_STALE_GPUS = Metric(
    "railscope_job_stale_gpus",
    Kind.GAUGE,
    JOB,
    help="GPUs of the job on stale nodes; the roll-ups are without them.",
    origin=_CLAIMS,
)
JOB_SHARED_GPUS = Metric(
    "railscope_job_shared_gpus",
    Kind.GAUGE,
    JOB,
    help="GPUs that the job holds a part of while other jobs hold other parts; the roll-ups are "
    "without them, as nobody can tell whose the readings of the GPU are.",
    origin=_CLAIMS,
)
JOB_START = Metric(
    "railscope_job_start_time_seconds",
    Kind.GAUGE,
    JOB,
    unit=Unit.SECONDS,
    scale=per(10**9),
    help="When the earliest claim of the job that is in force began, since the Unix epoch.",
    origin=_CLAIMS,
)
STRAGGLER_DEVIATION = Metric(
    "railscope_job_straggler_deviation_ratio",
    Kind.GAUGE,
    STRAGGLER,
    unit=Unit.RATIO,
    help="How far the GPU of the job that is furthest behind is from the median of the job, by means "
    "over about a minute: -0.3 is 30 % below it. There is none where fewer than two GPUs tell, or the "
    "median is nothing.",
    origin="collector, railscope_gpu_sm_activity_ratio, railscope_gpu_clock_hertz and "
    "railscope_rdma_transmit_bytes_total of the ports on the GPU's rail",
)
HOLDER_INFO = Metric(
    "railscope_gpu_holder_info",
    Kind.INFO,
    GPU_HOLDER,
    help="What holds the GPU, or a part of it, and for which tenant.",
    origin=_CLAIMS,
)
JOBS = Metric(
    "railscope_cluster_jobs",
    Kind.GAUGE,
    CLUSTER,
    help="Jobs that hold GPUs.",
    origin=_CLAIMS,
)
SUPPRESSED_JOBS = Metric(
    "railscope_cluster_suppressed_jobs",
    Kind.GAUGE,
    CLUSTER,
    help="Jobs that hold GPUs and are not reported individually, as there are more than max_jobs.",
    origin=_CLAIMS,
)

_RDMA = {metric.name: metric for metric in RDMA_COUNTERS}
RDMA_SENT = _RDMA["railscope_rdma_transmit_bytes_total"]
RDMA_RECEIVED = _RDMA["railscope_rdma_receive_bytes_total"]
_SPREAD = (Rollup.MEAN, Rollup.MIN, Rollup.MAX)

BY_JOB: Mapping[Metric, tuple[Rollup, ...]] = {
    gpu.GPU_UTILIZATION: (Rollup.MEAN, Rollup.MAX),
    gpu_activity.GPU_SM_ACTIVITY: _SPREAD,
    gpu_activity.GPU_TENSOR_ACTIVITY: _SPREAD,
    gpu.GPU_POWER: (Rollup.SUM,),
    gpu.GPU_MEMORY_USED: (Rollup.SUM,),
    gpu.GPU_TEMPERATURE: (Rollup.MAX,),
    RDMA_SENT: (Rollup.SUM,),
    RDMA_RECEIVED: (Rollup.SUM,),
    nic.SENT: (Rollup.SUM,),
    nic.RECEIVED: (Rollup.SUM,),
    nic.PFC_RECEIVED_TIME: (Rollup.MAX,),
    nic.PFC_SENT_TIME: (Rollup.MAX,),
}
"""Roll-ups over the GPUs that a job holds exclusively, and the ports on their rails.

Few, as every job of a cluster has all of them.
"""


class Measure(NamedTuple):
    """Quantity by which GPUs of a job are compared."""

    metric: Metric
    part: tuple[str, ...] = ()


STRAGGLER_MEASURES: Mapping[str, Measure] = {
    "sm_activity": Measure(gpu_activity.GPU_SM_ACTIVITY),
    "sm_clock": Measure(gpu.GPU_CLOCK_SPEED, ("sm",)),
    "rdma_transmit": Measure(RDMA_SENT),
}
"""Ranks in lockstep wait for the slowest, and are then no busier than it: its clock reveals it, too."""
