"""Records as one collector passes them on to another: a snapshot of its state, then each record as it was accepted.

A collector that shows the nodes of others reads their records and applies them to a state of its own, by the
function that live ingest and a restart use. The snapshot contains what older records stated and later ones do not
repeat: the nodes, the facts about each GPU's time, recent events, and the current readings with their rates.
Records that arrive while it is made follow it; applying them again changes nothing.

    part = length (4 bytes) ‖ MessagePack of one of the types in `FeedPart`

A collector that reads too slowly is disconnected, and begins again with a snapshot: nothing is left out unnoticed.
The sender is trusted with the names of its nodes and with nothing else: sizes and costs are checked as in ingest.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from collector import config, work_limits
from collector.access.credentials import MAX_AUTHORITY
from collector.evidence import claim_events
from collector.fleet import fleet, schema_templates, schemas, sheets
from collector.framelog.segment_files import FrameRecord
from collector.state import StateError, collector_state, state_checkpoint
from railscope import envelopes, service, timestamps, untrusted_text, wire

FORMAT = 1
MAX_PART_BYTES = 32 << 20
MAX_WAITING_BYTES = 1 << 30
"""Records that wait for one reader; above it, the reader is disconnected. A snapshot takes 5 ms a node to make and apply,
while 4 kB/s of each node wait: 250 MB of 3,500 nodes.
"""
HEARTBEAT_SECONDS = 2.0
CLOCK_TOLERANCE_NS = 2 * timestamps.SECOND_NS
"""Difference of two collectors' clocks up to which times are left as they are."""
_LENGTH = struct.Struct("<I")
_RECORD_BYTES = 512
_Values: TypeAlias = Annotated[
    bytes, msgspec.Meta(max_length=wire.MAX_COLUMNS * wire.BYTES_PER_VALUE)
]


class FeedError(StateError, ValueError):
    """Content of another collector that is invalid or beyond a bound; the message states the problem."""


class FeedHeader(msgspec.Struct, array_like=True, tag=True):
    """Begins the feed, with the time of the sender."""

    format: int
    wall_ns: int


class SchemasPart(msgspec.Struct, array_like=True, tag=True):
    """Schemas, as they were encoded, before the first part that refers to them."""

    node: wire.Name
    contents: Annotated[list[bytes], msgspec.Meta(max_length=wire.MAX_SCHEMAS)]


class ReadingsPart(msgspec.Struct, array_like=True, tag=True):
    """Current readings of one stream of a node, with the rates of its counters."""

    node: wire.Name
    run: wire.Name
    boot_id: wire.Name
    schema: bytes
    boot_ns: int
    timestamp_ns: int
    last_ns: int
    values: _Values
    reasons: _Values
    rates: _Values


class SnapshotEnd(msgspec.Struct, array_like=True, tag=True):
    """Ends the snapshot."""


class RecordPart(msgspec.Struct, array_like=True, tag=True):
    """One record."""

    record: FrameRecord


class SenderTime(msgspec.Struct, array_like=True, tag=True):
    """States the time of the sender, and that all records before it were sent."""

    wall_ns: int


FeedPart: TypeAlias = (
    FeedHeader
    | SchemasPart
    | state_checkpoint.NodePart
    | state_checkpoint.GpuPart
    | state_checkpoint.EventsPart
    | ReadingsPart
    | SnapshotEnd
    | RecordPart
    | SenderTime
)
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FeedPart] = msgspec.msgpack.Decoder(FeedPart)


def encode_part(part: FeedPart) -> bytes:
    """Encode a part with its length."""
    payload = _encoder.encode(part)
    return _LENGTH.pack(len(payload)) + payload


async def read_parts(read: Callable[[int], Awaitable[bytes]]) -> AsyncIterator[FeedPart]:
    """Yield the parts that `read` returns by their exact size. Raises FeedError, and as `read`."""
    while True:
        (length,) = _LENGTH.unpack(await read(_LENGTH.size))
        if length > MAX_PART_BYTES:
            message = f"part of {length} bytes: expected at most {MAX_PART_BYTES}"
            raise FeedError(message)
        payload = await read(length)
        try:
            part = _decoder.decode(payload)
        except untrusted_text.DECODING_ERRORS as error:
            message = f"invalid part: {error}"
            raise FeedError(message) from error
        if isinstance(part, FeedHeader) and part.format != FORMAT:
            message = f"records of format {part.format}: expected {FORMAT}"
            raise FeedError(message)
        yield part


# Sending -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class FeedReader:
    """Records that wait for one reader."""

    waiting: deque[tuple[FrameRecord, list[bytes]]] = field(default_factory=deque)
    size_bytes: int = 0
    is_overrun: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, record: FrameRecord, digests: list[bytes]) -> None:
        """Add a record with its schemas, unless the reader is too slow."""
        self.size_bytes += _RECORD_BYTES + len(record.body)
        self.is_overrun |= self.size_bytes > MAX_WAITING_BYTES
        if self.is_overrun:
            self.waiting.clear()
        else:
            self.waiting.append((record, digests))
        self.wake.set()

    def take(self) -> list[tuple[FrameRecord, list[bytes]]]:
        """Return all records that wait."""
        taken, self.waiting, self.size_bytes = list(self.waiting), deque(), 0
        self.wake.clear()
        return taken


@dataclass(slots=True)
class RecordFeed:
    """Passes the records of a state on to readers."""

    core: collector_state.CollectorState
    wall_ns: Callable[[], int]
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    readers: set[FeedReader] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Receive all envelopes that are applied to the state."""
        self.core.on_envelope.append(self._put)

    def _put(self, record: FrameRecord, envelope: wire.Envelope) -> None:
        if self.readers:
            digests = [batch.schema for batch in envelope.batches]
            for reader in self.readers:
                reader.put(record, digests)

    def close(self) -> None:
        """Disconnect all readers."""
        for reader in self.readers:
            reader.is_overrun = True
            reader.wake.set()

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the encoded parts for one reader; ends if it is too slow."""
        reader, sent = FeedReader(), set[bytes]()
        self.readers.add(reader)
        try:
            yield encode_part(FeedHeader(FORMAT, self.wall_ns()))
            async for part in self._snapshot(sent):
                yield part
            yield encode_part(SnapshotEnd())
            while not reader.is_overrun:
                for record, digests in reader.take():
                    async for part in self._new_schemas(record.node, digests, sent):
                        yield part
                    yield encode_part(RecordPart(record))
                yield encode_part(SenderTime(self.wall_ns()))
                try:
                    async with asyncio.timeout(self.heartbeat_seconds):
                        await reader.wake.wait()
                except TimeoutError:
                    continue
        finally:
            self.readers.discard(reader)

    async def _new_schemas(
        self, node: str, digests: list[bytes], sent: set[bytes]
    ) -> AsyncIterator[bytes]:
        new = [digest for digest in dict.fromkeys(digests) if digest not in sent]
        new = [digest for digest in new if self.core.schemas.get(digest)]
        if new:
            sent.update(new)
            contents = await service.run_in_thread(self.core.schemas.contents, new)
            yield encode_part(SchemasPart(node, contents))

    async def _snapshot(self, sent: set[bytes]) -> AsyncIterator[bytes]:
        core, slices = self.core, work_limits.TimeSlices()
        for part in state_checkpoint.make_parts(core, 0):
            match part:
                case state_checkpoint.NodePart():
                    # Sequences of frames are those of the records that follow.
                    yield encode_part(msgspec.structs.replace(part, runs={}))
                case state_checkpoint.GpuPart() | state_checkpoint.EventsPart():
                    yield encode_part(part)
            await slices.yield_if_due()
        for node in list(core.fleet.nodes.values()):
            rows = list(node.rows.values())
            async for encoded in self._new_schemas(node.name, [row.schema for row in rows], sent):
                yield encoded
            for row in rows:
                yield encode_part(_readings_of(node.name, row))
            await slices.yield_if_due()


def _readings_of(node: str, row: fleet.StreamRow) -> ReadingsPart:
    block, index = row.block, row.index
    reasons = block.reasons_of(index)
    return ReadingsPart(
        node,
        row.run,
        row.boot_id,
        row.schema,
        row.boot_ns,
        row.timestamp_ns,
        int(block.lasts_ns[index]),
        block.values_of(index).tobytes(),
        reasons.tobytes() if reasons.any() else b"",
        block.rates_of(index).tobytes(),
    )


# Receiving ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class FeedFollower:
    """Applies the parts of one feed to a state."""

    core: collector_state.CollectorState
    limits: config.IngestLimits
    shift_ns: int = 0
    """Lead of this collector's clock over the sender's, 0 if they agree."""
    rejected: int = 0
    """Records that were not applied."""
    problem: str = ""
    """Reason why the last of these was not applied."""
    nodes: set[str] = field(default_factory=set)
    is_complete: bool = False
    """True after the snapshot."""

    def set_clock(self, sender_ns: int, own_ns: int) -> None:
        """Compare the clocks of both; a step is followed, small variations of the delay are not."""
        lead_ns = own_ns - sender_ns
        if abs(lead_ns - self.shift_ns) > CLOCK_TOLERANCE_NS:
            self.shift_ns = lead_ns if abs(lead_ns) > CLOCK_TOLERANCE_NS else 0

    async def apply(self, part: FeedPart, slices: work_limits.TimeSlices) -> None:
        """Apply a part. Raises FeedError if the feed cannot be continued."""
        match part:
            case SchemasPart():
                await self._store_schemas(part)
            case state_checkpoint.NodePart():
                self.nodes.add(part.name)
                _merge_node(self.core, part, self.shift_ns)
            case state_checkpoint.GpuPart():
                _merge_gpu(self.core, part)
            case state_checkpoint.EventsPart():
                for node, boot_id, event in part.events:
                    self.core.add_event(fleet.SeenEvent(node, boot_id, event))
            case ReadingsPart():
                self._attempt(part.node, lambda: self._apply_readings(part))
            case RecordPart():
                record = part.record
                steps = self._attempt(record.node, lambda: self._steps(record)) or iter(())
                self.nodes.add(record.node)
                for _ in steps:
                    await slices.yield_if_due()
            case SnapshotEnd():
                self.is_complete = True
        await slices.yield_if_due()

    def _attempt(
        self, node: str, work: Callable[[], Iterator[None] | None]
    ) -> Iterator[None] | None:
        """Do a part; what is invalid is left out and counted, as the other nodes are not affected."""
        try:
            return work()
        except (ValueError, LookupError, ArithmeticError) as error:
            self.rejected += 1
            self.problem = f"{node}: {error}"
            return None

    async def _store_schemas(self, part: SchemasPart) -> None:
        try:
            await service.run_in_thread(self._put_schemas, part)
        except (ValueError, ArithmeticError, LookupError) as error:
            message = f"invalid schema of {part.node}: {error}"
            raise FeedError(message) from error

    def _put_schemas(self, part: SchemasPart) -> None:
        recognized: list[schema_templates.EncodedSchema] = []
        for content in part.contents:
            if len(content) > envelopes.MAX_SCHEMA_BYTES:
                message = f"{len(content)} bytes: expected at most {envelopes.MAX_SCHEMA_BYTES}"
                raise FeedError(message)
            schema = self.core.schemas.recognize(content)
            schema.check(self.limits.columns_per_schema)
            recognized.append(schema)
        self.core.schemas.put_all(recognized)

    def _schema(self, digest: bytes) -> schemas.KnownSchema:
        schema = self.core.schemas.get(digest)
        if schema is None:
            message = f"unknown schema {digest.hex()}"
            raise FeedError(message)
        return schema

    def _steps(self, record: FrameRecord) -> Iterator[None]:
        """Check a record, and return the steps that apply it. Raises ValueError."""
        opened = envelopes.open_body(record.body, self.limits.decompressed_bytes)
        envelope = opened.decode_envelope()
        if envelope.node != record.node:
            message = f"envelope of node {envelope.node!r}: expected that of its record"
            raise FeedError(message)
        used = [self._schema(batch.schema) for batch in envelope.batches]
        for batch, schema in zip(envelope.batches, used, strict=True):
            sheets.check_batch(batch, schema.layout.columns, self.limits.frames_per_batch)
            if batch.stream != schema.layout.stream:
                message = f"batch of {batch.stream!r}: invalid schema"
                raise FeedError(message)
        cost = collector_state.envelope_cost(envelope, used)
        problems = [
            *collector_state.find_exceeded_bounds(cost, self.limits),
            *self.core.find_sequence_problems(envelope, self.limits.gaps_per_stream),
        ]
        if problems:
            raise FeedError("; ".join(problems))
        shifted = msgspec.structs.replace(
            record,
            received_wall_ns=record.received_wall_ns + self.shift_ns,
            max_authority=min(record.max_authority, MAX_AUTHORITY),
        )
        return self.core.steps(shifted, envelope)

    def _apply_readings(self, part: ReadingsPart) -> None:
        """Set the current readings of a stream, unless newer ones are present."""
        schema = self._schema(part.schema)
        layout = schema.layout
        stamps = (max(part.timestamp_ns, 0),), (part.boot_ns,)
        unchanged = bytes((layout.columns + 7) // 8)
        batch = wire.Batch(
            layout.stream, part.schema, 1, *stamps, part.values, unchanged, b"", part.reasons
        )
        sheets.check_batch(batch, layout.columns, 1)
        rates = np.frombuffer(part.rates, "<f4")
        if len(rates) != len(layout.counters):
            message = f"{len(rates)} rates: expected {len(layout.counters)}"
            raise FeedError(message)
        sender = (part.node, part.run, part.boot_id)
        at_ns = part.timestamp_ns + self.shift_ns
        update = fleet.NodeUpdate(*sender, layout, batch, at_ns)
        if self.core.fleet.apply(update):
            row = self.core.fleet.nodes[part.node].rows[layout.stream]
            row.block.set_rates(row.index, rates, part.last_ns)
            if schema.gpus:
                self.core.gpus_by_node[part.node] = schema.gpus_by_rail
        self.core.schemas.record_uses(part.node, [part.schema])


def _merge_node(
    core: collector_state.CollectorState, part: state_checkpoint.NodePart, shift_ns: int
) -> None:
    """Add a node; of one that two collectors have, the newest report counts."""
    node, memory = core.fleet.get_or_add_node(part.name), part.memory
    if memory and memory.timestamp_ns + shift_ns >= node.timestamp_ns:
        node.agent_version, node.clock_offset_ns = memory.agent_version, memory.clock_offset_ns
        node.timestamp_ns = memory.timestamp_ns + shift_ns
        if memory.gpus:
            core.gpus_by_node[part.name] = memory.gpus
    for stream, timestamp_ns in (memory.stream_timestamps_ns if memory else {}).items():
        known_ns = node.stream_timestamps_ns.get(stream, 0)
        node.stream_timestamps_ns[stream] = max(known_ns, timestamp_ns + shift_ns)
    receipts = core.evidence.node(part.name)
    receipts.current_ns = max(receipts.current_ns, part.receipts.current_ns)
    receipts.record_reports(part.receipts.reports)
    core.evidence.merge_contacts({part.name: part.receipts.gpus})


def _merge_gpu(core: collector_state.CollectorState, part: state_checkpoint.GpuPart) -> None:
    """Add the facts about a GPU's time, within the bounds of each node."""
    book, uuid, memory = core.evidence, part.uuid, part.memory
    for presence in memory.presences.values():
        if presence.spans:
            contact = book.node(presence.node).gpus.get(uuid)
            book.record_presence(uuid, presence, contact.pci if contact else "")
    facts: list[claim_events.ClaimFact] = [*memory.claims, *memory.ended]
    if facts:
        book.gpu(uuid)
    book.add_claims(fact for fact in facts if not book.claims.limit_exceeded(fact))
    if uuid not in book.gpus:
        return
    for layout in memory.layouts:
        for span in layout.spans:
            book.record_layout(uuid, layout.parts, span)
    for node, spans in memory.valueless.items():
        if spans:
            book.list_valueless(node, uuid, spans)
