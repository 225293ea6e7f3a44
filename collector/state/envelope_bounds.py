"""Bounds on the cost of one envelope to the collector, checked before it is made durable.

The size of frames does not bound their size as evidence: a few bytes of frames with large distances
are many spans of samples, times the GPUs of the node. The costs counted here are those of
`collector.evidence`; work and memory are linear in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from collector.config import Limits
from collector.evidence.chunk import CHUNK_NS, GRID_NS
from collector.fleet.schemas import Known
from collector.metering.observation import GAP_NS
from railscope.wire import BYTES_PER_VALUE, Batch, Envelope

REPLAY_FACTOR = 4
"""Factor on the bounds at a restart: they may have been wider before."""
_ROWS_PER_STRETCH = 32
"""Number of individually processed frames of a GPU that cost as much as one stretch."""
WORK_UNIT = 200
"""Stretches, events, frames or stated ends that count as one more request."""


class Cost(NamedTuple):
    """Cost of an envelope as evidence."""

    batches: int = 0
    frames: int = 0
    events: int = 0
    stretches: int = 0
    """Stretches of samples, times their GPUs and MIG layouts."""
    counter_bytes: int = 0
    """Of the readings of counters that are stored."""
    ends: int = 0
    """Streams for which the end of an earlier run is stated."""

    @property
    def requests(self) -> int:
        """Return the number of requests that the envelope counts as."""
        return 1 + (self.frames + self.events + self.stretches + self.ends) // WORK_UNIT


def cost_of(envelope: Envelope, known: Iterable[Known | None]) -> Cost:
    """Return the cost of an envelope; `known` are the schemas of its batches. Linear in its frames."""
    stretches = counter_bytes = 0
    for batch, schema in zip(envelope.batches, known, strict=True):
        if schema is not None:
            stretches += _stretches(batch, schema)
            counters = len(schema.metered.columns)
            if counters:
                cells = len({boot_ns // GRID_NS for boot_ns in batch.boot_ns})
                counter_bytes += cells * counters * BYTES_PER_VALUE
    return Cost(
        len(envelope.batches),
        sum(batch.rows for batch in envelope.batches),
        sum(len(batch.events) for batch in envelope.batches),
        stretches,
        counter_bytes,
        len(envelope.ended.streams) if envelope.ended else 0,
    )


def _stretches(batch: Batch, schema: Known) -> int:
    boot_ns = batch.boot_ns
    length_ns = boot_ns[-1] - boot_ns[0]
    if length_ns <= GAP_NS and boot_ns[0] // CHUNK_NS == boot_ns[-1] // CHUNK_NS:
        stretches = 1
    else:
        stretches = 1 + sum(
            after - before > GAP_NS or after // CHUNK_NS != before // CHUNK_NS
            for before, after in pairwise(boot_ns)
        )
    looked_at = 0
    if len(batch.reasons) > schema.layout.columns:
        # A GPU may be absent in some rows: then its samples have more gaps than the frames.
        stretches = min(batch.rows, stretches + length_ns // GAP_NS)
        looked_at = batch.rows * len(schema.gpus) // _ROWS_PER_STRETCH
    return stretches * max(1, len(schema.gpus) + len(schema.metered.layouts)) + looked_at


def problems(cost: Cost, limits: Limits, factor: int = 1) -> Iterator[str]:
    """Yield a text for each bound that is exceeded."""
    for count, limit, what in (
        (cost.batches, limits.batches, "batches"),
        (cost.frames, limits.frames, "frames"),
        (cost.events, limits.events, "events"),
        (cost.stretches, limits.stretches, "stretches of samples of GPUs"),
        (cost.counter_bytes, limits.counter_bytes, "bytes of counters to keep"),
    ):
        if count > factor * limit:
            yield f"{count} {what}, more than {factor * limit}"
