"""Every fault of a GPU, and harmless states that resemble one, by the reason of their rule."""

from __future__ import annotations

from dataclasses import replace

from support.health import LINKS, ONE_MORE, STILL, HealthFault, change, late, links, reading, xid

from railscope.catalog import gpu as c, gpu_health as h, gpu_sharing as s, nvlink as n
from railscope.catalog.declare import Metric
from railscope.reading import Absent, Reading
from railscope_agent.health.health_facts import HOUR_NS, MINUTE_NS, CounterIncrease

PULSE = (
    c.GPU_POWER, c.GPU_TEMPERATURE, c.GPU_MEMORY_TOTAL, c.GPU_PERFORMANCE_STATE, h.GPU_PCIE_WIDTH,
    h.GPU_PCIE_GENERATION,
)  # fmt: skip
FATAL_LINK = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)"
RESET_WANTED = "Contained: SM (0x1). RST: Yes, D-RST: No"


def all_gone(*metrics: Metric) -> HealthFault:
    return HealthFault({(metric, ()): Absent.GONE for metric in metrics})


def throttled(reason: str, grown: CounterIncrease) -> HealthFault:
    return change(c.GPU_THROTTLE_TIME, grown, reason)


def corrected(errors: int, over_ns: int, lifetime: str = "volatile") -> HealthFault:
    """Return corrected memory errors within a time of at most an hour."""
    grown = CounterIncrease(0, 10 * MINUTE_NS, 0, MINUTE_NS, errors, over_ns)
    return change(h.GPU_ECC_ERRORS, grown, "corrected", lifetime)


def without_volatile(errors: str, fault: HealthFault) -> HealthFault:
    """Return a fault of a GPU that counts memory errors in the life of the board only."""
    readings = {
        (h.GPU_ECC_ERRORS, (errors, "volatile")): Absent.UNSUPPORTED,
        (h.GPU_ECC_ERRORS, (errors, "aggregate")): 10**6,
    }
    return HealthFault({**readings, **fault.readings}, fault.changes)


def seconds(spent: float) -> CounterIncrease:
    return CounterIncrease(round(spent * 10**9), 10 * MINUTE_NS, 0, MINUTE_NS)


def beside_links(active: Reading, peer_links: int) -> HealthFault:
    """Return a number of active links beside a GPU at the NVSwitches with another one."""
    return HealthFault({(n.NVLINK_ACTIVE, ()): active}, others={"peer_links": peer_links})


def beside_fabric(fault: HealthFault) -> HealthFault:
    """Return a fault beside a GPU that has joined the fabric."""
    return replace(fault, others={"has_fabric_peer": True})


def both(*faults: HealthFault) -> HealthFault:
    """Combine several faults."""
    readings = {place: value for fault in faults for place, value in fault.readings.items()}
    others = {name: fact for fault in faults for name, fact in fault.others.items()}
    return HealthFault(
        readings,
        {p: grown for fault in faults for p, grown in fault.changes.items()},
        others=others,
    )


FAULTS: list[tuple[str, HealthFault]] = [
    ("gpu_lost", all_gone(*PULSE)),
    ("gpu_lost", HealthFault(absent_sources={"gpu": Absent.GONE, "gpu_health": Absent.GONE}, others={"device_state": 4})),
    (
        "gpu_lost",
        HealthFault(absent_sources={"gpu": Absent.GONE, "gpu_health": Absent.GONE}, others={"device_state": Absent.GONE}),
    ),
    ("reset_required", HealthFault(others={"needs_reset": True})),
    ("driver_unsuitable", HealthFault(others={"init_failure": "RmFetchGspRmImages: No firmware image found"})),
    ("not_initialized", HealthFault(others={"init_failure": "RmInitAdapter failed!"})),
    ("driver_unresponsive", HealthFault(absent_sources={"gpu": Absent.TIMEOUT})),
    ("driver_unresponsive", HealthFault(absent_sources={"gpu_health": Absent.ERROR})),
    ("driver_unresponsive", HealthFault(absent_sources={"nvlink": Absent.DENIED, "gpu": Absent.NOT_DUE})),
    *(("recovery_action", reading(h.GPU_RECOVERY_ACTION, value)) for value in (1, 2, 6, 7, 8)),
    *(("recovery_drain", reading(h.GPU_RECOVERY_ACTION, value)) for value in (3, 4, 5)),
    ("row_remap_failed", reading(h.GPU_ROW_REMAP_FAILURE, 1)),
    ("row_remap_pending", reading(h.GPU_ROW_REMAP_PENDING, 1)),
    ("remapped_rows_exhausted", reading(h.GPU_REMAPPED_ROWS, 512, "uncorrectable")),
    ("retired_pages_pending", reading(h.GPU_RETIRED_PENDING, 1)),
    ("retired_pages_exhausted", reading(h.GPU_RETIRED_PAGES, 33, "uncorrectable")),
    (
        "retired_pages_exhausted",
        both(
            reading(h.GPU_RETIRED_PAGES, 63, "uncorrectable"),
            reading(h.GPU_RETIRED_PAGES, Absent.ERROR, "correctable"),
        ),
    ),
    ("ecc_uncorrected_volatile", reading(h.GPU_ECC_ERRORS, 1, "uncorrected", "volatile")),
    (
        "ecc_uncorrected_volatile",
        without_volatile(
            "uncorrected", change(h.GPU_ECC_ERRORS, ONE_MORE, "uncorrected", "aggregate")
        ),
    ),
    ("ecc_corrected_rate", corrected(1001, HOUR_NS)),
    (
        "ecc_corrected_rate",
        without_volatile("corrected", corrected(1001, HOUR_NS, "aggregate")),
    ),
    ("ecc_corrected_rate", corrected(17, MINUTE_NS)),
    ("sram_threshold", reading(h.GPU_SRAM_THRESHOLD, 1)),
    ("unrepairable_memory", reading(h.GPU_UNREPAIRABLE, 1)),
    ("repair_pending", reading(h.GPU_REPAIR_PENDING, 1, "tpc")),
    ("repair_pending", reading(h.GPU_REPAIR_PENDING, 1, "memory_channel")),
    ("fabric_not_joined", reading(h.GPU_FABRIC_STATE, 1)),
    ("fabric_not_joined", reading(h.GPU_FABRIC_STATE, 2)),
    ("fabric_not_joined", reading(h.GPU_FABRIC_STATUS, 999)),
    ("fabric_not_joined", beside_fabric(reading(h.GPU_FABRIC_STATE, 0))),
    ("fabric_not_joined", beside_fabric(reading(h.GPU_FABRIC_STATE, Absent.UNSUPPORTED))),
    ("nvlink_down", beside_links(17, LINKS)),
    ("nvlink_down", beside_links(Absent.UNSUPPORTED, LINKS)),
    ("fabric_unhealthy", reading(h.GPU_FABRIC_HEALTH, 2)),
    ("fabric_limited", reading(h.GPU_FABRIC_HEALTH, 3)),
    ("fabric_condition", reading(h.GPU_FABRIC_CONDITION, 1, "route_unhealthy")),
    ("nvlink_down", links(0)),
    ("nvlink_down", links(0, Absent.ERROR)),
    ("nvlink_down", links(*[0] * LINKS)),
    (
        "nvlink_down",
        both(
            links(1, 0), reading(h.GPU_FABRIC_STATE, Absent.UNSUPPORTED),
            reading(n.NVLINK_RAW_RECEIVED, 7, "1"),
        ),
    ),
    ("nvlink_recovering", change(n.NVLINK_ERRORS, ONE_MORE, "3", "replay")),
    ("nvlink_recovering", change(n.NVLINK_ERRORS, ONE_MORE, "17", "recovery")),
    ("nvlink_recovering", change(n.NVLINK_RECOVERIES, ONE_MORE, "0", "successful")),
    ("nvlink_crc", change(n.NVLINK_ERRORS, ONE_MORE, "3", "crc")),
    ("nvlink_crc_rate", change(n.NVLINK_ERRORS, late(6000), "3", "crc")),
    (
        "nvlink_crc_rate",
        both(*(change(n.NVLINK_ERRORS, late(600), str(link), "crc") for link in range(10))),
    ),
    ("nvlink_bit_errors", reading(n.NVLINK_BIT_ERRORS, 11_999, "3", "effective")),
    ("pcie_width", reading(h.GPU_PCIE_WIDTH, 8)),
    ("pcie_generation", reading(h.GPU_PCIE_GENERATION, 4)),
    ("pcie_replays", change(h.GPU_PCIE_REPLAYS, late(32))),
    (
        "pcie_replays",
        both(reading(h.GPU_PCIE_EXPECTED_GENERATION, 1), reading(h.GPU_PCIE_GENERATION, 1),
             change(h.GPU_PCIE_REPLAYS, late(4))),
    ),
    ("pcie_errors", change(h.GPU_PCIE_ERRORS, ONE_MORE, "fatal")),
    ("pcie_errors", change(h.GPU_PCIE_ERRORS, ONE_MORE, "nonfatal")),
    ("thermal_hardware", throttled("hardware_thermal", seconds(0.001))),
    ("thermal_hardware", reading(c.GPU_THROTTLE_ACTIVE, 1, "hardware_thermal")),
    ("thermal_software", throttled("software_thermal", seconds(60))),
    ("power_brake", throttled("hardware_power_brake", seconds(0.001))),
    ("power_brake", reading(c.GPU_THROTTLE_ACTIVE, 1, "hardware_power_brake")),
    ("temperature_margin", reading(c.GPU_TEMPERATURE_MARGIN, 0)),
    ("temperature_margin", reading(c.GPU_TEMPERATURE_MARGIN, -4)),
    ("xid_fatal", HealthFault(xids=(xid(79),))),
    ("xid_fatal", HealthFault(xids=(xid(149, FATAL_LINK),))),
    ("xid_action", HealthFault(xids=(xid(94, RESET_WANTED),))),
]  # fmt: skip

QUIET: list[tuple[str, HealthFault]] = [
    ("gpu_lost", reading(c.GPU_POWER, Absent.ERROR)),
    ("gpu_lost", all_gone(c.GPU_POWER, c.GPU_PERFORMANCE_STATE)),
    (
        "driver_unresponsive",
        HealthFault(absent_sources={"nvlink": Absent.UNSUPPORTED, "kernel": Absent.DENIED}),
    ),
    ("recovery_action", reading(h.GPU_RECOVERY_ACTION, Absent.UNSUPPORTED)),
    ("remapped_rows_exhausted", reading(h.GPU_REMAPPED_ROWS, 511, "uncorrectable")),
    ("retired_pages_exhausted", reading(h.GPU_RETIRED_PAGES, 31, "uncorrectable")),
    ("ecc_uncorrected_volatile", reading(h.GPU_ECC_ERRORS, 9, "corrected", "volatile")),
    ("ecc_corrected_rate", reading(h.GPU_ECC_ERRORS, 10**9, "corrected", "volatile")),
    ("ecc_corrected_rate", corrected(1000, HOUR_NS)),
    (
        "ecc_uncorrected_volatile",
        without_volatile(
            "uncorrected", change(h.GPU_ECC_ERRORS, STILL, "uncorrected", "aggregate")
        ),
    ),
    (
        "ecc_corrected_rate",
        without_volatile("corrected", corrected(1000, HOUR_NS, "aggregate")),
    ),
    (
        "fabric_not_joined",
        both(beside_fabric(reading(h.GPU_FABRIC_STATE, 0)), reading(s.GPU_MIG_MODE, 1)),
    ),
    ("nvlink_down", beside_links(12, 12)),
    ("nvlink_down", both(beside_links(0, LINKS), reading(s.GPU_MIG_MODE, 1))),
    ("fabric_not_joined", reading(h.GPU_FABRIC_STATE, 0)),
    ("fabric_unhealthy", reading(h.GPU_FABRIC_HEALTH, 0)),
    ("nvlink_down", links(1, 2, 3)),
    ("nvlink_down", both(links(*[0] * LINKS), reading(h.GPU_FABRIC_STATE, 0))),
    ("nvlink_down", both(links(*[0] * 6), reading(h.GPU_FABRIC_STATE, Absent.UNSUPPORTED))),
    (
        "nvlink_down",
        both(links(*[0] * LINKS), reading(h.GPU_FABRIC_STATE, Absent.UNSUPPORTED)),
    ),
    ("nvlink_down", both(links(*[0] * LINKS), reading(s.GPU_MIG_MODE, 1))),
    ("nvlink_recovering", change(n.NVLINK_ERRORS, ONE_MORE, "3", "receive")),
    ("nvlink_recovering", change(n.NVLINK_ERRORS, ONE_MORE, "3", "crc")),
    ("nvlink_crc", change(n.NVLINK_ERRORS, ONE_MORE, "3", "replay")),
    ("nvlink_crc_rate", change(n.NVLINK_ERRORS, late(5999), "3", "crc")),
    ("nvlink_bit_errors", reading(n.NVLINK_BIT_ERRORS, 12_000, "3", "effective")),
    ("nvlink_bit_errors", reading(n.NVLINK_BIT_ERRORS, 3_000, "3", "raw")),
    (
        "pcie_generation",
        both(reading(h.GPU_PCIE_GENERATION, 1), reading(c.GPU_PERFORMANCE_STATE, 8)),
    ),
    (
        "pcie_generation",
        both(reading(h.GPU_PCIE_GENERATION, 1), reading(c.GPU_UTILIZATION, 0)),
    ),
    ("pcie_replays", change(h.GPU_PCIE_REPLAYS, late(31))),
    (
        "pcie_replays",
        change(h.GPU_PCIE_REPLAYS, CounterIncrease(300, 10 * MINUTE_NS, 0, MINUTE_NS)),
    ),
    ("pcie_errors", change(h.GPU_PCIE_ERRORS, ONE_MORE, "correctable")),
    ("thermal_hardware", throttled("software_thermal", seconds(30))),
    ("thermal_software", throttled("software_thermal", seconds(59.9))),
    ("power_brake", throttled("hardware_thermal", seconds(9))),
    ("temperature_margin", reading(c.GPU_TEMPERATURE_MARGIN, 1)),
    ("xid_fatal", HealthFault(xids=(xid(94, RESET_WANTED),))),
    ("xid_action", HealthFault(xids=(xid(79),))),
    ("xid_fatal", HealthFault(absent_sources={"kernel": Absent.UNSUPPORTED})),
]
