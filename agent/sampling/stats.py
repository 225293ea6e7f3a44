"""What the shipping side counts; the self metrics show it."""

from __future__ import annotations

from dataclasses import dataclass, field

HOLDS_NONE, HOLDS, DISPUTED = 0, 1, 2


@dataclass(slots=True)
class CustodyState:
    """How the collector's audit log fares, as far as this agent can tell."""

    state: int = HOLDS_NONE
    records: int = 0
    """How many the checkpoint is over that is held."""


@dataclass(slots=True)
class ShippingStats:
    """Counts since the start, and the present size of the spool; zero where nothing is shipped."""

    shipped_frames: int = 0
    failures: int = 0
    spool_bytes: int = 0
    spool_envelopes: int = 0
    custody: CustodyState | None = None
    """None where nothing is looked after."""
    dropped_frames: dict[str, int] = field(
        default_factory=lambda: {"spool_full": 0, "disk": 0, "rejected": 0, "damaged": 0}
    )
