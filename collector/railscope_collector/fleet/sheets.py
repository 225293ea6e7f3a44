"""Sheets: all rows of one layout, and the batches that are still to be written into them.

Batches are decoded when a reader needs them, or when several are pending: many batches of one
layout are decoded by the same few vector operations that a single one would need.

Batches as numpy arrays. They are encoded by railscope.batch_encoding, without numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.catalog.declare import ALL_ONES
from railscope.reading import PRESENT, Absent
from railscope.timestamps import MICROSECOND_NS
from railscope.wire import (
    BYTES_PER_DELAY,
    BYTES_PER_VALUE,
    MAX_EVENT_NUMBER,
    Batch,
    WireError,
    WireEvent,
)
from railscope_collector.fleet.minute_window import MinuteWindow
from railscope_collector.fleet.shapes import SchemaLayout

Integers: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.uint8]
Positions: TypeAlias = npt.NDArray[np.intp]


def check_batch(batch: Batch, columns: int, max_rows: int) -> int:
    """Return the number of columns that change.

    Raises WireError if the parts of a batch contradict each other.
    """
    rows = batch.rows
    changed = int.from_bytes(batch.changed, "little")
    count = changed.bit_count()
    # All lengths first: arrays of other lengths would be read beyond their row, or not at all.
    fits = (
        0 < rows <= max_rows
        and len(batch.boot_ns) == rows
        and batch.first_sequence > 0
        and batch.first_sequence + rows < 1 << 63
        and len(batch.base) == columns * BYTES_PER_VALUE
        and len(batch.changed) == (columns + 7) // 8
        and changed >> columns == 0
        and len(batch.steps) == count * (rows - 1) * BYTES_PER_VALUE
        and len(batch.reasons) in (0, columns, columns * rows)
        and len(batch.read_delays) in (0, columns * rows * BYTES_PER_DELAY)
        and _are_timestamps(batch.wall_ns)
        and _are_timestamps(batch.boot_ns)
        and (batch.uncertainty_ns or 0) >= 0
        and (not batch.events or all(_fits(event, rows) for event in batch.events))
    )
    if not fits:
        message = (
            f"batch of stream {batch.stream!r}: invalid lengths of its arrays: expected"
            f" those of {columns} columns"
        )
        raise WireError(message)
    return count


def _are_timestamps(ns: Sequence[int]) -> bool:
    return min(ns) >= 0 and max(ns) < 1 << 63


def _fits(event: WireEvent, rows: int) -> bool:
    return (
        0 <= event.row < rows
        and 0 <= event.number <= MAX_EVENT_NUMBER
        and _are_timestamps((event.wall_ns, event.boot_ns))
    )


def changed_columns(batch: Batch, columns: int) -> npt.NDArray[np.intp]:
    """Return the positions of the columns that change within the batch."""
    bits = np.unpackbits(np.frombuffer(batch.changed, np.uint8), count=columns, bitorder="little")
    return np.flatnonzero(bits)


def first_rows(batches: Sequence[Batch], columns: int) -> Integers:
    """Return the values of the first row of each batch, shape (batches, columns)."""
    bases = b"".join([batch.base for batch in batches])
    return np.frombuffer(bases, "<i8").reshape(len(batches), columns)


class ChangedColumns(NamedTuple):
    """The columns that change within batches of equally many rows, in order, and their steps."""

    numbers: list[int]
    """The numbers of these batches."""
    positions: Positions
    """Positions in the table of all batches and columns."""
    steps: Integers

    def add_steps(self, first: Integers) -> None:
        """Make the values of the first rows of these batches those of their last rows, without computing those between."""
        # einsum adds along short rows twice as fast as sum, and wraps around in the same way.
        first.reshape(-1)[self.positions] += np.einsum("ij->i", self.steps)

    def rows_of(self, first: Integers, columns: Positions) -> tuple[Positions, Positions, Integers]:
        """Return the values in all rows of those of some columns that change.

        Before them, the number of the batch and the position in `columns` of each.
        """
        numbers = np.array(self.numbers)
        wanted = numbers[:, np.newaxis] * first.shape[1] + columns
        found = self.positions.searchsorted(wanted)
        # Any valid position: the comparison excludes these columns.
        found[found == len(self.positions)] = 0
        place, column = np.nonzero(self.positions[found] == wanted)
        bases = first.reshape(-1)[wanted[place, column]]
        steps = self.steps[found[place, column]]
        return numbers[place], column, np.cumsum(np.column_stack([bases, steps]), axis=1)


def changes(batches: Sequence[Batch], columns: int) -> Iterator[ChangedColumns]:
    """Yield the columns that change, by the number of rows of their batches."""
    for rows in {batch.rows for batch in batches if batch.steps}:
        numbers = [n for n, batch in enumerate(batches) if batch.steps and batch.rows == rows]
        bits = np.frombuffer(b"".join([batches[n].changed for n in numbers]), np.uint8)
        changed = np.unpackbits(
            bits.reshape(len(numbers), -1), axis=1, count=columns, bitorder="little"
        )
        steps = np.frombuffer(b"".join([batches[n].steps for n in numbers]), "<i8")
        if len(numbers) == len(batches):
            positions = np.flatnonzero(changed)
        else:
            row, column = np.nonzero(changed)
            positions = np.array(numbers)[row] * columns + column
        yield ChangedColumns(numbers, positions, steps.reshape(-1, rows - 1))


def rows_at(batch: Batch, rows: Sequence[int], columns: Positions, width: int) -> Integers:
    """Return the values of some rows and columns, shape (rows, columns); the batch has `width` columns."""
    first = np.frombuffer(batch.base, "<i8").take(columns)
    values = np.tile(first, (len(rows), 1))
    if batch.steps and any(rows):
        changed = changed_columns(batch, width)
        positions = changed.searchsorted(columns)
        # Any valid position: the comparison below excludes these columns.
        positions[positions == len(changed)] = 0
        touched = np.flatnonzero(changed[positions] == columns)
        steps = np.frombuffer(batch.steps, "<i8").reshape(-1, batch.rows - 1)[positions[touched]]
        # Each step is added once, however many rows there are.
        total = np.zeros(len(touched), np.int64)
        previous = 0
        for number in sorted(range(len(rows)), key=rows.__getitem__):
            total += steps[:, previous : rows[number]].sum(axis=1, dtype=np.int64)
            values[number, touched] += total
            previous = rows[number]
    return values


def reasons(batch: Batch, columns: int) -> Codes:
    """Return reason codes of all rows, shape (rows, columns)."""
    if not batch.reasons:
        return np.zeros((batch.rows, columns), np.uint8)
    codes = np.frombuffer(batch.reasons, np.uint8)
    return np.broadcast_to(codes.reshape(-1, columns), (batch.rows, columns))


def read_delays_ns(batch: Batch, columns: int) -> Integers:
    """Return the time from each row's time to the read of each column's device, shape (rows, columns)."""
    if not batch.read_delays:
        return np.broadcast_to(np.int64(0), (batch.rows, columns))
    delays_us = np.frombuffer(batch.read_delays, "<u4").reshape(-1, columns)
    return delays_us.astype(np.int64) * MICROSECOND_NS


def codes_of_last_rows(batches: Sequence[Batch], columns: int) -> Codes | None:
    """Return reason codes of the last row of each batch; None if no value is absent in any batch."""
    if not any([batch.reasons for batch in batches]):  # noqa: C419 - a list is faster here
        return None
    return np.array([reasons_of(batch, batch.rows - 1, columns) for batch in batches])


def reasons_of(batch: Batch, row: int, columns: int) -> Codes:
    """Return the reason codes of one row."""
    if not batch.reasons:
        return np.zeros(columns, np.uint8)
    codes = np.frombuffer(batch.reasons, np.uint8)
    return codes if len(codes) == columns else codes[row * columns : (row + 1) * columns]


BLOCK_ROWS, MAX_BLOCK_ROWS = 64, 1024
"""Rows of the first block of a layout, and of a large one: a block is as large as all before it."""
MAX_WAITING, MAX_WAITING_BYTES = 32, 4 << 20
"""Maximum pending batches of one layout: more cost memory and save no time."""
_WAITING_SHARE = 8
"""Limit: at most one of this many rows is pending: a batch of ten rows is three times as large as its row."""
_NARROW_RANGE = 1 << 32
_NS = 1e9

Rates: TypeAlias = npt.NDArray[np.float64]
Delays: TypeAlias = npt.NDArray[np.uint32]


class SheetBlock:
    """A group of rows of one layout. `rates` holds what views show of each counter and averaged gauge, NaN for none.

    Columns that views read are a matrix. Most of the others are always zero, each node's own: of each
    row they are packed by `_pack`.
    """

    def __init__(self, sheet: LayoutSheet, rows: int) -> None:
        layout = sheet.layout
        self.layout = layout
        self.timestamps_ns = np.zeros(rows, np.int64)
        self.lasts_ns = np.zeros(rows, np.int64)
        """Freshness limit of the frame of a slow stream, by the stream's period."""
        self.nodes: list[str | None] = [None] * rows
        self._sheet = sheet
        # Zeros take no memory until they are written; an unused row is not read.
        self._values = np.zeros((rows, len(layout.viewed)), np.int64)
        # Changed in place: new objects among those of envelopes would divide the free memory of thousands of nodes
        # into pieces of as many sizes, among which the allocator searches.
        self._packed_rows = [bytearray() for _ in range(rows)]
        self._rates = np.zeros((rows, len(layout.rate_columns)), np.float32)
        self._window = MinuteWindow(rows, layout.largest)
        self._reasons: Codes | None = None
        """None while no value of any row is absent."""
        self.delays_us: Delays | None = None
        """Microseconds from the time of each row to the reads of its counters; None while none was read late."""

    def values_at(self, rows: Positions | slice, columns: Positions) -> Integers:
        """Return the newest values of rows, of columns that views read."""
        self._sheet.write_pending()
        return self._values[rows].take(self.layout.slots[columns], axis=1)

    def values_of(self, index: int) -> Integers:
        """Return the newest values of all columns of one row."""
        self._sheet.write_row(self, index)
        values = np.zeros(self.layout.columns, np.int64)
        values[self.layout.viewed] = self._values[index]
        columns = self.layout.packed_columns
        width = (len(columns) + 7) // 8
        if packed := bytes(self._packed_rows[index]):
            size, content = packed[0], np.frombuffer(packed, np.uint8, offset=1)
            is_set = np.unpackbits(content[:width], count=len(columns)).astype(np.bool_)
            nonzero = np.zeros((np.count_nonzero(is_set), BYTES_PER_VALUE), np.uint8)
            nonzero[:, :size] = content[width:].reshape(-1, size)
            values[columns[is_set]] = nonzero.view("<i8")[:, 0]
        return values

    @property
    def reasons(self) -> Codes | None:
        """Return the absence reasons, PRESENT for a value; None if no value is absent in any row."""
        self._sheet.write_pending()
        return self._reasons

    @property
    def rates(self) -> npt.NDArray[np.float32]:
        """Return the increments per second, then the means of gauges, shape (rows, rate columns)."""
        self._sheet.write_pending()
        return self._rates

    def reasons_of(self, index: int) -> Codes:
        """Return the absence reasons of one row."""
        self._sheet.write_row(self, index)
        reasons = self._reasons
        return np.zeros(self.layout.columns, np.uint8) if reasons is None else reasons[index]

    def rates_of(self, index: int) -> npt.NDArray[np.float32]:
        """Return the increments per second of the counters of one row."""
        self._sheet.write_row(self, index)
        rates: npt.NDArray[np.float32] = self._rates[index, : len(self.layout.counters)]
        return rates

    def begin(self, index: int) -> None:
        """Initialize a row: it has no rates yet."""
        self._sheet.write_row(self, index)
        self._rates[index] = np.nan
        self._window.begin(index)

    def counters_at(self, rows: Positions) -> tuple[Integers, Codes | None]:
        """Return values and reasons of the counters of rows, pending batches not included."""
        rows, counters = rows[:, np.newaxis], self.layout.counters
        codes = None if self._reasons is None else self._reasons[rows, counters]
        return self._values[rows, self.layout.slots[counters]], codes

    def replace_delays(self, rows: Positions, delays_us: Delays) -> Delays:
        """Set the read delays of the counters of rows, and return those before."""
        if self.delays_us is None:
            self.delays_us = np.zeros((len(self.nodes), len(self.layout.counters)), np.uint32)
        before = self.delays_us[rows]
        self.delays_us[rows] = delays_us
        return before

    def write(
        self,
        rows: Positions,
        values: Integers,
        codes: Codes | None,
        rates: Rates,
        times: RateTimes,
    ) -> None:
        """Write rows; `codes` is None if no value is absent."""
        if len(windowed := self.layout.windowed):
            rates[:, windowed] = self._window.add(rows, *times, rates[:, windowed])
        self._values[rows], self._rates[rows] = values.take(self.layout.viewed, axis=1), rates
        if len(self.layout.packed_columns):
            for row, packed in zip(
                rows.tolist(), _pack(values.take(self.layout.packed_columns, axis=1)), strict=True
            ):
                packed_row = self._packed_rows[row]
                # First at its end: an assignment of less to all of it would move its start.
                del packed_row[len(packed) :]
                packed_row[:] = packed
        if codes is not None and self._reasons is None:
            self._reasons = np.zeros((len(self.nodes), self.layout.columns), np.uint8)
        if self._reasons is not None:
            self._reasons[rows] = PRESENT if codes is None else codes


def _pack(values: Integers) -> Iterator[bytes]:
    """Yield for each row a bit for each value, set unless it is zero, and the values that are not zero.

    The first byte is the number of bytes of each of these: their high bytes are zero.
    """
    is_set = values != 0
    packed = np.packbits(is_set, axis=1)
    bits, width = packed.tobytes(), packed.shape[1]
    nonzero = values[is_set]
    size = max((int(nonzero.view(np.uint64).max(initial=0)).bit_length() + 7) // 8, 1)
    all_bytes = nonzero.astype("<i8", copy=False).view(np.uint8).reshape(-1, BYTES_PER_VALUE)
    low_bytes, head = all_bytes[:, :size].tobytes(), bytes((size,))
    ends = (np.cumsum(np.count_nonzero(is_set, axis=1)) * size).tolist()
    for row, (start, end) in enumerate(pairwise([0, *ends])):
        yield head + bits[row * width : (row + 1) * width] + low_bytes[start:end]


class RateTimes(NamedTuple):
    """Times of the last rows on the boot clocks of their nodes, and those over which their counters increased."""

    boot_ns: Integers
    seconds: Rates


class PendingBatch(NamedTuple):
    """A batch that is to be written into a row."""

    block: SheetBlock
    row: int
    batch: Batch
    since_ns: int
    """Boot clock of the row's content, the base of rates; 0 if the batch has its own base."""
    resumed: bool
    """True if the agent that counts was restarted since then."""


@dataclass(slots=True)
class LayoutSheet:
    """The rows of one layout, in blocks."""

    layout: SchemaLayout
    blocks: list[SheetBlock] = field(default_factory=list)
    rows: int = 0
    """Number of rows in use."""
    _free: list[tuple[SheetBlock, int]] = field(default_factory=list)
    _pending: dict[tuple[int, int], PendingBatch] = field(default_factory=dict)
    _pending_bytes: int = 0

    def allocate_row(self) -> tuple[SheetBlock, int]:
        """Return a free row."""
        if not self._free:
            block = SheetBlock(self, min(max(BLOCK_ROWS, self.rows), MAX_BLOCK_ROWS))
            self.blocks.append(block)
            # Reversed, so that rows are taken in order: views read a range of rows without a copy.
            self._free.extend((block, index) for index in reversed(range(len(block.nodes))))
        block, index = self._free.pop()
        block.begin(index)
        self.rows += 1
        return block, index

    def release(self, block: SheetBlock, index: int) -> None:
        """Release a row."""
        # Before the row can be given to another node, into which a pending batch would be written.
        self.write_pending()
        block.nodes[index] = None
        block.timestamps_ns[index] = block.lasts_ns[index] = 0
        self._free.append((block, index))
        self.rows -= 1

    def put(self, pending: PendingBatch) -> None:
        """Write a batch into a row, now or before the next read."""
        row = id(pending.block), pending.row
        # A batch is relative to the content of the row: the earlier one must be written first.
        if row in self._pending:
            self.write_pending()
        self._pending[row] = pending
        self._pending_bytes += len(pending.batch.base) + len(pending.batch.steps)
        waiting = len(self._pending)
        many = waiting >= MAX_WAITING or waiting * _WAITING_SHARE >= self.rows
        if many or self._pending_bytes >= MAX_WAITING_BYTES:
            self.write_pending()

    def write_row(self, block: SheetBlock, index: int) -> None:
        """Write all pending batches if one of them is of a row: readers of single rows divide no groups."""
        if (id(block), index) in self._pending:
            self.write_pending()

    def write_pending(self) -> None:
        """Write all pending batches. Those that cannot be written are not retried."""
        if not self._pending:
            return
        # Removed before the write: a batch that raises would raise at each further read.
        pending, self._pending = list(self._pending.values()), {}
        self._pending_bytes = 0
        self._write_batches(pending)

    def _write_batches(self, pending: Sequence[PendingBatch]) -> None:
        batches = [entry.batch for entry in pending]
        first = first_rows(batches, self.layout.columns)
        last = first.copy()
        means = first.take(self.layout.averaged, axis=1).astype(np.float64)
        for changed in changes(batches, self.layout.columns):
            changed.add_steps(last)
            self._write_means(means, batches, first, changed)
        codes = codes_of_last_rows(batches, self.layout.columns)
        codes = self._reject_implausible(last, codes)
        places = _places(pending)
        times = _rate_times(pending)
        rates = np.hstack([self._rates(pending, places, first, last, times.seconds), means])
        if codes is not None:
            rates[codes.take(self.layout.rate_columns, axis=1) != PRESENT] = np.nan
        for block, numbers, rows in places:
            block.write(
                rows,
                last[numbers],
                None if codes is None else codes[numbers],
                rates[numbers],
                RateTimes(times.boot_ns[numbers], times.seconds[numbers]),
            )

    def _write_means(
        self, means: Rates, batches: Sequence[Batch], first: Integers, changed: ChangedColumns
    ) -> None:
        """Write the means of averaged gauges that change, over the rows of a batch that have a value.

        The last row alone would always be of one phase of a job whose step takes as long as a batch.
        """
        layout = self.layout
        if not len(layout.averaged):
            return
        numbers, places, values = changed.rows_of(first, layout.averaged)
        limits = layout.bounded.searchsorted(layout.averaged)[places, np.newaxis]
        is_valid = (values >= layout.lowest[limits]) & (values <= layout.highest[limits])
        for number in changed.numbers:
            if batches[number].reasons:
                of_batch = numbers == number
                codes = reasons(batches[number], layout.columns).T
                is_valid[of_batch] &= codes[layout.averaged[places[of_batch]]] == PRESENT
        total = np.where(is_valid, values, 0).sum(axis=1)
        means[numbers, places] = total / np.maximum(is_valid.sum(axis=1), 1)

    def _reject_implausible(self, last: Integers, codes: Codes | None) -> Codes | None:
        """Make values absent that their quantity cannot have, as agents do; earlier agents sent them."""
        layout = self.layout
        values = last.take(layout.bounded, axis=1)
        is_wrong = (values < layout.lowest) | (values > layout.highest) | (values == ALL_ONES[0])
        if not is_wrong.any():
            return codes
        codes = np.zeros(last.shape, np.uint8) if codes is None else codes
        rows, numbers = np.nonzero(is_wrong)
        columns = layout.bounded[numbers]
        last[rows, columns] = 0
        reasons = codes[rows, columns]
        codes[rows, columns] = np.where(reasons == PRESENT, Absent.ERROR.value, reasons)
        return codes

    def _rates(
        self,
        pending: Sequence[PendingBatch],
        places: Sequence[_BlockPositions],
        first: Integers,
        last: Integers,
        seconds: Rates,
    ) -> Rates:
        """Return rates of the counters relative to the row's content, or else to the batch's first row."""
        counters = self.layout.counters
        before, after = first.take(counters, axis=1), last.take(counters, axis=1)
        # A counter that was read later than at the base has increased for longer than its row states.
        late = self._delay_increases(pending, places)
        elapsed = seconds[:, np.newaxis] if late is None else seconds[:, np.newaxis] + late
        per_second = np.full(elapsed.shape, np.nan)
        # Without elapsed time there is no rate: NaN, and not infinity.
        np.divide(1.0, elapsed, out=per_second, where=elapsed > 0)
        unknown = self._write_bases(pending, places, before)
        steps = after - before
        rates: Rates = steps * per_second
        # Rare: the exact treatment of resets costs time for all counters of these rows only.
        fell = np.flatnonzero((steps < 0).any(axis=1))
        if len(fell):
            resumed = np.array([[pending[number].resumed] for number in fell.tolist()])
            increments = increase(before[fell], after[fell], self.layout.narrow & resumed)
            rates[fell] = increments * per_second[fell]
        for numbers, codes in unknown:
            rates[numbers] = np.where(codes == PRESENT, rates[numbers], np.nan)
        return np.minimum(rates, self.layout.max_rates)

    def _delay_increases(
        self, pending: Sequence[PendingBatch], places: Sequence[_BlockPositions]
    ) -> Rates | None:
        """Return the seconds by which the counters of the last rows were read later than at their bases.

        The delays become those of the rows' content. None if no device was read late.
        """
        late = [number for number, entry in enumerate(pending) if entry.batch.read_delays]
        if not late and all(block.delays_us is None for block, _, _ in places):
            return None
        columns, counters = self.layout.columns, self.layout.counters
        before, after = np.zeros((2, len(pending), len(counters)), np.uint32)
        for number in late:
            delays = np.frombuffer(pending[number].batch.read_delays, "<u4").reshape(-1, columns)
            before[number], after[number] = delays[0].take(counters), delays[-1].take(counters)
        is_continued = np.array([entry.since_ns > 0 for entry in pending])
        for block, numbers, rows in places:
            chosen = is_continued[numbers]
            before[numbers[chosen]] = block.replace_delays(rows, after[numbers])[chosen]
        return (after.astype(np.float64) - before) * (MICROSECOND_NS / _NS)

    def _write_bases(
        self, pending: Sequence[PendingBatch], places: Sequence[_BlockPositions], before: Integers
    ) -> list[tuple[Positions, Codes]]:
        """Write the content of rows into `before`, from which their counters continue.

        Return the reasons of the counters at the bases that have any.
        """
        found = []
        is_continued = np.array([entry.since_ns > 0 for entry in pending])
        for block, numbers, rows in places:
            chosen = is_continued[numbers]
            before[numbers[chosen]], codes = block.counters_at(rows[chosen])
            if codes is not None:
                found.append((numbers[chosen], codes))
        for number, entry in enumerate(pending):
            if entry.batch.reasons and not entry.since_ns:
                codes = reasons_of(entry.batch, 0, self.layout.columns)
                found.append((np.array([number]), codes[np.newaxis, self.layout.counters]))
        return found


def _rate_times(pending: Sequence[PendingBatch]) -> RateTimes:
    since_ns = np.array([entry.since_ns or entry.batch.boot_ns[0] for entry in pending])
    boot_ns = np.array([entry.batch.boot_ns[-1] for entry in pending])
    return RateTimes(boot_ns, (boot_ns - since_ns) / _NS)


_BlockPositions: TypeAlias = tuple[SheetBlock, Positions, Positions]
"""A block, the numbers of the pending batches for it, and their rows."""


def _places(pending: Sequence[PendingBatch]) -> list[_BlockPositions]:
    """Group pending batches by block."""
    found: dict[int, list[int]] = {}
    for number, entry in enumerate(pending):
        found.setdefault(id(entry.block), []).append(number)
    return [
        (
            pending[numbers[0]].block,
            np.array(numbers, np.intp),
            np.array([pending[number].row for number in numbers], np.intp),
        )
        for numbers in found.values()
    ]


def increase(before: Integers, after: Integers, resumed: npt.NDArray[np.bool_]) -> Rates:
    """Return the increments of counters, of which some may have decreased; arrays of one shape.

    A counter that decreases has been reset and has counted its present value since. Agents extend
    counters of 32 bits to 64, and distinguish a wrap from a reset themselves. `resumed` marks
    counters of which a restarted agent, which has lost the number of wraps, reports the low 32
    bits: they are treated as continued if they are then less than a quarter of the range ahead.
    """
    steps = after - before
    fallen = steps < 0
    if not fallen.any():
        return steps.astype(np.float64)
    ahead = steps % _NARROW_RANGE
    low_bits = (after >= 0) & (after < _NARROW_RANGE) & (ahead < _NARROW_RANGE >> 2)
    unsigned_after = after.view(np.uint64).astype(np.float64)
    result = np.where(resumed & low_bits, ahead.astype(np.float64), unsigned_after)
    return np.where(fallen, result, steps.astype(np.float64))
