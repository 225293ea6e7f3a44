"""Faults of a GPU: memory errors and their repair, PCIe link, fabric, Xids, events, verdict.

The verdict is computed from the other metrics: see `agent/railscope_agent/health`.
"""

# fmt: off
import re
from collections.abc import Iterable

from railscope.catalog import declare, entities, gpu

_NVML = declare.MetricTable(entities.GPU, resets=gpu.DRIVER_LOAD)

VOLATILE = "Volatile counts from driver load; aggregate counts for the life of the board."
GPU_ECC_MODE = _NVML.flag("railscope_gpu_ecc_enabled", "1 if error correction of GPU memory is on, 0 if it is off.", "nvmlDeviceGetEccMode current", dcgm="DCGM_FI_DEV_ECC_CURRENT", detail=declare.BASIC)
GPU_ECC_ERRORS = _NVML.counter("railscope_gpu_ecc_errors_total", "Memory errors that error correction detected, by whether it corrected them.", "nvmlDeviceGetTotalEccErrors", about=entities.GPU_ECC, rollups=(declare.Rollup.SUM,), resets=VOLATILE, dcgm="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, DCGM_FI_DEV_ECC_SBE_AGG_TOTAL, DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", detail=declare.BASIC)
GPU_REMAPPED_ROWS = _NVML.gauge("railscope_gpu_remapped_rows", "Memory rows replaced by spare ones, by the kind of error that caused it.", "nvmlDeviceGetRemappedRows", about=entities.GPU_REMAP, since="Ampere", dcgm="DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS, DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", detail=declare.BASIC)
GPU_ROW_REMAP_PENDING = _NVML.flag("railscope_gpu_row_remap_pending", "1 if a row remap is pending until a GPU reset, 0 otherwise.", "nvmlDeviceGetRemappedRows pending", rollups=(declare.Rollup.SUM,), since="Ampere", dcgm="DCGM_FI_DEV_ROW_REMAP_PENDING", detail=declare.BASIC)
GPU_ROW_REMAP_FAILURE = _NVML.flag("railscope_gpu_row_remap_failure", "1 if a row could not be remapped, 0 otherwise.", "nvmlDeviceGetRemappedRows failure", since="Ampere", dcgm="DCGM_FI_DEV_ROW_REMAP_FAILURE", detail=declare.BASIC)
GPU_ECC_PENDING = _NVML.flag("railscope_gpu_ecc_pending", "1 if error correction will be on after the next reset, 0 if it will be off.", "nvmlDeviceGetEccMode pending", dcgm="DCGM_FI_DEV_ECC_PENDING", detail=declare.FULL)
GPU_ECC_LOCATIONS = _NVML.counter("railscope_gpu_ecc_location_errors_total", "Memory errors that error correction detected, by memory.", "nvmlDeviceGetMemoryErrorCounter", about=entities.GPU_ECC_LOCATION, resets=VOLATILE, detail=declare.FULL, total=GPU_ECC_ERRORS)
GPU_SRAM_ERRORS = _NVML.counter("railscope_gpu_sram_uncorrected_errors_total", "Uncorrected errors of on-chip memory, by detection method: parity or SEC-DED.", "nvmlDeviceGetSramEccErrorStatus; needs root", about=entities.GPU_SRAM, resets=VOLATILE, since="Ampere", total=GPU_ECC_ERRORS)
GPU_SRAM_THRESHOLD = _NVML.flag("railscope_gpu_sram_threshold_exceeded", "1 if on-chip memory has had so many errors that field diagnostics would fail it, 0 otherwise.", "nvmlDeviceGetSramEccErrorStatus bThresholdExceeded; needs root", since="Ampere", dcgm="DCGM_FI_DEV_THRESHOLD_SRM", detail=declare.BASIC)
GPU_SRAM_LOCATIONS = _NVML.counter("railscope_gpu_sram_location_errors_total", "Uncorrected errors of on-chip memory over the life of the board, by the unit they were in.", "nvmlDeviceGetSramEccErrorStatus aggregateUncBucket...; needs root", about=entities.GPU_ECC_LOCATION, resets=VOLATILE, since="Ampere", detail=declare.FULL, total=GPU_ECC_ERRORS)
GPU_REMAPPED_INACTIVE = _NVML.gauge("railscope_gpu_remapped_rows_inactive", "Memory rows marked for remapping that are not replaced yet, by the kind of error.", "nvmlDeviceGetFieldValues 301, 302", about=entities.GPU_REMAP, since="Ampere, newer drivers", detail=declare.FULL)
GPU_REMAP_BANKS = _NVML.gauge("railscope_gpu_row_remap_banks", "Memory banks by their remaining spare rows.", "nvmlDeviceGetRowRemapperHistogram", about=entities.GPU_BANK, since="Ampere", detail=declare.FULL)
GPU_RETIRED_PAGES = _NVML.gauge("railscope_gpu_retired_pages", "Memory pages taken out of use, by the kind of error that caused it.", "nvmlDeviceGetRetiredPages; before Ampere", about=entities.GPU_REMAP, dcgm="DCGM_FI_DEV_RETIRED_SBE, DCGM_FI_DEV_RETIRED_DBE")
GPU_RETIRED_PENDING = _NVML.flag("railscope_gpu_retired_pages_pending", "1 if pages are pending retirement at the next reboot, 0 otherwise.", "nvmlDeviceGetRetiredPagesPendingStatus; before Ampere", dcgm="DCGM_FI_DEV_RETIRED_PENDING")
GPU_REPAIR_PENDING = _NVML.flag("railscope_gpu_repair_pending", "1 if a repair of a memory channel or a TPC is pending until a reset, 0 otherwise.", "nvmlDeviceGetRepairStatus", about=entities.GPU_CONDITION, since="Ampere, newer drivers")
GPU_UNREPAIRABLE = _NVML.flag("railscope_gpu_unrepairable_memory", "1 if the GPU has memory that cannot be repaired, 0 otherwise.", "nvmlDeviceGetUnrepairableMemoryFlag_v1", since="Hopper, newer drivers", detail=declare.BASIC)

# PCIe links --------------------------------------------------------------------------------------
GENERATIONS = 0, 15
"""PCIe generations; the newest specification is the seventh."""
GPU_PCIE_GENERATION = _NVML.gauge("railscope_gpu_pcie_link_generation", "PCIe generation the GPU's link runs at now; idle GPUs may run slower to save power.", "nvmlDeviceGetCurrPcieLinkGeneration", dcgm="DCGM_FI_DEV_PCIE_LINK_GEN", detail=declare.BASIC, valid=GENERATIONS)
GPU_PCIE_GENERATION_LIMIT = _NVML.gauge("railscope_gpu_pcie_link_generation_limit", "Highest PCIe generation that GPU and slot can reach together.", "nvmlDeviceGetMaxPcieLinkGeneration", dcgm="DCGM_FI_DEV_PCIE_MAX_LINK_GEN", valid=GENERATIONS)
GPU_PCIE_WIDTH = _NVML.gauge("railscope_gpu_pcie_link_width_lanes", "Lanes the GPU's PCIe link uses now.", "nvmlDeviceGetCurrPcieLinkWidth", dcgm="DCGM_FI_DEV_PCIE_LINK_WIDTH", detail=declare.BASIC)
GPU_PCIE_WIDTH_LIMIT = _NVML.gauge("railscope_gpu_pcie_link_width_limit_lanes", "Maximum lanes that GPU and slot can use together.", "nvmlDeviceGetMaxPcieLinkWidth", dcgm="DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
GPU_PCIE_EXPECTED_WIDTH = _NVML.gauge("railscope_gpu_pcie_expected_width_lanes", "Lanes that the GPU's link should use: those of its slot, or as configured. Absent in virtual machines.", "/sys/bus/pci/devices/*/max_link_width of both ends, settings [pcie]", detail=declare.BASIC)
GPU_PCIE_EXPECTED_GENERATION = _NVML.gauge("railscope_gpu_pcie_expected_generation", "PCIe generation that the GPU's link should reach under load: that of its slot, or as configured. Absent in virtual machines.", "/sys/bus/pci/devices/*/max_link_speed of both ends, settings [pcie]", detail=declare.BASIC, valid=GENERATIONS)
GPU_PCIE_REPLAYS = _NVML.counter("railscope_gpu_pcie_replays_total", "PCIe packets the GPU had to send again.", "nvmlDeviceGetPcieReplayCounter", rollups=(declare.Rollup.SUM,), dcgm="DCGM_FI_DEV_PCIE_REPLAY_COUNTER", detail=declare.BASIC)
GPU_PCIE_GENERATION_OWN = _NVML.gauge("railscope_gpu_pcie_link_generation_gpu_limit", "Highest PCIe generation of the GPU alone.", "nvmlDeviceGetGpuMaxPcieLinkGeneration", valid=GENERATIONS)
GPU_PCIE_ROLLOVERS = _NVML.counter("railscope_gpu_pcie_replay_rollovers_total", "Times the PCIe link was retrained because too many replays failed.", "nvmlDeviceGetFieldValues 95 PCIE_REPLAY_ROLLOVER_COUNTER")
GPU_PCIE_RECOVERIES = _NVML.counter("railscope_gpu_pcie_recoveries_total", "Times the PCIe link went from L0 to Recovery.", "nvmlDeviceGetFieldValues 169 PCIE_L0_TO_RECOVERY_COUNTER")
GPU_ALL_PCIE_ERRORS = _NVML.counter("railscope_gpu_pcie_all_errors_total", "PCIe errors of all kinds that the GPU counted.", "agent, sum of railscope_gpu_pcie_errors_total; a kind that cannot be read keeps its part", resets="Starts with the agent, at the sum of the kinds.", since="newer drivers")
GPU_PCIE_ERRORS = _NVML.counter("railscope_gpu_pcie_errors_total", "PCIe errors the GPU counted, by kind.", "nvmlDeviceGetFieldValues 173 to 183", about=entities.GPU_PCIE_ERROR, since="newer drivers", total=GPU_ALL_PCIE_ERRORS)
GPU_PCIE_TRANSMITTED = _NVML.counter("railscope_gpu_pcie_transmitted_bytes_total", "Bytes the GPU sent over PCIe.", "nvmlDeviceGetFieldValues 197 PCIE_COUNT_TX_BYTES", since="newer drivers")
GPU_PCIE_RECEIVED = _NVML.counter("railscope_gpu_pcie_received_bytes_total", "Bytes the GPU received over PCIe.", "nvmlDeviceGetFieldValues 198 PCIE_COUNT_RX_BYTES", since="newer drivers")

# Fabric, driver, verdict -------------------------------------------------------------------------
LOG = "Counts from the start of the kernel log the agent could read."
GPU_RECOVERY_ACTION = _NVML.state("railscope_gpu_recovery_action", "Action that the driver recommends to recover the GPU.", "nvmlDeviceGetFieldValues 230 GET_GPU_RECOVERY_ACTION", states={0: "none", 1: "gpu_reset", 2: "node_reboot", 3: "drain_p2p", 4: "drain_and_reset", 5: "recover_imex_domain", 6: "bus_reset", 7: "system_reboot"}, since="driver 570", dcgm="DCGM_FI_DEV_GPU_RECOVERY_ACTION", detail=declare.BASIC)
GPU_FABRIC_STATE = _NVML.state("railscope_gpu_fabric_state", "State of the GPU joining its NVLink fabric; CUDA starts only once it is completed.", "nvmlDeviceGetGpuFabricInfoV state", states={0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}, since="Hopper", detail=declare.BASIC)
GPU_FABRIC_STATUS = _NVML.gauge("railscope_gpu_fabric_status_code", "NVML return code of joining the fabric: 0 is success; absent until joining has completed.", "nvmlDeviceGetGpuFabricInfoV status", since="Hopper")
GPU_FABRIC_HEALTH = _NVML.state("railscope_gpu_fabric_health", "Health of the GPU's membership in its NVLink fabric.", "nvmlDeviceGetGpuFabricInfoV v3 healthSummary", states={0: "not_supported", 1: "healthy", 2: "unhealthy", 3: "limited_capacity"}, since="Hopper, newer drivers", detail=declare.BASIC)
GPU_FABRIC_CONDITION = _NVML.flag("railscope_gpu_fabric_condition_active", "1 if a fault of the NVLink fabric is present at this GPU, 0 otherwise.", "nvmlDeviceGetGpuFabricInfoV healthMask", about=entities.GPU_CONDITION, since="Hopper", detail=declare.BASIC)
GPU_C2C_ENABLED = _NVML.flag("railscope_gpu_c2c_enabled", "1 if the link between Grace processor and GPU is on, 0 if it is off.", "nvmlDeviceGetC2cModeInfoV", since="Grace Hopper")
GPU_C2C_LINKS = _NVML.gauge("railscope_gpu_c2c_links", "Links between Grace processor and GPU.", "nvmlDeviceGetFieldValues 170 C2C_LINK_COUNT", since="Grace Hopper")
GPU_C2C_ACTIVE = _NVML.flag("railscope_gpu_c2c_link_active", "1 if one link between Grace processor and GPU is up, 0 otherwise.", "nvmlDeviceGetFieldValues 171 C2C_LINK_GET_STATUS, scope of the link", about=entities.GPU_C2C, since="Grace Hopper")
GPU_C2C_BANDWIDTH = _NVML.gauge("railscope_gpu_c2c_link_limit_bytes_per_second", "Highest speed of one link between Grace processor and GPU.", "nvmlDeviceGetFieldValues 172 C2C_LINK_GET_MAX_BW, scope of the link (MB/s)", about=entities.GPU_C2C, scale=declare.MEGA, since="Grace Hopper")
GPU_C2C_ERRORS = _NVML.counter("railscope_gpu_c2c_errors_total", "Errors of one link between Grace processor and GPU, by kind.", "nvmlDeviceGetFieldValues 231 ERROR_INTR, 232 REPLAY, 233 REPLAY_B2B, scope of the link", about=entities.GPU_C2C_ERROR, since="Grace Hopper")
GPU_XID_ERRORS = _NVML.counter("railscope_gpu_xid_errors_total", "Xid messages of the NVIDIA driver, by PCI address of the GPU and Xid number.", "kernel log, NVRM: Xid (...), and NVML events; an Xid that both report counts once", about=entities.XID, resets=LOG, detail=declare.BASIC)
GPU_LAST_XID = _NVML.gauge("railscope_gpu_last_xid", "Number of the last Xid of this GPU; absent where there was none.", "kernel log and NVML events", about=entities.GPU_ADDRESS, dcgm="DCGM_FI_DEV_XID_ERRORS")
GPU_EVENTS = _NVML.counter("railscope_gpu_events_total", "Events of the driver other than Xids, by GPU and kind.", "nvmlEventSetWait_v2", about=entities.GPU_EVENT, resets="Counts from the start of the agent.")
GPU_EVENTS_LOST = _NVML.counter("railscope_gpu_events_lost_total", "Events of the driver that arrived faster than the agent could read them.", "nvmlEventSetWait_v2, gaps in our own numbering", about=entities.NODE, resets="Counts from the start of the agent.", detail=declare.BASIC)
GPU_DEVICE_STATE = _NVML.state("railscope_gpu_device_state", "Owner of this GPU: the NVIDIA driver, a virtual machine (vfio-pci), another driver, none; missing if the NVIDIA driver owns it and does not list it.", "/sys/bus/pci/devices/*/{vendor,class,driver}, nvmlDeviceGetPciInfo", states={0: "driver", 1: "virtual_machine", 2: "unbound", 3: "other_driver", 4: "missing"}, about=entities.GPU_ADDRESS, detail=declare.BASIC)
GPU_HEALTH = _NVML.state("railscope_gpu_health", "Verdict on the GPU from all its readings; unknown is never healthy.", "the facts under railscope_gpu_health_reason_active", states={0: "unknown", 1: "healthy", 2: "degraded", 3: "failed"}, detail=declare.BASIC)
GPU_HEALTH_REASON = _NVML.flag("railscope_gpu_health_reason_active", "1 if this reason applies to the GPU; an unknown one is absent.", "NVML and the kernel log, by the reason's rule", about=entities.GPU_REASON, rollups=(declare.Rollup.SUM,), detail=declare.BASIC, total=GPU_HEALTH)
GPU_ACTION = _NVML.state("railscope_gpu_recommended_action", "Recommended action for the GPU: the most severe action of all active reasons.", "Xid catalogue, recovery action of the driver, memory repair policy", states={0: "none", 1: "ignore", 2: "restart_app", 3: "drain", 4: "reset_gpu", 5: "reboot", 6: "rma", 7: "inspect"}, detail=declare.BASIC)
REASONS = {
    "gpu_lost": "GPU lost",
    "driver_unsuitable": "driver or firmware does not fit it",
    "not_initialized": "the driver cannot start it",
    "ecc_uncorrected_volatile": "uncorrectable memory error",
    "unrepairable_memory": "memory that cannot be repaired",
    "row_remap_failed": "memory row not replaced",
    "sram_threshold": "too many errors of on-chip memory",
    "retired_pages_exhausted": "too many retired memory pages",
    "fabric_not_joined": "not in its NVLink fabric",
    "fabric_unhealthy": "NVLink fabric unhealthy",
    "nvlink_down": "NVLink down",
    "nvlink_recovering": "NVLink replay or recovery",
    "nvlink_crc_rate": "high rate of NVLink errors",
    "nvlink_bit_errors": "high NVLink bit error ratio",
    "xid_fatal": "fatal Xid",
    "reset_required": "reset required",
    "recovery_action": "the driver requires a reset or reboot",
    "driver_unresponsive": "no current readings",
    "remapped_rows_exhausted": "no spare memory rows",
    "row_remap_pending": "memory row to be replaced at a reset",
    "retired_pages_pending": "memory page to be retired at a reboot",
    "repair_pending": "repair to be done at a reset",
    "ecc_corrected_rate": "many corrected memory errors",
    "fabric_limited": "NVLink fabric with limited capacity",
    "fabric_condition": "fault of the NVLink fabric",
    "nvlink_crc": "NVLink errors",
    "pcie_width": "fewer PCIe lanes than expected",
    "pcie_generation": "slower PCIe link than expected",
    "pcie_errors": "PCIe errors",
    "pcie_replays": "many PCIe replays",
    "power_brake": "slowed down by the power supply",
    "thermal_hardware": "slowed down by heat (hardware)",
    "thermal_software": "slowed down by heat (driver)",
    "temperature_margin": "temperature at its limit",
    "xid_action": "Xid that requires an action",
    "recovery_drain": "the driver requires a drain",
}
"""Reasons of the verdict on a GPU, in words: failures first, and a cause before what the driver reports or demands because of it."""
_RANKS = {reason: rank for rank, reason in enumerate(REASONS)}
ACTIONS = {
    "restart_app": "restart the application",
    "drain": "drain the node",
    "reset_gpu": "reset the GPU",
    "reboot": "reboot the node",
    "rma": "replace the GPU",
    "inspect": "inspect the device",
}
"""Recommended actions in words."""
GPU_CHANGE_EVENT = declare.EventClass("gpu_inventory", entities.GPU_ADDRESS, "warning", "A GPU was added or removed, or one of its settings changed.", "nvmlDeviceGetCount, nvmlDeviceGetUUID, nvmlDeviceGetMigMode, nvmlDeviceGetEccMode, nvmlDeviceGetComputeMode, nvmlDeviceGetPowerManagementLimit", ("change", "gpu", "before", "after"), audited=True)
GPU_HEALTH_EVENT = declare.EventClass("gpu_health", entities.GPU, "error", "The verdict on a GPU changed.", "railscope_gpu_health", ("before", "after", "reasons", "action", "nvidia_action"), judged_by="RailscopeGpuHealth")
GPU_DRIVER_EVENT = declare.EventClass("gpu_event", entities.GPU_EVENT, "warning", "The driver reported an event of a GPU other than an Xid.", "nvmlEventSetWait_v2", ("gpu_instance", "compute_instance", "data"), judged_by="RailscopeGpuHealth")


def reason_text(reason: str) -> str:
    """Return a reason in words; the name of one that a newer agent reports, or any other text, as it is."""
    return REASONS.get(reason, reason)


def by_cause(reasons: Iterable[str]) -> list[str]:
    """Return reasons in the order of `REASONS`: the first one explains the others, and is all that a list shows."""
    return sorted(reasons, key=lambda reason: _RANKS.get(reason, len(_RANKS)))


_UNREAD = {
    "unsupported": "not supported",
    "denied": "not permitted",
    "gone": "no longer there",
    "timeout": "not read in time",
    "error": "not readable",
    "not_due": "not read yet",
    "reset_required": "not readable before a reset",
}
"""Reasons why a reading is absent, in words."""
_UNREAD_REASON = re.compile(rf"(\w+) \(({'|'.join(_UNREAD)})\)")


def event_reasons_text(reasons: str) -> str:
    """Return the reasons of an event about a verdict in words; those whose readings are absent are named as such."""
    active, unread = list[str](), dict[str, list[str]]()
    for reason in filter(None, reasons.split(", ")):
        if found := _UNREAD_REASON.fullmatch(reason):
            unread.setdefault(_UNREAD[found[2]], []).append(reason_text(found[1]))
        else:
            active.append(reason_text(reason))
    texts = [", ".join(active), *(f"{why}: {', '.join(names)}" for why, names in unread.items())]
    return "; ".join(filter(None, texts))
