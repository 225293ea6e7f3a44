"""Facts of a device with faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from railscope.catalog.declare import Metric
from railscope.reading import Absent, Reading
from railscope_agent.health.health_facts import (
    CounterIncrease,
    DevicePart,
    HealthFacts,
)
from railscope_agent.streams.xid_matcher import ActionableXid

Place = tuple[Metric, DevicePart]


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


def with_faults(faults: Iterable[HealthFault], facts: HealthFacts) -> HealthFacts:
    """Return facts with faults."""
    found = facts
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
