"""Decoding of envelopes from request bodies, within the bounds of one envelope.

A sender may be hostile: each bound is checked before the data beyond it is decoded, so that a few
bytes on the wire cause neither large memory use nor long computation. Fields are decoded one
after the other; the first invalid one ends decoding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from railscope import untrusted_text, wire

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_WINDOW_LOG = 24
"""A zstd frame may declare a window of 2 GiB, which its decoder would have to allocate."""

# Bounds of one envelope. Receivers check each bound before they decode the data beyond it, so that
# a few bytes on the wire never cause large memory use.
MAX_BATCHES, MAX_FRAMES, MAX_EVENTS = 1000, 20_000, 10_000
MAX_SHAPE_BYTES, MAX_PARTS_BYTES, MAX_EVENT_BYTES = 1 << 20, 4 << 20, 32 << 10
MAX_TEXT = 4000
"""Characters of a text that is not a name."""
MAX_KEYS, MAX_FACTS = 16, 64
MAX_EVENT_TEXT = 16_384
"""Characters of all texts of an event."""
_CUT_TEXT = 410
"""Length to which each fact of an event with more text than that is cut. Longer than any valid text of a
claim, so that no claim is accepted with a truncated text."""
_shape_decoder = msgspec.msgpack.Decoder(wire.Shape)
_names_decoder = msgspec.msgpack.Decoder(
    Annotated[wire.NameRows, msgspec.Meta(max_length=wire.MAX_NAME_ROWS)]
)
_event_decoder = msgspec.msgpack.Decoder(wire.WireEvent)


_VERSIONS = {wire.MAGIC: wire.VERSION, wire.FORMER_MAGIC: wire.FORMER_VERSION}
_Hash: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=wire.HASH_BYTES)]


class _Version(msgspec.Struct):
    version: int


class _Sender(msgspec.Struct):
    node: wire.Name


class _SealedEnvelope(msgspec.Struct):
    """An envelope with fields that are not decoded yet."""

    node: wire.Name
    run: wire.Name
    boot_id: wire.Name
    shapes: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=wire.MAX_SCHEMAS)] = ()
    names: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=wire.MAX_SCHEMAS)] = ()
    schemas: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=wire.MAX_SCHEMAS)] = ()
    """Of version 1."""
    batches: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_BATCHES)] = ()
    agent_version: wire.Name = ""
    ended: wire.RunEnd | None = None


class _SealedBatch(msgspec.Struct):
    """A batch with events that are not decoded yet."""

    stream: wire.Name
    first_sequence: int
    wall_ns: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_FRAMES)]
    boot_ns: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_FRAMES)]
    base: bytes
    changed: bytes
    shape: _Hash = b""
    names: _Hash = b""
    schema: _Hash = b""
    """Of version 1."""
    steps: bytes = b""
    reasons: bytes = b""
    uncertainty_ns: int | None = None
    events: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_EVENTS)] = ()
    read_delays: bytes = b""


_version_decoder = msgspec.msgpack.Decoder(_Version)
_sender_decoder = msgspec.msgpack.Decoder(_Sender)
_envelope_decoder = msgspec.msgpack.Decoder(_SealedEnvelope)
_batch_decoder = msgspec.msgpack.Decoder(_SealedBatch)


def unpacked_bytes(body: bytes) -> int | None:
    """Return the decompressed size that a body declares; None if it declares none."""
    try:
        return zstd.get_frame_info(body[len(wire.MAGIC) :]).decompressed_size
    except zstd.ZstdError:
        return None


class OpenedBody(NamedTuple):
    """An envelope with events that are not decoded yet: each of their names is checked individually."""

    sealed: _SealedEnvelope
    batches: list[_SealedBatch]

    @property
    def former_schemas(self) -> list[bytes]:
        """Return the schemas of version 1, as they were encoded."""
        return [bytes(schema) for schema in self.sealed.schemas]

    @property
    def event_bytes(self) -> int:
        """Return the size of all encoded events."""
        return sum(memoryview(event).nbytes for batch in self.batches for event in batch.events)

    def decode_envelope(self) -> wire.Envelope:
        """Decode the envelope; shapes and names stay encoded. Raises WireError."""
        sealed = self.sealed
        with invalid("envelope"):
            batches = tuple(map(_open_batch, self.batches))
        origin = (sealed.node, sealed.run, sealed.boot_id)
        stated = (sealed.agent_version, sealed.ended)
        return wire.Envelope(wire.VERSION, *origin, sealed.shapes, sealed.names, batches, *stated)


def unpack(body: bytes, max_bytes: int) -> wire.Envelope:
    """Decode the envelope in a body.

    Raises WireVersionError for an envelope of another version, and WireError for every other invalid
    body: wrong magic, truncated, larger than `max_bytes` when decompressed, or beyond one of the bounds
    of an envelope. At most `max_bytes` are ever decompressed, and each field is checked before the next
    one is decoded.
    """
    envelope = open_body(body, max_bytes).decode_envelope()
    for content in envelope.shapes:
        decode_shape(content)
    for content in envelope.names:
        decode_names(content)
    return envelope


def open_body(body: bytes, max_bytes: int) -> OpenedBody:
    """Decode a body, except for its shapes, names and events. Raises the errors of `unpack`."""
    raw = _decompress(body, max_bytes)
    with invalid("envelope"):
        version = _version_decoder.decode(raw).version
        expected = _VERSIONS[body[: len(wire.MAGIC)]]
        # Before any other field: those of another version may have another form.
        if version != expected:
            message = f"unsupported envelope version: {version}: expected {expected}"
            raise wire.WireVersionError(message)
        sealed = _envelope_decoder.decode(raw)
        names = (sealed.node, sealed.run, sealed.boot_id, sealed.agent_version)
        check_texts("a name of an envelope", names, wire.MAX_NAME)
        parts = (*sealed.shapes, *sealed.names)
        former = [memoryview(schema).nbytes for schema in sealed.schemas]
        size = sum(map(len, parts)) + sum(former)
        check_size("the shapes and names of an envelope", size, MAX_PARTS_BYTES)
        check_size("a schema", max(former, default=0), MAX_SHAPE_BYTES)
        return OpenedBody(sealed, list(_sealed_batches(sealed.batches)))


def read_node(body: bytes, max_bytes: int) -> str:
    """Return the node of the envelope in a body, without decoding its frames. Raises WireError."""
    raw = _decompress(body, max_bytes)
    with invalid("envelope"):
        return _sender_decoder.decode(raw).node


def decode_shape(content: bytes) -> wire.Shape:
    """Decode a shape. Raises WireError if it is invalid or beyond a bound of an envelope."""
    with invalid("shape"):
        check_size("a shape", len(content), MAX_SHAPE_BYTES)
        shape = _shape_decoder.decode(content)
        columns = sum(len(group.entities) for group in shape.groups)
        check_size("a shape", columns, wire.MAX_COLUMNS, "columns")
        for group in shape.groups:
            check_texts("the metric of a shape", (group.metric, shape.stream), wire.MAX_NAME)
        check_entities([wire.WireEntity(slot.kind, slot.part) for slot in shape.slots])
        return shape


def decode_names(content: bytes) -> wire.NameRows:
    """Decode a list of names. Raises WireError if it is invalid or beyond a bound of an envelope."""
    with invalid("list of names"):
        check_size("a list of names", len(content), wire.MAX_NAMES_BYTES)
        rows = _names_decoder.decode(content)
        check_entities(rows)
        return rows


@contextmanager
def invalid(subject: str) -> Iterator[None]:
    """Raise WireError instead of an error of msgspec."""
    try:
        yield
    except untrusted_text.DECODING_ERRORS as error:
        message = f"invalid {subject}: {error}"
        raise wire.WireError(message) from error


def _decompress(body: bytes, max_bytes: int) -> bytes:
    if body[: len(wire.MAGIC)] not in _VERSIONS:
        message = f"invalid body: expected an envelope of frames, which starts with {wire.MAGIC!r}"
        raise wire.WireError(message)
    too_large = f"body too large: expected at most {max_bytes} bytes when decompressed"
    # The declared size, which costs nothing to read; the actual size may differ, and is checked below.
    if (unpacked_bytes(body) or 0) > max_bytes:
        raise wire.WireError(too_large)
    decompressor = zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
    )
    try:
        # One byte more than the bound, which shows that there is more.
        raw = decompressor.decompress(body[len(wire.MAGIC) :], max_bytes + 1)
    except zstd.ZstdError as error:
        message = f"cannot decompress the body: {error}"
        raise wire.WireError(message) from error
    if len(raw) > max_bytes:
        raise wire.WireError(too_large)
    # Bodies are stored as received: other data would be stored with them.
    if not decompressor.eof or decompressor.unused_data:
        message = "invalid body: truncated, or followed by other data: expected one zstd stream"
        raise wire.WireError(message)
    return raw


def check_entities(entities: Sequence[wire.WireEntity]) -> None:
    """Raise WireError for entities beyond a bound of an envelope."""
    # All at once; one by one only to name the invalid one.
    if not _are_valid(entities):
        for entity in entities:
            _check_entity(entity)


def _are_valid(entities: Sequence[wire.WireEntity]) -> bool:
    """True if all entities are within their bounds; checked at once, as a shape may have thousands."""
    keys = [entity.key for entity in entities]
    facts = [entity.facts for entity in entities if entity.facts]
    names = {entity.kind for entity in entities}.union(*facts)
    texts: set[str] = set().union(*keys, *map(dict.values, facts))  # most are repeated
    return (
        max(map(len, keys), default=0) <= MAX_KEYS
        and max(map(len, facts), default=0) <= MAX_FACTS
        and max(map(len, names), default=0) <= wire.MAX_NAME
        and max(map(len, texts), default=0) <= MAX_TEXT
        and "".join(chain(names, texts)).isprintable()
    )


def _sealed_batches(parts: Sequence[msgspec.Raw]) -> Iterator[_SealedBatch]:
    frames = events = 0
    for raw in parts:
        sealed = _batch_decoder.decode(raw)
        check_texts("the stream of a batch", (sealed.stream,), wire.MAX_NAME)
        frames += len(sealed.wall_ns)
        events += len(sealed.events)
        check_size("an envelope", frames, MAX_FRAMES, "frames")
        check_size("an envelope", events, MAX_EVENTS, "events")
        yield sealed


def _open_batch(sealed: _SealedBatch) -> wire.Batch:
    return wire.Batch(
        sealed.stream,
        sealed.shape or sealed.schema,
        sealed.names,
        sealed.first_sequence,
        sealed.wall_ns,
        sealed.boot_ns,
        sealed.base,
        sealed.changed,
        sealed.steps,
        sealed.reasons,
        sealed.uncertainty_ns,
        tuple(map(_event, sealed.events)) if sealed.events else (),
        sealed.read_delays,
    )


def _event(raw: msgspec.Raw) -> wire.WireEvent:
    check_size("an event", memoryview(raw).nbytes, MAX_EVENT_BYTES)
    event = _event_decoder.decode(raw)
    check_event(event)
    return event


def check_event(event: wire.WireEvent) -> None:
    """Raise WireError for an event beyond a bound of an envelope."""
    check_texts("the name of an event", (event.name,), wire.MAX_NAME)
    _check_entity(event.entity)
    _check_facts(event.facts)
    if _text_of(event) > MAX_EVENT_TEXT:
        message = f"event too large: expected at most {MAX_EVENT_TEXT} characters"
        raise wire.WireError(message)


def _check_entity(entity: wire.WireEntity) -> None:
    check_texts("the kind of an entity", (entity.kind,), wire.MAX_NAME)
    check_size("the key of an entity", len(entity.key), MAX_KEYS, "words")
    check_texts("the key of an entity", entity.key, MAX_TEXT)
    _check_facts(entity.facts)


def _check_facts(facts: Mapping[str, str]) -> None:
    if facts:
        check_size("the facts of an event or entity", len(facts), MAX_FACTS, "facts")
        check_texts("the name of a fact", facts, wire.MAX_NAME)
        check_texts("a fact", facts.values(), MAX_TEXT)


def check_texts(field: str, texts: Iterable[str], max_characters: int) -> None:
    """Raise WireError for texts that are too long or not printable."""
    for text in texts:
        if len(text) > max_characters:
            check_size(field, len(text), max_characters, "characters")
        if not text.isprintable():
            shown = untrusted_text.printable(text)[: wire.MAX_NAME]
            message = f"invalid text of {field}: {shown}: expected printable characters"
            raise wire.WireError(message)


def check_size(field: str, size: int, max_size: int, unit: str = "bytes") -> None:
    """Raise WireError for a size above its bound."""
    if size > max_size:
        message = f"invalid size of {field}: {size} {unit}: expected at most {max_size}"
        raise wire.WireError(message)


def _text_of(event: wire.WireEvent) -> int:
    """Return the characters of all texts of an event."""
    texts = chain(
        (event.name, event.entity.kind),
        event.entity.key,
        event.entity.facts,
        event.entity.facts.values(),
        event.facts,
        event.facts.values(),
    )
    return sum(map(len, texts))


def within_bounds(event: wire.WireEvent) -> wire.WireEvent:
    """Return an event that receivers accept: long facts are cut if it exceeds the limit on text."""
    too_long = any(len(text) > MAX_TEXT for text in event.facts.values())
    if not too_long and len(event.facts) <= MAX_FACTS and _text_of(event) <= MAX_EVENT_TEXT:
        return event
    facts = dict(islice(event.facts.items(), MAX_FACTS // 2))
    cut = {name[: wire.MAX_NAME]: text[:_CUT_TEXT] for name, text in facts.items()}
    return msgspec.structs.replace(event, facts=cut)
