"""Facts from a node's envelopes: metering facts in intervals, and receipts.

An interval has the metering facts from a node's frames of 15 minutes. Intervals are divided by the node's
boot clock. Timestamps are on the collector's clock: the boot clock determines the age of a frame, however
wrong the node's wall clock is. Of each 30 seconds of the boot clock the first reading of every counter is
stored, so the result does not depend on the transport of frames.

Receipts are the first contact with a node and its GPUs, and the limit of late reports. Nothing is
observed before the first accepted frame of a node, and of a GPU in it: any holder of a node's token
could invent it. Late reports of claims are pending review. An agent that was offline sends its
spool in order, oldest first: only envelopes with a current frame count as the previous one, so its
reports of the time offline are trusted for as long as `MAX_AGE_NS`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from types import MappingProxyType

import msgspec

from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope.wire import Envelope, SentAt
from railscope_collector.fleet.shape_columns import CounterSubject, ReportedMigInstance
from railscope_collector.metering.observation import GAP_NS

# As long as the longest gap in observed time: an observed GPU has a reading in each cell.
GRID_NS = 30_000_000_000
INTERVAL_CELLS = 30
INTERVAL_NS = GRID_NS * INTERVAL_CELLS
MAX_DOUBTS = 256
"""Maximum per interval for single GPUs; further ones apply to all GPUs of the node."""


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


def trusted_start(spans: Sequence[SampleSpan], known_ns: int, new_ns: int, first_ns: int) -> int:
    """Return the trusted start of a boot, once samples are added to `spans`.

    `known_ns` is that of `spans` (0: their first sample); `first_ns` and `new_ns` are the first of
    the new samples and their trusted start, which is later if they were reported late. 0: the first
    of all samples.
    """
    if spans:
        new_ns = min(new_ns, known_ns or spans[0].first_ns)
        first_ns = min(first_ns, spans[0].first_ns)
    return new_ns if new_ns > first_ns else 0


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
    """The trusted start of the boot; 0: its first sample here."""


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


class SuspectPeriod(msgspec.Struct, array_like=True, order=True, gc=False):
    """Evidence of a period that was received while the collector's clock was suspect.

    `since_ns` is the start of the suspect time by the clock of that time, `delta_ns` the shift to later times that a
    decision applied; 0 if the clock returned. `gpu` is empty for all that the node reported.
    """

    since_ns: int
    delta_ns: int
    gpu: str
    first_ns: int
    last_ns: int


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
    doubts: list[SuspectPeriod] = []
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
        first_ns = new.spans[0].first_ns
        trusted_start_ns = max(new.trusted_start_ns, first_ns)
        gpu_record.trusted_start_ns = trusted_start(
            gpu_record.spans, gpu_record.trusted_start_ns, trusted_start_ns, first_ns
        )
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
            gpu_record.trusted_start_ns == 0
            and len(gpu_record.spans) > 0
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

    def mark_suspect(self, new: SuspectPeriod) -> None:
        """Mark evidence that was received while the collector's clock was suspect."""
        self.cover(new.first_ns, new.last_ns)
        if len(self.doubts) >= MAX_DOUBTS:
            # A mark for all GPUs is more than needed, and never less.
            new.gpu = ""
        for period in self.doubts:
            if (period.since_ns, period.delta_ns, period.gpu) == (
                new.since_ns,
                new.delta_ns,
                new.gpu,
            ):
                period.first_ns = min(period.first_ns, new.first_ns)
                period.last_ns = max(period.last_ns, new.last_ns)
                return
        self.doubts.append(new)

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
            doubts=sorted(self.doubts),
            valueless=dict(sorted(self.valueless.items())),
        )


def read_counters(interval: EvidenceInterval) -> Iterator[CounterSubject]:
    """Yield the counters with a reading in an interval."""
    for series in interval.series.values():
        for column, counter in enumerate(series.counters):
            if any(_has_value(cell, column) for cell in series.cells.values()):
                yield counter


def read_times(interval: EvidenceInterval) -> Iterator[tuple[CounterSubject, int]]:
    """Yield the timestamps of all readings in an interval, each with its counter, in no order."""
    for series in interval.series.values():
        for column, counter in enumerate(series.counters):
            for cell in series.cells.values():
                if _has_value(cell, column):
                    yield counter, cell.timestamp_ns


def _has_value(cell: CounterReading, column: int) -> bool:
    """True if a column of a reading has a value: no other number is negative."""
    return cell.values[8 * column + 7] < _SIGN


_SIGN = 0x80
"""Highest bit of the last byte, as numbers are little-endian."""


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
LATE_NS = 3_600 * SECOND_NS
"""Maximum time that a claim may reach back before the previous envelope of its node."""
MAX_AGE_NS = 72 * LATE_NS
"""Maximum time that any fact may reach back before its receipt."""
MAX_PCI_CHARACTERS = 64
"""Of a PCI address, which is part of a key in the database; longer ones are cut off."""
MAX_GPUS = 256
"""GPUs that a node may ever have reported; further ones are not accepted as evidence."""

MAX_REPORT_SPANS = 4096
"""Maximum number of spans of a node's reports; they show that a GPU has left it."""


class FirstContact(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """First receipt of a frame with a GPU in it from a node, and the GPU's PCI address there."""

    received_ns: int
    pci: str = ""


class NodeReceipts(msgspec.Struct, array_like=True):
    """Receipts of one node: the last envelope with a current frame (0: none), and its GPUs."""

    current_ns: int = 0
    gpus: dict[str, FirstContact] = {}
    reports: list[SampleSpan] = []
    """Time in which the node reported anything: the newest spans."""

    def horizon_ns(self, received_ns: int, first_age_ns: int = MAX_AGE_NS) -> int:
        """Return the timestamp from which an envelope's claims and ends are trusted.

        `first_age_ns` is their maximum age in the first envelope of a node.
        """
        if not self.current_ns:
            return received_ns - first_age_ns
        # The collector's clock may have been set back since the previous envelope.
        previous_ns = min(self.current_ns, received_ns)
        return max(previous_ns - LATE_NS, received_ns - MAX_AGE_NS)

    def receive(self, received_ns: int, sent: SentAt, envelope: Envelope) -> None:
        """Record an envelope, after its content was recorded."""
        for batch in envelope.batches:
            wall_ns, boot_ns = batch.wall_ns, batch.boot_ns
            if wall_ns and sent.age_ns(envelope.boot_id, wall_ns[-1], boot_ns[-1]) <= LATE_NS:
                self.current_ns = max(self.current_ns, received_ns)
                return

    def record_reports(self, spans: Iterable[SampleSpan]) -> None:
        """Record the time of a node's reports."""
        add_spans(self.reports, copy_times(spans))
        # The newest stay: an old one does not show where the GPU is now.
        del self.reports[:-MAX_REPORT_SPANS]

    def record_contact(self, gpu: str, contact: FirstContact) -> bool:
        """Record the first receipt of a GPU; true if it is earlier than the recorded one."""
        existing = self.gpus.get(gpu)
        if existing is not None and existing <= contact:
            return False
        self.gpus[gpu] = contact
        return True

    def accepts(self, gpu: str) -> bool:
        """True if the node may report this GPU."""
        return gpu in self.gpus or len(self.gpus) < MAX_GPUS


Contacts = Mapping[str, Mapping[str, FirstContact]]
"""Contacts by node and GPU."""
NO_CONTACTS: Contacts = MappingProxyType({})
_NEVER = FirstContact(FOREVER_NS)


def find_new_contacts(receipts: Mapping[str, NodeReceipts], stored: Contacts) -> Contacts:
    """Return the first contacts of nodes that are not stored, or are earlier than those stored."""
    found: dict[str, dict[str, FirstContact]] = {}
    for node, received in receipts.items():
        existing = stored.get(node, {})
        new = {gpu: c for gpu, c in received.gpus.items() if c < existing.get(gpu, _NEVER)}
        if new:
            found[node] = new
    return found


def floor_ns(contacts: Contacts, gpu: str, node: str, receipts_ns: Iterable[int] = ()) -> int:
    """Return the timestamp before which a GPU is not observed in a node."""
    contact = contacts.get(node, {}).get(gpu)
    receipts = [*receipts_ns, *([contact.received_ns] if contact else ())]
    return min(receipts, default=0) - TOLERANCE_NS


def node_floor_ns(contacts: Contacts, node: str) -> int:
    """Return the timestamp before which no GPU is observed in a node."""
    receipts = (contact.received_ns for contact in contacts.get(node, {}).values())
    return min(receipts, default=0) - TOLERANCE_NS
