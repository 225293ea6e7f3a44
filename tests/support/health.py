"""Facts of a healthy GPU, and every fault that it can have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from railscope.catalog import gpu as c, gpu_health as h, gpu_sharing as s, nvlink as n
from railscope.catalog.declare import Metric
from railscope.catalog.xids import judge
from railscope.reading import Absent, Reading
from railscope_agent.health.health_facts import (
    HOUR_NS,
    MINUTE_NS,
    CounterIncrease,
    DevicePart,
    HealthFacts,
)
from railscope_agent.streams.xid_matcher import ActionableXid

LINKS = 18
WINDOW_NS = 10 * MINUTE_NS
STILL = CounterIncrease(0, WINDOW_NS, 0, MINUTE_NS, 0, HOUR_NS)
ONE_MORE = CounterIncrease(1, WINDOW_NS, 0, MINUTE_NS)

Place = tuple[Metric, DevicePart]


def xid(number: int, message: str = "") -> ActionableXid:
    """Return an Xid as from the kernel log."""
    return ActionableXid(number, 5, judge(number, message))


def late(amount: int) -> CounterIncrease:
    """Return a growth of this amount within the last minute."""
    return CounterIncrease(amount, WINDOW_NS, amount, MINUTE_NS)


@dataclass(frozen=True)
class HealthFault:
    """Changes of the facts in case of a fault."""

    readings: Mapping[Place, Reading] = field(default_factory=dict)
    changes: Mapping[Place, CounterIncrease] = field(default_factory=dict)
    xids: tuple[ActionableXid, ...] = ()
    absent_sources: Mapping[str, Absent] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    """Other facts about the GPU by name, such as its state on the PCI bus."""

    @property
    def places(self) -> set[object]:
        """Return the parts of the facts that it changes."""
        return {
            *self.readings, *self.changes, *self.absent_sources, *self.others,
            *(x.number for x in self.xids),
        }  # fmt: skip


def reading(metric: Metric, value: Reading, *part: str) -> HealthFault:
    """Return a fault of one other reading."""
    return HealthFault({(metric, part): value})


def change(metric: Metric, grown: CounterIncrease, *part: str) -> HealthFault:
    """Return a fault of one counter that has grown."""
    return HealthFault(changes={(metric, part): grown})


def links(*states: Reading) -> HealthFault:
    """Return a fault of NVLinks in these states, with the others active."""
    return HealthFault({(n.NVLINK_STATE, (str(link),)): state for link, state in enumerate(states)})


def with_faults(faults: Iterable[HealthFault], facts: HealthFacts | None = None) -> HealthFacts:
    """Return the facts of a healthy GPU, or others, with faults."""
    found = facts or healthy()
    readings = {metric: dict(parts) for metric, parts in found.readings.items()}
    changes = {metric: dict(parts) for metric, parts in found.changes.items()}
    xids, absent_sources, others = found.xids, dict(found.absent_sources), {}
    for fault in faults:
        for (metric, part), value in fault.readings.items():
            readings.setdefault(metric, {})[part] = value
        for (metric, part), grown in fault.changes.items():
            changes.setdefault(metric, {})[part] = grown
        xids += fault.xids
        absent_sources |= fault.absent_sources
        others |= fault.others
    return replace(
        found,
        readings=readings,
        changes=changes,
        xids=xids,
        absent_sources=absent_sources,
        **others,
    )


def healthy() -> HealthFacts:
    """Return a GPU on an NVSwitch baseboard with every feature and no fault."""
    whole: dict[Metric, Reading] = {
        c.GPU_POWER: 300_000,
        c.GPU_TEMPERATURE: 50,
        c.GPU_MEMORY_TOTAL: 80 << 30,
        c.GPU_UTILIZATION: 90,
        c.GPU_ENERGY: 10**12,
        c.GPU_PERFORMANCE_STATE: 0,
        c.GPU_TEMPERATURE_MARGIN: 30,
        h.GPU_ROW_REMAP_PENDING: 0,
        h.GPU_ROW_REMAP_FAILURE: 0,
        h.GPU_RETIRED_PENDING: 0,
        h.GPU_SRAM_THRESHOLD: 0,
        h.GPU_UNREPAIRABLE: 0,
        h.GPU_RECOVERY_ACTION: 0,
        h.GPU_PCIE_GENERATION: 5,
        h.GPU_PCIE_EXPECTED_GENERATION: 5,
        h.GPU_PCIE_WIDTH: 16,
        h.GPU_PCIE_EXPECTED_WIDTH: 16,
        h.GPU_PCIE_REPLAYS: 7,
        h.GPU_FABRIC_STATE: 3,
        h.GPU_FABRIC_STATUS: 0,
        h.GPU_FABRIC_HEALTH: 1,
        s.GPU_MIG_MODE: 0,
    }
    parts: dict[Place, Reading] = {
        (h.GPU_ECC_ERRORS, ("corrected", "volatile")): 7,
        (h.GPU_ECC_ERRORS, ("uncorrected", "volatile")): 0,
        (h.GPU_ECC_ERRORS, ("uncorrected", "aggregate")): 3,
        (h.GPU_REMAPPED_ROWS, ("correctable",)): 511,
        (h.GPU_REMAPPED_ROWS, ("uncorrectable",)): 2,
        (h.GPU_RETIRED_PAGES, ("correctable",)): 30,
        (h.GPU_RETIRED_PAGES, ("uncorrectable",)): 32,
        (h.GPU_REPAIR_PENDING, ("memory_channel",)): 0,
        (h.GPU_REPAIR_PENDING, ("tpc",)): 0,
        (h.GPU_FABRIC_CONDITION, ("route_unhealthy",)): 0,
        (h.GPU_PCIE_ERRORS, ("correctable",)): 5,
        (h.GPU_PCIE_ERRORS, ("fatal",)): 1,
        (h.GPU_PCIE_ERRORS, ("nonfatal",)): 1,
    }
    for reason in ("hardware_thermal", "software_thermal", "hardware_power_brake"):
        parts[c.GPU_THROTTLE_TIME, (reason,)] = 10**9
        parts[c.GPU_THROTTLE_ACTIVE, (reason,)] = 0
    for link in map(str, range(LINKS)):
        parts[n.NVLINK_STATE, (link,)] = 1
        parts[n.NVLINK_BIT_ERRORS, (link, "effective")] = 15_000
        parts[n.NVLINK_BIT_ERRORS, (link, "raw")] = 6_000
        for error in ("replay", "recovery", "crc", "receive"):
            parts[n.NVLINK_ERRORS, (link, error)] = 9
        parts[n.NVLINK_RECOVERIES, (link, "successful")] = 4
    readings: dict[Metric, dict[DevicePart, Reading]] = {
        metric: {(): v} for metric, v in whole.items()
    }
    for (metric, part), value in parts.items():
        readings.setdefault(metric, {})[part] = value
    growing = (
        h.GPU_ECC_ERRORS,
        h.GPU_PCIE_REPLAYS,
        h.GPU_PCIE_ERRORS,
        c.GPU_THROTTLE_TIME,
        n.NVLINK_ERRORS,
        n.NVLINK_RECOVERIES,
    )
    changes = {metric: dict.fromkeys(readings[metric], STILL) for metric in growing}
    return HealthFacts(readings, changes)
