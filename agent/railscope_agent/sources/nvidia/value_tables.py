"""Tables of NVML calls for values that change every second, and for values that change rarely.

Every second: activity, memory, clocks, power, heat, clock limit reasons. Rarely: limits,
thresholds, modes, memory errors by location, spare rows, C2C.
"""

from __future__ import annotations

from collections.abc import Mapping

from railscope.catalog import declare, entities, gpu as c, gpu_health as h, nvlink as n
from railscope.reading import Absent, Reading
from railscope_agent.host import Host, Json
from railscope_agent.sampling.answer_readings import pick_reading
from railscope_agent.sampling.fact_readers import call_nvml
from railscope_agent.sources.nvidia import call_table, column_history

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


def _memory_temperature(value: Json) -> Reading:
    if value == 0:
        return Absent.UNSUPPORTED  # a GPU without the sensor (NVIDIA/dcgm-exporter#460)
    return int(value)


def _memory_power(value: Json) -> Reading:
    # A GPU without the sensor may report 0 (ml-energy/zeus, device/gpu/nvidia.py).
    return int(value) or Absent.UNSUPPORTED


def _calls_of_parts(
    function: str, metric: declare.Metric, kind: declare.EntityKind, numbers: Mapping[str, int]
) -> list[call_table.NvmlCall]:
    """One call for each part of the GPU, with the number of the part as its argument."""
    parts = numbers.items()
    return [
        call_table.simple(function, metric, kind, name, arguments=(number,))
        for name, number in parts
    ]


_LOAD_CALLS: tuple[call_table.NvmlCall, ...] = (
    call_table.members("nvmlDeviceGetUtilizationRates", {"gpu": c.GPU_UTILIZATION, "memory": c.GPU_MEMORY_ACTIVITY}),
    call_table.members(
        "nvmlDeviceGetMemoryInfo",
        {"total": c.GPU_MEMORY_TOTAL},
        call_table.CallTarget(c.GPU_MEMORY_FREE, call_table.memory("free")),
        call_table.CallTarget(c.GPU_MEMORY_RESERVED, call_table.memory("reserved")),
        call_table.CallTarget(c.GPU_MEMORY_USED, call_table.used),
    ),
    *_calls_of_parts("nvmlDeviceGetClockInfo", c.GPU_CLOCK_SPEED, entities.GPU_CLOCK, CLOCKS),
    call_table.simple("nvmlDeviceGetPowerUsage", c.GPU_POWER),
    call_table.NvmlCall(
        ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
        (call_table.CallTarget(c.GPU_TEMPERATURE, call_table.whole),),
        (0,),
    ),
)  # fmt: skip

_LOAD_FIELDS: tuple[call_table.BatchField, ...] = (
    call_table.field(
        83,
        c.GPU_ENERGY,
        otherwise=call_table.simple("nvmlDeviceGetTotalEnergyConsumption", c.GPU_ENERGY),
    ),
    call_table.field(185, c.GPU_POWER_AVERAGE),
    call_table.field(186, c.GPU_POWER_INSTANT),
    call_table.field(f"186:{MODULE_SCOPE}", c.GPU_MODULE_POWER),
    call_table.field(f"190:{MODULE_SCOPE}", c.GPU_MODULE_POWER_LIMIT),
    call_table.field(f"185:{MEMORY_SCOPE}", c.GPU_MEMORY_POWER, pick=_memory_power),
    call_table.field(82, c.GPU_MEMORY_TEMPERATURE, pick=_memory_temperature),
    *(
        call_table.field(number, c.GPU_THROTTLE_TIME, entities.GPU_THROTTLE, reason)
        for number, reason in THROTTLE_FIELDS.items()
    ),
    call_table.field(197, h.GPU_PCIE_TRANSMITTED),
    call_table.field(198, h.GPU_PCIE_RECEIVED),
    call_table.field(f"138:{ALL_LINKS}", n.GPU_NVLINK_TRANSMITTED),
    call_table.field(f"139:{ALL_LINKS}", n.GPU_NVLINK_RECEIVED),
    call_table.field(f"140:{ALL_LINKS}", n.GPU_NVLINK_RAW_TRANSMITTED),
    call_table.field(f"141:{ALL_LINKS}", n.GPU_NVLINK_RAW_RECEIVED),
)

LOAD_INTEGRALS = (
    column_history.IntegratedGauge(c.GPU_UTILIZATION, c.GPU_BUSY),
    column_history.IntegratedGauge(c.GPU_MEMORY_USED, c.GPU_MEMORY_USED_TIME),
)

_REPEATED_TIMES = ("low_utilization", "application_clocks", "base_clocks")
"""Times that are left out of the total: idle, and below some clocks for any reason."""
TOTALS: tuple[tuple[declare.Metric, declare.Metric, tuple[str, ...]], ...] = (
    (c.GPU_THROTTLE_TIME, c.GPU_ALL_THROTTLE_TIME, _REPEATED_TIMES),
    (h.GPU_PCIE_ERRORS, h.GPU_ALL_PCIE_ERRORS, ()),
)
"""Counters by reason or kind, their totals for a GPU, and the parts that these leave out."""
SUMS: Mapping[declare.Metric, tuple[declare.Metric, ...]] = {
    **{each.gauge: (each.counter,) for each in LOAD_INTEGRALS},
    **{part: (total,) for part, total, _ in TOTALS},
}
"""Metrics that are computed from a gauge or from the parts of a counter, by that metric."""


def load_table(host: Host, gpu: int) -> call_table.CallTable:
    """Calls for one GPU, with the clock limit reasons that it supports."""
    reasons = _supported_reasons(host, gpu)
    active = call_table.NvmlCall(
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        tuple(
            call_table.CallTarget(
                c.GPU_THROTTLE_ACTIVE, call_table.bit(mask), entities.GPU_THROTTLE, (reason,)
            )
            for reason, mask in c.THROTTLE_BITS.items()
            if reasons & mask
        ),
    )
    slowdowns = (
        call_table.field(number, c.GPU_THROTTLE_TIME, entities.GPU_THROTTLE, reason)
        for number, reason in enumerate(SLOWDOWNS, _first_slowdown_field(host))
    )
    return call_table.CallTable((*_LOAD_CALLS, active), (*_LOAD_FIELDS, *slowdowns))


def _supported_reasons(host: Host, gpu: int) -> int:
    """Supported clock limit reasons of a GPU as a bit mask; the default set if it does not report them."""
    for term in ("Event", "Throttle"):
        mask = call_nvml(host, f"nvmlDeviceGetSupportedClocks{term}Reasons", gpu)
        if mask is not None:
            return int(mask) & sum(c.THROTTLE_BITS.values()) or _REASONS_OF_ALL
    return _REASONS_OF_ALL


def _first_slowdown_field(host: Host) -> int:
    branch = str(call_nvml(host, "nvmlSystemGetDriverVersion")).partition(".")[0]
    if branch.isdecimal() and int(branch) in _DRIVERS_BEFORE_590:
        return _FIRST_SLOWDOWN_FIELD_BEFORE_590
    return _FIRST_SLOWDOWN_FIELD


THRESHOLDS = ("shutdown", "slowdown", "memory_maximum", "gpu_maximum")
_FIRST_THRESHOLD_FIELD = 193
# Each with the call that drivers before 530 have.
_LIMIT = "nvmlDeviceGetPowerManagement"
POWER_BOUNDS = {
    "minimum": (187, f"{_LIMIT}LimitConstraints", call_table.item(0)),
    "maximum": (188, f"{_LIMIT}LimitConstraints", call_table.item(1)),
    "default": (189, f"{_LIMIT}DefaultLimit", call_table.whole),
    "requested": (192, f"{_LIMIT}Limit", call_table.whole),
}
ERRORS, LIFETIMES = ("corrected", "uncorrected"), ("volatile", "aggregate")
LOCATIONS = ("l1", "l2", "dram", "register_file", "texture", "texture_shared", "cbu", "sram")
BANKS = ("max", "high", "partial", "low", "none")
RETIREMENTS = {"correctable": 0, "uncorrectable": 1}
_C2C_LINK_COUNT, _MAX_PARTS = 170, 64
C2C_ERRORS = {231: "interrupt", 232: "replay", 233: "replay_back_to_back"}

_SETTINGS_CALLS: tuple[call_table.NvmlCall, ...] = (
    *_calls_of_parts("nvmlDeviceGetMaxClockInfo", c.GPU_CLOCK_LIMIT, entities.GPU_CLOCK, CLOCKS),
    *_calls_of_parts("nvmlDeviceGetTemperatureThreshold", c.GPU_TEMPERATURE_THRESHOLD, entities.GPU_THRESHOLD,
                     {name: number for number, name in enumerate(THRESHOLDS)}),
    call_table.members("nvmlDeviceGetBAR1MemoryInfo", {"bar1Total": c.GPU_BAR1_SIZE, "bar1Used": c.GPU_BAR1_USED}),
    call_table.simple("nvmlDeviceGetPersistenceMode", c.GPU_PERSISTENCE),
    call_table.simple("nvmlDeviceGetComputeMode", c.GPU_COMPUTE_MODE),
    call_table.simple("nvmlDeviceGetAccountingMode", c.GPU_ACCOUNTING),
    call_table.NvmlCall(("nvmlSystemGetConfComputeState",),
                       (call_table.CallTarget(c.GPU_CONFIDENTIAL, call_table.key("ccFeature")),), is_of_device=False),
    call_table.members("nvmlDeviceGetConfComputeProtectedMemoryUsage",
                      {"total": c.GPU_PROTECTED_SIZE, "used": c.GPU_PROTECTED_USED}),
    call_table.items("nvmlDeviceGetGspFirmwareMode", c.GPU_GSP),
    *(
        call_table.simple("nvmlDeviceGetMemoryErrorCounter", h.GPU_ECC_LOCATIONS, entities.GPU_ECC_LOCATION,
                         *(error, lifetime, location), arguments=(kind, counter, place))
        for kind, error in enumerate(ERRORS)
        for counter, lifetime in enumerate(LIFETIMES)
        for place, location in enumerate(LOCATIONS)
    ),
    call_table.NvmlCall(("nvmlDeviceGetRowRemapperHistogram",), tuple(
        call_table.CallTarget(h.GPU_REMAP_BANKS, call_table.key(name), entities.GPU_BANK, (name,)) for name in BANKS
    )),
    *(
        call_table.NvmlCall(("nvmlDeviceGetRetiredPages",),
                           (call_table.CallTarget(h.GPU_RETIRED_PAGES, call_table.count, entities.GPU_REMAP, (cause,)),),
                           (number,))
        for cause, number in RETIREMENTS.items()
    ),
    call_table.simple("nvmlDeviceGetGpuMaxPcieLinkGeneration", h.GPU_PCIE_GENERATION_OWN, pick=call_table.of_link),
    call_table.members("nvmlDeviceGetC2cModeInfoV", {"isC2cEnabled": h.GPU_C2C_ENABLED}),
)  # fmt: skip


def _power_bound(
    bound: str, number: int, function: str, pick: call_table.PickReading
) -> call_table.BatchField:
    target = call_table.CallTarget(c.GPU_POWER_BOUNDS, pick, entities.GPU_POWER_BOUND, (bound,))
    call = call_table.NvmlCall((function,), (target,))
    return call_table.field(
        number, c.GPU_POWER_BOUNDS, entities.GPU_POWER_BOUND, bound, otherwise=call
    )


def _number_of_parts(number: Json) -> Reading:
    """Return the number of parts of a device, or an error for one that no device has."""
    return number if type(number) is int and 0 <= number <= _MAX_PARTS else Absent.ERROR


_SETTINGS_FIELDS: tuple[call_table.BatchField, ...] = (
    *(_power_bound(bound, *source) for bound, source in POWER_BOUNDS.items()),
    call_table.field(274, c.GPU_PEAK_POWER),
    *(
        call_table.field(
            number, c.GPU_TEMPERATURE_THRESHOLD_MARGIN, entities.GPU_THRESHOLD, threshold
        )
        for number, threshold in enumerate(THRESHOLDS, _FIRST_THRESHOLD_FIELD)
    ),
    call_table.field(301, h.GPU_REMAPPED_INACTIVE, entities.GPU_REMAP, "correctable"),
    call_table.field(302, h.GPU_REMAPPED_INACTIVE, entities.GPU_REMAP, "uncorrectable"),
    call_table.field(_C2C_LINK_COUNT, h.GPU_C2C_LINKS, pick=_number_of_parts),
)


def settings_table(host: Host, gpu: int) -> call_table.CallTable:
    """Calls for one GPU, with its actual numbers of fans and of links to a Grace processor."""
    number = _number_of_parts(call_nvml(host, "nvmlDeviceGetNumFans", gpu))
    fans = (
        (_UNCOUNTED_FANS,)
        if isinstance(number, Absent)
        else (call for fan in range(number) for call in _fan(fan))
    )
    answer = call_nvml(host, "nvmlDeviceGetFieldValues", gpu, _C2C_LINK_COUNT)
    links = pick_reading(_first_field, answer)
    parts = 0 if isinstance(links, Absent) else links
    return call_table.CallTable(
        (*_SETTINGS_CALLS, *fans),
        (*_SETTINGS_FIELDS, *(entry for link in range(parts) for entry in _c2c(link))),
    )


def _first_field(answer: Json) -> Reading:
    (value,), (code,) = answer
    return Absent.ERROR if code else _number_of_parts(value)


def _c2c(link: int) -> tuple[call_table.BatchField, ...]:
    name = str(link)
    errors = (
        call_table.field(f"{number}:{link}", h.GPU_C2C_ERRORS, entities.GPU_C2C_ERROR, name, error)
        for number, error in C2C_ERRORS.items()
    )
    return (
        call_table.field(f"171:{link}", h.GPU_C2C_ACTIVE, entities.GPU_C2C, name),
        call_table.field(f"172:{link}", h.GPU_C2C_BANDWIDTH, entities.GPU_C2C, name),
        *errors,
    )


# A GPU without fans does not support the call, and then has no column of a fan.
_UNCOUNTED_FANS = call_table.NvmlCall(
    ("nvmlDeviceGetNumFans",),
    (call_table.CallTarget(c.GPU_FAN_SPEED, lambda _: Absent.ERROR, entities.GPU_FAN, ("0",)),),
)


def _fan(fan: int) -> tuple[call_table.NvmlCall, ...]:
    speed = call_table.simple(
        "nvmlDeviceGetFanSpeed_v2", c.GPU_FAN_SPEED, entities.GPU_FAN, str(fan), arguments=(fan,)
    )
    # pynvml queries the rotation of fan 0 only.
    if fan:
        return (speed,)
    rotation = call_table.simple(
        "nvmlDeviceGetFanSpeedRPM", c.GPU_FAN_ROTATION, entities.GPU_FAN, str(fan)
    )
    return speed, rotation
