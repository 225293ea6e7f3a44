"""Records as one collector passes them on to another: a snapshot of its state, then each record as it was accepted.

A collector that shows the nodes of others reads their records and applies them to a state of its own, by the
function that live ingest and a restart use. The snapshot contains what older records stated and later ones do not
repeat: the nodes, the facts about each GPU's time, recent events, and the current readings with their rates.
Records that arrive while it is made follow it; applying them again changes nothing.

    part = length (4 bytes) ‖ MessagePack of one of the types in `FeedPart`

Live copies of nodes that have another collector are passed on as well. Their current readings are in the snapshot.

A collector that reads too slowly is disconnected, and begins again with a snapshot: nothing is left out unnoticed.
Facts about one GPU are divided into parts that are far below the limit of a part. Parts that are invalid or beyond a
bound cost their node only: `railscope_collector.state.feed_follower` checks each before it is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeAlias

import msgspec

from railscope import envelopes, service, untrusted_text, wire
from railscope_collector import work_limits
from railscope_collector.evidence import claim_events, evidence_memory, node_intervals
from railscope_collector.fleet import fleet
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.state import StateError, collector_state, state_checkpoint

FORMAT = 1
MAX_PART_BYTES = 32 << 20
MAX_WAITING_BYTES = 1 << 30
"""Records that wait for one reader; above it, the reader is disconnected. A snapshot takes 5 ms a node to make and apply,
while 2.2 kB/s of each node wait: 140 MB of 3,500 nodes.
"""
HEARTBEAT_SECONDS = 2.0
MAX_STREAMS = 4096
"""Streams of a node in its part: an agent has some dozens."""
MAX_PART_SPANS = 4096
_PART_CLAIMS = 200
"""Reports of claims in one part: 2.6 MB if every text has the maximum length."""
_MAX_UNREADABLE = 100
"""Parts of one connection that cannot be read, above which the sender is considered defective."""
# A part that is too large is read in pieces of this size and discarded, so it needs no memory of its own size.
_SKIPPED_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")
# Estimate of a record's objects in memory, in addition to its body.
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


class OmittedPart(msgspec.Struct, array_like=True, tag=True):
    """A part that was not sent or cannot be read, with the reason; the node is empty if it is unknown."""

    node: wire.Name
    problem: wire.Name


class SnapshotEnd(msgspec.Struct, array_like=True, tag=True):
    """Ends the snapshot."""


class RecordPart(msgspec.Struct, array_like=True, tag=True):
    """One record."""

    record: FrameRecord


class CopyPart(msgspec.Struct, array_like=True, tag=True):
    """One live copy: its node has another collector, whose records have the same frames."""

    record: FrameRecord


class SenderTime(msgspec.Struct, array_like=True, tag=True):
    """Time of the sender up to which all of its records were sent."""

    wall_ns: int


SnapshotPart: TypeAlias = (
    state_checkpoint.NodePart
    | state_checkpoint.GpuPart
    | state_checkpoint.EventsPart
    | ReadingsPart
    | SnapshotEnd
)
FeedPart: TypeAlias = (
    FeedHeader | SchemasPart | SnapshotPart | OmittedPart | RecordPart | CopyPart | SenderTime
)
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FeedPart] = msgspec.msgpack.Decoder(FeedPart)


def encode_part(part: FeedPart) -> bytes:
    """Encode a part with its length; one that is too large is stated as omitted."""
    payload = _encoder.encode(part)
    if len(payload) > MAX_PART_BYTES:
        subject = part.record if isinstance(part, RecordPart | CopyPart) else part
        node = getattr(subject, "node", getattr(subject, "name", ""))
        payload = _encoder.encode(OmittedPart(node, _too_large(len(payload))))
    return _LENGTH.pack(len(payload)) + payload


def _too_large(size: int) -> str:
    return f"part of {size} bytes: expected at most {MAX_PART_BYTES}"


async def read_parts(read: Callable[[int], Awaitable[bytes]]) -> AsyncIterator[FeedPart]:
    """Yield the parts that `read` returns by their exact size. Raises FeedError, and as `read`.

    One that cannot be read is yielded as omitted, as the others are not affected.
    """
    is_begun, unreadable = False, 0
    while True:
        (length,) = _LENGTH.unpack(await read(_LENGTH.size))
        part: FeedPart = OmittedPart("", _too_large(length))
        if length <= MAX_PART_BYTES:
            part = _decode_part(await read(length))
        elif is_begun:
            for start in range(0, length, _SKIPPED_BYTES):
                await read(min(_SKIPPED_BYTES, length - start))
        if isinstance(part, FeedHeader) and part.format != FORMAT:
            message = f"records of format {part.format}: expected {FORMAT}"
            raise FeedError(message)
        # A part that its sender omitted names its node, and is no sign of a defect.
        unreadable += isinstance(part, OmittedPart) and not part.node
        # Another service, or another version, may answer at this address: its bytes are not to be skipped as parts.
        if not is_begun and not isinstance(part, FeedHeader):
            message = f"invalid records: expected a header: {getattr(part, 'problem', '')}"
            raise FeedError(message)
        if unreadable > _MAX_UNREADABLE:
            message = f"more than {_MAX_UNREADABLE} parts that cannot be read: {getattr(part, 'problem', '')}"
            raise FeedError(message)
        is_begun = True
        yield part


def _decode_part(payload: bytes) -> FeedPart:
    try:
        return _decoder.decode(payload)
    except untrusted_text.DECODING_ERRORS as error:
        return OmittedPart("", f"invalid part: {error}"[: wire.MAX_NAME])


def group_claims(memory: evidence_memory.GpuMemory) -> Iterator[list[claim_events.ClaimFact]]:
    """Yield the facts of each claim of a GPU, starts first."""
    facts_by_claim: dict[tuple[str, str], list[claim_events.ClaimFact]] = {}
    facts: list[claim_events.ClaimFact] = [*memory.claims, *memory.ended]
    for fact in facts:
        facts_by_claim.setdefault((fact.node, fact.id), []).append(fact)
    yield from facts_by_claim.values()


def divide_gpu(part: state_checkpoint.GpuPart) -> list[state_checkpoint.GpuPart]:
    """Return the facts about a GPU in parts of bounded sizes; those of one claim are in one part."""
    memory = part.memory
    claims = len(memory.claims) + len(memory.ended)
    spans = [presence.spans for presence in memory.presences.values()]
    spans += [layout.spans for layout in memory.layouts]
    spans += memory.valueless.values()
    if claims + len(spans) <= _PART_CLAIMS and sum(map(len, spans)) <= MAX_PART_SPANS:
        return [part]
    pieces = [
        evidence_memory.GpuMemory(presences={key: presence})
        for key, presence in memory.presences.items()
    ]
    piece = evidence_memory.GpuMemory()
    for facts in group_claims(memory):
        for fact in facts:
            if isinstance(fact, claim_events.ReportedClaim):
                piece.claims.append(fact)
            else:
                piece.ended.append(fact)
        if len(piece.claims) + len(piece.ended) >= _PART_CLAIMS:
            pieces.append(piece)
            piece = evidence_memory.GpuMemory()
    pieces.append(piece)
    for layout in memory.layouts:
        for start in range(0, len(layout.spans), MAX_PART_SPANS):
            chosen = layout.spans[start : start + MAX_PART_SPANS]
            divided = node_intervals.LayoutSpans(layout.parts, chosen)
            pieces.append(evidence_memory.GpuMemory(layouts=[divided]))
    pieces += [
        evidence_memory.GpuMemory(valueless={node: found})
        for node, found in memory.valueless.items()
    ]
    return [state_checkpoint.GpuPart(part.uuid, each) for each in pieces]


def divide_schemas(node: str, contents: Sequence[bytes]) -> Iterator[SchemasPart]:
    """Yield schemas in parts that are within the bounds of an envelope."""
    chosen: list[bytes] = []
    for content in contents:
        size = sum(map(len, chosen)) + len(content)
        if chosen and (len(chosen) == wire.MAX_SCHEMAS or size > envelopes.MAX_SCHEMAS_BYTES):
            yield SchemasPart(node, chosen)
            chosen = []
        chosen.append(content)
    if chosen:
        yield SchemasPart(node, chosen)


# Sending -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class FeedReader:
    """Records that wait for one reader."""

    waiting: deque[tuple[RecordPart | CopyPart, list[bytes]]] = field(default_factory=deque)
    size_bytes: int = 0
    is_overrun: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, part: RecordPart | CopyPart, digests: list[bytes]) -> None:
        """Add a record with its schemas, unless the reader is too slow."""
        self.size_bytes += _RECORD_BYTES + len(part.record.body)
        self.is_overrun |= self.size_bytes > MAX_WAITING_BYTES
        if self.is_overrun:
            # The reader is disconnected and will get a snapshot: these records would only use memory.
            self.waiting.clear()
        else:
            self.waiting.append((part, digests))
        self.wake.set()

    def take(self) -> tuple[RecordPart | CopyPart, list[bytes]]:
        """Return the record that has waited longest."""
        part, digests = self.waiting.popleft()
        self.size_bytes -= _RECORD_BYTES + len(part.record.body)
        return part, digests


@dataclass(slots=True)
class RecordFeed:
    """Passes the records of a state on to readers."""

    core: collector_state.CollectorState
    wall_ns: Callable[[], int]
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    readers: set[FeedReader] = field(default_factory=set)
    is_closed: bool = False

    def __post_init__(self) -> None:
        """Receive all envelopes that are applied to the state."""
        self.core.on_envelope.append(partial(self._put, RecordPart))
        self.core.on_copy.append(partial(self._put, CopyPart))

    def _put(
        self, kind: type[RecordPart | CopyPart], record: FrameRecord, envelope: wire.Envelope
    ) -> None:
        if self.readers:
            part, digests = kind(record), [batch.schema for batch in envelope.batches]
            for reader in self.readers:
                reader.put(part, digests)

    def close(self) -> None:
        """Disconnect all readers."""
        self.is_closed = True
        for reader in self.readers:
            reader.wake.set()

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the encoded parts for one reader; ends if it is too slow."""
        reader = FeedReader()
        # Before the snapshot is made: a record that arrives meanwhile is in the snapshot, in the queue, or in both.
        self.readers.add(reader)
        try:
            async for part in self._all_parts(reader):
                yield part
                if reader.is_overrun or self.is_closed:
                    break
        finally:
            self.readers.discard(reader)

    async def _all_parts(self, reader: FeedReader) -> AsyncIterator[bytes]:
        sent = set[bytes]()
        yield encode_part(FeedHeader(FORMAT, self.wall_ns()))
        async for part in self._snapshot(sent):
            yield part
        yield encode_part(SnapshotEnd())
        while True:
            reader.wake.clear()
            wall_ns = self.wall_ns()  # records that arrive while the others are sent follow it
            for _ in range(len(reader.waiting)):
                waiting, digests = reader.take()
                async for part in self._new_schemas(waiting.record.node, digests, sent):
                    yield part
                yield encode_part(waiting)
            yield encode_part(SenderTime(wall_ns))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.heartbeat_seconds):
                    await reader.wake.wait()

    async def _new_schemas(
        self, node: str, digests: list[bytes], sent: set[bytes]
    ) -> AsyncIterator[bytes]:
        new = [digest for digest in dict.fromkeys(digests) if digest not in sent]
        # A schema may be lost or deleted since; the reader then rejects the batch and counts it.
        new = [digest for digest in new if self.core.schemas.get(digest)]
        if new:
            sent.update(new)
            contents = await service.run_in_thread(self.core.schemas.contents, new)
            for part in divide_schemas(node, contents):
                yield encode_part(part)

    async def _snapshot(self, sent: set[bytes]) -> AsyncIterator[bytes]:
        core, slices = self.core, work_limits.TimeSlices()
        for part in state_checkpoint.make_parts(core, 0):
            match part:
                case state_checkpoint.NodePart():
                    yield encode_part(_without_frames(part))
                case state_checkpoint.GpuPart():
                    for piece in divide_gpu(part):
                        yield encode_part(piece)
                case state_checkpoint.EventsPart():
                    yield encode_part(part)
            await slices.yield_if_due()
        fleet_ = core.fleet
        for node in [*fleet_.nodes.values(), *fleet_.switches.values(), *fleet_.standby.values()]:
            rows = list(node.rows.values())
            async for encoded in self._new_schemas(node.name, [row.schema for row in rows], sent):
                yield encoded
            for row in rows:
                yield encode_part(_readings_of(node.name, row))
            await slices.yield_if_due()


def _without_frames(part: state_checkpoint.NodePart) -> state_checkpoint.NodePart:
    """Return a node without its sequences of frames, which are those of the records that follow."""
    memory = part.memory
    if memory and len(memory.stream_timestamps_ns) > MAX_STREAMS:
        newest = sorted(memory.stream_timestamps_ns.items(), key=lambda item: -item[1])
        streams = dict(newest[:MAX_STREAMS])
        memory = msgspec.structs.replace(memory, stream_timestamps_ns=streams)
    return msgspec.structs.replace(part, runs={}, memory=memory)


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
