"""What a node's frames of a quarter of an hour said for metering.

Quarters are of the node's boot clock. Instants are on the collector's clock: a frame is as old as the
boot clock says, however wrong the node's wall clock is. Of each thirty seconds of the boot clock the
first reading of every counter is kept, so that what is kept does not depend on how frames travelled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

from collector.evidence.seen import Counter, Part
from collector.metering.observation import GAP_NS

GRID_NS = 30_000_000_000
CHUNK_CELLS = 30
CHUNK_NS = GRID_NS * CHUNK_CELLS


class Span(msgspec.Struct, array_like=True, order=True, gc=False):
    """Samples from the first to the last, no two neighbours further apart than a gap.

    `uncertainty_ns` is that of the node's wall clock, `skew_ns` how far that clock was off where it
    was off by too much to be believed.
    """

    first_ns: int
    last_ns: int
    uncertainty_ns: int = 0
    skew_ns: int = 0


def add_span(spans: list[Span], new: Span) -> bool:
    """Add samples to spans in order, joining what is near enough; whether the last only grew."""
    if spans:
        last = spans[-1]
        near = last.first_ns <= new.first_ns <= last.last_ns + GAP_NS
        if near and last.skew_ns == new.skew_ns:
            as_certain = new.uncertainty_ns <= last.uncertainty_ns
            last.last_ns = max(last.last_ns, new.last_ns)
            last.uncertainty_ns = max(last.uncertainty_ns, new.uncertainty_ns)
            return as_certain
    joined = Span(new.first_ns, new.last_ns, new.uncertainty_ns, new.skew_ns)
    kept: list[Span] = []
    for span in spans:
        near = span.first_ns <= joined.last_ns + GAP_NS and joined.first_ns <= span.last_ns + GAP_NS
        if near and span.skew_ns == joined.skew_ns:
            joined = Span(
                min(span.first_ns, joined.first_ns),
                max(span.last_ns, joined.last_ns),
                max(span.uncertainty_ns, joined.uncertainty_ns),
                joined.skew_ns,
            )
        else:
            kept.append(span)
    kept.insert(bisect_left(kept, joined), joined)
    spans[:] = kept
    return False


class Sighted(msgspec.Struct, array_like=True):
    """A GPU in a node's frames: when first heard of it there, on which rail, and its samples."""

    heard_ns: int
    lane: int
    sku: str = ""
    spans: list[Span] = []


class Cell(msgspec.Struct, array_like=True, order=True, gc=False):
    """One reading of all counters of a stream, eight bytes each; -1 is none."""

    boot_ns: int
    instant_ns: int
    values: bytes


class Series(msgspec.Struct, array_like=True):
    """The counters of one schema in one run of the agent, by cell of the grid."""

    run: str
    counters: tuple[Counter, ...]
    cells: dict[int, Cell] = {}

    def offer(self, number: int, cell: Cell) -> None:
        """Keep a reading if it is the first of its cell."""
        kept = self.cells.get(number)
        if kept is None or cell < kept:
            self.cells[number] = cell


class Cut(msgspec.Struct, array_like=True):
    """How a GPU was cut while frames said so."""

    parts: tuple[Part, ...]
    spans: list[Span] = []


class Chunk(msgspec.Struct, array_like=True):
    """All of it, for one node and boot. `start_ns` and `end_ns` hold all instants of it."""

    node: str
    boot: str
    number: int
    start_ns: int
    end_ns: int
    gpus: dict[str, Sighted] = {}
    reports: list[Span] = []
    """When the node reported anything but GPUs."""
    series: dict[str, Series] = {}
    cuts: dict[str, list[Cut]] = {}

    def cover(self, first_ns: int, last_ns: int) -> None:
        """Widen the chunk's time."""
        self.start_ns = min(self.start_ns, first_ns)
        self.end_ns = max(self.end_ns, last_ns)

    def sight(self, gpu: str, lane: int, sku: str, heard_ns: int, spans: Iterable[Span]) -> None:
        """A GPU was seen in the node."""
        found = self.gpus.get(gpu)
        if found is None:
            found = self.gpus[gpu] = Sighted(heard_ns, lane, sku, [])
        found.heard_ns = min(found.heard_ns, heard_ns)
        found.lane, found.sku = max(found.lane, lane), max(found.sku, sku)
        for span in spans:
            add_span(found.spans, span)

    def cut(self, gpu: str, parts: tuple[Part, ...], span: Span) -> None:
        """A GPU was cut in this way. The span may be others' too."""
        cuts = self.cuts.setdefault(gpu, [])
        for cut in cuts:
            if cut.parts == parts:
                add_span(cut.spans, span)
                return
        cuts.append(Cut(parts, [Span(span.first_ns, span.last_ns)]))
        cuts.sort(key=lambda cut: cut.parts)

    def ordered(self) -> Chunk:
        """The same with everything in order, so that the same facts are the same bytes."""
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
        )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Chunk)


def encode(chunk: Chunk) -> bytes:
    """A chunk as bytes: equal facts, equal bytes."""
    return _encoder.encode(chunk.ordered())


def decode(content: bytes) -> Chunk:
    """The chunk in bytes. Raises msgspec.MsgspecError."""
    return _decoder.decode(content)
