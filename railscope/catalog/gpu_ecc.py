"""GPU memory errors and their repair, from NVML."""

from railscope.catalog.declare import Kind, Metric, Rollup, Unit
from railscope.catalog.entities import (
    GPU,
    GPU_BANK,
    GPU_CONDITION,
    GPU_ECC,
    GPU_ECC_LOCATION,
    GPU_REMAP,
    GPU_SRAM,
)

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
