"""GPUs, from NVML: activity, memory, clocks, power, temperature, modes; activity of the SMs (GPM).

nvml.h, nvmlGpmMetricsGet: averages between two samples at least 100 ms apart. GPUs before Hopper have no GPM,
and NVML has no equivalent: these metrics are absent there. `gpu_health` declares faults.
"""

# fmt: off
from railscope.catalog import declare, entities

DRIVER_LOAD = "Counts from driver load; reset to zero at a driver reload or GPU reset."
CHIP_RESET = "Counts from the GPU's last reset."
_NVML = declare.MetricTable(entities.GPU, resets=DRIVER_LOAD)
_GPM = declare.MetricTable(entities.GPU, origin="nvmlGpmMetricsGet ", resets=CHIP_RESET)

AGENT_START = declare.AGENT_START
MEMORY = (0, 1 << 50)
"""Bytes of memory: more than any GPU has."""
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
GPU_INFO = _NVML.info("railscope_gpu_info", "Identity of this GPU: index, model, PCI address, serial number, firmware, driver and rail.", "nvmlDeviceGetName, nvmlDeviceGetPciInfo, nvmlDeviceGetSerial, nvmlDeviceGetVbiosVersion", detail=declare.BASIC)
GPU_UTILIZATION = _NVML.gauge("railscope_gpu_utilization_ratio", "Share of the last sample period in which at least one kernel ran on the GPU.", "nvmlDeviceGetUtilizationRates.gpu (percent)", scale=declare.CENTI, rollups=(declare.Rollup.MEAN, declare.Rollup.COUNT), dcgm="DCGM_FI_DEV_GPU_UTIL", detail=declare.BASIC)
GPU_BUSY = _NVML.counter("railscope_gpu_busy_seconds_total", "Time in which at least one kernel ran on the GPU: its utilization, summed over time by the agent.", "nvmlDeviceGetUtilizationRates.gpu (percent) x time since the sample before, if at most 30 s", scale=declare.NANO, resets=AGENT_START)
GPU_MEMORY_ACTIVITY = _NVML.gauge("railscope_gpu_memory_activity_ratio", "Share of the last sample period in which GPU memory was read or written.", "nvmlDeviceGetUtilizationRates.memory (percent)", scale=declare.CENTI, dcgm="DCGM_FI_DEV_MEM_COPY_UTIL")
GPU_MEMORY_TOTAL = _NVML.gauge("railscope_gpu_memory_size_bytes", "GPU memory installed.", "nvmlDeviceGetMemoryInfo v2 total (bytes)", rollups=(declare.Rollup.SUM,), dcgm="DCGM_FI_DEV_FB_TOTAL", detail=declare.BASIC, valid=MEMORY)
GPU_MEMORY_USED = _NVML.gauge("railscope_gpu_memory_used_bytes", "GPU memory held by processes, without what the driver reserves.", "nvmlDeviceGetMemoryInfo v2 used (bytes)", rollups=(declare.Rollup.SUM,), dcgm="DCGM_FI_DEV_FB_USED, DCGM_FI_DEV_FB_USED_PERCENT", detail=declare.BASIC, valid=MEMORY)
GPU_MEMORY_USED_TIME = _NVML.counter("railscope_gpu_memory_used_byte_seconds_total", "GPU memory held by processes times how long they held it, summed by the agent.", "nvmlDeviceGetMemoryInfo v2 used (bytes) x time since the sample before, if at most 30 s", scale=declare.KIBI, resets=AGENT_START)
GPU_MEMORY_FREE = _NVML.gauge("railscope_gpu_memory_free_bytes", "Free GPU memory.", "nvmlDeviceGetMemoryInfo v2 free (bytes)", dcgm="DCGM_FI_DEV_FB_FREE", detail=declare.FULL, valid=MEMORY)
GPU_MEMORY_RESERVED = _NVML.gauge("railscope_gpu_memory_reserved_bytes", "GPU memory the driver and firmware keep for themselves.", "nvmlDeviceGetMemoryInfo v2 reserved (bytes)", dcgm="DCGM_FI_DEV_FB_RESERVED", valid=MEMORY)
GPU_CLOCK_SPEED = _NVML.gauge("railscope_gpu_clock_hertz", "Present speed of one clock of the GPU.", "nvmlDeviceGetClockInfo (MHz)", about=entities.GPU_CLOCK, scale=declare.MEGA, dcgm="DCGM_FI_DEV_SM_CLOCK, DCGM_FI_DEV_MEM_CLOCK, DCGM_FI_DEV_VIDEO_CLOCK", detail=declare.BASIC)
GPU_CLOCK_LIMIT = _NVML.gauge("railscope_gpu_clock_limit_hertz", "Highest speed one clock of the GPU can reach.", "nvmlDeviceGetMaxClockInfo (MHz)", about=entities.GPU_CLOCK, scale=declare.MEGA, dcgm="DCGM_FI_DEV_MAX_SM_CLOCK, DCGM_FI_DEV_MAX_MEM_CLOCK, DCGM_FI_DEV_MAX_VIDEO_CLOCK", detail=declare.FULL)
GPU_PERFORMANCE_STATE = _NVML.gauge("railscope_gpu_performance_state", "Performance state of the GPU: 0 is the fastest, 15 the slowest.", "nvmlDeviceGetPerformanceState", dcgm="DCGM_FI_DEV_PSTATE", valid=(0, 15))
GPU_POWER = _NVML.gauge("railscope_gpu_power_watts", "Power the whole board draws; a one-second average on Ampere (except GA100) and later.", "nvmlDeviceGetPowerUsage (mW)", scale=declare.MILLI, rollups=(declare.Rollup.SUM, declare.Rollup.MAX), dcgm="DCGM_FI_DEV_POWER_USAGE", detail=declare.BASIC)
GPU_POWER_LIMIT = _NVML.gauge("railscope_gpu_power_limit_watts", "Power limit that is enforced now.", "nvmlDeviceGetEnforcedPowerLimit (mW)", scale=declare.MILLI, rollups=(declare.Rollup.SUM,), dcgm="DCGM_FI_DEV_ENFORCED_POWER_LIMIT", detail=declare.BASIC)
GPU_ENERGY = _NVML.counter("railscope_gpu_energy_joules_total", "Energy the board has used.", "nvmlDeviceGetTotalEnergyConsumption (mJ)", scale=declare.MILLI, rollups=(declare.Rollup.SUM,), dcgm="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", valid=declare.POWER)
GPU_TEMPERATURE = _NVML.gauge("railscope_gpu_temperature_celsius", "Temperature of the GPU die.", "nvmlDeviceGetTemperatureV, nvmlDeviceGetTemperature (degrees Celsius)", rollups=(declare.Rollup.MAX,), dcgm="DCGM_FI_DEV_GPU_TEMP", detail=declare.BASIC)
GPU_MEMORY_TEMPERATURE = _NVML.gauge("railscope_gpu_memory_temperature_celsius", "Temperature of the GPU memory.", "nvmlDeviceGetFieldValues 82 MEMORY_TEMP (degrees Celsius)", rollups=(declare.Rollup.MAX,), since="GPUs with HBM", dcgm="DCGM_FI_DEV_MEMORY_TEMP")
GPU_ALL_THROTTLE_TIME = _NVML.counter("railscope_gpu_all_reasons_throttle_seconds_total", "Sum of the times that reasons have held the clocks down, without low_utilization, application_clocks and base_clocks; reasons can overlap.", "agent, sum of railscope_gpu_throttle_seconds_total; a reason that cannot be read keeps its part", scale=declare.NANO, resets="Starts with the agent, at the sum of the reasons.", detail=declare.BASIC)
GPU_THROTTLE_ACTIVE = _NVML.flag("railscope_gpu_throttle_active", "1 if this reason currently limits the clocks.", "nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetSupportedClocksEventReasons (bit masks)", about=entities.GPU_THROTTLE, rollups=(declare.Rollup.SUM,), dcgm="DCGM_FI_DEV_CLOCKS_EVENT_REASONS, DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", detail=declare.BASIC, total=GPU_ALL_THROTTLE_TIME)
GPU_THROTTLE_TIME = _NVML.counter("railscope_gpu_throttle_seconds_total", "Time this reason has held the clocks down.", "nvmlDeviceGetFieldValues 74 to 81, 269 to 271, with drivers 575 and 580 251 to 253 (ns)", about=entities.GPU_THROTTLE, scale=declare.NANO, rollups=(declare.Rollup.SUM,), dcgm="DCGM_FI_DEV_POWER_VIOLATION, DCGM_FI_DEV_THERMAL_VIOLATION, DCGM_FI_DEV_SYNC_BOOST_VIOLATION, DCGM_FI_DEV_BOARD_LIMIT_VIOLATION, DCGM_FI_DEV_LOW_UTIL_VIOLATION, DCGM_FI_DEV_RELIABILITY_VIOLATION, DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION, DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION", detail=declare.BASIC, total=GPU_ALL_THROTTLE_TIME, valid=declare.ELAPSED)
GPU_ENGINE_UTILIZATION = _NVML.gauge("railscope_gpu_engine_utilization_ratio", "Share of the last sample period in which a media engine worked.", "nvmlDeviceGetEncoderUtilization, ...Decoder..., ...Jpg..., ...Ofa... (percent)", about=entities.GPU_ENGINE, scale=declare.CENTI, dcgm="DCGM_FI_DEV_ENC_UTIL, DCGM_FI_DEV_DEC_UTIL", detail=declare.FULL)
GPU_ENCODER_SESSIONS = _NVML.gauge("railscope_gpu_encoder_sessions", "Video streams that the GPU encodes.", "nvmlDeviceGetEncoderStats", detail=declare.FULL)
GPU_ENCODER_FRAME_RATE = _NVML.gauge("railscope_gpu_encoder_frames_per_second", "Frames per second of a session of the video encoder, averaged over all sessions.", "nvmlDeviceGetEncoderStats averageFps", detail=declare.FULL)
GPU_ENCODER_LATENCY = _NVML.gauge("railscope_gpu_encoder_latency_seconds", "Time that the video encoder takes for a frame, averaged over all sessions.", "nvmlDeviceGetEncoderStats averageLatency (microseconds)", scale=declare.MICRO, valid=(0, 60), detail=declare.FULL)
GPU_BAR1_SIZE = _NVML.gauge("railscope_gpu_bar1_size_bytes", "Address space through which processors and NICs reach GPU memory.", "nvmlDeviceGetBAR1MemoryInfo (bytes)", dcgm="DCGM_FI_DEV_BAR1_TOTAL, DCGM_FI_DEV_BAR1_FREE")
GPU_BAR1_USED = _NVML.gauge("railscope_gpu_bar1_used_bytes", "Mapped BAR1 address space, for example by GPUDirect RDMA.", "nvmlDeviceGetBAR1MemoryInfo (bytes)", dcgm="DCGM_FI_DEV_BAR1_FREE, DCGM_FI_DEV_BAR1_USED")

# Power, temperature, fans ------------------------------------------------------------------------
GPU_POWER_AVERAGE = _NVML.gauge("railscope_gpu_power_average_watts", "Power of the GPU, averaged over one second.", "nvmlDeviceGetFieldValues 185 POWER_AVERAGE, scope 0 (mW)", scale=declare.MILLI, since="Ampere (except GA100)")
GPU_POWER_INSTANT = _NVML.gauge("railscope_gpu_power_instant_watts", "Power of the GPU at this instant.", "nvmlDeviceGetFieldValues 186 POWER_INSTANT, scope 0 (mW)", scale=declare.MILLI, dcgm="DCGM_FI_DEV_POWER_USAGE_INSTANT")
GPU_MODULE_POWER = _NVML.gauge("railscope_gpu_module_power_watts", "Power of the module at this instant: GPU and Grace processor together.", "nvmlDeviceGetFieldValues 186 POWER_INSTANT, scope 1 (mW)", scale=declare.MILLI, since="Grace Hopper")
GPU_MEMORY_POWER = _NVML.gauge("railscope_gpu_memory_power_watts", "Power of the GPU memory, averaged over one second; part of the board's.", "nvmlDeviceGetFieldValues 185 POWER_AVERAGE, scope 2 (mW)", scale=declare.MILLI, since="Hopper")
GPU_MODULE_POWER_LIMIT = _NVML.gauge("railscope_gpu_module_power_limit_watts", "Power limit of the module that is enforced now: GPU and Grace processor together.", "nvmlDeviceGetFieldValues 190 POWER_CURRENT_LIMIT, scope 1 (mW)", scale=declare.MILLI, since="Grace Hopper")
GPU_POWER_BOUNDS = _NVML.gauge("railscope_gpu_power_limit_bound_watts", "Lowest, highest, default and requested power limit of the GPU.", "nvmlDeviceGetFieldValues 187 MIN, 188 MAX, 189 DEFAULT, 192 REQUESTED; nvmlDeviceGetPowerManagementLimit... (mW)", about=entities.GPU_POWER_BOUND, scale=declare.MILLI, dcgm="DCGM_FI_DEV_POWER_MGMT_LIMIT, DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN, DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX, DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", detail=declare.BASIC)
GPU_PEAK_POWER = _NVML.gauge("railscope_gpu_peak_power_multiplier_ratio", "Peak power that the GPU may use, as a share of its electrical design point (EDPp).", "nvmlDeviceGetFieldValues 274 EDPP_MULTIPLIER (percent)", scale=declare.CENTI, since="Hopper, newer drivers", detail=declare.FULL, valid=(0, 10))
GPU_TEMPERATURE_MARGIN = _NVML.gauge("railscope_gpu_temperature_margin_celsius", "Degrees left until the nearest slowdown threshold; negative beyond it.", "nvmlDeviceGetMarginTemperature (degrees Celsius)", since="Ada", dcgm="DCGM_FI_DEV_GPU_TEMP_LIMIT", detail=declare.BASIC)
GPU_TEMPERATURE_THRESHOLD = _NVML.gauge("railscope_gpu_temperature_threshold_celsius", "Temperature at which the GPU slows down or shuts down.", "nvmlDeviceGetTemperatureThreshold (degrees Celsius); up to Ampere", about=entities.GPU_THRESHOLD, dcgm="DCGM_FI_DEV_GPU_MAX_OP_TEMP, DCGM_FI_DEV_MEM_MAX_OP_TEMP, DCGM_FI_DEV_SLOWDOWN_TEMP, DCGM_FI_DEV_SHUTDOWN_TEMP")
GPU_TEMPERATURE_THRESHOLD_MARGIN = _NVML.gauge("railscope_gpu_temperature_threshold_margin_celsius", "Margin at which the GPU slows down or shuts down, on the scale of the temperature margin.", "nvmlDeviceGetFieldValues 193 SHUTDOWN_TLIMIT, 194 SLOWDOWN, 195 MEM_MAX, 196 GPU_MAX (degrees Celsius)", about=entities.GPU_THRESHOLD, since="Ada", detail=declare.FULL)
GPU_FAN_SPEED = _NVML.gauge("railscope_gpu_fan_speed_ratio", "Requested speed of a fan as a share of its maximum; boards without fans have none.", "nvmlDeviceGetFanSpeed_v2 (percent)", about=entities.GPU_FAN, scale=declare.CENTI, dcgm="DCGM_FI_DEV_FAN_SPEED", valid=(0, 2))
GPU_FAN_ROTATION = _NVML.gauge("railscope_gpu_fan_rotation_rpm", "Requested speed of a fan.", "nvmlDeviceGetFanSpeedRPM (revolutions per minute)", about=entities.GPU_FAN)

# Modes -------------------------------------------------------------------------------------------
GPU_SETTINGS_INFO = _NVML.info("railscope_gpu_settings_info", "Modes of this GPU as set, and a hash of all of them, equal for GPUs with equal modes; no hash while some cannot be read. railscope_gpu_power_limit_bound_watts has the power limits.", "nvmlDeviceGetPersistenceMode, nvmlDeviceGetComputeMode, nvmlDeviceGetAccountingMode, nvmlDeviceGetEccMode, nvmlDeviceGetMigMode, nvmlDeviceGetGspFirmwareMode", about=entities.GPU_SETTINGS, detail=declare.BASIC)
GPU_PERSISTENCE = _NVML.flag("railscope_gpu_persistence_enabled", "1 if the driver keeps the GPU initialized while it is unused, 0 otherwise.", "nvmlDeviceGetPersistenceMode", dcgm="DCGM_FI_DEV_PERSISTENCE_MODE", detail=declare.FULL)
GPU_COMPUTE_MODE = _NVML.state("railscope_gpu_compute_mode", "Compute mode: the processes that may use the GPU concurrently.", "nvmlDeviceGetComputeMode", states={0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}, detail=declare.FULL)
GPU_ACCOUNTING = _NVML.flag("railscope_gpu_accounting_enabled", "1 if the driver's process accounting is on, 0 otherwise.", "nvmlDeviceGetAccountingMode", detail=declare.FULL)
GPU_CONFIDENTIAL = _NVML.flag("railscope_gpu_confidential_compute_enabled", "1 if the node runs its GPUs in confidential-compute mode, 0 otherwise.", "nvmlSystemGetConfComputeState ccFeature", since="Hopper", detail=declare.FULL)
GPU_PROTECTED_SIZE = _NVML.gauge("railscope_gpu_protected_memory_size_bytes", "GPU memory that confidential computing protects; 0 where it is off.", "nvmlDeviceGetConfComputeProtectedMemoryUsage (bytes)", detail=declare.FULL)
GPU_PROTECTED_USED = _NVML.gauge("railscope_gpu_protected_memory_used_bytes", "GPU memory that confidential computing protects and that processes use.", "nvmlDeviceGetConfComputeProtectedMemoryUsage (bytes)", detail=declare.FULL)
GPU_GSP = _NVML.flag("railscope_gpu_gsp_firmware_enabled", "1 if the GPU System Processor (GSP) firmware performs the driver's work, 0 otherwise.", "nvmlDeviceGetGspFirmwareMode", detail=declare.FULL)

# Activity of SMs and links, from hardware counters (GPM) -----------------------------------------
GPU_GRAPHICS_ACTIVITY = _GPM.gauge("railscope_gpu_graphics_activity_ratio", "Share of time in which any compute or graphics context was active.", "1 GRAPHICS_UTIL (percent)", scale=declare.MICRO, since="Hopper", dcgm="DCGM_FI_PROF_GR_ENGINE_ACTIVE")
GPU_SM_ACTIVITY = _GPM.gauge("railscope_gpu_sm_activity_ratio", "Share of SMs and time with at least one warp resident.", "2 SM_UTIL (percent)", scale=declare.MICRO, rollups=(declare.Rollup.MEAN, declare.Rollup.COUNT, declare.Rollup.MIN), since="Hopper", dcgm="DCGM_FI_PROF_SM_ACTIVE", detail=declare.BASIC)
GPU_SM_OCCUPANCY = _GPM.gauge("railscope_gpu_sm_occupancy_ratio", "Resident warps as a share of the maximum of the SMs.", "3 SM_OCCUPANCY (percent)", scale=declare.MICRO, since="Hopper", dcgm="DCGM_FI_PROF_SM_OCCUPANCY")
GPU_TENSOR_ACTIVITY = _GPM.gauge("railscope_gpu_tensor_activity_ratio", "Share of time in which a tensor pipe of any data type worked.", "5 ANY_TENSOR_UTIL (percent)", scale=declare.MICRO, rollups=(declare.Rollup.MEAN, declare.Rollup.COUNT, declare.Rollup.MIN), since="Hopper", dcgm="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", detail=declare.BASIC)
GPU_DRAM_ACTIVITY = _GPM.gauge("railscope_gpu_dram_bandwidth_ratio", "Memory traffic as a share of the peak bandwidth.", "10 DRAM_BW_UTIL (percent)", scale=declare.MICRO, rollups=(declare.Rollup.MEAN, declare.Rollup.COUNT), since="Hopper", dcgm="DCGM_FI_PROF_DRAM_ACTIVE", detail=declare.BASIC)
GPU_PIPE_ACTIVITY = _GPM.gauge("railscope_gpu_pipe_activity_ratio", "Share of time in which one pipe of the SMs worked; tensor pipes by type of number.", "4, 6, 7, 8, 9, 11, 12, 13 (percent)", about=entities.GPU_PIPE, scale=declare.MICRO, rollups=(declare.Rollup.MEAN, declare.Rollup.COUNT), since="Hopper", dcgm="DCGM_FI_PROF_PIPE_FP64_ACTIVE, DCGM_FI_PROF_PIPE_FP32_ACTIVE, DCGM_FI_PROF_PIPE_FP16_ACTIVE, DCGM_FI_PROF_PIPE_INT_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE")
GPU_ENGINE_ACTIVITY = _GPM.gauge("railscope_gpu_engine_activity_ratio", "Share of time in which one media engine worked.", "30 to 37 NVDEC, 40 to 47 NVJPG, 50 and 51 NVOFA, 166 to 169 NVENC (percent)", about=entities.GPU_ENGINE, scale=declare.MICRO, since="Hopper", detail=declare.FULL)
GPU_PCIE_TRANSMIT = _GPM.gauge("railscope_gpu_pcie_transmit_bytes_per_second", "Bytes per second that the GPU sends over PCIe.", "20 PCIE_TX_PER_SEC (MiB/s)", since="Hopper", dcgm="DCGM_FI_PROF_PCIE_TX_BYTES", detail=declare.BASIC)
GPU_PCIE_RECEIVE = _GPM.gauge("railscope_gpu_pcie_receive_bytes_per_second", "Bytes per second that the GPU receives over PCIe.", "21 PCIE_RX_PER_SEC (MiB/s)", since="Hopper", dcgm="DCGM_FI_PROF_PCIE_RX_BYTES", detail=declare.BASIC)
GPU_NVLINK_TRANSMIT = _GPM.gauge("railscope_gpu_nvlink_transmit_bytes_per_second", "Bytes per second that the GPU sends over all its NVLinks.", "61 NVLINK_TOTAL_TX_PER_SEC (MiB/s)", since="Hopper", dcgm="DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, DCGM_FI_PROF_NVLINK_TX_BYTES", detail=declare.BASIC)
GPU_NVLINK_RECEIVE = _GPM.gauge("railscope_gpu_nvlink_receive_bytes_per_second", "Bytes per second that the GPU receives over all its NVLinks.", "60 NVLINK_TOTAL_RX_PER_SEC (MiB/s)", since="Hopper", dcgm="DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, DCGM_FI_PROF_NVLINK_RX_BYTES", detail=declare.BASIC)
GPU_C2C_TRANSMIT = _GPM.gauge("railscope_gpu_c2c_transmit_bytes_per_second", "Bytes per second that the GPU sends to its Grace processor.", "100 C2C_TOTAL_TX_PER_SEC (MiB/s)", since="Hopper")
GPU_C2C_RECEIVE = _GPM.gauge("railscope_gpu_c2c_receive_bytes_per_second", "Bytes per second that the GPU receives from its Grace processor.", "101 C2C_TOTAL_RX_PER_SEC (MiB/s)", since="Hopper")
GPU_CACHE_SHARE = _GPM.gauge("railscope_gpu_cache_access_ratio", "Share of accesses to host, peer or GPU memory that hit or missed the L2 cache.", "160 to 165 (percent)", about=entities.GPU_CACHE, scale=declare.MICRO, since="Hopper, newer drivers")
GPU_CYCLES = _GPM.counter("railscope_gpu_sm_cycles_total", "Cycles of all SMs, elapsed and with each pipe active: their ratio is exact over any interval.", "248 to 254, 257 to 260", about=entities.GPU_CYCLE, since="Hopper, newer drivers", detail=declare.FULL)
MIG_GRAPHICS_ACTIVITY = _NVML.gauge("railscope_mig_graphics_activity_ratio", "Share of time in which a context of the MIG instance was active.", "nvmlGpmMigSampleGet, nvmlGpmMetricsGet 1 GRAPHICS_UTIL (percent)", about=entities.MIG, scale=declare.MICRO, since="Hopper", dcgm="DCGM_FI_PROF_GR_ENGINE_ACTIVE")
MIG_SM_ACTIVITY = _NVML.gauge("railscope_mig_sm_activity_ratio", "Share of the MIG instance's SMs and time with at least one warp resident.", "nvmlGpmMigSampleGet, nvmlGpmMetricsGet 2 SM_UTIL (percent)", about=entities.MIG, scale=declare.MICRO, since="Hopper", dcgm="DCGM_FI_PROF_SM_ACTIVE")
MIG_SM_OCCUPANCY = _NVML.gauge("railscope_mig_sm_occupancy_ratio", "Resident warps as a share of the maximum of the SMs of the MIG instance.", "nvmlGpmMigSampleGet, nvmlGpmMetricsGet 3 SM_OCCUPANCY (percent)", about=entities.MIG, scale=declare.MICRO, since="Hopper", dcgm="DCGM_FI_PROF_SM_OCCUPANCY")
MIG_TENSOR_ACTIVITY = _NVML.gauge("railscope_mig_tensor_activity_ratio", "Share of time in which a tensor pipe of the MIG instance worked.", "nvmlGpmMigSampleGet, nvmlGpmMetricsGet 5 ANY_TENSOR_UTIL (percent)", about=entities.MIG, scale=declare.MICRO, since="Hopper", dcgm="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
MIG_DRAM_ACTIVITY = _NVML.gauge("railscope_mig_dram_bandwidth_ratio", "Memory traffic of the MIG instance as a share of its peak bandwidth.", "nvmlGpmMigSampleGet, nvmlGpmMetricsGet 10 DRAM_BW_UTIL (percent)", about=entities.MIG, scale=declare.MICRO, since="Hopper", dcgm="DCGM_FI_PROF_DRAM_ACTIVE")
MIG_PIPE_ACTIVITY = _NVML.gauge("railscope_mig_pipe_activity_ratio", "Share of time in which one pipe of the SMs of the MIG instance worked.", "nvmlGpmMigSampleGet, nvmlGpmMetricsGet 4, 6, 7, 8, 9, 11, 12, 13 (percent)", about=entities.MIG_PIPE, scale=declare.MICRO, since="Hopper", dcgm="DCGM_FI_PROF_PIPE_FP64_ACTIVE, DCGM_FI_PROF_PIPE_FP32_ACTIVE, DCGM_FI_PROF_PIPE_FP16_ACTIVE, DCGM_FI_PROF_PIPE_INT_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE")
