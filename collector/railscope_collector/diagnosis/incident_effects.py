"""Effects of incidents: NICs that are paused, jobs that are slow, their tenants, and the GPU time that they lose.

The speed of a job in an incident is the median of the last five minutes, without the time in which it falls. Where the past of
its GPUs is unknown, it is the duration of its steps before the onset, relative to that of its steps since. What a job
loses counts for one incident: one that touches a device of the job rather than one on its rail, and of these the one
with the highest confidence. The loss begins at the onset. GPUs of a job that a fault ended are lost until a job holds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet

import numpy as np

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis.findings import (
    MIN_EXCHANGE,
    MIN_NVLINK_BYTES_PER_SECOND,
    SLOT_NS,
    SLOTS_PER_MINUTE,
    SPEED_SLOTS,
    DiagnosisView,
    Flags,
    JobState,
    above,
)
from railscope_collector.diagnosis.incident_classes import Severity
from railscope_collector.diagnosis.incidents import CLOSE_SLOTS, IdleGpus, Incident
from railscope_collector.diagnosis.jobs import ActiveJob, EndedJob
from railscope_collector.diagnosis.network_detectors import victims
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import median_known
from railscope_collector.diagnosis.step_period import WINDOW_SECONDS
from railscope_collector.diagnosis.switch_faults import UNFELT_CLASSES
from railscope_collector.workloads.job_holdings import SCHEDULERS
from railscope_collector.workloads.job_roster import JobKey

MAX_JOBS = 1000
"""Jobs, and tenants, that an incident keeps while it lasts: later ones are left out."""

_RAMP_SLOTS = 4
"""Evaluations after the detection in which the speed, that of a minute, still has a part of before the onset."""
_STEADY_SLOTS = 18
"""Evaluations whose median varies half as much as the speed of one minute does."""
STEP_SLOTS = WINDOW_SECONDS * SECOND_NS // SLOT_NS
"""Slots of a window of steps."""
_HOSTS = frozenset({"nic", "node", "rack"})


def update_effects(view: DiagnosisView, incidents: Iterable[Incident]) -> None:
    """Update the effects of the incidents that were found in this slot; advice has none."""
    slot = view.signals.slot
    lasting = [each for each in incidents if not each.incident_class.is_advice]
    found = [incident for incident in lasting if incident.last_slot == slot]
    touched = {}
    for incident in found:
        _add_paused_nics(view, incident)
        touched[incident.incident_id] = _touched_jobs(view, incident)
        _add_ended(view, incident, touched[incident.incident_id])
        incident.scheduler = _scheduler(view, incident)
    causes = [incident for incident in found if not incident.explained_by]
    own_jobs = {
        incident.incident_id: {
            key for key in incident.reach.jobs if _is_own(incident, key, touched)
        }
        for incident in found
    }
    has_own = set[JobKey]().union(
        *(own_jobs[cause.incident_id] for cause in causes),
        # A device that recovers does not leave its job to an incident on its rail.
        *(each.holders & each.reach.jobs for each in lasting if not each.explained_by),
    )
    judged = {
        incident.incident_id: _update_speeds(
            view, incident, own_jobs[incident.incident_id], has_own
        )
        for incident in found
    }
    for key, cause in _main_causes(causes, touched, view.states.keys()).items():
        is_first = key in judged[cause.incident_id] and key in cause.job_steps
        _add_loss(
            view, cause, view.states[key], _wait_slots(cause, key, touched), is_first=is_first
        )
    _add_idle_gpus(view, lasting, causes)
    for incident in found:
        _add_nodes(view, incident, touched[incident.incident_id])


def _scheduler(view: DiagnosisView, incident: Incident) -> str:
    """Return the scheduler of an incident; empty if its nodes have jobs of several: a reboot ends those of each.

    In a cluster with two of them, an idle node may be one of the other.
    """
    if job := incident.cause.job:
        return job.source if job.source in SCHEDULERS else ""
    on_nodes = {job.key for job in view.jobs if not incident.reach.nodes.isdisjoint(job.nodes)}
    for jobs in (incident.holders | on_nodes, incident.job_speeds):
        if sources := {job.source for job in jobs} & SCHEDULERS:
            return sources.pop() if len(sources) == 1 else ""
    of_cluster = Counter(job.key.source for job in view.jobs if job.key.source in SCHEDULERS)
    return incident.scheduler or "".join(source for source, _ in of_cluster.most_common(1))


def _add_ended(view: DiagnosisView, incident: Incident, touched: AbstractSet[JobKey]) -> None:
    for key in incident.ended_jobs.keys() & view.states.keys() & touched:
        # It runs again on what the incident touches. Elsewhere the incident has ended it all the same.
        del incident.ended_jobs[key]
    ended_jobs = incident.ended_jobs
    for ended in _ended_since(view, incident):
        if ended.job.key in touched and len(ended_jobs) < MAX_JOBS:
            ended_jobs[ended.job.key] = ended.end_ns


def _add_paused_nics(view: DiagnosisView, incident: Incident) -> None:
    reach, cause, nics = incident.reach, incident.cause, view.devices.nics
    if not reach.rails:
        return
    own_parts = {cause.position} if cause.kind == "nic" else set(incident.parts)
    may_be_paused = np.isin(view.groups.nic_pod, [-1, *view.pods_around(reach.pods)])
    paused = np.flatnonzero(victims(view) & may_be_paused).tolist()
    incident.victim_nics |= {p for p in paused if nics[p].rail in reach.rails} - own_parts


def _update_speeds(
    view: DiagnosisView,
    incident: Incident,
    own_jobs: AbstractSet[JobKey],
    has_own: AbstractSet[JobKey],
) -> set[JobKey]:
    """Set the speeds of the jobs that the incident reaches and that lose time; return those with a speed for the first time.

    The speed of a job that has ended stays. One that is unknown for as long as the speeds count is removed, and so is that of a
    job which an incident of its own slows down.
    """
    slots = max((view.timestamp_ns - incident.detected_ns) // SLOT_NS, 0) + 1
    counted = max(slots - _RAMP_SLOTS, 1)
    speeds, judged = incident.job_speeds, set[JobKey]()
    for key in incident.reach.jobs & view.states.keys():
        if key not in own_jobs and (key in has_own or slots <= _OWN_CAUSE_SLOTS):
            speeds.pop(key, None)
            continue
        state = view.states[key]
        usual, limit = median_known(np.array(state.history.speeds[-counted:])), state.losing_speed
        if np.isnan(usual):
            usual = _speed_by_steps(view, incident, state)
        else:
            incident.job_steps.pop(key, None)
        if not np.isnan(usual) and len(incident.judged_jobs) < MAX_JOBS:
            judged |= {key} - incident.judged_jobs
            incident.judged_jobs.add(key)
        if slots >= _STEADY_SLOTS:
            limit = (1 + limit) / 2
        if usual >= limit or (np.isnan(usual) and counted >= SPEED_SLOTS):
            speeds.pop(key, None)
        elif usual < limit and (key in speeds or len(speeds) < MAX_JOBS):
            speeds[key] = round(usual, 3)
    return judged


def _speed_by_steps(view: DiagnosisView, incident: Incident, state: JobState) -> float:
    """Return the speed of a job by its steps before the onset of an incident and since; NaN if unknown.

    A window of steps counts if all of it is before the onset, or after. A job that exchanges nothing, over NICs and
    over NVLink, ends no step: the NICs of a job on one node may carry storage only.
    """
    slot, key, usual = view.signals.slot, state.job.key, incident.usual_steps
    onset_slot = slot - (view.timestamp_ns - incident.onset_ns) // SLOT_NS
    before = [period for last, period in state.history.steps if last <= onset_slot]
    if key not in usual and before and len(usual) < MAX_JOBS:
        usual[key] = median_known(np.array(before))
    if key not in usual:
        return np.nan
    moved = view.signals.gpu["nvlink"][state.job.gpus]
    is_still = not above(moved, MIN_NVLINK_BYTES_PER_SECOND).any()
    if is_still and state.exchange < MIN_EXCHANGE and slot - SLOTS_PER_MINUTE >= onset_slot:
        incident.job_steps[key] = np.inf
        return 0.0
    last, period = state.history.steps[-1] if state.history.steps else (-1, np.nan)
    if last - STEP_SLOTS < onset_slot or slot - last > SLOTS_PER_MINUTE:
        if incident.job_steps.get(key) != np.inf:
            return np.nan
        del incident.job_steps[key]  # it exchanges again, and no window shows yet how fast
        return 1.0
    incident.job_steps[key] = period
    return usual[key] / period


def _touched_jobs(view: DiagnosisView, incident: Incident) -> set[JobKey]:
    """Return the jobs on the device that is the cause, its holders, and those with a NIC that is paused."""
    cause, nics = incident.cause, view.devices.nics
    paused_nodes = {nics[position].node for position in incident.victim_nics}
    found = {cause.job} if cause.job else set[JobKey]()
    for number, job in enumerate(_jobs_since(view, incident)):
        is_holder = cause.kind in _HOSTS and not incident.reach.nodes.isdisjoint(job.nodes)
        if cause.kind == "gpu":
            is_holder = bool(view.job_of_gpu[cause.position] == number)
            is_holder |= number >= len(view.jobs) and cause.position in job.gpus
        if is_holder and len(incident.holders) < MAX_JOBS:
            incident.holders.add(job.key)
        if is_holder or not paused_nodes.isdisjoint(job.nodes):
            found.add(job.key)
    return found


def _jobs_since(view: DiagnosisView, incident: Incident) -> list[ActiveJob]:
    """Return the running jobs, and then those that an incident may have ended."""
    return [*view.jobs, *(each.job for each in _ended_since(view, incident))]


def _ended_since(view: DiagnosisView, incident: Incident) -> list[EndedJob]:
    """Return the jobs that an incident may have ended: its onset is the latest time at which it can have begun."""
    slots = view.signals.window if incident.onset_slots is None else incident.onset_slots
    return [each for each in view.ended_jobs if each.end_ns > incident.onset_ns - slots * SLOT_NS]


def _main_causes(
    causes: Iterable[Incident], touched: Mapping[str, set[JobKey]], running: AbstractSet[JobKey]
) -> dict[JobKey, Incident]:
    """Return the incident that counts as the cause of each running job that is slow."""
    found: dict[JobKey, tuple[bool, float, Incident]] = {}
    for incident in causes:
        for key in incident.job_speeds.keys() & running:
            rank = _is_own(incident, key, touched), incident.confidence
            if key not in found or rank > found[key][:2]:
                found[key] = (*rank, incident)
    return {key: incident for key, (*_, incident) in found.items()}


def _is_own(incident: Incident, key: JobKey, touched: Mapping[str, set[JobKey]]) -> bool:
    """True if an incident is one of a job's own devices, of its leaf or storage, or pauses its NICs."""
    is_shared = incident.cause.kind not in _HOSTS | {"gpu"}
    return key in touched[incident.incident_id] or (is_shared and key in incident.reach.jobs)


_OWN_CAUSE_SLOTS = 12
"""Evaluations for which a slow job waits for an incident of its own: most are found later than one on its rail."""


def _wait_slots(incident: Incident, key: JobKey, touched: Mapping[str, set[JobKey]]) -> int:
    return 0 if _is_own(incident, key, touched) else _OWN_CAUSE_SLOTS


def _add_loss(
    view: DiagnosisView, incident: Incident, state: JobState, wait_slots: int, *, is_first: bool
) -> None:
    """Add what a job lost in this slot, and in those before without the finding.

    After detection and wait, and if its steps show its speed for the first time (`is_first`), also since the onset.
    """
    slot, history, key = view.signals.slot, state.history, state.job.key
    is_same = slot - history.loss_slot <= CLOSE_SLOTS
    first_slot = history.loss_slot + 1 if is_same else slot
    is_new = view.timestamp_ns - incident.detected_ns < (wait_slots + SLOTS_PER_MINUTE) * SLOT_NS
    if is_new or is_first:
        since_onset = (view.timestamp_ns - incident.onset_ns) // SLOT_NS
        first_slot = max(slot - min(since_onset, SPEED_SLOTS), history.loss_slot + 1)
    history.loss_slot = slot
    seconds = len(state.job.gpus) * max(slot - first_slot + 1, 1) * SLOT_NS / SECOND_NS
    _charge(incident, key.tenant, seconds * (1 - max(incident.job_speeds[key], 0)))


def _charge(incident: Incident, tenant: str, seconds: float) -> None:
    """Add GPU-seconds that a tenant lost."""
    lost = incident.lost_gpu_seconds
    name = tenant if tenant in lost or len(lost) < MAX_JOBS else ""
    lost[name] = lost.get(name, 0.0) + seconds


def _add_idle_gpus(
    view: DiagnosisView, lasting: Iterable[Incident], causes: Iterable[Incident]
) -> None:
    """Add what the GPUs of the jobs that a critical fault ended lose until a job holds them; others end by themselves."""
    now_ns = view.timestamp_ns
    charged = {key: idle.until_ns for each in lasting for key, idle in each.idle_gpus.items()}
    found = [
        each
        for each in causes
        if each.severity == Severity.CRITICAL and each.incident_class.slows_jobs
    ]
    begun = {key for each in lasting if not each.explained_by for key in each.idle_gpus}
    for incident in sorted(found, key=lambda each: -each.confidence):
        for ended in _ended_since(view, incident):
            key, gpus = ended.job.key, tuple(ended.job.gpus.tolist())
            if key in incident.ended_jobs and key not in begun:
                begun.add(key)
                since_ns = charged.get(key, min(ended.end_ns, now_ns))
                incident.idle_gpus[key] = IdleGpus(gpus, len(gpus), since_ns)
        for key, idle in incident.idle_gpus.items():
            idle.gpus = tuple(gpu for gpu in idle.gpus if view.job_of_gpu[gpu] < 0)
            span_ns = min(max(now_ns - idle.until_ns, 0), (CLOSE_SLOTS + 1) * SLOT_NS)
            seconds, idle.until_ns = len(idle.gpus) * span_ns / SECOND_NS, now_ns
            idle.seconds += seconds
            _charge(incident, key.tenant, seconds)


def _add_nodes(view: DiagnosisView, incident: Incident, touched: AbstractSet[JobKey]) -> None:
    """Add the nodes of the jobs that an incident touches or slows down."""
    nodes = incident.job_nodes
    for job in _jobs_since(view, incident):
        is_concerned = job.key in touched or job.key in incident.job_speeds
        if is_concerned and (job.key in nodes or len(nodes) < MAX_JOBS):
            nodes[job.key] = job.nodes


def affected_devices(view: DiagnosisView, incidents: Sequence[Incident]) -> dict[DeviceKind, Flags]:
    """Return the devices that incidents affect. Of one that delays nothing, it is its NIC only."""
    faults = [each for each in incidents if not (_is_harmless(each) or _is_unfelt(each))]
    touched = {key for incident in faults for key in incident.reach.jobs}
    numbers = [number for number, job in enumerate(view.jobs) if job.key in touched]
    nics, gpus = np.isin(view.job_of_nic, numbers), np.isin(view.job_of_gpu, numbers)
    nodes = {name for job in view.jobs if job.key in touched for name in job.nodes}
    nodes |= {name for incident in faults for name in incident.reach.nodes}
    nics |= np.array([nic.node in nodes for nic in view.devices.nics], np.bool_)
    harmless = (each.cause for each in incidents if _is_harmless(each))
    nics[[cause.position for cause in harmless if cause.kind == "nic"]] = True
    return {
        DeviceKind.NIC: nics,
        DeviceKind.GPU: gpus,
        DeviceKind.NODE: np.array([n in nodes for n in view.devices.node_names], np.bool_),
        DeviceKind.MOUNT: np.array([m.node in nodes for m in view.devices.mounts], np.bool_),
    }


def held_devices(view: DiagnosisView, incidents: Sequence[Incident]) -> dict[DeviceKind, Flags]:
    """Return the devices that are compared with the time before incidents, however long these last.

    Those of a job with an incident of its own are not: it only differs from its past, and may work like that from now on.
    """
    own_incidents = [
        each for each in incidents if each.cause.kind == "job" and not each.explained_by
    ]
    of_jobs = affected_devices(view, own_incidents)
    devices = affected_devices(view, [each for each in incidents if each.cause.kind != "job"])
    return {kind: flags & ~of_jobs[kind] for kind, flags in devices.items()}


def newly_affected_devices(
    view: DiagnosisView, incidents: Sequence[Incident], since_ns: int
) -> dict[DeviceKind, Flags]:
    """Return the devices of incidents that were concluded after a timestamp and began before, except held ones."""
    new = [each for each in incidents if each.onset_ns <= since_ns < each.detected_ns]
    new_ids = {each.incident_id for each in new}
    earlier = [each for each in incidents if each.incident_id not in new_ids]
    devices, of_earlier = affected_devices(view, new), held_devices(view, earlier)
    return {kind: flags & ~of_earlier[kind] for kind, flags in devices.items()}


def _is_harmless(incident: Incident) -> bool:
    """True for an incident of a NIC or of a leaf that is less severe than its class: it delays nothing."""
    is_less = incident.incident_class.severity.is_above(incident.severity)
    return incident.cause.kind in {"nic", "leaf"} and is_less


def _is_unfelt(incident: Incident) -> bool:
    """True for a fault of a link between switches that slows down no job: traffic takes the other links."""
    return incident.class_name in UNFELT_CLASSES and not incident.job_speeds
