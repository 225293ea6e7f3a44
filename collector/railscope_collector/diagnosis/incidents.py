"""Incidents: findings that persist, opened once, updated while they last, and closed after they have ended."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis.devices import SwitchQueue
from railscope_collector.diagnosis.findings import (
    Cause,
    DiagnosisView,
    Evidence,
    Finding,
)
from railscope_collector.diagnosis.incident_classes import (
    AREAS,
    CLASSES,
    ChangeKind,
    IncidentClass,
    Severity,
)
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.ranking import REFUTED, CauseIndex, Reach, may_explain, reach_of
from railscope_collector.diagnosis.signals import SIGNALS
from railscope_collector.diagnosis.worst_values import EvidenceKey, WorstValue, add_worst
from railscope_collector.workloads.job_roster import JobKey

CLOSE_SLOTS = 9
"""Evaluations without the finding after which an incident is closed: three windows."""
MIN_QUIET_SLOTS = 2
"""Evaluations without the finding that show no recovery of any fault: the window of a reading has three slots."""
STALE_SLOTS = 360
"""Evaluations after which an incident is closed although its nodes have not reported since."""
REOPEN_SLOTS = 60
"""An incident that returns within this many evaluations is the same one."""
WAIT_SLOTS = 12
"""Evaluations for which a symptom waits for its cause."""
PASSING_CLASSES = frozenset({"link_flap"})
"""Reports of the hardware about what has ended: a link that is up again delays nothing."""
ONSET_SLOTS, _MIN_STAGE_NS, _MIN_BOOT_NS = 12, 30 * SECOND_NS, 120 * SECOND_NS
MAX_EVIDENCE = 16
MAX_OPEN_PER_CAUSE_NODE = 64
"""Bound of the candidates of one node: a broken node must not fill the table."""


@dataclass(slots=True)
class IdleGpus:
    """GPUs of a job that a fault ended: a job of another time that holds one ends its loss."""

    gpus: tuple[int, ...]
    """Positions of those that no job has held since."""
    count: int
    """Number of GPUs that the job had."""
    until_ns: int
    """Time up to which their loss is counted."""
    seconds: float = 0.0
    """GPU-seconds that they were idle."""


@dataclass(slots=True)
class Incident:
    """A fault: its cause, evidence and victims. Times are on the collector's clock; 0 while it lasts."""

    incident_id: str
    class_name: str
    cause: Cause
    onset_ns: int
    detected_ns: int
    severity: Severity
    evidence: Evidence
    reach: Reach
    confidence: float
    ended_ns: int = 0
    parts: tuple[int, ...] = ()
    alternatives: tuple[int, ...] = ()
    detail: str = ""
    affected: tuple[Cause, ...] = ()
    explained_by: str = ""
    symptoms: set[str] = field(default_factory=set)
    worst_values: dict[EvidenceKey, WorstValue] = field(default_factory=dict)
    """Also of devices that the evidence does not list at present; at most MAX_WORST_VALUES."""
    victim_nics: set[int] = field(default_factory=set)
    job_speeds: dict[JobKey, float] = field(default_factory=dict)
    """Usual speed of each job that it slows down, relative to the job's past."""
    lost_gpu_seconds: dict[str, float] = field(default_factory=dict)
    """Estimate of the lost GPU-seconds by tenant; a job's loss counts for one incident."""
    judged_jobs: set[JobKey] = field(default_factory=set)
    """Jobs whose speed was known at some evaluation."""
    usual_steps: dict[JobKey, float] = field(default_factory=dict)
    """Seconds that a step of a job took before the onset."""
    job_steps: dict[JobKey, float] = field(default_factory=dict)
    """Seconds that a step of a job takes, where its speed follows from its steps."""
    idle_gpus: dict[JobKey, IdleGpus] = field(default_factory=dict)
    """GPUs of the jobs that it ended, until they are held again."""
    ended_jobs: dict[JobKey, int] = field(default_factory=dict)
    """Touched jobs that ended since the fault may have begun, with the latest time at which they can have ended."""
    holders: set[JobKey] = field(default_factory=set)
    """Jobs that have held the device that is the cause."""
    scheduler: str = ""
    """Scheduler of the job that is the cause, or of those that hold it, are on its nodes or lose time, otherwise of most jobs.

    Empty if no claim names one, or claims of its nodes name several.
    """
    job_nodes: dict[JobKey, tuple[str, ...]] = field(default_factory=dict)
    """Nodes of the jobs that the incident touches or slows down."""
    tenant_nodes: dict[str, set[str]] = field(default_factory=dict)
    """Nodes of these jobs by tenant, as release 0.3.0 saved them."""
    last_slot: int = 0
    quiet_slots: int = 0
    """Evaluations in a row, with samples of its nodes, that do not show it; a restart begins them again."""
    normal_quiet_slots: int = 0
    """Evaluations that do not show it while it lasts, as between two bursts."""
    subject: str | Cause = ""
    """Identity of a finding whose cause changes; empty if the cause is the identity."""
    queue: SwitchQueue | None = None
    """Queue at which the cause is; it stays when the switch no longer shows it."""
    onset_slots: int | None = None
    """Slots before the onset in which the fault may have begun; None for the usual window."""

    @property
    def incident_class(self) -> IncidentClass:
        """Class of the incident."""
        return CLASSES[self.class_name]

    @property
    def recovering_slots(self) -> int:
        """Evaluations in a row that do not show it; 0 while they are no more than is normal, and once it has ended."""
        is_recovering = not self.ended_ns and self.quiet_slots > self.normal_quiet_slots
        return self.quiet_slots if is_recovering else 0


class IncidentChange(NamedTuple):
    """A change of an incident at an evaluation."""

    kind: ChangeKind
    incident: Incident


@dataclass(slots=True)
class _Candidate:
    """A finding over its last evaluations."""

    finding: Finding
    reach: Reach
    first_slot: int
    onset_ns: int
    slots: deque[int]
    incident: Incident | None = None
    onset_slots: int | None = None
    """Slots before the onset in which the fault may have begun, by the finding of the onset."""

    @property
    def kind(self) -> IncidentClass:
        return CLASSES[self.finding.incident_class]

    @property
    def severity(self) -> Severity:
        return Severity(self.finding.severity or self.kind.severity)

    @property
    def min_evaluations(self) -> int:
        return self.finding.min_evaluations or self.kind.min_evaluations

    @property
    def max_gap(self) -> int:
        """Distance of two evaluations that may count together; after a longer one the count starts again."""
        return self.kind.of_evaluations - self.min_evaluations + 1

    @property
    def normal_quiet_slots(self) -> int:
        """Evaluations without the finding that are normal while its fault lasts: those that need not agree."""
        kind = self.kind
        needed = min(self.min_evaluations, kind.min_evaluations)
        return max(kind.of_evaluations - needed, MIN_QUIET_SLOTS)


class IncidentTracker:
    """All incidents, and the candidates that may become one."""

    def __init__(self, first_ns: int, slot_ns: int) -> None:
        self.incidents: list[Incident] = []
        self._first_ns, self._slot_ns = first_ns, slot_ns
        self._candidates: dict[tuple[str, Cause | str], _Candidate] = {}
        self._ids: set[str] = set()
        self._changes: list[IncidentChange] = []
        self._causes: CauseIndex[_Candidate] = CauseIndex(())
        """Candidates of the present update by what they may explain, the strongest first."""
        self._of_nodes: Counter[frozenset[str]] = Counter()
        """Number of candidates by the nodes that they reach."""
        self.ignored_findings = 0

    def resume(self, incidents: Iterable[Incident], slot: int) -> None:
        """Continue with the incidents of before a restart; open ones have time to be found again."""
        self.incidents = list(incidents)
        self._ids = {incident.incident_id for incident in self.incidents}
        for incident in self.incidents:
            incident.quiet_slots = 0
            if not incident.ended_ns:
                finding = Finding(
                    incident.class_name,
                    incident.cause,
                    incident.evidence,
                    alternatives=incident.alternatives,
                    parts=incident.parts,
                    detail=incident.detail,
                    subject=incident.subject,
                )
                key = incident.class_name, incident.subject or incident.cause
                slots = deque([slot - 1], maxlen=REOPEN_SLOTS)
                self._candidates[key] = _Candidate(
                    finding, incident.reach, incident.last_slot, incident.onset_ns, slots, incident
                )

    def drop_closed(self, max_incidents: int, slot: int) -> list[Incident]:
        """Drop closed incidents beyond a number, unless they may return; return them.

        The oldest of the nodes with the most are dropped first: a broken node must not displace those of others.
        """
        excess = max(len(self.incidents) - max_incidents, 0)
        if not excess:
            return []
        closed = [i for i in self.incidents if i.ended_ns and slot - i.last_slot > REOPEN_SLOTS]
        newer, counts = {}, Counter[frozenset[str]]()
        for incident in reversed(closed):
            newer[incident.incident_id] = counts[incident.reach.nodes]
            counts[incident.reach.nodes] += 1
        dropped = sorted(closed, key=lambda each: -newer[each.incident_id])[:excess]
        dropped_ids = {incident.incident_id for incident in dropped}
        self._ids -= dropped_ids
        self.incidents = [each for each in self.incidents if each.incident_id not in dropped_ids]
        return dropped

    def update(self, view: DiagnosisView, findings: Iterable[Finding]) -> list[IncidentChange]:
        """Take the findings of an evaluation; return the changes of incidents, in their order."""
        slot = view.signals.slot
        self._changes = []
        self._of_nodes = Counter(each.reach.nodes for each in self._candidates.values())
        for finding in findings:
            self._add(view, finding, slot)
        self._causes = _index(sorted(self._candidates.values(), key=_rank))
        present = [each for each in self._candidates.values() if each.slots[-1] == slot]
        for candidate in sorted(present, key=_rank):
            self._conclude(view, candidate, slot)
        for key, candidate in list(self._candidates.items()):
            self._expire(view, candidate)
            lasts = candidate.incident is not None and not candidate.incident.ended_ns
            if slot - candidate.slots[-1] > REOPEN_SLOTS and not lasts:
                del self._candidates[key]
        self._explain_late()
        self._end_explanations(slot)
        return self._changes

    def _note(self, kind: ChangeKind, incident: Incident) -> None:
        self._changes.append(IncidentChange(kind, incident))

    @property
    def open(self) -> Iterator[Incident]:
        """Incidents that last."""
        found = (each.incident for each in self._candidates.values() if each.incident)
        return (incident for incident in found if not incident.ended_ns)

    def _add(self, view: DiagnosisView, finding: Finding, slot: int) -> None:
        key = finding.incident_class, finding.subject or finding.cause
        found = self._candidates.get(key)
        if found is None:
            reach = reach_of(view, finding)
            if self._is_full(reach):
                self.ignored_findings += 1
                return
            onset_ns = finding.onset_ns or self._onset(view, finding)
            found = _Candidate(
                finding,
                reach,
                slot,
                onset_ns,
                deque(maxlen=REOPEN_SLOTS),
                onset_slots=finding.uncertain_slots,
            )
            self._candidates[key] = found
            self._of_nodes[reach.nodes] += 1
        elif found.incident is None and slot - found.slots[-1] > found.max_gap:
            found.first_slot, found.onset_ns = slot, finding.onset_ns or self._onset(view, finding)
            found.onset_slots = finding.uncertain_slots
            found.slots.clear()
        if not found.slots or found.slots[-1] != slot:
            found.slots.append(slot)
            if finding.parts != found.finding.parts:
                found.reach = _with_parts(found.reach, reach_of(view, finding))
            found.finding = finding
        elif finding.strength > found.finding.strength:
            found.finding = finding

    def _is_full(self, reach: Reach) -> bool:
        return len(reach.nodes) == 1 and self._of_nodes[reach.nodes] >= MAX_OPEN_PER_CAUSE_NODE

    def _onset(self, view: DiagnosisView, finding: Finding) -> int:
        """Return the end of the first slot in which the evidence alone exceeds its threshold."""
        slot, evidence = view.signals.slot, finding.evidence[0]
        kind = {"nic": DeviceKind.NIC, "gpu": DeviceKind.GPU}.get(finding.cause.kind)
        first = slot
        is_signal = kind and evidence.signal in SIGNALS[kind] and not evidence.is_change
        if kind and is_signal and evidence.value > evidence.threshold:
            for back in range(1, ONSET_SLOTS):
                value = view.signals.table(kind, 1, back)[evidence.signal][finding.cause.position]
                if not value > evidence.threshold:
                    break
                first = slot - back
        return view.timestamp_ns - (slot - first) * self._slot_ns

    def _conclude(self, view: DiagnosisView, candidate: _Candidate, slot: int) -> None:
        """Open, reopen or update the incident of a candidate."""
        kind = candidate.kind
        recent = sum(each > slot - kind.of_evaluations for each in candidate.slots)
        incident = candidate.incident
        if incident is None:
            if recent < candidate.min_evaluations or self._waits(candidate, kind, slot):
                return
            incident = candidate.incident = self._open(view, candidate, kind, slot)
            self.incidents.append(incident)
            self._note(ChangeKind.OPENED, incident)
            self._end_refuted(incident)
        elif incident.ended_ns:
            if recent < candidate.min_evaluations:
                return
            incident.ended_ns = 0
            self._note(ChangeKind.REOPENED, incident)
        elif incident.explained_by:
            for other in self._candidates.values():
                if other.incident and other.incident.incident_id == incident.explained_by:
                    self._prolong(other, candidate, slot)
        self._refresh(view, incident, candidate, slot)

    def _waits(self, candidate: _Candidate, kind: IncidentClass, slot: int) -> bool:
        """True if an incident explains a candidate, or another candidate still may."""
        explainer = self._explainer(candidate, slot)
        if explainer is not None and explainer.incident is not None:
            incident = explainer.incident
            incident.symptoms.add(kind.name)
            is_hard = incident.incident_class.specificity >= 1
            if kind.name in PASSING_CLASSES and not is_hard:
                return False  # the hardware reports it once: it is shown, and linked to its cause
            self._prolong(explainer, candidate, slot)
            return True
        waits = slot - candidate.first_slot < candidate.min_evaluations + WAIT_SLOTS
        return waits and (explainer is not None or kind.is_symptom)

    def _prolong(self, explainer: _Candidate, candidate: _Candidate, slot: int) -> None:
        """Let an incident last, or return, while its device shows a symptom of it."""
        incident = explainer.incident
        if incident is not None and explainer.reach.device == candidate.reach.device:
            incident.last_slot = slot
            explainer.slots.append(slot)
            if incident.ended_ns:
                incident.ended_ns = 0
                self._note(ChangeKind.REOPENED, incident)

    def _explainer(self, candidate: _Candidate, slot: int) -> _Candidate | None:
        """Return the strongest candidate that may explain another one, and began not much later."""
        name = candidate.finding.incident_class
        limit_ns = candidate.onset_ns + WAIT_SLOTS * self._slot_ns
        for other in self._causes.causes_of(name, candidate.reach):
            # A fault that returns at the same device is the same one, also by a part of its symptoms.
            is_same = other.reach.device == candidate.reach.device and other.incident is not None
            memory = REOPEN_SLOTS if is_same else _memory(other)
            if other is candidate or slot - other.slots[-1] > memory:
                continue
            effect, cause = (name, candidate.reach), (other.finding.incident_class, other.reach)
            if other.onset_ns > limit_ns:
                continue
            is_mutual = may_explain(*effect, *cause)
            if is_mutual and other.incident and _became(other.incident, candidate):
                continue
            if other.incident or not is_mutual or _rank(candidate) > _rank(other):
                return other  # of two that explain each other, the one that opened, or the stronger one
        return None

    def _open(
        self, view: DiagnosisView, candidate: _Candidate, kind: IncidentClass, slot: int
    ) -> Incident:
        finding, subject = candidate.finding, candidate.finding.subject or candidate.finding.cause
        subject = view.identity_of(subject) if isinstance(subject, Cause) else subject
        text = f"{kind.name} {subject} {candidate.onset_ns // self._slot_ns}"  # estimates of clocks differ
        names = text, f"{text} {view.timestamp_ns}"  # of a state that returned, with its onset
        ids = [hashlib.blake2b(each.encode(), digest_size=6).hexdigest() for each in names]
        self._ids.add(incident_id := ids[ids[0] in self._ids])
        return Incident(
            incident_id=incident_id,
            class_name=kind.name,
            cause=finding.cause,
            onset_ns=min(candidate.onset_ns, view.timestamp_ns),
            detected_ns=view.timestamp_ns,
            severity=candidate.severity,
            evidence=finding.evidence,
            reach=candidate.reach,
            confidence=0.0,
            last_slot=slot,
            subject=finding.subject,
            onset_slots=candidate.onset_slots,
        )

    def _refresh(
        self, view: DiagnosisView, incident: Incident, candidate: _Candidate, slot: int
    ) -> None:
        """Update evidence, victims and cost of an incident."""
        finding, kind = candidate.finding, incident.incident_class
        # A report of the driver stays: no later reading repeats it.
        signals = {each.signal for each in finding.evidence}
        reports = (e for e in incident.evidence if e.is_event and e.signal not in signals)
        incident.evidence = (*finding.evidence, *reports)[:MAX_EVIDENCE]
        add_worst(incident.worst_values, incident.evidence, view.timestamp_ns)
        incident.parts, incident.reach = finding.parts, candidate.reach
        incident.detail = finding.detail
        incident.affected = finding.affected
        if candidate.severity.is_above(incident.severity):
            incident.severity = candidate.severity
            self._note(ChangeKind.ESCALATED, incident)
        if (queue := finding.queue) and incident.queue in {None, queue}:
            if incident.cause != finding.cause:
                incident.cause, incident.detected_ns = finding.cause, view.timestamp_ns
            incident.queue, incident.subject, incident.alternatives = queue, finding.subject, ()
        elif finding.cause.kind == "leaf" and not incident.queue:
            # Which of several leaves comes first may change.
            leaves = {finding.cause.position, *finding.alternatives} - {incident.cause.position}
            incident.alternatives = tuple(sorted(leaves)) or incident.alternatives
        incident.last_slot, incident.normal_quiet_slots = slot, candidate.normal_quiet_slots
        states = (view.states[key] for key in incident.reach.jobs & view.states.keys())
        has_slow_jobs = not kind.is_advice and any(state.loses_time for state in states)
        confidence = round(kind.specificity * finding.certainty(has_slow_jobs=has_slow_jobs), 3)
        before = 0.0 if finding.is_confirmed is False else incident.confidence
        incident.confidence = max(before, confidence)

    def _expire(self, view: DiagnosisView, candidate: _Candidate) -> None:
        """End an incident after some evaluations without its finding, in which its nodes reported."""
        incident, slot = candidate.incident, view.signals.slot
        if incident is None or incident.ended_ns:
            return
        nodes, is_silence = candidate.reach.nodes, AREAS.get(incident.class_name) == "node"
        is_unknown = nodes and nodes <= view.stale_nodes and not is_silence
        is_quiet = incident.last_slot != slot and not is_unknown
        incident.quiet_slots = incident.quiet_slots + 1 if is_quiet else 0
        if slot - incident.last_slot >= STALE_SLOTS or incident.quiet_slots >= CLOSE_SLOTS:
            incident.ended_ns = self._first_ns + (incident.last_slot + 1) * self._slot_ns
            self._note(ChangeKind.CLOSED, incident)

    def _end_refuted(self, incident: Incident) -> None:
        """End the incident that an opened one refutes, and link it."""
        refuted = REFUTED.get(incident.class_name, ""), incident.cause
        found = self._candidates.get(refuted)
        other = found.incident if found else None
        if other is not None and not other.ended_ns:
            other.ended_ns, other.explained_by = incident.detected_ns, incident.incident_id
            self._note(ChangeKind.CLOSED, other)
            del self._candidates[refuted]

    def _explain_late(self) -> None:
        """Link an incident to one that opened after it and explains it, of one device also if it began much later."""
        newest = self.incidents[-MAX_OPEN_PER_CAUSE_NODE:]
        lasting = [each for each in newest if not (each.explained_by or each.ended_ns)]
        if not lasting:
            return
        causes = _index(each for each in self._candidates.values() if each.incident)
        for incident in lasting:
            name, limit_ns = incident.class_name, incident.onset_ns + WAIT_SLOTS * self._slot_ns
            for candidate in causes.causes_of(name, incident.reach):
                other = candidate.incident
                if other is None or other is incident or other.ended_ns or other.explained_by:
                    continue
                is_late = other.onset_ns > limit_ns and not other.reach.contains(incident.reach)
                is_effect = may_explain(name, incident.reach, other.class_name, other.reach)
                if not is_late and (not is_effect or _became(incident, candidate)):
                    incident.explained_by = other.incident_id
                    self._note(ChangeKind.EXPLAINED, incident)
                    other.symptoms.add(name)
                    break

    def _end_explanations(self, slot: int) -> None:
        """Let each fault that outlasts the incident that explained it be an incident of its own."""
        lasting = {each.incident_id for each in self.incidents if not each.ended_ns}
        for incident in self.open:
            is_found = incident.last_slot == slot and not incident.incident_class.is_advice
            if is_found and incident.explained_by and incident.explained_by not in lasting:
                incident.explained_by = ""
                self._note(ChangeKind.UNEXPLAINED, incident)


def _with_parts(reach: Reach, now: Reach) -> Reach:
    """Return the reach of a cause whose parts are others now."""
    names = ("rails", "parts", "pods")
    return replace(reach, **{name: getattr(reach, name) | getattr(now, name) for name in names})


def _became(incident: Incident, candidate: _Candidate) -> bool:
    """True if a more severe failure began well after an incident, of which it is the next stage."""
    is_later = candidate.onset_ns > incident.onset_ns + _MIN_STAGE_NS
    return is_later and candidate.severity.is_above(incident.severity)


def _index(found: Iterable[_Candidate]) -> CauseIndex[_Candidate]:
    # A finding that is less severe than its class has no victims.
    causes = (each for each in found if each.finding.severity != "info")
    return CauseIndex((each.finding.incident_class, each.reach, each) for each in causes)


def _memory(candidate: _Candidate) -> int:
    """Return for how many slots a finding explains others: a report of the hardware outlasts its event, unless it has ended."""
    kind, incident = candidate.kind, candidate.incident
    if incident is None:
        return candidate.max_gap - 1
    # No node boots that fast: its agent has restarted.
    passes = kind.name == "node_down" and 0 < incident.ended_ns < incident.onset_ns + _MIN_BOOT_NS
    is_report = kind.specificity >= 1 or candidate.finding.evidence[0].is_event
    passes |= kind.name in PASSING_CLASSES or not is_report
    return CLOSE_SLOTS if passes else REOPEN_SLOTS


def _rank(candidate: _Candidate) -> tuple[float, float, int, str]:
    """Order of candidates: hard evidence first, then strength, then the earlier onset; the name breaks a tie."""
    kind = candidate.kind
    return (-kind.specificity, -candidate.finding.strength, candidate.onset_ns, kind.name)
