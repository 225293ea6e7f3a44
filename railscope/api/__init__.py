"""Resources of the collector's API, one struct each.

The collector's handlers return them, the pages of the console are templates over them, and the command line decodes them.
A field that an older collector does not send has a default; unknown fields are ignored. Null is a value that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec


class Holder(msgspec.Struct, frozen=True):
    """A job that holds a share of a GPU."""

    tenant: str
    source: str
    workload: str
    held_ratio: float


class Gpu(msgspec.Struct, frozen=True):
    """A GPU with the NICs on its rail. Readings are those of the GPU, or sums over the ports of the NICs."""

    gpu: str
    """UUID."""
    index: str = ""
    pci_address: str = ""
    rail: int | None = None
    node: str = ""
    state: str = ""
    """State of the GPU alone; a victim of an incident elsewhere has no worse state."""
    nics: tuple[str, ...] = ()
    nic_state: str = ""
    """Worst state of these NICs, `down` if a link is down; empty without any."""
    health: str = "unknown"
    """Verdict of the agent on the GPU."""
    reason: str = ""
    """The first of the reasons, in words."""
    reasons: tuple[str, ...] = ()
    """Reasons of both states, those of the GPU first and causes before their consequences."""
    incidents: tuple[str, ...] = ()
    """Open incidents whose cause is here."""
    victim_of: tuple[str, ...] = ()
    """Open incidents whose cause is elsewhere."""
    age_seconds: float | None = None
    utilization_ratio: float | None = None
    """Mean of the last minute, as is traffic; of the shares of pauses it is the largest of ten seconds."""
    power_watts: float | None = None
    temperature_celsius: float | None = None
    memory_used_bytes: float | None = None
    memory_size_bytes: float | None = None
    link_up: bool | None = None
    receive_bytes_per_second: float | None = None
    transmit_bytes_per_second: float | None = None
    paused_ratio: float | None = None
    """Share of time in which the switch pauses a NIC; `pausing_ratio` in which a NIC pauses the switch."""
    pausing_ratio: float | None = None
    thermal_throttle_ratio: float | None = None
    unclaimed_processes: int | None = None
    """Processes that no claim covers."""
    holders: tuple[Holder, ...] = ()
    use: str = "unknown"
    """`claimed`, `unclaimed` (used without a claim), `idle`, or `unknown`: the node is stale, or claims or processes are not known."""


class GpuList(msgspec.Struct, frozen=True):
    """A part of the GPUs that a query selects, worst first."""

    timestamp_ns: int
    rows: tuple[Gpu, ...]
    found: int
    offset: int = 0
    states: dict[str, int] = {}
    """Number of selected GPUs in each state."""
    use: dict[str, int] = {}
    """Number of selected GPUs that are `claimed`, used without a claim (`unclaimed`), `idle`, or on stale nodes (`unknown`)."""
    rails: tuple[dict[str, int], ...] = ()
    """Number of selected GPUs by rail and state; removed in the release after the next one."""
    problem: str = ""
    """Reason why the incidents are not those of now; empty if they are."""
    diagnosis_ns: int = 0
    view: str = "gpus"


class Node(msgspec.Struct, frozen=True):
    """A node with its state; times are null while they are not known."""

    node: str
    gpus: int = 0
    state: str = ""
    """Worst of the node and of its GPUs, NICs and links; empty from a collector that does not decide on it."""
    reason: str = ""
    """Reason of the state, in words; of a healthy node the incident that it is a victim of, if any."""
    since_ns: int | None = None
    rails: str = ""
    """State of the GPU, the NIC and the link of each rail, a letter each, from rail 0 on: `F`ailed, `U`nknown, `D`egraded,
    `.` healthy, `v` healthy and a victim of an incident elsewhere, `-` without GPU and NIC.
    """
    incidents: tuple[str, ...] = ()
    """The first open incidents whose cause is here, causes before symptoms."""
    victim_of: tuple[str, ...] = ()
    """The first open incidents whose cause is elsewhere."""
    agent_version: str = ""
    streams: tuple[str, ...] = ()
    reporting: float | None = msgspec.field(name="railscope_node_reporting", default=None)
    age_seconds: float | None = msgspec.field(
        name="railscope_node_last_frame_age_seconds", default=None
    )
    """Age of the newest frame."""
    clock_offset_seconds: float | None = msgspec.field(
        name="railscope_node_clock_offset_seconds", default=None
    )


class NodeList(msgspec.Struct, frozen=True):
    """A part of the nodes that a query selects, worst first."""

    timestamp_ns: int
    rows: tuple[Node, ...]
    found: int = 0
    offset: int = 0
    states: dict[str, int] = {}
    """Number of all nodes in each state."""
    gpus: int = 0
    """GPUs of all nodes."""
    view: str = "nodes"


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reading of a source: a value, or the reason for its absence."""

    metric: str
    entity: tuple[str, ...]
    value: float | int | None = None
    absent: str = ""
    device: Mapping[str, str] = {}
    """Names of the GPU or NIC that it is of; empty for others."""


class Stream(msgspec.Struct, frozen=True):
    """The latest frame of a source."""

    timestamp_ns: int
    readings: tuple[Reading, ...]
    age_seconds: float | None = None
    series: list[dict[str, Any]] = []
    """Series of textfiles, with exact values."""


class NodeDetail(msgspec.Struct, frozen=True):
    """A node with its GPUs and with the latest frames of its sources."""

    node: str
    timestamp_ns: int
    streams: dict[str, Stream]
    state: str = ""
    reason: str = ""
    since_ns: int | None = None
    incidents: tuple[str, ...] = ()
    victim_of: tuple[str, ...] = ()
    age_seconds: float | None = None
    clock_offset_seconds: float | None = None
    missing_frames: int = 0
    agent_version: str = ""
    gpus: tuple[Gpu, ...] = ()


class MetricValue(msgspec.Struct, frozen=True):
    """A value of a view; null is not known."""

    metric: str
    labels: dict[str, str] = {}
    value: float | None = None


class MetricList(msgspec.Struct, frozen=True):
    """Values of a view as metrics."""

    timestamp_ns: int
    rows: tuple[MetricValue, ...]
    view: str = ""


class Rail(msgspec.Struct, frozen=True):
    """A rail over all nodes: its cells (the GPU and the NIC of one node) by state, and readings over all of them."""

    rail: int
    failed: int = 0
    unknown: int = 0
    degraded: int = 0
    healthy: int = 0
    victims: int = 0
    """Healthy cells that are victims of an incident elsewhere; `healthy` includes them."""
    mean_utilization_ratio: float | None = None
    """Mean of the last minute, as are traffic and marked packets; of the shares of pauses it is the largest of ten seconds."""
    max_temperature_celsius: float | None = None
    power_watts: float | None = None
    ports_up: float | None = None
    receive_bytes_per_second: float | None = None
    transmit_bytes_per_second: float | None = None
    max_paused_ratio: float | None = None
    max_pausing_ratio: float | None = None
    marked_packets_per_second: float | None = None


class RailList(msgspec.Struct, frozen=True):
    """All rails, with their roll-ups as metrics."""

    timestamp_ns: int
    rows: tuple[MetricValue, ...]
    rails: tuple[Rail, ...] = ()
    view: str = "rail"


class RailDetail(msgspec.Struct, frozen=True):
    """One rail with its roll-ups, and a part of its GPUs, worst first."""

    timestamp_ns: int
    rail: Rail
    gpus: GpuList
    rollups: tuple[MetricValue, ...] = ()


class JobStep(msgspec.Struct, frozen=True):
    """Steps of a job in the last two minutes."""

    period_seconds: float
    jitter_seconds: float
    """Deviation of single steps from the period."""
    exchange_share: float
    """Share of the step in which the job exchanges."""


class JobStraggler(msgspec.Struct, frozen=True, omit_defaults=True):
    """The GPU of a job that is furthest behind by one measure, or the reason for none (`unknown`)."""

    measure: str
    unknown: str = ""
    node: str = ""
    gpu: str = ""
    index: str = ""
    pci_address: str = ""
    value: float | None = None
    median: float | None = None
    deviation_ratio: float | None = None


class JobReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """Mean of the last minute of a GPU with its deviation from the median of the job, or the reason for its absence."""

    measure: str
    absent: str = ""
    value: float | None = None
    deviation_ratio: float | None = None


class JobPlace(msgspec.Struct, frozen=True):
    """A GPU of a job."""

    node: str
    gpu: str
    index: str = ""
    pci_address: str = ""
    held_ratio: float = 1.0
    start_ns: int = 0
    readings: tuple[JobReading, ...] = ()


class Job(msgspec.Struct, frozen=True):
    """A running job with its state; its places are in its own document only."""

    tenant: str
    source: str
    workload: str
    start_ns: int
    gpus: float
    nodes: int
    state: str = ""
    """Empty from a collector that does not decide on it."""
    reason: str = ""
    """Reason of the state, in words; empty for `healthy`."""
    incidents: tuple[str, ...] = ()
    """The first open incidents that touch the job, causes before symptoms."""
    stale_gpus: int = 0
    """GPUs of nodes without fresh data."""
    shared_gpus: int = 0
    rollups: tuple[MetricValue, ...] = ()
    stragglers: tuple[JobStraggler, ...] = ()
    step: JobStep | None = None
    places: tuple[JobPlace, ...] = ()
    timestamp_ns: int | msgspec.UnsetType = msgspec.UNSET
    """Time of the views, in its own document only."""


class JobList(msgspec.Struct, frozen=True):
    """A part of the running jobs."""

    timestamp_ns: int
    rows: tuple[Job, ...]
    suppressed: int = 0
    """Jobs beyond the largest number that is reported; 0 for a tenant, as they may be those of others."""
    found: int = 0
    offset: int = 0
    view: str = "jobs"


# Incidents ----------------------------------------------------------------------------------------

Timestamp: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]


class NicDocument(msgspec.Struct, frozen=True, tag_field="kind", tag="nic"):
    """A NIC with all of its names; an adapter without an interface, such as EFA, has the name of its RDMA device."""

    node: str
    interface: str
    device: str
    pci_address: str
    rail: int | None
    switch: str
    switch_port: str


class GpuDocument(msgspec.Struct, frozen=True, tag_field="kind", tag="gpu"):
    """A GPU with all of its names."""

    node: str
    index: int | None
    uuid: str
    pci_address: str


class NodeDocument(msgspec.Struct, frozen=True, tag_field="kind", tag="node"):
    """A node, and the interfaces that show its fault."""

    node: str
    interfaces: tuple[str, ...] = ()


class LeafDocument(msgspec.Struct, frozen=True, tag_field="kind", tag="leaf"):
    """A leaf switch, or one of others that hosts cannot distinguish.

    The name is empty if no NIC states it; pods are numbered in the order of their nodes. If switches show the cause,
    `port_switch`, `port` and `queue` name it: the switch may be a spine, and the queue is empty for a whole port.
    """

    switch: str
    pod: int | None
    rail: int | None
    alternatives: tuple[LeafDocument, ...] = msgspec.field(name="or", default=())
    port_switch: str | msgspec.UnsetType = msgspec.UNSET
    port: str | msgspec.UnsetType = msgspec.UNSET
    queue: str | msgspec.UnsetType = msgspec.UNSET


class RackDocument(msgspec.Struct, frozen=True, tag_field="kind", tag="rack"):
    """Nodes with a common power supply; the name is empty if their GPUs do not report a chassis."""

    rack: str
    nodes: tuple[str, ...]


class StorageDocument(msgspec.Struct, frozen=True, tag_field="kind", tag="storage"):
    """A file server."""

    server: str


class JobDocument(msgspec.Struct, frozen=True, tag_field="kind", tag="job"):
    """A job, and its speed relative to its past: the median of the last five minutes of the incident.

    It is null for a job that is not slower, and of the cause.
    """

    tenant: str
    source: str
    workload: str
    speed: float | None = None
    ended: Timestamp | None = None
    """Time by which the job ended while the incident was open; null while it runs."""
    loss: str = ""
    """Basis of the lost GPU time, in words: the steps of a job whose speed was not known, or the idle GPUs of an ended job."""


EntityDocument: TypeAlias = (
    NicDocument
    | GpuDocument
    | NodeDocument
    | LeafDocument
    | RackDocument
    | StorageDocument
    | JobDocument
)


class EvidenceDocument(msgspec.Struct, frozen=True):
    """A value that supports an incident; null is unknown. `comparison` is the meaning of the threshold.

    `window_seconds` is the time over which the signal is judged, up to the evaluation; the value may be that of its last part.
    0 stands for what has no window: a report, a setting, an age.
    """

    signal: str
    device: str
    value: float | None
    threshold: float | None
    comparison: str
    window_seconds: float
    text: str = ""
    """All of it in words; empty in documents of earlier releases."""
    worst_value: float | None = None
    """Value furthest beyond the threshold, of the evaluations that listed the device; null without one, and of what has no degree:
    counts, flags, states, reports and settings."""
    worst_at: Timestamp | None = None
    """Evaluation that read it."""


class CommandStep(msgspec.Struct, frozen=True):
    """A step of the action on an incident: check, drain, record, act, verify or resume."""

    step: str
    commands: tuple[str, ...]
    """Lines for a shell; none of what is done by hand."""
    comment: str = ""
    """Advice to read before the commands are typed, or an instruction for work by hand."""


class IncidentDocument(msgspec.Struct, frozen=True):
    """An incident. Times are RFC 3339 in UTC on the collector's clock; `ended` is null while it lasts.

    `onset` is the end of the first slot of 10 seconds that shows the fault, or the time of the report. The fault may have begun up to
    `onset_uncertainty_seconds` before: that is the window of the first evidence as of the detection, the time since the wait of
    a hang began, or the distance of two reads of what has no window; at least one slot.
    `detected` is the time at which this class with this cause was first concluded, from nothing recorded later.
    `runbook` is the path of the section on the class in the runbook, in the console and on the site that alert rules link to.
    `explained_by` is the identity of the incident that explains this one. For a tenant, the names of a node on which none of its jobs is
    touched, and of the devices of that node, are empty.
    """

    id: str
    incident_class: str = msgspec.field(name="class")
    text: str
    title: str
    """Class and cause in words."""
    cause: EntityDocument
    onset: Timestamp
    onset_uncertainty_seconds: float
    detected: Timestamp
    ended: Timestamp | None
    severity: str
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)]
    victims: tuple[EntityDocument, ...]
    victim_count: int
    jobs: tuple[JobDocument, ...]
    evidence: tuple[EvidenceDocument, ...]
    symptoms: tuple[str, ...]
    action: str
    runbook: str
    detail: str
    limits: str
    explained_by: str | None
    commands: tuple[CommandStep, ...] = ()
    """Steps of the action, with the names of the cause, for the scheduler of the affected job, otherwise for that of most jobs; none
    for a tenant."""
    lost_gpu_time_seconds: int | None = None
    """GPU-seconds that jobs lost: by their speed or steps, and, after a fault ended them, by their idle GPUs; null if none of it is known."""
    last_evidence: Timestamp | None = None
    """End of the last slot that shows the fault; null in documents of earlier releases."""


class DiagnosisProgress(msgspec.Struct, frozen=True):
    """Age of the incidents, and the process that evaluates them."""

    running: bool = False
    age_seconds: float | None = None
    """Time since the end of the last slot that was evaluated, or since the start; null before it."""
    lag_seconds: float | None = None
    """Age of the last record that was read, as the process last stated; null before it."""
    lag_bytes: int | None = None
    restarts: int = 0
    problem: str = ""
    """Reason of the last restart."""


class IncidentList(msgspec.Struct, frozen=True):
    """A part of the incidents that a query selects."""

    timestamp_ns: int
    rows: tuple[IncidentDocument, ...]
    diagnosis: DiagnosisProgress = DiagnosisProgress()
    found: int = 0
    offset: int = 0
    suppressed: int = 0
    """Selected incidents after the last one of `rows`."""
    counts: dict[str, int] = {}
    """All open incidents by severity, and the closed ones."""
    view: str = "incidents"


class CurvePointDocument(msgspec.Struct, frozen=True):
    """Value of the cause, and the median of all devices of its kind; null is not known."""

    timestamp_ns: int
    value: float | None
    peers: float | None


class CurveDocument(msgspec.Struct, frozen=True):
    """Curve of one signal."""

    signal: str
    unit: str
    points: tuple[CurvePointDocument, ...]


class IncidentDetail(IncidentDocument, frozen=True, kw_only=True):
    """One incident with the curves of its evidence."""

    timestamp_ns: int
    diagnosis: DiagnosisProgress = DiagnosisProgress()
    curves: tuple[CurveDocument, ...] = ()


# Events -------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True):
    """An event of a node or of the collector."""

    node: str
    name: str
    wall_ns: int
    """Time on the clock of the node."""
    boot_ns: int = 0
    """Time since the boot of the node."""
    entity: tuple[str, tuple[str, ...], dict[str, str]] = ("", (), {})
    """Kind and key of the entity, and facts about it."""
    facts: dict[str, str] = {}
    device: Mapping[str, str] | None = None
    """Names of the GPU or NIC; null for other entities."""
    timestamp_ns: int | None = None
    """Time on the clock of the collector."""
    area: str = ""
    severity: str = "info"
    devices: str = ""
    """Device in words; in a list of the console all that it happened to."""
    text: str = ""
    """Facts in words."""
    incident: str = ""
    """Identity of the incident that the event is about; empty for others."""


class EventList(msgspec.Struct, frozen=True):
    """The newest events, oldest first."""

    events: tuple[Event, ...]
