"""Rules about the memory of a GPU: errors, repairs done and repairs pending.

Sources: NVIDIA, "GPU Memory Error Management"; NVIDIA/DCGM, modules/health/DcgmHealthWatch.cpp and
common/DcgmGPUHardwareLimits.h; nvml.h.
"""

from __future__ import annotations

from agent.health.facts import Facts, untold
from agent.health.rule import DEGRADED, FAILED, SETTINGS, Asked, Rule, any_part, flag
from railscope.catalog import gpu_ecc
from railscope.reading import Absent

MAX_REMAPPED_ROWS = 512
"""Rows that a GPU can replace (GPU Memory Error Management); DCGM warns from that number on."""
MAX_RETIRED_PAGES = 63
"""DCGM_LIMIT_MAX_RETIRED_PAGES: DCGM fails the GPU from that number on; the capacity is 64."""
_DCGM = "DCGM health"
_POLICY = "GPU Memory Error Management"
_NVML = "nvml.h"


def _remapped_rows(facts: Facts) -> bool:
    return facts.number(gpu_ecc.GPU_REMAPPED_ROWS, "uncorrectable") >= MAX_REMAPPED_ROWS


def _retired_pages(facts: Facts) -> bool:
    """Compare the sum over all causes with the limit; the available ones may be sufficient."""
    counts = facts.parts(gpu_ecc.GPU_RETIRED_PAGES).values()
    total = sum(count for count in counts if not isinstance(count, Absent))
    return total >= MAX_RETIRED_PAGES or untold(counts)


RULES = (
    Rule(
        reason="ecc_uncorrected_volatile",
        state=FAILED,
        when="an uncorrectable memory error since the driver was loaded",
        origin=f"{_DCGM}: volatile double-bit errors > 0 fail",
        tell=flag(gpu_ecc.GPU_ECC_ERRORS, "uncorrected", "volatile"),
        asks=Asked(("drain", "reset_gpu"), ("WORKFLOW_XID_48",)),
        metrics=(gpu_ecc.GPU_ECC_ERRORS,),
    ),
    Rule(
        reason="row_remap_failed",
        state=FAILED,
        when="a row of memory could not be replaced",
        origin=f"{_POLICY}: failure flag; {_DCGM} fails",
        tell=flag(gpu_ecc.GPU_ROW_REMAP_FAILURE),
        asks=Asked(("drain", "rma"), ("CONTACT_SUPPORT",)),
        metrics=(gpu_ecc.GPU_ROW_REMAP_FAILURE,),
    ),
    Rule(
        reason="row_remap_pending",
        state=DEGRADED,
        when="a row of memory waits to be replaced; running jobs are safe meanwhile",
        origin=f"{_POLICY}: takes effect at a GPU reset",
        tell=flag(gpu_ecc.GPU_ROW_REMAP_PENDING),
        asks=Asked(("reset_gpu",), ("RESET_GPU",)),
        metrics=(gpu_ecc.GPU_ROW_REMAP_PENDING,),
    ),
    Rule(
        reason="remapped_rows_exhausted",
        state=DEGRADED,
        when=f"{MAX_REMAPPED_ROWS} or more rows replaced for uncorrectable errors",
        origin=f"{_POLICY}: {MAX_REMAPPED_ROWS} rows at most; {_DCGM} warns",
        tell=_remapped_rows,
        asks=Asked(("rma",), ("CONTACT_SUPPORT",)),
        metrics=(gpu_ecc.GPU_REMAPPED_ROWS,),
    ),
    Rule(
        reason="retired_pages_pending",
        state=DEGRADED,
        when="a page of memory waits to be taken out of use (before Ampere)",
        origin=f"{_NVML}, nvmlDeviceGetRetiredPagesPendingStatus: at a reboot; {_DCGM} warns",
        tell=flag(gpu_ecc.GPU_RETIRED_PENDING),
        asks=Asked(("reboot",)),
        metrics=(gpu_ecc.GPU_RETIRED_PENDING,),
    ),
    Rule(
        reason="retired_pages_exhausted",
        state=FAILED,
        when=f"{MAX_RETIRED_PAGES} or more pages of memory taken out of use (before Ampere)",
        origin=f"{_DCGM}: DCGM_LIMIT_MAX_RETIRED_PAGES fails",
        tell=_retired_pages,
        asks=Asked(("drain", "rma"), ("CONTACT_SUPPORT",)),
        sources=(SETTINGS,),
        metrics=(gpu_ecc.GPU_RETIRED_PAGES,),
        needed=False,
    ),
    Rule(
        reason="sram_threshold",
        state=FAILED,
        when="so many errors of on-chip memory that field diagnostics would fail; told to root only",
        origin=f"{_NVML}, bThresholdExceeded; DCGM error 118 isolates the GPU",
        tell=flag(gpu_ecc.GPU_SRAM_THRESHOLD),
        asks=Asked(("drain", "rma"), ("CONTACT_SUPPORT",)),
        metrics=(gpu_ecc.GPU_SRAM_THRESHOLD,),
        needed=False,  # an agent without root would have no healthy GPU
    ),
    Rule(
        reason="unrepairable_memory",
        state=FAILED,
        when="memory that cannot be repaired",
        origin=f"{_NVML}, nvmlDeviceGetUnrepairableMemoryFlag_v1",
        tell=flag(gpu_ecc.GPU_UNREPAIRABLE),
        asks=Asked(("drain", "rma"), ("CONTACT_SUPPORT",)),
        metrics=(gpu_ecc.GPU_UNREPAIRABLE,),
    ),
    Rule(
        reason="repair_pending",
        state=DEGRADED,
        when="a repair of a memory channel or a TPC waits",
        origin=f"{_NVML}, nvmlDeviceGetRepairStatus: takes effect at a GPU reset",
        tell=any_part(gpu_ecc.GPU_REPAIR_PENDING),
        asks=Asked(("reset_gpu",), ("RESET_GPU",)),
        metrics=(gpu_ecc.GPU_REPAIR_PENDING,),
    ),
)
