"""Values by quantity, slot of time and device: the newest slots as an array, earlier ones compressed.

Most values are zero, unknown or equal to those of other devices, so that a compressed slot takes a fifth of its size. A
quantity takes memory from its first value on.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Values: TypeAlias = NDArray[np.floating[Any]]

_NO_POSITION = -1
_GROWTH_FACTOR = 1.125
_LEVEL = 1
_NOTHING = b""
MAX_COMPRESSED_AGAIN = 2
"""Slots with late values that are compressed again when a slot begins."""


def compress(values: Values) -> bytes:
    """Return values in a compressed form."""
    return zstd.compress(values.tobytes(), _LEVEL)


def decompress(packed: bytes, dtype: np.dtype[np.floating[Any]]) -> Values:
    """Return compressed values; none of an empty form."""
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
        self._packed: dict[int, list[bytes]] = {}
        """Compressed slots; of each the values of every quantity, empty without any."""
        self._late: dict[int, Values] = {}
        """Slots that were compressed and have received values since."""
        self.devices = 0
        self.last_slot = -1

    @property
    def size(self) -> int:
        """Return the memory of all values."""
        packed = {id(each): len(each) for slot in self._packed.values() for each in slot}
        late = sum(values.nbytes for values in self._late.values())
        return self._open.nbytes + late + sum(packed.values())

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

    def _compress(self, values: Values) -> list[bytes]:
        values = values[:, : self.devices]
        of_content = {np.full(values.shape[1], self._fill).tobytes(): _NOTHING}
        packed = []
        for row in values:
            content = row.tobytes()
            if content not in of_content:
                of_content[content] = compress(row)
            packed.append(of_content[content])
        return packed

    def positions_of(self, quantities: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the positions of quantities in the values of a slot; they take memory from now on."""
        new = np.unique(quantities[self._positions[quantities] == _NO_POSITION])
        if len(new):
            count = len(self._open)
            self._positions[new] = np.arange(count, count + len(new))
            self._open = self._lengthened(self._open)
            self._late = {slot: self._lengthened(values) for slot, values in self._late.items()}
        return self._positions[quantities]

    def _lengthened(self, values: Values) -> Values:
        more = int(self._positions.max()) + 1 - len(values)
        return np.concatenate([values, np.full((more, *values.shape[1:]), self._fill)])

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
        first = max(end_slot - count + 1, self.last_slot - self._slots + 1, 0)
        position, begin = int(self._positions[quantity]), first % self._open_slots
        end = begin + end_slot + 1 - first
        is_open = first > self.last_slot - self._open_slots and begin <= end <= self._open_slots
        if position != _NO_POSITION and is_open:  # a view takes a tenth of the time of a copy
            return self._open[position, begin:end, : self.devices]
        slots = np.arange(first, end_slot + 1)
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
