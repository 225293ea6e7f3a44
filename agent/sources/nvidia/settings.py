"""Values that change rarely: limits, thresholds, modes, memory errors by location, spare rows, C2C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agent.host import Host, Json, NvmlError
from agent.sources.nvidia.calls import (
    Call,
    Field,
    Pick,
    Questions,
    Target,
    count,
    field,
    item,
    key,
    simple,
    whole,
)
from agent.sources.nvidia.load import CLOCKS
from railscope.catalog import gpu as c
from railscope.catalog import gpu_ecc, gpu_modes, gpu_pcie, gpu_power
from railscope.catalog import gpu_health as h
from railscope.catalog.entities import (
    GPU_BANK,
    GPU_C2C,
    GPU_C2C_ERROR,
    GPU_CLOCK,
    GPU_ECC_LOCATION,
    GPU_FAN,
    GPU_POWER_BOUND,
    GPU_REMAP,
    GPU_THRESHOLD,
)

THRESHOLDS = ("shutdown", "slowdown", "memory_maximum", "gpu_maximum")
_FIRST_THRESHOLD_FIELD = 193
# Each with the call that drivers before 530 have.
_LIMIT = "nvmlDeviceGetPowerManagement"
POWER_BOUNDS = {
    "minimum": (187, f"{_LIMIT}LimitConstraints", item(0)),
    "maximum": (188, f"{_LIMIT}LimitConstraints", item(1)),
    "default": (189, f"{_LIMIT}DefaultLimit", whole),
    "requested": (192, f"{_LIMIT}Limit", whole),
}
ERRORS, LIFETIMES = ("corrected", "uncorrected"), ("volatile", "aggregate")
LOCATIONS = ("l1", "l2", "dram", "register_file", "texture", "texture_shared", "cbu", "sram")
BANKS = ("max", "high", "partial", "low", "none")
RETIREMENTS = {"correctable": 0, "uncorrectable": 1}
_C2C_LINK_COUNT, _MAX_PARTS = 170, 64
C2C_ERRORS = {231: "interrupt", 232: "replay", 233: "replay_back_to_back"}

_CALLS: tuple[Call, ...] = (
    *(
        Call(
            ("nvmlDeviceGetMaxClockInfo",),
            (Target(c.GPU_CLOCK_LIMIT, whole, GPU_CLOCK, (name,)),),
            (number,),
        )
        for name, number in CLOCKS.items()
    ),
    *(
        Call(
            ("nvmlDeviceGetTemperatureThreshold",),
            (Target(gpu_power.GPU_TEMPERATURE_THRESHOLD, whole, GPU_THRESHOLD, (name,)),),
            (number,),
        )
        for number, name in enumerate(THRESHOLDS)
    ),
    Call(
        ("nvmlDeviceGetBAR1MemoryInfo",),
        (Target(c.GPU_BAR1_SIZE, key("bar1Total")), Target(c.GPU_BAR1_USED, key("bar1Used"))),
    ),
    simple("nvmlDeviceGetPersistenceMode", gpu_modes.GPU_PERSISTENCE),
    simple("nvmlDeviceGetComputeMode", gpu_modes.GPU_COMPUTE_MODE),
    simple("nvmlDeviceGetAccountingMode", gpu_modes.GPU_ACCOUNTING),
    Call(
        ("nvmlSystemGetConfComputeState",),
        (Target(gpu_modes.GPU_CONFIDENTIAL, key("ccFeature")),),
        of_device=False,
    ),
    Call(
        ("nvmlDeviceGetConfComputeProtectedMemoryUsage",),
        (
            Target(gpu_modes.GPU_PROTECTED_SIZE, key("total")),
            Target(gpu_modes.GPU_PROTECTED_USED, key("used")),
        ),
    ),
    Call(("nvmlDeviceGetGspFirmwareMode",), (Target(gpu_modes.GPU_GSP, item(0)),)),
    *(
        Call(
            ("nvmlDeviceGetMemoryErrorCounter",),
            (
                Target(
                    gpu_ecc.GPU_ECC_LOCATIONS,
                    whole,
                    GPU_ECC_LOCATION,
                    (error, lifetime, LOCATIONS[location]),
                ),
            ),
            (type_, counter, location),
        )
        for type_, error in enumerate(ERRORS)
        for counter, lifetime in enumerate(LIFETIMES)
        for location in range(len(LOCATIONS))
    ),
    Call(
        ("nvmlDeviceGetRowRemapperHistogram",),
        tuple(Target(gpu_ecc.GPU_REMAP_BANKS, key(name), GPU_BANK, (name,)) for name in BANKS),
    ),
    *(
        Call(
            ("nvmlDeviceGetRetiredPages",),
            (Target(gpu_ecc.GPU_RETIRED_PAGES, count, GPU_REMAP, (cause,)),),
            (number,),
        )
        for cause, number in RETIREMENTS.items()
    ),
    simple("nvmlDeviceGetGpuMaxPcieLinkGeneration", gpu_pcie.GPU_PCIE_GENERATION_OWN),
    Call(("nvmlDeviceGetC2cModeInfoV",), (Target(h.GPU_C2C_ENABLED, key("isC2cEnabled")),)),
)


def _power_bound(bound: str, number: int, function: str, pick: Pick) -> Field:
    target = Target(gpu_power.GPU_POWER_BOUNDS, whole, GPU_POWER_BOUND, (bound,))
    return Field((number,), target, Call((function,), (replace(target, pick=pick),)))


_FIELDS: tuple[Field, ...] = (
    *(_power_bound(bound, *where) for bound, where in POWER_BOUNDS.items()),
    field(274, gpu_power.GPU_PEAK_POWER),
    *(
        field(
            _FIRST_THRESHOLD_FIELD + place,
            gpu_power.GPU_TEMPERATURE_THRESHOLD_MARGIN,
            GPU_THRESHOLD,
            t,
        )
        for place, t in enumerate(THRESHOLDS)
    ),
    field(301, gpu_ecc.GPU_REMAPPED_INACTIVE, GPU_REMAP, "correctable"),
    field(302, gpu_ecc.GPU_REMAPPED_INACTIVE, GPU_REMAP, "uncorrectable"),
    field(_C2C_LINK_COUNT, h.GPU_C2C_LINKS),
)


def questions(host: Host, gpu: int) -> Questions:
    """Calls for one GPU, with its actual numbers of fans and of links to a Grace processor."""
    fans = _count(lambda: host.call("nvml", "nvmlDeviceGetNumFans", gpu))
    links = _count(lambda: _first_field(host, gpu, _C2C_LINK_COUNT))
    return Questions(
        (*_CALLS, *(call for fan in range(fans) for call in _fan(fan))),
        (*_FIELDS, *(one for link in range(links) for one in _c2c(link))),
    )


def _count(ask: Callable[[], Json]) -> int:
    try:
        return min(int(ask()), _MAX_PARTS)
    except (NvmlError, OSError, TypeError, ValueError):
        return 0


def _first_field(host: Host, gpu: int, number: int) -> Json:
    (value,), (code,) = host.call("nvml", "nvmlDeviceGetFieldValues", gpu, number)
    return 0 if code else value


def _c2c(link: int) -> tuple[Field, ...]:
    name = str(link)
    errors = (
        field(f"{number}:{link}", h.GPU_C2C_ERRORS, GPU_C2C_ERROR, name, error)
        for number, error in C2C_ERRORS.items()
    )
    return (
        field(f"171:{link}", h.GPU_C2C_ACTIVE, GPU_C2C, name),
        field(f"172:{link}", h.GPU_C2C_BANDWIDTH, GPU_C2C, name),
        *errors,
    )


def _fan(fan: int) -> tuple[Call, ...]:
    name = (str(fan),)
    speed = Target(gpu_power.GPU_FAN_SPEED, whole, GPU_FAN, name)
    rotation = Target(gpu_power.GPU_FAN_ROTATION, whole, GPU_FAN, name)
    turns = (Call(("nvmlDeviceGetFanSpeedRPM",), (rotation,)),) if fan == 0 else ()
    return (Call(("nvmlDeviceGetFanSpeed_v2",), (speed,), (fan,)), *turns)
