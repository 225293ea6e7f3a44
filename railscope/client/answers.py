"""Parts of the API's documents that the client reads; other fields are ignored.

A field that an older collector does not send has a default.
"""

from __future__ import annotations

from typing import Any

import msgspec


class MetricValue(msgspec.Struct, frozen=True):
    """One value of a view; null is unknown."""

    metric: str
    value: float | None
    labels: dict[str, str] = {}


class ViewAnswer(msgspec.Struct, frozen=True):
    """/api/v1/cluster, /api/v1/rails, /api/v1/tenants."""

    timestamp_ns: int
    rows: list[MetricValue]


class NodeItem(msgspec.Struct, frozen=True):
    """A node of /api/v1/nodes."""

    node: str
    gpus: int
    agent_version: str = ""
    streams: list[str] = []
    state: str = ""
    """State that the collector decides on; empty from a collector that does not."""
    reason: str = ""
    incidents: list[str] = []
    reporting: float | None = msgspec.field(name="railscope_node_reporting", default=None)
    age_seconds: float | None = msgspec.field(
        name="railscope_node_last_frame_age_seconds", default=None
    )
    clock_offset_seconds: float | None = msgspec.field(
        name="railscope_node_clock_offset_seconds", default=None
    )


class NodesAnswer(msgspec.Struct, frozen=True):
    """/api/v1/nodes."""

    timestamp_ns: int
    rows: list[NodeItem]


class ExpectedNode(msgspec.Struct, frozen=True):
    """A node of the inventory."""

    node: str
    state: str


class InventoryAnswer(msgspec.Struct, frozen=True):
    """/api/v1/inventory; null without an inventory."""

    nodes: list[ExpectedNode] | None


class ReadingValue(msgspec.Struct, frozen=True):
    """A reading of a source: a value, or the reason for its absence."""

    metric: str
    entity: list[Any]
    value: float | None = None
    absent: str = ""
    device: dict[str, str] = {}


class StreamReadings(msgspec.Struct, frozen=True):
    """The latest readings of a source."""

    timestamp_ns: int
    readings: list[ReadingValue]
    age_seconds: float | None = None


class HolderItem(msgspec.Struct, frozen=True):
    """A job that holds a GPU."""

    tenant: str
    source: str
    workload: str
    held_ratio: float


class GpuItem(msgspec.Struct, frozen=True):
    """A GPU of a node, with its rail and its jobs."""

    gpu: str
    index: str = ""
    pci_address: str = ""
    rail: int | None = None
    holders: list[HolderItem] = []


class FleetGpuItem(msgspec.Struct, frozen=True):
    """A GPU of /api/v1/gpus, with the NICs on its rail."""

    node: str
    gpu: str
    state: str
    index: str = ""
    pci_address: str = ""
    rail: int | None = None
    nics: list[str] = []
    health: str = "unknown"
    reasons: list[str] = []
    incidents: list[str] = []
    age_seconds: float | None = None
    utilization_ratio: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    memory_used_bytes: float | None = None
    memory_size_bytes: float | None = None
    link_up: bool | None = None
    receive_bytes_per_second: float | None = None
    transmit_bytes_per_second: float | None = None
    holders: list[HolderItem] = []


class GpusAnswer(msgspec.Struct, frozen=True):
    """/api/v1/gpus."""

    timestamp_ns: int
    found: int
    rows: list[FleetGpuItem]
    offset: int = 0
    states: dict[str, int] = {}
    rails: list[dict[str, int]] = []
    problem: str = ""


class NodeAnswer(msgspec.Struct, frozen=True):
    """/api/v1/nodes/{node}."""

    node: str
    timestamp_ns: int
    streams: dict[str, StreamReadings]
    gpus: list[GpuItem] = []


class JobStepItem(msgspec.Struct, frozen=True):
    """Steps of a job."""

    period_seconds: float | None = None


class JobStraggler(msgspec.Struct, frozen=True):
    """The GPU of a job that is furthest behind, by one measure; without a node there is none."""

    measure: str
    node: str = ""
    index: str = ""
    deviation_ratio: float | None = None


class JobPlace(msgspec.Struct, frozen=True):
    """A GPU of a job."""

    node: str
    gpu: str
    index: str = ""
    pci_address: str = ""
    held_ratio: float = 1.0
    readings: list[dict[str, Any]] = []


class JobItem(msgspec.Struct, frozen=True):
    """A job of /api/v1/jobs; its places are in its own document only."""

    tenant: str
    source: str
    workload: str
    start_ns: int
    gpus: float
    nodes: int
    state: str = ""
    """State that the collector decides on; empty from a collector that does not."""
    reason: str = ""
    incidents: list[str] = []
    stale_gpus: int = 0
    shared_gpus: int = 0
    rollups: list[MetricValue] = []
    stragglers: list[JobStraggler] = []
    step: JobStepItem | None = None
    places: list[JobPlace] = []


class JobsAnswer(msgspec.Struct, frozen=True):
    """/api/v1/jobs."""

    timestamp_ns: int
    rows: list[JobItem]
    suppressed: int = 0


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
    victims: list[dict[str, Any]] = []
    victim_count: int = 0
    jobs: list[IncidentJob] = []
    lost_gpu_seconds: float = 0
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
