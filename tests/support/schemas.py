"""Shapes and names of frames and of schemas, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from railscope.frame import Frame, Schema
from railscope.shapes import schema_parts, split
from railscope.wire import (
    FORMER_MAGIC,
    FORMER_VERSION,
    MAX_COLUMNS,
    Envelope,
    SentParts,
    WireSchema,
    content_hash,
    encode_part,
    zstd,
)
from railscope_collector.fleet.names import KnownSchema, NodeNames, decode_rows
from railscope_collector.fleet.schemas import ReceivedParts, StoredSchemas
from railscope_collector.fleet.shapes import KnownShape
from railscope_collector.state_store import StateStore


def parts_of(frames: Iterable[Frame]) -> SentParts:
    """Return the shapes and names of frames, each once."""
    parts = [schema_parts(schema) for schema in dict.fromkeys(frame.schema for frame in frames)]
    shapes = dict.fromkeys(each.shape for each in parts)
    return SentParts(list(shapes), list(dict.fromkeys(each.names for each in parts)))


def parts_of_wire(*schemas: WireSchema) -> SentParts:
    """Return the shapes and names of schemas as they are, also of invalid ones."""
    found = [split(schema, reserve=False) for schema in schemas]
    return SentParts(
        [encode_part(shape) for shape, _, _ in found], [encode_part(names) for _, names, _ in found]
    )


def identity_of(schema: WireSchema) -> bytes:
    """Return the identity of a schema, as batches state it."""
    parts = parts_of_wire(schema)
    return content_hash(parts.shapes[0]) + content_hash(parts.names[0])


def known_schema(schema: Schema) -> KnownSchema:
    """Return a schema as the collector knows it."""
    parts = schema_parts(schema)
    shape = KnownShape.from_content(parts.shape, MAX_COLUMNS)
    return NodeNames.from_rows(decode_rows(parts.names), parts.names, parts.names_hash).with_shape(
        shape
    )


def wire_schema(schema: Schema) -> WireSchema:
    """Return a schema with its entities, as the collector reads it."""
    return known_schema(schema).join()


def schemas_in(directory: Path) -> StoredSchemas:
    """Return the stored schemas of a state directory."""
    directory.mkdir(parents=True, exist_ok=True)
    store = StateStore(directory)
    store.open()
    schemas = StoredSchemas(store)
    schemas.open()
    return schemas


def store_parts(schemas: StoredSchemas, envelope: Envelope) -> None:
    """Store the shapes and names of an envelope, as ingest does."""
    received = ReceivedParts(envelope.shapes, envelope.names)
    if any(received):
        schemas.store(envelope.node, schemas.check(received, MAX_COLUMNS))


def former_body(envelope: Envelope, frames: Iterable[Frame], *, schemas: bool = True) -> bytes:
    """Return an envelope as an agent up to 0.3.0 sent it, with version 1 of the wire format."""
    by_stream = {}
    for schema in dict.fromkeys(frame.schema for frame in frames):
        by_stream[schema.stream] = msgspec.msgpack.encode(wire_schema(schema))
    content = msgspec.to_builtins(envelope, builtin_types=(bytes,))
    for batch in content["batches"]:
        del batch["shape"], batch["names"]
        batch["schema"] = content_hash(by_stream[batch["stream"]])
    content.pop("shapes", None)
    content.pop("names", None)
    sent = list(map(msgspec.Raw, by_stream.values())) if schemas else []
    content |= {"version": FORMER_VERSION, "schemas": sent}
    return FORMER_MAGIC + zstd.compress(msgspec.msgpack.encode(content))
