"""Frames of a node in the frame log: chosen columns of a period, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from railscope import envelopes, wire
from railscope.timestamps import HOUR_NS
from railscope_collector.console.curves import TimeRange, Times
from railscope_collector.fleet import sheets
from railscope_collector.framelog.record_index import FoundRecords, RecordIndex

MAX_BYTES = 1 << 30
"""Above any decompressed envelope that was accepted."""
MAX_RECORDS = 6000
"""Envelopes that one page reads; of a node that sends every 5 seconds, those of eight hours."""
MAX_LATE_NS = HOUR_NS // 6
"""Delay of an envelope up to which its frames are found."""
ColumnT = TypeVar("ColumnT")


class _ChosenColumns(NamedTuple, Generic[ColumnT]):
    """Columns of a schema: their positions among all of its columns, and the meaning of each."""

    width: int
    positions: sheets.Integers
    columns: Sequence[ColumnT]


@dataclass(frozen=True, slots=True)
class StoredBatch(Generic[ColumnT]):
    """Chosen columns of a batch: values and absence reasons have the shape (rows, columns)."""

    run: str
    times_ns: Times
    """On the collector's clock."""
    boot_ns: Times
    columns: Sequence[ColumnT]
    values: sheets.Integers
    codes: sheets.Codes
    delays_ns: sheets.Integers
    """Time from that of the row to the read of the column's device, shape (rows, columns)."""


class FoundFrames(NamedTuple, Generic[ColumnT]):
    """Batches in the order of their receipt, and what is known of the others."""

    batches: Sequence[StoredBatch[ColumnT]]
    records: FoundRecords
    has_unknown_schema: bool
    """True if the schema of any frame is no longer stored."""


@dataclass(frozen=True, slots=True)
class StoredFrames:
    """Reads frames from the frame log."""

    records: RecordIndex
    find_schema: Callable[[bytes], wire.WireSchema]
    """Returns a stored schema; raises LookupError."""

    @classmethod
    def from_directory(
        cls, directory: Path, find_schema: Callable[[bytes], wire.WireSchema]
    ) -> StoredFrames:
        """Return the frames in a frame log."""
        return cls(RecordIndex(directory), find_schema)

    def read(
        self,
        node: str,
        period: TimeRange,
        choose: Callable[[wire.WireSchema], Iterable[tuple[int, ColumnT]]],
    ) -> FoundFrames[ColumnT]:
        """Return the columns of a node that `choose` selects of each schema. Blocking; raises OSError."""
        found = self.records.find(node, period.from_ns, period.to_ns + MAX_LATE_NS, MAX_RECORDS)
        chosen: dict[bytes, _ChosenColumns[ColumnT] | None] = {}
        batches = []
        for record in found.records:
            envelope = envelopes.open_body(record.body, MAX_BYTES).decode_envelope()
            # By the clock since the boot, which is never set, unless the node was restarted before the frames were sent.
            is_same_boot = envelope.boot_id == record.sent.boot_id != ""
            sent_ns = record.sent.boot_ns if is_same_boot else record.sent.wall_ns
            for batch in envelope.batches:
                if batch.schema not in chosen:
                    chosen[batch.schema] = self._choose(batch.schema, choose)
                columns = chosen[batch.schema]
                if columns is None or not columns.columns:
                    continue
                boot_ns = np.array(batch.boot_ns, np.int64)
                clock_ns = boot_ns if is_same_boot else np.array(batch.wall_ns, np.int64)
                times_ns = record.received_wall_ns - np.maximum(sent_ns - clock_ns, 0)
                rows, positions = range(batch.rows), columns.positions
                values = sheets.rows_at(batch, rows, positions, columns.width)
                codes = sheets.reasons(batch, columns.width)[:, positions]
                delays_ns = sheets.read_delays_ns(batch, columns.width)[:, positions]
                batches.append(
                    StoredBatch(
                        envelope.run,
                        times_ns,
                        boot_ns,
                        columns.columns,
                        values,
                        codes,
                        delays_ns,
                    )
                )
        return FoundFrames(batches, found, None in chosen.values())

    def _choose(
        self,
        digest: bytes,
        choose: Callable[[wire.WireSchema], Iterable[tuple[int, ColumnT]]],
    ) -> _ChosenColumns[ColumnT] | None:
        """Return the chosen columns of a schema; None if it is no longer stored."""
        try:
            schema = self.find_schema(digest)
        except LookupError:
            return None
        found = list(choose(schema))
        width = schema.width
        positions = np.array([position for position, _ in found], np.int64)
        return _ChosenColumns(width, positions, [column for _, column in found])
