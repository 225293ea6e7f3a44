"""Metering facts from a node's frames of 15 minutes.

Chunks are divided by the node's boot clock. Timestamps are on the collector's clock: the boot clock
gives the age of a frame, however wrong the node's wall clock is. Of each 30 seconds of the boot
clock the first reading of every counter is stored, so the result does not depend on the transport
of frames.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec

from collector.fleet.metered_columns import Counter, Part
from collector.metering.observation import GAP_NS

GRID_NS = 30_000_000_000
CHUNK_CELLS = 30
CHUNK_NS = GRID_NS * CHUNK_CELLS
MAX_DOUBTS = 256
"""Maximum per chunk for single GPUs; further ones apply to all GPUs of the node."""


class Span(msgspec.Struct, array_like=True, order=True, gc=False):
    """Samples from the first to the last, with no two neighbours further apart than a gap.

    `uncertainty_ns` is that of the node's wall clock; `skew_ns` is the error of that clock where it
    was too large for the clock to be used.
    """

    first_ns: int
    last_ns: int
    uncertainty_ns: int = 0
    skew_ns: int = 0


def add_spans(spans: list[Span], new: Sequence[Span]) -> bool:
    """Add samples in order to spans in order; true if the last span only grew.

    Spans of one skew are disjoint, so one walk to the left of the first new span finds all that it
    can touch; spans before and after are not visited.
    """
    as_certain = True
    for position, span in enumerate(new):
        last = spans[-1] if spans else None
        if last and last.skew_ns == span.skew_ns and last.first_ns <= span.first_ns:
            if span.first_ns <= last.last_ns + GAP_NS:
                as_certain &= span.uncertainty_ns <= last.uncertainty_ns
                _widen(last, span)
            else:
                as_certain = False
                spans.append(_copied(span))
            continue
        _merge(spans, new[position:])
        return False
    return as_certain


def add_span(spans: list[Span], new: Span) -> bool:
    """Add one span; see `add_spans`."""
    return add_spans(spans, (new,))


def believed_from(spans: Sequence[Span], known_ns: int, new_ns: int, first_ns: int) -> int:
    """Return the trusted start of a boot, once samples are added to `spans`.

    `known_ns` is that of `spans` (0: their first sample); `first_ns` and `new_ns` are the first of
    the new samples and their trusted start, which is later if they were reported late. 0: the first
    of all samples.
    """
    if spans:
        new_ns = min(new_ns, known_ns or spans[0].first_ns)
        first_ns = min(first_ns, spans[0].first_ns)
    return new_ns if new_ns > first_ns else 0


def _widen(span: Span, other: Span) -> None:
    span.last_ns = max(span.last_ns, other.last_ns)
    span.uncertainty_ns = max(span.uncertainty_ns, other.uncertainty_ns)


def _copied(span: Span) -> Span:
    return Span(span.first_ns, span.last_ns, span.uncertainty_ns, span.skew_ns)


def _merge(spans: list[Span], new: Sequence[Span]) -> None:
    """Merge new spans into others, joining those of one skew that are at most a gap apart."""
    first_ns = min(span.first_ns for span in new)
    last_ns = max(span.last_ns for span in new)
    wanted = {span.skew_ns for span in new}
    low = bisect_left(spans, first_ns, key=_first_ns)
    high = bisect_right(spans, last_ns + GAP_NS, key=_first_ns)
    reach = low
    while wanted and reach:
        reach -= 1
        if spans[reach].skew_ns in wanted:
            wanted.discard(spans[reach].skew_ns)
            low = reach
    joined: list[Span] = []
    newest: dict[int, Span] = {}
    for span in sorted([*spans[low:high], *map(_copied, new)]):
        open_span = newest.get(span.skew_ns)
        if open_span and span.first_ns <= open_span.last_ns + GAP_NS:
            _widen(open_span, span)
        else:
            newest[span.skew_ns] = span
            joined.append(span)
    joined.sort()
    spans[low:high] = joined


def _first_ns(span: Span) -> int:
    return span.first_ns


class Sighted(msgspec.Struct, array_like=True):
    """A GPU in a node's frames: its first receipt from the node, its rail, and its samples."""

    heard_ns: int
    rail: int
    sku: str = ""
    spans: list[Span] = []
    believed_ns: int = 0
    """The trusted start of the boot; 0: its first sample here."""


class Cell(msgspec.Struct, array_like=True, order=True, gc=False):
    """One reading of all counters of a stream, eight bytes each; -1 for no value."""

    boot_ns: int
    instant_ns: int
    values: bytes


class Series(msgspec.Struct, array_like=True):
    """The counters of one schema in one run of the agent, by cell of the grid."""

    run: str
    counters: tuple[Counter, ...]
    cells: dict[int, Cell] = {}

    def offer(self, number: int, cell: Cell) -> None:
        """Store a reading if it is the first of its cell."""
        kept = self.cells.get(number)
        if kept is None or cell < kept:
            self.cells[number] = cell


class Doubt(msgspec.Struct, array_like=True, order=True, gc=False):
    """Evidence of a period that was received while the collector's clock was suspect.

    See `collector.metering.evidence.ClockDoubt`. `gpu` is empty for all that the node reported.
    """

    since_ns: int
    delta_ns: int
    gpu: str
    first_ns: int
    last_ns: int


class Cut(msgspec.Struct, array_like=True):
    """A MIG layout of a GPU, and the spans in which frames showed it."""

    parts: tuple[Part, ...]
    spans: list[Span] = []


class Chunk(msgspec.Struct, array_like=True):
    """All facts of one node and boot; all timestamps lie from `start_ns` to `end_ns`."""

    node: str
    boot: str
    number: int
    start_ns: int
    end_ns: int
    gpus: dict[str, Sighted] = {}
    reports: list[Span] = []
    """Time in which the node reported anything but GPUs."""
    series: dict[str, Series] = {}
    cuts: dict[str, list[Cut]] = {}
    doubts: list[Doubt] = []
    silent: dict[str, list[Span]] = {}
    """Time in which a GPU was listed in frames of which some have no value of it."""

    def cover(self, first_ns: int, last_ns: int) -> None:
        """Extend the chunk's time."""
        self.start_ns = min(self.start_ns, first_ns)
        self.end_ns = max(self.end_ns, last_ns)

    def sight(self, gpu: str, new: Sighted) -> None:
        """Record a GPU in the node; `new` may be shared: its spans are copied."""
        found = self.gpus.get(gpu)
        if found is None:
            found = self.gpus[gpu] = Sighted(new.heard_ns, new.rail, new.sku, [])
        first_ns = new.spans[0].first_ns
        believed_ns = max(new.believed_ns, first_ns)
        found.believed_ns = believed_from(found.spans, found.believed_ns, believed_ns, first_ns)
        found.heard_ns = min(found.heard_ns, new.heard_ns)
        found.rail, found.sku = max(found.rail, new.rail), max(found.sku, new.sku)
        add_spans(found.spans, new.spans)

    def cut(self, gpu: str, parts: tuple[Part, ...], span: Span) -> None:
        """Record the MIG layout of a GPU in a span, which may be shared: it is copied."""
        cuts = self.cuts.setdefault(gpu, [])
        for cut in cuts:
            if cut.parts == parts:
                add_span(cut.spans, span)
                return
        cuts.append(Cut(parts, [Span(span.first_ns, span.last_ns)]))
        cuts.sort(key=lambda cut: cut.parts)

    def doubt(self, new: Doubt) -> None:
        """Mark evidence that was received while the collector's clock was suspect."""
        self.cover(new.first_ns, new.last_ns)
        if len(self.doubts) >= MAX_DOUBTS:
            new.gpu = ""
        for one in self.doubts:
            if (one.since_ns, one.delta_ns, one.gpu) == (new.since_ns, new.delta_ns, new.gpu):
                one.first_ns = min(one.first_ns, new.first_ns)
                one.last_ns = max(one.last_ns, new.last_ns)
                return
        self.doubts.append(new)

    def list_silent(self, gpu: str, spans: Sequence[Span]) -> None:
        """Record that a GPU was listed without a value; `spans` may be shared: they are copied."""
        bare = [Span(span.first_ns, span.last_ns) for span in spans]
        add_spans(self.silent.setdefault(gpu, []), bare)

    def attended(self) -> list[Span]:
        """Return the time in which the node reported anything."""
        found = [Span(span.first_ns, span.last_ns) for span in self.reports]
        for some in (*(sighted.spans for sighted in self.gpus.values()), *self.silent.values()):
            found += (Span(span.first_ns, span.last_ns) for span in some)
        return found

    def ordered(self) -> Chunk:
        """Return a copy with everything in order, so that equal facts have equal bytes."""
        return Chunk(
            self.node,
            self.boot,
            self.number,
            self.start_ns,
            self.end_ns,
            dict(sorted(self.gpus.items())),
            self.reports,
            {
                name: Series(series.run, series.counters, dict(sorted(series.cells.items())))
                for name, series in sorted(self.series.items())
            },
            dict(sorted(self.cuts.items())),
            sorted(self.doubts),
            dict(sorted(self.silent.items())),
        )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Chunk)


def encode(chunk: Chunk) -> bytes:
    """Encode a chunk: equal facts give equal bytes."""
    return _encoder.encode(chunk.ordered())


def decode(content: bytes) -> Chunk:
    """Decode a chunk. Raises msgspec.MsgspecError."""
    return _decoder.decode(content)
