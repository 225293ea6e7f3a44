"""Incidents: findings that persist, opened once, updated while they last, and closed after they have ended."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from collector.diagnosis.findings import (
    Cause,
    DiagnosisView,
    ExpectedGain,
    Finding,
    FindingEvidence,
)
from collector.diagnosis.incident_classes import CLASSES, IncidentClass, Severity
from collector.diagnosis.network_detectors import victims
from collector.diagnosis.quantities import DeviceKind
from collector.diagnosis.ranking import Reach, may_explain, reach_of
from collector.diagnosis.signals import SIGNALS
from collector.workloads.job_roster import JobKey
from railscope.timestamps import SECOND_NS

CLOSE_SLOTS = 9
"""Evaluations without the finding after which an incident is closed: three windows."""

REOPEN_SLOTS = 60
"""An incident that returns within this many evaluations is the same one."""

WAIT_SLOTS = 12
"""Evaluations for which a symptom waits for its cause."""

ONSET_SLOTS = 6
MAX_OPEN_PER_CAUSE_NODE = 64
"""Bound of the candidates of one node: a broken node must not fill the table."""


@dataclass(slots=True)
class Incident:
    """A fault: its cause, evidence and victims. Times are on the collector's clock; 0 while it lasts."""

    incident_id: str
    incident_class: IncidentClass
    cause: Cause
    onset_ns: int
    detected_ns: int
    severity: Severity
    evidence: tuple[FindingEvidence, ...]
    reach: Reach
    confidence: float
    ended_ns: int = 0
    parts: tuple[int, ...] = ()
    alternatives: tuple[int, ...] = ()
    detail: str = ""
    affected: tuple[Cause, ...] = ()
    gain: ExpectedGain | None = None
    explained_by: str = ""
    symptoms: set[str] = field(default_factory=set)
    victim_nics: set[int] = field(default_factory=set)
    job_speeds: dict[JobKey, float] = field(default_factory=dict)
    lost_gpu_seconds: float = 0.0
    last_slot: int = 0


@dataclass(slots=True)
class _Candidate:
    """A finding over its last evaluations."""

    finding: Finding
    reach: Reach
    first_slot: int
    onset_ns: int
    slots: deque[int]
    incident: Incident | None = None


class IncidentTracker:
    """All incidents, and the candidates that may become one."""

    def __init__(self, first_ns: int, slot_ns: int) -> None:
        self.incidents: list[Incident] = []
        self._first_ns, self._slot_ns = first_ns, slot_ns
        self._candidates: dict[tuple[str, Cause | str], _Candidate] = {}
        self.ignored_findings = 0

    def update(self, view: DiagnosisView, findings: Iterable[Finding]) -> list[Incident]:
        """Add the findings of an evaluation; return the incidents that opened or closed."""
        slot = view.signals.slot
        changed: list[Incident | None] = []
        for finding in findings:
            self._add(view, finding, slot)
        present = [each for each in self._candidates.values() if each.slots[-1] == slot]
        changed.extend(
            candidate.incident
            for candidate in sorted(present, key=_rank)
            if self._conclude(view, candidate, slot)
        )
        for key, candidate in list(self._candidates.items()):
            if self._expire(candidate, slot):
                changed.append(candidate.incident)
            if slot - candidate.slots[-1] > REOPEN_SLOTS:
                del self._candidates[key]
        self._explain_late()
        return [incident for incident in changed if incident]

    @property
    def open(self) -> Iterator[Incident]:
        """Incidents that last."""
        return (
            candidate.incident
            for candidate in self._candidates.values()
            if candidate.incident and not candidate.incident.ended_ns
        )

    def _add(self, view: DiagnosisView, finding: Finding, slot: int) -> None:
        key = finding.incident_class, finding.subject or finding.cause
        found = self._candidates.get(key)
        if found is None:
            reach = reach_of(view, finding.cause, finding.parts)
            if self._is_full(reach):
                self.ignored_findings += 1
                return
            onset_ns = finding.onset_ns or self._onset(view, finding)
            found = _Candidate(finding, reach, slot, onset_ns, deque(maxlen=REOPEN_SLOTS))
            self._candidates[key] = found
        elif found.incident is None and slot - found.slots[-1] > _max_gap(finding):
            found.first_slot, found.onset_ns = slot, finding.onset_ns or self._onset(view, finding)
            found.slots.clear()
        if not found.slots or found.slots[-1] != slot:
            found.slots.append(slot)
            found.finding = finding
        elif finding.strength > found.finding.strength:
            found.finding = finding

    def _is_full(self, reach: Reach) -> bool:
        if len(reach.nodes) != 1:
            return False
        same = sum(candidate.reach.nodes == reach.nodes for candidate in self._candidates.values())
        return same >= MAX_OPEN_PER_CAUSE_NODE

    def _onset(self, view: DiagnosisView, finding: Finding) -> int:
        """Return the end of the first slot in which the evidence alone exceeds its threshold."""
        slot, evidence = view.signals.slot, finding.evidence[0]
        kind = {"nic": DeviceKind.NIC, "gpu": DeviceKind.GPU}.get(finding.cause.kind)
        first = slot
        if kind and evidence.signal in SIGNALS[kind] and evidence.value > evidence.threshold:
            for back in range(1, ONSET_SLOTS):
                value = view.signals.table(kind, 1, back)[evidence.signal][finding.cause.position]
                if not value > evidence.threshold:
                    break
                first = slot - back
        return view.timestamp_ns - (slot - first) * self._slot_ns

    def _conclude(self, view: DiagnosisView, candidate: _Candidate, slot: int) -> bool:
        """Open, reopen or update the incident of a candidate; true if it opened."""
        kind = CLASSES[candidate.finding.incident_class]
        recent = sum(each > slot - kind.of_evaluations for each in candidate.slots)
        incident = candidate.incident
        if incident is not None:
            opened = bool(incident.ended_ns)
            if opened and recent < kind.min_evaluations:
                return False
            incident.ended_ns = 0
            self._refresh(view, incident, candidate, slot)
            return opened
        if recent < kind.min_evaluations or self._waits(candidate, kind, slot):
            return False
        candidate.incident = self._open(view, candidate, kind, slot)
        self.incidents.append(candidate.incident)
        self._refresh(view, candidate.incident, candidate, slot)
        return True

    def _waits(self, candidate: _Candidate, kind: IncidentClass, slot: int) -> bool:
        """True if an incident explains a candidate, or another candidate still may."""
        explainer = self._explainer(candidate, slot)
        if explainer is not None and explainer.incident is not None:
            explainer.incident.symptoms.add(kind.name)
            return True
        waits = slot - candidate.first_slot < kind.min_evaluations + WAIT_SLOTS
        return waits and (explainer is not None or kind.is_symptom)

    def _explainer(self, candidate: _Candidate, slot: int) -> _Candidate | None:
        """Return the strongest candidate that may explain another one, and began not much later."""
        name = candidate.finding.incident_class
        for other in sorted(self._candidates.values(), key=_rank):
            if other is candidate or slot - other.slots[-1] > _memory(other):
                continue
            limit_ns = candidate.onset_ns + WAIT_SLOTS * self._slot_ns
            effect, cause = (name, candidate.reach), (other.finding.incident_class, other.reach)
            if other.onset_ns > limit_ns or not may_explain(*cause, *effect):
                continue
            if not (may_explain(*effect, *cause) and _rank(candidate) <= _rank(other)):
                return other
        return None

    def _open(
        self, view: DiagnosisView, candidate: _Candidate, kind: IncidentClass, slot: int
    ) -> Incident:
        finding = candidate.finding
        text = f"{kind.name} {finding.subject or finding.cause} {candidate.onset_ns}"
        return Incident(
            incident_id=hashlib.blake2b(text.encode(), digest_size=6).hexdigest(),
            incident_class=kind,
            cause=finding.cause,
            onset_ns=min(candidate.onset_ns, view.timestamp_ns),
            detected_ns=view.timestamp_ns,
            severity=Severity(finding.severity or kind.severity),
            evidence=finding.evidence,
            reach=candidate.reach,
            confidence=0.0,
            last_slot=slot,
        )

    def _refresh(
        self, view: DiagnosisView, incident: Incident, candidate: _Candidate, slot: int
    ) -> None:
        """Update evidence, victims and cost of an incident."""
        finding, kind = candidate.finding, incident.incident_class
        incident.evidence, incident.parts, incident.detail = (
            finding.evidence,
            finding.parts,
            finding.detail,
        )
        incident.affected, incident.gain = finding.affected, finding.gain
        severity = Severity(finding.severity or kind.severity)
        incident.severity = max(incident.severity, severity, key=list(Severity).index)
        incident.alternatives = finding.alternatives or incident.alternatives
        incident.last_slot = slot
        explained = not kind.is_advice and self._slow_jobs(view, incident)
        certainty = 0.6 + 0.3 * min(1.0, finding.strength) + 0.1 * bool(explained)
        incident.confidence = max(incident.confidence, round(kind.specificity * certainty, 3))

    def _slow_jobs(self, view: DiagnosisView, incident: Incident) -> bool:
        for key in incident.reach.jobs:
            state = view.states.get(key)
            if state is not None and state.speed < 0.95:  # noqa: PLR2004 - beyond the noise of a minute
                incident.job_speeds[key] = min(
                    incident.job_speeds.get(key, 1.0), round(state.speed, 3)
                )
                seconds = self._slot_ns / SECOND_NS
                incident.lost_gpu_seconds += (
                    (1.0 - max(state.speed, 0.0)) * len(state.job.gpus) * seconds
                )
        if incident.reach.rails:
            paused = np.flatnonzero(victims(view))
            own_parts = (
                {incident.cause.position} if incident.cause.kind == "nic" else set(incident.parts)
            )
            incident.victim_nics |= {
                p for p in paused.tolist() if view.devices.nics[p].rail in incident.reach.rails
            } - own_parts
        return bool(incident.job_speeds)

    def _expire(self, candidate: _Candidate, slot: int) -> bool:
        incident = candidate.incident
        if incident is None or incident.ended_ns or slot - incident.last_slot < CLOSE_SLOTS:
            return False
        incident.ended_ns = self._first_ns + (incident.last_slot + 1) * self._slot_ns
        return True

    def _explain_late(self) -> None:
        """Link an incident to one that opened after it and explains it."""
        for incident in self.incidents[-MAX_OPEN_PER_CAUSE_NODE:]:
            if incident.explained_by or incident.ended_ns:
                continue
            for other in self.open:
                limit_ns = incident.onset_ns + WAIT_SLOTS * self._slot_ns
                if (
                    other is not incident
                    and not other.explained_by
                    and other.onset_ns <= limit_ns
                    and may_explain(
                        other.incident_class.name,
                        other.reach,
                        incident.incident_class.name,
                        incident.reach,
                    )
                    and not may_explain(
                        incident.incident_class.name,
                        incident.reach,
                        other.incident_class.name,
                        other.reach,
                    )
                ):
                    incident.explained_by = other.incident_id
                    other.symptoms.add(incident.incident_class.name)
                    break


def _max_gap(finding: Finding) -> int:
    """Return the distance of two evaluations that may count together; after a longer one the count starts again."""
    kind = CLASSES[finding.incident_class]
    return kind.of_evaluations - kind.min_evaluations + 1


def _memory(candidate: _Candidate) -> int:
    """Return for how many slots a finding explains others: a report of the hardware outlasts its event."""
    is_hard = CLASSES[candidate.finding.incident_class].specificity >= 1
    return REOPEN_SLOTS if is_hard and candidate.incident else CLOSE_SLOTS


def _rank(candidate: _Candidate) -> tuple[float, float, int]:
    """Order of candidates: hard evidence first, then strength, then the earlier onset."""
    kind = CLASSES[candidate.finding.incident_class]
    return (-kind.specificity, -candidate.finding.strength, candidate.onset_ns)
