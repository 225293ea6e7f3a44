"""Cost of one envelope as evidence, and its bounds.

The cost of an envelope is checked before it is made durable. The size of frames does not bound
their size as evidence: a few bytes of frames with large distances are many spans of samples, times
the GPUs of the node. The costs counted here are those of `railscope_collector.evidence`; work and memory are
linear in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from railscope.wire import BYTES_PER_VALUE, Batch, Envelope
from railscope_collector import config
from railscope_collector.evidence import node_intervals
from railscope_collector.fleet.names import KnownSchema
from railscope_collector.metering.observation import GAP_NS

REPLAY_FACTOR = 4
"""Factor on the bounds at a restart: they may have been wider before."""
_ROWS_PER_SPAN = 32
"""Number of individually processed frames of a GPU that cost as much as one span."""
WORK_UNIT = 200
"""Spans, events, frames or stated ends that count as one more request."""


class EnvelopeCost(NamedTuple):
    """Cost of an envelope as evidence."""

    batches: int = 0
    frames: int = 0
    events: int = 0
    sample_spans: int = 0
    """Spans of samples, times their GPUs and MIG layouts."""
    counter_bytes: int = 0
    """Bytes of the stored readings of counters."""
    ends: int = 0
    """Streams for which the end of an earlier run is stated."""

    @property
    def requests(self) -> int:
        """Return the number of requests that the envelope counts as."""
        return 1 + (self.frames + self.events + self.sample_spans + self.ends) // WORK_UNIT


def envelope_cost(envelope: Envelope, schemas: Iterable[KnownSchema | None]) -> EnvelopeCost:
    """Return the cost of an envelope; `schemas` are those of its batches. Linear in its frames."""
    sample_spans = counter_bytes = frames = events = 0
    for batch, schema in zip(envelope.batches, schemas, strict=True):
        frames += len(batch.wall_ns)
        events += len(batch.events)
        if schema is not None:
            sample_spans += _count_spans(batch, schema)
            counters = len(schema.counters)
            if counters:
                cells = len({boot_ns // node_intervals.GRID_NS for boot_ns in batch.boot_ns})
                counter_bytes += cells * counters * BYTES_PER_VALUE
    ends = len(envelope.ended.streams) if envelope.ended else 0
    return EnvelopeCost(len(envelope.batches), frames, events, sample_spans, counter_bytes, ends)


def _count_spans(batch: Batch, schema: KnownSchema) -> int:
    boot_ns = batch.boot_ns
    first_ns, last_ns = boot_ns[0], boot_ns[-1]
    length_ns = last_ns - first_ns
    interval_ns = node_intervals.INTERVAL_NS
    if length_ns <= GAP_NS and first_ns // interval_ns == last_ns // interval_ns:
        sample_spans = 1
    else:
        sample_spans = 1 + sum(
            after - before > GAP_NS
            or after // node_intervals.INTERVAL_NS != before // node_intervals.INTERVAL_NS
            for before, after in pairwise(boot_ns)
        )
    cells = 0
    if len(batch.reasons) > schema.layout.columns:
        # A GPU may be absent in some rows: then its samples have more gaps than the frames.
        sample_spans = min(batch.rows, sample_spans + length_ns // GAP_NS)
        cells = batch.rows * len(schema.gpus) // _ROWS_PER_SPAN
    return sample_spans * max(1, len(schema.gpus) + len(schema.mig_layouts)) + cells


def find_exceeded_bounds(
    cost: EnvelopeCost, limits: config.IngestLimits, factor: int = 1
) -> Iterator[str]:
    """Yield a text for each bound that is exceeded."""
    for count, limit, unit in (
        (cost.batches, limits.batches_per_envelope, "batches"),
        (cost.frames, limits.frames_per_envelope, "frames"),
        (cost.events, limits.events_per_envelope, "events"),
        (cost.sample_spans, limits.sample_spans_per_envelope, "spans of samples of GPUs"),
        (cost.counter_bytes, limits.counter_bytes_per_envelope, "bytes of counter readings"),
    ):
        if count > factor * limit:
            yield f"{count} {unit}: expected at most {factor * limit}"
