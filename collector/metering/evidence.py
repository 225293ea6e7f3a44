"""What metering is told about one GPU. Facts are never changed; metering takes them as a set.

Facts that are ordered prevail in that order: of two that are in force at one instant, the greater
one counts. That is why the fields stand in the order they do.
"""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction

import msgspec

from collector.metering.units import FOREVER_NS, WHOLE, Slots, Tiling, Units, checked

SCHEDULERS = ("slurm", "kubernetes")


def job_id(workload: str) -> str:
    """Id of the scheduler's job that a workload is: `123` of `slurm:123`."""
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
    """Who else says that a silent node was there; the higher one is named."""

    NONE = 0
    BMC = 1
    NODE_READY = 2
    SCHEDULER = 3


class Claim(msgspec.Struct, frozen=True, order=True, gc=False):
    """A tenant holds slots of the GPU in [start, end). An id is used for one claim and never again.

    A claim on a node holds only while the GPU is in that node. `system` is a health check or the
    administrator's own use. Where the same id is told with two ends, the earlier one counts.
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

    Only for a claim that is not exclusive. None: an equal part of what claims with a share leave.
    """
    review: str = ""
    """Reason why the claim waits for a person; its level is then REVIEW, unless it ended late."""
    assumed: bool = False
    """True if the provider reported a number of GPUs and the GPU was chosen by metering."""
    from_ns: int = -FOREVER_NS
    """In force only from then on, where that is later than its start; that decides its precedence."""
    until_ns: int = FOREVER_NS
    """In force on this GPU only until then, where that is earlier than its end."""
    counted: bool = False
    """True if the provider reported a number of GPUs; it may be on one GPU after the other."""

    def __post_init__(self) -> None:
        """Reject slots and shares that a GPU does not have."""
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
        """The first instant that it is in force."""
        return max(self.start_ns, self.from_ns)

    @property
    def ceases_ns(self) -> int:
        """The instant from which on it is not in force any more."""
        return min(self.end_ns, self.until_ns)

    def slots(self, tiling: Tiling) -> Slots:
        """Slots of the device that it names, in one of the tilings."""
        return self.compute if tiling is Tiling.COMPUTE else self.memory


class Release(msgspec.Struct, frozen=True, order=True, gc=False):
    """A claim ended. May be known before the claim is; the earliest release counts."""

    claim: str
    instant_ns: int


class Stretch(msgspec.Struct, frozen=True, order=True, gc=False):
    """Samples of one boot, from the first to the last, no two neighbours further apart than a gap.

    A single sample is a stretch too. The clock was right to within `uncertainty_ns`.
    `skew_ns` is how far the node's clock was from the collector's.
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
    """How the GPU is divided from an instant on. Without instances MIG is off.

    Raises ValueError where instances overlap.
    """

    start_ns: int
    id: str
    instances: tuple[Instance, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a layout that no GPU can have."""
        for tiling in Tiling:
            _remainder(self, tiling)

    def stranded(self, tiling: Tiling) -> tuple[Slots, ...]:
        """What no further instance can use: each needs compute and memory, and one is used up."""
        other = Tiling.MEMORY if tiling is Tiling.COMPUTE else Tiling.COMPUTE
        if not self.instances or _remainder(self, other):
            return ()
        return _remainder(self, tiling)


def _remainder(layout: Layout, tiling: Tiling) -> tuple[Slots, ...]:
    """The slots that no instance has, in order."""
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
    """Nothing can run in [start, end): maintenance if it was announced, else proven to be down."""

    announced: bool
    start_ns: int
    end_ns: int


class Reservation(msgspec.Struct, frozen=True, order=True, gc=False):
    """Slots are kept for a tenant in [start, end), used or not."""

    start_ns: int
    id: str
    tenant: str
    end_ns: int
    compute: Slots = WHOLE
    memory: Slots = WHOLE

    def __post_init__(self) -> None:
        """Refuse slots that a GPU does not have."""
        checked(self.compute)
        checked(self.memory)

    def slots(self, tiling: Tiling) -> Slots:
        """What it keeps in one of the tilings."""
        return self.compute if tiling is Tiling.COMPUTE else self.memory


class Sighting(msgspec.Struct, frozen=True, order=True, gc=False):
    """Someone other than the agent saw the node at work in [start, end)."""

    witness: Witness
    start_ns: int
    end_ns: int


class ClockDoubt(msgspec.Struct, frozen=True, order=True, gc=False):
    """A time in which the clock of the collector that received evidence was suspect.

    `since_ns` is its begin by the clock of that time, `delta_ns` by how much later an administrator's
    decision placed what was received; 0 where the clock returned. The audit log has both.
    """

    since_ns: int
    delta_ns: int = 0


class Evidence(msgspec.Struct, frozen=True):
    """Everything that is known of one GPU. Neither order nor repetition means anything."""

    gpu: str
    stays: tuple[Stay, ...]
    claims: tuple[Claim, ...] = ()
    releases: tuple[Release, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    layouts: tuple[Layout, ...] = ()
    outages: tuple[Outage, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    sightings: tuple[Sighting, ...] = ()
