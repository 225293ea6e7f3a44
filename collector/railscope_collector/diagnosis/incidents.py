"""Incidents: findings that persist, opened once, updated while they last, and closed after they have ended."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis.devices import SwitchQueue
from railscope_collector.diagnosis.diagnosis_curves import EvidenceCurve
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
"""Bound of the findings of one node: a broken node must not fill the table."""

_NO_CAUSE = Cause("")
_Key: TypeAlias = tuple[str, Cause | str]
"""Class, and the cause or the subject of a finding."""


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
    """A finding over its evaluations, and the effects of its fault. It waits to be concluded: until then it has no identity.

    Times are on the collector's clock; 0 while it lasts.
    """

    finding: Finding
    """Finding of the last evaluation that shows it."""
    reach: Reach
    onset_ns: int
    first_slot: int
    slots: list[int] = field(default_factory=list)
    """Last evaluations that show it, or a symptom of it at its device."""
    onset_slots: int | None = None
    """Slots before the onset in which the fault may have begun, by the finding of the onset; None for the usual window."""
    incident_id: str = ""
    detected_ns: int = 0
    ended_ns: int = 0
    cause: Cause = _NO_CAUSE
    """Cause of the conclusion: that of advice, and of several leaves that hosts cannot distinguish, stays."""
    severity: Severity = Severity.INFO
    confidence: float = 0.0
    evidence: Evidence = ()
    """Evidence of the finding, and earlier reports of the driver: no later reading repeats them."""
    alternatives: tuple[int, ...] = ()
    queue: SwitchQueue | None = None
    """Queue at which the cause is; it stays when the switch no longer shows it."""
    explained_by: str = ""
    symptoms: set[str] = field(default_factory=set)
    worst_values: dict[EvidenceKey, WorstValue] = field(default_factory=dict)
    """Also of devices that the evidence does not list at present; at most MAX_WORST_VALUES."""
    curves: list[EvidenceCurve] = field(default_factory=list)
    """Curves of the evidence; offline there are none."""
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
    last_slot: int = 0
    quiet_slots: int = 0
    """Evaluations in a row, with samples of its nodes, that do not show it; a restart begins them again."""

    @property
    def class_name(self) -> str:
        """Name of its class."""
        return self.finding.incident_class

    @property
    def incident_class(self) -> IncidentClass:
        """Class of the incident."""
        return CLASSES[self.class_name]

    @property
    def parts(self) -> tuple[int, ...]:
        """Positions of the NICs or GPUs that a larger cause consists of."""
        return self.finding.parts

    @property
    def found_severity(self) -> Severity:
        """Severity by the last finding; that of a concluded incident never falls."""
        return Severity(self.finding.severity or self.incident_class.severity)

    @property
    def is_open(self) -> bool:
        """True if it is concluded and lasts."""
        return bool(self.incident_id) and not self.ended_ns

    @property
    def min_evaluations(self) -> int:
        """Evaluations that must agree."""
        return self.finding.min_evaluations or self.incident_class.min_evaluations

    @property
    def max_gap(self) -> int:
        """Distance of two evaluations that may count together; after a longer one the count starts again."""
        return self.incident_class.of_evaluations - self.min_evaluations + 1

    @property
    def recovering_slots(self) -> int:
        """Evaluations in a row that do not show it; 0 while they are no more than is normal, and once it has ended."""
        kind = self.incident_class
        # Evaluations that need not agree, as between two bursts.
        normal = kind.of_evaluations - min(self.min_evaluations, kind.min_evaluations)
        is_recovering = not self.ended_ns and self.quiet_slots > max(normal, MIN_QUIET_SLOTS)
        return self.quiet_slots if is_recovering else 0

    def count_recent(self, slot: int) -> int:
        """Return how many of the last evaluations show it, of those that its class considers."""
        return sum(each > slot - self.incident_class.of_evaluations for each in self.slots)

    def add_slot(self, slot: int) -> None:
        """Add an evaluation that shows it."""
        self.slots = [*self.slots[1 - REOPEN_SLOTS :], slot]


class IncidentChange(NamedTuple):
    """A change of an incident at an evaluation."""

    kind: ChangeKind
    incident: Incident


class IncidentTracker:
    """All incidents, and the findings that may become one."""

    def __init__(self, first_ns: int, slot_ns: int) -> None:
        self.incidents: list[Incident] = []
        """Those that were concluded, oldest first."""
        self._first_ns, self._slot_ns = first_ns, slot_ns
        self._found: dict[_Key, Incident] = {}
        """Recent findings, and all open incidents."""
        self._ids: set[str] = set()
        self._changes: list[IncidentChange] = []
        self._causes: CauseIndex[Incident] = CauseIndex(())
        """Those of the present update by what they may explain, the strongest first."""
        self._of_nodes: Counter[frozenset[str]] = Counter()
        """Number of findings by the nodes that they reach."""
        self.ignored_findings = 0

    def resume(self, incidents: Iterable[Incident], slot: int) -> None:
        """Continue with the incidents of before a restart; open ones have time to be found again."""
        self.incidents = list(incidents)
        self._ids = {incident.incident_id for incident in self.incidents}
        for incident in self.incidents:
            incident.quiet_slots = 0
            if not incident.ended_ns:
                incident.first_slot, incident.slots = incident.last_slot, [slot - 1]
                self._found[_key(incident.finding)] = incident

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
        self._of_nodes = Counter(each.reach.nodes for each in self._found.values())
        for finding in findings:
            self._add(view, finding, slot)
        self._causes = _index(sorted(self._found.values(), key=_rank))
        present = [each for each in self._found.values() if each.slots[-1] == slot]
        for incident in sorted(present, key=_rank):
            self._conclude(view, incident, slot)
        for key, incident in list(self._found.items()):
            self._expire(view, incident)
            if slot - incident.slots[-1] > REOPEN_SLOTS and not incident.is_open:
                del self._found[key]
        self._explain_late()
        self._end_explanations(slot)
        return self._changes

    def _note(self, kind: ChangeKind, incident: Incident) -> None:
        self._changes.append(IncidentChange(kind, incident))

    @property
    def open(self) -> Iterator[Incident]:
        """Incidents that last."""
        return (each for each in self._found.values() if each.is_open)

    def _add(self, view: DiagnosisView, finding: Finding, slot: int) -> None:
        key = _key(finding)
        found = self._found.get(key)
        if found is None:
            reach = reach_of(view, finding)
            if self._is_full(reach):
                self.ignored_findings += 1
                return
            found = self._found[key] = Incident(finding, reach, 0, slot)
            self._of_nodes[reach.nodes] += 1
        is_late = found.slots and slot - found.slots[-1] > found.max_gap
        if not found.incident_id and (not found.slots or is_late):
            found.first_slot, found.slots = slot, []
            found.onset_ns = finding.onset_ns or self._onset(view, finding)
            found.onset_slots = finding.uncertain_slots
        if not found.slots or found.slots[-1] != slot:
            found.add_slot(slot)
            if finding.parts != found.parts:
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

    def _conclude(self, view: DiagnosisView, incident: Incident, slot: int) -> None:
        """Open, reopen or update an incident that was found."""
        is_enough = incident.count_recent(slot) >= incident.min_evaluations
        if not incident.incident_id:
            if not is_enough or self._waits(incident, slot):
                return
            self._open(view, incident)
            self._note(ChangeKind.OPENED, incident)
            self._end_refuted(incident)
        elif incident.ended_ns:
            if not is_enough:
                return
            incident.ended_ns = 0
            self._note(ChangeKind.REOPENED, incident)
        elif incident.explained_by:
            for other in self._found.values():
                if other.incident_id == incident.explained_by:
                    self._prolong(other, incident, slot)
        self._refresh(view, incident, slot)

    def _waits(self, incident: Incident, slot: int) -> bool:
        """True if another incident explains a finding, or another finding still may."""
        kind, explainer = incident.incident_class, self._explainer(incident, slot)
        if explainer is not None and explainer.incident_id:
            explainer.symptoms.add(kind.name)
            is_hard = explainer.incident_class.specificity >= 1
            if kind.name in PASSING_CLASSES and not is_hard:
                return False  # the hardware reports it once: it is shown, and linked to its cause
            self._prolong(explainer, incident, slot)
            return True
        waits = slot - incident.first_slot < incident.min_evaluations + WAIT_SLOTS
        return waits and (explainer is not None or kind.is_symptom)

    def _prolong(self, explainer: Incident, incident: Incident, slot: int) -> None:
        """Let an incident last, or return, while its device shows a symptom of it."""
        if explainer.reach.device == incident.reach.device:
            explainer.last_slot = slot
            explainer.add_slot(slot)
            if explainer.ended_ns:
                explainer.ended_ns = 0
                self._note(ChangeKind.REOPENED, explainer)

    def _explainer(self, incident: Incident, slot: int) -> Incident | None:
        """Return the strongest finding that may explain another one, and began not much later."""
        name = incident.class_name
        limit_ns = incident.onset_ns + WAIT_SLOTS * self._slot_ns
        for other in self._causes.causes_of(name, incident.reach):
            # A fault that returns at the same device is the same one, also by a part of its symptoms.
            is_same = other.reach.device == incident.reach.device and other.incident_id
            memory = REOPEN_SLOTS if is_same else _memory(other)
            if other is incident or slot - other.slots[-1] > memory or other.onset_ns > limit_ns:
                continue
            is_mutual = may_explain(name, incident.reach, other.class_name, other.reach)
            if is_mutual and other.incident_id and _became(other, incident):
                continue
            if other.incident_id or not is_mutual or _rank(incident) > _rank(other):
                return other  # of two that explain each other, the one that opened, or the stronger one
        return None

    def _open(self, view: DiagnosisView, incident: Incident) -> None:
        """Conclude a finding: it has an identity from now on."""
        finding, subject = incident.finding, incident.finding.subject or incident.finding.cause
        subject = view.identity_of(subject) if isinstance(subject, Cause) else subject
        onset_slot = incident.onset_ns // self._slot_ns  # estimates of clocks differ
        text = f"{incident.class_name} {subject} {onset_slot}"
        names = text, f"{text} {view.timestamp_ns}"  # of a state that returned, with its onset
        ids = [hashlib.blake2b(each.encode(), digest_size=6).hexdigest() for each in names]
        incident.incident_id = ids[ids[0] in self._ids]
        self._ids.add(incident.incident_id)
        incident.onset_ns = min(incident.onset_ns, view.timestamp_ns)
        incident.detected_ns, incident.cause = view.timestamp_ns, finding.cause
        incident.severity = incident.found_severity
        self.incidents.append(incident)

    def _refresh(self, view: DiagnosisView, incident: Incident, slot: int) -> None:
        """Update evidence, place and confidence of an incident."""
        finding, kind = incident.finding, incident.incident_class
        # A report of the driver stays: no later reading repeats it.
        signals = {each.signal for each in finding.evidence}
        reports = (e for e in incident.evidence if e.is_event and e.signal not in signals)
        incident.evidence = (*finding.evidence, *reports)[:MAX_EVIDENCE]
        add_worst(incident.worst_values, incident.evidence, view.timestamp_ns)
        if incident.found_severity.is_above(incident.severity):
            incident.severity = incident.found_severity
            self._note(ChangeKind.ESCALATED, incident)
        if (queue := finding.queue) and incident.queue in {None, queue}:
            if incident.cause != finding.cause:
                incident.cause, incident.detected_ns = finding.cause, view.timestamp_ns
            incident.queue, incident.alternatives = queue, ()
        elif finding.cause.kind == "leaf" and not incident.queue:
            # Which of several leaves comes first may change.
            leaves = {finding.cause.position, *finding.alternatives} - {incident.cause.position}
            incident.alternatives = tuple(sorted(leaves)) or incident.alternatives
        incident.last_slot = slot
        states = (view.states[key] for key in incident.reach.jobs & view.states.keys())
        has_slow_jobs = not kind.is_advice and any(state.loses_time for state in states)
        confidence = round(kind.specificity * finding.certainty(has_slow_jobs=has_slow_jobs), 3)
        before = 0.0 if finding.is_confirmed is False else incident.confidence
        incident.confidence = max(before, confidence)

    def _expire(self, view: DiagnosisView, incident: Incident) -> None:
        """End an incident after some evaluations without its finding, in which its nodes reported."""
        slot = view.signals.slot
        if not incident.is_open:
            return
        nodes, is_silence = incident.reach.nodes, AREAS.get(incident.class_name) == "node"
        is_unknown = nodes and nodes <= view.stale_nodes and not is_silence
        is_quiet = incident.last_slot != slot and not is_unknown
        incident.quiet_slots = incident.quiet_slots + 1 if is_quiet else 0
        if slot - incident.last_slot >= STALE_SLOTS or incident.quiet_slots >= CLOSE_SLOTS:
            incident.ended_ns = self._first_ns + (incident.last_slot + 1) * self._slot_ns
            self._note(ChangeKind.CLOSED, incident)

    def _end_refuted(self, incident: Incident) -> None:
        """End the incident that an opened one refutes, and link it."""
        refuted = REFUTED.get(incident.class_name, ""), incident.cause
        other = self._found.get(refuted)
        if other is not None and other.is_open:
            other.ended_ns, other.explained_by = incident.detected_ns, incident.incident_id
            self._note(ChangeKind.CLOSED, other)
            del self._found[refuted]

    def _explain_late(self) -> None:
        """Link an incident to one that opened after it and explains it, of one device also if it began much later."""
        newest = self.incidents[-MAX_OPEN_PER_CAUSE_NODE:]
        lasting = [each for each in newest if not (each.explained_by or each.ended_ns)]
        if not lasting:
            return
        causes = _index(each for each in self._found.values() if each.incident_id)
        for incident in lasting:
            name, limit_ns = incident.class_name, incident.onset_ns + WAIT_SLOTS * self._slot_ns
            for other in causes.causes_of(name, incident.reach):
                if other is incident or other.ended_ns or other.explained_by:
                    continue
                is_late = other.onset_ns > limit_ns and not other.reach.contains(incident.reach)
                is_effect = may_explain(name, incident.reach, other.class_name, other.reach)
                if not is_late and (not is_effect or _became(incident, other)):
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


def _key(finding: Finding) -> _Key:
    """Return the identity of a finding over its evaluations."""
    return finding.incident_class, finding.subject or finding.cause


def _with_parts(reach: Reach, now: Reach) -> Reach:
    """Return the reach of a cause whose parts are others now."""
    names = ("rails", "parts", "pods")
    return replace(reach, **{name: getattr(reach, name) | getattr(now, name) for name in names})


def _became(incident: Incident, other: Incident) -> bool:
    """True if a more severe failure began well after an incident, of which it is the next stage."""
    is_later = other.onset_ns > incident.onset_ns + _MIN_STAGE_NS
    return is_later and other.found_severity.is_above(incident.severity)


def _index(found: Iterable[Incident]) -> CauseIndex[Incident]:
    # A finding that is less severe than its class has no victims.
    causes = (each for each in found if each.finding.severity != "info")
    return CauseIndex((each.class_name, each.reach, each) for each in causes)


def _memory(incident: Incident) -> int:
    """Return for how many slots a finding explains others: a report of the hardware outlasts its event, unless it has ended."""
    kind = incident.incident_class
    if not incident.incident_id:
        return incident.max_gap - 1
    # No node boots that fast: its agent has restarted.
    passes = kind.name == "node_down" and 0 < incident.ended_ns < incident.onset_ns + _MIN_BOOT_NS
    is_report = kind.specificity >= 1 or incident.finding.evidence[0].is_event
    passes |= kind.name in PASSING_CLASSES or not is_report
    return CLOSE_SLOTS if passes else REOPEN_SLOTS


def _rank(incident: Incident) -> tuple[float, float, int, str]:
    """Order of findings: hard evidence first, then strength, then the earlier onset; the name breaks a tie."""
    kind = incident.incident_class
    return (-kind.specificity, -incident.finding.strength, incident.onset_ns, kind.name)
