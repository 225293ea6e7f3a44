"""Metrics of a GPU from NVML: activity, memory, clocks, power, temperature, modes.

`gpu_health` declares faults, `gpu_activity` the activity of the SMs.
"""

from fractions import Fraction

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import (
    GPU,
    GPU_CLOCK,
    GPU_ENGINE,
    GPU_THROTTLE,
)

DRIVER_LOAD = "Counts from driver load; falls back to zero at a driver reload or GPU reset."
AGENT_START = "Counts from the start of the agent; falls back to zero with each."
KIBIBYTE_SECONDS = Fraction(1024)
"""Step of memory times time: 64 bits hold a tebibyte for 272 years."""

# nvml.h, nvmlClocksEventReason*: reasons for lowered clocks, by bit.
THROTTLE_BITS = {
    "gpu_idle": 0x1,
    "application_clocks": 0x2,
    "software_power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "hardware_power_brake": 0x80,
    "display_clocks": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}

GPU_INFO = Metric(
    "railscope_gpu_info",
    Kind.INFO,
    GPU,
    help="What this GPU is: index, model, PCI address, serial number, firmware, driver and rail.",
    origin="nvmlDeviceGetName, nvmlDeviceGetPciInfo, nvmlDeviceGetSerial, nvmlDeviceGetVbiosVersion",
)
GPU_UTILIZATION = Metric(
    "railscope_gpu_utilization_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=per(100),
    rollups=(Rollup.MEAN,),
    help="Share of the last sample period in which at least one kernel ran on the GPU.",
    origin="nvmlDeviceGetUtilizationRates.gpu (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_GPU_UTIL"},
)
GPU_BUSY = Metric(
    "railscope_gpu_busy_seconds_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.SECONDS,
    scale=per(10**9),
    resets=AGENT_START,
    help="Time in which at least one kernel ran on the GPU: its utilization, summed over time by the agent.",
    origin="nvmlDeviceGetUtilizationRates.gpu (percent) x time since the sample before, if at most 30 s",
)
GPU_MEMORY_ACTIVITY = Metric(
    "railscope_gpu_memory_activity_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=per(100),
    rollups=(Rollup.MEAN,),
    help="Share of the last sample period in which GPU memory was read or written.",
    origin="nvmlDeviceGetUtilizationRates.memory (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_MEM_COPY_UTIL"},
)
GPU_MEMORY_TOTAL = Metric(
    "railscope_gpu_memory_size_bytes",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    help="GPU memory installed.",
    origin="nvmlDeviceGetMemoryInfo v2 total (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FB_TOTAL"},
)
GPU_MEMORY_USED = Metric(
    "railscope_gpu_memory_used_bytes",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    help="GPU memory held by processes, without what the driver reserves.",
    origin="nvmlDeviceGetMemoryInfo v2 used (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FB_USED, DCGM_FI_DEV_FB_USED_PERCENT"},
)
GPU_MEMORY_USED_TIME = Metric(
    "railscope_gpu_memory_used_byte_seconds_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.BYTE_SECONDS,
    scale=KIBIBYTE_SECONDS,
    resets=AGENT_START,
    help="GPU memory held by processes times how long they held it, summed by the agent.",
    origin="nvmlDeviceGetMemoryInfo v2 used (bytes) x time since the sample before, if at most 30 s",
)
GPU_MEMORY_FREE = Metric(
    "railscope_gpu_memory_free_bytes",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    help="GPU memory that no one holds.",
    origin="nvmlDeviceGetMemoryInfo v2 free (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FB_FREE"},
)
GPU_MEMORY_RESERVED = Metric(
    "railscope_gpu_memory_reserved_bytes",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    help="GPU memory the driver and firmware keep for themselves.",
    origin="nvmlDeviceGetMemoryInfo v2 reserved (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FB_RESERVED"},
)
GPU_CLOCK_SPEED = Metric(
    "railscope_gpu_clock_hertz",
    Kind.GAUGE,
    GPU_CLOCK,
    unit=Unit.HERTZ,
    scale=Fraction(10**6),
    rollups=(Rollup.MEAN, Rollup.MIN),
    help="Present speed of one clock of the GPU.",
    origin="nvmlDeviceGetClockInfo (MHz)",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_SM_CLOCK, DCGM_FI_DEV_MEM_CLOCK, DCGM_FI_DEV_VIDEO_CLOCK"
    },
)
GPU_CLOCK_LIMIT = Metric(
    "railscope_gpu_clock_limit_hertz",
    Kind.GAUGE,
    GPU_CLOCK,
    unit=Unit.HERTZ,
    scale=Fraction(10**6),
    help="Highest speed one clock of the GPU can reach.",
    origin="nvmlDeviceGetMaxClockInfo (MHz)",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_MAX_SM_CLOCK, DCGM_FI_DEV_MAX_MEM_CLOCK, DCGM_FI_DEV_MAX_VIDEO_CLOCK"
    },
)
GPU_PERFORMANCE_STATE = Metric(
    "railscope_gpu_performance_state",
    Kind.GAUGE,
    GPU,
    help="Performance state of the GPU: 0 is the fastest, 15 the slowest.",
    origin="nvmlDeviceGetPerformanceState",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PSTATE"},
)
GPU_POWER = Metric(
    "railscope_gpu_power_watts",
    Kind.GAUGE,
    GPU,
    unit=Unit.WATTS,
    scale=per(1000),
    rollups=(Rollup.SUM, Rollup.MAX),
    help="Power the whole board draws; a one-second average on Ampere (except GA100) and later.",
    origin="nvmlDeviceGetPowerUsage (mW)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_POWER_USAGE"},
)
GPU_POWER_LIMIT = Metric(
    "railscope_gpu_power_limit_watts",
    Kind.GAUGE,
    GPU,
    unit=Unit.WATTS,
    scale=per(1000),
    rollups=(Rollup.SUM,),
    help="Power limit that is enforced now.",
    origin="nvmlDeviceGetEnforcedPowerLimit (mW)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"},
)
GPU_ENERGY = Metric(
    "railscope_gpu_energy_joules_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.JOULES,
    scale=per(1000),
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    help="Energy the board has used.",
    origin="nvmlDeviceGetTotalEnergyConsumption (mJ)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"},
)
GPU_TEMPERATURE = Metric(
    "railscope_gpu_temperature_celsius",
    Kind.GAUGE,
    GPU,
    unit=Unit.CELSIUS,
    rollups=(Rollup.MEAN, Rollup.MAX),
    help="Temperature of the GPU die.",
    origin="nvmlDeviceGetTemperatureV, nvmlDeviceGetTemperature (degrees Celsius)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_GPU_TEMP"},
)
GPU_MEMORY_TEMPERATURE = Metric(
    "railscope_gpu_memory_temperature_celsius",
    Kind.GAUGE,
    GPU,
    unit=Unit.CELSIUS,
    rollups=(Rollup.MEAN, Rollup.MAX),
    since="GPUs with HBM",
    help="Temperature of the GPU memory.",
    origin="nvmlDeviceGetFieldValues 82 MEMORY_TEMP (degrees Celsius)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_MEMORY_TEMP"},
)
GPU_THROTTLE_ACTIVE = Metric(
    "railscope_gpu_throttle_active",
    Kind.GAUGE,
    GPU_THROTTLE,
    rollups=(Rollup.SUM,),
    help="Whether this reason holds the clocks down right now (1) or not (0).",
    origin="nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetSupportedClocksEventReasons (bit masks)",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS, DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
    },
)
GPU_THROTTLE_TIME = Metric(
    "railscope_gpu_throttle_seconds_total",
    Kind.COUNTER,
    GPU_THROTTLE,
    unit=Unit.SECONDS,
    scale=per(10**9),
    rollups=(Rollup.SUM, Rollup.MAX),
    resets=DRIVER_LOAD,
    help="Time this reason has held the clocks down.",
    origin="nvmlDeviceGetFieldValues 74 to 81, 269 to 271, with drivers 575 and 580 251 to 253 (ns)",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_POWER_VIOLATION, DCGM_FI_DEV_THERMAL_VIOLATION, DCGM_FI_DEV_SYNC_BOOST_VIOLATION, DCGM_FI_DEV_BOARD_LIMIT_VIOLATION, DCGM_FI_DEV_LOW_UTIL_VIOLATION, DCGM_FI_DEV_RELIABILITY_VIOLATION, DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION, DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION"
    },
)
GPU_ENGINE_UTILIZATION = Metric(
    "railscope_gpu_engine_utilization_ratio",
    Kind.GAUGE,
    GPU_ENGINE,
    unit=Unit.RATIO,
    scale=per(100),
    rollups=(Rollup.MEAN,),
    help="Share of the last sample period in which a media engine worked.",
    origin="nvmlDeviceGetEncoderUtilization, ...Decoder..., ...Jpg..., ...Ofa... (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_ENC_UTIL, DCGM_FI_DEV_DEC_UTIL"},
)
GPU_ENCODER_SESSIONS = Metric(
    "railscope_gpu_encoder_sessions",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    help="Video streams that the GPU encodes.",
    origin="nvmlDeviceGetEncoderStats",
)
GPU_ENCODER_FRAME_RATE = Metric(
    "railscope_gpu_encoder_frames_per_second",
    Kind.GAUGE,
    GPU,
    help="Frames a second that a session of the video encoder takes, averaged over all.",
    origin="nvmlDeviceGetEncoderStats averageFps",
)
GPU_ENCODER_LATENCY = Metric(
    "railscope_gpu_encoder_latency_seconds",
    Kind.GAUGE,
    GPU,
    unit=Unit.SECONDS,
    scale=per(10**6),
    help="Time that the video encoder takes for a frame, averaged over all sessions.",
    origin="nvmlDeviceGetEncoderStats averageLatency (microseconds)",
)
GPU_BAR1_SIZE = Metric(
    "railscope_gpu_bar1_size_bytes",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES,
    help="Address space through which processors and network cards reach GPU memory.",
    origin="nvmlDeviceGetBAR1MemoryInfo (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_BAR1_TOTAL, DCGM_FI_DEV_BAR1_FREE"},
)
GPU_BAR1_USED = Metric(
    "railscope_gpu_bar1_used_bytes",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    help="BAR1 address space that is mapped, by GPUDirect RDMA among others.",
    origin="nvmlDeviceGetBAR1MemoryInfo (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_BAR1_FREE, DCGM_FI_DEV_BAR1_USED"},
)
