"""Version 1 of the wire format: schemas with names, of agents up to 0.3.0 and of envelopes that they spooled.

Collectors of this release accept it, those of 0.5.0 do not: then this module is deleted. A batch of version 1 refers to
a schema by the hash of its encoding. The collector divides each schema into shape and names when it receives it, and
records to which of them the hash refers.
"""

from __future__ import annotations

import sys

import msgspec

from railscope import envelopes
from railscope.catalog import KINDS
from railscope.frame import FrameOrigin
from railscope.shapes import split
from railscope.wire import (
    FORMER_MAGIC,
    FORMER_VERSION,
    LEVEL,
    MAX_COLUMNS,
    MAX_NAME,
    WireError,
    WireSchema,
    encode_part,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_decoder = msgspec.msgpack.Decoder(WireSchema)


def split_schema(content: bytes) -> tuple[bytes, bytes]:
    """Return the encoded shape and names of an encoded schema. Raises WireError if it is invalid."""
    with envelopes.invalid("schema"):
        schema = _decoder.decode(content)
        envelopes.check_size("a schema", schema.width, MAX_COLUMNS, "columns")
        for group in schema.groups:
            envelopes.check_texts("the metric of a schema", (group.metric, schema.stream), MAX_NAME)
            members = group.entities
            if members and not 0 <= min(members) <= max(members) < len(schema.entities):
                message = f"schema of stream {schema.stream!r}: column without an entity"
                raise WireError(message)
        envelopes.check_entities(schema.entities)
        for name, length in {(entity.kind, len(entity.key)) for entity in schema.entities}:
            kind = KINDS.get(name)
            if kind and length != len(kind.labels):
                labels = f"{length} labels: expected {', '.join(kind.labels)}"
                message = f"schema of stream {schema.stream!r}: entity {name} with {labels}"
                raise WireError(message)
        shape, names, _ = split(schema, reserve=False)
        return encode_part(shape), encode_part(names)


class _SchemaEnvelope(msgspec.Struct):
    version: int
    node: str
    run: str
    boot_id: str
    agent_version: str
    schemas: list[msgspec.Raw]


def pack_schemas(origin: FrameOrigin, contents: list[bytes], agent_version: str) -> bytes:
    """Return the body of an envelope of version 1 with encoded schemas, for batches that an earlier agent spooled."""
    schemas = list(map(msgspec.Raw, contents))
    sender = (origin.node, origin.run, origin.boot_id)
    encoded = msgspec.msgpack.encode(
        _SchemaEnvelope(FORMER_VERSION, *sender, agent_version, schemas)
    )
    return FORMER_MAGIC + zstd.compress(encoded, LEVEL)
