"""Frames of every shape, for property tests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import strategies as st

from railscope.catalog import EVENTS, KINDS, METRICS, MetricKind
from railscope.catalog.declare import SUM, EntityKind, EventClass
from railscope.frame import Column, Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.reading import SIGNED_LIMIT, Absent
from railscope.untrusted_text import printable

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
STORED = st.integers(-SIGNED_LIMIT, SIGNED_LIMIT - 1) | st.integers(0, 100)
CLOCK = st.integers(0, SIGNED_LIMIT - 1)
NAMES = TEXT.map(printable)
ORIGINS = st.builds(FrameOrigin, NAMES, NAMES, NAMES)
_DECLARED = [metric for metric in METRICS.values() if metric.kind is not MetricKind.INFO]


def entities(kind: EntityKind) -> st.SearchStrategy[Entity]:
    """Entities of a kind, with any key and any of its facts."""
    facts = st.dictionaries(st.sampled_from(kind.facts), TEXT) if kind.facts else st.just({})
    return st.builds(Entity, st.just(kind), st.tuples(*[TEXT] * len(kind.labels)), facts)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    metric = draw(st.sampled_from(_DECLARED))
    entity = draw(entities(metric.about))
    if metric.kind is not MetricKind.HISTOGRAM:
        return metric, entity
    series = draw(st.sampled_from([*metric.buckets, SUM]))
    return metric, Entity(metric.about, (*entity.key[:-1], series), entity.facts)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    drawn = draw(st.lists(columns(), max_size=9, unique_by=lambda c: (c[0].name, c[1].key)))
    # One entity has the same facts in all of its columns.
    entity_of = {(entity.kind.name, entity.key): entity for _, entity in drawn}
    found = [(metric, entity_of[entity.kind.name, entity.key]) for metric, entity in drawn]
    ordered = tuple(found[position] for position in Schema.ordered(found))
    held = {entity for _, entity in ordered}
    columnless_entities = draw(
        st.lists(entities(KINDS["disk"]), max_size=2, unique_by=lambda e: e.key)
    )
    keys = {(entity.kind, entity.key) for entity in held}
    others = tuple(each for each in columnless_entities if (each.kind, each.key) not in keys)
    return Schema(draw(NAMES), ordered, others)


@st.composite
def events(draw: st.DrawFn) -> Event:
    event_class: EventClass = draw(st.sampled_from(list(EVENTS.values())))
    facts = draw(st.dictionaries(TEXT, TEXT, max_size=2))
    return Event(event_class, draw(entities(event_class.about)), draw(CLOCK), draw(CLOCK), facts)


@st.composite
def runs(draw: st.DrawFn) -> list[Frame]:
    """Frames of one run of an agent: several schemas, gaps in the sequence, constant values."""
    origin = draw(ORIGINS)
    frames: list[Frame] = []
    for schema in draw(st.lists(schemas(), min_size=1, max_size=3)):
        frames += draw(_rows(origin, schema, len(frames) + 1))
    return frames


@st.composite
def _rows(draw: st.DrawFn, origin: FrameOrigin, schema: Schema, first: int) -> list[Frame]:
    width = len(schema.columns)
    frames: list[Frame] = []
    sequence = first
    for _ in range(draw(st.integers(1, 5))):
        still: bool = draw(st.booleans())
        kept = frames[-1].values if frames and still else None
        values = kept or array("q", draw(st.lists(STORED, min_size=width, max_size=width)))
        instant = NodeTimestamp(draw(CLOCK), draw(CLOCK))
        happened = tuple(draw(st.lists(events(), max_size=2)))
        reasons = draw(_reasons(width))
        frames.append(Frame(origin, schema, sequence, instant, values, reasons, happened))
        sequence += draw(st.sampled_from([1, 1, 1, 2, 50]))
    return frames


def _reasons(width: int) -> st.SearchStrategy[bytes]:
    codes = st.lists(st.sampled_from([0, *Absent]), min_size=width, max_size=width)
    return st.just(b"") | codes.map(_packed)


def _packed(codes: Sequence[int | Absent]) -> bytes:
    """Encode reasons as the agent does: empty if every column has a value."""
    packed = bytes(code.value if isinstance(code, Absent) else code for code in codes)
    return packed if any(packed) else b""
