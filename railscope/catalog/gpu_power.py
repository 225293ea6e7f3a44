"""Power, temperature and fans of GPUs, from NVML, except draw, limit and GPU temperature."""

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import (
    GPU,
    GPU_FAN,
    GPU_POWER_BOUND,
    GPU_THRESHOLD,
)

GPU_POWER_AVERAGE = Metric(
    "railscope_gpu_power_average_watts",
    Kind.GAUGE,
    GPU,
    unit=Unit.WATTS,
    scale=per(1000),
    since="Ampere (except GA100)",
    help="Power of the GPU, averaged over one second.",
    origin="nvmlDeviceGetFieldValues 185 POWER_AVERAGE, scope 0 (mW)",
)
GPU_POWER_INSTANT = Metric(
    "railscope_gpu_power_instant_watts",
    Kind.GAUGE,
    GPU,
    unit=Unit.WATTS,
    scale=per(1000),
    rollups=(
        Rollup.SUM,
        Rollup.MAX,
    ),
    help="Power of the GPU at this instant.",
    origin="nvmlDeviceGetFieldValues 186 POWER_INSTANT, scope 0 (mW)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_POWER_USAGE_INSTANT"},
)
GPU_MODULE_POWER = Metric(
    "railscope_gpu_module_power_watts",
    Kind.GAUGE,
    GPU,
    unit=Unit.WATTS,
    scale=per(1000),
    rollups=(Rollup.SUM,),
    since="Grace Hopper",
    help="Power of the module at this instant: GPU and Grace processor together.",
    origin="nvmlDeviceGetFieldValues 186 POWER_INSTANT, scope 1 (mW)",
)
GPU_MEMORY_POWER = Metric(
    "railscope_gpu_memory_power_watts",
    Kind.GAUGE,
    GPU,
    unit=Unit.WATTS,
    scale=per(1000),
    rollups=(Rollup.SUM,),
    since="Hopper",
    help="Power of the GPU memory, averaged over one second; part of the board's.",
    origin="nvmlDeviceGetFieldValues 185 POWER_AVERAGE, scope 2 (mW)",
)
GPU_MODULE_POWER_LIMIT = Metric(
    "railscope_gpu_module_power_limit_watts",
    Kind.GAUGE,
    GPU,
    unit=Unit.WATTS,
    scale=per(1000),
    rollups=(Rollup.SUM,),
    since="Grace Hopper",
    help="Power limit of the module that is enforced now: GPU and Grace processor together.",
    origin="nvmlDeviceGetFieldValues 190 POWER_CURRENT_LIMIT, scope 1 (mW)",
)
GPU_POWER_BOUNDS = Metric(
    "railscope_gpu_power_limit_bound_watts",
    Kind.GAUGE,
    GPU_POWER_BOUND,
    unit=Unit.WATTS,
    scale=per(1000),
    help="Lowest, highest, default and requested power limit of the GPU.",
    origin="nvmlDeviceGetFieldValues 187 MIN, 188 MAX, 189 DEFAULT, 192 REQUESTED; nvmlDeviceGetPowerManagementLimit... (mW)",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_POWER_MGMT_LIMIT, DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN, DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX, DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF"
    },
)
GPU_PEAK_POWER = Metric(
    "railscope_gpu_peak_power_multiplier_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=per(100),
    since="Hopper, newer drivers",
    help="Share of its electrical design point, the highest peaks of power, that the GPU may use.",
    origin="nvmlDeviceGetFieldValues 274 EDPP_MULTIPLIER (percent)",
)
GPU_TEMPERATURE_MARGIN = Metric(
    "railscope_gpu_temperature_margin_celsius",
    Kind.GAUGE,
    GPU,
    unit=Unit.CELSIUS,
    rollups=(Rollup.MIN,),
    since="Ada",
    help="Degrees left until the nearest slowdown threshold; negative beyond it.",
    origin="nvmlDeviceGetMarginTemperature (degrees Celsius)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_GPU_TEMP_LIMIT"},
)
GPU_TEMPERATURE_THRESHOLD = Metric(
    "railscope_gpu_temperature_threshold_celsius",
    Kind.GAUGE,
    GPU_THRESHOLD,
    unit=Unit.CELSIUS,
    help="Temperature at which the GPU slows down or shuts down.",
    origin="nvmlDeviceGetTemperatureThreshold (degrees Celsius); up to Ampere",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_GPU_MAX_OP_TEMP, DCGM_FI_DEV_MEM_MAX_OP_TEMP, DCGM_FI_DEV_SLOWDOWN_TEMP, DCGM_FI_DEV_SHUTDOWN_TEMP"
    },
)
GPU_TEMPERATURE_THRESHOLD_MARGIN = Metric(
    "railscope_gpu_temperature_threshold_margin_celsius",
    Kind.GAUGE,
    GPU_THRESHOLD,
    unit=Unit.CELSIUS,
    since="Ada",
    help="Margin at which the GPU slows down or shuts down, on the scale of the temperature margin.",
    origin="nvmlDeviceGetFieldValues 193 SHUTDOWN_TLIMIT, 194 SLOWDOWN, 195 MEM_MAX, 196 GPU_MAX (degrees Celsius)",
)
GPU_FAN_SPEED = Metric(
    "railscope_gpu_fan_speed_ratio",
    Kind.GAUGE,
    GPU_FAN,
    unit=Unit.RATIO,
    scale=per(100),
    help="Speed a fan is told to run at, as a share of its highest; boards without fans have none.",
    origin="nvmlDeviceGetFanSpeed_v2 (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_FAN_SPEED"},
)
GPU_FAN_ROTATION = Metric(
    "railscope_gpu_fan_rotation_rpm",
    Kind.GAUGE,
    GPU_FAN,
    unit=Unit.REVOLUTIONS_PER_MINUTE,
    help="Speed a fan is told to run at.",
    origin="nvmlDeviceGetFanSpeedRPM (revolutions per minute)",
)
