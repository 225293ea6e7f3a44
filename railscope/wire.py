"""Wire format: envelopes of column-major batches, as MessagePack under zstd.

  body      = MAGIC ‖ zstd(msgpack(Envelope))
  Envelope  = version, origin, schemas that the receiver may lack, batches
  Batch     = consecutive frames of one stream: the complete first row, then, for the columns that
              changed at all, the steps from row to row, column after column

All integers are little-endian and 64 bits wide; a step is a difference modulo 2^64. zstd compresses the
mostly zero upper bytes to almost nothing (`bench/` measures it). Receivers ignore unknown fields, and
store the body as received.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec

from railscope import RailscopeError
from railscope.catalog import KINDS
from railscope.frame import NO_RAIL, Entity, FrameOrigin, NodeTimestamp, Schema
from railscope.reading import SIGNED_LIMIT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

VERSION = 1
MAGIC = b"RSF1"
CONTENT_TYPE = "application/vnd.railscope.frames"
SENT_HEADER = "Railscope-Sent"
RECEIPT_HEADER, MAX_RECEIPT_CHARACTERS = "Railscope-Receipt", 512
"""Header with the receipt of an envelope that is sent again to another collector, as the first one issued it."""
_SENT = re.compile(r"([0-9]{1,19}) ([0-9]{1,19})(?: ([!-~]{0,64}))?")
HASH_BYTES = 16
RAIL_DIGITS = 3
"""A rail above 999 is invalid: views allocate an entry for every rail up to the highest."""
BYTES_PER_VALUE = 8
BYTES_PER_DELAY = 4
MAX_DELAY_US = (1 << 32) - 1
MAX_EVENT_NUMBER = 1 << 53
"""Bound of an audited event's number: records count from 0, in integers that JSON represents exactly."""
LEVEL = 3
MAX_SCHEMAS = 256
"""Schemas of one envelope, and streams of one run."""
MAX_COLUMNS = 20_000
"""Columns, groups or entities of one schema."""
MAX_NAME = 255
"""Characters of a name: node, run, boot, stream, kind, metric."""
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class WireError(RailscopeError, ValueError):
    """A body that is not an envelope, or one that violates the format or its bounds."""


class WireVersionError(WireError):
    """An envelope of a version that this program does not support."""


class WireEntity(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Wire form of an entity: kind, key, facts."""

    kind: str
    key: tuple[str, ...]
    facts: dict[str, str] = {}


class WireGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of columns of one metric; `scale` lets a receiver detect a different catalog."""

    metric: str
    scale: tuple[int, int]
    entities: tuple[int, ...]


class WireSchema(msgspec.Struct, frozen=True):
    """Wire form of a schema."""

    stream: Name
    groups: Annotated[tuple[WireGroup, ...], msgspec.Meta(max_length=MAX_COLUMNS)]
    entities: Annotated[tuple[WireEntity, ...], msgspec.Meta(max_length=MAX_COLUMNS)]


class WireEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Wire form of an event; `row` is the frame of the batch that carries it.

    `number` is the consecutive number of the audited event in its run; 0 for others.
    """

    name: str
    row: int
    entity: WireEntity
    wall_ns: int
    boot_ns: int
    facts: dict[str, str] = {}
    number: int = 0


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Consecutive frames of one stream.

    `wall_ns`, `boot_ns`: one integer per row. `base`: row 0, one integer per column. `changed`: one bit
    per column, least significant first. `steps`: for each changed column, rows - 1 integers. `reasons`:
    empty, one byte per column (all rows equal), or one byte per row and column. `read_delays`: empty, or one unsigned
    integer of 32 bits per row and column: the microseconds from the row's time to the read of the column's device.
    """

    stream: str
    schema: bytes
    first_sequence: int
    wall_ns: tuple[int, ...]
    boot_ns: tuple[int, ...]
    base: bytes
    changed: bytes
    steps: bytes = b""
    reasons: bytes = b""
    uncertainty_ns: int | None = None
    events: tuple[WireEvent, ...] = ()
    read_delays: bytes = b""

    @property
    def rows(self) -> int:
        """Number of frames in the batch."""
        return len(self.wall_ns)


_Sequence: TypeAlias = Annotated[int, msgspec.Meta(gt=0, lt=SIGNED_LIMIT - 1)]


class RunEnd(msgspec.Struct, frozen=True, array_like=True):
    """Last sequence number of each stream that an earlier run of the agent put into its spool.

    A run that is interrupted loses frames at its end, which no later frame of the same run can reveal.
    """

    run: Name
    streams: Annotated[dict[Name, _Sequence], msgspec.Meta(max_length=MAX_SCHEMAS)] = {}


MAX_DELIVERED_RANGES = 64
"""Ranges of one stream that an envelope may state as delivered."""


class DeliveredRun(msgspec.Struct, frozen=True, array_like=True):
    """Sequences of a run that other collectors received, and that are not sent again: first and last of each range.

    `decided` is stated while several collectors behind one URL receive the run: the last sequence of each stream up to
    which the agent sends no frame again. What is missing after it may be stored by another collector later.
    """

    run: Name
    streams: Annotated[
        dict[
            Name,
            Annotated[
                tuple[tuple[_Sequence, _Sequence], ...],
                msgspec.Meta(max_length=MAX_DELIVERED_RANGES),
            ],
        ],
        msgspec.Meta(max_length=MAX_SCHEMAS),
    ]
    decided: Annotated[dict[Name, _Sequence], msgspec.Meta(max_length=MAX_SCHEMAS)] | None = None


DeliveredRuns: TypeAlias = Annotated[tuple[DeliveredRun, ...], msgspec.Meta(max_length=2)]
"""The run of the agent, and the previous one."""


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of one request."""

    version: int
    node: str
    run: str
    boot_id: str
    schemas: tuple[WireSchema, ...] = ()
    batches: tuple[Batch, ...] = ()
    agent_version: str = ""
    ended: RunEnd | None = None
    delivered: DeliveredRuns = ()


class SentAt(msgspec.Struct, frozen=True, array_like=True):
    """The node's clocks when a request was sent, which may be long after it was packed.

    The receiver computes from them the age of frames by the node's own clock, independent of that clock's
    error; the boot clock, if the frames are of the same boot, is unaffected by steps of the wall clock.
    """

    wall_ns: int
    boot_ns: int
    boot_id: str

    @classmethod
    def from_timestamp(cls, timestamp: NodeTimestamp, boot_id: str) -> SentAt:
        """Return the clocks at a timestamp."""
        return cls(timestamp.wall_ns, timestamp.boot_ns, boot_id)

    def to_headers(self) -> dict[str, str]:
        """Encode as a request header; without the boot id if the node does not provide one."""
        return {SENT_HEADER: f"{self.wall_ns} {self.boot_ns} {self.boot_id}".rstrip()}

    @classmethod
    def from_header(cls, text: str) -> SentAt:
        """Decode a request header. Raises WireError."""
        match = _SENT.fullmatch(text)
        if not match or max(int(match[1]), int(match[2])) >= SIGNED_LIMIT:
            message = f"invalid header {SENT_HEADER}: expected wall clock, boot clock and boot ID"
            raise WireError(message)
        return cls(int(match[1]), int(match[2]), match[3] or "")

    def age_ns(self, boot_id: str, wall_ns: int, boot_ns: int) -> int:
        """Return the age of a frame at the time of sending; never negative."""
        same_boot = boot_id == self.boot_id != ""
        return max(0, self.boot_ns - boot_ns if same_boot else self.wall_ns - wall_ns)


_encoder = msgspec.msgpack.Encoder()


# Schemas ---------------------------------------------------------------------------------------


def to_wire_schema(schema: Schema) -> WireSchema:
    """Convert a schema to its wire form."""
    return WireSchema(
        schema.stream,
        tuple(
            WireGroup(metric.name, metric.scale.as_integer_ratio(), members)
            for metric, members in schema.groups
        ),
        tuple(to_wire_entity(entity) for entity in schema.entities),
    )


def to_wire_entity(entity: Entity) -> WireEntity:
    """Convert an entity to its wire form."""
    return WireEntity(entity.kind.name, entity.key, dict(entity.facts))


def schema_identity(schema: Schema) -> bytes:
    """Return the hash of a schema's wire form."""
    # Stored as a cached property is: in a dictionary, a schema would be compared with those of all other nodes.
    cache: dict[str, bytes] = vars(schema)
    if _IDENTITY not in cache:
        cache[_IDENTITY] = schema_hash(to_wire_schema(schema))
    return cache[_IDENTITY]


_IDENTITY = "wire identity"


def schema_hash(wire: WireSchema) -> bytes:
    """Return the hash by which batches refer to a schema."""
    return hashlib.blake2b(_encoder.encode(wire), digest_size=HASH_BYTES).digest()


_OUTERMOST = {
    name: (kind.outermost.name, len(kind.outermost.labels)) for name, kind in KINDS.items()
}
"""Outermost device by kind of entity: kind and number of labels of the device that it is part of."""
_NO_KIND = ("", 0)


def rails_of_entities(wire: WireSchema) -> tuple[int, ...]:
    """Return, for each entity, the rail of the device that it is part of, or NO_RAIL."""
    index: dict[str, dict[tuple[str, ...], int]] = {}
    for entity in wire.entities:
        if entity.facts:  # most entities have none
            rail = entity.facts.get("rail", "")
            if rail.isdecimal() and len(rail) <= RAIL_DIGITS:
                index.setdefault(entity.kind, {})[entity.key] = int(rail)
    if not index:
        return (NO_RAIL,) * len(wire.entities)
    devices = {kind: _OUTERMOST.get(kind, _NO_KIND) for kind in {e.kind for e in wire.entities}}
    rails = {k: (index.get(whole, {}) if whole else {}, n) for k, (whole, n) in devices.items()}
    found = [(rails[entity.kind], entity.key) for entity in wire.entities]
    return tuple([rails.get(key[:labels], NO_RAIL) for (rails, labels), key in found])


def part_of_key(entity: WireEntity) -> tuple[str, ...]:
    """Return the part of the key that distinguishes an entity within its device: priority, clock."""
    outermost = _OUTERMOST.get(entity.kind)
    return entity.key[outermost[1] :] if outermost else ()


def layout_hash(wire: WireSchema, rails: Sequence[int]) -> bytes:
    """Return the hash of a schema's layout: equal for nodes of one build with different serial numbers.

    `rails` are those of its entities.
    """
    device_labels = dict.fromkeys({entity.kind for entity in wire.entities}, MAX_COLUMNS)
    device_labels |= {k: _OUTERMOST[k][1] for k in device_labels.keys() & _OUTERMOST.keys()}
    parts = [(entity.kind, entity.key[device_labels[entity.kind] :]) for entity in wire.entities]
    shape = (wire.stream, wire.groups, parts, rails)
    return hashlib.blake2b(_encoder.encode(shape), digest_size=HASH_BYTES).digest()


# Envelopes -------------------------------------------------------------------------------------


def envelope(
    origin: FrameOrigin,
    batches: Sequence[Batch],
    schemas: Sequence[WireSchema],
    *,
    agent_version: str,
    ended: RunEnd | None = None,
) -> Envelope:
    """Return an envelope of this program's version."""
    return Envelope(
        VERSION,
        origin.node,
        origin.run,
        origin.boot_id,
        tuple(schemas),
        tuple(batches),
        agent_version,
        ended,
    )


def pack(sealed: Envelope) -> bytes:
    """Encode an envelope as the body of a request."""
    return MAGIC + zstd.compress(_encoder.encode(sealed), LEVEL)
