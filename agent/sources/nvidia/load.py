"""Values that change every second: activity, memory, clocks, power, heat, clock limit reasons."""

from __future__ import annotations

from agent.host import Host, Json, NvmlError
from agent.sources.nvidia.calls import (
    Call,
    Field,
    Questions,
    Target,
    bit,
    field,
    key,
    simple,
    used,
    whole,
)
from agent.sources.nvidia.integrals import MAX_MEMORY_BYTES, Integrated
from railscope.catalog import gpu as c
from railscope.catalog import gpu_pcie, gpu_power
from railscope.catalog import nvlink as n
from railscope.catalog.entities import GPU_CLOCK, GPU_THROTTLE
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
HOTTEST_BELIEVABLE_CELSIUS = 200  # DCGM rejects higher ones too


def _memory_temperature(value: Json) -> Reading:
    if value == 0:
        return Absent.UNSUPPORTED  # a GPU without the sensor (NVIDIA/dcgm-exporter#460)
    return int(value) if 0 < value < HOTTEST_BELIEVABLE_CELSIUS else Absent.ERROR


def _memory_power(value: Json) -> Reading:
    # A GPU without the sensor may report 0 (ml-energy/zeus, device/gpu/nvidia.py).
    return int(value) or Absent.UNSUPPORTED


_CALLS: tuple[Call, ...] = (
    Call(
        ("nvmlDeviceGetUtilizationRates",),
        (Target(c.GPU_UTILIZATION, key("gpu")), Target(c.GPU_MEMORY_ACTIVITY, key("memory"))),
    ),
    Call(
        ("nvmlDeviceGetMemoryInfo",),
        (
            Target(c.GPU_MEMORY_TOTAL, key("total")),
            Target(c.GPU_MEMORY_USED, used),
            Target(c.GPU_MEMORY_FREE, key("free")),
            Target(c.GPU_MEMORY_RESERVED, key("reserved")),
        ),
    ),
    *(
        Call(
            ("nvmlDeviceGetClockInfo",),
            (Target(c.GPU_CLOCK_SPEED, whole, GPU_CLOCK, (name,)),),
            (number,),
        )
        for name, number in CLOCKS.items()
    ),
    simple("nvmlDeviceGetPowerUsage", c.GPU_POWER),
    Call(
        ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
        (Target(c.GPU_TEMPERATURE, whole),),
        (0,),
    ),
)

_FIELDS: tuple[Field, ...] = (
    Field(
        (83,),
        Target(c.GPU_ENERGY, whole),
        simple("nvmlDeviceGetTotalEnergyConsumption", c.GPU_ENERGY),
    ),
    field(185, gpu_power.GPU_POWER_AVERAGE),
    field(186, gpu_power.GPU_POWER_INSTANT),
    field(f"186:{MODULE_SCOPE}", gpu_power.GPU_MODULE_POWER),
    field(f"190:{MODULE_SCOPE}", gpu_power.GPU_MODULE_POWER_LIMIT),
    Field((f"185:{MEMORY_SCOPE}",), Target(gpu_power.GPU_MEMORY_POWER, _memory_power)),
    Field((82,), Target(c.GPU_MEMORY_TEMPERATURE, _memory_temperature)),
    *(
        field(number, c.GPU_THROTTLE_TIME, GPU_THROTTLE, reason)
        for number, reason in THROTTLE_FIELDS.items()
    ),
    field(197, gpu_pcie.GPU_PCIE_TRANSMITTED),
    field(198, gpu_pcie.GPU_PCIE_RECEIVED),
    field(f"138:{ALL_LINKS}", n.GPU_NVLINK_TRANSMITTED),
    field(f"139:{ALL_LINKS}", n.GPU_NVLINK_RECEIVED),
    field(f"140:{ALL_LINKS}", n.GPU_NVLINK_RAW_TRANSMITTED),
    field(f"141:{ALL_LINKS}", n.GPU_NVLINK_RAW_RECEIVED),
)

_PERCENT = 100
INTEGRATED = (
    Integrated(c.GPU_UTILIZATION, c.GPU_BUSY, _PERCENT),
    Integrated(c.GPU_MEMORY_USED, c.GPU_MEMORY_USED_TIME, MAX_MEMORY_BYTES),
)


def _questions(reasons: int, first_slowdown_field: int) -> Questions:
    active = Call(
        (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ),
        tuple(
            Target(c.GPU_THROTTLE_ACTIVE, bit(mask), GPU_THROTTLE, (reason,))
            for reason, mask in c.THROTTLE_BITS.items()
            if reasons & mask
        ),
    )
    slowdowns = (
        field(number, c.GPU_THROTTLE_TIME, GPU_THROTTLE, reason)
        for number, reason in enumerate(SLOWDOWNS, first_slowdown_field)
    )
    return Questions((*_CALLS, active), (*_FIELDS, *slowdowns))


QUESTIONS = _questions(_REASONS_OF_ALL, _FIRST_SLOWDOWN_FIELD)


def questions(host: Host, gpu: int) -> Questions:
    """Calls for one GPU, with the clock limit reasons that it supports."""
    return _questions(_supported(host, gpu), _first_slowdown_field(host))


def _supported(host: Host, gpu: int) -> int:
    """Supported clock limit reasons of a GPU as a bit mask; the default set if it does not report them."""
    for what in ("Event", "Throttle"):
        try:
            told = int(host.call("nvml", f"nvmlDeviceGetSupportedClocks{what}Reasons", gpu))
        except (NvmlError, OSError):
            continue
        return told & sum(c.THROTTLE_BITS.values()) or _REASONS_OF_ALL
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
