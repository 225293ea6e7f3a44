"""States of a part of a GPU at a time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class SlotState(StrEnum):
    """State of a slot at a time."""

    OBSERVED = "observed"
    INFERRED = "inferred"
    IDLE = "idle"
    RESERVED = "reserved"
    STRANDED = "stranded"
    SYSTEM = "system"
    MAINTENANCE = "maintenance"
    DOWN = "down"
    REVIEW = "review"
    """Held only by evidence that is pending review."""
    UNCLAIMED = "unclaimed"
    """Used without a claim."""
    UNKNOWN = "unknown"


MEANINGS: Mapping[SlotState, str] = {
    SlotState.OBSERVED: "held, as an agent measured it or, without agents, the job list states it",
    SlotState.INFERRED: "held as the scheduler reported it, not measured",
    SlotState.IDLE: "free, and observed",
    SlotState.RESERVED: "reserved, and not used",
    SlotState.STRANDED: "unusable remainder of a MIG layout",
    SlotState.SYSTEM: "held by the operator, as for a health check",
    SlotState.MAINTENANCE: "unavailable by a maintenance of the calendar",
    SlotState.DOWN: "unavailable by an outage of the calendar",
    SlotState.REVIEW: "held only by evidence under review",
    SlotState.UNCLAIMED: "used without a claim",
    SlotState.UNKNOWN: "no claim and no samples",
}
"""Meaning of each state, for people."""
HELD_STATES = (SlotState.OBSERVED, SlotState.INFERRED)
"""States in which a slot is held by a tenant."""
