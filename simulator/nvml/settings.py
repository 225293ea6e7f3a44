"""Rarely changing values: limits, thresholds, modes, the link to a Grace processor."""

from __future__ import annotations

from railscope.capture import Json
from simulator.gpu import GpuState
from simulator.gpu_model import Generation, GpuModel, Thresholds
from simulator.nvml import bar1
from simulator.nvml.answers import Answers, where

_DEFAULT, _EXCLUSIVE_PROCESS = 0, 3
_C2C_LINKS, _C2C_MEGABYTES = 5, 44_712
"""A GPU's half of the bidirectional 900 GB/s, over links of 44.7 GB/s in one direction."""

_C2C_ERRORS = (231, 232, 233)
_PEAK_POWER, _ALL_OF_IT = 274, 100


def confidential_computing(model: GpuModel) -> Json:
    """State of the whole system."""
    off = {"environment": 0, "ccFeature": 0, "devToolsMode": 0}
    return where(model.generation >= Generation.HOPPER, off)


def tell(gpu: GpuState, told: Answers) -> None:
    """Add the settings of this GPU."""
    model = gpu.model
    limits = model.thresholds
    # In NVML's order: shutdown, slowdown, maximum of the memory, maximum of the GPU.
    absolute = (limits.shutdown, limits.slowdown, limits.memory, limits.operating)
    for number, celsius in enumerate(absolute):
        has = not model.tells_margins and celsius is not None
        told.call("TemperatureThreshold", where(has, celsius), number)
    if model.tells_margins:
        for number, margin in enumerate(_margins(limits), 193):
            if margin is not None:
                told.field(number, margin)
    told.call("NumFans", where(condition=False, answer=0))  # cooled by the chassis
    told.calls(
        BAR1MemoryInfo=bar1.of_gpu(gpu),
        PersistenceMode=1,
        ComputeMode=_EXCLUSIVE_PROCESS if gpu.sharing.mode == "mps" else _DEFAULT,
        AccountingMode=0,
        GspFirmwareMode=where(model.generation > Generation.VOLTA, [1, 1]),
        ConfComputeProtectedMemoryUsage={"total": 0, "free": 0, "used": 0},
        C2cModeInfoV=where(
            model.generation >= Generation.HOPPER, {"isC2cEnabled": int(model.grace)}
        ),
    )
    least, most = 1000 * model.min_limit_watts, model.power_limit_milliwatts
    for number, milliwatts in ((187, least), (188, most), (189, most), (190, most), (192, most)):
        told.field(number, milliwatts)
    if model.generation >= Generation.HOPPER:
        told.field(_PEAK_POWER, _ALL_OF_IT)
    if model.grace:
        told.field(170, _C2C_LINKS)
        for link in range(_C2C_LINKS):
            told.field(f"171:{link}", 1)
            told.field(f"172:{link}", _C2C_MEGABYTES)
            for number in _C2C_ERRORS:
                told.field(f"{number}:{link}", 0)


def _margins(limits: Thresholds) -> tuple[int | None, ...]:
    """Return the thresholds relative to the maximum operating temperature; memory has its own."""
    return (
        limits.operating - limits.shutdown,
        limits.operating - limits.slowdown,
        None if limits.memory is None else 0,
        0,
    )
