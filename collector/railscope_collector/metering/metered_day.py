"""One GPU on one UTC day, as metered: the document that the ledger stores and that a bill is computed from.

Each time of the day in which the GPU is in service has one list of parts that add up to the GPU. Parts are sizes and
not positions: positions exist only for MIG instances, while claims are divided. Times are nanoseconds, sizes are units
of `GPU_CAPACITY`, exact.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS
from railscope_collector.metering.counter_increments import CountedQuantity
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.metering.units import Units, exact

UNATTRIBUTED, IDLE, ABSENT = "unattributed", "idle", "absent"
"""Reasons of an amount without a claim: a change of holders or a reset, no holder, no reading on the day."""
BEFORE_FIRST_REPORT, ELSEWHERE = "before the first report of the GPU", "the GPU is in another node"
OUT_OF_SERVICE = "the GPU is retired, or its node is not in the inventory"
"""Reasons why time of a claim is not metered."""


class MeteredDayError(ValueError):
    """A day that does not add up; the message names the GPU and the day."""


def _read_units(value: Any) -> Units:
    """Return a size or quantity from its JSON: an integer, or a fraction in text."""
    return exact(Fraction(value)) if isinstance(value, str) else value


class DayPart(msgspec.Struct, frozen=True, order=True, omit_defaults=True, gc=False):
    """A size of a GPU in one state; `claim` is its claim, or its reservation."""

    size: Any
    """Units, in JSON an integer or a fraction in text."""
    state: SlotState
    tenant: str = ""
    workload: str = ""
    claim: str = ""
    gap_ns: int = 0
    """Time without a sample, of held time that was not observed; FOREVER_NS if that is more than an hour."""
    node_evidence: NodeEvidence = NodeEvidence.NONE
    """Sign of the node in that time; none is stated for more than an hour."""
    reason: str = ""
    """Reason why a person has to decide, in state `review`."""

    def __post_init__(self) -> None:
        """Convert a size that was read from JSON."""
        force_setattr(self, "size", _read_units(self.size))


class DayPiece(msgspec.Struct, frozen=True, gc=False):
    """The parts of a GPU in [start, end), and the node that has it."""

    start_ns: int
    end_ns: int
    node: str
    parts: tuple[DayPart, ...]


class CountedAmount(msgspec.Struct, frozen=True, order=True, omit_defaults=True, gc=False):
    """Increment of a counter, in the unit of its measure; without a claim, `reason` states why."""

    measure: CountedQuantity
    amount: int
    tenant: str = ""
    claim: str = ""
    reason: str = ""
    start_ns: int = 0
    end_ns: int = 0
    """Time within the day in which it was counted; 0 and 0 for the whole day."""


class DayClaim(msgspec.Struct, frozen=True, order=True, omit_defaults=True, gc=False):
    """A claim in force on the day."""

    id: str
    start_ns: int
    end_ns: int | None = None
    """Its end if that is on the day; a later one may still change."""
    mig_profile: str = ""
    instance: Any = 0
    """Units of its MIG instance; 0 if it has none, or it is unknown."""
    requested: Any = 0
    """Units times nanoseconds of the day; 0 for a shared claim without a share."""
    counted: bool = False
    """True if the claim is for a number of GPUs, of which the collector chose this one."""

    def __post_init__(self) -> None:
        """Convert sizes that were read from JSON."""
        force_setattr(self, "instance", _read_units(self.instance))
        force_setattr(self, "requested", _read_units(self.requested))


class UnmeteredClaim(msgspec.Struct, frozen=True, order=True, omit_defaults=True, gc=False):
    """Time of a claim on the day in which the GPU was not in service in the claim's node."""

    start_ns: int
    end_ns: int
    claim: str
    tenant: str
    reason: str
    workload: str = ""
    size: Any = GPU_CAPACITY
    """Units that it claims."""

    def __post_init__(self) -> None:
        """Convert a size that was read from JSON."""
        force_setattr(self, "size", _read_units(self.size))


class MeteredDay(msgspec.Struct, frozen=True, gc=False):
    """A GPU on a day: its parts over time, its amounts, its claims, and what is not metered."""

    gpu: str
    day: int
    """UTC days since the epoch."""
    sku: str
    pieces: tuple[DayPiece, ...] = ()
    amounts: tuple[CountedAmount, ...] = ()
    claims: tuple[DayClaim, ...] = ()
    unmetered: tuple[UnmeteredClaim, ...] = ()
    source: str = ""
    """Job list that it was computed from, and how that is used; empty for reports of agents."""

    @property
    def start_ns(self) -> int:
        """Start of the day."""
        return self.day * DAY_NS

    @property
    def end_ns(self) -> int:
        """End of the day."""
        return (self.day + 1) * DAY_NS

    def check(self) -> None:
        """Check that pieces are in order within the day, and that the parts of each are a whole GPU.

        Raises MeteredDayError.
        """
        now = self.start_ns
        for piece in self.pieces:
            size = sum(part.size for part in piece.parts)
            if not now <= piece.start_ns < piece.end_ns <= self.end_ns or size != GPU_CAPACITY:
                message = (
                    f"invalid piece of {self.gpu} on day {self.day}: {size} units from {piece.start_ns}"
                    f" to {piece.end_ns}: expected {GPU_CAPACITY} units, in order within the day"
                )
                raise MeteredDayError(message)
            if any(part.size <= 0 for part in piece.parts):
                message = f"invalid part of {self.gpu} on day {self.day} at {piece.start_ns}: expected a size"
                raise MeteredDayError(message)
            now = piece.end_ns


def encode_day(day: MeteredDay) -> bytes:
    """Return the canonical JSON of a day: equal days have equal documents."""
    return msgspec.json.encode(day, order="deterministic", enc_hook=str)


def decode_day(content: bytes) -> MeteredDay:
    """Return the day of a document. Raises msgspec.MsgspecError, ValueError."""
    return msgspec.json.decode(content, type=MeteredDay)
