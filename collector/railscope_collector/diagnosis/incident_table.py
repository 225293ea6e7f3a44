"""Incidents as the collector publishes them: documents, metrics, and the part of each that a tenant may read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest

import msgspec

from railscope import api, figures
from railscope.catalog import incidents as catalog
from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis import incident_report as report
from railscope_collector.diagnosis.devices import ClusterDevices
from railscope_collector.diagnosis.findings import SLOT_NS
from railscope_collector.diagnosis.incident_classes import AREAS, Severity
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.diagnosis.jobs import PeerGroups
from railscope_collector.diagnosis.ranking import Reach
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.workloads.job_roster import JobKey

MAX_INCIDENT_CELLS = 500
"""Open incidents with metrics of their own, and causes; all are counted."""
MAX_REACH_CELLS = 5000
"""Nodes, rails and jobs that open incidents reach with metrics, and jobs that they affect."""
_OPERATOR = "by the operator: "
"""Beginning of the action on an incident that the tenant cannot end."""
OTHER_TENANT = api.JobDocument("another tenant", "", "-")


@dataclass(frozen=True, slots=True)
class ReportedIncident:
    """An incident as of its last evaluation.

    `lost_gpu_seconds`, where they are known, and `tenant_nodes` are by tenant: the nodes are those of the tenant's jobs that it
    affects.
    """

    document: api.IncidentDocument
    onset_ns: int
    reach: Reach
    victim_nics: Sequence[api.NicDocument] = ()
    """All of them; the document has the first ones."""
    jobs: Sequence[api.JobDocument] = ()
    """As `victim_nics`."""
    curves: tuple[api.CurveDocument, ...] = ()
    tenant_nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    lost_gpu_seconds: Mapping[str, int] = field(default_factory=dict)
    parts: Sequence[api.NicDocument | api.GpuDocument] = ()
    """Devices that a larger cause consists of."""
    evidence_jobs: Sequence[JobKey | None] = ()
    """Job of each evidence of the document; None for that of a device, also where there are fewer."""
    recovering_slots: int = 0
    """As `Incident.recovering_slots`."""

    def reason(self, *, is_fresh: bool) -> str:
        """Return the title, and for how long a device with fresh data has not shown a fault that recovers."""
        title = self.document.title
        if not is_fresh or not self.recovering_slots:
            return title
        seconds = self.recovering_slots * SLOT_NS / SECOND_NS
        return f"{title} (recovering: no evidence for {figures.duration(seconds)})"

    @property
    def is_open(self) -> bool:
        """True while the incident lasts."""
        return self.document.ended is None

    @property
    def state(self) -> str:
        """`open` or `closed`."""
        return "open" if self.is_open else "closed"

    @property
    def is_root(self) -> bool:
        """True if the incident lasts and no other one explains it."""
        return self.is_open and self.document.explained_by is None

    def of_tenant(self, tenant: str) -> ReportedIncident | None:
        """Return what a tenant may read; None if no job of the tenant is affected.

        Of other tenants nothing is shown: no job with its ranks, no name of a node without jobs of the tenant, no loss, no
        median of devices, no class of what the incident explains. The detail, which repeats the evidence, is that of the tenant's
        own job, if all of its evidence is shown. The action on anything else than an own job is the operator's.
        """
        nodes = self.tenant_nodes.get(tenant)
        if nodes is None:
            return None
        whole = self.document
        jobs = tuple(job for job in self.jobs if job.tenant == tenant)
        nics = tuple(nic for nic in self.victim_nics if nic.node in nodes)
        lost = self.lost_gpu_seconds.get(tenant)
        cause = whole.cause
        curves = tuple(map(_without_peers, self.curves)) if self._is_measured_at(tenant) else ()
        is_own_job = isinstance(cause, api.JobDocument) and cause.tenant == tenant
        if isinstance(cause, api.JobDocument) and not is_own_job:
            cause = OTHER_TENANT
        if isinstance(cause, api.RackDocument):
            rack_nodes = tuple(node for node in cause.nodes if node in nodes)
            cause = api.RackDocument(cause.rack, rack_nodes)
        if isinstance(cause, _OF_NODES) and cause.node not in nodes:
            cause = _without_names(cause)
        shown = [
            (each, job)
            for each, job in zip_longest(whole.evidence, self.evidence_jobs)
            if _is_visible(each.device, job, tenant, cause, nodes)
        ]
        document = msgspec.structs.replace(
            whole,
            cause=cause,
            action=whole.action if is_own_job else _OPERATOR + whole.action.removeprefix(_OPERATOR),
            commands=(),
            title=report.title_of(whole.incident_class, cause),
            jobs=jobs[: report.MAX_LISTED],
            victims=(*nics[: report.MAX_LISTED], *jobs[: report.MAX_LISTED]),
            victim_count=len(nics) + len(jobs),
            lost_gpu_time_seconds=lost,
            evidence=tuple(each for each, _ in shown),
            symptoms=(),
            detail=whole.detail if is_own_job and len(shown) == len(whole.evidence) else "",
        )
        own_nodes, losses = {tenant: nodes}, {} if lost is None else {tenant: lost}
        return replace(
            self,
            document=document,
            victim_nics=nics,
            jobs=jobs,
            curves=curves,
            tenant_nodes=own_nodes,
            lost_gpu_seconds=losses,
            parts=(),
            evidence_jobs=[job for _, job in shown],
        )

    def _is_measured_at(self, tenant: str) -> bool:
        """True if the curves, which are means of the cause's devices, are of a tenant's job or of devices of its nodes only."""
        cause = self.document.cause
        if isinstance(cause, api.JobDocument):
            return cause.tenant == tenant
        if not isinstance(cause, _OF_NODES) or cause.node not in self.tenant_nodes[tenant]:
            return False
        others = (nodes for name, nodes in self.tenant_nodes.items() if name != tenant)
        return not isinstance(cause, api.NodeDocument) or all(
            cause.node not in each for each in others
        )


def report_incident(
    incident: Incident,
    devices: ClusterDevices,
    groups: PeerGroups,
    window_seconds: float,
    shown_ns: int,
) -> ReportedIncident:
    """Return an incident as it is published: `window_seconds` is the usual window, `shown_ns` the end of its last slot."""
    nics, jobs = report.victims_of(incident, devices)
    tenant_nodes = report.nodes_by_tenant(incident, jobs)
    lost = {name: report.lost_time(incident, name) for name in tenant_nodes}
    touched = incident.reach.nodes.union(*incident.job_nodes.values())
    return ReportedIncident(
        report.incident_document(incident, devices, groups, window_seconds, shown_ns),
        incident.onset_ns,
        replace(incident.reach, nodes=touched),
        nics,
        jobs,
        tuple(curve.document() for curve in incident.curves),
        tenant_nodes,
        {name: seconds for name, seconds in lost.items() if seconds is not None},
        report.parts_of(incident, devices),
        tuple(each.job for each in incident.evidence),
        incident.recovering_slots,
    )


_OF_NODES = api.NicDocument | api.GpuDocument | api.NodeDocument


def _without_names(
    cause: api.NicDocument | api.GpuDocument | api.NodeDocument,
) -> api.EntityDocument:
    """Return a cause of which only the kind, and the rail of a NIC, are shown."""
    if isinstance(cause, api.NicDocument):
        return api.NicDocument("", "", "", "", cause.rail, "", "")
    is_gpu = isinstance(cause, api.GpuDocument)
    return api.GpuDocument("", None, "", "") if is_gpu else api.NodeDocument("")


def _without_peers(curve: api.CurveDocument) -> api.CurveDocument:
    """Return a curve without the median of all devices, which contains those of other tenants."""
    points = (msgspec.structs.replace(point, peers=None) for point in curve.points)
    return msgspec.structs.replace(curve, points=tuple(points))


def _is_visible(
    device: str,
    job: JobKey | None,
    tenant: str,
    cause: api.EntityDocument,
    nodes: Container[str],
) -> bool:
    """True if evidence is of the cause itself, or of a node of the tenant: other devices may be another tenant's.

    Of a job, it is that of the tenant's own job, of its rails or of a rank on a node of the tenant, also on nodes that tenants
    share: an event that a job of another tenant left behind may name the nodes of that one.
    """
    node = device.partition(" ")[0]
    if job is not None:
        return job.tenant == tenant and (node in nodes or node == "rail" or device == job.workload)
    if isinstance(cause, _OF_NODES) and cause.node:
        return node == cause.node
    if isinstance(cause, api.LeafDocument):
        leaves = (cause, *cause.alternatives)
        return node in nodes or device in {f"rail {cause.rail}", *(leaf.switch for leaf in leaves)}
    return node in nodes and not isinstance(cause, api.JobDocument)


class ChangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A change of an incident, as of the evaluation that found it; incident, kind and time identify it."""

    sequence: int
    incident: str
    kind: str
    timestamp_ns: int
    facts: dict[str, str]
    gpu: str = ""
    """UUID of the GPU that is the cause."""

    @property
    def key(self) -> tuple[str, str, int]:
        """Identity of the change."""
        return self.incident, self.kind, self.timestamp_ns


class DiagnosisState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the diagnosis after an evaluation, or while it reads what was received before."""

    timestamp_ns: int
    """End of the last slot that was evaluated; 0 without any."""
    acknowledged: int = 0
    """Sequence of the last change that is recorded elsewhere."""
    evaluation_seconds: float = 0.0
    """Duration of the last evaluation, with the frames that were added since the one before."""
    lag_seconds: float = 0.0
    """Age of the last record that was read; 0 at the end of the log."""
    lag_bytes: int = 0
    """Bytes of the log that were not read yet."""
    failures: int = 0
    ignored_findings: int = 0
    dropped: int = 0
    """Envelopes that were not used, damaged places of the log, and its segments that were deleted before they were read."""
    incidents: list[str] = []
    """Identities of all known incidents, oldest first."""
    opened: dict[str, int] = {}
    lost_seconds: list[tuple[str, str, float]] = []
    """Class, tenant and GPU-seconds lost."""
    steps: list[tuple[JobKey, api.JobStep]] = []


class DiagnosisLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of `railscope diagnose --follow`, with one of these: an incident that has changed, a change, or the state."""

    incident: ReportedIncident | None = None
    change: ChangeRecord | None = None
    state: DiagnosisState | None = None


@dataclass(frozen=True, slots=True)
class IncidentTable:
    """All known incidents as of one evaluation, oldest first; a timestamp of 0 stands for none yet."""

    timestamp_ns: int = 0
    incidents: tuple[ReportedIncident, ...] = ()
    opened: Mapping[str, int] = field(default_factory=dict)
    """Incidents opened since the first start of the collector, by class."""
    lost_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """GPU-seconds lost, by class and tenant."""
    steps: Mapping[JobKey, api.JobStep] = field(default_factory=dict)
    """Steps of the running jobs whose traffic shows them."""
    unread: frozenset[str] = frozenset()
    """Identities of further incidents that the diagnosis knows: their lines were invalid."""

    def find(self, number: str) -> ReportedIncident | None:
        """Return an incident by its identity."""
        return next((each for each in self.incidents if each.document.id == number), None)

    def of_tenant(self, tenant: str, number: str | None = None) -> Iterator[ReportedIncident]:
        """Yield what a tenant may read of the incidents that affect its jobs, oldest first, or of one of them.

        An explanation that the tenant may not read is none: for this tenant, the incident is a cause.
        """
        affecting = {
            each.document.id: each for each in self.incidents if tenant in each.tenant_nodes
        }
        chosen = affecting.values() if number is None else filter(None, [affecting.get(number)])
        for own in filter(None, (each.of_tenant(tenant) for each in chosen)):
            document = own.document
            if document.explained_by is None or document.explained_by in affecting:
                yield own
            else:
                yield replace(own, document=msgspec.structs.replace(document, explained_by=None))

    def cells(self, tenant: str | None = None) -> Iterator[ViewCell]:
        """Yield the metrics of incidents; for a tenant those that affect its jobs."""
        if not self.timestamp_ns:
            return
        reported = self.incidents if tenant is None else tuple(self.of_tenant(tenant))
        if tenant is not None:
            yield from _loss_cells({k: v for k, v in self.lost_seconds.items() if k[1] == tenant})
        else:
            for name, count in self.opened.items():
                yield ViewCell(catalog.OPENED, (name,), count)
            yield from _loss_cells(self.lost_seconds)
        roots = [each for each in reported if each.is_root]
        counts = Counter((each.document.incident_class, each.document.severity) for each in roots)
        for labels, count in sorted(counts.items()):
            yield ViewCell(catalog.INCIDENTS, labels, count)
        roots = worst_first(roots)
        for each in roots[:MAX_INCIDENT_CELLS]:
            yield _incident_cell(each)
            document = each.document
            yield ViewCell(catalog.TITLE, (document.id, document.title, document.action), 1)
        if tenant is None:
            inhibiting = [each for each in roots if each.document.severity != Severity.INFO]
            yield from islice(_cause_cells(inhibiting), MAX_INCIDENT_CELLS)
            yield from islice(_reach_cells(inhibiting), MAX_REACH_CELLS)
        yield from islice(_job_cells(roots), MAX_REACH_CELLS)
        yield from islice(self._step_cells(tenant), MAX_REACH_CELLS)

    def _step_cells(self, tenant: str | None) -> Iterator[ViewCell]:
        for key, step in sorted(self.steps.items()):
            if tenant in {None, key.tenant}:
                yield ViewCell(catalog.JOB_STEP, key, step.period_seconds)
                yield ViewCell(catalog.JOB_STEP_JITTER, key, step.jitter_seconds)
                yield ViewCell(catalog.JOB_EXCHANGE, key, step.exchange_share)


def _loss_cells(lost: Mapping[tuple[str, str], float]) -> Iterator[ViewCell]:
    for (name, tenant), seconds in sorted(lost.items()):
        yield ViewCell(catalog.LOST_TIME, (tenant, name), round(seconds))


_RANKS = {"critical": 0, "warning": 1, "info": 2}


def worst_first(incidents: Iterable[ReportedIncident]) -> list[ReportedIncident]:
    """Return incidents by urgency: open ones first, causes before symptoms, then by severity, the newest first."""
    return sorted(
        incidents,
        key=lambda each: (
            not each.is_open,
            not each.is_root,
            _RANKS[each.document.severity],
            -each.onset_ns,
        ),
    )


def _incident_cell(incident: ReportedIncident) -> ViewCell:
    document = incident.document
    labels = (document.id, document.incident_class, document.severity)
    cause = cause_labels(document.cause)
    return ViewCell(catalog.ONSET, (*labels, *cause), incident.onset_ns / SECOND_NS)


def cause_labels(cause: api.EntityDocument) -> tuple[str, str, str, str]:
    """Return kind, node, device and rail of a cause; what it does not have is empty."""
    match cause:
        case api.NicDocument():
            labels = "nic", cause.node, cause.interface, _text(cause.rail)
        case api.GpuDocument():
            labels = "gpu", cause.node, _text(cause.index) or cause.uuid, ""
        case api.NodeDocument():
            labels = "node", cause.node, "", ""
        case api.LeafDocument():
            labels = "leaf", "", cause.switch, _text(cause.rail)
        case api.RackDocument():
            labels = "rack", "", cause.rack, ""
        case api.StorageDocument():
            labels = "storage", "", cause.server, ""
        case api.JobDocument():
            labels = "job", "", cause.workload, ""
    return labels


def incident_facts(document: api.IncidentDocument) -> dict[str, str]:
    """Return what events and audit records state about an incident."""
    kind, node, device, rail = cause_labels(document.cause)
    return {
        "class": document.incident_class,
        "severity": document.severity,
        "cause": kind,
        "node": node,
        "device": device,
        "rail": rail,
        "onset": document.onset,
        "confidence": str(document.confidence),
        "ended": document.ended or "",
        "explained_by": document.explained_by or "",
    }


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _cause_cells(incidents: Iterable[ReportedIncident]) -> Iterator[ViewCell]:
    """Yield the causes with the labels of their metrics: alerts on the same device are inhibited."""
    for incident in incidents:
        document = incident.document
        names = (document.id, document.incident_class)
        for entity in (document.cause, *incident.parts):
            for labels in _device_labels(entity):
                yield ViewCell(catalog.CAUSE, (*names, *labels), 1)


def _device_labels(entity: api.EntityDocument) -> Iterator[tuple[str, ...]]:
    """Yield kind, node, GPU, interface, device and PCI address of a device, or of each node of a rack."""
    match entity:
        case api.NicDocument(node, interface, device, pci_address):
            yield "nic", node, "", interface, device, pci_address
        case api.GpuDocument(node, _, uuid, pci_address):
            yield "gpu", node, uuid, "", "", pci_address
        case api.NodeDocument(node):
            yield "node", node, "", "", "", ""
        case api.RackDocument(_, nodes):
            for node in nodes:
                yield "node", node, "", "", "", ""


def _reach_cells(incidents: Iterable[ReportedIncident]) -> Iterator[ViewCell]:
    """Yield the nodes, rails and jobs that incidents reach: alerts on symptoms there are inhibited."""
    for incident in incidents:
        name, reach = incident.document.incident_class, incident.reach
        labels = incident.document.id, name, AREAS.get(name, "network")
        for node in sorted(reach.nodes):
            yield ViewCell(catalog.REACH, (*labels, node, "", "", "", ""), 1)
        for rail in sorted(reach.rails - {""}):
            yield ViewCell(catalog.REACH, (*labels, "", rail, "", "", ""), 1)
        for job in sorted(reach.jobs):
            yield ViewCell(catalog.REACH, (*labels, "", "", *job), 1)


def _job_cells(incidents: Iterable[ReportedIncident]) -> Iterator[ViewCell]:
    """Yield the jobs that incidents affect: all of them, of which a document lists the first ones."""
    for incident in incidents:
        names = incident.document.id, incident.document.incident_class
        for job in incident.jobs:
            key = job.tenant, job.source, job.workload
            yield ViewCell(catalog.JOB_INCIDENT, (*key, *names), 1)
