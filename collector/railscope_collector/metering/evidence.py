"""Input of metering about one GPU: a set of immutable facts.

The order of facts is their precedence: of two that are in force at one time, the greater one
counts. The order of the fields follows from that.
"""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction

import msgspec

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.metering import units
from railscope_collector.metering.observation import BootSampleSpan

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
        # With MIG off nothing is stranded. With free slots in the other tiling, a further instance is possible.
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
    from_ns: int = -FOREVER_NS
    """Time from which it is in force on this GPU, if that is later than its start, which decides its precedence."""

    def __post_init__(self) -> None:
        """Reject slots that a GPU does not have. Raises ValueError."""
        units.check_slots(self.compute)
        units.check_slots(self.memory)

    @property
    def begins_ns(self) -> int:
        """Start of the time in force."""
        return max(self.start_ns, self.from_ns)

    def slots(self, tiling: units.Tiling) -> units.CapacityRange:
        """Return its slots in one of the tilings."""
        return self.compute if tiling is units.Tiling.COMPUTE else self.memory


class NodeSighting(msgspec.Struct, frozen=True, order=True, gc=False):
    """Evidence from a source other than the agent that the node was running in [start, end)."""

    node_evidence: NodeEvidence = msgspec.field(name="witness")
    start_ns: int
    end_ns: int


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
