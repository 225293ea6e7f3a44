"""Which NVML call tells which metrics of a GPU.

Sources: nvml.h; units are those of the catalog's declarations. A call may name older functions to
fall back on where the driver does not know the newer one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.host import Json
from agent.source import nvml_reason
from railscope.catalog import gpu as c
from railscope.catalog.declare import EntityKind, Metric
from railscope.catalog.entities import GPU_CLOCK, GPU_ECC, GPU_REMAP, GPU_THROTTLE
from railscope.reading import Absent, Reading

Pick = Callable[[Json], Reading]

CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
THROTTLE_BITS = {
    "gpu_idle": 0x1,
    "application_clocks": 0x2,
    "software_power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "hardware_power_brake": 0x80,
    "display_clocks": 0x100,
}
# nvmlDeviceGetFieldValues: nanoseconds the reason was active since driver load.
THROTTLE_FIELDS = {
    74: "software_power_cap",
    75: "thermal",
    76: "sync_boost",
    269: "software_thermal",
    270: "hardware_thermal",
    271: "hardware_power_brake",
}
MEMORY_TEMPERATURE_FIELD = 82
FIELDS = (MEMORY_TEMPERATURE_FIELD, *THROTTLE_FIELDS)
SLOWEST_PERFORMANCE_STATE = 15  # 32 stands for unknown
HOTTEST_BELIEVABLE_CELSIUS = 200  # DCGM rejects higher ones too


@dataclass(frozen=True, slots=True)
class Target:
    """A column that a call fills; `part` names the part of the GPU it is about."""

    metric: Metric
    pick: Pick
    kind: EntityKind | None = None
    part: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """An NVML call and the columns that its result fills."""

    functions: tuple[str, ...]
    targets: tuple[Target, ...]
    arguments: tuple[int, ...] = ()


def _whole(result: Json) -> Reading:
    return int(result)


def _key(key: str) -> Pick:
    return lambda result: int(result[key]) if key in result else Absent.UNSUPPORTED


def _item(index: int) -> Pick:
    return lambda result: int(result[index])


def _bit(mask: int) -> Pick:
    return lambda result: int(bool(int(result) & mask))


def _field(index: int) -> Pick:
    def pick(result: Json) -> Reading:
        code, value = result[index]
        return nvml_reason(code) if code else int(value)

    return pick


def _memory_temperature(result: Json) -> Reading:
    reading = _field(0)(result)
    if isinstance(reading, Absent):
        return reading
    return reading if 0 < reading < HOTTEST_BELIEVABLE_CELSIUS else Absent.ERROR


def _used(result: Json) -> Reading:
    # Version 1 of the call counts what the driver reserves as used: another quantity.
    return int(result["used"]) if "reserved" in result else Absent.UNSUPPORTED


def _performance_state(result: Json) -> Reading:
    return int(result) if int(result) <= SLOWEST_PERFORMANCE_STATE else Absent.UNSUPPORTED


def _simple(function: str, metric: Metric) -> Call:
    return Call((function,), (Target(metric, _whole),))


LOAD: tuple[Call, ...] = (
    Call(
        ("nvmlDeviceGetUtilizationRates",),
        (Target(c.GPU_UTILIZATION, _key("gpu")), Target(c.GPU_MEMORY_ACTIVITY, _key("memory"))),
    ),
    Call(
        ("nvmlDeviceGetMemoryInfo",),
        (
            Target(c.GPU_MEMORY_TOTAL, _key("total")),
            Target(c.GPU_MEMORY_USED, _used),
            Target(c.GPU_MEMORY_FREE, _key("free")),
            Target(c.GPU_MEMORY_RESERVED, _key("reserved")),
        ),
    ),
    *(
        Call(
            ("nvmlDeviceGetClockInfo",),
            (Target(c.GPU_CLOCK_SPEED, _whole, GPU_CLOCK, (name,)),),
            (number,),
        )
        for name, number in CLOCKS.items()
    ),
    _simple("nvmlDeviceGetPowerUsage", c.GPU_POWER),
    _simple("nvmlDeviceGetTotalEnergyConsumption", c.GPU_ENERGY),
    Call(
        ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
        (Target(c.GPU_TEMPERATURE, _whole),),
        (0,),
    ),
    Call(
        (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ),
        tuple(
            Target(c.GPU_THROTTLE_ACTIVE, _bit(mask), GPU_THROTTLE, (reason,))
            for reason, mask in THROTTLE_BITS.items()
        ),
    ),
    Call(
        ("nvmlDeviceGetFieldValues",),
        (
            Target(c.GPU_MEMORY_TEMPERATURE, _memory_temperature),
            *(
                Target(c.GPU_THROTTLE_TIME, _field(index), GPU_THROTTLE, (reason,))
                for index, reason in enumerate(THROTTLE_FIELDS.values(), start=1)
            ),
        ),
        FIELDS,
    ),
)

HEALTH: tuple[Call, ...] = (
    Call(
        ("nvmlDeviceGetPerformanceState",),
        (Target(c.GPU_PERFORMANCE_STATE, _performance_state),),
    ),
    _simple("nvmlDeviceGetEnforcedPowerLimit", c.GPU_POWER_LIMIT),
    *(
        Call(
            ("nvmlDeviceGetMaxClockInfo",),
            (Target(c.GPU_CLOCK_LIMIT, _whole, GPU_CLOCK, (name,)),),
            (number,),
        )
        for name, number in CLOCKS.items()
    ),
    Call(("nvmlDeviceGetEccMode",), (Target(c.GPU_ECC_MODE, _item(0)),)),
    *(
        Call(
            ("nvmlDeviceGetTotalEccErrors",),
            (Target(c.GPU_ECC_ERRORS, _whole, GPU_ECC, (error, lifetime)),),
            (type_, counter),
        )
        for type_, error in enumerate(("corrected", "uncorrected"))
        for counter, lifetime in enumerate(("volatile", "aggregate"))
    ),
    Call(
        ("nvmlDeviceGetRemappedRows",),
        (
            Target(c.GPU_REMAPPED_ROWS, _item(0), GPU_REMAP, ("correctable",)),
            Target(c.GPU_REMAPPED_ROWS, _item(1), GPU_REMAP, ("uncorrectable",)),
            Target(c.GPU_ROW_REMAP_PENDING, _item(2)),
            Target(c.GPU_ROW_REMAP_FAILURE, _item(3)),
        ),
    ),
    _simple("nvmlDeviceGetCurrPcieLinkGeneration", c.GPU_PCIE_GENERATION),
    _simple("nvmlDeviceGetMaxPcieLinkGeneration", c.GPU_PCIE_GENERATION_LIMIT),
    _simple("nvmlDeviceGetCurrPcieLinkWidth", c.GPU_PCIE_WIDTH),
    _simple("nvmlDeviceGetMaxPcieLinkWidth", c.GPU_PCIE_WIDTH_LIMIT),
    _simple("nvmlDeviceGetPcieReplayCounter", c.GPU_PCIE_REPLAYS),
)
