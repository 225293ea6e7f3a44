"""Sums of all quantities by slot of time and device: the memory of the diagnosis.

Arrays have the shape (quantities, slots, devices): of each device a numerator and a denominator for every
slot. Slots are a ring; `advance` clears those that become new. The latest slots of a device without
readings have denominators of zero, and every quotient of them is NaN: unknown.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from collector.diagnosis.quantities import QUANTITIES, DeviceKind, QuantityKind

Floats: TypeAlias = NDArray[np.float64]
Positions: TypeAlias = NDArray[np.intp]

REPLACED_KINDS = frozenset({QuantityKind.LAST, QuantityKind.ABSENCE})
MAX_WEIGHT = 60_000.0
"""Seconds or readings of a slot; above the largest of valid frames."""
_GROWTH_FACTOR = 1.25


class SlotSums:
    """Sums of the quantities of one kind of device, for the last `slots` slots."""

    def __init__(self, kind: DeviceKind, slots: int) -> None:
        self.names = tuple(q.name for q in QUANTITIES.values() if q.device is kind)
        self.index = {name: position for position, name in enumerate(self.names)}
        self.slots = slots
        self.devices = 0
        self.last_slot = -1
        shape = (len(self.names), slots, 8)
        self._sums = np.zeros(shape, np.float32)
        self._weights = np.zeros(shape, np.float16)  # 0.05 % is accurate enough for seconds
        self._latest = np.full((len(self.names), 8), np.nan)

    @property
    def bytes_per_device(self) -> int:
        """Return the memory of a device."""
        per_slot = self._sums.itemsize + self._weights.itemsize
        return len(self.names) * (self.slots * per_slot + self._latest.itemsize)

    def add_device(self) -> int:
        """Add a device without readings; return its position."""
        if self.devices == self._sums.shape[2]:
            more = max(int(self.devices * (_GROWTH_FACTOR - 1)), 8)
            padding = ((0, 0), (0, 0), (0, more))
            self._sums, self._weights = np.pad(self._sums, padding), np.pad(self._weights, padding)
            self._latest = np.pad(self._latest, padding[1:], constant_values=np.nan)
        self.devices += 1
        return self.devices - 1

    def advance(self, slot: int) -> None:
        """Begin a slot; slots that leave the ring are cleared."""
        for each in range(max(self.last_slot + 1, slot - self.slots + 1), slot + 1):
            self._sums[:, each % self.slots] = 0
            self._weights[:, each % self.slots] = 0
        self.last_slot = max(self.last_slot, slot)

    def add(
        self,
        quantities: Positions,
        slots: Positions,
        devices: Positions,
        sums: Floats,
        weights: Floats,
    ) -> None:
        """Add readings of one kind of quantity, shape (batches, segments), as are `devices`.

        Each batch has one slot, each segment one of the quantities. A quantity of a device occurs once. Slots that have
        not begun, or have left the ring, are ignored.
        """
        in_ring = (slots > self.last_slot - self.slots) & (slots <= self.last_slot) & (slots >= 0)
        batches, segments = np.nonzero((weights > 0) & in_ring[:, None])
        if not len(batches):
            return
        chosen = batches, segments
        place = (quantities[segments], slots[batches] % self.slots, devices[chosen])
        if QUANTITIES[self.names[quantities[0]]].kind in REPLACED_KINDS:
            self._sums[place] = sums[chosen]  # the last one of a slot remains
            self._weights[place] = 1
        else:
            self._sums[place] += sums[chosen]
            self._weights[place] = np.minimum(self._weights[place] + weights[chosen], MAX_WEIGHT)

    def _rows(self, end_slot: int, count: int) -> slice | Positions:
        first = max(end_slot - count + 1, self.last_slot - self.slots + 1, 0)
        begin, length = first % self.slots, max(end_slot - first + 1, 0)
        if begin + length <= self.slots:
            return slice(begin, begin + length)  # a view takes a tenth of the time of a copy
        return np.arange(first, end_slot + 1) % self.slots

    def settle(self, slot: int) -> None:
        """Make the values of a slot the latest ones, where it has any; slots are settled in their order."""
        row = slot % self.slots
        has_value = self._weights[:, row] > 0
        self._latest[has_value] = self._sums[:, row][has_value]

    def latest(self, name: str) -> Floats:
        """Return the newest value of each device in all settled slots; NaN without any."""
        found: Floats = self._latest[self.index[name], : self.devices]
        return found

    def total(self, name: str, end_slot: int, count: int) -> Floats:
        """Return the sums of a quantity over `count` slots up to `end_slot`; NaN without readings."""
        found = self._sum(name, end_slot, count)
        found[self.weight(name, end_slot, count) <= 0] = np.nan
        return found

    def _sum(self, name: str, end_slot: int, count: int) -> Floats:
        rows = self._rows(end_slot, count)
        found: Floats = self._sums[self.index[name], rows, : self.devices].sum(
            axis=0, dtype=np.float64
        )
        return found

    def weight(self, name: str, end_slot: int, count: int) -> Floats:
        """Return the seconds or the number of readings of a quantity in slots."""
        rows = self._rows(end_slot, count)
        weights: Floats = self._weights[self.index[name], rows, : self.devices].sum(
            axis=0, dtype=np.float64
        )
        return weights

    def rate(self, name: str, end_slot: int, count: int) -> Floats:
        """Return rates per second of a counter, or means of a gauge; NaN without readings."""
        return divide(self._sum(name, end_slot, count), self.weight(name, end_slot, count))

    def last(self, name: str, end_slot: int, count: int) -> Floats:
        """Return the newest value of each device within `count` slots; NaN without any."""
        quantity = self.index[name]
        found = np.full(self.devices, np.nan)
        rows = self._rows(end_slot, count)
        sums, weights = (
            of_all[quantity, rows, : self.devices] for of_all in (self._sums, self._weights)
        )
        for values, has_value in zip(sums, weights > 0, strict=True):
            found[has_value] = values[has_value]
        return found

    def history(self, name: str, end_slot: int, count: int) -> Floats:
        """Return rates or means of single slots, shape (slots, devices); NaN without readings."""
        rows, quantity = self._rows(end_slot, count), self.index[name]
        sums = self._sums[quantity, rows, : self.devices].astype(np.float64)
        return divide(sums, self._weights[quantity, rows, : self.devices].astype(np.float64))


def divide(numerators: Floats, denominators: Floats) -> Floats:
    """Return quotients; NaN where a denominator is zero or unknown."""
    unknown = np.full(np.broadcast_shapes(numerators.shape, denominators.shape), np.nan)
    found: Floats = np.divide(numerators, denominators, out=unknown, where=denominators > 0)
    return found


def mean_known(values: Floats) -> float:
    """Return the mean of the known values; NaN without any."""
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else np.nan


def median_known(values: Floats) -> float:
    """Return the median of the known values; NaN without any."""
    present = values[~np.isnan(values)]
    return median(present) if len(present) else np.nan


def median(values: Floats) -> float:
    """Return the median of values, of which none is unknown; five times as fast as that of numpy for a few."""
    ordered, middle = np.sort(values), len(values) // 2
    if len(values) % 2:
        return float(ordered[middle])
    return float((ordered[middle - 1] + ordered[middle]) / 2)


def means_known(rows: Floats) -> Floats:
    """Return the mean of the known values of each column; NaN without any."""
    present = ~np.isnan(rows)
    return divide(np.where(present, rows, 0.0).sum(axis=0), present.sum(axis=0).astype(np.float64))
