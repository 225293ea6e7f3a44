"""Counters of the shipping components, exported by the self metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

HOLDS_NONE, HOLDS, DISPUTED = 0, 1, 2


@dataclass(slots=True)
class CustodyState:
    """State of the collector's audit log, as observed by this agent's witness."""

    state: int = HOLDS_NONE
    records: int = 0
    """Number of records that the stored checkpoint covers."""


@dataclass(slots=True)
class ShippingStats:
    """Counts since the start, and the present size of the spool; zero without shipping."""

    shipped_frames: int = 0
    failures: int = 0
    spool_bytes: int = 0
    spool_envelopes: int = 0
    custody: CustodyState | None = None
    """None if the agent is no witness."""
    dropped_frames: dict[str, int] = field(
        default_factory=lambda: {"spool_full": 0, "disk": 0, "rejected": 0, "damaged": 0}
    )
