"""Facts about one GPU that decide what is metered: claims, outages, reservations.

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
    """Slots of its device: the GPU, or a MIG instance."""
    exclusive: bool = True
    system: bool = False
    source: str = ""
    """Provider of the claim."""
    share: Fraction | None = None
    """Requested part of the device (a GPU or MIG instance) that `compute` names.

    Only for a claim that is not exclusive. None: an equal part of the remainder after claims with a
    share.
    """
    from_ns: int = -FOREVER_NS
    """Time from which it is in force, if that is later than its start, which decides its precedence."""
    counted: bool = False
    """True if the provider reported a number of GPUs; it may be on different GPUs over time."""
    profile: str = ""
    """MIG profile of its device."""
    is_open: bool = False
    """True if it has not ended: its end is the last time at which it was observed."""

    def __post_init__(self) -> None:
        """Reject slots and shares that a GPU does not have. Raises ValueError."""
        units.check_slots(self.compute)
        if self.share is not None and (self.exclusive or not 0 < self.share <= 1):
            message = f"invalid claim {self.id}: share {self.share}: expected 0 < share <= 1, not exclusive"
            raise ValueError(message)

    @property
    def begins_ns(self) -> int:
        """Start of the time in force."""
        return max(self.start_ns, self.from_ns)


class GpuOutage(msgspec.Struct, frozen=True, order=True, gc=False):
    """The GPU is unavailable in [start, end): announced maintenance, or proven to be down."""

    announced: bool
    start_ns: int
    end_ns: int


class SlotReservation(msgspec.Struct, frozen=True, order=True, gc=False):
    """The free part of the GPU is reserved for a tenant in [start, end), used or not."""

    start_ns: int
    id: str
    tenant: str
    end_ns: int
    from_ns: int = -FOREVER_NS
    """Time from which it is in force on this GPU, if that is later than its start, which decides its precedence."""

    @property
    def begins_ns(self) -> int:
        """Start of the time in force."""
        return max(self.start_ns, self.from_ns)
