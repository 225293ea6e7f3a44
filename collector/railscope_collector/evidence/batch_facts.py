"""Facts of one batch, and bounds on the facts of one node in memory.

The facts of a batch are the GPUs that were seen, their MIG layouts, and readings of counters.

A node determines the distances between its samples. Each sample that is further than a gap from the others is a separate
span: at most 30 in a quarter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from railscope.reading import PRESENT
from railscope.wire import Batch, Envelope
from railscope_collector.evidence import node_intervals
from railscope_collector.fleet import names, sheets
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.metering.observation import GAP_NS

_VALUE = np.dtype("<i8")
MAX_SNAPPED_NS = 2_000_000_000
"""Maximum uncertainty of a clock that is usable without a flag."""
_SPAN_BYTES, _SPANS_OF_A_GPU = 150, 3
"""Approximate memory of a span, here and with its GPU, and the spans that a new GPU counts as."""


class FactReceiver(Protocol):
    """Receiver of what a batch shows about GPUs."""

    def accepts_gpu(self, node: str, uuid: str, received_ns: int) -> bool:
        """True if a node may report a GPU."""

    def record_place(
        self, node: str, boot: str, uuid: str, span: node_intervals.SampleSpan
    ) -> None:
        """Record that a GPU is in a node."""


@dataclass(slots=True)
class BatchFacts:
    """Extraction of the facts of one batch."""

    book: FactReceiver
    record: FrameRecord
    envelope: Envelope
    batch: Batch
    schema: names.KnownSchema
    since_boot_ns: int
    skew_ns: int
    uncertainty_ns: int
    has_reports: bool = False
    """True if the time of the node's reports is already recorded."""
    added_bytes: int = 0

    def record_rows(self, interval: node_intervals.EvidenceInterval, rows: Sequence[int]) -> int:
        """Record the rows of one interval; return the approximate number of bytes added."""
        self.added_bytes = 0
        if self.schema.gpus:
            self._record_gpus(interval, rows)
        # Of a schema with GPUs, the presence of a GPU already shows that the node reported.
        elif not self.has_reports:
            self.added_bytes += add_reports(interval, self.join_spans(rows))
        if self.schema.mig_layouts:
            self._record_layouts(interval, rows)
        if self.schema.counters:
            self._record_counters(interval, rows)
        return self.added_bytes

    def join_spans(self, rows: Sequence[int]) -> list[node_intervals.SampleSpan]:
        """Join rows that are at most a gap apart into spans."""
        boot_ns, since_boot_ns = self.batch.boot_ns, self.since_boot_ns
        first_ns, last_ns = since_boot_ns + boot_ns[rows[0]], since_boot_ns + boot_ns[rows[-1]]
        if last_ns - first_ns <= GAP_NS:
            return [node_intervals.SampleSpan(first_ns, last_ns, self.uncertainty_ns, self.skew_ns)]
        spans: list[node_intervals.SampleSpan] = []
        for row in rows:
            timestamp_ns = since_boot_ns + boot_ns[row]
            if spans and timestamp_ns - spans[-1].last_ns <= GAP_NS:
                spans[-1].last_ns = timestamp_ns
            else:
                spans.append(
                    node_intervals.SampleSpan(
                        timestamp_ns, timestamp_ns, self.uncertainty_ns, self.skew_ns
                    )
                )
        return spans

    def _record_gpus(self, interval: node_intervals.EvidenceInterval, rows: Sequence[int]) -> None:
        """Record the GPUs that reported any value in these rows."""
        everywhere = self.join_spans(rows)
        received_ns = self.record.received_wall_ns
        for gpu in self.schema.gpus:
            if not self.book.accepts_gpu(interval.node, gpu.uuid, received_ns):
                continue
            spans = everywhere
            if self.batch.reasons:
                reporting = self._rows_with_values(gpu, rows)
                # A GPU that is listed without a value is still in the node: the absence of values is no departure.
                if len(reporting) < len(rows):
                    interval.list_valueless(gpu.uuid, everywhere)
                    self.added_bytes += _SPAN_BYTES * len(everywhere)
                    spans = self.join_spans(reporting) if reporting else []
                if not spans:
                    continue
            self.book.record_place(interval.node, interval.boot, gpu.uuid, spans[-1])
            reported = interval.gpus.get(gpu.uuid)
            before = len(reported.spans) if reported else -_SPANS_OF_A_GPU
            interval.record_gpu(
                gpu.uuid, node_intervals.ReportedGpu(received_ns, gpu.rail, gpu.sku, spans)
            )
            self.added_bytes += _SPAN_BYTES * (len(interval.gpus[gpu.uuid].spans) - before)

    def _rows_with_values(self, gpu: names.SchemaGpu, rows: Sequence[int]) -> Sequence[int]:
        """Return the rows in which a GPU reported any value."""
        columns = self.schema.layout.columns
        if len(self.batch.reasons) == columns:  # all rows have the same reasons
            codes = sheets.reasons_of(self.batch, 0, columns).take(gpu.columns)
            return rows if (codes == PRESENT).any() else ()
        codes = sheets.reasons(self.batch, columns)[:, gpu.columns]
        chosen = np.asarray(rows, np.intp)
        has_values = (codes == PRESENT).any(axis=1)[chosen]
        return rows if has_values.all() else chosen[has_values].tolist()

    def _record_layouts(
        self, interval: node_intervals.EvidenceInterval, rows: Sequence[int]
    ) -> None:
        """Record the MIG layouts of the stream's GPUs in these rows."""
        # Without uncertainty and skew: they depend on the delivery, and equal layouts must be equal facts.
        bare = node_intervals.copy_times(self.join_spans(rows))
        received_ns = self.record.received_wall_ns
        for gpu, parts in self.schema.mig_layouts:
            # The readings of the GPU are no condition: they may arrive later, and the order of frames must not count.
            if self.book.accepts_gpu(interval.node, gpu, received_ns):
                for span in bare:
                    interval.record_layout(gpu, parts, span)

    def _record_counters(
        self, interval: node_intervals.EvidenceInterval, rows: Sequence[int]
    ) -> None:
        """Store the first reading of each cell of the grid."""
        batch, columns = self.batch, self.schema.shape.metered.columns
        # Facts of a device may change, of which its counters do not depend.
        counted = self.schema.shape.digest + self.schema.names.keys
        name = f"{self.envelope.run} {batch.stream} {counted.hex()}"
        series = interval.series.get(name)
        if series is None:
            series = interval.series[name] = node_intervals.CounterSeries(
                self.envelope.run, self.schema.counters, {}
            )
        readings: list[tuple[int, int]] = []
        last = -1
        for row in rows:
            number = batch.boot_ns[row] // node_intervals.GRID_NS
            if number != last:
                newest = series.cells.get(number)
                # The first reading of a cell, in whatever order frames arrive: two collectors then store the same fact.
                if newest is None or batch.boot_ns[row] <= newest.boot_ns:
                    readings.append((number, row))
            last = number
        if not readings:
            return
        before = len(series.cells)
        width = self.schema.layout.columns
        table = sheets.rows_at(batch, [row for _, row in readings], columns, width)
        for (number, row), read in zip(readings, table, strict=True):
            codes = sheets.reasons_of(batch, row, width).take(columns)
            # Counters are never negative: -1 stands for an absent reading, which must not look like 0.
            values = np.where(codes == PRESENT, read, -1).astype(_VALUE)
            timestamp_ns = self.since_boot_ns + batch.boot_ns[row]
            series.offer(
                number,
                node_intervals.CounterReading(batch.boot_ns[row], timestamp_ns, values.tobytes()),
            )
        cell_bytes = _SPAN_BYTES + _VALUE.itemsize * len(columns)
        self.added_bytes += cell_bytes * (len(series.cells) - before)


def add_reports(
    interval: node_intervals.EvidenceInterval, spans: Sequence[node_intervals.SampleSpan]
) -> int:
    """Add time in which a node reported anything but GPUs; return the number of bytes added."""
    before = len(interval.reports)
    node_intervals.add_spans(interval.reports, spans)
    return _SPAN_BYTES * (len(interval.reports) - before)


def uncertainty_of(batch: Batch) -> int:
    """Return the uncertainty of a batch's wall clock, at most that of a usable clock."""
    return min(batch.uncertainty_ns or 0, MAX_SNAPPED_NS)


def group_by_interval(
    boot_ns: Sequence[int], rows: Sequence[int]
) -> Iterator[tuple[int, Sequence[int]]]:
    """Group rows by interval, in the order of the boot clock."""
    if not rows:
        return
    # A sender may order frames as it likes; spans are joined in the order of time.
    if sorted(boot_ns) != list(boot_ns):
        rows = sorted(rows, key=boot_ns.__getitem__)
    first, last = (
        boot_ns[rows[0]] // node_intervals.INTERVAL_NS,
        boot_ns[rows[-1]] // node_intervals.INTERVAL_NS,
    )
    if first == last:
        yield first, rows
        return
    grouped: dict[int, list[int]] = {}
    for row in rows:
        grouped.setdefault(boot_ns[row] // node_intervals.INTERVAL_NS, []).append(row)
    yield from grouped.items()
