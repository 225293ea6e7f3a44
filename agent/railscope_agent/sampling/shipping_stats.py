"""Counters and states of the components that send to collectors.

The components update them; the self metrics export them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NO_CHECKPOINT, CONSISTENT, CONFLICT = 0, 1, 2


@dataclass(slots=True)
class AuditLogState:
    """State of the collector's audit log, as observed by this agent's witness."""

    state: int = NO_CHECKPOINT
    records: int = 0
    """Number of records that the stored checkpoint covers."""


@dataclass(slots=True)
class ShippingStats:
    """Counts since the start, and the present size of the spool; zero without shipping."""

    shipped_frames: int = 0
    failures: int = 0
    spool_bytes: int = 0
    spool_envelopes: int = 0
    unstored_bytes: int = 0
    """Size of the envelopes that a collector has received, and whose evidence is not stored."""
    unstored_envelopes: int = 0
    unstored_since_ns: int | None = None
    """Receipt of the oldest of these envelopes on the boot clock; None if there is none."""
    audit_logs: tuple[AuditLogState, ...] = ()
    """Audit logs that the agent witnesses, one for each collector."""
    dropped_frames: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("spool_full", "disk", "rejected", "damaged", "unstored"), 0
        )
    )
    collector_urls: tuple[str, ...] = ()
    """URLs of the collectors, sorted; empty if there are not several."""
    collector_url: str = ""
    """URL of the collector that responded last."""
    collector_changes: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("failures", "unacknowledged", "denied", "draining"), 0
        )
    )
    """Changes of the collector in use, by reason."""
