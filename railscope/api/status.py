"""Status of a cluster or of a node: the worst of its reasons, and figures."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from railscope import api, figures

WORST_FIRST = ("failed", "unknown", "degraded", "healthy")
"""States of a cluster, node, device or job; what is stale is unknown."""
_NOUNS = {"nodes": "node", "gpus": "GPU", "incidents": "open incident", "jobs": "running job"}
_WORDS = {"unclaimed": "used without a claim"}


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
    """Number of nodes in each state."""
    gpus: dict[str, int] | None = None
    """Number of GPUs in each use; that of GPUs on stale nodes is unknown."""
    jobs: int | None = None
    incidents: dict[str, int] | None = None
    """Number of open incidents of each severity, without those that another incident explains."""
    open_incidents: tuple[api.IncidentDocument, ...] = ()
    """The most urgent ones of these incidents, at most ten."""
    absent: dict[str, str] = {}


def rank(state: str) -> int:
    """Return the position of a state, the worst first; that of unknown for a word of a newer release."""
    return WORST_FIRST.index(state if state in WORST_FIRST else "unknown")


def worst(*states: str) -> str:
    """Return the worst of some states; failed is worse than unknown."""
    return min(states, key=rank, default="healthy")


def sums(found: Status) -> dict[str, str]:
    """Return each known figure in words, such as "32 GPUs: 24 claimed, 8 unknown"."""
    texts = {}
    for name, noun in _NOUNS.items():
        value = getattr(found, name)
        if value is None:
            continue
        parts: Mapping[str, int] = value if isinstance(value, dict) else {}
        total = sum(parts.values()) if isinstance(value, dict) else value
        detail = ", ".join(f"{n:,} {_WORDS.get(part, part)}" for part, n in parts.items() if n)
        texts[name] = figures.count(total, noun) + (detail and f": {detail}")
    return texts


def headline(found: Status) -> str:
    """Return the status in one line."""
    return f"{found.status.upper()}: {'; '.join(sums(found).values()) or 'no figure is known'}"


def other_reasons(found: Status) -> list[StatusReason]:
    """Return the reasons that are not the title of an open incident, worst first."""
    titles = {each.title for each in found.open_incidents}
    reasons = [each for each in found.reasons if each.text not in titles]
    return sorted(reasons, key=lambda each: rank(each.status))
