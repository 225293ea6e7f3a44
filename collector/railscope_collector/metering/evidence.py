"""Input of metering about one GPU: a set of immutable facts, and the observed time they prove.

The order of facts is their precedence: of two that are in force at one time, the greater one
counts. The order of the fields follows from that.

A GPU is observed between two samples of one boot that are at most `GAP_NS` apart. Samples are
given as spans and not individually, so the cost of a GPU-day depends on its gaps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import IntEnum
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope_collector.metering import timeline, units

SCHEDULERS = ("slurm", "kubernetes")


def job_id(workload: str) -> str:
    """Return the id of the scheduler's job of a workload: `123` of `slurm:123`."""
    source, colon, name = workload.partition(":")
    return name if colon and source in SCHEDULERS else workload


class NodeEvidence(IntEnum):
    """Independent evidence that a stale node was running; the highest one is recorded."""

    NONE = 0
    BMC = 1
    NODE_READY = 2
    SCHEDULER = 3


class MeteredClaim(msgspec.Struct, frozen=True, order=True, gc=False):
    """A tenant holds slots of the GPU in [start, end). Ids are never reused.

    A claim on a node holds only while the GPU is in that node. `system` is a health check or the
    administrator's own use. If the same id is reported with two ends, the earlier one counts.
    """

    authority: ClaimAuthority = msgspec.field(name="level")
    start_ns: int
    id: str
    tenant: str
    end_ns: int = FOREVER_NS
    workload: str = ""
    node: str = ""
    compute: units.CapacityRange = units.WHOLE
    memory: units.CapacityRange = units.WHOLE
    exclusive: bool = True
    system: bool = False
    source: str = ""
    """Provider of the claim."""
    share: Fraction | None = None
    """Requested part of the device (a GPU or MIG instance) that `compute` and `memory` name.

    Only for a claim that is not exclusive. None: an equal part of the remainder after claims with a
    share.
    """
    review: str = ""
    """Reason for a pending review of the claim; its authority is then REVIEW, except for a late end."""
    assumed: bool = False
    """True if the provider reported a number of GPUs and the GPU was chosen by metering."""
    from_ns: int = -FOREVER_NS
    """Time from which it is in force, if that is later than its start, which decides its precedence."""
    until_ns: int = FOREVER_NS
    """Time until which it is in force on this GPU, if that is earlier than its end."""
    counted: bool = False
    """True if the provider reported a number of GPUs; it may be on different GPUs over time."""

    def __post_init__(self) -> None:
        """Reject slots and shares that a GPU does not have. Raises ValueError."""
        units.check_slots(self.compute)
        units.check_slots(self.memory)
        if self.share is not None and (self.exclusive or not 0 < self.share <= 1):
            message = f"invalid claim {self.id}: share {self.share}: expected 0 < share <= 1, not exclusive"
            raise ValueError(message)
        if self.authority is ClaimAuthority.REVIEW and not self.review:
            message = f"invalid claim {self.id}: authority REVIEW: expected a reason for the review"
            raise ValueError(message)

    @property
    def begins_ns(self) -> int:
        """Start of the time in force."""
        return max(self.start_ns, self.from_ns)

    @property
    def ceases_ns(self) -> int:
        """End of the time in force."""
        return min(self.end_ns, self.until_ns)

    def slots(self, tiling: units.Tiling) -> units.CapacityRange:
        """Return the slots of its device in one of the tilings."""
        return self.compute if tiling is units.Tiling.COMPUTE else self.memory


class ClaimRelease(msgspec.Struct, frozen=True, order=True, gc=False):
    """End of a claim. It may be received before the claim; the earliest release counts."""

    claim: str
    timestamp_ns: int = msgspec.field(name="instant_ns")


class BootSampleSpan(msgspec.Struct, frozen=True, order=True, gc=False):
    """Samples of one boot, from the first to the last, with no two neighbours further apart than a gap.

    A single sample is a span too. The clock was right to within `uncertainty_ns`. `skew_ns` is
    the difference between the node's clock and the collector's.
    """

    boot: str
    first_ns: int
    last_ns: int
    uncertainty_ns: int = 0
    skew_ns: int = 0


class NodeStay(msgspec.Struct, frozen=True, order=True, gc=False):
    """The GPU is in a node in [start, end). Of two stays the later counts."""

    start_ns: int
    node: str
    end_ns: int = FOREVER_NS


class MigInstanceSlots(msgspec.Struct, frozen=True, order=True, gc=False):
    """A MIG instance: its slots in both tilings."""

    compute: units.CapacityRange
    memory: units.CapacityRange


class PartitionLayout(msgspec.Struct, frozen=True, order=True, gc=False):
    """MIG layout of the GPU from a timestamp on; without instances MIG is off.

    Raises ValueError if instances overlap.
    """

    start_ns: int
    id: str
    instances: tuple[MigInstanceSlots, ...] = ()

    def __post_init__(self) -> None:
        """Reject a layout that no GPU can have."""
        for tiling in units.Tiling:
            _stranded_slots(self, tiling)

    def stranded_slots(self, tiling: units.Tiling) -> tuple[units.CapacityRange, ...]:
        """Return the slots that no further instance can use.

        Each instance needs compute and memory: if one of them is used up, the rest of the other is
        stranded.
        """
        other = units.Tiling.MEMORY if tiling is units.Tiling.COMPUTE else units.Tiling.COMPUTE
        if not self.instances or _stranded_slots(self, other):
            return ()
        return _stranded_slots(self, tiling)


def _stranded_slots(
    layout: PartitionLayout, tiling: units.Tiling
) -> tuple[units.CapacityRange, ...]:
    """Return the slots without an instance, in order. Raises ValueError if instances overlap."""
    compute = tiling is units.Tiling.COMPUTE
    free: list[units.CapacityRange] = []
    next_free: units.Units = 0
    for taken in sorted(
        units.check_slots(i.compute if compute else i.memory) for i in layout.instances
    ):
        if taken.low < next_free:
            message = f"invalid layout {layout.id}: instances overlap in {tiling} slot {taken.low}"
            raise ValueError(message)
        if next_free < taken.low:
            free.append(units.CapacityRange(next_free, taken.low))
        next_free = taken.high
    if next_free < units.WHOLE.high:
        free.append(units.CapacityRange(next_free, units.WHOLE.high))
    return tuple(free)


class GpuOutage(msgspec.Struct, frozen=True, order=True, gc=False):
    """The GPU is unavailable in [start, end): announced maintenance, or proven to be down."""

    announced: bool
    start_ns: int
    end_ns: int


class SlotReservation(msgspec.Struct, frozen=True, order=True, gc=False):
    """Slots reserved for a tenant in [start, end), used or not."""

    start_ns: int
    id: str
    tenant: str
    end_ns: int
    compute: units.CapacityRange = units.WHOLE
    memory: units.CapacityRange = units.WHOLE

    def __post_init__(self) -> None:
        """Reject slots that a GPU does not have. Raises ValueError."""
        units.check_slots(self.compute)
        units.check_slots(self.memory)

    def slots(self, tiling: units.Tiling) -> units.CapacityRange:
        """Return its slots in one of the tilings."""
        return self.compute if tiling is units.Tiling.COMPUTE else self.memory


class NodeSighting(msgspec.Struct, frozen=True, order=True, gc=False):
    """Evidence from a source other than the agent that the node was running in [start, end)."""

    node_evidence: NodeEvidence = msgspec.field(name="witness")
    start_ns: int
    end_ns: int


class ClockDoubt(msgspec.Struct, frozen=True, order=True, gc=False):
    """A time in which the clock of the collector that received evidence was suspect.

    `since_ns` is its start by the clock of that time, `delta_ns` the shift to later times that an
    administrator's decision applied to the received evidence; 0 if the clock returned. The audit
    log has both.
    """

    since_ns: int
    delta_ns: int = 0


class Evidence(msgspec.Struct, frozen=True):
    """All evidence about one GPU. Neither order nor repetition matters."""

    gpu: str
    stays: tuple[NodeStay, ...]
    claims: tuple[MeteredClaim, ...] = ()
    releases: tuple[ClaimRelease, ...] = ()
    sample_spans: tuple[BootSampleSpan, ...] = msgspec.field(default=(), name="stretches")
    layouts: tuple[PartitionLayout, ...] = ()
    outages: tuple[GpuOutage, ...] = ()
    reservations: tuple[SlotReservation, ...] = ()
    sightings: tuple[NodeSighting, ...] = ()


GAP_NS = 30_000_000_000
QUARANTINE_NS = 60 * SECOND_NS


def join_samples(
    boot: str, timestamps_ns: NDArray[np.int64], uncertainty_ns: int = 0
) -> list[BootSampleSpan]:
    """Return the spans of the samples of one boot, which may be in any order."""
    ordered_ns = np.sort(timestamps_ns, kind="stable")  # np.unique hashes, 100 times as expensive
    if not len(ordered_ns):
        return []
    breaks = np.flatnonzero(np.diff(ordered_ns) > GAP_NS)
    firsts = ordered_ns[np.concatenate(([0], breaks + 1))].tolist()
    lasts = ordered_ns[np.concatenate((breaks, [len(ordered_ns) - 1]))].tolist()
    return [
        BootSampleSpan(boot, first, last, uncertainty_ns)
        for first, last in zip(firsts, lasts, strict=True)
    ]


def join_sample_spans(parts: Iterable[BootSampleSpan]) -> list[BootSampleSpan]:
    """Join spans of one boot that overlap or are at most a gap apart.

    The timestamps of a node with a clock error above one minute are not usable; its samples are
    omitted.
    """
    joined: list[BootSampleSpan] = []
    for part in sorted(part for part in parts if abs(part.skew_ns) <= QUARANTINE_NS):
        last = joined[-1] if joined else None
        if last and last.boot == part.boot and part.first_ns <= last.last_ns + GAP_NS:
            joined[-1] = BootSampleSpan(
                last.boot,
                last.first_ns,
                max(last.last_ns, part.last_ns),
                max(last.uncertainty_ns, part.uncertainty_ns),
            )
        else:
            joined.append(part)
    return joined


def observation_gaps(
    parts: Iterable[BootSampleSpan], boundaries_ns: Sequence[int]
) -> list[timeline.TimePiece[int]]:
    """Return, for all time, the length of the gap that contains it; 0 where the GPU was observed.

    A gap lasts from one sample to the next; one without a start or an end is `FOREVER_NS`. An edge
    that is within the clock's uncertainty of a boundary (of a claim, in order) is moved there, so
    that no short gap remains between the claim and its first sample.
    """
    edges = sorted(
        (
            _snap_to_boundary(span.first_ns, span.uncertainty_ns, boundaries_ns),
            _snap_to_boundary(span.last_ns, span.uncertainty_ns, boundaries_ns),
        )
        for span in join_sample_spans(parts)
    )
    gaps: list[timeline.TimePiece[int]] = []
    now = -FOREVER_NS
    for first, last in edges:
        if now < first:
            gap_ns = first - now if gaps else FOREVER_NS
            gaps.append(timeline.TimePiece(now, first, gap_ns))
        start = max(now, first)
        if start < last:
            gaps.append(timeline.TimePiece(start, last, 0))
        now = max(now, last)
    gaps.append(timeline.TimePiece(now, FOREVER_NS, FOREVER_NS))
    return gaps


def _snap_to_boundary(edge_ns: int, uncertainty_ns: int, boundaries_ns: Sequence[int]) -> int:
    """Return the nearest boundary within the uncertainty, or the edge itself."""
    if not uncertainty_ns:
        return edge_ns
    at = bisect_left(boundaries_ns, edge_ns)
    near = boundaries_ns[max(at - 1, 0) : at + 1]
    nearest = min(near, key=lambda boundary: abs(boundary - edge_ns), default=edge_ns)
    return nearest if abs(nearest - edge_ns) <= uncertainty_ns else edge_ns
