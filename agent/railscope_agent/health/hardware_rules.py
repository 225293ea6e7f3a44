"""Rules about the slot and the node around a GPU (PCIe link, heat, power), and about its memory.

Sources: NVIDIA/DCGM, modules/health/DcgmHealthWatch.cpp and common/DcgmGPUHardwareLimits.h;
nvml.h, nvmlClocksEventReasons; NVIDIA, "GPU Memory Error Management". Rules about slot and node
all concern speed and cooling: the results of the GPU are still correct. Rules about memory
concern errors, repairs done and repairs pending.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from railscope.catalog import gpu as c, gpu_health
from railscope.reading import Absent
from railscope_agent.health import health_facts, rule

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
"""Limit by PCIe generation: a bit error ratio of 1e-12 (DCGM, DcgmGPUHardwareLimits.h)."""
SOFTWARE_THERMAL_SHARE = Fraction(1, 10)
_HARDWARE_THERMAL, _POWER_BRAKE = "hardware_thermal", "hardware_power_brake"
_SOFTWARE_THERMAL = ("software_thermal", "thermal")  # the newer counter, and the older


def _is_slow_under_load(facts: health_facts.HealthFacts) -> bool:
    if facts.number(gpu_health.GPU_PCIE_GENERATION) >= facts.number(
        gpu_health.GPU_PCIE_EXPECTED_GENERATION
    ):
        return False
    fast = facts.number(c.GPU_PERFORMANCE_STATE) <= BUSY_PERFORMANCE_STATE
    return fast and facts.number(c.GPU_UTILIZATION) > 0


def _has_many_replays(facts: health_facts.HealthFacts) -> bool:
    newest = max(REPLAYS_PER_MINUTE_AND_LANE)
    generation = min(facts.number(gpu_health.GPU_PCIE_GENERATION), newest)
    usual = REPLAYS_PER_MINUTE_AND_LANE[generation] * facts.number(gpu_health.GPU_PCIE_WIDTH)
    return health_facts.require_value(facts.change(gpu_health.GPU_PCIE_REPLAYS)).rate(
        health_facts.MINUTE_NS
    ) > ceil(usual)


def _has_pcie_errors(facts: health_facts.HealthFacts) -> bool:
    return health_facts.any_holds(
        (facts.change(gpu_health.GPU_PCIE_ERRORS, k) for k in ("fatal", "nonfatal")),
        rule.has_increased,
    )


def _slowdown_test(reason: str) -> rule.FaultTest:
    """Return a test for a slowdown now or within the window; older drivers report the present bit only."""

    def now(facts: health_facts.HealthFacts) -> bool:
        return facts.number(c.GPU_THROTTLE_ACTIVE, reason) != 0

    def within_minutes(facts: health_facts.HealthFacts) -> bool:
        return rule.has_increased(
            health_facts.require_value(facts.change(c.GPU_THROTTLE_TIME, reason))
        )

    return lambda facts: health_facts.any_holds((now, within_minutes), lambda test: test(facts))


def _is_thermally_limited(facts: health_facts.HealthFacts) -> bool:
    changes = (facts.change(c.GPU_THROTTLE_TIME, reason) for reason in _SOFTWARE_THERMAL)
    return health_facts.any_holds(changes, lambda change: change.share() >= SOFTWARE_THERMAL_SHARE)


SLOT_RULES = (
    rule.HealthRule("pcie_width", rule.DEGRADED,
        lambda facts: facts.number(gpu_health.GPU_PCIE_WIDTH) < facts.number(gpu_health.GPU_PCIE_EXPECTED_WIDTH),
        "the PCIe link uses fewer lanes than the slot has, or than the settings specify; unknown in guests",
        "sysfs-bus-pci, max_link_width of both ends: seating or riser",
        sources=(rule.HEALTH, rule.PATHS), metrics=(gpu_health.GPU_PCIE_WIDTH, gpu_health.GPU_PCIE_EXPECTED_WIDTH)),
    rule.HealthRule("pcie_generation", rule.DEGRADED, _is_slow_under_load,
        f"the PCIe link is slower than GPU and slot support, or than the settings specify, while the GPU is busy (P{BUSY_PERFORMANCE_STATE} or faster)",
        "sysfs-bus-pci, max_link_speed of both ends; idle GPUs save power",
        sources=(rule.HEALTH, rule.LOAD, rule.PATHS),
        metrics=(gpu_health.GPU_PCIE_GENERATION, gpu_health.GPU_PCIE_EXPECTED_GENERATION, c.GPU_PERFORMANCE_STATE, c.GPU_UTILIZATION)),
    rule.HealthRule("pcie_replays", rule.DEGRADED, _has_many_replays,
        "more PCIe replays per minute than a bit error ratio of 1e-12 causes at this generation and width",
        "DCGM health: 0.15 to 3.84 per minute and lane, by generation; warns",
        metrics=(gpu_health.GPU_PCIE_REPLAYS, gpu_health.GPU_PCIE_GENERATION, gpu_health.GPU_PCIE_WIDTH), compares_readings=True),
    rule.HealthRule("pcie_errors", rule.DEGRADED, _has_pcie_errors,
        "a fatal or non-fatal PCIe error that the GPU counted within ten minutes",
        "Railscope: a healthy link has none",
        metrics=(gpu_health.GPU_PCIE_ERRORS,), compares_readings=True),
    rule.HealthRule("thermal_hardware", rule.DEGRADED, _slowdown_test(_HARDWARE_THERMAL),
        "the hardware slowed the GPU down because of its temperature, now or within ten minutes",
        "nvml.h, HwThermalSlowdown: above the hardware's limit; DCGM health warns",
        sources=(rule.LOAD,), metrics=(c.GPU_THROTTLE_TIME, c.GPU_THROTTLE_ACTIVE), compares_readings=True),
    rule.HealthRule("thermal_software", rule.DEGRADED, _is_thermally_limited,
        "the driver reduced the clocks because of temperature for a tenth of the last ten minutes",
        "Railscope: short slowdowns are normal operation near the limit",
        sources=(rule.LOAD,), metrics=(c.GPU_THROTTLE_TIME,), compares_readings=True),
    rule.HealthRule("power_brake", rule.DEGRADED, _slowdown_test(_POWER_BRAKE),
        "power supply or rack slowed the GPU down, now or within ten minutes",
        "nvml.h, HwPowerBrakeSlowdown; check every GPU of the chassis",
        sources=(rule.LOAD,), metrics=(c.GPU_THROTTLE_TIME, c.GPU_THROTTLE_ACTIVE), compares_readings=True),
    rule.HealthRule("temperature_margin", rule.DEGRADED, lambda facts: facts.number(c.GPU_TEMPERATURE_MARGIN) <= 0,
        "the temperature has reached the nearest slowdown threshold",
        "nvml.h, nvmlDeviceGetMarginTemperature: 0 or less",
        metrics=(c.GPU_TEMPERATURE_MARGIN,)),
)  # fmt: skip


MAX_REMAPPED_ROWS = 512
"""Rows that a GPU can replace (GPU Memory Error Management); DCGM warns from that number on."""
MAX_CORRECTED_PER_HOUR = 1000
"""Limit of the alert RailscopeGpuEccCorrected."""
MAX_RETIRED_PAGES = 63
"""DCGM_LIMIT_MAX_RETIRED_PAGES: DCGM fails the GPU from that number on; the capacity is 64."""
_DCGM = "DCGM health"
_POLICY = "GPU Memory Error Management"
_NVML = "nvml.h"
_REPLACE = rule.RequiredActions(("drain", "rma"), ("CONTACT_SUPPORT",))
_RESET = rule.RequiredActions(("reset_gpu",), ("RESET_GPU",))


def _has_uncorrected_errors(facts: health_facts.HealthFacts) -> bool:
    if _counts_since_load(facts, "uncorrected"):
        return facts.number(gpu_health.GPU_ECC_ERRORS, "uncorrected", "volatile") != 0
    change = facts.change(gpu_health.GPU_ECC_ERRORS, "uncorrected", "aggregate")
    return rule.has_increased(health_facts.require_value(change))


def _has_many_corrected_errors(facts: health_facts.HealthFacts) -> bool:
    lifetime = "volatile" if _counts_since_load(facts, "corrected") else "aggregate"
    change = facts.change(gpu_health.GPU_ECC_ERRORS, "corrected", lifetime)
    return health_facts.require_value(change).per_hour() > MAX_CORRECTED_PER_HOUR


def _counts_since_load(facts: health_facts.HealthFacts, errors: str) -> bool:
    """True if the GPU counts errors since the driver was loaded; else it may count those in the life of the board."""
    count = facts.reading(gpu_health.GPU_ECC_ERRORS, errors, "volatile")
    return count is not Absent.UNSUPPORTED


def _has_many_retired_pages(facts: health_facts.HealthFacts) -> bool:
    """Compare the sum over all causes with the limit; the available ones may be sufficient."""
    counts = facts.parts(gpu_health.GPU_RETIRED_PAGES).values()
    total = sum(count for count in counts if not isinstance(count, Absent))
    return total >= MAX_RETIRED_PAGES or health_facts.require_all(counts)


MEMORY_RULES = (
    rule.HealthRule("ecc_uncorrected_volatile", rule.FAILED, _has_uncorrected_errors,
        "an uncorrectable memory error since the driver was loaded; within ten minutes, if the GPU counts only those in the life of the board",
        f"{_DCGM}: volatile double-bit errors > 0 fail",
        actions=rule.RequiredActions(("drain", "reset_gpu"), ("WORKFLOW_XID_48",)), metrics=(gpu_health.GPU_ECC_ERRORS,), compares_readings=True),
    rule.HealthRule("ecc_corrected_rate", rule.DEGRADED, _has_many_corrected_errors,
        f"more than {MAX_CORRECTED_PER_HOUR} corrected memory errors per hour, over the last hour or since the start of the agent",
        f"{_POLICY}: each correction costs time, and repeated ones use spare rows",
        metrics=(gpu_health.GPU_ECC_ERRORS,), compares_readings=True),
    rule.HealthRule("row_remap_failed", rule.FAILED, rule.nonzero(gpu_health.GPU_ROW_REMAP_FAILURE),
        "a row of memory could not be replaced",
        f"{_POLICY}: failure flag; {_DCGM} fails",
        actions=_REPLACE, metrics=(gpu_health.GPU_ROW_REMAP_FAILURE,)),
    rule.HealthRule("row_remap_pending", rule.DEGRADED, rule.nonzero(gpu_health.GPU_ROW_REMAP_PENDING),
        "a row of memory is pending replacement; running jobs are not affected",
        f"{_POLICY}: takes effect at a GPU reset",
        actions=_RESET, metrics=(gpu_health.GPU_ROW_REMAP_PENDING,)),
    rule.HealthRule("remapped_rows_exhausted", rule.DEGRADED,
        lambda facts: facts.number(gpu_health.GPU_REMAPPED_ROWS, "uncorrectable") >= MAX_REMAPPED_ROWS,
        f"{MAX_REMAPPED_ROWS} or more rows replaced for uncorrectable errors",
        f"{_POLICY}: {MAX_REMAPPED_ROWS} rows at most; {_DCGM} warns",
        actions=rule.RequiredActions(("rma",), ("CONTACT_SUPPORT",)), metrics=(gpu_health.GPU_REMAPPED_ROWS,)),
    rule.HealthRule("retired_pages_pending", rule.DEGRADED, rule.nonzero(gpu_health.GPU_RETIRED_PENDING),
        "a page of memory is pending retirement (before Ampere)",
        f"{_NVML}, nvmlDeviceGetRetiredPagesPendingStatus: at a reboot; {_DCGM} warns",
        actions=rule.RequiredActions(("reboot",)), metrics=(gpu_health.GPU_RETIRED_PENDING,)),
    rule.HealthRule("retired_pages_exhausted", rule.FAILED, _has_many_retired_pages,
        f"{MAX_RETIRED_PAGES} or more retired pages of memory (before Ampere)",
        f"{_DCGM}: DCGM_LIMIT_MAX_RETIRED_PAGES fails",
        actions=_REPLACE, sources=(rule.SETTINGS,), metrics=(gpu_health.GPU_RETIRED_PAGES,), is_needed=False),
    rule.HealthRule("sram_threshold", rule.FAILED, rule.nonzero(gpu_health.GPU_SRAM_THRESHOLD),
        "so many errors of on-chip memory that field diagnostics would fail; readable by root only",
        f"{_NVML}, bThresholdExceeded; DCGM error 118 isolates the GPU",
        actions=_REPLACE, metrics=(gpu_health.GPU_SRAM_THRESHOLD,), is_needed=False),  # an agent without root would have no healthy GPU
    rule.HealthRule("unrepairable_memory", rule.FAILED, rule.nonzero(gpu_health.GPU_UNREPAIRABLE),
        "memory that cannot be repaired",
        f"{_NVML}, nvmlDeviceGetUnrepairableMemoryFlag_v1",
        actions=_REPLACE, metrics=(gpu_health.GPU_UNREPAIRABLE,)),
    rule.HealthRule("repair_pending", rule.DEGRADED, rule.any_nonzero(gpu_health.GPU_REPAIR_PENDING),
        "a repair of a memory channel or a TPC is pending",
        f"{_NVML}, nvmlDeviceGetRepairStatus: takes effect at a GPU reset",
        actions=_RESET, metrics=(gpu_health.GPU_REPAIR_PENDING,)),
)  # fmt: skip
