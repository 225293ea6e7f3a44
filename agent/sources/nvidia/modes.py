"""Changes of GPU settings: a setting that differs from the last read is an event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.host import Host
from agent.sampling.facts import known
from agent.sampling.source import Columns, Table
from railscope.catalog import gpu_ecc, gpu_modes, gpu_power
from railscope.catalog import gpu_health as h
from railscope.catalog.declare import Metric
from railscope.catalog.entities import GPU_ADDRESS
from railscope.entity import Entity
from railscope.frame import Event
from railscope.reading import PRESENT

WATCHED: Mapping[Metric, tuple[str, tuple[str, ...]]] = {
    gpu_ecc.GPU_ECC_MODE: ("ecc_mode", ()),
    gpu_modes.GPU_COMPUTE_MODE: ("compute_mode", ()),
    gpu_power.GPU_POWER_BOUNDS: ("power_limit", ("requested",)),
}
"""Watched settings by metric: the name of the change, and the part of the GPU that it belongs to."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A setting's column in the table."""

    column: int
    metric: Metric
    gpu: str
    change: str


class Modes:
    """Comparison of settings between reads, as long as the agent runs."""

    def __init__(self) -> None:
        """Start without known values."""
        self._places: list[_Place] = []
        self._last: dict[tuple[str, str], int] = {}

    def place(self, columns: Columns) -> None:
        """Find the settings among the columns."""
        self._places = []
        for position, (metric, entity) in enumerate(columns.columns):
            change, part = WATCHED.get(metric, ("", ()))
            if change and entity.key[1:] == part:
                self._places.append(_Place(position, metric, entity.key[0], change))

    def changes(self, host: Host, row: Table, addresses: Mapping[str, str]) -> Iterable[Event]:
        """Events of changed settings; a setting that is absent now is compared when it is present again.

        `addresses` are the PCI addresses of GPUs by UUID.
        """
        for place in self._places:
            if row.reasons[place.column] != PRESENT:
                continue
            value, key = row.values[place.column], (place.gpu, place.change)
            before = self._last.get(key)
            self._last[key] = value
            if before is None or before == value:
                continue
            now = host.clock.now()
            about = Entity(GPU_ADDRESS, (addresses.get(place.gpu, "unknown"),))
            facts = known(
                change=place.change, gpu=place.gpu, before=_said(place.metric, before),
                after=_said(place.metric, value),
            )  # fmt: skip
            yield Event(h.GPU_CHANGE_EVENT, about, now.wall_ns, now.boot_ns, facts)


def _said(metric: Metric, stored: int) -> str:
    """A setting as its state name, or in base units."""
    return metric.states.get(stored) or f"{float(stored * metric.scale):g}"
