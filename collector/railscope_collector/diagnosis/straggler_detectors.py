"""Detectors of the GPU, or the node, that computes more slowly than the others of a synchronous job.

All ranks of a synchronous job do the same work in each step, and a rank that waits spins in a kernel on a few
multiprocessors. So the slow GPU is the *busier* one: its activity stays, while those of its peers fall.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.baselines import GAP_MINUTES
from railscope_collector.diagnosis.gpu_detectors import MIN_LIMITED, UNEXPLAINED_CLOCK
from railscope_collector.diagnosis.job_steps import (
    has_common_steps,
    medians_of_others,
)
from railscope_collector.diagnosis.jobs import MAD_SCALE, MIN_PEERS, ActiveJob
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import (
    Floats,
    Positions,
    divide,
    mean_known,
    means_known,
    median,
    median_known,
)

MIN_JOB_GPUS = 4
EXTREME_RATIO = 1.5
"""Margin above the extreme value of noise."""
MAX_STRAGGLING_SHARE = 0.25
"""Share of the nodes of a job that may have a straggler at once: what one rank of each node does alone is by design."""


def max_straggling_nodes(job: ActiveJob) -> int:
    """Return the number of nodes of a job that may have a straggler at once."""
    return math.ceil(MAX_STRAGGLING_SHARE * len(job.nodes))


def gpu_stragglers(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield the GPUs of a job with an activity that stayed, while that of the others fell; or else with a lower clock."""
    for job in view.jobs:
        if len(job.gpus) < MIN_JOB_GPUS:
            continue
        is_slow = may_have_straggler(view, job)
        slower = list(_slower_clocks(view, job, "" if is_slow else "info"))
        yield from slower
        if slower or not is_slow:
            continue
        for signal in ("activity", "power"):
            base = view.base(DeviceKind.GPU, signal)[job.gpus]
            slots = view.signals.slots(DeviceKind.GPU, findings.SLOTS_PER_MINUTE + 1)
            changes = slots[signal][::-1, job.gpus] / base
            if np.isnan(means_known(changes[:-1])).mean() > 0.5:  # noqa: PLR2004 - most of them unknown
                continue
            found = list(_outliers(view, job, changes, signal))
            yield from found or _slow_node(view, job, changes, signal)
            break


CLOCK_SLOTS = 4
"""Slots of which all readings must show a lower clock."""


def _slower_clocks(
    view: findings.DiagnosisView, job: ActiveJob, severity: str
) -> Iterator[findings.Finding]:
    """Yield the few GPUs of a job with a clock below those of the others and their own before, for no reason that they report.

    A job that has time for it, as in a stage with less work, is not slower: then `severity` is `info`. Readings of moments
    without work, in which the clock is low, are more of the few ones of some windows: lost utilization or a higher
    reading shows that.
    """
    gpu = view.signals.gpu
    clocks = gpu["clock"][job.gpus]
    usual = np.minimum(view.base(DeviceKind.GPU, "clock")[job.gpus], median_known(clocks))
    use = gpu["utilization"][job.gpus]
    usual = usual * np.fmin(use / view.base(DeviceKind.GPU, "utilization")[job.gpus], 1.0)
    limit = UNEXPLAINED_CLOCK * usual
    is_slower = clocks < limit
    if not is_slower.any():
        return
    readings = view.signals.slots(DeviceKind.GPU, CLOCK_SLOTS)["clock"][:, job.gpus]
    is_slower &= ((readings < limit) | np.isnan(readings)).all(axis=0)
    slower = job.gpus[is_slower]
    shares = [gpu[name][slower] for name in _LIMITS]
    is_limited = np.any([findings.above(share, MIN_LIMITED) for share in shares])
    if is_limited:
        return
    for position in slower.tolist():
        values, name = (
            (float(gpu["clock"][position]), median_known(clocks)),
            view.gpu_name(position),
        )
        evidence = findings.FindingEvidence(
            "clock", *values, "other GPUs of the job", name, job.key, CLOCK_SLOTS
        )
        cause = findings.Cause("gpu", position)
        yield findings.Finding("gpu_straggler", cause, (evidence,), severity=severity)


_LIMITS = ("thermal_share", "power_brake_share", "slowdown_share")


MIN_SLOWED_USE, MAX_SLOWED_CHANGE = 0.9, 0.985
"""Utilization, and activity or else power, of a job that a straggler slows, relative to their past: its GPUs run as long as before, and
do less.
"""
MIN_SLOWED_SPEED, MAX_SLOWED_SPEED = 0.1, 0.985
"""Speed of such a job relative to its past. With less, it waits for something else than slow steps; with more, the loss is the noise of a
minute.
"""


def may_have_straggler(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if a job is slower than before but goes on, and its GPUs run as long and do less."""
    state = view.states.get(job.key)
    if state is None:
        return False
    # GPUs without a measure of activity show waits by their power.
    change = state.power_change if np.isnan(state.activity_change) else state.activity_change
    runs = state.utilization_change > MIN_SLOWED_USE
    works = runs and change < MAX_SLOWED_CHANGE
    stands = state.speed < MIN_SLOWED_SPEED
    return bool(works and not stands and not state.speed > MAX_SLOWED_SPEED)


MAX_PEER_CHANGE = 0.98
"""Activity, or else power, of the usual GPU of a job relative to its past: that of the peers of a straggler falls."""
STRAGGLER_DEVIATIONS, MIN_EXCESS = 4.0, 0.04
"""Activity of a straggler beyond that of its peers: in standard deviations, and relative to their past."""


def _outliers(
    view: findings.DiagnosisView, job: ActiveJob, slots: Floats, signal: str
) -> Iterator[findings.Finding]:
    """Yield stragglers by the change of a signal in the slots of the last minute, the newest first, and one before."""
    gpus = job.gpus
    changes = np.array([median_known(of_slot) for of_slot in slots[:-1]])
    usual = mean_known(changes)
    if usual > MAX_PEER_CHANGE:
        return
    excess = _excess(view, job, slots)
    deviation = MAD_SCALE * median_known(np.abs(excess - median_known(excess)))
    # Of many GPUs, some deviate by more: the largest of n normal values is near sqrt(2 ln n) deviations.
    deviations = EXTREME_RATIO * math.sqrt(2 * math.log(len(gpus)))
    noise = max(STRAGGLER_DEVIATIONS, deviations) * deviation
    limit = max(MIN_EXCESS, noise)
    if not findings.above(excess, limit).any():
        return
    limit = max(limit, EXTREME_RATIO * _past_excess(view, job, signal))
    hit = np.flatnonzero(findings.above(excess, limit))
    if not len(hit):
        return
    worst = float(excess[hit].max())
    # It waits nearly as much as the others: for something else, unless that is known and adds to its own delay.
    if worst < _min_explained(signal) * (1 - usual) and not view.has_cause(
        job.key, "gpu_straggler"
    ):
        return
    for index in hit.tolist():
        # A second GPU counts if it is as busy as the first: of two slow ones the lesser waits too.
        if excess[index] >= worst - max(MIN_EXCESS, 2 * deviation):
            position = int(gpus[index])
            value = usual + float(excess[index])
            name = view.gpu_name(position)
            evidence = findings.FindingEvidence(
                signal, value, usual + limit, findings.CHANGE, name, job.key, len(changes)
            )
            yield findings.Finding(
                "gpu_straggler",
                findings.Cause("gpu", position),
                (evidence,),
                float(min(1.0, 1.5 - usual)),
            )


MIN_EXCESS_MINUTES = 3
"""Minutes of the past that show the usual excess of a job."""
UNKNOWN_EXCESS = 0.1
"""Excess that may be usual for a job whose past is too short to show it."""


def _past_excess(view: findings.DiagnosisView, job: ActiveJob, signal: str) -> float:
    """Return the largest excess of a GPU in a minute before, on the usual node of a job: busy experts change places.

    It is that above the other GPUs of the job there, all relative to their past as known now, and as known in that
    minute, before they drifted; zero on nodes with too few to compare.
    """
    count, of_node = len(view.devices.gpus), view.groups.gpu_node[job.gpus]
    minutes = view.baselines.minutes(DeviceKind.GPU, signal, count)[:, job.gpus]
    are_known = ~np.isnan(minutes)
    sums = np.where(are_known, minutes, 0.0).cumsum(axis=0)
    before = divide(sums, are_known.cumsum(axis=0).astype(np.float64))[: -1 - GAP_MINUTES]
    now = divide(minutes, view.base(DeviceKind.GPU, signal)[job.gpus])
    changes = np.concatenate([now, divide(minutes[1 + GAP_MINUTES :], before)])
    largest = []
    for node in np.unique(of_node):
        members = changes[:, of_node == node]
        of_minutes = [each[~np.isnan(each)] for each in members]
        excess = [float(each.max()) - median(each) for each in of_minutes if len(each)]
        if are_known[:, of_node == node].any(axis=1).sum() >= MIN_EXCESS_MINUTES:
            largest.append(max(excess) if members.shape[1] >= MIN_JOB_GPUS else 0.0)
    return median(np.array(largest)) if largest else UNKNOWN_EXCESS


def _excess(view: findings.DiagnosisView, job: ActiveJob, slots: Floats) -> Floats:
    """Return by how much the changes of each GPU exceed those of its peers: of its node, or else of the job.

    The GPUs of a node are sampled together. After a lost sample, a reading has the mean of two slots, and another node
    differs without a reason: a GPU without peers on its node counts while it lacks no sample.
    """
    of_node, found = view.groups.gpu_node[job.gpus], slots - np.nan
    usual = np.array([median_known(of_slot) for of_slot in slots])
    for node in np.unique(of_node):
        members = np.flatnonzero(of_node == node)
        of_members = slots[:, members]
        if len(members) >= MIN_JOB_GPUS:
            found[:, members] = (
                of_members - np.array([median_known(each) for each in of_members])[:, None]
            )
        else:
            is_complete = ~np.isnan(of_members).any(axis=0)
            found[:, members[is_complete]] = (of_members - usual[:, None])[:, is_complete]
    # Most slots must show it: the mean of a minute would show one of ten seconds for as long.
    return np.array([median_known(of_gpu) for of_gpu in found[:-1].T])


def _slow_node(
    view: findings.DiagnosisView, job: ActiveJob, slots: Floats, signal: str
) -> Iterator[findings.Finding]:
    """Yield the nodes of a job of which the usual GPU did not fall as those of the others, which wait for them.

    `slots` are changes of a signal in the slots of the last minute, the newest first, and one before.
    """
    of_gpu = view.groups.gpu_node[job.gpus]
    nodes, counts = np.unique(of_gpu, return_counts=True)
    if len(nodes) < MIN_PEERS or counts.min() < MIN_JOB_GPUS or not has_common_steps(view, job):
        return  # replicas of a service differ as their load does
    changes = _of_nodes(slots[:-1], of_gpu, nodes)
    other_nodes = medians_of_others(changes)
    excess = np.array([median_known(of_node) for of_node in (changes - other_nodes).T])
    deviation = MAD_SCALE * median_known(np.abs(excess - median_known(excess)))
    deviations = EXTREME_RATIO * math.sqrt(2 * math.log(len(nodes)))
    noise = max(STRAGGLER_DEVIATIONS, deviations) * deviation
    minutes = view.baselines.minutes(DeviceKind.GPU, signal, len(view.devices.gpus))[:, job.gpus]
    minutes = _of_nodes(divide(minutes, view.base(DeviceKind.GPU, signal)[job.gpus]), of_gpu, nodes)
    past = np.fmax.reduce(minutes - medians_of_others(minutes), initial=-np.inf)
    is_short = (~np.isnan(minutes)).any(axis=1).sum() < MIN_EXCESS_MINUTES
    past = np.fmax(past, UNKNOWN_EXCESS if is_short else median(past))
    limits = np.fmax(max(MIN_EXCESS, noise), EXTREME_RATIO * past)
    hit = np.flatnonzero(findings.above(excess, limits))
    if not 0 < len(hit) <= max_straggling_nodes(job):
        return
    for index in hit.tolist():
        usual = mean_known(other_nodes[:, index])
        name, gpus = view.devices.node_names[nodes[index]], job.gpus[of_gpu == nodes[index]]
        values = usual + float(excess[index]), usual + float(limits[index])
        evidence = findings.FindingEvidence(
            signal, *values, findings.CHANGE, name, job.key, len(changes)
        )
        yield findings.Finding(
            "gpu_straggler",
            findings.Cause("node", name=name),
            (evidence,),
            float(min(1.0, 1.5 - usual)),
            parts=tuple(gpus.tolist()),
        )


def _of_nodes(values: Floats, of_gpu: Positions, nodes: Positions) -> Floats:
    """Return the median of the known values of each node's GPUs, shape (slots, nodes)."""
    return np.array(
        [[median_known(of_slot[of_gpu == node]) for node in nodes] for of_slot in values]
    ).reshape(len(values), len(nodes))


MIN_EXPLAINED_ACTIVITY, MIN_EXPLAINED_POWER = 0.5, 0.33
"""Share of the fall of its peers' activity, or power, that a straggler leaves out: it works while they wait.
Power falls less than activity.
"""


def _min_explained(signal: str) -> float:
    """Return the share of the fall of its peers that a straggler leaves out: one that does less draws less power."""
    return MIN_EXPLAINED_POWER if signal == "power" else MIN_EXPLAINED_ACTIVITY
