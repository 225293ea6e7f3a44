"""Health of a GPU: memory errors and repairs, PCIe, recommended action."""

from __future__ import annotations

from railscope.capture import Json
from simulator.gpu import GpuState
from simulator.gpu_model import Generation
from simulator.memory import BAD_ADDRESS, PAGE_BYTES
from simulator.nvml.answers import Answers, where

L1, L2, DRAM, REGISTER_FILE, CBU, SRAM = 0, 1, 2, 3, 6, 7
_LOCATIONS = 8
_VOLTA_LOCATIONS = frozenset({L1, L2, DRAM, REGISTER_FILE, CBU})
_LOCATIONS_SINCE_TURING = frozenset({DRAM, SRAM})
_SRAM_V1 = 0x0100_0068
_PCIE_ERRORS = range(173, 184)
_PCIE_ERRORS_SINCE, _REPAIRS_SINCE, _FLAG_SINCE = 550, 580, 590
_SOURCES = ("L2", "Sm", "Pcie", "Mcu", "Other")


def tell(gpu: GpuState, told: Answers) -> None:
    """Add the health of this GPU."""
    model, errors = gpu.model, gpu.errors
    cut = bool(gpu.sharing.mig_devices)
    can_remap = model.remaps_rows and not cut
    pending = int(errors.pending)
    repairs = model.remaps_rows and model.driver_branch >= _REPAIRS_SINCE
    flag = model.generation >= Generation.HOPPER and model.driver_branch >= _FLAG_SINCE
    lanes, generation = 16, model.pcie_generation
    told.calls(
        PerformanceState=0,
        EnforcedPowerLimit=model.power_limit_milliwatts,
        MarginTemperature=where(model.tells_margins, gpu.silicon.margin_celsius),
        EccMode=[1, 1],
        EncoderStats=[0, 0, 0],
        MigMode=where(model.has_mig, [int(cut), int(cut)]),
        RemappedRows=where(
            can_remap, [errors.correctable_rows, errors.uncorrectable_rows, pending, 0]
        ),
        RowRemapperHistogram=where(can_remap, _banks(gpu)),
        RetiredPagesPendingStatus=where(not model.remaps_rows, pending),
        RepairStatus=where(repairs, [0, 0]),
        UnrepairableMemoryFlag_v1=where(flag, 0),
        SramEccErrorStatus=where(model.remaps_rows, _sram()),
        CurrPcieLinkGeneration=generation,
        MaxPcieLinkGeneration=generation,
        GpuMaxPcieLinkGeneration=generation,
        CurrPcieLinkWidth=lanes,
        MaxPcieLinkWidth=lanes,
        PcieReplayCounter=gpu.pcie_replays,
    )
    rows = (errors.correctable_rows, errors.uncorrectable_rows)
    for cause, count in enumerate(rows):
        pages = [BAD_ADDRESS // PAGE_BYTES * PAGE_BYTES] * count
        told.call("RetiredPages", where(not model.remaps_rows, pages), cause)
    if model.tells_recovery:
        told.field(230, gpu.recovery_action)
    if repairs and can_remap:
        told.field(301, rows[0])
        told.field(302, rows[1])
    _tell_errors(gpu, told)
    _tell_pcie(gpu, told)


def _banks(gpu: GpuState) -> Json:
    """Return banks by their number of remaining spare rows: a bad row has used one of its bank."""
    touched = int(gpu.errors.pending)
    return {"max": gpu.model.banks - touched, "high": touched, "partial": 0, "low": 0, "none": 0}


def _sram() -> Json:
    none = {f"aggregateUncBucket{source}": 0 for source in _SOURCES}
    for lifetime in ("aggregate", "volatile"):
        none |= {f"{lifetime}{kind}": 0 for kind in ("UncParity", "UncSecDed", "Cor")}
    return {"version": _SRAM_V1, **none, "bThresholdExceeded": 0}


def _tell_errors(gpu: GpuState, told: Answers) -> None:
    """Add the errors: all are of the memory; on-chip memory has none."""
    errors = gpu.errors
    counts = (
        (errors.corrected, errors.corrected_for_life),
        (errors.uncorrected, errors.uncorrected_for_life),
    )
    volta = gpu.model.generation == Generation.VOLTA
    located = _VOLTA_LOCATIONS if volta else _LOCATIONS_SINCE_TURING
    for type_, lifetimes in enumerate(counts):
        for counter, count in enumerate(lifetimes):
            told.call("TotalEccErrors", count, type_, counter)
            told.field(3 + 2 * counter + type_, count)
            for location in range(_LOCATIONS):
                here = count if location == DRAM else 0
                answer = where(location in located, here)
                told.call("MemoryErrorCounter", answer, type_, counter, location)


def _tell_pcie(gpu: GpuState, told: Answers) -> None:
    told.field(94, gpu.pcie_replays)
    told.field(95, 0)
    told.field(169, 0)
    if gpu.model.driver_branch >= _PCIE_ERRORS_SINCE:
        for number in _PCIE_ERRORS:
            told.field(number, 0)
