"""Wire format: envelopes of column-major batches, as MessagePack under zstd.

  body      = MAGIC ‖ zstd(msgpack(Envelope))
  Envelope  = version, origin, shapes and names that the receiver may lack, batches
  Shape     = columns of a stream without the names of devices: equal for nodes of one build
  Names     = names and facts of the devices of a node, in the order of the name numbers of a shape
  Batch     = consecutive frames of one stream, the hashes of its shape and names: the complete first row, then, for
              the columns that changed at all, the steps from row to row, column after column

All integers are little-endian and 64 bits wide; a step is a difference modulo 2^64. zstd compresses the
mostly zero upper bytes to almost nothing (`bench/` measures it). Receivers ignore unknown fields, and
store the body as received.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from railscope import RailscopeError
from railscope.catalog import KINDS
from railscope.frame import Entity, FrameOrigin, NodeTimestamp
from railscope.reading import SIGNED_LIMIT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

VERSION = 2
MAGIC = b"RSF2"
FORMER_VERSION, FORMER_MAGIC = 1, b"RSF1"
"""Of agents up to 0.3.0, which collectors of this release accept: see `wire1`."""
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
"""Shapes or lists of names of one envelope, and streams of one run."""
MAX_COLUMNS = 20_000
"""Columns, groups or slots of one shape."""
MAX_NAME_ROWS, MAX_NAMES_BYTES = 4096, 256 << 10
"""Rows and encoded bytes of one list of names."""
BUILD = -1
"""Name number of a slot that has no name: a source, a mode of the processors."""
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
    """A run of columns of one metric, as positions of slots or entities; `scale` lets a receiver detect a different catalog."""

    metric: str
    scale: tuple[int, int]
    entities: tuple[int, ...]


class WireSchema(msgspec.Struct, frozen=True):
    """A schema with names: shape and names joined. A column without an entity is of a row that is not in use."""

    stream: Name
    groups: Annotated[tuple[WireGroup, ...], msgspec.Meta(max_length=MAX_COLUMNS)]
    entities: Annotated[tuple[WireEntity, ...], msgspec.Meta(max_length=MAX_COLUMNS)]

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(len(group.entities) for group in self.groups)


class Slot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entity without its name: the position of the name in the list, or BUILD, and the rest of the key."""

    kind: str
    name: int
    part: tuple[str, ...] = ()


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """A schema without names; `rails` has the rail of the device of each name, or NO_RAIL."""

    stream: Name
    groups: Annotated[tuple[WireGroup, ...], msgspec.Meta(max_length=MAX_COLUMNS)]
    slots: Annotated[tuple[Slot, ...], msgspec.Meta(max_length=MAX_COLUMNS)]
    rails: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_COLUMNS)]


NameRows: TypeAlias = tuple[WireEntity, ...]
"""Kind, key and facts by name number. A row with an empty key is reserved, and not in use."""


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
    """Consecutive frames of one stream. `shape` and `names` are hashes.

    `wall_ns`, `boot_ns`: one integer per row. `base`: row 0, one integer per column. `changed`: one bit
    per column, least significant first. `steps`: for each changed column, rows - 1 integers. `reasons`:
    empty, one byte per column (all rows equal), or one byte per row and column. `read_delays`: empty, or one unsigned
    integer of 32 bits per row and column: the microseconds from the row's time to the read of the column's device.
    """

    stream: str
    shape: bytes
    names: bytes
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

    @property
    def schema(self) -> bytes:
        """Identity of the schema: the hashes of its shape and its names."""
        return self.shape + self.names


_Sequence: TypeAlias = Annotated[int, msgspec.Meta(gt=0, lt=SIGNED_LIMIT - 1)]


class RunEnd(msgspec.Struct, frozen=True, array_like=True):
    """Last sequence number of each stream that an earlier run of the agent put into its spool.

    A run that is interrupted loses frames at its end, which no later frame of the same run can reveal.
    """

    run: Name
    streams: Annotated[dict[Name, _Sequence], msgspec.Meta(max_length=MAX_SCHEMAS)] = {}


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of one request; shapes and names are encoded."""

    version: int
    node: str
    run: str
    boot_id: str
    shapes: tuple[bytes, ...] = ()
    names: tuple[bytes, ...] = ()
    batches: tuple[Batch, ...] = ()
    agent_version: str = ""
    ended: RunEnd | None = None


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


def to_wire_entity(entity: Entity) -> WireEntity:
    """Convert an entity to its wire form."""
    return WireEntity(entity.kind.name, entity.key, dict(entity.facts))


def encode_part(part: Shape | NameRows) -> bytes:
    """Encode a shape or a list of names."""
    return _encoder.encode(part)


def content_hash(content: bytes) -> bytes:
    """Return the hash by which batches refer to an encoded shape or list of names."""
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


_OUTERMOST = {
    name: (kind.outermost.name, len(kind.outermost.labels)) for name, kind in KINDS.items()
}
"""Outermost device by kind of entity: kind and number of labels of the device that it is part of."""


def part_of_key(entity: WireEntity) -> tuple[str, ...]:
    """Return the part of the key that distinguishes an entity within its device: priority, clock."""
    outermost = _OUTERMOST.get(entity.kind)
    return entity.key[outermost[1] :] if outermost else ()


# Envelopes -------------------------------------------------------------------------------------


class SentParts(NamedTuple):
    """Encoded shapes and lists of names that the receiver may lack."""

    shapes: Sequence[bytes] = ()
    names: Sequence[bytes] = ()


def envelope(
    origin: FrameOrigin,
    batches: Sequence[Batch],
    parts: SentParts | None = None,
    *,
    agent_version: str,
    ended: RunEnd | None = None,
) -> Envelope:
    """Return an envelope of this program's version."""
    sent = parts or SentParts()
    return Envelope(
        VERSION,
        origin.node,
        origin.run,
        origin.boot_id,
        tuple(sent.shapes),
        tuple(sent.names),
        tuple(batches),
        agent_version,
        ended,
    )


def pack(sealed: Envelope) -> bytes:
    """Encode an envelope as the body of a request."""
    return MAGIC + zstd.compress(_encoder.encode(sealed), LEVEL)
