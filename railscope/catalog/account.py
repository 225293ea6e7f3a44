"""GPU time as reported by the collector: in total, per tenant, and against quotas."""

from fractions import Fraction

from railscope.catalog.declare import Kind, Metric, Unit, per
from railscope.catalog.entities import CLUSTER, GPU_TIME_STATE, TENANT, TENANT_PERIOD, TENANT_STATE

LEDGER = "Counts from the first evidence; late evidence moves time from unknown to observed."
STATES = (
    "observed (held and seen), inferred (held, not seen), review (held by evidence that waits for a person), idle (free and seen), reserved, stranded (a "
    "rest that MIG cannot use), system, maintenance, down, unclaimed (used without a claim), unknown"
)
COUNTED = "Counts from the first evidence; a few minutes behind, and late evidence corrects it."
NANOSECOND = per(10**9)

GPU_TIME = Metric(
    "railscope_cluster_gpu_time_seconds",
    Kind.GAUGE,
    GPU_TIME_STATE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=LEDGER,
    help=f"GPU time by state so far: {STATES}.",
    origin="claims, administrators' files and frames of the GPU source",
)
GPU_CAPACITY = Metric(
    "railscope_cluster_gpu_capacity_seconds",
    Kind.GAUGE,
    CLUSTER,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=LEDGER,
    help="GPU time there was: every known GPU from its first evidence to now, or until it retired.",
    origin="frames of the GPU source, retired file",
)
TENANT_GPU_TIME = Metric(
    "railscope_tenant_gpu_time_seconds",
    Kind.GAUGE,
    TENANT_STATE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=LEDGER,
    help="GPU time of a tenant by state; the states are those of railscope_cluster_gpu_time_seconds.",
    origin="claims, administrators' files and frames of the GPU source",
)
TENANT_ENERGY = Metric(
    "railscope_tenant_energy_joules",
    Kind.GAUGE,
    TENANT,
    unit=Unit.JOULES,
    scale=per(1000),
    resets=COUNTED,
    help="Energy that GPUs used while the tenant held them.",
    origin="railscope_gpu_energy_joules_total, by claims",
)
TENANT_BUSY = Metric(
    "railscope_tenant_gpu_busy_time_seconds",
    Kind.GAUGE,
    TENANT,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=COUNTED,
    help="Time in which GPUs computed while the tenant held them.",
    origin="railscope_gpu_busy_seconds_total, by claims",
)
TENANT_MEMORY = Metric(
    "railscope_tenant_gpu_memory_used_byte_seconds",
    Kind.GAUGE,
    TENANT,
    unit=Unit.BYTE_SECONDS,
    scale=Fraction(1024),
    resets=COUNTED,
    help="GPU memory in use times time, while the tenant held the GPUs.",
    origin="railscope_gpu_memory_used_byte_seconds_total, by claims",
)
TENANT_RECEIVED = Metric(
    "railscope_tenant_network_received_bytes",
    Kind.GAUGE,
    TENANT,
    unit=Unit.BYTES,
    resets=COUNTED,
    help="Bytes received by the ports on the rails of GPUs while the tenant held them.",
    origin="railscope_rdma_receive_bytes_total, else railscope_nic_receive_bytes_total, by claims",
)
TENANT_TRANSMITTED = Metric(
    "railscope_tenant_network_transmitted_bytes",
    Kind.GAUGE,
    TENANT,
    unit=Unit.BYTES,
    resets=COUNTED,
    help="Bytes sent by the ports on the rails of GPUs while the tenant held them.",
    origin="railscope_rdma_transmit_bytes_total, else railscope_nic_transmit_bytes_total, by claims",
)
TENANT_GPUS = Metric(
    "railscope_tenant_held_gpus",
    Kind.GAUGE,
    TENANT,
    scale=per(840),
    help="GPUs that the tenant holds now; parts of a GPU count as parts.",
    origin="claims",
)
QUOTA_TIME = Metric(
    "railscope_tenant_quota_gpu_time_seconds",
    Kind.GAUGE,
    TENANT_PERIOD,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    help="GPU time that the tenant may hold in the present day or month (UTC).",
    origin="quotas file",
)
QUOTA_TIME_USED = Metric(
    "railscope_tenant_quota_used_gpu_time_seconds",
    Kind.GAUGE,
    TENANT_PERIOD,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    help="GPU time that the tenant has held in the present day or month (UTC).",
    origin="claims and frames of the GPU source",
)
QUOTA_GPUS = Metric(
    "railscope_tenant_quota_gpus",
    Kind.GAUGE,
    TENANT,
    help="GPUs that the tenant may hold at once.",
    origin="quotas file",
)
