"""Parts of a snapshot of the state: content of older records of the frame log that later ones do not contain.

A snapshot is made part by part while frames are received, and each part is as of a different time. Records that are
applied meanwhile are after its position too, and applying them again changes nothing. The current readings of nodes are not
included: after a restart they are those of the later records, and for each other stream those of its next frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from railscope import wire
from railscope_collector.evidence import claim_events, evidence_memory, node_intervals
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.framelog.received_frames import ReceivedRun
from railscope_collector.state.collector_state import CollectorState

_PART_ITEMS = 200
"""Number of small items in one part."""


class NodeMemory(msgspec.Struct, array_like=True):
    """Permanent facts about a node that may never report again: that it existed, and its GPUs."""

    agent_version: str
    clock_offset_ns: int
    timestamp_ns: int
    gpus: dict[int, str]
    stream_timestamps_ns: dict[str, int] = {}


class NodePart(msgspec.Struct, array_like=True, tag=True):
    """A node: its received sequences, and its permanent facts."""

    name: str
    runs: dict[str, ReceivedRun]
    memory: NodeMemory | None
    receipts: node_intervals.NodeReceipts = msgspec.field(
        default_factory=node_intervals.NodeReceipts
    )


class GpuPart(msgspec.Struct, array_like=True, tag=True):
    """Facts about a GPU's time."""

    uuid: str
    memory: evidence_memory.GpuMemory


class IntervalPart(msgspec.Struct, array_like=True, tag="ChunkPart"):
    """Metering facts from a node's frames of some time."""

    interval: evidence_memory.IntervalInMemory = msgspec.field(name="kept")


class FactsPart(msgspec.Struct, array_like=True, tag=True):
    """Claims and their ends that are still to be written to the database."""

    claims: list[claim_events.ReportedClaim]
    ends: list[claim_events.ReportedEnd]


class EventsPart(msgspec.Struct, array_like=True, tag=True):
    """Recent events: node, boot and event."""

    events: list[tuple[str, str, wire.WireEvent]]


SnapshotPart: TypeAlias = NodePart | GpuPart | IntervalPart | FactsPart | EventsPart
T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[SnapshotPart] = msgspec.msgpack.Decoder(SnapshotPart)


def encode_part(part: SnapshotPart) -> bytes:
    """Encode a part."""
    return _encoder.encode(part)


def decode_part(content: bytes) -> SnapshotPart:
    """Decode a part. Raises an error of `untrusted_text.DECODING_ERRORS`."""
    return _decoder.decode(content)


def make_parts(core: CollectorState) -> Iterator[SnapshotPart]:
    """Yield the parts of a core that may change between two of them."""
    book = core.evidence
    # Copies of the keys, here and below: frames that are applied between two parts change the dictionaries.
    for name in dict.fromkeys([*core.received.nodes, *core.fleet.nodes, *core.fleet.switches]):
        runs = core.received.nodes.get(name, {})
        yield NodePart(name, runs, _memory_of(core, name), book.node(name))
    for uuid in list(book.gpus):
        yield GpuPart(uuid, book.gpu(uuid))
    for key in list(book.intervals.by_key):
        # It may have been written to the database since the keys were copied.
        if interval := book.intervals.by_key.get(key):
            yield IntervalPart(interval)
    # After the GPUs: a stored claim that is not among these is in the database.
    for facts in _groups(list(book.unwritten)):
        yield FactsPart(
            [fact for fact in facts if isinstance(fact, claim_events.ReportedClaim)],
            [fact for fact in facts if isinstance(fact, claim_events.ReportedEnd)],
        )
    for events in _groups(list(core.events)):
        yield EventsPart(
            [(seen_event.node, seen_event.boot_id, seen_event.event) for seen_event in events]
        )


def _groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _PART_ITEMS):
        yield items[start : start + _PART_ITEMS]


def _memory_of(core: CollectorState, name: str) -> NodeMemory | None:
    node = core.fleet.find(name)
    if node is None:
        return None
    return NodeMemory(
        node.agent_version,
        node.clock_offset_ns,
        node.timestamp_ns,
        dict(core.gpus_by_rail(name)),
        dict(node.stream_timestamps_ns),
    )


def restore_state(core: CollectorState, parts: Iterable[SnapshotPart]) -> None:
    """Restore an empty core from all parts of a snapshot."""
    gpus: dict[str, evidence_memory.GpuMemory] = {}
    intervals: list[evidence_memory.IntervalInMemory] = []
    facts: list[claim_events.ClaimFact] = []
    for part in parts:
        match part:
            case NodePart():
                _restore_node(core, part)
            case GpuPart():
                gpus[part.uuid] = part.memory
            case IntervalPart():
                intervals.append(part.interval)
            case FactsPart():
                facts += [*part.claims, *part.ends]
            case EventsPart():
                for node, boot_id, event in part.events:
                    core.add_event(SeenEvent(node, boot_id, event))
    # Last: claims refer to GPUs and intervals of all parts.
    core.evidence.restore(gpus, intervals, facts)


def _restore_node(core: CollectorState, part: NodePart) -> None:
    core.received.restore_runs(part.name, part.runs)
    core.evidence.receipts[part.name] = part.receipts
    if part.memory:
        node = core.fleet.get_or_add_node(part.name)
        node.agent_version = part.memory.agent_version
        node.clock_offset_ns = part.memory.clock_offset_ns
        node.timestamp_ns = part.memory.timestamp_ns
        node.stream_timestamps_ns = dict(part.memory.stream_timestamps_ns)
        core.gpus_by_node[part.name] = part.memory.gpus
