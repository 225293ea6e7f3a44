"""GPU time and jobs, as reported by the collector: in total, per tenant, against quotas, per job.

A job is the workload named in claims (railscope.catalog.tenancy): a Slurm job, a pod, a virtual machine,
or the name of a manual claim. It is identified by its tenant, the source that names it, and that name,
over all nodes. The label of the name is `workload`, as in claims: Prometheus has a label `job` of its
own, which identifies scrape configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# fmt: off
from railscope.catalog import declare, entities, gpu, nic, rdma

_CLUSTER = declare.MetricTable(entities.CLUSTER, detail=declare.BASIC)
_TENANT = declare.MetricTable(entities.TENANT, detail=declare.BASIC)
_JOB = declare.MetricTable(entities.JOB, detail=declare.BASIC)

LEDGER = "Counts from the first evidence; late evidence moves time from unknown to observed."
STATES = (
    "observed (held and sampled), inferred (held, not sampled), review (of days of release 0.3.0: held by evidence under review), idle (free and sampled), reserved, stranded (a "
    "rest that MIG cannot use), system, maintenance, down, unclaimed (used without a claim), unknown"
)
COUNTED = "Counts from the first evidence; a few minutes behind, and late evidence corrects it."
GPU_TIME = _CLUSTER.gauge("railscope_cluster_gpu_time_seconds", f"GPU time by state so far: {STATES}.", "claims, administrators' files and frames of the GPU source", about=entities.GPU_TIME_STATE, scale=declare.NANO, resets=LEDGER)
GPU_CAPACITY = _CLUSTER.gauge("railscope_cluster_gpu_capacity_seconds", "Available GPU time: every known GPU from its first evidence to now, or until it retired.", "frames of the GPU source, retired file", scale=declare.NANO, resets=LEDGER)
TENANT_GPU_TIME = _TENANT.gauge("railscope_tenant_gpu_time_seconds", "GPU time of a tenant by state; the states are those of railscope_cluster_gpu_time_seconds.", "claims, administrators' files and frames of the GPU source", about=entities.TENANT_STATE, scale=declare.NANO, resets=LEDGER)
TENANT_ENERGY = _TENANT.gauge("railscope_tenant_energy_joules", "Energy that GPUs used while the tenant held them.", "railscope_gpu_energy_joules_total, by claims", scale=declare.MILLI, resets=COUNTED)
TENANT_BUSY = _TENANT.gauge("railscope_tenant_gpu_busy_time_seconds", "Time in which GPUs computed while the tenant held them.", "railscope_gpu_busy_seconds_total, by claims", scale=declare.NANO, resets=COUNTED)
TENANT_MEMORY = _TENANT.gauge("railscope_tenant_gpu_memory_used_byte_seconds", "GPU memory in use times time, while the tenant held the GPUs.", "railscope_gpu_memory_used_byte_seconds_total, by claims", scale=declare.KIBI, resets=COUNTED)
TENANT_RECEIVED = _TENANT.gauge("railscope_tenant_network_received_bytes", "Bytes received by the ports on the rails of GPUs while the tenant held them.", "railscope_rdma_receive_bytes_total, else railscope_nic_receive_bytes_total, by claims", resets=COUNTED)
TENANT_TRANSMITTED = _TENANT.gauge("railscope_tenant_network_transmitted_bytes", "Bytes sent by the ports on the rails of GPUs while the tenant held them.", "railscope_rdma_transmit_bytes_total, else railscope_nic_transmit_bytes_total, by claims", resets=COUNTED)
TENANT_GPUS = _TENANT.gauge("railscope_tenant_held_gpus", "GPUs that the tenant holds now; parts of a GPU count as parts.", "claims", scale=declare.per(840))
QUOTA_TIME = _TENANT.gauge("railscope_tenant_quota_gpu_time_seconds", "GPU time that the tenant may hold in the current day or month (UTC).", "quotas file", about=entities.TENANT_PERIOD, scale=declare.NANO)
QUOTA_TIME_USED = _TENANT.gauge("railscope_tenant_quota_used_gpu_time_seconds", "GPU time that the tenant has held in the present day or month (UTC).", "claims and frames of the GPU source", about=entities.TENANT_PERIOD, scale=declare.NANO)
QUOTA_GPUS = _TENANT.gauge("railscope_tenant_quota_gpus", "GPUs that the tenant may hold at once.", "quotas file")
QUOTA_GPUS_USED = _TENANT.gauge("railscope_tenant_quota_used_gpus", "GPUs that a tenant with such a quota holds now; parts of a GPU count as parts.", "claims", scale=declare.per(840))

# Jobs --------------------------------------------------------------------------------------------
_CLAIMS = "collector, claims in force"
JOB_GPUS = _JOB.gauge("railscope_job_gpus", "GPUs that the job holds; a part of a GPU counts as that part.", _CLAIMS)
JOB_NODES = _JOB.gauge("railscope_job_nodes", "Nodes on which the job holds GPUs.", _CLAIMS)
JOB_STALE_GPUS = _JOB.gauge("railscope_job_stale_gpus", "GPUs of the job on stale nodes; the roll-ups are without them.", _CLAIMS)
JOB_SHARED_GPUS = _JOB.gauge("railscope_job_shared_gpus", "GPUs that the job shares with other jobs; the roll-ups exclude them, because readings of the GPU cannot be assigned to a job.", _CLAIMS)
JOB_START = _JOB.gauge("railscope_job_start_time_seconds", "Start of the earliest claim of the job that is in force, since the Unix epoch.", _CLAIMS, scale=declare.NANO)
STRAGGLER_DEVIATION = _JOB.gauge("railscope_job_straggler_deviation_ratio", "Deviation of the slowest GPU of the job from the median of the job, by means over about a minute: -0.3 is 30 % below it. Absent if fewer than two GPUs report or the median is 0.", "collector, railscope_gpu_sm_activity_ratio, railscope_gpu_clock_hertz and railscope_rdma_transmit_bytes_total of the ports on the GPU's rail", about=entities.STRAGGLER, valid=(-10, 10**6))
HOLDER_INFO = _CLUSTER.info("railscope_gpu_holder_info", "Workload that holds the GPU, or a part of it, and its tenant.", _CLAIMS, about=entities.GPU_HOLDER)
CLUSTER_JOBS = _CLUSTER.gauge("railscope_cluster_jobs", "Jobs that hold GPUs.", _CLAIMS)
SUPPRESSED_JOBS = _CLUSTER.gauge("railscope_cluster_suppressed_jobs", "Jobs that hold GPUs and are not reported individually, because there are more than max_jobs.", _CLAIMS)
_RDMA = {metric.name: metric for metric in rdma.RDMA_COUNTERS}
RDMA_SENT = _RDMA["railscope_rdma_transmit_bytes_total"]
RDMA_RECEIVED = _RDMA["railscope_rdma_receive_bytes_total"]
_SPREAD = (declare.Rollup.MEAN, declare.Rollup.COUNT, declare.Rollup.MIN, declare.Rollup.MAX)
BY_JOB: Mapping[declare.Metric, tuple[declare.Rollup, ...]] = {
    gpu.GPU_UTILIZATION: (declare.Rollup.MEAN, declare.Rollup.COUNT, declare.Rollup.MAX),
    gpu.GPU_SM_ACTIVITY: _SPREAD,
    gpu.GPU_TENSOR_ACTIVITY: _SPREAD,
    gpu.GPU_POWER: (declare.Rollup.SUM,),
    gpu.GPU_MEMORY_USED: (declare.Rollup.SUM,),
    gpu.GPU_TEMPERATURE: (declare.Rollup.MAX,),
    RDMA_SENT: (declare.Rollup.SUM,),
    RDMA_RECEIVED: (declare.Rollup.SUM,),
    nic.SENT: (declare.Rollup.SUM,),
    nic.RECEIVED: (declare.Rollup.SUM,),
    nic.PFC_RECEIVED_TIME: (declare.Rollup.MAX,),
    nic.PFC_SENT_TIME: (declare.Rollup.MAX,),
}
"""Roll-ups over the GPUs that a job holds exclusively, and the ports on their rails.

Few, as every job of a cluster has all of them.
"""


class StragglerMeasure(NamedTuple):
    """Quantity by which GPUs of a job are compared."""

    title: str
    metric: declare.Metric
    part: tuple[str, ...] = ()


STRAGGLER_MEASURES: Mapping[str, StragglerMeasure] = {
    "sm_activity": StragglerMeasure("SM busy", gpu.GPU_SM_ACTIVITY),
    "sm_clock": StragglerMeasure("SM clock", gpu.GPU_CLOCK_SPEED, ("sm",)),
    "rdma_transmit": StragglerMeasure("RDMA sent", RDMA_SENT),
}
"""Ranks in lockstep wait for the slowest, and are then no busier than it: its clock reveals it, too."""
