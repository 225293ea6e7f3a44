"""Incidents as rows of pages, and the pages of incidents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from collector.diagnosis import incident_report as report
from collector.diagnosis.incident_table import ReportedIncident, cause_labels
from railscope.timestamps import parse_timestamp

_MAX_SHOWN = 3
_RANKS = {"critical": 0, "warning": 1, "info": 2}


class IncidentRow(msgspec.Struct, frozen=True):
    """One incident in a list."""

    id: str
    severity: str
    incident_class: str = msgspec.field(name="class")
    text: str
    cause: str
    node: str
    """Node of the cause; empty for a cause that is on none."""
    onset_ns: int
    ended_ns: int | None
    confidence: float
    victim_count: int
    jobs: tuple[report.JobDocument, ...]
    """The first ones."""
    job_count: int
    evidence: tuple[str, ...]
    """The first ones, in words."""
    lost_gpu_seconds: int
    action: str
    explained_by: str | None


def incident_row(incident: ReportedIncident) -> IncidentRow:
    """Return the row of an incident."""
    document = incident.document
    return IncidentRow(
        id=document.id,
        severity=document.severity,
        incident_class=document.incident_class,
        text=document.text,
        cause=report.entity_text(document.cause),
        node=cause_labels(document.cause)[1],
        onset_ns=incident.onset_ns,
        ended_ns=parse_timestamp(document.ended) if document.ended else None,
        confidence=document.confidence,
        victim_count=document.victim_count,
        jobs=document.jobs[:_MAX_SHOWN],
        job_count=len(incident.jobs),
        evidence=tuple(evidence_text(each) for each in document.evidence[:_MAX_SHOWN]),
        lost_gpu_seconds=document.lost_gpu_seconds,
        action=document.action,
        explained_by=document.explained_by,
    )


def evidence_text(evidence: report.EvidenceDocument) -> str:
    """Return a value and its threshold in words."""
    value = "unknown" if evidence.value is None else f"{evidence.value:g}"
    limit = "" if evidence.threshold is None else f" ({evidence.comparison} {evidence.threshold:g})"
    return f"{evidence.device}: {evidence.signal} {value}{limit}"


def worst_first(incidents: Iterable[ReportedIncident]) -> list[ReportedIncident]:
    """Return incidents by urgency: open ones first, causes before symptoms, then by severity and onset."""
    return sorted(
        incidents,
        key=lambda each: (
            not each.is_open,
            not each.is_root,
            _RANKS[each.document.severity],
            -each.onset_ns,
        ),
    )


def touched_jobs(incidents: Sequence[ReportedIncident]) -> set[tuple[str, str, str]]:
    """Return the jobs that open incidents other than advice touch."""
    return {
        (job.tenant, job.source, job.workload)
        for incident in incidents
        if incident.is_open and incident.document.severity != "info"
        for job in incident.jobs
    }
