"""What is wrong with a GPU: memory errors and repairs, PCIe, the fabric, what NVIDIA asks for.

A verdict is made of these: see `agent/verdict`.
"""

from fractions import Fraction

from railscope.catalog.declare import EventClass, Kind, Metric, Rollup, Unit
from railscope.catalog.entities import (
    GPU,
    GPU_ADDRESS,
    GPU_BANK,
    GPU_C2C,
    GPU_C2C_ERROR,
    GPU_CONDITION,
    GPU_ECC,
    GPU_ECC_LOCATION,
    GPU_EVENT,
    GPU_PCIE_ERROR,
    GPU_REASON,
    GPU_REMAP,
    GPU_SRAM,
    NODE,
    XID,
)
from railscope.catalog.gpu import DRIVER_LOAD

LOG = "Counts from the start of the kernel log the agent could read."
VOLATILE = "Volatile counts from driver load; aggregate counts for the life of the board."

GPU_ECC_MODE = Metric(
    "railscope_gpu_ecc_enabled",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.MIN,),
    help="Whether error correction of GPU memory is on (1) or off (0).",
    origin="nvmlDeviceGetEccMode current",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_ECC_CURRENT"},
)
GPU_ECC_ERRORS = Metric(
    "railscope_gpu_ecc_errors_total",
    Kind.COUNTER,
    GPU_ECC,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets=VOLATILE,
    help="Memory errors that error correction met, by whether it could correct them.",
    origin="nvmlDeviceGetTotalEccErrors",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, DCGM_FI_DEV_ECC_SBE_AGG_TOTAL, DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"
    },
)
GPU_REMAPPED_ROWS = Metric(
    "railscope_gpu_remapped_rows",
    Kind.GAUGE,
    GPU_REMAP,
    rollups=(Rollup.SUM,),
    since="Ampere",
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
    since="Ampere",
    help="Whether a row remap waits for a GPU reset (1) or not (0).",
    origin="nvmlDeviceGetRemappedRows pending",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_ROW_REMAP_PENDING"},
)
GPU_ROW_REMAP_FAILURE = Metric(
    "railscope_gpu_row_remap_failure",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    since="Ampere",
    help="Whether a row could not be remapped (1) or not (0).",
    origin="nvmlDeviceGetRemappedRows failure",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_ROW_REMAP_FAILURE"},
)
GPU_ECC_PENDING = Metric(
    "railscope_gpu_ecc_pending",
    Kind.GAUGE,
    GPU,
    help="Whether error correction will be on (1) or off (0) after the next reset.",
    origin="nvmlDeviceGetEccMode pending",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_ECC_PENDING"},
)
GPU_ECC_LOCATIONS = Metric(
    "railscope_gpu_ecc_location_errors_total",
    Kind.COUNTER,
    GPU_ECC_LOCATION,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets=VOLATILE,
    help="Memory errors that error correction met, by the memory they were in.",
    origin="nvmlDeviceGetMemoryErrorCounter",
)
GPU_SRAM_ERRORS = Metric(
    "railscope_gpu_sram_uncorrected_errors_total",
    Kind.COUNTER,
    GPU_SRAM,
    unit=Unit.ERRORS,
    resets=VOLATILE,
    since="Ampere",
    help="Uncorrected errors of on-chip memory, by what found them: parity or SEC-DED.",
    origin="nvmlDeviceGetSramEccErrorStatus; needs root",
)
GPU_SRAM_THRESHOLD = Metric(
    "railscope_gpu_sram_threshold_exceeded",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    since="Ampere",
    help="Whether on-chip memory has had so many errors that field diagnostics would fail it (1) or not (0).",
    origin="nvmlDeviceGetSramEccErrorStatus bThresholdExceeded; needs root",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_THRESHOLD_SRM"},
)
GPU_SRAM_LOCATIONS = Metric(
    "railscope_gpu_sram_location_errors_total",
    Kind.COUNTER,
    GPU_ECC_LOCATION,
    unit=Unit.ERRORS,
    resets=VOLATILE,
    since="Ampere",
    help="Uncorrected errors of on-chip memory over the life of the board, by the unit they were in.",
    origin="nvmlDeviceGetSramEccErrorStatus aggregateUncBucket...; needs root",
)
GPU_REMAPPED_INACTIVE = Metric(
    "railscope_gpu_remapped_rows_inactive",
    Kind.GAUGE,
    GPU_REMAP,
    since="Ampere, newer drivers",
    help="Memory rows marked for remapping that are not replaced yet, by the kind of error.",
    origin="nvmlDeviceGetFieldValues 301, 302",
)
GPU_REMAP_BANKS = Metric(
    "railscope_gpu_row_remap_banks",
    Kind.GAUGE,
    GPU_BANK,
    rollups=(Rollup.SUM,),
    since="Ampere",
    help="Memory banks by how many spare rows they have left.",
    origin="nvmlDeviceGetRowRemapperHistogram",
)
GPU_RETIRED_PAGES = Metric(
    "railscope_gpu_retired_pages",
    Kind.GAUGE,
    GPU_REMAP,
    rollups=(Rollup.SUM,),
    help="Memory pages taken out of use, by the kind of error that caused it.",
    origin="nvmlDeviceGetRetiredPages; before Ampere",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_RETIRED_SBE, DCGM_FI_DEV_RETIRED_DBE"},
)
GPU_RETIRED_PENDING = Metric(
    "railscope_gpu_retired_pages_pending",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    help="Whether pages wait for a reboot to be taken out of use (1) or not (0).",
    origin="nvmlDeviceGetRetiredPagesPendingStatus; before Ampere",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_RETIRED_PENDING"},
)
GPU_REPAIR_PENDING = Metric(
    "railscope_gpu_repair_pending",
    Kind.GAUGE,
    GPU_CONDITION,
    rollups=(Rollup.SUM,),
    since="Ampere, newer drivers",
    help="Whether a repair of a memory channel or a TPC waits for a reset (1) or not (0).",
    origin="nvmlDeviceGetRepairStatus",
)
GPU_UNREPAIRABLE = Metric(
    "railscope_gpu_unrepairable_memory",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    since="Hopper, newer drivers",
    help="Whether the GPU has memory that cannot be repaired (1) or not (0).",
    origin="nvmlDeviceGetUnrepairableMemoryFlag_v1",
)
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
GPU_PCIE_GENERATION = Metric(
    "railscope_gpu_pcie_link_generation",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.MIN,),
    help="PCIe generation the GPU's link runs at now; idle GPUs may run slower to save power.",
    origin="nvmlDeviceGetCurrPcieLinkGeneration",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_LINK_GEN"},
)
GPU_PCIE_GENERATION_LIMIT = Metric(
    "railscope_gpu_pcie_link_generation_limit",
    Kind.GAUGE,
    GPU,
    help="Highest PCIe generation that GPU and slot can reach together.",
    origin="nvmlDeviceGetMaxPcieLinkGeneration",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_MAX_LINK_GEN"},
)
GPU_PCIE_WIDTH = Metric(
    "railscope_gpu_pcie_link_width_lanes",
    Kind.GAUGE,
    GPU,
    unit=Unit.LANES,
    rollups=(Rollup.MIN,),
    help="Lanes the GPU's PCIe link uses now.",
    origin="nvmlDeviceGetCurrPcieLinkWidth",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_LINK_WIDTH"},
)
GPU_PCIE_WIDTH_LIMIT = Metric(
    "railscope_gpu_pcie_link_width_limit_lanes",
    Kind.GAUGE,
    GPU,
    unit=Unit.LANES,
    help="Most lanes that GPU and slot can use together.",
    origin="nvmlDeviceGetMaxPcieLinkWidth",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"},
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
GPU_PCIE_GENERATION_OWN = Metric(
    "railscope_gpu_pcie_link_generation_gpu_limit",
    Kind.GAUGE,
    GPU,
    help="Highest PCIe generation of the GPU alone.",
    origin="nvmlDeviceGetGpuMaxPcieLinkGeneration",
)
GPU_PCIE_ROLLOVERS = Metric(
    "railscope_gpu_pcie_replay_rollovers_total",
    Kind.COUNTER,
    GPU,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    help="Times so many replays failed that the PCIe link was trained anew.",
    origin="nvmlDeviceGetFieldValues 95 PCIE_REPLAY_ROLLOVER_COUNTER",
)
GPU_PCIE_RECOVERIES = Metric(
    "railscope_gpu_pcie_recoveries_total",
    Kind.COUNTER,
    GPU,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    help="Times the PCIe link left its working state to recover.",
    origin="nvmlDeviceGetFieldValues 169 PCIE_L0_TO_RECOVERY_COUNTER",
)
GPU_PCIE_ERRORS = Metric(
    "railscope_gpu_pcie_errors_total",
    Kind.COUNTER,
    GPU_PCIE_ERROR,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="newer drivers",
    help="PCIe errors the GPU counted, by kind.",
    origin="nvmlDeviceGetFieldValues 173 to 183",
)
GPU_PCIE_TRANSMITTED = Metric(
    "railscope_gpu_pcie_transmitted_bytes_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="newer drivers",
    help="Bytes the GPU sent over PCIe.",
    origin="nvmlDeviceGetFieldValues 197 PCIE_COUNT_TX_BYTES",
)
GPU_PCIE_RECEIVED = Metric(
    "railscope_gpu_pcie_received_bytes_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="newer drivers",
    help="Bytes the GPU received over PCIe.",
    origin="nvmlDeviceGetFieldValues 198 PCIE_COUNT_RX_BYTES",
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
