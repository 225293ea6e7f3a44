"""Incidents as documents: the fields of `railscope diagnose --format json`, and their JSON Schema.

The schema is docs/incident.schema.json; `make docs` writes it from these types.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from inspect import cleandoc

import msgspec

from railscope import figures
from railscope.api import (
    EntityDocument,
    EvidenceDocument,
    GpuDocument,
    IncidentDocument,
    JobDocument,
    LeafDocument,
    NicDocument,
    NodeDocument,
    RackDocument,
    StorageDocument,
)
from railscope.timestamps import SECOND_NS, format_timestamp, parse_timestamp, utc_text
from railscope.wire import RAIL_DIGITS
from railscope_collector.diagnosis.devices import ClusterDevices
from railscope_collector.diagnosis.evidence_words import dated_text
from railscope_collector.diagnosis.findings import (
    SLOT_NS,
    Cause,
    FindingEvidence,
)
from railscope_collector.diagnosis.incident_classes import CLASSES, part_kind
from railscope_collector.diagnosis.incident_commands import commands_of
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.diagnosis.jobs import PeerGroups
from railscope_collector.diagnosis.worst_values import EvidenceKey, WorstValue
from railscope_collector.workloads.job_roster import JobKey

_SLOT_SECONDS = SLOT_NS / SECOND_NS
MAX_LISTED = 200
"""Victims that are listed; all are counted."""
_OTHER_NODE = "another node"

_LIMITS = {
    "leaf": "Hosts cannot distinguish a leaf switch from its uplinks and the spines behind it.",
    "link_transmit_errors": "A host does not count errors of the data that it sends: the switch port counts them.",
    "ecn_late": "Hosts cannot read the thresholds of the switch; their order follows from pause, and from marks at the receivers with an agent.",
    "headroom_low": "A watermark is the highest value since it was last cleared: the switch does not state its time.",
    "incast_receiver": "Hosts cannot read the queue of the switch; it follows from marks and rates.",
    "nccl_hang": "Counters of hosts cannot determine the rank that did not enter the collective when all of them spin: flight recorders and NCCL's RAS subsystem do.",
}  # fmt: skip
"""Limits of the observation, by kind of cause or by class."""


def victims_of(
    incident: Incident, devices: ClusterDevices
) -> tuple[tuple[NicDocument, ...], tuple[JobDocument, ...]]:
    """Return all NICs that an incident affects, and all jobs that it touches, the slow ones first."""
    affected = {each.position for each in incident.finding.affected if each.kind == "nic"}
    cause_job = {incident.cause.job} if incident.cause.job else set()
    cause_nic = {incident.cause.position} if incident.cause.kind == "nic" else set()
    unhurt_jobs = (incident.holders | cause_job) - incident.job_speeds.keys()
    slow = [_victim(incident, key, speed) for key, speed in sorted(incident.job_speeds.items())]
    unhurt = [_victim(incident, key, None) for key in sorted(unhurt_jobs)]
    nics = [
        _nic(position, devices) for position in sorted(incident.victim_nics | affected - cause_nic)
    ]
    return tuple(nics), (*slow, *unhurt)


def nodes_by_tenant(incident: Incident, jobs: Iterable[JobDocument]) -> dict[str, frozenset[str]]:
    """Return the nodes of the jobs that an incident affects, by tenant."""
    found = defaultdict[str, set[str]](set)
    for job in jobs:
        key = JobKey(job.tenant, job.source, job.workload)
        found[job.tenant].update(incident.job_nodes.get(key, ()))
    return {name: frozenset(nodes) for name, nodes in found.items()}


def lost_time(incident: Incident, tenant: str | None = None) -> int | None:
    """Return the GPU-seconds that jobs, of one tenant or of all, lost.

    None if it is not known: no job has a known speed, or idle GPUs after its end.
    """
    lost = incident.lost_gpu_seconds.items()
    seconds = round(sum(each for name, each in lost if tenant in {None, name}))
    is_known = (incident.judged_jobs - incident.ended_jobs.keys()) | incident.idle_gpus.keys()
    jobs = {
        key for key in incident.holders | incident.job_speeds.keys() if tenant in {None, key.tenant}
    }
    return seconds if seconds or not jobs or is_known & jobs else None


def parts_of(incident: Incident, devices: ClusterDevices) -> tuple[NicDocument | GpuDocument, ...]:
    """Return the devices that a larger cause consists of."""
    kind, parts = part_kind(incident.class_name), incident.parts[:MAX_LISTED]
    if kind == "gpu":
        return tuple(_gpu(part, devices) for part in parts)
    return tuple(_nic(part, devices) for part in parts if kind == "nic")


def incident_document(
    incident: Incident,
    devices: ClusterDevices,
    groups: PeerGroups,
    window_seconds: float,
    shown_ns: int,
) -> IncidentDocument:
    """Return the document of an incident: `window_seconds` is the usual window, `shown_ns` the end of its last slot."""
    kind, cause = incident.incident_class, incident.cause
    entity = _entity(incident, devices, groups)
    nics, jobs = victims_of(incident, devices)
    concerned = [
        _device(each, devices, groups)
        for each in incident.finding.affected
        if each != cause and each.kind != "nic"
    ]
    return IncidentDocument(
        id=incident.incident_id,
        incident_class=kind.name,
        text=kind.text,
        title=title_of(kind.name, entity),
        cause=entity,
        onset=format_timestamp(incident.onset_ns),
        onset_uncertainty_seconds=max(
            _seconds(incident.onset_slots, window_seconds), _SLOT_SECONDS
        ),
        detected=format_timestamp(incident.detected_ns),
        ended=format_timestamp(incident.ended_ns) if incident.ended_ns else None,
        severity=str(incident.severity),
        confidence=incident.confidence,
        victims=(*concerned[:MAX_LISTED], *nics[:MAX_LISTED], *jobs[:MAX_LISTED]),
        victim_count=len(concerned) + len(nics) + len(jobs),
        jobs=jobs[:MAX_LISTED],
        evidence=tuple(
            _evidence(each, incident.worst_values.get(EvidenceKey.of(each)), window_seconds)
            for each in incident.evidence
        ),
        symptoms=tuple(sorted(incident.symptoms)),
        lost_gpu_time_seconds=lost_time(incident),
        action=kind.action,
        commands=tuple(
            commands_of(
                kind.name,
                incident.incident_id,
                entity,
                incident.scheduler,
                has_ended=bool(incident.ended_ns),
            )
        ),
        runbook=kind.runbook,
        detail=incident.finding.detail,
        limits=_limits_of(incident),
        explained_by=incident.explained_by or None,
        last_evidence=format_timestamp(shown_ns),
    )


def _limits_of(incident: Incident) -> str:
    is_known = incident.queue or (incident.class_name == "nccl_hang" and incident.finding.detail)
    found = _LIMITS.get(incident.class_name, "") or _LIMITS.get(incident.cause.kind, "")
    return "" if is_known else found


def incident_schema() -> dict[str, object]:
    """Return the JSON Schema of an incident, with the closed list of classes."""
    schema = msgspec.json.schema(IncidentDocument)
    for each in schema["$defs"].values():
        if "description" in each:  # msgspec before 0.23 leaves the indentation of docstrings
            each["description"] = cleandoc(each["description"])
    definition = schema["$defs"]["IncidentDocument"]["properties"]
    definition["class"]["enum"] = sorted(CLASSES)
    definition["severity"]["enum"] = ["info", "warning", "critical"]
    return schema


def _entity(incident: Incident, devices: ClusterDevices, groups: PeerGroups) -> EntityDocument:
    """Return the entity of a cause with all of its names."""
    cause, parts = incident.cause, incident.parts
    if cause.kind == "rack":
        nodes = {devices.gpus[part].node for part in parts}
        return RackDocument(cause.name, tuple(sorted(nodes)))
    entity = _device(cause, devices, groups)
    if isinstance(entity, LeafDocument):
        alternatives = tuple(_leaf(leaf, devices, groups) for leaf in incident.alternatives)
        entity = msgspec.structs.replace(entity, alternatives=alternatives)
        if incident.queue:
            names = dict(zip(("port_switch", "port", "queue"), incident.queue, strict=True))
            entity = msgspec.structs.replace(entity, **names)
        return entity
    if isinstance(entity, NodeDocument):
        is_of_nics = part_kind(incident.class_name) == "nic"
        nics = [devices.nics[part] for part in parts if is_of_nics]
        interfaces = sorted(nic.interface for nic in nics if nic.node == cause.name)
        return NodeDocument(cause.name, tuple(interfaces))
    return entity


def _device(cause: Cause, devices: ClusterDevices, groups: PeerGroups) -> EntityDocument:
    """Return an entity with its names."""
    if cause.kind == "nic":
        return _nic(cause.position, devices)
    if cause.kind == "gpu":
        return _gpu(cause.position, devices)
    if cause.kind == "leaf":
        return _leaf(cause.position, devices, groups)
    if cause.kind == "storage":
        return StorageDocument(cause.name)
    return JobDocument(*cause.job) if cause.job else NodeDocument(cause.name)


def _gpu(position: int, devices: ClusterDevices) -> GpuDocument:
    gpu = devices.gpus[position]
    return GpuDocument(gpu.node, _number(gpu.index), gpu.uuid, gpu.pci_address)


def _nic(position: int, devices: ClusterDevices) -> NicDocument:
    nic = devices.nics[position]
    return NicDocument(
        nic.node,
        nic.interface,
        nic.device,
        nic.pci_address,
        _number(nic.rail),
        nic.switch,
        nic.switch_port,
    )


def _leaf(leaf: int, devices: ClusterDevices, groups: PeerGroups) -> LeafDocument:
    members = groups.leaves[leaf].tolist()
    rails = {devices.nics[position].rail for position in members}
    pods = {int(groups.nic_pod[position]) for position in members}
    is_named = any(devices.nics[position].switch for position in members)
    return LeafDocument(
        groups.leaf_names[leaf] if is_named else "",
        min(pods) if len(pods) == 1 else None,
        _number(min(rails)) if len(rails) == 1 else None,
    )


def _victim(incident: Incident, key: JobKey, speed: float | None) -> JobDocument:
    end_ns, loss = incident.ended_jobs.get(key), ""
    if idle := incident.idle_gpus.get(key):
        duration = figures.duration(idle.seconds / idle.count)
        loss = f"{figures.count(idle.count, 'GPU')} idle for {duration}"
    elif speed is not None and key in incident.job_steps:
        now, usual = incident.job_steps[key], incident.usual_steps[key]
        steps = "no step ends" if math.isinf(now) else f"steps take {now:.3g} s"
        loss = f"{steps}, before {usual:.3g} s"
    ended = None if end_ns is None else format_timestamp(end_ns)
    return JobDocument(*key, speed, ended, loss)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= RAIL_DIGITS else None


def _evidence(
    evidence: FindingEvidence, worst: WorstValue | None, window_seconds: float
) -> EvidenceDocument:
    document = EvidenceDocument(
        evidence.signal,
        evidence.device,
        _finite(evidence.value),
        _finite(evidence.threshold),
        evidence.comparison,
        _seconds(evidence.slots, window_seconds),
        worst_value=_finite(worst.value) if worst else None,
        worst_at=format_timestamp(worst.evaluated_ns) if worst else None,
    )
    return msgspec.structs.replace(document, text=dated_text(document))


def _seconds(slots: int | None, usual_seconds: float) -> float:
    return usual_seconds if slots is None else slots * _SLOT_SECONDS


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def title_of(class_name: str, cause: EntityDocument) -> str:
    """Return title of the class and place in words, short enough for one line."""
    return f"{CLASSES[class_name].title}: {place_text(cause)}"


def place_text(entity: EntityDocument) -> str:
    """Return an entity in words, by the names that a person uses."""
    match entity:
        case NicDocument():
            text = f"NIC {entity.interface}".rstrip() + f" of {entity.node or _OTHER_NODE}"
        case GpuDocument():
            index = "" if entity.index is None else f" {entity.index}"
            text = f"GPU{index} of {entity.node or _OTHER_NODE}"
        case NodeDocument():
            text = f"node {entity.node}" if entity.node else _OTHER_NODE
        case LeafDocument():
            rail = "" if entity.rail is None else f" of rail {entity.rail}"
            alternatives = (each.switch or "another leaf" for each in entity.alternatives)
            text = " or ".join((f"leaf {entity.switch}".rstrip() + rail, *alternatives))
            if entity.port:
                queue = f" queue {entity.queue}" if entity.queue else ""
                text += f", {entity.port_switch} {entity.port}{queue}"
        case RackDocument():
            text = f"rack {entity.rack}".rstrip() + f" of {', '.join(entity.nodes)}"
        case StorageDocument():
            text = f"storage {entity.server}"
        case JobDocument():
            text = f"job {entity.workload} of {entity.tenant or 'no tenant'}"
    return text


def entity_text(entity: EntityDocument) -> str:
    """Return an entity in words, with its other names in brackets."""
    names: Iterable[str] = ()
    match entity:
        case NicDocument():
            rail = "" if entity.rail is None else f"rail {entity.rail}"
            port = f"{entity.switch} {entity.switch_port}".strip()
            names = entity.device, entity.pci_address, rail, port
        case GpuDocument():
            names = entity.uuid, entity.pci_address
        case NodeDocument() if entity.node:
            names = entity.interfaces
    shown = ", ".join(filter(None, names))
    return place_text(entity) + (f" ({shown})" if shown else "")


def _time_text(time: str) -> str:
    return utc_text(parse_timestamp(time))


def describe(incident: IncidentDocument, paused_nics: int, job_count: int) -> Iterator[str]:
    """Yield the lines of an incident for a terminal; the document may list fewer NICs and jobs."""
    onset, detected = map(_time_text, (incident.onset, incident.detected))
    lasting = (
        f"from {onset} to {_time_text(incident.ended)}" if incident.ended else f"since {onset}"
    )
    yield f"{incident.severity}: {incident.title}"
    if (cause := entity_text(incident.cause)) != place_text(incident.cause):
        yield f"  {cause}"
    yield f"  {incident.text}"
    yield f"  {lasting}, detected {detected}, {figures.likelihood(incident.confidence)}"
    yield from (f"  {dated_text(each)}" for each in incident.evidence)
    for job in incident.jobs:
        speed = "" if job.speed is None else f" at {job.speed:.0%} of its speed"
        speed += f", ended {_time_text(job.ended)}" if job.ended else ""
        speed += f", {job.loss}" if job.loss else ""
        yield f"  {entity_text(job)}{speed}"
    if job_count > len(incident.jobs):
        yield f"  {figures.count(job_count - len(incident.jobs), 'more job')}"
    if paused_nics:
        yield f"  {figures.count(paused_nics, 'NIC')} paused"
    if not CLASSES[incident.incident_class].is_advice:
        lost = incident.lost_gpu_time_seconds
        yield "  loss not known" if lost is None else f"  {figures.count(lost, 'GPU-second')} lost"
    if incident.detail:
        yield f"  {incident.detail}"
    if incident.limits:
        yield f"  {incident.limits}"
    if incident.explained_by:
        yield f"  explained by incident {incident.explained_by}"
    yield f"  -> {incident.action}"
    yield f"  runbook: {incident.runbook}"
    yield f"  incident: {incident.id}"
