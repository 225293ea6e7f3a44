"""Columns of schemas that the quantities of the diagnosis use, and the devices that they belong to.

They are determined once for nodes of one build, whose schemas differ in the names of devices only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from railscope.catalog import METRICS
from railscope.shapes import RESERVED
from railscope.wire import WireGroup, WireSchema, part_of_key
from railscope_collector.diagnosis.devices import (
    NO_POSITION,
    ClusterDevices,
    ClusterNode,
    ClusterSwitch,
)
from railscope_collector.diagnosis.quantities import QUANTITIES, DeviceKind, Quantity, QuantityKind
from railscope_collector.diagnosis.slot_sums import Floats, Positions

_BY_METRIC: dict[str, list[Quantity]] = defaultdict(list)
for _quantity in QUANTITIES.values():
    _BY_METRIC[_quantity.metric].append(_quantity)

_UsedColumn: TypeAlias = tuple[int, int, int, float]
"""Quantity, device, column and scale."""
_DeviceEntity: TypeAlias = tuple[DeviceKind, int]
"""Kind of a device, and the number of an entity that is a part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSegments:
    """Columns of quantities of one kind of device, in order; each segment is one quantity of one device.

    `span` are their positions among the columns of the pattern; `starts` and `quantities` have one item for each segment.
    """

    device: DeviceKind
    kind: QuantityKind
    span: slice
    starts: Positions
    quantities: Positions
    combine: np.ufunc
    """Combination of the columns of a segment."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ColumnPattern:
    """The columns that quantities use, counters first; batches of one pattern are added together."""

    width: int
    """Columns of the schema."""
    columns: Positions
    scales: Floats
    counters: int
    parts: tuple[ColumnSegments, ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StreamTemplate:
    """Columns of the schema of a node, and their devices relative to the first one of their kind."""

    groups: tuple[WireGroup, ...]
    labels: dict[int, Sequence[str]]
    """Parts of devices that entities are, where quantities distinguish them."""
    positions: dict[_DeviceEntity, int]
    """Relative positions of the devices of entities."""
    pattern: ColumnPattern
    distances: tuple[Positions, ...]
    """Relative positions of the devices of segments, for each part of the pattern."""

    def first_devices(
        self, devices: ClusterDevices, node: ClusterNode | ClusterSwitch, schema: WireSchema
    ) -> dict[DeviceKind, int] | None:
        """Return the first device of each kind, or None if a schema needs another template."""
        entities = schema.entities
        if schema.groups != self.groups or any(
            part_of_key(entities[number]) != label for number, label in self.labels.items()
        ):
            return None
        found = {
            (kind, number): devices.position(node, kind, entities[number])
            for kind, number in self.positions
        }
        relative, firsts = _relative(found)
        return firsts if relative == self.positions else None


NO_TEMPLATE = StreamTemplate(
    (), {}, {}, ColumnPattern(0, np.array((), np.intp), np.array(()), 0, ()), ()
)


class StreamTemplates:
    """The last template of each stream that streams of nodes use."""

    def __init__(self) -> None:
        self._templates: WeakValueDictionary[tuple[str, int], StreamTemplate] = (
            WeakValueDictionary()
        )
        self._patterns: WeakValueDictionary[tuple[object, ...], ColumnPattern] = (
            WeakValueDictionary()
        )

    def find(
        self, devices: ClusterDevices, node: ClusterNode | ClusterSwitch, schema: WireSchema
    ) -> tuple[StreamTemplate, tuple[int, ...]]:
        """Return the template of a schema, and the first device of each part of its pattern."""
        key = schema.stream, len(schema.entities)
        template = self._templates.get(key)
        firsts = template.first_devices(devices, node, schema) if template else None
        if template is None or firsts is None:
            template, firsts = self._make(devices, node, schema)
            self._templates[key] = template
        return template, tuple(firsts[part.device] for part in template.pattern.parts)

    def _make(
        self, devices: ClusterDevices, node: ClusterNode | ClusterSwitch, schema: WireSchema
    ) -> tuple[StreamTemplate, dict[DeviceKind, int]]:
        columns = _QuantityColumns(devices, node, schema)
        found = sorted(columns.find(), key=lambda rows: rows[1] is not QuantityKind.COUNTER)
        relative, firsts = _relative(columns.positions)
        width = schema.width
        parts, arrays, distances, counters, end = [], [], [], 0, 0
        for device, kind, combine, rows in found:
            quantities, positions, *used = map(np.array, zip(*rows, strict=True))
            changes = (np.diff(quantities) != 0) | (np.diff(positions) != 0)
            starts = np.flatnonzero(np.concatenate([[True], changes]))
            span = slice(end, end + len(rows))
            parts.append(ColumnSegments(device, kind, span, starts, quantities[starts], combine))
            distances.append(positions[starts] - firsts[device])
            arrays.append(used)
            end = span.stop
            counters += len(rows) if kind is QuantityKind.COUNTER else 0
        all_columns = np.concatenate([np.array((), np.intp), *(used[0] for used in arrays)])
        scales = np.concatenate([np.array(()), *(used[1] for used in arrays)])
        identity = (
            (
                each.device,
                each.kind,
                each.span.stop,
                each.starts.tobytes(),
                each.quantities.tobytes(),
                each.combine,
            )
            for each in parts
        )
        key = (schema.stream, width, all_columns.tobytes(), scales.tobytes(), *identity)
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = ColumnPattern(width, all_columns, scales, counters, tuple(parts))
            self._patterns[key] = pattern
        labels = columns.labels
        return StreamTemplate(schema.groups, labels, relative, pattern, tuple(distances)), firsts


def _relative(
    positions: dict[_DeviceEntity, int],
) -> tuple[dict[_DeviceEntity, int], dict[DeviceKind, int]]:
    """Return positions relative to the first of their kind, and the first ones."""
    firsts: dict[DeviceKind, int] = {}
    for (kind, _), position in positions.items():
        if position != NO_POSITION:
            firsts[kind] = min(position, firsts.get(kind, position))
    relative = {
        key: NO_POSITION if position == NO_POSITION else position - firsts[key[0]]
        for key, position in positions.items()
    }
    return relative, firsts


class _QuantityColumns:
    """The columns of a schema that quantities use."""

    def __init__(
        self, devices: ClusterDevices, node: ClusterNode | ClusterSwitch, schema: WireSchema
    ) -> None:
        self._devices, self._node, self._schema = devices, node, schema
        self.labels: dict[int, Sequence[str]] = {}
        self.positions: dict[_DeviceEntity, int] = {}

    def find(
        self,
    ) -> Iterator[tuple[DeviceKind, QuantityKind, np.ufunc, list[_UsedColumn]]]:
        """Yield the used columns, by kind of device and of quantity, and by the combination of parts."""
        found: dict[tuple[DeviceKind, QuantityKind, np.ufunc], list[_UsedColumn]]
        found = defaultdict(list)
        start = 0
        for group in self._schema.groups:
            scale = group.scale[0] / group.scale[1]
            metric = METRICS.get(group.metric)
            combine: np.ufunc = np.add if metric is None or metric.adds_parts else np.maximum
            for quantity in _BY_METRIC.get(group.metric, ()):
                index = self._devices.sums[quantity.device].index[quantity.name]
                for column, number in enumerate(group.entities, start):
                    if number == RESERVED:
                        continue
                    if quantity.parts and not quantity.selects(self._label(number)):
                        continue
                    position = self._position(quantity.device, number)
                    if position != NO_POSITION:
                        is_code = quantity.kind is QuantityKind.ABSENCE
                        row = (index, position, column, 1.0 if is_code else scale)
                        found[quantity.device, quantity.kind, combine].append(row)
            start += len(group.entities)
        for (device, kind, combine), rows in found.items():
            yield device, kind, combine, sorted(rows)

    def _label(self, number: int) -> Sequence[str]:
        if number not in self.labels:
            self.labels[number] = part_of_key(self._schema.entities[number])
        return self.labels[number]

    def _position(self, kind: DeviceKind, number: int) -> int:
        key = kind, number
        if key not in self.positions:
            entity = self._schema.entities[number]
            self.positions[key] = self._devices.position(self._node, kind, entity)
        return self.positions[key]
