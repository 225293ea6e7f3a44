"""Tables of NVML calls for values that change every second, and for values that change rarely.

Every second: activity, memory, clocks, power, heat, clock limit reasons. Rarely: limits,
thresholds, modes, memory errors by location, spare rows, C2C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agent.host import Host, Json, NvmlError
from agent.sources.nvidia import call_plan
from agent.sources.nvidia.column_history import MAX_MEMORY_BYTES, IntegratedGauge
from railscope.catalog import entities, gpu as c, gpu_health as h, nvlink as n
from railscope.reading import Absent, Reading

CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
# Fields that count the nanoseconds that a reason was active since driver load.
THROTTLE_FIELDS = {
    74: "software_power_cap",
    75: "thermal",
    76: "sync_boost",
    77: "board_limit",
    78: "low_utilization",
    79: "reliability",
    80: "application_clocks",
    81: "base_clocks",
}
# Three more consecutive ones, under new numbers since driver 590 (pynvml 13.615); 575 and 580 have
# them at the present numbers of power smoothing (NVIDIA/k8s-test-infra, mocknvml: calls of
# nvidia-smi 580).
SLOWDOWNS = ("software_thermal", "hardware_thermal", "hardware_power_brake")
_FIRST_SLOWDOWN_FIELD, _FIRST_SLOWDOWN_FIELD_BEFORE_590 = 269, 251
_DRIVERS_BEFORE_590 = range(575, 590)
_REASONS_OF_ALL = 0x1FF
"""The oldest reasons of nvml.h, for a GPU that does not report its supported ones."""
ALL_LINKS = 0xFFFF_FFFF
MODULE_SCOPE, MEMORY_SCOPE = 1, 2
MAX_PLAUSIBLE_CELSIUS = 200  # DCGM rejects higher ones too


def _memory_temperature(value: Json) -> Reading:
    if value == 0:
        return Absent.UNSUPPORTED  # a GPU without the sensor (NVIDIA/dcgm-exporter#460)
    return int(value) if 0 < value < MAX_PLAUSIBLE_CELSIUS else Absent.ERROR


def _memory_power(value: Json) -> Reading:
    # A GPU without the sensor may report 0 (ml-energy/zeus, device/gpu/nvidia.py).
    return int(value) or Absent.UNSUPPORTED


_LOAD_CALLS: tuple[call_plan.NvmlCall, ...] = (
    call_plan.NvmlCall(
        ("nvmlDeviceGetUtilizationRates",),
        (
            call_plan.CallTarget(c.GPU_UTILIZATION, call_plan.key("gpu")),
            call_plan.CallTarget(c.GPU_MEMORY_ACTIVITY, call_plan.key("memory")),
        ),
    ),
    call_plan.NvmlCall(
        ("nvmlDeviceGetMemoryInfo",),
        (
            call_plan.CallTarget(c.GPU_MEMORY_TOTAL, call_plan.key("total")),
            call_plan.CallTarget(c.GPU_MEMORY_USED, call_plan.used),
            call_plan.CallTarget(c.GPU_MEMORY_FREE, call_plan.key("free")),
            call_plan.CallTarget(c.GPU_MEMORY_RESERVED, call_plan.key("reserved")),
        ),
    ),
    *(
        call_plan.NvmlCall(
            ("nvmlDeviceGetClockInfo",),
            (
                call_plan.CallTarget(
                    c.GPU_CLOCK_SPEED, call_plan.whole, entities.GPU_CLOCK, (name,)
                ),
            ),
            (number,),
        )
        for name, number in CLOCKS.items()
    ),
    call_plan.simple("nvmlDeviceGetPowerUsage", c.GPU_POWER),
    call_plan.NvmlCall(
        ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
        (call_plan.CallTarget(c.GPU_TEMPERATURE, call_plan.whole),),
        (0,),
    ),
)

_LOAD_FIELDS: tuple[call_plan.BatchField, ...] = (
    call_plan.BatchField(
        (83,),
        call_plan.CallTarget(c.GPU_ENERGY, call_plan.whole),
        call_plan.simple("nvmlDeviceGetTotalEnergyConsumption", c.GPU_ENERGY),
    ),
    call_plan.field(185, c.GPU_POWER_AVERAGE),
    call_plan.field(186, c.GPU_POWER_INSTANT),
    call_plan.field(f"186:{MODULE_SCOPE}", c.GPU_MODULE_POWER),
    call_plan.field(f"190:{MODULE_SCOPE}", c.GPU_MODULE_POWER_LIMIT),
    call_plan.BatchField(
        (f"185:{MEMORY_SCOPE}",), call_plan.CallTarget(c.GPU_MEMORY_POWER, _memory_power)
    ),
    call_plan.BatchField(
        (82,), call_plan.CallTarget(c.GPU_MEMORY_TEMPERATURE, _memory_temperature)
    ),
    *(
        call_plan.field(number, c.GPU_THROTTLE_TIME, entities.GPU_THROTTLE, reason)
        for number, reason in THROTTLE_FIELDS.items()
    ),
    call_plan.field(197, h.GPU_PCIE_TRANSMITTED),
    call_plan.field(198, h.GPU_PCIE_RECEIVED),
    call_plan.field(f"138:{ALL_LINKS}", n.GPU_NVLINK_TRANSMITTED),
    call_plan.field(f"139:{ALL_LINKS}", n.GPU_NVLINK_RECEIVED),
    call_plan.field(f"140:{ALL_LINKS}", n.GPU_NVLINK_RAW_TRANSMITTED),
    call_plan.field(f"141:{ALL_LINKS}", n.GPU_NVLINK_RAW_RECEIVED),
)

_PERCENT = 100
LOAD_INTEGRALS = (
    IntegratedGauge(c.GPU_UTILIZATION, c.GPU_BUSY, _PERCENT),
    IntegratedGauge(c.GPU_MEMORY_USED, c.GPU_MEMORY_USED_TIME, MAX_MEMORY_BYTES),
)


def _load_table(reasons: int, first_slowdown_field: int) -> call_plan.CallTable:
    active = call_plan.NvmlCall(
        (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ),
        tuple(
            call_plan.CallTarget(
                c.GPU_THROTTLE_ACTIVE, call_plan.bit(mask), entities.GPU_THROTTLE, (reason,)
            )
            for reason, mask in c.THROTTLE_BITS.items()
            if reasons & mask
        ),
    )
    slowdowns = (
        call_plan.field(number, c.GPU_THROTTLE_TIME, entities.GPU_THROTTLE, reason)
        for number, reason in enumerate(SLOWDOWNS, first_slowdown_field)
    )
    return call_plan.CallTable((*_LOAD_CALLS, active), (*_LOAD_FIELDS, *slowdowns))


LOAD_TABLE = _load_table(_REASONS_OF_ALL, _FIRST_SLOWDOWN_FIELD)


def load_table(host: Host, gpu: int) -> call_plan.CallTable:
    """Calls for one GPU, with the clock limit reasons that it supports."""
    return _load_table(_supported_reasons(host, gpu), _first_slowdown_field(host))


def _supported_reasons(host: Host, gpu: int) -> int:
    """Supported clock limit reasons of a GPU as a bit mask; the default set if it does not report them."""
    for what in ("Event", "Throttle"):
        try:
            mask = int(host.call("nvml", f"nvmlDeviceGetSupportedClocks{what}Reasons", gpu))
        except (NvmlError, OSError):
            continue
        return mask & sum(c.THROTTLE_BITS.values()) or _REASONS_OF_ALL
    return _REASONS_OF_ALL


def _first_slowdown_field(host: Host) -> int:
    try:
        version = str(host.call("nvml", "nvmlSystemGetDriverVersion"))
    except (NvmlError, OSError):
        return _FIRST_SLOWDOWN_FIELD
    branch = version.partition(".")[0]
    if branch.isdecimal() and int(branch) in _DRIVERS_BEFORE_590:
        return _FIRST_SLOWDOWN_FIELD_BEFORE_590
    return _FIRST_SLOWDOWN_FIELD


THRESHOLDS = ("shutdown", "slowdown", "memory_maximum", "gpu_maximum")
_FIRST_THRESHOLD_FIELD = 193
# Each with the call that drivers before 530 have.
_LIMIT = "nvmlDeviceGetPowerManagement"
POWER_BOUNDS = {
    "minimum": (187, f"{_LIMIT}LimitConstraints", call_plan.item(0)),
    "maximum": (188, f"{_LIMIT}LimitConstraints", call_plan.item(1)),
    "default": (189, f"{_LIMIT}DefaultLimit", call_plan.whole),
    "requested": (192, f"{_LIMIT}Limit", call_plan.whole),
}
ERRORS, LIFETIMES = ("corrected", "uncorrected"), ("volatile", "aggregate")
LOCATIONS = ("l1", "l2", "dram", "register_file", "texture", "texture_shared", "cbu", "sram")
BANKS = ("max", "high", "partial", "low", "none")
RETIREMENTS = {"correctable": 0, "uncorrectable": 1}
_C2C_LINK_COUNT, _MAX_PARTS = 170, 64
C2C_ERRORS = {231: "interrupt", 232: "replay", 233: "replay_back_to_back"}

_SETTINGS_CALLS: tuple[call_plan.NvmlCall, ...] = (
    *(
        call_plan.NvmlCall(
            ("nvmlDeviceGetMaxClockInfo",),
            (
                call_plan.CallTarget(
                    c.GPU_CLOCK_LIMIT, call_plan.whole, entities.GPU_CLOCK, (name,)
                ),
            ),
            (number,),
        )
        for name, number in CLOCKS.items()
    ),
    *(
        call_plan.NvmlCall(
            ("nvmlDeviceGetTemperatureThreshold",),
            (
                call_plan.CallTarget(
                    c.GPU_TEMPERATURE_THRESHOLD, call_plan.whole, entities.GPU_THRESHOLD, (name,)
                ),
            ),
            (number,),
        )
        for number, name in enumerate(THRESHOLDS)
    ),
    call_plan.NvmlCall(
        ("nvmlDeviceGetBAR1MemoryInfo",),
        (
            call_plan.CallTarget(c.GPU_BAR1_SIZE, call_plan.key("bar1Total")),
            call_plan.CallTarget(c.GPU_BAR1_USED, call_plan.key("bar1Used")),
        ),
    ),
    call_plan.simple("nvmlDeviceGetPersistenceMode", c.GPU_PERSISTENCE),
    call_plan.simple("nvmlDeviceGetComputeMode", c.GPU_COMPUTE_MODE),
    call_plan.simple("nvmlDeviceGetAccountingMode", c.GPU_ACCOUNTING),
    call_plan.NvmlCall(
        ("nvmlSystemGetConfComputeState",),
        (call_plan.CallTarget(c.GPU_CONFIDENTIAL, call_plan.key("ccFeature")),),
        of_device=False,
    ),
    call_plan.NvmlCall(
        ("nvmlDeviceGetConfComputeProtectedMemoryUsage",),
        (
            call_plan.CallTarget(c.GPU_PROTECTED_SIZE, call_plan.key("total")),
            call_plan.CallTarget(c.GPU_PROTECTED_USED, call_plan.key("used")),
        ),
    ),
    call_plan.NvmlCall(
        ("nvmlDeviceGetGspFirmwareMode",), (call_plan.CallTarget(c.GPU_GSP, call_plan.item(0)),)
    ),
    *(
        call_plan.NvmlCall(
            ("nvmlDeviceGetMemoryErrorCounter",),
            (
                call_plan.CallTarget(
                    h.GPU_ECC_LOCATIONS,
                    call_plan.whole,
                    entities.GPU_ECC_LOCATION,
                    (error, lifetime, LOCATIONS[location]),
                ),
            ),
            (type_, counter, location),
        )
        for type_, error in enumerate(ERRORS)
        for counter, lifetime in enumerate(LIFETIMES)
        for location in range(len(LOCATIONS))
    ),
    call_plan.NvmlCall(
        ("nvmlDeviceGetRowRemapperHistogram",),
        tuple(
            call_plan.CallTarget(h.GPU_REMAP_BANKS, call_plan.key(name), entities.GPU_BANK, (name,))
            for name in BANKS
        ),
    ),
    *(
        call_plan.NvmlCall(
            ("nvmlDeviceGetRetiredPages",),
            (
                call_plan.CallTarget(
                    h.GPU_RETIRED_PAGES, call_plan.count, entities.GPU_REMAP, (cause,)
                ),
            ),
            (number,),
        )
        for cause, number in RETIREMENTS.items()
    ),
    call_plan.simple("nvmlDeviceGetGpuMaxPcieLinkGeneration", h.GPU_PCIE_GENERATION_OWN),
    call_plan.NvmlCall(
        ("nvmlDeviceGetC2cModeInfoV",),
        (call_plan.CallTarget(h.GPU_C2C_ENABLED, call_plan.key("isC2cEnabled")),),
    ),
)


def _power_bound(
    bound: str, number: int, function: str, pick: call_plan.PickReading
) -> call_plan.BatchField:
    target = call_plan.CallTarget(
        c.GPU_POWER_BOUNDS, call_plan.whole, entities.GPU_POWER_BOUND, (bound,)
    )
    return call_plan.BatchField(
        (number,), target, call_plan.NvmlCall((function,), (replace(target, pick=pick),))
    )


_SETTINGS_FIELDS: tuple[call_plan.BatchField, ...] = (
    *(_power_bound(bound, *where) for bound, where in POWER_BOUNDS.items()),
    call_plan.field(274, c.GPU_PEAK_POWER),
    *(
        call_plan.field(
            _FIRST_THRESHOLD_FIELD + place,
            c.GPU_TEMPERATURE_THRESHOLD_MARGIN,
            entities.GPU_THRESHOLD,
            t,
        )
        for place, t in enumerate(THRESHOLDS)
    ),
    call_plan.field(301, h.GPU_REMAPPED_INACTIVE, entities.GPU_REMAP, "correctable"),
    call_plan.field(302, h.GPU_REMAPPED_INACTIVE, entities.GPU_REMAP, "uncorrectable"),
    call_plan.field(_C2C_LINK_COUNT, h.GPU_C2C_LINKS),
)


def settings_table(host: Host, gpu: int) -> call_plan.CallTable:
    """Calls for one GPU, with its actual numbers of fans and of links to a Grace processor."""
    fans = _call_count(lambda: host.call("nvml", "nvmlDeviceGetNumFans", gpu))
    links = _call_count(lambda: _first_field(host, gpu, _C2C_LINK_COUNT))
    return call_plan.CallTable(
        (*_SETTINGS_CALLS, *(call for fan in range(fans) for call in _fan(fan))),
        (*_SETTINGS_FIELDS, *(one for link in range(links) for one in _c2c(link))),
    )


def _call_count(ask: Callable[[], Json]) -> int:
    try:
        return min(int(ask()), _MAX_PARTS)
    except (NvmlError, OSError, TypeError, ValueError):
        return 0


def _first_field(host: Host, gpu: int, number: int) -> Json:
    (value,), (code,) = host.call("nvml", "nvmlDeviceGetFieldValues", gpu, number)
    return 0 if code else value


def _c2c(link: int) -> tuple[call_plan.BatchField, ...]:
    name = str(link)
    errors = (
        call_plan.field(f"{number}:{link}", h.GPU_C2C_ERRORS, entities.GPU_C2C_ERROR, name, error)
        for number, error in C2C_ERRORS.items()
    )
    return (
        call_plan.field(f"171:{link}", h.GPU_C2C_ACTIVE, entities.GPU_C2C, name),
        call_plan.field(f"172:{link}", h.GPU_C2C_BANDWIDTH, entities.GPU_C2C, name),
        *errors,
    )


def _fan(fan: int) -> tuple[call_plan.NvmlCall, ...]:
    name = (str(fan),)
    speed = call_plan.CallTarget(c.GPU_FAN_SPEED, call_plan.whole, entities.GPU_FAN, name)
    rotation = call_plan.CallTarget(c.GPU_FAN_ROTATION, call_plan.whole, entities.GPU_FAN, name)
    turns = (call_plan.NvmlCall(("nvmlDeviceGetFanSpeedRPM",), (rotation,)),) if fan == 0 else ()
    return (call_plan.NvmlCall(("nvmlDeviceGetFanSpeed_v2",), (speed,), (fan,)), *turns)
