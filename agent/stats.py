"""What the shipping side counts; the self metrics show it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ShippingStats:
    """Counts since the start, and the present size of the spool; zero where nothing is shipped."""

    shipped_frames: int = 0
    failures: int = 0
    spool_bytes: int = 0
    spool_envelopes: int = 0
    dropped_frames: dict[str, int] = field(
        default_factory=lambda: {"spool_full": 0, "disk": 0, "rejected": 0, "damaged": 0}
    )
