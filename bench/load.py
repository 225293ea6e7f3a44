"""The load of a collector and of a diagnosis: one simulated node with 8 GPUs and 10 NICs, under the names of many.

The node trains without a fault. Each of the others has its own GPUs, and multiples of the node's counters and of the changes of its gauges; a
list of names without a GPU is the same for all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from railscope import __version__, catalog, envelopes, frame, wire
from railscope.capture import write_capture
from railscope.catalog.declare import MetricKind
from railscope.shapes import SchemaTable
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings, CollectorLink
from railscope_simulator import NodeSpec, capture_metadata, moments

SPEC = NodeSpec("bench-node")
ENVELOPE_SECONDS = round(CollectorLink().push_seconds)
VARIANTS = 8
"""Nodes of a collector's load with different values."""
_PATH = "/v1/frames"
_GPU = "GPU-"


def write_node(capture: Path, seconds: int, step: int = 1) -> None:
    """Write the capture of the node."""
    write_capture(capture, capture_metadata(SPEC, seconds), moments(SPEC, seconds, step))


class NodeFrames:
    """The frames of the node in envelopes of some seconds, and their multiples."""

    def __init__(self, capture: Path, seconds: int) -> None:
        self.envelopes = list(CaptureReplay(capture, AgentSettings()).envelopes(seconds))
        self.table = SchemaTable()
        self.shapes: dict[bytes, bytes] = {}
        self.names: dict[bytes, wire.NameRows] = {}
        for envelope in self.envelopes:
            self.table.add(envelope)
            self.shapes |= {wire.content_hash(each): each for each in envelope.shapes}
            for content in envelope.names:
                self.names[wire.content_hash(content)] = envelopes.decode_names(content)
        used = {batch.schema for envelope in self.envelopes for batch in envelope.batches}
        self.schemas = {identity: self.table[identity] for identity in used}
        self._counters = {identity: counters_of(each) for identity, each in self.schemas.items()}

    def batches(self, position: int, multiple: int) -> list[wire.Batch]:
        """Return the batches of an envelope with a multiple of its values."""
        factor = 1 + 1e-4 * multiple
        return [self._multiply(each, factor) for each in self.envelopes[position].batches]

    def _multiply(self, batch: wire.Batch, factor: float) -> wire.Batch:
        base, steps = (np.frombuffer(each, "<i8") for each in (batch.base, batch.steps))
        scaled = np.where(self._counters[batch.schema], base * factor, base).astype("<i8")
        return msgspec.structs.replace(
            batch, base=scaled.tobytes(), steps=(steps * factor).astype("<i8").tobytes()
        )


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"bench-{number:05}"


def token(node: str) -> str:
    """Return the token of a node."""
    return f"token-of-{node}"


def of_node(rows: Sequence[wire.WireEntity], number: int) -> tuple[wire.WireEntity, ...]:
    """Return the names or entities of another node of the same build, with other GPUs."""

    def own_entity(entity: wire.WireEntity) -> wire.WireEntity:
        if not entity.key or not entity.key[0].startswith(_GPU):
            return entity
        key = (f"{_GPU}{number:08x}{entity.key[0][12:]}", *entity.key[1:])
        return wire.WireEntity(entity.kind, key, entity.facts)

    return tuple(map(own_entity, rows))


def counters_of(schema: wire.WireSchema) -> npt.NDArray[np.bool_]:
    """Return a mask of the counter columns."""
    kinds = [
        [catalog.METRICS[group.metric].kind is MetricKind.COUNTER] * len(group.entities)
        for group in schema.groups
    ]
    return np.array([counts for flags in kinds for counts in flags], np.bool_)


class Envelopes:
    """The envelopes of many nodes, each packed and requested at its time."""

    def __init__(self, frames: NodeFrames, nodes: int) -> None:
        self._frames, self._nodes = frames, nodes
        self._hashes = [
            {
                digest: wire.content_hash(wire.encode_part(of_node(rows, number)))
                for digest, rows in frames.names.items()
            }
            for number in range(nodes)
        ]
        self._registered: set[int] = set()

    def parts(self, number: int, shapes: Sequence[str], names: Sequence[str]) -> bytes:
        """Return an envelope with the shapes and names that the collector requests from one node."""
        parts = wire.SentParts(
            [each for digest, each in self._frames.shapes.items() if digest.hex() in shapes],
            [
                self._own_names(number, digest)
                for digest, own in self._hashes[number].items()
                if own.hex() in names
            ],
        )
        return wire.pack(wire.envelope(origin(number), [], parts, agent_version=__version__))

    def _own_names(self, number: int, digest: bytes) -> bytes:
        return wire.encode_part(of_node(self._frames.names[digest], number))

    def variants(self, turn: int) -> list[list[wire.Batch]]:
        """Return the batches of a turn, for each variant of nodes."""
        return [self._frames.batches(turn, each) for each in range(min(VARIANTS, self._nodes))]

    def frames(self, number: int, batches: list[wire.Batch]) -> bytes:
        """Return an envelope of one node, with frames up to now."""
        wall_ns, boot_ns = time.time_ns(), time.monotonic_ns()
        newest_wall_ns = max(batch.wall_ns[-1] for batch in batches)
        newest_boot_ns = max(batch.boot_ns[-1] for batch in batches)
        own = [
            msgspec.structs.replace(
                batch,
                names=self._hashes[number][batch.names],
                wall_ns=tuple(each - newest_wall_ns + wall_ns for each in batch.wall_ns),
                boot_ns=tuple(each - newest_boot_ns + boot_ns for each in batch.boot_ns),
                events=(),
            )
            for batch in batches
        ]
        # As an agent: with the names in the first envelope of the run.
        names = [] if number in self._registered else list(self._frames.names)
        self._registered.add(number)
        parts = wire.SentParts(names=[self._own_names(number, digest) for digest in names])
        return wire.pack(wire.envelope(origin(number), own, parts, agent_version=__version__))


def request(number: int, body: bytes) -> bytes:
    """Return the request of one node, with its clocks at this time."""
    sent = wire.SentAt(time.time_ns(), time.monotonic_ns(), origin(number).boot_id)
    lines = {
        "Host": "bench",
        "Authorization": f"Bearer {token(node_name(number))}",
        "Content-Type": wire.CONTENT_TYPE,
        "Content-Length": str(len(body)),
        **sent.to_headers(),
    }
    text = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"POST {_PATH} HTTP/1.1\r\n{text}\r\n".encode() + body


def origin(number: int) -> frame.FrameOrigin:
    """Return the origin of the frames of a node."""
    return frame.FrameOrigin(node_name(number), f"{number:016x}", f"boot-{number}")
