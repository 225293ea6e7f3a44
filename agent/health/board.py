"""Rules about the slot and the node around a GPU: its PCIe link, heat, power.

Sources: NVIDIA/DCGM, modules/health/DcgmHealthWatch.cpp and common/DcgmGPUHardwareLimits.h; nvml.h,
nvmlClocksEventReasons. All of them concern speed and cooling: the results of the GPU are still correct.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from agent.health.facts import MINUTE_NS, Facts, any_of, present
from agent.health.rule import DEGRADED, HEALTH, LOAD, PATHS, Asked, Rule, Tell, grown
from railscope.catalog import gpu as c
from railscope.catalog import gpu_pcie, gpu_power

BUSY_PERFORMANCE_STATE = 2
"""A computing GPU is in P0, a GeForce in P2; idle GPUs slow their link down."""
REPLAYS_PER_MINUTE_AND_LANE = {
    1: Fraction("0.15"),
    2: Fraction("0.3"),
    3: Fraction("0.48"),
    4: Fraction("0.96"),
    5: Fraction("1.92"),
    6: Fraction("3.84"),
}
"""By PCIe generation: a bit error ratio of 1e-12 (DCGM, DcgmGPUHardwareLimits.h)."""
SOFTWARE_THERMAL_SHARE = Fraction(1, 10)
_HARDWARE_THERMAL, _POWER_BRAKE = "hardware_thermal", "hardware_power_brake"
_SOFTWARE_THERMAL = ("software_thermal", "thermal")  # the newer counter, and the older
_LOOK = Asked(("inspect",))


def _narrow(facts: Facts) -> bool:
    return facts.number(gpu_pcie.GPU_PCIE_WIDTH) < facts.number(gpu_pcie.GPU_PCIE_EXPECTED_WIDTH)


def _slow_under_load(facts: Facts) -> bool:
    if facts.number(gpu_pcie.GPU_PCIE_GENERATION) >= facts.number(
        gpu_pcie.GPU_PCIE_EXPECTED_GENERATION
    ):
        return False
    fast = facts.number(c.GPU_PERFORMANCE_STATE) <= BUSY_PERFORMANCE_STATE
    return fast and facts.number(c.GPU_UTILIZATION) > 0


def _replays(facts: Facts) -> bool:
    newest = max(REPLAYS_PER_MINUTE_AND_LANE)
    generation = min(facts.number(gpu_pcie.GPU_PCIE_GENERATION), newest)
    usual = REPLAYS_PER_MINUTE_AND_LANE[generation] * facts.number(gpu_pcie.GPU_PCIE_WIDTH)
    return present(facts.change(gpu_pcie.GPU_PCIE_REPLAYS)).rate(MINUTE_NS) > ceil(usual)


def _pcie_errors(facts: Facts) -> bool:
    return any_of((facts.change(gpu_pcie.GPU_PCIE_ERRORS, k) for k in ("fatal", "nonfatal")), grown)


def _slowed(reason: str) -> Tell:
    """Return a test for a slowdown now or within the window; older drivers report the present bit only."""

    def now(facts: Facts) -> bool:
        return facts.number(c.GPU_THROTTLE_ACTIVE, reason) != 0

    def lately(facts: Facts) -> bool:
        return grown(present(facts.change(c.GPU_THROTTLE_TIME, reason)))

    return lambda facts: any_of((now, lately), lambda tell: tell(facts))


def _software_thermal(facts: Facts) -> bool:
    changes = (facts.change(c.GPU_THROTTLE_TIME, reason) for reason in _SOFTWARE_THERMAL)
    return any_of(changes, lambda change: change.share() >= SOFTWARE_THERMAL_SHARE)


RULES = (
    Rule(
        reason="pcie_width",
        state=DEGRADED,
        when="the PCIe link uses fewer lanes than the slot has, or than the settings expect; unknown in guests",
        origin="sysfs-bus-pci, max_link_width of both ends: seating or riser",
        tell=_narrow,
        asks=_LOOK,
        sources=(HEALTH, PATHS),
        metrics=(gpu_pcie.GPU_PCIE_WIDTH, gpu_pcie.GPU_PCIE_EXPECTED_WIDTH),
    ),
    Rule(
        reason="pcie_generation",
        state=DEGRADED,
        when=f"the PCIe link is slower than GPU and slot can, or than the settings expect, while the GPU works (P{BUSY_PERFORMANCE_STATE} or faster)",
        origin="sysfs-bus-pci, max_link_speed of both ends; idle GPUs save power",
        tell=_slow_under_load,
        asks=_LOOK,
        sources=(HEALTH, LOAD, PATHS),
        metrics=(
            gpu_pcie.GPU_PCIE_GENERATION, gpu_pcie.GPU_PCIE_EXPECTED_GENERATION, c.GPU_PERFORMANCE_STATE,
            c.GPU_UTILIZATION,
        ),
    ),
    Rule(
        reason="pcie_replays",
        state=DEGRADED,
        when="more PCIe replays a minute than a bit error ratio of 1e-12 gives at this generation and width",
        origin="DCGM health: 0.15 to 3.84 a minute and lane, by generation; warns",
        tell=_replays,
        asks=_LOOK,
        metrics=(gpu_pcie.GPU_PCIE_REPLAYS, gpu_pcie.GPU_PCIE_GENERATION, gpu_pcie.GPU_PCIE_WIDTH),
        over_time=True,
    ),
    Rule(
        reason="pcie_errors",
        state=DEGRADED,
        when="a fatal or non-fatal PCIe error that the GPU counted within ten minutes",
        origin="ours: none is to be expected of a link in order",
        tell=_pcie_errors,
        asks=_LOOK,
        metrics=(gpu_pcie.GPU_PCIE_ERRORS,),
        over_time=True,
    ),
    Rule(
        reason="thermal_hardware",
        state=DEGRADED,
        when="the hardware slowed the GPU down for its heat, now or within ten minutes",
        origin="nvml.h, HwThermalSlowdown: above the hardware's limit; DCGM health warns",
        tell=_slowed(_HARDWARE_THERMAL),
        asks=_LOOK,
        sources=(LOAD,),
        metrics=(c.GPU_THROTTLE_TIME, c.GPU_THROTTLE_ACTIVE),
        over_time=True,
    ),
    Rule(
        reason="thermal_software",
        state=DEGRADED,
        when="the driver held the clocks down for heat for a tenth of the last ten minutes",
        origin="ours: short ones are how a GPU is meant to run near its limit",
        tell=_software_thermal,
        asks=_LOOK,
        sources=(LOAD,),
        metrics=(c.GPU_THROTTLE_TIME,),
        over_time=True,
    ),
    Rule(
        reason="power_brake",
        state=DEGRADED,
        when="power supply or rack had the GPU slowed down, now or within ten minutes",
        origin="nvml.h, HwPowerBrakeSlowdown; look at every GPU of the chassis",
        tell=_slowed(_POWER_BRAKE),
        asks=_LOOK,
        sources=(LOAD,),
        metrics=(c.GPU_THROTTLE_TIME, c.GPU_THROTTLE_ACTIVE),
        over_time=True,
    ),
    Rule(
        reason="temperature_margin",
        state=DEGRADED,
        when="no degree is left until the nearest slowdown threshold",
        origin="nvml.h, nvmlDeviceGetMarginTemperature: 0 or less",
        tell=lambda facts: facts.number(gpu_power.GPU_TEMPERATURE_MARGIN) <= 0,
        asks=_LOOK,
        metrics=(gpu_power.GPU_TEMPERATURE_MARGIN,),
    ),
)  # fmt: skip
