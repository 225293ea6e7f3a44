"""Metrics of a GPU, as NVML tells them."""

from fractions import Fraction

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import GPU, GPU_CLOCK, GPU_ECC, GPU_REMAP, GPU_THROTTLE, XID

DRIVER_LOAD = "Counts from driver load; falls back to zero at a driver reload or GPU reset."

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
)
GPU_MEMORY_USED = Metric(
    "railscope_gpu_memory_used_bytes",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    help="GPU memory held by processes, without what the driver reserves.",
    origin="nvmlDeviceGetMemoryInfo v2 used (bytes)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FB_USED"},
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
    other_names={"dcgm-exporter": "DCGM_FI_DEV_SM_CLOCK, DCGM_FI_DEV_MEM_CLOCK"},
)
GPU_CLOCK_LIMIT = Metric(
    "railscope_gpu_clock_limit_hertz",
    Kind.GAUGE,
    GPU_CLOCK,
    unit=Unit.HERTZ,
    scale=Fraction(10**6),
    help="Highest speed one clock of the GPU can reach.",
    origin="nvmlDeviceGetMaxClockInfo (MHz)",
)
GPU_PERFORMANCE_STATE = Metric(
    "railscope_gpu_performance_state",
    Kind.GAUGE,
    GPU,
    help="Performance state of the GPU: 0 is the fastest, 15 the slowest.",
    origin="nvmlDeviceGetPerformanceState",
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
    origin="nvmlDeviceGetCurrentClocksEventReasons (bit mask)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"},
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
    origin="nvmlDeviceGetFieldValues 74, 75, 76, 269, 270, 271 (ns)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_POWER_VIOLATION, DCGM_FI_DEV_THERMAL_VIOLATION"},
)
GPU_ECC_MODE = Metric(
    "railscope_gpu_ecc_enabled",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.MIN,),
    help="Whether error correction of GPU memory is on (1) or off (0).",
    origin="nvmlDeviceGetEccMode current",
)
GPU_ECC_ERRORS = Metric(
    "railscope_gpu_ecc_errors_total",
    Kind.COUNTER,
    GPU_ECC,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets="Volatile counts from driver load; aggregate counts for the life of the board.",
    help="Memory errors that error correction met, by whether it could correct them.",
    origin="nvmlDeviceGetTotalEccErrors",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"},
)
GPU_REMAPPED_ROWS = Metric(
    "railscope_gpu_remapped_rows",
    Kind.GAUGE,
    GPU_REMAP,
    rollups=(Rollup.SUM,),
    help="Memory rows replaced by spare ones, by the kind of error that caused it.",
    origin="nvmlDeviceGetRemappedRows",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS, DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    },
)
GPU_ROW_REMAP_PENDING = Metric(
    "railscope_gpu_row_remap_pending",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    help="Whether a row remap waits for a GPU reset (1) or not (0).",
    origin="nvmlDeviceGetRemappedRows pending",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_ROW_REMAP_PENDING"},
)
GPU_ROW_REMAP_FAILURE = Metric(
    "railscope_gpu_row_remap_failure",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    help="Whether a row could not be remapped (1) or not (0).",
    origin="nvmlDeviceGetRemappedRows failure",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_ROW_REMAP_FAILURE"},
)
GPU_PCIE_GENERATION = Metric(
    "railscope_gpu_pcie_link_generation",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.MIN,),
    help="PCIe generation the GPU's link runs at now; idle GPUs may run slower to save power.",
    origin="nvmlDeviceGetCurrPcieLinkGeneration",
)
GPU_PCIE_GENERATION_LIMIT = Metric(
    "railscope_gpu_pcie_link_generation_limit",
    Kind.GAUGE,
    GPU,
    help="Highest PCIe generation that GPU and slot can reach together.",
    origin="nvmlDeviceGetMaxPcieLinkGeneration",
)
GPU_PCIE_WIDTH = Metric(
    "railscope_gpu_pcie_link_width_lanes",
    Kind.GAUGE,
    GPU,
    unit=Unit.LANES,
    rollups=(Rollup.MIN,),
    help="Lanes the GPU's PCIe link uses now.",
    origin="nvmlDeviceGetCurrPcieLinkWidth",
)
GPU_PCIE_WIDTH_LIMIT = Metric(
    "railscope_gpu_pcie_link_width_limit_lanes",
    Kind.GAUGE,
    GPU,
    unit=Unit.LANES,
    help="Most lanes that GPU and slot can use together.",
    origin="nvmlDeviceGetMaxPcieLinkWidth",
)
GPU_PCIE_REPLAYS = Metric(
    "railscope_gpu_pcie_replays_total",
    Kind.COUNTER,
    GPU,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    help="PCIe packets the GPU had to send again.",
    origin="nvmlDeviceGetPcieReplayCounter",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"},
)
GPU_XID_ERRORS = Metric(
    "railscope_gpu_xid_errors_total",
    Kind.COUNTER,
    XID,
    unit=Unit.ERRORS,
    resets="Counts from the start of the kernel log the agent could read.",
    help="Xid messages of the NVIDIA driver, by PCI address of the GPU and Xid number.",
    origin="kernel log, NVRM: Xid (...)",
)
