"""Parts of the API's documents that the client reads; other fields are ignored.

A field that an older collector does not send has a default.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from railscope import api

NodeItem: TypeAlias = api.Node
NodesAnswer: TypeAlias = api.NodeList
NodeAnswer: TypeAlias = api.NodeDetail
ReadingValue: TypeAlias = api.Reading
GpuItem: TypeAlias = api.Gpu
FleetGpuItem: TypeAlias = api.Gpu
GpusAnswer: TypeAlias = api.GpuList
JobItem: TypeAlias = api.Job
JobsAnswer: TypeAlias = api.JobList


class ViewAnswer(msgspec.Struct, frozen=True):
    """/api/v1/cluster, /api/v1/rails, /api/v1/tenants."""

    timestamp_ns: int
    rows: list[api.MetricValue]


class ExpectedNode(msgspec.Struct, frozen=True):
    """A node of the inventory."""

    node: str
    state: str


class InventoryAnswer(msgspec.Struct, frozen=True):
    """/api/v1/inventory; null without an inventory."""

    nodes: list[ExpectedNode] | None


class IncidentJob(msgspec.Struct, frozen=True):
    """A job that an incident touches."""

    tenant: str
    workload: str
    source: str = ""


class IncidentItem(msgspec.Struct, frozen=True):
    """An incident of /api/v1/incidents."""

    id: str
    severity: str
    title: str
    onset: str
    cause: dict[str, Any]
    incident_class: str = msgspec.field(name="class", default="")
    text: str = ""
    detected: str = ""
    ended: str | None = None
    action: str = ""
    commands: list[str] = []
    victims: list[dict[str, Any]] = []
    victim_count: int = 0
    jobs: list[IncidentJob] = []
    lost_gpu_seconds: float = 0
    lost_gpu_time_seconds: float | msgspec.UnsetType | None = msgspec.UNSET
    """Null if it is not known; collectors before this field send `lost_gpu_seconds` alone."""
    explained_by: str | None = None
    evidence: list[dict[str, Any]] = []

    def nodes(self) -> set[str]:
        """Return the nodes of its cause and of its victims."""
        named = set[str]()
        for entity in (self.cause, *self.victims):
            nodes = entity.get("nodes", ())
            several = nodes if isinstance(nodes, list | tuple) else ()
            named |= {str(name) for name in (entity.get("node"), *several) if name}
        return named


class IncidentsAnswer(msgspec.Struct, frozen=True):
    """/api/v1/incidents."""

    timestamp_ns: int
    rows: list[IncidentItem]
    suppressed: int = 0


class AccountTenant(msgspec.Struct, frozen=True):
    """GPU time of a tenant."""

    held_ns: str = "0"


class AccountAnswer(msgspec.Struct, frozen=True):
    """/api/v1/account."""

    tenants: dict[str, AccountTenant] = {}


class EventItem(msgspec.Struct, frozen=True):
    """An event of /api/v1/events."""

    node: str
    name: str
    wall_ns: int
    facts: dict[str, Any] = {}
    device: dict[str, str] | None = None


class EventsAnswer(msgspec.Struct, frozen=True):
    """/api/v1/events, oldest first."""

    events: list[EventItem]
