"""Extent of the cluster in views: the collectors whose nodes they contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


class ExtentMember(msgspec.Struct, frozen=True):
    """A collector, and whether views contain its nodes."""

    name: str
    url: str
    nodes: int
    is_included: bool
    problem: str = ""
    """Reason why its nodes are unknown."""
    clock_offset_seconds: float = 0.0
    """Lead of the head's clock over its own, as far as it is corrected."""
    rejected: int = 0
    """Records and facts of its nodes that the head did not accept."""
    rejected_problem: str = ""
    """Reason of the last one."""
    lag_seconds: float | None = None
    """Age of the last time up to which the head applied all of its records; None before the first snapshot."""


@dataclass(frozen=True, slots=True)
class ClusterExtent:
    """Collectors with their nodes in views."""

    members: tuple[ExtentMember, ...]
    is_summary: bool = False
    """True if neither nodes nor collectors are stated individually, as for tenants."""

    def for_tenant(self) -> ClusterExtent:
        """Return what a tenant may read."""
        return ClusterExtent(self.members, is_summary=True)

    @property
    def is_complete(self) -> bool:
        """True if all collectors are included."""
        return all(each.is_included for each in self.members)

    @property
    def text(self) -> str:
        """Return the numbers of collectors and nodes in words."""
        included = [each for each in self.members if each.is_included]
        collectors = f"{len(included)} of {len(self.members)} collectors"
        if self.is_summary:
            return collectors
        nodes = sum(each.nodes for each in included)
        total = sum(each.nodes for each in self.members)
        return f"{collectors}, {nodes:,} of {total:,} nodes"

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        members = () if self.is_summary else self.members
        return {"text": self.text, "complete": self.is_complete, "parts": members}

    def add_to(self, document: bytes) -> bytes:
        """Return a JSON object with the collectors in it as its last member."""
        if not document.endswith(b"}") or document == b"{}":
            return document
        return document[:-1] + b',"collectors":' + msgspec.json.encode(self.to_json()) + b"}"
