"""Facts of one batch: the GPUs that were seen, their MIG layouts, and readings of counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from collector.evidence.chunk import (
    CHUNK_NS,
    GRID_NS,
    Cell,
    Chunk,
    Series,
    Sighted,
    Span,
    add_spans,
)
from collector.evidence.claim_events import MAX_CHARACTERS, is_gpu
from collector.evidence.places import Presence
from collector.fleet import decode
from collector.fleet.metered_columns import Part
from collector.fleet.schemas import Gpu, Known
from collector.framelog.segments import Record
from collector.metering.observation import GAP_NS
from railscope.reading import PRESENT
from railscope.wire import Batch, Envelope

_VALUE = np.dtype("<i8")
_SPAN_BYTES, _SPANS_OF_A_GPU = 150, 3
"""Approximate memory of a span, here and with its GPU, and the spans that a new GPU counts as."""


class Hearing(Protocol):
    """Receiver of a batch's facts about GPUs."""

    def see(self, uuid: str, presence: Presence, pci: str) -> int | None:
        """Record a GPU in a node; return its first receipt in that boot.

        None if it is rejected: the node reported too many. `presence` may be shared: it is copied.
        """

    def list_silent(self, node: str, uuid: str, spans: Sequence[Span]) -> bool:
        """Record that a node listed a GPU without a value; false if that is rejected."""

    def cut(self, uuid: str, parts: tuple[Part, ...], span: Span) -> None:
        """Record the MIG layout of a GPU in a span."""


@dataclass(slots=True)
class Taking:
    """Extraction of the facts of one batch."""

    book: Hearing
    record: Record
    envelope: Envelope
    batch: Batch
    known: Known
    since_boot_ns: int
    skew_ns: int
    uncertainty_ns: int
    horizon_ns: int = 0
    """Earlier facts are reported late."""
    added_bytes: int = 0

    def take(self, chunk: Chunk, rows: Sequence[int]) -> int:
        """Record the rows of one chunk; return the approximate number of bytes added."""
        self.added_bytes = 0
        if self.known.gpus:
            self._sight(chunk, rows)
        else:
            before = len(chunk.reports)
            add_spans(chunk.reports, self.spans(rows))
            self.added_bytes += _SPAN_BYTES * (len(chunk.reports) - before)
        if self.known.metered.layouts:
            self._cut(chunk, rows)
        if len(self.known.metered.columns):
            self._count(chunk, rows)
        return self.added_bytes

    def spans(self, rows: Sequence[int]) -> list[Span]:
        """Join rows that are at most a gap apart into spans."""
        boot_ns, since_boot_ns = self.batch.boot_ns, self.since_boot_ns
        first_ns, last_ns = since_boot_ns + boot_ns[rows[0]], since_boot_ns + boot_ns[rows[-1]]
        if last_ns - first_ns <= GAP_NS:
            return [Span(first_ns, last_ns, self.uncertainty_ns, self.skew_ns)]
        found: list[Span] = []
        for row in rows:
            instant_ns = since_boot_ns + boot_ns[row]
            if found and instant_ns - found[-1].last_ns <= GAP_NS:
                found[-1].last_ns = instant_ns
            else:
                found.append(Span(instant_ns, instant_ns, self.uncertainty_ns, self.skew_ns))
        return found

    def _sight(self, chunk: Chunk, rows: Sequence[int]) -> None:
        """Record the GPUs that reported any value in these rows."""
        everywhere = self._presence(chunk, rows)
        skus = self.known.metered.skus
        for gpu in self.known.gpus:
            if len(gpu.uuid) > MAX_CHARACTERS or not is_gpu(gpu.uuid):
                continue
            presence = everywhere
            if self.batch.reasons:
                spoke = self._spoke(gpu, rows)
                if len(spoke) < len(rows) and self.book.list_silent(
                    chunk.node, gpu.uuid, everywhere.spans
                ):
                    chunk.list_silent(gpu.uuid, everywhere.spans)
                    self.added_bytes += _SPAN_BYTES * len(everywhere.spans)
                if not spoke:
                    continue
                if len(spoke) < len(rows):
                    presence = self._presence(chunk, spoke)
            first_ns = self.book.see(gpu.uuid, presence, gpu.pci)
            if first_ns is None:
                continue
            found = chunk.gpus.get(gpu.uuid)
            before = len(found.spans) if found else -_SPANS_OF_A_GPU
            sku = skus.get(gpu.uuid, "")
            seen = Sighted(first_ns, gpu.rail, sku, presence.spans, presence.believed_ns)
            chunk.sight(gpu.uuid, seen)
            self.added_bytes += _SPAN_BYTES * (len(chunk.gpus[gpu.uuid].spans) - before)

    def _presence(self, chunk: Chunk, rows: Sequence[int]) -> Presence:
        spans = self.spans(rows)
        late_ns = self.horizon_ns if spans[0].first_ns < self.horizon_ns else 0
        return Presence(chunk.node, chunk.boot, self.record.received_wall_ns, spans, late_ns)

    def _spoke(self, gpu: Gpu, rows: Sequence[int]) -> Sequence[int]:
        """Return the rows in which a GPU reported any value."""
        columns = self.known.layout.columns
        if len(self.batch.reasons) == columns:  # all rows have the same reasons
            codes = decode.reasons_of(self.batch, 0, columns).take(gpu.columns)
            return rows if (codes == PRESENT).any() else ()
        codes = decode.reasons(self.batch, columns)[:, gpu.columns]
        chosen = np.asarray(rows, np.intp)
        said = (codes == PRESENT).any(axis=1)[chosen]
        return rows if said.all() else chosen[said].tolist()

    def _cut(self, chunk: Chunk, rows: Sequence[int]) -> None:
        """Record the MIG layouts of the stream's GPUs in these rows."""
        bare = [Span(span.first_ns, span.last_ns) for span in self.spans(rows)]
        for gpu, parts in self.known.metered.layouts:
            for span in bare:
                chunk.cut(gpu, parts, span)
                self.book.cut(gpu, parts, span)

    def _count(self, chunk: Chunk, rows: Sequence[int]) -> None:
        """Store the first reading of each cell of the grid."""
        batch, metered = self.batch, self.known.metered
        name = f"{self.envelope.run} {batch.stream} {batch.schema.hex()}"
        series = chunk.series.get(name)
        if series is None:
            series = chunk.series[name] = Series(self.envelope.run, metered.counters, {})
        wanted: list[tuple[int, int]] = []
        last = -1
        for row in rows:
            number = batch.boot_ns[row] // GRID_NS
            if number != last:
                kept = series.cells.get(number)
                if kept is None or batch.boot_ns[row] <= kept.boot_ns:
                    wanted.append((number, row))
            last = number
        if not wanted:
            return
        before = len(series.cells)
        width = self.known.layout.columns
        table = decode.rows_at(batch, [row for _, row in wanted], metered.columns, width)
        for (number, row), read in zip(wanted, table, strict=True):
            codes = decode.reasons_of(batch, row, width).take(metered.columns)
            values = np.where(codes == PRESENT, read, -1).astype(_VALUE)
            instant_ns = self.since_boot_ns + batch.boot_ns[row]
            series.offer(number, Cell(batch.boot_ns[row], instant_ns, values.tobytes()))
        cell_bytes = _SPAN_BYTES + _VALUE.itemsize * len(metered.columns)
        self.added_bytes += cell_bytes * (len(series.cells) - before)


def by_chunk(boot_ns: Sequence[int], rows: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """Group rows by chunk, in the order of the boot clock."""
    if not rows:
        return
    if sorted(boot_ns) != list(boot_ns):
        rows = sorted(rows, key=boot_ns.__getitem__)
    first, last = boot_ns[rows[0]] // CHUNK_NS, boot_ns[rows[-1]] // CHUNK_NS
    if first == last:
        yield first, rows
        return
    grouped: dict[int, list[int]] = {}
    for row in rows:
        grouped.setdefault(boot_ns[row] // CHUNK_NS, []).append(row)
    yield from grouped.items()
