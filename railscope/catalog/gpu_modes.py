"""Modes of GPUs."""

from railscope.catalog.declare import Kind, Metric, Rollup, Unit
from railscope.catalog.entities import (
    GPU,
)

GPU_PERSISTENCE = Metric(
    "railscope_gpu_persistence_enabled",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.MIN,),
    help="Whether the driver keeps the GPU initialised while nobody uses it (1) or not (0).",
    origin="nvmlDeviceGetPersistenceMode",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PERSISTENCE_MODE"},
)
GPU_COMPUTE_MODE = Metric(
    "railscope_gpu_compute_mode",
    Kind.STATE,
    GPU,
    states={0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"},
    help="How many processes may use the GPU at once.",
    origin="nvmlDeviceGetComputeMode",
)
GPU_ACCOUNTING = Metric(
    "railscope_gpu_accounting_enabled",
    Kind.GAUGE,
    GPU,
    help="Whether the driver keeps accounts of processes (1) or not (0).",
    origin="nvmlDeviceGetAccountingMode",
)
GPU_CONFIDENTIAL = Metric(
    "railscope_gpu_confidential_compute_enabled",
    Kind.GAUGE,
    GPU,
    since="Hopper",
    help="Whether the server runs its GPUs in confidential-compute mode (1) or not (0).",
    origin="nvmlSystemGetConfComputeState ccFeature",
)
GPU_PROTECTED_SIZE = Metric(
    "railscope_gpu_protected_memory_size_bytes",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES,
    help="GPU memory that confidential computing protects; 0 where it is off.",
    origin="nvmlDeviceGetConfComputeProtectedMemoryUsage (bytes)",
)
GPU_PROTECTED_USED = Metric(
    "railscope_gpu_protected_memory_used_bytes",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES,
    help="GPU memory that confidential computing protects and that processes hold.",
    origin="nvmlDeviceGetConfComputeProtectedMemoryUsage (bytes)",
)
GPU_GSP = Metric(
    "railscope_gpu_gsp_firmware_enabled",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.MIN,),
    help="Whether firmware on the GPU's own processor, the GSP, does the driver's work (1) or the driver does (0).",
    origin="nvmlDeviceGetGspFirmwareMode",
)
