"""Input of metering about one GPU: a set of immutable facts.

The order of facts is their precedence: of two that are in force at one time, the greater one
counts. The order of the fields follows from that.
"""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction

import msgspec

from collector.metering.units import FOREVER_NS, WHOLE, Slots, Tiling, Units, checked

SCHEDULERS = ("slurm", "kubernetes")


def job_id(workload: str) -> str:
    """Return the id of the scheduler's job of a workload: `123` of `slurm:123`."""
    source, colon, name = workload.partition(":")
    return name if colon and source in SCHEDULERS else workload


class Level(IntEnum):
    """Authority of a claim; the higher rank prevails."""

    REVIEW = 0
    PROCESS = 1
    NODE_PLUGIN = 2
    SCHEDULER = 3
    SCHEDULER_LIST = 4
    ADMINISTRATOR = 5


class Witness(IntEnum):
    """Independent evidence that a stale node was running; the highest one is recorded."""

    NONE = 0
    BMC = 1
    NODE_READY = 2
    SCHEDULER = 3


class Claim(msgspec.Struct, frozen=True, order=True, gc=False):
    """A tenant holds slots of the GPU in [start, end). Ids are never reused.

    A claim on a node holds only while the GPU is in that node. `system` is a health check or the
    administrator's own use. If the same id is reported with two ends, the earlier one counts.
    """

    level: Level
    start_ns: int
    id: str
    tenant: str
    end_ns: int = FOREVER_NS
    workload: str = ""
    node: str = ""
    compute: Slots = WHOLE
    memory: Slots = WHOLE
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
    """Reason for a pending review of the claim; its level is then REVIEW, except for a late end."""
    assumed: bool = False
    """True if the provider reported a number of GPUs and the GPU was chosen by metering."""
    from_ns: int = -FOREVER_NS
    """In force only from then on, if that is later than its start, which decides its precedence."""
    until_ns: int = FOREVER_NS
    """In force on this GPU only until then, if that is earlier than its end."""
    counted: bool = False
    """True if the provider reported a number of GPUs; it may be on different GPUs over time."""

    def __post_init__(self) -> None:
        """Reject slots and shares that a GPU does not have. Raises ValueError."""
        checked(self.compute)
        checked(self.memory)
        if self.share is not None and (self.exclusive or not 0 < self.share <= 1):
            message = f"claim {self.id}: share {self.share}: expected 0 < share <= 1, not exclusive"
            raise ValueError(message)
        if self.level is Level.REVIEW and not self.review:
            message = f"claim {self.id}: level REVIEW: expected a reason for the review"
            raise ValueError(message)

    @property
    def begins_ns(self) -> int:
        """Start of the time in force."""
        return max(self.start_ns, self.from_ns)

    @property
    def ceases_ns(self) -> int:
        """End of the time in force."""
        return min(self.end_ns, self.until_ns)

    def slots(self, tiling: Tiling) -> Slots:
        """Return the slots of its device in one of the tilings."""
        return self.compute if tiling is Tiling.COMPUTE else self.memory


class Release(msgspec.Struct, frozen=True, order=True, gc=False):
    """End of a claim. It may be received before the claim; the earliest release counts."""

    claim: str
    instant_ns: int


class Stretch(msgspec.Struct, frozen=True, order=True, gc=False):
    """Samples of one boot, from the first to the last, with no two neighbours further apart than a gap.

    A single sample is a stretch too. The clock was right to within `uncertainty_ns`. `skew_ns` is
    the difference between the node's clock and the collector's.
    """

    boot: str
    first_ns: int
    last_ns: int
    uncertainty_ns: int = 0
    skew_ns: int = 0


class Stay(msgspec.Struct, frozen=True, order=True, gc=False):
    """The GPU is in a node in [start, end). Of two stays the later counts."""

    start_ns: int
    node: str
    end_ns: int = FOREVER_NS


class Instance(msgspec.Struct, frozen=True, order=True, gc=False):
    """A MIG instance: its slots in both tilings."""

    compute: Slots
    memory: Slots


class Layout(msgspec.Struct, frozen=True, order=True, gc=False):
    """MIG layout of the GPU from a timestamp on; without instances MIG is off.

    Raises ValueError if instances overlap.
    """

    start_ns: int
    id: str
    instances: tuple[Instance, ...] = ()

    def __post_init__(self) -> None:
        """Reject a layout that no GPU can have."""
        for tiling in Tiling:
            _remainder(self, tiling)

    def stranded(self, tiling: Tiling) -> tuple[Slots, ...]:
        """Return the slots that no further instance can use.

        Each instance needs compute and memory: if one of them is used up, the rest of the other is
        stranded.
        """
        other = Tiling.MEMORY if tiling is Tiling.COMPUTE else Tiling.COMPUTE
        if not self.instances or _remainder(self, other):
            return ()
        return _remainder(self, tiling)


def _remainder(layout: Layout, tiling: Tiling) -> tuple[Slots, ...]:
    """Return the slots without an instance, in order. Raises ValueError if instances overlap."""
    compute = tiling is Tiling.COMPUTE
    free: list[Slots] = []
    at: Units = 0
    for taken in sorted(checked(i.compute if compute else i.memory) for i in layout.instances):
        if taken.low < at:
            message = f"layout {layout.id}: instances overlap in {tiling} slot {taken.low}"
            raise ValueError(message)
        if at < taken.low:
            free.append(Slots(at, taken.low))
        at = taken.high
    if at < WHOLE.high:
        free.append(Slots(at, WHOLE.high))
    return tuple(free)


class Outage(msgspec.Struct, frozen=True, order=True, gc=False):
    """The GPU is unavailable in [start, end): announced maintenance, or proven to be down."""

    announced: bool
    start_ns: int
    end_ns: int


class Reservation(msgspec.Struct, frozen=True, order=True, gc=False):
    """Slots reserved for a tenant in [start, end), used or not."""

    start_ns: int
    id: str
    tenant: str
    end_ns: int
    compute: Slots = WHOLE
    memory: Slots = WHOLE

    def __post_init__(self) -> None:
        """Reject slots that a GPU does not have. Raises ValueError."""
        checked(self.compute)
        checked(self.memory)

    def slots(self, tiling: Tiling) -> Slots:
        """Return its slots in one of the tilings."""
        return self.compute if tiling is Tiling.COMPUTE else self.memory


class Sighting(msgspec.Struct, frozen=True, order=True, gc=False):
    """Evidence from a source other than the agent that the node was running in [start, end)."""

    witness: Witness
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
    stays: tuple[Stay, ...]
    claims: tuple[Claim, ...] = ()
    releases: tuple[Release, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    layouts: tuple[Layout, ...] = ()
    outages: tuple[Outage, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    sightings: tuple[Sighting, ...] = ()
