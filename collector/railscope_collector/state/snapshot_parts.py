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
from railscope_collector.evidence import (
    claim_events,
    node_intervals,
    open_claims,
    open_quarters,
    quarter_memory,
)
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


class FormerPresence(msgspec.Struct, array_like=True):
    """Samples of a GPU in one boot of a node, as release 0.3.0 stored them."""

    node: str
    boot: str
    received_ns: int
    spans: list[node_intervals.SampleSpan] = []


class FormerMemory(msgspec.Struct):
    """Samples and claims of a GPU, as release 0.3.0 stored them."""

    presences: dict[str, FormerPresence] = {}
    reports: list[claim_events.ReportedClaim] = msgspec.field(name="told", default_factory=list)
    ended: list[claim_events.ReportedEnd] = []


class GpuPart(msgspec.Struct, array_like=True, tag=True):
    """Facts about a GPU's time in a snapshot of release 0.3.0."""

    uuid: str
    memory: FormerMemory


class ClaimsPart(msgspec.Struct, array_like=True, tag=True):
    """Claims in force of a node."""

    node: str
    claims: open_claims.NodeClaims


class PlacesPart(msgspec.Struct, array_like=True, tag=True):
    """Nodes that have GPUs: a GPU that its node no longer lists stays known after a restart."""

    places: dict[str, open_quarters.GpuPlace]


class IntervalPart(msgspec.Struct, array_like=True, tag="ChunkPart"):
    """Metering facts from a node's frames of some time."""

    interval: quarter_memory.QuarterInMemory = msgspec.field(name="kept")


class FactsPart(msgspec.Struct, array_like=True, tag=True):
    """Claims and their ends that are not on disk by themselves yet."""

    claims: list[claim_events.ReportedClaim]
    ends: list[claim_events.ReportedEnd]


class EventsPart(msgspec.Struct, array_like=True, tag=True):
    """Recent events: node, boot and event."""

    events: list[tuple[str, str, wire.WireEvent]]


SnapshotPart: TypeAlias = (
    NodePart | GpuPart | ClaimsPart | PlacesPart | IntervalPart | FactsPart | EventsPart
)
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
        yield NodePart(name, runs, _memory_of(core, name))
    for name, claims in list(book.claims.nodes.items()):
        yield ClaimsPart(name, claims)
    for gpus in _groups(list(book.places)):
        yield PlacesPart({gpu: book.places[gpu] for gpu in gpus})
    for key in list(book.quarters.by_key):
        # It may have been moved to disk since the keys were copied.
        if interval := book.quarters.by_key.get(key):
            yield IntervalPart(interval)
    # After these: one that was being moved since is here, or on disk.
    for interval in list(book.quarters.leaving):
        yield IntervalPart(interval)
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
    claims: dict[str, open_claims.NodeClaims] = {}
    places: dict[str, open_quarters.GpuPlace] = {}
    former: list[GpuPart] = []
    intervals: list[quarter_memory.QuarterInMemory] = []
    facts: list[claim_events.ClaimFact] = []
    for part in parts:
        match part:
            case NodePart():
                _restore_node(core, part)
            case GpuPart():
                former.append(part)
            case ClaimsPart():
                claims[part.node] = part.claims
            case PlacesPart():
                places |= part.places
            case IntervalPart():
                intervals.append(part.interval)
            case FactsPart():
                facts += [*part.claims, *part.ends]
            case EventsPart():
                for node, boot_id, event in part.events:
                    core.add_event(SeenEvent(node, boot_id, event))
    core.evidence.restore(intervals, facts, claims, places)
    _restore_former(core.evidence, former)


def _restore_former(book: open_quarters.OpenQuarters, parts: Iterable[GpuPart]) -> None:
    """Restore boots, places and claims from parts of release 0.3.0."""
    for part in parts:
        presences = [presence for presence in part.memory.presences.values() if presence.spans]
        for presence in sorted(presences, key=lambda presence: presence.spans[-1].last_ns):
            first_ns, last_ns = presence.spans[0].first_ns, presence.spans[-1].last_ns
            if book.accepts_gpu(presence.node, part.uuid, last_ns):
                span = node_intervals.SampleSpan(first_ns, last_ns)
                book.record_place(presence.node, presence.boot, part.uuid, span)
        for claim in part.memory.reports:
            book.claims.add(claim, 0)
        for end in part.memory.ended:
            book.claims.add(end, 0)


def _restore_node(core: CollectorState, part: NodePart) -> None:
    core.received.restore_runs(part.name, part.runs)
    if part.memory:
        node = core.fleet.get_or_add_node(part.name)
        node.agent_version = part.memory.agent_version
        node.clock_offset_ns = part.memory.clock_offset_ns
        node.timestamp_ns = part.memory.timestamp_ns
        node.stream_timestamps_ns = dict(part.memory.stream_timestamps_ns)
        core.gpus_by_node[part.name] = part.memory.gpus
