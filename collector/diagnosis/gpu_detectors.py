"""Detectors of GPUs: lost, unresponsive, memory, NVLink, heat, power, and the slow GPU of a synchronous job.

All ranks of a synchronous job do the same work in each step, and a rank that waits spins in a kernel on a few
multiprocessors. So the slow GPU is the *busier* one: its activity stays, while those of its peers fall.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from collector.diagnosis import findings
from collector.diagnosis.baselines import GAP_MINUTES
from collector.diagnosis.job_steps import has_common_steps, is_steady_for_half
from collector.diagnosis.jobs import MAD_SCALE, ActiveJob
from collector.diagnosis.quantities import DeviceKind
from collector.diagnosis.slot_sums import (
    Floats,
    Positions,
    divide,
    mean_known,
    means_known,
    median,
    median_known,
    or_zero,
)
from railscope.catalog.xids import xid
from railscope.reading import Absent

_CLASS_OF_XID = {
    79: "gpu_lost",
    48: "ecc_uncorrectable",
    94: "ecc_uncorrectable",
    95: "ecc_uncorrectable",
    63: "row_remap",
    64: "row_remap",
    74: "nvlink_errors",
    **dict.fromkeys(range(144, 151), "nvlink_errors"),
    119: "gpu_unresponsive",
    120: "gpu_unresponsive",
}
"""Classes of the errors that the driver reports (docs/xids.md)."""

USED_EVENTS = frozenset({"xid", "gpu_lost"})
_MISSING_STATE = 4
MAX_XID_DIGITS = 6
XID_STRENGTH = 0.5
REMAP_STRENGTH = 0.7
"""Strength of an Xid; a counter or a state of the GPU counts more."""
ANSWER_SLOTS, NVLINK_SLOTS = 2, 6
"""Slots without an answer of the driver, and those in which an NVLink must have errors again and again."""
_STRONGER_XIDS = {48: 0.8}
"""A double-bit error is reported once and needs a drain; the row that waits for its remap afterwards is its effect."""


def xid_events(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield the GPUs of which the driver reported an error of the hardware."""
    for node_event in view.events:
        event, key = node_event.event, node_event.event.entity.key
        node = view.devices.nodes.get(node_event.node)
        if event.name not in USED_EVENTS or node is None or not key:
            continue
        position, number = node.gpu_by_address.get(key[0], -1), 79
        if event.name == "xid":
            text = key[1] if len(key) > 1 else ""
            number = int(text) if text.isdecimal() and len(text) <= MAX_XID_DIGITS else -1
        name = _CLASS_OF_XID.get(number, "")
        if position < 0 or number < 0 or (not name and xid(number).error_class != "hardware"):
            continue
        is_fatal = not name and xid(number).severity == "fatal"
        evidence = findings.FindingEvidence(
            f"xid {number}", 1.0, 0.0, findings.EVENT, view.gpu_name(position), slots=0
        )
        yield findings.Finding(
            name or "xid_event",
            findings.Cause("gpu", position),
            (evidence,),
            _STRONGER_XIDS.get(number, XID_STRENGTH),
            severity="critical" if is_fatal else "",
            onset_ns=node_event.timestamp_ns,
        )


def reported_gpu_faults(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield GPUs whose counters, states or absence report a fault."""
    gpu, groups = view.signals.gpu, view.groups
    sums, slot = view.devices.sums[DeviceKind.GPU], view.signals.slot
    recent = view.signals.table(DeviceKind.GPU, 2)
    reason = sums.last("utilization_absence", slot, ANSWER_SLOTS)
    alive = ~np.isnan(sums.rate("utilization", slot, ANSWER_SLOTS))
    nodes = len(view.devices.node_names)
    answering = np.bincount(groups.gpu_node[alive], minlength=nodes)[groups.gpu_node]
    missing = gpu["device_state"] == _MISSING_STATE
    gone = (~alive & (reason == Absent.GONE.value)) | (missing & ~alive)
    # All GPUs of a node that no job uses: the driver was unloaded.
    gone &= (answering > 0) | (view.job_of_gpu >= 0)
    hung = ~alive & (reason == Absent.TIMEOUT.value)
    yield from _without_answer(view, "gpu_lost", gone, "gone")
    yield from _without_answer(view, "gpu_unresponsive", hung, "timeout")
    yield from _gpu_findings(
        view, "row_remap", findings.above(gpu["remap_failure"], 0.0), "remap_failure", "critical"
    )
    waits = findings.above(gpu["remap_pending"], 0.0) & ~findings.above(gpu["remap_failure"], 0.0)
    yield from _gpu_findings(view, "row_remap", waits, "remap_pending", strength=REMAP_STRENGTH)
    yield from _gpu_findings(
        view,
        "ecc_uncorrectable",
        findings.above(recent["uncorrected_errors"], 0.0),
        "uncorrected_errors",
    )
    often = findings.above(sums.total("nvlink_errors", slot, NVLINK_SLOTS), 0.0)
    if often.any():
        errors = sums.history("nvlink_errors", slot, NVLINK_SLOTS)
        has_value = ~np.isnan(errors)
        often = ((errors > 0) & has_value).sum(axis=0) > np.fmax(has_value.sum(axis=0) / 2, 2)
    often |= findings.above(gpu["nvlink_recoveries"], 0.0)
    yield from _gpu_findings(view, "nvlink_errors", often, "nvlink_errors", slots=NVLINK_SLOTS)
    busy = findings.above(gpu["utilization"], view.thresholds.gpus.min_generation_use)
    narrow = _below_usual(view, gpu["pcie_width"])
    yield from _gpu_findings(view, "pcie_degraded", narrow, "pcie_width", limit=1.0)
    slow = busy & _below_usual(view, gpu["pcie_generation"])
    yield from _gpu_findings(view, "pcie_degraded", slow, "pcie_generation", limit=1.0)


def _below_usual(view: findings.DiagnosisView, values: Floats) -> findings.Flags:
    """Return the GPUs with less than the whole, unless most GPUs of their model have as little: on a board with fewer lanes."""
    below = findings.above(1.0 - values, 0.01)
    if not below.any():
        return below
    models = np.array([each.model for each in view.devices.gpus])
    usual = np.full(len(values), np.nan)
    for model in np.unique(models):
        of_model = values[(models == model) & ~np.isnan(values)]
        if len(of_model) >= MIN_JOB_GPUS:
            usual[models == model] = median(of_model)
    return below & ~(values >= usual)


def _gpu_findings(  # noqa: PLR0913, PLR0917 - parts of a finding
    view: findings.DiagnosisView,
    name: str,
    hit: findings.Flags,
    signal: str,
    severity: str = "",
    strength: float = 1.0,
    limit: float = 0.0,
    slots: int | None = None,
) -> Iterator[findings.Finding]:
    for position in np.flatnonzero(hit).tolist():
        value, name_of_gpu = float(view.signals.gpu[signal][position]), view.gpu_name(position)
        evidence = findings.FindingEvidence(signal, value, limit, "limit", name_of_gpu, slots=slots)
        yield findings.Finding(
            name, findings.Cause("gpu", position), (evidence,), strength, severity
        )


def _without_answer(
    view: findings.DiagnosisView, name: str, hit: findings.Flags, reason: str
) -> Iterator[findings.Finding]:
    """Yield GPUs about which the driver does not answer, or answers that they are gone: they have no value."""
    for position in np.flatnonzero(hit).tolist():
        evidence = findings.FindingEvidence(
            "utilization", np.nan, np.nan, reason, view.gpu_name(position), slots=ANSWER_SLOTS
        )
        yield findings.Finding(name, findings.Cause("gpu", position), (evidence,))


def slow_clocks(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield GPUs with a clock that is low because of heat, or because hardware forces it."""
    thresholds = view.thresholds.gpus
    gpu = view.signals.gpu
    slower = gpu["clock"] < thresholds.slow_clock * _peer_clocks(view)
    hot = findings.above(gpu["thermal_share"], thresholds.min_limited) & slower
    yield from _gpu_findings(
        view, "thermal_straggler", hot, "thermal_share", limit=thresholds.min_limited
    )
    brake = findings.above(gpu["power_brake_share"], thresholds.min_limited)
    braked = (
        brake | (findings.above(gpu["slowdown_share"], thresholds.min_limited) & slower)
    ) & ~hot
    yield from _slowdowns(view, np.flatnonzero(braked).tolist())


def _slowdowns(
    view: findings.DiagnosisView, positions: Sequence[int]
) -> Iterator[findings.Finding]:
    """Yield the smallest unit with all GPUs that hardware forces to a low clock: a GPU, a node, a rack.

    Nodes that are limited together have a common power supply; GPUs of rack-scale systems report their chassis. Others
    are in one rack only if their NICs are in one pod.
    """
    gpu = view.signals.gpu
    shares = np.fmax(gpu["power_brake_share"], gpu["slowdown_share"])
    racks: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position in positions:
        device = view.devices.gpus[position]
        rack = device.chassis or _first_leaf(view, int(view.groups.gpu_node[position]))
        racks[rack][device.node].append(position)
    for rack, nodes in racks.items():
        members = [position for of_node in nodes.values() for position in of_node]
        evidence = tuple(
            findings.FindingEvidence(
                "power_brake_share",
                float(shares[p]),
                view.thresholds.gpus.min_limited,
                "limit",
                view.gpu_name(p),
            )
            for p in members[:4]
        )
        if len(nodes) > 1:
            cause = findings.Cause("rack", name=rack)
            yield findings.Finding("hw_slowdown", cause, evidence, parts=tuple(members))
        elif len(members) > 1:
            yield findings.Finding(
                "hw_slowdown", findings.Cause("node", name=next(iter(nodes))), evidence
            )
        else:
            yield findings.Finding("hw_slowdown", findings.Cause("gpu", members[0]), evidence)


def _first_leaf(view: findings.DiagnosisView, node: int) -> str:
    """Return the first leaf of a node's pod; an empty name if all leaves are in one pod."""
    groups = view.groups
    pods = np.unique(groups.nic_pod[(groups.nic_node == node) & (groups.nic_pod >= 0)])
    if len(np.unique(groups.nic_pod[groups.nic_pod >= 0])) < 2 or not len(pods):  # noqa: PLR2004 - several pods
        return ""
    return groups.leaf_names[int(groups.nic_leaf[groups.nic_pod == pods[0]].min())]


def _peer_clocks(view: findings.DiagnosisView) -> Floats:
    """Return, for each GPU, the usual clock of busy GPUs of its model, or its own before."""
    gpu = view.signals.gpu
    usual = np.full(len(gpu), np.nan)
    models = np.array([each.model for each in view.devices.gpus])
    busy = findings.above(gpu["utilization"], view.thresholds.gpus.min_clock_use)
    for model in np.unique(models):
        members = (models == model) & busy & ~np.isnan(gpu["clock"])
        if members.sum() >= 3:  # noqa: PLR2004 - a majority needs three
            usual[models == model] = median(gpu["clock"][members])
    clocks: Floats = np.fmax(usual, or_zero(view.base(DeviceKind.GPU, "clock")))
    return clocks


MIN_JOB_GPUS = 4
EXTREME_RATIO = 1.5
"""Margin above the extreme value of noise."""


def max_straggling_nodes(view: findings.DiagnosisView, job: ActiveJob) -> int:
    """Return the number of nodes of a job that may have a straggler at once."""
    return math.ceil(view.thresholds.gpus.max_straggling_nodes * len(job.nodes))


def gpu_stragglers(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield the GPUs of a job with an activity that stayed, while that of the others fell; or else with a lower clock."""
    for job in view.jobs:
        state = view.states.get(job.key)
        if state is None or len(job.gpus) < MIN_JOB_GPUS:
            continue
        is_slow = may_have_straggler(view, state)
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
            if is_steady_for_half(view, job, signal) and _fell_alike(view, job, changes[:-1]):
                yield from _outliers(view, job, changes, signal)
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
    thresholds, gpu = view.thresholds.gpus, view.signals.gpu
    clocks = gpu["clock"][job.gpus]
    usual = np.minimum(view.base(DeviceKind.GPU, "clock")[job.gpus], median_known(clocks))
    use = gpu["utilization"][job.gpus]
    usual = usual * np.fmin(use / view.base(DeviceKind.GPU, "utilization")[job.gpus], 1.0)
    # An idle GPU may lower its clock.
    works = ~(use < view.thresholds.steps.min_busy_use * median_known(use))
    limit = thresholds.unexplained_clock * usual
    is_slower = (clocks < limit) & works
    if not is_slower.any():
        return
    readings = view.signals.slots(DeviceKind.GPU, CLOCK_SLOTS)["clock"][:, job.gpus]
    is_slower &= ((readings < limit) | np.isnan(readings)).all(axis=0)
    slower = job.gpus[is_slower & ((~np.isnan(readings)).sum(axis=0) > 1)]
    shares = [gpu[name][slower] for name in _LIMITS]
    is_limited = np.any([findings.above(share, thresholds.min_limited) for share in shares])
    if is_limited or not _are_few(view, job, slower):
        return
    for position in slower.tolist():
        values = float(gpu["clock"][position]), float(median_known(clocks))
        evidence = findings.FindingEvidence(
            "clock",
            *values,
            "other GPUs of the job",
            view.gpu_name(position),
            job.key,
            CLOCK_SLOTS,
        )
        yield findings.Finding(
            "gpu_straggler", findings.Cause("gpu", position), (evidence,), severity=severity
        )


_LIMITS = ("thermal_share", "power_brake_share", "slowdown_share")


def _are_few(view: findings.DiagnosisView, job: ActiveJob, gpus: Positions) -> bool:
    """True if so few GPUs of a job may be stragglers at once: on few nodes, or none that has the part of all nodes."""
    max_gpus = max(1, view.thresholds.gpus.max_stragglers * len(job.gpus))
    nodes = len(np.unique(view.groups.gpu_node[gpus]))
    indices = {view.devices.gpus[position].index for position in gpus.tolist()}
    is_by_chance = len(gpus) == len(indices) or len(gpus) <= 2 < len(job.nodes)  # noqa: PLR2004 - a pair
    return len(gpus) <= max_gpus and (nodes <= max_straggling_nodes(view, job) or is_by_chance)


def _fell_alike(view: findings.DiagnosisView, job: ActiveJob, slots: Floats) -> bool:
    """True if the GPUs of a job take common steps, also steps of which a minute shows few: most of them fell by as much."""
    means = means_known(slots)
    spread = MAD_SCALE * median_known(np.abs(means - median_known(means)))
    return spread <= view.thresholds.steps.max_gap_spread or has_common_steps(view, job)


def may_have_straggler(view: findings.DiagnosisView, state: findings.JobState) -> bool:
    """True if a job is slower than before but goes on, and its GPUs run as long and do less."""
    thresholds = view.thresholds.gpus
    # GPUs without a measure of activity show waits by their power.
    change = state.power_change if np.isnan(state.activity_change) else state.activity_change
    runs = state.utilization_change > thresholds.min_slowed_use
    works = runs and change < thresholds.max_slowed_change
    stands = state.speed < thresholds.min_slowed_speed
    return bool(works and not stands and not state.speed > thresholds.max_slowed_speed)


def _outliers(
    view: findings.DiagnosisView, job: ActiveJob, slots: Floats, signal: str
) -> Iterator[findings.Finding]:
    """Yield stragglers by the change of a signal in the slots of the last minute, the newest first, and one before."""
    thresholds, gpus = view.thresholds.gpus, job.gpus
    changes = np.array([median_known(of_slot) for of_slot in slots[:-1]])
    usual = mean_known(changes)
    if usual > thresholds.max_peer_change:
        return
    excess = _excess(view, job, slots)
    deviation = MAD_SCALE * median_known(np.abs(excess - median_known(excess)))
    # Of many GPUs, some deviate by more: the largest of n normal values is near sqrt(2 ln n) deviations.
    deviations = EXTREME_RATIO * math.sqrt(2 * math.log(len(gpus)))
    noise = max(thresholds.straggler_deviations, deviations) * deviation
    limit = max(thresholds.min_excess, noise)
    if not findings.above(excess, limit).any():
        return
    limit = max(limit, EXTREME_RATIO * _past_excess(view, job, signal))
    hit = np.flatnonzero(findings.above(excess, limit))
    if not len(hit) or not _are_few(view, job, gpus[hit]):
        return
    worst, min_explained = float(excess[hit].max()), thresholds.min_explained_activity
    if signal == "power":
        min_explained = thresholds.min_explained_power
    if worst < min_explained * (1 - usual):
        return  # it waits nearly as much as the others
    for index in hit.tolist():
        # A second GPU counts if it is as busy as the first: of two slow ones the lesser waits too.
        if excess[index] >= worst - max(thresholds.min_excess, 2 * deviation):
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
    return median(np.array(largest)) if largest else view.thresholds.gpus.unknown_excess


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
