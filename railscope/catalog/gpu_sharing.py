"""Users of a shared GPU: MIG instances, virtual GPUs, processes."""

# fmt: off
from railscope.catalog.declare import AGENT_START, BASIC, CENTI, FULL, KIBI, MetricTable
from railscope.catalog.entities import GPU, GPU_PROCESS, MIG, VGPU
from railscope.catalog.gpu import MEMORY

_GPU = MetricTable(GPU, resets=AGENT_START)
_MIG = MetricTable(MIG, resets=AGENT_START)

GPU_MIG_MODE = _GPU.flag("railscope_gpu_mig_enabled", "1 if the GPU is in MIG mode, 0 otherwise.", "nvmlDeviceGetMigMode current", since="Ampere", dcgm="DCGM_FI_DEV_MIG_MODE", detail=FULL)
GPU_MIG_PENDING = _GPU.flag("railscope_gpu_mig_pending", "1 if the GPU will be in MIG mode after the next reset, 0 otherwise.", "nvmlDeviceGetMigMode pending", since="Ampere", detail=FULL)
GPU_MIG_DEVICES = _GPU.gauge("railscope_gpu_mig_devices", "MIG devices on the GPU: compute instances.", "nvmlDeviceGetMigDeviceHandleByIndex", since="Ampere")
GPU_SHARING = _GPU.state("railscope_gpu_sharing", "Sharing of the GPU at present, derived from its mode and its processes.", "nvmlDeviceGetMigMode, nvmlDeviceGetActiveVgpus, nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses", states={0: "unused", 1: "exclusive", 2: "time_slicing", 3: "mps", 4: "mig", 5: "vgpu"})
MIG_INFO = _MIG.info("railscope_mig_info", "Identity of this MIG device: profile, GPU instance, compute instance.", "nvmlDeviceGetName, nvmlDeviceGetAttributes_v2, nvmlDeviceGetGpuInstanceId, nvmlDeviceGetComputeInstanceId")
MIG_MEMORY_SIZE = _MIG.gauge("railscope_mig_memory_size_bytes", "Memory of the GPU instance.", "nvmlDeviceGetMemoryInfo v2 total of the MIG device (bytes)", dcgm="DCGM_FI_DEV_FB_TOTAL", valid=MEMORY)
MIG_MEMORY_USED = _MIG.gauge("railscope_mig_memory_used_bytes", "GPU instance memory in use by processes.", "nvmlDeviceGetMemoryInfo v2 used of the MIG device (bytes)", dcgm="DCGM_FI_DEV_FB_USED, DCGM_FI_DEV_FB_USED_PERCENT", valid=MEMORY)
MIG_MEMORY_USED_TIME = _MIG.counter("railscope_mig_memory_used_byte_seconds_total", "Memory of the GPU instance times how long processes held it, summed by the agent.", "nvmlDeviceGetMemoryInfo v2 used of the MIG device (bytes) x time since the sample before, if at most 30 s", scale=KIBI)
MIG_MEMORY_FREE = _MIG.gauge("railscope_mig_memory_free_bytes", "Free memory of the GPU instance.", "nvmlDeviceGetMemoryInfo v2 free of the MIG device (bytes)", dcgm="DCGM_FI_DEV_FB_FREE", detail=FULL, valid=MEMORY)
MIG_MEMORY_RESERVED = _MIG.gauge("railscope_mig_memory_reserved_bytes", "Memory of the GPU instance that the driver keeps for itself.", "nvmlDeviceGetMemoryInfo v2 reserved of the MIG device (bytes)", dcgm="DCGM_FI_DEV_FB_RESERVED", valid=MEMORY)
MIG_BAR1_SIZE = _MIG.gauge("railscope_mig_bar1_size_bytes", "BAR1 address space of the MIG device.", "nvmlDeviceGetBAR1MemoryInfo of the MIG device (bytes)", dcgm="DCGM_FI_DEV_BAR1_TOTAL, DCGM_FI_DEV_BAR1_FREE")
MIG_BAR1_USED = _MIG.gauge("railscope_mig_bar1_used_bytes", "BAR1 address space of the MIG device that is mapped.", "nvmlDeviceGetBAR1MemoryInfo of the MIG device (bytes)", dcgm="DCGM_FI_DEV_BAR1_FREE, DCGM_FI_DEV_BAR1_USED")
MIG_MULTIPROCESSORS = _MIG.gauge("railscope_mig_multiprocessors", "SMs of the MIG device.", "nvmlDeviceGetAttributes_v2 multiprocessorCount")
MIG_GPU_SLICES = _MIG.gauge("railscope_mig_gpu_instance_slices", "Slices of the GPU that the GPU instance takes.", "nvmlDeviceGetAttributes_v2 gpuInstanceSliceCount")
MIG_COMPUTE_SLICES = _MIG.gauge("railscope_mig_compute_instance_slices", "Slices of the GPU instance that the compute instance takes.", "nvmlDeviceGetAttributes_v2 computeInstanceSliceCount")
MIG_ECC_ERRORS = _MIG.counter("railscope_mig_ecc_uncorrected_errors_total", "Uncorrected errors of on-chip memory of the MIG device.", "nvmlDeviceGetTotalEccErrors uncorrected, volatile, of the MIG device", resets="Counts from the making of the instance.")
MIG_PROCESSES = _MIG.gauge("railscope_mig_processes", "Processes on the MIG device.", "nvmlDeviceGetComputeRunningProcesses of the MIG device")
GPU_PROCESSES = _GPU.gauge("railscope_gpu_processes", "Processes on the GPU, reported individually or not.", "nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses", detail=BASIC)
GPU_SUPPRESSED_PROCESSES = _GPU.gauge("railscope_gpu_suppressed_processes", "Processes on the GPU that are not reported individually: too many, or too short-lived.", "those beyond the bound, by memory")
PROCESS_INFO = _GPU.info("railscope_gpu_process_info", "Identity of this process: name, kind of context, MIG instance.", "nvmlDeviceGetComputeRunningProcesses, /proc/PID/comm", about=GPU_PROCESS)
PROCESS_MEMORY = _GPU.gauge("railscope_gpu_process_memory_used_bytes", "GPU memory that the process uses.", "nvmlDeviceGetComputeRunningProcesses usedGpuMemory (bytes)", about=GPU_PROCESS, detail=BASIC, valid=MEMORY)
PROCESS_SM = _GPU.gauge("railscope_gpu_process_sm_utilization_ratio", "Share of time in which kernels of the process ran; a process without a sample was idle.", "nvmlDeviceGetProcessUtilization smUtil (percent)", about=GPU_PROCESS, scale=CENTI)
PROCESS_MEMORY_ACTIVITY = _GPU.gauge("railscope_gpu_process_memory_activity_ratio", "Share of time in which the process read or wrote GPU memory.", "nvmlDeviceGetProcessUtilization memUtil (percent)", about=GPU_PROCESS, scale=CENTI)
GPU_VGPUS = _GPU.gauge("railscope_gpu_vgpus", "Virtual GPUs that run on this GPU.", "nvmlDeviceGetActiveVgpus")
VGPU_INFO = _GPU.info("railscope_vgpu_info", "Identity of this virtual GPU: type and virtual machine.", "nvmlVgpuInstanceGetType, nvmlVgpuTypeGetName, nvmlVgpuInstanceGetVmID", about=VGPU)
VGPU_MEMORY = _GPU.gauge("railscope_vgpu_memory_used_bytes", "GPU memory the virtual GPU uses.", "nvmlVgpuInstanceGetFbUsage (bytes)", about=VGPU, valid=MEMORY)
VGPU_UTILIZATION = _GPU.gauge("railscope_vgpu_sm_utilization_ratio", "Share of time in which kernels of the virtual GPU ran.", "nvmlDeviceGetVgpuUtilization smUtil (percent)", about=VGPU, scale=CENTI)
