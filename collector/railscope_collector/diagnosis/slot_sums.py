"""Sums of all quantities by slot of time and device: the memory of the diagnosis.

Of each device there are a numerator and a denominator for every quantity and slot, or the last value alone. Slots are a
ring; `advance` clears those that become new. The latest slots of a device without
readings have denominators of zero, and every quotient of them is NaN: unknown.

The newest slots are arrays, earlier ones compressed: most values are zero, unknown or equal to those of other devices, so
that a compressed slot takes a fifth of its size. Rows of small clusters stay as they are. A quantity takes memory from its
first value on.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railscope.catalog import METRICS
from railscope_collector.diagnosis.quantities import QUANTITIES, DeviceKind, QuantityKind

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Floats: TypeAlias = NDArray[np.float64]
Positions: TypeAlias = NDArray[np.intp]

Values: TypeAlias = NDArray[np.floating[Any]]
PackedValues: TypeAlias = bytes | Values
"""Values in a compressed form, or a few as they are."""

_NO_POSITION = -1
_GROWTH_FACTOR = 1.125
_LEVEL = 1
_NOTHING = b""
MAX_PLAIN_BYTES = 512
"""Size up to which values are not compressed: a context of zstd takes longer to create than a thousand values to read."""
MAX_COMPRESSED_AGAIN = 2
"""Slots with late values that are compressed again when a slot begins."""


def compress(values: Values) -> PackedValues:
    """Return values in a compressed form; a copy of few values."""
    if values.nbytes <= MAX_PLAIN_BYTES:
        copied = values.copy()
        copied.flags.writeable = False
        return copied
    return zstd.compress(values.tobytes(), _LEVEL)


def decompress(packed: PackedValues, dtype: np.dtype[np.floating[Any]]) -> Values:
    """Return the values of a compressed form, none of an empty one; not to be changed."""
    if not isinstance(packed, bytes):
        return packed
    return np.frombuffer(zstd.decompress(packed) if packed else packed, dtype)


class SlotRing:
    """Values of quantities in the last `slots` slots, of which `open_slots` are kept as an array; `fill` means no value."""

    def __init__(
        self,
        quantities: int,
        slots: int,
        open_slots: int,
        dtype: type[np.floating[Any]],
        fill: float,
    ) -> None:
        self._slots, self._open_slots = slots, min(open_slots, slots)
        self._fill = dtype(fill)
        self._positions = np.full(quantities, _NO_POSITION, np.intp)
        self._open: Values = np.full((0, self._open_slots, 8), fill, dtype)
        self._packed: dict[int, list[PackedValues]] = {}
        """Compressed slots; of each the values of every quantity, empty without any."""
        self._late: dict[int, Values] = {}
        """Slots that were compressed and have received values since."""
        self.devices = 0
        self.last_slot = -1

    def add_device(self) -> None:
        """Add a device without values."""
        size = self._open.shape[2]
        if self.devices == size:
            more = max(int(size * (_GROWTH_FACTOR - 1)), 8)
            self._open = self._widened(self._open, size + more)
        self.devices += 1

    def _widened(self, values: Values, size: int) -> Values:
        wide = np.full((*values.shape[:-1], size), self._fill)
        wide[..., : values.shape[-1]] = values
        return wide

    def advance(self, slot: int) -> None:
        """Begin the slots up to one: earlier ones are compressed, and those that leave the ring are dropped."""
        for late in sorted(self._late)[:MAX_COMPRESSED_AGAIN]:
            self._packed[late] = self._compress(self._late.pop(late))
        for each in range(max(self.last_slot + 1, slot - self._slots + 1), slot + 1):
            values, earlier = self._open[:, each % self._open_slots], each - self._open_slots
            if max(slot - self._slots, -1) < earlier <= self.last_slot:
                self._packed[earlier] = self._compress(values)
            values[:] = self._fill
        self.last_slot = max(self.last_slot, slot)
        for table in (self._packed, self._late):
            for old in [each for each in table if each <= self.last_slot - self._slots]:
                del table[old]

    def _compress(self, values: Values) -> list[PackedValues]:
        values = values[:, : self.devices]
        of_content: dict[bytes, PackedValues] = {
            np.full(values.shape[1], self._fill).tobytes(): _NOTHING
        }
        packed = []
        for row in values:
            content = row.tobytes()
            if content not in of_content:
                of_content[content] = compress(row)
            packed.append(of_content[content])
        return packed

    def positions_of(self, quantities: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the positions of quantities in the values of a slot; they take memory from now on."""
        are_new = self._positions[quantities] == _NO_POSITION
        if are_new.any():
            new, count = np.unique(quantities[are_new]), len(self._open)
            self._positions[new] = np.arange(count, count + len(new))
            self._open = self._lengthened(self._open)
            self._late = {slot: self._lengthened(values) for slot, values in self._late.items()}
        return self._positions[quantities]

    def _lengthened(self, values: Values) -> Values:
        more = int(self._positions.max()) + 1 - len(values)
        return np.concatenate([values, np.full((more, *values.shape[1:]), self._fill)])

    def has(self, quantity: int) -> bool:
        """True if a quantity has had values."""
        return bool(self._positions[quantity] != _NO_POSITION)

    def values_of(self, slot: int) -> Values:
        """Return the values of a slot of the ring for changes in place, shape (positions, devices)."""
        if slot > self.last_slot - self._open_slots:
            return self._open[:, slot % self._open_slots]
        values = self._late.get(slot)
        if values is None:
            packed = self._packed.pop(slot, [])
            values = np.full((len(self._open), self.devices), self._fill)
            for position, content in enumerate(packed):
                row = decompress(content, self._fill.dtype)
                values[position, : len(row)] = row
            self._late[slot] = values
        elif values.shape[1] < self.devices:
            values = self._late[slot] = self._widened(values, self.devices)
        return values

    def read(self, quantity: int, end_slot: int, count: int) -> Values:
        """Return the values of the slots of the ring among `count` slots up to `end_slot`, shape (slots, devices); not to be changed."""
        position, part = int(self._positions[quantity]), self._open_part(end_slot, count)
        if position != _NO_POSITION and part:  # a view takes a tenth of the time of a copy
            return self._open[position, part, : self.devices]
        slots = np.arange(self._first(end_slot, count), end_slot + 1)
        found = np.full((len(slots), self.devices), self._fill)
        if position == _NO_POSITION:
            return found
        are_open = slots > self.last_slot - self._open_slots
        rows = slots[are_open] % self._open_slots
        found[are_open] = self._open[position, rows, : self.devices]
        for number, slot in enumerate(slots[~are_open].tolist()):
            if slot in self._late:
                values = self._late[slot][position]
            else:
                of_slot = self._packed.get(slot, [])
                packed = of_slot[position] if position < len(of_slot) else _NOTHING
                values = decompress(packed, self._fill.dtype)
            found[number, : len(values)] = values[: self.devices]
        return found

    def window_sums(self, end_slot: int, count: int) -> Floats | None:
        """Return the sums of all quantities over slots, shape (quantities, devices); None if they are not one open part."""
        part = self._open_part(end_slot, count)
        if part is None:
            return None
        of_kept = self._open[:, part, : self.devices].sum(axis=1, dtype=np.float64)
        none = np.zeros((1, self.devices))  # quantities without values have the last position, -1
        return np.concatenate([of_kept, none])[self._positions]

    def _first(self, end_slot: int, count: int) -> int:
        return max(end_slot - count + 1, self.last_slot - self._slots + 1, 0)

    def _open_part(self, end_slot: int, count: int) -> slice | None:
        first = self._first(end_slot, count)
        begin = first % self._open_slots
        end = begin + end_slot + 1 - first
        is_open = first > self.last_slot - self._open_slots and begin <= end <= self._open_slots
        return slice(begin, end) if is_open else None


REPLACED_KINDS = frozenset({QuantityKind.LAST, QuantityKind.ABSENCE})
MAX_DEVICES_AT_ONCE = 256
"""Devices for which all quantities of a window are summed in one step: beyond that, separate sums are faster."""
MAX_WEIGHT = 60_000.0
"""Seconds or readings of a slot; above the largest of valid frames."""


class SlotSums:
    """Sums of the quantities of one kind of device, for the last `slots` slots; all but `open_slots` are compressed."""

    def __init__(self, kind: DeviceKind, slots: int, open_slots: int) -> None:
        self.names = tuple(q.name for q in QUANTITIES.values() if q.device is kind)
        self.index = {name: position for position, name in enumerate(self.names)}
        self.slots = slots
        self.devices = 0
        self.last_slot = -1
        shape = len(self.names), slots, open_slots
        self._sums = SlotRing(*shape, np.float32, 0.0)
        self._weights = SlotRing(*shape, np.float16, 0.0)  # 0.05 % is accurate enough for seconds
        self._last = SlotRing(*shape, np.float32, np.nan)
        self._rings = (self._sums, self._weights, self._last)
        self._is_replaced = [QUANTITIES[name].kind in REPLACED_KINDS for name in self.names]
        limits = [METRICS[QUANTITIES[name].metric].max_per_second for name in self.names]
        self._limits = np.array(limits)[:, None]
        self._latest: dict[int, NDArray[np.float32]] = {}
        self._latest_of_all: dict[str, Floats] = {}
        self._windows: dict[tuple[int, int], tuple[Floats, Floats] | None] = {}
        """Rates and sums of all quantities in windows that were read since the last change."""
        self._unsettled_slot = 0
        """First slot with values that are not among the latest ones: readings may arrive after their slot was settled."""

    def add_device(self) -> int:
        """Add a device without readings; return its position."""
        for ring in self._rings:
            ring.add_device()
        self.devices += 1
        self._windows.clear()
        return self.devices - 1

    def advance(self, slot: int) -> None:
        """Begin a slot; slots that leave the ring are cleared."""
        self._windows.clear()
        for ring in self._rings:
            ring.advance(slot)
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
        self._windows.clear()
        first = max(self.last_slot - self.slots + 1, 0)
        for slot in sorted(set(slots.tolist())):
            if not first <= slot <= self.last_slot:
                continue
            chosen = np.nonzero((weights > 0) & (slots == slot)[:, None])
            of_slot = quantities[chosen[1]], devices[chosen]
            if self._is_replaced[quantities[0]]:
                self._unsettled_slot = min(self._unsettled_slot, slot)
                values, place = _cells(self._last, slot, *of_slot)
                values[place] = sums[chosen]  # the last one of a slot remains
                continue
            values, place = _cells(self._weights, slot, *of_slot)
            values[place] = np.minimum(values[place] + weights[chosen], MAX_WEIGHT)
            amounts = sums[chosen]
            changes = amounts != 0  # most counters never move: without a sum they take no memory
            values, place = _cells(self._sums, slot, *(each[changes] for each in of_slot))
            values[place] += amounts[changes]

    def settle(self, slot: int) -> None:
        """Make the values of the slots up to one the latest ones, where they have any."""
        for unsettled in range(
            max(self._unsettled_slot, self.last_slot - self.slots + 1), slot + 1
        ):
            self._settle(unsettled)
        self._unsettled_slot = max(self._unsettled_slot, slot + 1)
        self._latest_of_all.clear()

    def _settle(self, slot: int) -> None:
        for quantity in filter(self._last.has, np.flatnonzero(self._is_replaced).tolist()):
            values = self._last.read(quantity, slot, 1)[0].copy()
            has_value = ~np.isnan(values)
            if has_value.any():
                before = self._latest.get(quantity, values)
                values[: len(before)] = np.where(
                    has_value[: len(before)], values[: len(before)], before
                )
                self._latest[quantity] = values

    def latest(self, name: str) -> Floats:
        """Return the newest value of each device in all settled slots, NaN without any; not to be changed."""
        found = self._latest_of_all.get(name)
        if found is None or len(found) != self.devices:
            found = np.full(self.devices, np.nan)
            values = self._latest.get(self.index[name])
            if values is not None:
                found[: len(values)] = values
            found.flags.writeable = False
            self._latest_of_all[name] = found
        return found

    def _sums_and_weights(self, name: str, end_slot: int, count: int) -> tuple[Values, Values]:
        """Return sums and weights of single slots, shape (slots, devices)."""
        quantity = self.index[name]
        if self._is_replaced[quantity]:
            values = self._last.read(quantity, end_slot, count)
            return or_zero(values), (~np.isnan(values)).astype(np.float32)
        sums, weights = (ring.read(quantity, end_slot, count) for ring in self._rings[:2])
        return sums, weights

    def _window(self, name: str, end_slot: int, count: int) -> tuple[Floats, Floats]:
        sums, weights = self._sums_and_weights(name, end_slot, count)
        return sums.sum(axis=0, dtype=np.float64), weights.sum(axis=0, dtype=np.float64)

    def has_readings(self, name: str) -> bool:
        """True if any device has reported a quantity; many have no source in a cluster."""
        quantity = self.index[name]
        ring = self._last if self._is_replaced[quantity] else self._weights
        return ring.has(quantity)

    def _of_window(self, name: str, end_slot: int, count: int) -> tuple[Floats, Floats] | None:
        """Return rates and sums of a counter or a mean; None if a quantity is to be summed separately."""
        quantity, key = self.index[name], (end_slot, count)
        if self.devices > MAX_DEVICES_AT_ONCE or self._is_replaced[quantity]:
            return None
        if key not in self._windows:
            sums, weights = (ring.window_sums(end_slot, count) for ring in self._rings[:2])
            self._windows[key] = None
            if sums is not None and weights is not None:
                sums[weights <= 0] = np.nan
                rates = np.minimum(sums / weights, self._limits)
                rates.flags.writeable = sums.flags.writeable = False
                self._windows[key] = rates, sums
        of_all = self._windows[key]
        return None if of_all is None else (of_all[0][quantity], of_all[1][quantity])

    def total(self, name: str, end_slot: int, count: int) -> Floats:
        """Return the sums of a quantity over `count` slots up to `end_slot`; NaN without readings."""
        if (found := self._of_window(name, end_slot, count)) is not None:
            return found[1]
        if not self.has_readings(name):
            return np.full(self.devices, np.nan)
        sums, weights = self._window(name, end_slot, count)
        return np.where(weights > 0, sums, np.nan)

    def totals(self, name: str, end_slot: int, count: int) -> Floats:
        """Return the sums of single slots, shape (slots, devices), oldest first; NaN without readings."""
        sums, weights = self._sums_and_weights(name, end_slot, count)
        return self._padded(np.where(weights > 0, sums.astype(np.float64), np.nan), count)

    def weight(self, name: str, end_slot: int, count: int) -> Floats:
        """Return the seconds or the number of readings of a quantity in slots."""
        return self._window(name, end_slot, count)[1]

    def rate(self, name: str, end_slot: int, count: int) -> Floats:
        """Return rates per second of a counter, or means of a gauge; NaN without readings."""
        if (found := self._of_window(name, end_slot, count)) is not None:
            return found[0]
        if not self.has_readings(name):
            return np.full(self.devices, np.nan)
        quantity = self.index[name]
        if self._is_replaced[quantity] or self._sums.has(quantity):
            rates: Floats = np.minimum(
                divide(*self._window(name, end_slot, count)), self._limits[quantity]
            )
            return rates
        weights = self._weights.read(quantity, end_slot, count)
        return np.where((weights > 0).any(axis=0), 0.0, np.nan)  # has never moved

    def last(self, name: str, end_slot: int, count: int) -> Floats:
        """Return the newest value of each device within `count` slots; NaN without any."""
        found = np.full(self.devices, np.nan)
        if not self.has_readings(name):
            return found
        quantity = self.index[name]
        if self._is_replaced[quantity]:
            rows = self._last.read(quantity, end_slot, count)
        else:
            rows = self.history(name, end_slot, count)
        for values in reversed(rows):
            found = np.where(np.isnan(found), values, found)
        return found

    def history(self, name: str, end_slot: int, count: int) -> Floats:
        """Return rates or means of single slots, shape (slots, devices), oldest first; NaN without readings."""
        of_slots = self._sums_and_weights(name, end_slot, count)
        sums, weights = (values.astype(np.float64) for values in of_slots)
        rates = np.minimum(divide(sums, weights), self._limits[self.index[name]])
        return self._padded(rates, count)

    def _padded(self, rows: Floats, count: int) -> Floats:
        """Return the last `count` slots; those that are not in the ring are unknown."""
        missing = count - len(rows)
        return np.pad(rows, ((missing, 0), (0, 0)), constant_values=np.nan) if missing else rows


def _cells(
    ring: SlotRing, slot: int, quantities: Positions, devices: Positions
) -> tuple[Values, tuple[Positions, Positions]]:
    """Return the values of a slot, and the places of quantities and devices among them."""
    positions = ring.positions_of(quantities)
    return ring.values_of(slot), (positions, devices)


def or_zero(values: Values | float) -> Floats:
    """Return values with zeros in place of unknown ones."""
    found: Floats = np.where(np.isnan(values), 0.0, values)
    return found


def divide(numerators: Floats, denominators: Floats) -> Floats:
    """Return quotients; NaN where a denominator is zero or unknown."""
    return numerators / np.where(denominators > 0, denominators, np.nan)


def mean_known(values: Floats) -> float:
    """Return the mean of the known values; NaN without any."""
    present = values[~np.isnan(values)]
    # The method `mean` takes three times as long for a few values.
    return float(np.add.reduce(present)) / len(present) if len(present) else np.nan


def sum_known(values: Floats) -> float:
    """Return the sum of the known values; zero without any."""
    return float(np.add.reduce(values[~np.isnan(values)]))


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
