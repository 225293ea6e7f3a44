"""Faults of a GPU: fabric, Xids, events, health, and NVIDIA's recommended action.

A health verdict is computed from these: see `agent/health`.
"""

from fractions import Fraction

from railscope.catalog.declare import EventClass, Kind, Metric, Rollup, Unit
from railscope.catalog.entities import (
    GPU,
    GPU_ADDRESS,
    GPU_C2C,
    GPU_C2C_ERROR,
    GPU_CONDITION,
    GPU_EVENT,
    GPU_REASON,
    NODE,
    XID,
)
from railscope.catalog.gpu import DRIVER_LOAD

LOG = "Counts from the start of the kernel log the agent could read."
GPU_RECOVERY_ACTION = Metric(
    "railscope_gpu_recovery_action",
    Kind.STATE,
    GPU,
    since="driver 570",
    states={
        0: "none",
        1: "gpu_reset",
        2: "node_reboot",
        3: "drain_p2p",
        4: "drain_and_reset",
        5: "recover_imex_domain",
        6: "bus_reset",
        7: "system_reboot",
    },
    help="What the driver wants done to bring the GPU back to order.",
    origin="nvmlDeviceGetFieldValues 230 GET_GPU_RECOVERY_ACTION",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_GPU_RECOVERY_ACTION"},
)
GPU_FABRIC_STATE = Metric(
    "railscope_gpu_fabric_state",
    Kind.STATE,
    GPU,
    since="Hopper",
    states={0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"},
    help="How far the GPU has come in joining its NVLink fabric; CUDA starts only once it is completed.",
    origin="nvmlDeviceGetGpuFabricInfoV state",
)
GPU_FABRIC_STATUS = Metric(
    "railscope_gpu_fabric_status_code",
    Kind.GAUGE,
    GPU,
    since="Hopper",
    help="NVML return code of joining the fabric: 0 is success; only told once joining has completed.",
    origin="nvmlDeviceGetGpuFabricInfoV status",
)
GPU_FABRIC_HEALTH = Metric(
    "railscope_gpu_fabric_health",
    Kind.STATE,
    GPU,
    since="Hopper, newer drivers",
    states={0: "not_supported", 1: "healthy", 2: "unhealthy", 3: "limited_capacity"},
    help="Health of the GPU's place in its NVLink fabric.",
    origin="nvmlDeviceGetGpuFabricInfoV v3 healthSummary",
)
GPU_FABRIC_CONDITION = Metric(
    "railscope_gpu_fabric_condition_active",
    Kind.GAUGE,
    GPU_CONDITION,
    rollups=(Rollup.SUM,),
    since="Hopper",
    help="Whether a fault of the NVLink fabric is present at this GPU (1) or not (0).",
    origin="nvmlDeviceGetGpuFabricInfoV healthMask",
)
GPU_C2C_ENABLED = Metric(
    "railscope_gpu_c2c_enabled",
    Kind.GAUGE,
    GPU,
    since="Grace Hopper",
    help="Whether the link between Grace processor and GPU is on (1) or off (0).",
    origin="nvmlDeviceGetC2cModeInfoV",
)
GPU_C2C_LINKS = Metric(
    "railscope_gpu_c2c_links",
    Kind.GAUGE,
    GPU,
    since="Grace Hopper",
    help="Links between Grace processor and GPU.",
    origin="nvmlDeviceGetFieldValues 170 C2C_LINK_COUNT",
)
GPU_C2C_ACTIVE = Metric(
    "railscope_gpu_c2c_link_active",
    Kind.GAUGE,
    GPU_C2C,
    since="Grace Hopper",
    rollups=(Rollup.MIN,),
    help="Whether one link between Grace processor and GPU is up (1) or not (0).",
    origin="nvmlDeviceGetFieldValues 171 C2C_LINK_GET_STATUS, scope of the link",
)
GPU_C2C_BANDWIDTH = Metric(
    "railscope_gpu_c2c_link_limit_bytes_per_second",
    Kind.GAUGE,
    GPU_C2C,
    unit=Unit.BYTES_PER_SECOND,
    scale=Fraction(10**6),
    since="Grace Hopper",
    help="Highest speed of one link between Grace processor and GPU.",
    origin="nvmlDeviceGetFieldValues 172 C2C_LINK_GET_MAX_BW, scope of the link (MB/s)",
)
GPU_C2C_ERRORS = Metric(
    "railscope_gpu_c2c_errors_total",
    Kind.COUNTER,
    GPU_C2C_ERROR,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="Grace Hopper",
    help="Errors of one link between Grace processor and GPU, by kind.",
    origin="nvmlDeviceGetFieldValues 231 ERROR_INTR, 232 REPLAY, 233 REPLAY_B2B, scope of the link",
)
GPU_XID_ERRORS = Metric(
    "railscope_gpu_xid_errors_total",
    Kind.COUNTER,
    XID,
    unit=Unit.ERRORS,
    resets=LOG,
    help="Xid messages of the NVIDIA driver, by PCI address of the GPU and Xid number.",
    origin="kernel log, NVRM: Xid (...), and NVML events; one that both tell counts once",
)
GPU_LAST_XID = Metric(
    "railscope_gpu_last_xid",
    Kind.GAUGE,
    GPU_ADDRESS,
    help="Number of the last Xid of this GPU; absent where there was none.",
    origin="kernel log and NVML events",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_XID_ERRORS"},
)
GPU_EVENTS = Metric(
    "railscope_gpu_events_total",
    Kind.COUNTER,
    GPU_EVENT,
    resets="Counts from the start of the agent.",
    help="Events of the driver other than Xids, by GPU and kind.",
    origin="nvmlEventSetWait_v2",
)
GPU_EVENTS_LOST = Metric(
    "railscope_gpu_events_lost_total",
    Kind.COUNTER,
    NODE,
    rollups=(Rollup.SUM,),
    resets="Counts from the start of the agent.",
    help="Events of the driver that came faster than the agent could take them.",
    origin="nvmlEventSetWait_v2, gaps in our own numbering",
)
GPU_DEVICE_STATE = Metric(
    "railscope_gpu_device_state",
    Kind.STATE,
    GPU_ADDRESS,
    states={0: "driver", 1: "virtual_machine", 2: "unbound", 3: "other_driver", 4: "missing"},
    help="Who has this GPU: NVIDIA's driver, a virtual machine (vfio-pci), nobody; or the driver has it and does not tell of it.",
    origin="/sys/bus/pci/devices/*/{vendor,class,driver}, nvmlDeviceGetPciInfo",
)
GPU_HEALTH = Metric(
    "railscope_gpu_health",
    Kind.STATE,
    GPU,
    states={0: "unknown", 1: "healthy", 2: "degraded", 3: "failed"},
    help="Verdict on the GPU from all that is known of it; unknown is never healthy.",
    origin="the facts under railscope_gpu_health_reason_active",
)
GPU_HEALTH_REASON = Metric(
    "railscope_gpu_health_reason_active",
    Kind.GAUGE,
    GPU_REASON,
    rollups=(Rollup.SUM,),
    help="Whether this fact speaks against the GPU's health (1) or not (0); absent where it cannot be told.",
    origin="NVML and the kernel log, by the reason's rule",
)
GPU_ACTION = Metric(
    "railscope_gpu_recommended_action",
    Kind.STATE,
    GPU,
    states={
        0: "none",
        1: "ignore",
        2: "restart_app",
        3: "drain",
        4: "reset_gpu",
        5: "reboot",
        6: "rma",
        7: "inspect",
    },
    help="What to do about the GPU: the hardest action that any active reason asks for.",
    origin="Xid catalogue, recovery action of the driver, memory repair policy",
)

GPU_CHANGE_EVENT = EventClass(
    "gpu_inventory",
    GPU_ADDRESS,
    "warning",
    help="A GPU came, went, or was set to something else.",
    origin="nvmlDeviceGetCount, nvmlDeviceGetUUID, nvmlDeviceGetMigMode, nvmlDeviceGetEccMode, nvmlDeviceGetComputeMode, nvmlDeviceGetPowerManagementLimit",
    facts=("change", "gpu", "before", "after"),
    audited=True,
)
GPU_HEALTH_EVENT = EventClass(
    "gpu_health",
    GPU,
    "error",
    help="The verdict on a GPU changed.",
    origin="railscope_gpu_health",
    facts=("before", "after", "reasons", "action", "nvidia_action"),
)
GPU_DRIVER_EVENT = EventClass(
    "gpu_event",
    GPU_EVENT,
    "warning",
    help="The driver reported an event of a GPU that is no Xid.",
    origin="nvmlEventSetWait_v2",
    facts=("gpu_instance", "compute_instance", "data"),
)
