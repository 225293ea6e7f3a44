"""Facts from a node's envelopes for metering, in quarters.

A quarter has the metering facts from a node's frames of 15 minutes, by the node's boot clock. Timestamps are on the
collector's clock: the boot clock determines the age of a frame, however wrong the node's wall clock is. Of each 30 seconds
of the boot clock the first reading of every counter is stored, so the result does not depend on the transport of frames.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import chain
from typing import Any

import msgspec

from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector.fleet.shape_columns import CounterSubject, ReportedMigInstance
from railscope_collector.metering.observation import GAP_NS

# As long as the longest gap in observed time: an observed GPU has a reading in each cell.
GRID_NS = 30_000_000_000
INTERVAL_CELLS = 30
INTERVAL_NS = GRID_NS * INTERVAL_CELLS


class SampleSpan(msgspec.Struct, array_like=True, order=True, gc=False):
    """Samples from the first to the last, with no two neighbours further apart than a gap.

    `uncertainty_ns` is that of the node's wall clock; `skew_ns` is the error of that clock where it
    was too large for the clock to be used.
    """

    first_ns: int
    last_ns: int
    uncertainty_ns: int = 0
    skew_ns: int = 0


def add_spans(spans: list[SampleSpan], new: Sequence[SampleSpan]) -> bool:
    """Add samples in order to spans in order; true if the last span only grew.

    Spans of one skew are disjoint, so one walk to the left of the first new span finds all that it
    can touch; spans before and after are not visited.
    """
    # The usual case: one more frame of a running node.
    if len(new) == 1 and spans and does_continue(spans[-1], new[0]):
        return _widen(spans[-1], new[0])
    as_certain = True
    for position, span in enumerate(new):
        last = spans[-1] if spans else None
        if last and last.skew_ns == span.skew_ns and last.first_ns <= span.first_ns:
            if span.first_ns <= last.last_ns + GAP_NS:
                as_certain &= _widen(last, span)
            else:
                as_certain = False
                spans.append(copy(span))
            continue
        _merge(spans, new[position:])
        return False
    return as_certain


def add_span(spans: list[SampleSpan], new: SampleSpan) -> bool:
    """Add one span; see `add_spans`."""
    return add_spans(spans, (new,))


def copy_times(spans: Iterable[SampleSpan]) -> list[SampleSpan]:
    """Return copies of spans with their time only."""
    return [SampleSpan(span.first_ns, span.last_ns) for span in spans]


def does_continue(last: SampleSpan, span: SampleSpan) -> bool:
    """True if a span begins within another one, or at most a gap after it."""
    return last.skew_ns == span.skew_ns and last.first_ns <= span.first_ns <= last.last_ns + GAP_NS


def _widen(span: SampleSpan, other: SampleSpan) -> bool:
    """Extend a span; true if that makes it no less certain."""
    span.last_ns = max(span.last_ns, other.last_ns)
    if other.uncertainty_ns <= span.uncertainty_ns:
        return True
    span.uncertainty_ns = other.uncertainty_ns
    return False


def _merge(spans: list[SampleSpan], new: Sequence[SampleSpan]) -> None:
    """Merge new spans into others, joining those of one skew that are at most a gap apart."""
    first_ns = min(span.first_ns for span in new)
    last_ns = max(span.last_ns for span in new)
    skews = {span.skew_ns for span in new}
    low = bisect_left(spans, first_ns, key=_first_ns)
    high = bisect_right(spans, last_ns + GAP_NS, key=_first_ns)
    reach = low
    while skews and reach:
        reach -= 1
        if spans[reach].skew_ns in skews:
            skews.discard(spans[reach].skew_ns)
            low = reach
    joined: list[SampleSpan] = []
    newest: dict[int, SampleSpan] = {}
    for span in sorted([*spans[low:high], *map(copy, new)]):
        open_span = newest.get(span.skew_ns)
        if open_span and span.first_ns <= open_span.last_ns + GAP_NS:
            _widen(open_span, span)
        else:
            newest[span.skew_ns] = span
            joined.append(span)
    joined.sort()
    spans[low:high] = joined


def _first_ns(span: SampleSpan) -> int:
    return span.first_ns


class ReportedGpu(msgspec.Struct, array_like=True):
    """A GPU in a node's frames: its first receipt from the node, its rail, and its samples."""

    received_ns: int
    rail: int
    sku: str = ""
    spans: list[SampleSpan] = []
    trusted_start_ns: int = 0
    """Of release 0.3.0: the time from which the start of the boot counted; 0 for no limit."""


class CounterReading(msgspec.Struct, array_like=True, order=True, gc=False):
    """One reading of all counters of a stream, eight bytes each; -1 for no value."""

    boot_ns: int
    timestamp_ns: int
    values: bytes


class CounterSeries(msgspec.Struct, array_like=True):
    """The counters of one schema in one run of the agent, by cell of the grid."""

    run: str
    counters: tuple[CounterSubject, ...]
    cells: dict[int, CounterReading] = {}

    def offer(self, number: int, cell: CounterReading) -> None:
        """Store a reading if it is the first of its cell."""
        stored_cell = self.cells.get(number)
        if stored_cell is None or cell < stored_cell:
            self.cells[number] = cell


class LayoutSpans(msgspec.Struct, array_like=True):
    """A MIG layout of a GPU, and the spans in which frames showed it."""

    parts: tuple[ReportedMigInstance, ...]
    spans: list[SampleSpan] = []


class EvidenceInterval(msgspec.Struct, array_like=True):
    """All facts of one node and boot; all timestamps are between `start_ns` and `end_ns`."""

    node: str
    boot: str
    number: int
    start_ns: int
    end_ns: int
    gpus: dict[str, ReportedGpu] = {}
    reports: list[SampleSpan] = []
    """Time in which the node reported anything but GPUs."""
    series: dict[str, CounterSeries] = {}
    layouts: dict[str, list[LayoutSpans]] = {}
    former: list[Any] = []
    """Marks of release 0.3.0, which have no effect."""
    valueless: dict[str, list[SampleSpan]] = {}
    """Time in which a GPU was listed in frames of which some have no value of it."""

    def cover(self, first_ns: int, last_ns: int) -> None:
        """Extend the interval's time."""
        self.start_ns = min(self.start_ns, first_ns)
        self.end_ns = max(self.end_ns, last_ns)

    def record_gpu(self, gpu: str, new: ReportedGpu) -> None:
        """Record a GPU in the node; `new` may be shared: its spans are copied."""
        gpu_record = self.gpus.get(gpu)
        if gpu_record is None:
            # Without the spans, which are added as copies below.
            gpu_record = self.gpus[gpu] = ReportedGpu(new.received_ns, new.rail, new.sku, [])
        if self._is_extended(gpu_record, new):
            add_spans(gpu_record.spans, new.spans)
            return
        gpu_record.received_ns = min(gpu_record.received_ns, new.received_ns)
        # The larger of two reports, so that the result does not depend on the order of frames.
        gpu_record.rail, gpu_record.sku = (
            max(gpu_record.rail, new.rail),
            max(gpu_record.sku, new.sku),
        )
        add_spans(gpu_record.spans, new.spans)

    @staticmethod
    def _is_extended(gpu_record: ReportedGpu, new: ReportedGpu) -> bool:
        """True if new samples only continue the known ones."""
        return (
            len(gpu_record.spans) > 0
            and does_continue(gpu_record.spans[-1], new.spans[0])
            and gpu_record.received_ns <= new.received_ns
            and (gpu_record.rail, gpu_record.sku) == (new.rail, new.sku)
        )

    def record_layout(
        self, gpu: str, parts: tuple[ReportedMigInstance, ...], span: SampleSpan
    ) -> None:
        """Record the MIG layout of a GPU in a span, which may be shared: it is copied."""
        layouts = self.layouts.setdefault(gpu, [])
        for layout in layouts:
            if layout.parts == parts:
                add_span(layout.spans, span)
                return
        layouts.append(LayoutSpans(parts, copy_times([span])))
        # Sorted, as the order of frames must not change the encoding.
        layouts.sort(key=lambda layout: layout.parts)

    def list_valueless(self, gpu: str, spans: Sequence[SampleSpan]) -> None:
        """Record that a GPU was listed without a value; `spans` may be shared: they are copied."""
        add_spans(self.valueless.setdefault(gpu, []), copy_times(spans))

    def report_spans(self) -> list[SampleSpan]:
        """Return the time in which the node reported anything."""
        listed = (sighted.spans for sighted in self.gpus.values())
        spans = chain(self.reports, *listed, *self.valueless.values())
        return copy_times(spans)

    def sorted_copy(self) -> EvidenceInterval:
        """Return a copy with everything in order, so that equal facts have equal bytes."""
        series = {
            name: CounterSeries(series.run, series.counters, dict(sorted(series.cells.items())))
            for name, series in sorted(self.series.items())
        }
        return msgspec.structs.replace(
            self,
            gpus=dict(sorted(self.gpus.items())),
            series=series,
            layouts=dict(sorted(self.layouts.items())),
            valueless=dict(sorted(self.valueless.items())),
        )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EvidenceInterval)


def encode_interval(interval: EvidenceInterval) -> bytes:
    """Encode an interval; equal facts have equal encodings."""
    return _encoder.encode(interval.sorted_copy())


def decode_interval(content: bytes) -> EvidenceInterval:
    """Decode an interval. Raises msgspec.MsgspecError."""
    return _decoder.decode(content)


TOLERANCE_NS = 120 * SECOND_NS
"""Time before its first receipt in which a GPU may be observed: the content of the first envelopes."""
MAX_AGE_NS = 72 * HOUR_NS
"""Maximum time that any fact may reach back before its receipt."""
MAX_GPUS = 256
"""GPUs that a node may ever have reported; further ones are not accepted as evidence."""
