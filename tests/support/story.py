"""Nodes that report to a collector: frames and claim events at given seconds, as records."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from support.schemas import parts_of, schemas_in, store_parts

from railscope.batch_encoding import encode_batches
from railscope.catalog import METRICS, gpu, tenancy
from railscope.catalog.entities import CLAIM, GPU, MIG, NODE, RDMA_PORT
from railscope.frame import Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.wire import Envelope, SentAt, envelope, pack
from railscope_agent.gpus.mig_slots import ReportedMigDevice, find_mig_slots
from railscope_collector.account.account_sums import GpuTimeAccount
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.state.collector_state import CollectorState

SECOND = 1_000_000_000
DAY = 20_700
DAY_SECONDS = 86_400
START_NS = DAY * DAY_SECONDS * SECOND
"""Second 0 of every story is a midnight."""
Envelopes = list[tuple[FrameRecord, Envelope]]


def gpus_of(
    *names: str, model: str = "NVIDIA H100 80GB HBM3", addresses: Mapping[str, str] | None = None
) -> Schema:
    """Return energy, busy time and utilisation of GPUs; the first is on rail 0."""
    entities = [
        Entity(
            GPU, (n,), {"rail": str(i), "model": model, "pci_address": (addresses or {}).get(n, "")}
        )
        for i, n in enumerate(names)
    ]
    metrics = (gpu.GPU_UTILIZATION, gpu.GPU_ENERGY, gpu.GPU_BUSY)
    columns = [(metric, entity) for metric in metrics for entity in entities]
    return Schema("gpu", tuple(columns[i] for i in Schema.ordered(columns)))


def ports_of(count: int) -> Schema:
    """Return bytes in and out of RDMA ports; port i is on rail i."""
    entities = [Entity(RDMA_PORT, (f"mlx5_{i}", "1"), {"rail": str(i)}) for i in range(count)]
    return _traffic("rdma", entities)


def _traffic(stream: str, entities: Iterable[Entity]) -> Schema:
    names = (f"railscope_{stream}_{way}_bytes_total" for way in ("receive", "transmit"))
    columns = [(METRICS[name], entity) for name, entity in product(names, entities)]
    return Schema(stream, tuple(columns[i] for i in Schema.ordered(columns)))


def host() -> Schema:
    """Return a metric of the node itself."""
    return Schema("host", ((METRICS["railscope_boot_time_seconds"], Entity(NODE)),))


def cut(name: str, *profiles: str) -> Schema:
    """Return the MIG devices of a GPU, each in a separate instance, with slots as the agent reports them."""
    whole = Entity(GPU, (name,), {"model": "NVIDIA H100 80GB HBM3"})
    columns = [(METRICS["railscope_gpu_mig_devices"], whole)]
    devices = [
        ReportedMigDevice(f"MIG-{number}", profile, number, 0, gpu_memory_bytes=80 << 30)
        for number, profile in enumerate(profiles)
    ]
    slots = find_mig_slots(devices)
    for number, profile in enumerate(profiles):
        of_device = slots.get(f"MIG-{number}")  # none for a device that does not fit
        reported = {}
        if of_device:
            reported["compute_slots"] = str(of_device.compute)
            reported["memory_slots"] = str(of_device.memory)
        facts = {
            "profile": profile,
            "gpu_instance": str(number),
            "compute_instance": "0",
        } | reported
        device = Entity(MIG, (name, f"MIG-{number}"), facts)
        columns.append((METRICS["railscope_mig_processes"], device))
    return Schema("mig", tuple(columns[i] for i in Schema.ordered(columns)))


def claim_started(
    gpu_name: str, claim: str, second: float, *, unclaimed: bool = False, **facts: str
) -> Event:
    """A claim begins."""
    event = tenancy.UNCLAIMED_START_EVENT if unclaimed else tenancy.CLAIM_START_EVENT
    facts_of_claim = {"level": "scheduler", "source": "slurm", "start_ns": str(at(second))} | facts
    return Event(
        event, Entity(CLAIM, (gpu_name, claim)), at(second), round(second * SECOND), facts_of_claim
    )


def claim_ended(gpu_name: str, claim: str, second: float) -> Event:
    """A claim ends."""
    facts_of_claim = {"level": "scheduler", "source": "slurm", "end_ns": str(at(second))}
    entity = Entity(CLAIM, (gpu_name, claim))
    return Event(
        tenancy.CLAIM_END_EVENT, entity, at(second), round(second * SECOND), facts_of_claim
    )


def at(second: float) -> int:
    """Convert a second of the story to a timestamp."""
    return START_NS + round(second * SECOND)


def counting(second: int, columns: int) -> list[int]:
    """Counters that rise with time: 500 per second, each column a little more."""
    return [500 * (second + 10_000) + 7 * column for column in range(columns)]


@dataclass
class NodeReporter:
    """A node's agent. Its boot clock is 0 at `booted_at`; its wall clock is wrong by `skew`."""

    node: str = "n1"
    boot_id: str = "boot-1"
    run: str = "run-1"
    booted_at: int = -5000
    skew: float = 0
    uncertainty_ns: int | None = None
    origin_ns: int = START_NS
    """Timestamp of second 0."""
    sequences: dict[str, int] = field(default_factory=dict)
    is_known: bool = False
    """True if it sent an envelope before."""

    def _instant(self, second: float) -> NodeTimestamp:
        wall_ns = self.origin_ns + round((second + self.skew) * SECOND)
        boot_ns = round((second - self.booted_at) * SECOND)
        return NodeTimestamp(wall_ns, boot_ns, self.uncertainty_ns)

    def frames(
        self,
        schema: Schema,
        seconds: Iterable[int],
        *,
        values: Callable[[int, int], list[int]] = counting,
        events: Mapping[int, Sequence[Event]] | None = None,
    ) -> list[Frame]:
        """Return a frame at each of these seconds."""
        origin = FrameOrigin(self.node, self.run, self.boot_id)
        made = []
        for second in seconds:
            number = self.sequences[schema.stream] = self.sequences.get(schema.stream, 0) + 1
            row = array("q", values(second, len(schema.columns)))
            happened = tuple((events or {}).get(second, ()))
            frame = Frame(origin, schema, number, self._instant(second), row, b"", happened)
            made.append(frame)
        return made

    def record(
        self, frames: Sequence[Frame], sent: float | None = None
    ) -> tuple[FrameRecord, Envelope]:
        """Return frames in one envelope, and the record of its arrival, without delay after it was sent."""
        if sent is None:
            newest = max(frame.timestamp.boot_ns for frame in frames)
            sent = newest / SECOND + self.booted_at
        origin = FrameOrigin(self.node, self.run, self.boot_id)
        found = envelope(origin, encode_batches(frames), parts_of(frames), agent_version="test")
        instant = self._instant(sent)
        clocks = SentAt(instant.wall_ns, instant.boot_ns, self.boot_id)
        received_ns = self.origin_ns + round(sent * SECOND)
        return FrameRecord(self.node, received_ns, clocks, pack(found)), found

    def envelopes_of(
        self, schema: Schema, seconds: Iterable[int], *, each: int = 10, **more: object
    ) -> Envelopes:
        """Return frames at these seconds in envelopes of `each`; the first of the node in a separate one.

        So the node exists from its first frame on, as if it sent each frame immediately.
        """
        frames = self.frames(schema, seconds, **more)  # type: ignore[arg-type]
        first = 0 if self.is_known else 1
        self.is_known = True
        found = [frames[:first]] if first else []
        found += [frames[i : i + each] for i in range(first, len(frames), each)]
        return [self.record(some) for some in found if some]


def core_in(directory: Path) -> CollectorState:
    """Return an empty core."""
    return CollectorState(schemas_in(directory))


def temporary_core() -> CollectorState:
    """Return an empty core whose directory is removed with it, for examples of a property."""
    directory = Path(tempfile.mkdtemp())
    core = core_in(directory)
    weakref.finalize(core.schemas, shutil.rmtree, directory)
    return core


def accept(core: CollectorState, envelopes: Iterable[tuple[FrameRecord, Envelope]]) -> None:
    """Apply envelopes, as ingest does once they are durable."""
    for record, found in envelopes:
        store_parts(core.schemas, found)
        core.accept(record, found)
    assert not core.counts.rejected


async def no_turns() -> None:
    """Yield to no other task."""


def seconds_of(account: GpuTimeAccount) -> dict[tuple[str, str], float]:
    """Return GPU-seconds by state and tenant."""
    found: dict[tuple[str, str], float] = {}
    for key, quantity in account.sums.items():
        of = (key.state.value, key.tenant)
        found[of] = found.get(of, 0) + quantity / (840 * SECOND)
    return found
