"""Status of a cluster or of a node: the worst of its reasons, and figures."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from railscope import api

WORST_FIRST = ("failed", "unknown", "degraded", "healthy")


class StatusReason(msgspec.Struct, frozen=True):
    """A fact, and the status that follows from it."""

    status: str
    text: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that is null is unknown; `absent` has the reason."""

    status: str
    reasons: tuple[StatusReason, ...]
    age_seconds: float | None = None
    nodes: dict[str, int] | None = None
    gpus: dict[str, float] | None = None
    jobs: int | None = None
    incidents: dict[str, int] | None = None
    open_incidents: tuple[api.IncidentDocument, ...] = ()
    absent: dict[str, str] = {}


def worst(states: Iterable[str]) -> str:
    """Return the worst of some states; failed is worse than unknown."""
    return min(states, key=WORST_FIRST.index, default="healthy")


def use_counts(gpus: float, claimed: float, unclaimed: float | None) -> dict[str, float]:
    """Return GPUs by their use; without the number of unclaimed ones the rest may be used or idle."""
    counts = {"claimed": claimed}
    if unclaimed is None:
        counts["not_claimed"] = gpus - claimed
    else:
        counts |= {"unclaimed": unclaimed, "idle": max(gpus - claimed - unclaimed, 0.0)}
    return {name: round(count, 2) for name, count in counts.items()}
