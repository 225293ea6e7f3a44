"""Users of a shared GPU: MIG instances, virtual GPUs, processes."""

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import GPU, GPU_PROCESS, MIG, VGPU
from railscope.catalog.gpu import AGENT_START, KIBIBYTE_SECONDS

GPU_MIG_MODE = Metric(
    "railscope_gpu_mig_enabled",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    since="Ampere",
    help="Whether the GPU is in MIG mode, to be cut into instances (1), or not (0).",
    origin="nvmlDeviceGetMigMode current",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_MIG_MODE"},
)
GPU_MIG_PENDING = Metric(
    "railscope_gpu_mig_pending",
    Kind.GAUGE,
    GPU,
    since="Ampere",
    help="Whether the GPU will be in MIG mode after the next reset (1) or not (0).",
    origin="nvmlDeviceGetMigMode pending",
)
GPU_MIG_DEVICES = Metric(
    "railscope_gpu_mig_devices",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    since="Ampere",
    help="MIG devices on the GPU: compute instances.",
    origin="nvmlDeviceGetMigDeviceHandleByIndex",
)
GPU_SHARING = Metric(
    "railscope_gpu_sharing",
    Kind.STATE,
    GPU,
    states={0: "unused", 1: "exclusive", 2: "time_slicing", 3: "mps", 4: "mig", 5: "vgpu"},
    help="How the GPU is shared now, as its mode and its processes show.",
    origin="nvmlDeviceGetMigMode, nvmlDeviceGetActiveVgpus, nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses",
)
MIG_INFO = Metric(
    "railscope_mig_info",
    Kind.INFO,
    MIG,
    help="What this MIG device is: profile, GPU instance, compute instance.",
    origin="nvmlDeviceGetName, nvmlDeviceGetAttributes_v2, nvmlDeviceGetGpuInstanceId, nvmlDeviceGetComputeInstanceId",
)
MIG_MEMORY_SIZE = Metric(
    "railscope_mig_memory_size_bytes",
    Kind.GAUGE,
    MIG,
    unit=Unit.BYTES,
    help="Memory of the GPU instance.",
    origin="nvmlDeviceGetMemoryInfo v2 total of the MIG device (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FB_TOTAL"},
)
MIG_MEMORY_USED = Metric(
    "railscope_mig_memory_used_bytes",
    Kind.GAUGE,
    MIG,
    unit=Unit.BYTES,
    help="Memory of the GPU instance that processes hold.",
    origin="nvmlDeviceGetMemoryInfo v2 used of the MIG device (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FB_USED, DCGM_FI_DEV_FB_USED_PERCENT"},
)
MIG_MEMORY_USED_TIME = Metric(
    "railscope_mig_memory_used_byte_seconds_total",
    Kind.COUNTER,
    MIG,
    unit=Unit.BYTE_SECONDS,
    scale=KIBIBYTE_SECONDS,
    resets=AGENT_START,
    help="Memory of the GPU instance times how long processes held it, summed by the agent.",
    origin="nvmlDeviceGetMemoryInfo v2 used of the MIG device (bytes) x time since the sample before, if at most 30 s",
)
MIG_MEMORY_FREE = Metric(
    "railscope_mig_memory_free_bytes",
    Kind.GAUGE,
    MIG,
    unit=Unit.BYTES,
    help="Memory of the GPU instance that no one holds.",
    origin="nvmlDeviceGetMemoryInfo v2 free of the MIG device (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FB_FREE"},
)
MIG_MEMORY_RESERVED = Metric(
    "railscope_mig_memory_reserved_bytes",
    Kind.GAUGE,
    MIG,
    unit=Unit.BYTES,
    help="Memory of the GPU instance that the driver keeps for itself.",
    origin="nvmlDeviceGetMemoryInfo v2 reserved of the MIG device (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FB_RESERVED"},
)
MIG_BAR1_SIZE = Metric(
    "railscope_mig_bar1_size_bytes",
    Kind.GAUGE,
    MIG,
    unit=Unit.BYTES,
    help="BAR1 address space of the MIG device.",
    origin="nvmlDeviceGetBAR1MemoryInfo of the MIG device (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_BAR1_TOTAL, DCGM_FI_DEV_BAR1_FREE"},
)
MIG_BAR1_USED = Metric(
    "railscope_mig_bar1_used_bytes",
    Kind.GAUGE,
    MIG,
    unit=Unit.BYTES,
    help="BAR1 address space of the MIG device that is mapped.",
    origin="nvmlDeviceGetBAR1MemoryInfo of the MIG device (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_BAR1_FREE, DCGM_FI_DEV_BAR1_USED"},
)
MIG_MULTIPROCESSORS = Metric(
    "railscope_mig_multiprocessors",
    Kind.GAUGE,
    MIG,
    help="SMs of the MIG device.",
    origin="nvmlDeviceGetAttributes_v2 multiprocessorCount",
)
MIG_GPU_SLICES = Metric(
    "railscope_mig_gpu_instance_slices",
    Kind.GAUGE,
    MIG,
    help="Slices of the GPU that the GPU instance takes.",
    origin="nvmlDeviceGetAttributes_v2 gpuInstanceSliceCount",
)
MIG_COMPUTE_SLICES = Metric(
    "railscope_mig_compute_instance_slices",
    Kind.GAUGE,
    MIG,
    help="Slices of the GPU instance that the compute instance takes.",
    origin="nvmlDeviceGetAttributes_v2 computeInstanceSliceCount",
)
MIG_ECC_ERRORS = Metric(
    "railscope_mig_ecc_uncorrected_errors_total",
    Kind.COUNTER,
    MIG,
    unit=Unit.ERRORS,
    resets="Counts from the making of the instance.",
    help="Uncorrected errors of on-chip memory of the MIG device.",
    origin="nvmlDeviceGetTotalEccErrors uncorrected, volatile, of the MIG device",
)
MIG_PROCESSES = Metric(
    "railscope_mig_processes",
    Kind.GAUGE,
    MIG,
    help="Processes on the MIG device.",
    origin="nvmlDeviceGetComputeRunningProcesses of the MIG device",
)
GPU_PROCESSES = Metric(
    "railscope_gpu_processes",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    help="Processes on the GPU, reported individually or not.",
    origin="nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses",
)
GPU_SUPPRESSED_PROCESSES = Metric(
    "railscope_gpu_suppressed_processes",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    help="Processes on the GPU that are not reported individually: too many, or too short-lived.",
    origin="those beyond the bound, by memory",
)
PROCESS_INFO = Metric(
    "railscope_gpu_process_info",
    Kind.INFO,
    GPU_PROCESS,
    help="What this process is: name, kind of context, MIG instance.",
    origin="nvmlDeviceGetComputeRunningProcesses, /proc/PID/comm",
)
PROCESS_MEMORY = Metric(
    "railscope_gpu_process_memory_used_bytes",
    Kind.GAUGE,
    GPU_PROCESS,
    unit=Unit.BYTES,
    help="GPU memory the process holds.",
    origin="nvmlDeviceGetComputeRunningProcesses usedGpuMemory (bytes)",
)
PROCESS_SM = Metric(
    "railscope_gpu_process_sm_utilization_ratio",
    Kind.GAUGE,
    GPU_PROCESS,
    unit=Unit.RATIO,
    scale=per(100),
    help="Share of time in which kernels of the process ran; a process without a sample was idle.",
    origin="nvmlDeviceGetProcessUtilization smUtil (percent)",
)
PROCESS_MEMORY_ACTIVITY = Metric(
    "railscope_gpu_process_memory_activity_ratio",
    Kind.GAUGE,
    GPU_PROCESS,
    unit=Unit.RATIO,
    scale=per(100),
    help="Share of time in which the process read or wrote GPU memory.",
    origin="nvmlDeviceGetProcessUtilization memUtil (percent)",
)
GPU_VGPUS = Metric(
    "railscope_gpu_vgpus",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    help="Virtual GPUs that run on this GPU.",
    origin="nvmlDeviceGetActiveVgpus",
)
VGPU_INFO = Metric(
    "railscope_vgpu_info",
    Kind.INFO,
    VGPU,
    help="What this virtual GPU is: type and virtual machine.",
    origin="nvmlVgpuInstanceGetType, nvmlVgpuTypeGetName, nvmlVgpuInstanceGetVmID",
)
VGPU_MEMORY = Metric(
    "railscope_vgpu_memory_used_bytes",
    Kind.GAUGE,
    VGPU,
    unit=Unit.BYTES,
    help="GPU memory the virtual GPU uses.",
    origin="nvmlVgpuInstanceGetFbUsage (bytes)",
)
VGPU_UTILIZATION = Metric(
    "railscope_vgpu_sm_utilization_ratio",
    Kind.GAUGE,
    VGPU,
    unit=Unit.RATIO,
    scale=per(100),
    help="Share of time in which kernels of the virtual GPU ran.",
    origin="nvmlDeviceGetVgpuUtilization smUtil (percent)",
)
