"""Frames, envelopes and schemas for the collector's tests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from support.schemas import parts_of

from railscope.batch_encoding import encode_batches
from railscope.catalog import METRICS, gpu
from railscope.catalog.entities import CLAIM, GPU, RDMA_PORT
from railscope.catalog.tenancy import CLAIM_START_EVENT
from railscope.frame import Column, Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.wire import Envelope, SentAt, envelope, pack
from railscope_agent.shipping import EventNumbering

SECOND = 1_000_000_000
START_WALL_NS = 1_790_000_000_000_000_000
START_BOOT_NS = 5_000 * SECOND


def gpu_schema(node: str, gpus: int = 2) -> Schema:
    """Utilisation, power and energy of a node's GPUs; rail i is GPU i."""
    entities = [Entity(GPU, (f"GPU-{node}-{i}",), {"rail": str(i)}) for i in range(gpus)]
    metrics = (gpu.GPU_UTILIZATION, gpu.GPU_POWER, gpu.GPU_ENERGY)
    return Schema("gpu", tuple((metric, entity) for metric in metrics for entity in entities))


def rdma_schema(ports: int = 2) -> Schema:
    """Bytes out and a 32-bit counter of a node's RDMA ports; port i is on rail i."""
    entities = [Entity(RDMA_PORT, (f"mlx5_{i}", "1"), {"rail": str(i)}) for i in range(ports)]
    metrics = (
        METRICS["railscope_rdma_transmit_bytes_total"],
        METRICS["railscope_rdma_ack_timeouts_total"],
    )
    columns: list[Column] = [(metric, entity) for metric in metrics for entity in entities]
    return Schema("rdma", tuple(columns))


@dataclass
class FrameSender:
    """A node's agent as the collector sees it: makes frames one second apart."""

    node: str = "n1"
    run: str = "run-1"
    boot_id: str = "boot-1"
    sequences: dict[str, int] = field(default_factory=dict)

    def frames(
        self, schema: Schema, rows: Sequence[Sequence[int]], *, at: int, reasons: bytes = b""
    ) -> list[Frame]:
        """Frames of consecutive seconds; the first `at` seconds after the start."""
        origin = FrameOrigin(self.node, self.run, self.boot_id)
        made = []
        for offset, row in enumerate(rows):
            sequence = self.sequences[schema.stream] = self.sequences.get(schema.stream, 0) + 1
            moment = (at + offset) * SECOND
            instant = NodeTimestamp(START_WALL_NS + moment, START_BOOT_NS + moment)
            made.append(Frame(origin, schema, sequence, instant, array("q", row), reasons))
        return made

    def envelope(self, frames: Sequence[Frame], *, schemas: bool = False) -> Envelope:
        """An envelope of frames, with their schemas if requested."""
        origin = FrameOrigin(self.node, self.run, self.boot_id)
        batches = encode_batches(frames)
        return envelope(
            origin, batches, parts_of(frames) if schemas else None, agent_version="test"
        )

    def body(self, frames: Sequence[Frame], *, schemas: bool = False) -> bytes:
        """The same, packed."""
        return pack(self.envelope(frames, schemas=schemas))

    def sent(self, at: int) -> SentAt:
        """The node's clocks, `at` seconds after the start."""
        moment = at * SECOND
        return SentAt(START_WALL_NS + moment, START_BOOT_NS + moment, self.boot_id)


class ClaimingAgent:
    """An agent with a claim in every frame."""

    def __init__(self) -> None:
        self.sender = FrameSender()
        self.numbering = EventNumbering()
        self.at = 0

    def body(self, size: int = 3) -> bytes:
        row = [50, 60, 1000, 2000, 10, 20]
        frames = self.sender.frames(gpu_schema("n1"), [row] * size, at=self.at)
        self.at += size
        reported_frames = [replace(frame, events=(self.event(frame.sequence),)) for frame in frames]
        numbered = [self.numbering.number_events(frame) for frame in reported_frames]
        return self.sender.body(numbered, schemas=True)

    def event(self, number: int) -> Event:
        facts = {
            "source": "slurm", "level": "scheduler", "owner": "zoe", "tenant": "red",
            "compute": "0-840", "memory": "0-840", "exclusive": "true", "node": "",
            "start_ns": str(START_WALL_NS + number), "uncertainty_ns": "0", "workload": f"job {number}",
        }  # fmt: skip
        claim = Entity(CLAIM, (f"GPU-n1-{number % 2}", f"slurm/n1/{number}"))
        at_ns = number * 10**9
        return Event(CLAIM_START_EVENT, claim, START_WALL_NS + at_ns, START_BOOT_NS + at_ns, facts)
