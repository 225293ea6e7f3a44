"""Detectors of jobs and their hosts: input, late hosts, hangs.

Phases of a job (start, checkpoint, evaluation, requeue) change its readings as faults do. A checkpoint ends
within 90 seconds, in an evaluation the GPUs go on computing, and a requeue leaves them idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from railscope_collector.diagnosis import findings, job_steps, slot_sums, storage_detectors
from railscope_collector.diagnosis.jobs import MIN_PEERS, ActiveJob
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.workloads.job_roster import JobKey

INPUT_SLOTS = 2
"""Slots over which utilization counts: a longer window would mix a short checkpoint with the work around it."""

MOMENT_SLOTS, MAX_MOMENTS = 4, 3.0
"""Slots over which few readings of moments count, which miss the gaps of long steps, or the work; the exchange must be even then."""

LONG_SLOTS = (12, 24)
"""Slots over which long steps count."""


class _InputWait(NamedTuple):
    """Usual utilization of the ranks of a job relative to their past, its limit, the progress of the job, and the window."""

    usual: float
    limit: float
    progress: float
    slots: int
    min_evaluations: int = 0


def _of_job(
    job: ActiveJob, signal: str, values: tuple[float, float], comparison: str, slots: int | None
) -> findings.FindingEvidence:
    """Return evidence about a job as a whole; `values` are that of the signal and its threshold."""
    name = job.key.workload
    return findings.FindingEvidence(signal, *values, comparison, name, job.key, slots)


MAJORITY = 0.6
"""Share of ranks that must be affected alike."""
MIN_TRAINING_USE = 0.8
"""Utilization of a job that trains, in most minutes: that of a service, or of alternating phases, varies."""


def jobs_without_input(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield jobs of which all ranks wait alike, and not for storage."""
    past = view.base(DeviceKind.GPU, "utilization", 0.5)
    for job in view.jobs:
        # A job that restarts fills its caches.
        restarts = view.states[job.key].history.restarts(view.signals.slot)
        trains = findings.above(past[job.gpus], MIN_TRAINING_USE)
        if restarts or trains.mean() <= MAJORITY:
            continue
        wait = _find_wait(view, job)
        if wait:
            values = wait.usual, wait.limit
            evidence = _of_job(job, "utilization", values, findings.OWN_PAST, wait.slots)
            # Without counters of what a job exchanges, a phase of other work has the same readings.
            severity = "info" if np.isnan(wait.progress) or job_steps.may_serve(view, job) else ""
            slots = job_steps.waiting_slots(view, job, job_steps.MIN_INPUT, wait.limit)
            onset_ns = view.timestamp_ns - max(slots - 1, 0) * findings.SLOT_NS
            yield findings.Finding(
                "dataloader_stall",
                findings.Cause("job", job=job.key),
                (evidence,),
                severity=severity,
                onset_ns=onset_ns,
                min_evaluations=wait.min_evaluations,
            )


def _find_wait(view: findings.DiagnosisView, job: ActiveJob) -> _InputWait | None:
    """Return the wait of a job by the window that shows it best."""
    for slots in LONG_SLOTS:
        wait = _input_wait(view, job, slots) if _waits_repeatedly(view, job, slots) else None
        if wait:
            return wait._replace(min_evaluations=1)
    wait = None
    if _readings(view, job, INPUT_SLOTS) <= MAX_MOMENTS and _exchanges_evenly(view, job):
        wait = _input_wait(view, job, MOMENT_SLOTS)
    return wait or _input_wait(view, job, INPUT_SLOTS)


def _readings(view: findings.DiagnosisView, job: ActiveJob, slots: int) -> float:
    """Return the readings of utilization of the usual GPU in the last slots; infinite if they are means of intervals."""
    sums, slot = view.devices.sums[DeviceKind.GPU], view.signals.slot
    has_means = sums.weight("graphics_activity", slot, slots)[job.gpus] > 0
    counts = sums.weight("utilization", slot, slots)[job.gpus]
    return slot_sums.median(np.where(has_means, np.inf, counts))


PROGRESS_SHARE = 0.5
"""Exchange of a job that waits for its input, relative to its utilization, both relative to their past: starved steps still end."""
MIN_STARVED_LOSS = 0.25
"""Loss of exchange of such a job, relative to the loss of its utilization: with less, it makes as much progress as before."""


def _input_wait(view: findings.DiagnosisView, job: ActiveJob, slots: int) -> _InputWait | None:
    """Return how much all ranks of a job waited in the last slots, while its steps went on; None if they did not."""
    baseline = view.base(DeviceKind.GPU, "utilization")[job.gpus]
    used = view.signals.table(DeviceKind.GPU, slots)["utilization"][job.gpus]
    changes = used / baseline
    changes = changes[~np.isnan(changes)]
    if len(changes) < MAJORITY * len(job.gpus):
        return None
    is_usual_shown = slots == INPUT_SLOTS
    usual = slot_sums.median(changes) if is_usual_shown else slot_sums.mean_known(changes)
    limit = _input_limit(view, job, usual)
    if not job_steps.MIN_INPUT < usual < limit:
        return None
    if not are_alike(changes, usual, _readings(view, job, slots)):
        return None
    progress = job_steps.progress(view, job, slots)
    # Two slots show a part of long steps, with or without their exchange.
    lowest = max(job_steps.MIN_PROGRESS, PROGRESS_SHARE * usual)
    minute = job_steps.progress(view, job, findings.SLOTS_PER_MINUTE)
    # Readings of moments may be those of gaps for minutes; a job that makes as much progress as before does not wait.
    highest = 1 - MIN_STARVED_LOSS * (1 - usual)
    starves = any(not each < lowest and not each > highest for each in (progress, minute))
    windows = slots, findings.SLOTS_PER_MINUTE
    starves &= not all(job_steps.is_other_work(view, job, each) for each in windows)
    has_steps = job_steps.has_common_steps(view, job)
    has_steps = has_steps or job_steps.has_common_steps(view, job, slots)
    return _InputWait(usual, limit, progress, slots) if starves and has_steps else None


MAX_INPUT, MAX_SMALL_INPUT = 0.78, 0.88
"""Utilization relative to its past above which a job has its input. The second is for jobs that slow down as much as their gaps
explain: other phases exchange far less, or as before.
"""
MIN_GAP_SPEED, MAX_STARVED_SPEED = 0.75, 0.95
"""Speed of such a job relative to its utilization, both relative to their past, and speed relative to its past below which a job may wait
for its input.
"""
MIN_SPINNING_USE = 0.92
"""Utilization of ranks that spin while they wait for others: their gaps count although they are small, unlike those of a service with less load."""


def _input_limit(view: findings.DiagnosisView, job: ActiveJob, usual: float) -> float:
    """Return the utilization relative to the past below which a job waits; it is higher if the job slows down as much as its gaps explain."""
    speed = view.states[job.key].speed
    past = view.base(DeviceKind.GPU, "utilization")[job.gpus]
    spins = findings.above(past, MIN_SPINNING_USE)
    is_loss_of_gaps = MIN_GAP_SPEED * usual < speed < MAX_STARVED_SPEED
    is_loss_of_gaps &= bool(spins.mean() > MAJORITY)
    return MAX_SMALL_INPUT if is_loss_of_gaps else MAX_INPUT


def _exchanges_evenly(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if a job exchanged less than before, and alike, in both halves of the last slots: it was in no checkpoint."""
    changes = [
        job_steps.progress(view, job, INPUT_SLOTS, before)
        for before in range(0, MOMENT_SLOTS, INPUT_SLOTS)
    ]
    return min(changes) > job_steps.MIN_PROGRESS and max(changes) < min(
        MAX_STARVED_SPEED, job_steps.UNEVEN_FACTOR * min(changes)
    )


MAX_LONG_STEP_USE = 0.7
"""Utilization relative to its past below which minutes show the gaps of long steps: a single evaluation suffices."""


def _waits_repeatedly(view: findings.DiagnosisView, job: ActiveJob, slots: int) -> bool:
    """True if the ranks of a job waited in the last slots, also without its two longest pauses, and the job was slower."""
    if job_steps.progress(view, job, slots) > MAX_STARVED_SPEED:
        return False
    stores = storage_detectors.storing_slots(view, job, slots)
    use = job_steps.use_without_pauses(view, job, stores)
    return job_steps.MIN_INPUT < use < MAX_LONG_STEP_USE


MAX_RANK_DEVIATION = 0.12
"""Difference of the utilization of a rank, relative to its past, from the usual one of its job, up to which it waits alike."""
ALIKE_SHARE = 0.9
"""Share of the ranks of a job that must wait alike."""


def are_alike(values: slot_sums.Floats, usual: float, count: float) -> bool:
    """True if nearly all ranks wait as much as usual; few readings of moments differ although they do."""
    tolerance = MAX_RANK_DEVIATION
    if count <= MIN_READINGS:
        tolerance += 2 * float(np.sqrt(max(usual * (1 - usual), 0.0) / max(count, 1.0)))
    return bool(np.mean(np.abs(values - usual) <= tolerance) >= ALIKE_SHARE)


MIN_READINGS = 10.0
"""Readings of a usual GPU beyond which their mean shows its waits: NVML reports the last second or less, a moment of a step."""


LATE_SLOTS, EARLY_SLOTS, MIN_WINDOW_READINGS = 6, 12, 6.0


def node_gaps(view: findings.DiagnosisView) -> slot_sums.Floats:
    """Return the utilization of each node in the last minute, less the median of the other nodes of its job."""
    gaps = np.full(len(view.devices.node_names), np.nan)
    values = view.signals.table(DeviceKind.GPU, findings.SLOTS_PER_MINUTE)["utilization"]
    for job in view.jobs:
        nodes, used = job_steps.node_means(view, job, values)
        gaps[nodes] = used - job_steps.medians_of_others(used)
    return gaps


class _NodeGaps(NamedTuple):
    """Utilization of the nodes of a job, and the median of the job's others, in the last minute; shape (slots, nodes).

    `early` is their mean difference some minutes before, in place of a past that is too short for a baseline.
    """

    job: JobKey
    nodes: slot_sums.Positions
    used: slot_sums.Floats
    usual: slot_sums.Floats
    early: slot_sums.Floats

    @property
    def mean(self) -> slot_sums.Floats:
        """Mean difference of each node."""
        return slot_sums.means_known(self.used - self.usual)


MIN_LATE_SPEED = 0.3
"""Speed of a job relative to its past below which it takes no steps, and its nodes may do different work."""
MIN_GAP_LOSS = 0.5
"""Loss of speed of a job relative to the gap of its late host: all ranks wait for it."""
MIN_OTHERS_USE = 0.8
"""Utilization of the other nodes of a job, usual or of a moment, above which they show that one node is late: in a checkpoint,
all stop.
"""


def late_hosts(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield the node of a job with GPUs that have gaps in their work while those of other nodes have none.

    Utilization is a reading of one moment: a node is late if most moments of a minute show it, and the nodes of its job
    hardly differed before. Tasks that wait for processors, or take them, explain a gap, also a small one, and one that
    the job has time for.
    """
    pressed, past = _is_pressed(view), job_steps.low_use(view)
    slots, early = (
        view.signals.slots(DeviceKind.GPU, EARLY_SLOTS, before)["utilization"]
        for before in (0, EARLY_SLOTS)
    )
    for job in view.jobs:
        # Without steps, as between phases of training, nodes may do different work.
        speed = view.states[job.key].speed
        has_steps = not speed < MIN_LATE_SPEED
        if len(job.nodes) < 2 or not has_steps:  # noqa: PLR2004 - other nodes to compare with
            continue
        nodes, before = job_steps.node_means(view, job, past)
        used, usual = job_steps.uses_of_nodes(view, job, slots)
        early_used, early_usual = job_steps.uses_of_nodes(view, job, early)
        lasting = _NodeGaps(
            job.key, nodes, used, usual, slot_sums.means_known(early_used - early_usual)
        )
        gaps = lasting._replace(used=used[-LATE_SLOTS:], usual=usual[-LATE_SLOTS:])
        has_reason = pressed[nodes] & _is_pressed_more(view, nodes)
        has_reason |= _takes_processors(view, nodes)
        hit = _have_gaps(view, gaps, has_reason)
        # All ranks wait for a late host, so the job slows down as much; replicas of a service do not.
        hit &= job_steps.explain_speed(speed, gaps.mean)
        # Usually no node is late: the rest of the conditions cost most of the time.
        if hit.any():
            past_of_others = job_steps.medians_of_others(before)
            is_alone = findings.above(past_of_others, MIN_OTHERS_USE)
            is_alone &= ~(speed > 1 + MIN_GAP_LOSS * gaps.mean)
            is_alone &= _stand_out(lasting)
            is_alone &= _shows_late_nodes(view, job)
            hit &= has_reason | is_alone
            yield from _late_nodes(view, gaps, np.flatnonzero(hit).tolist(), has_reason)
        hit = ~hit & has_reason
        if hit.any():
            hit &= _have_rare_gaps(view, lasting)
            hit &= job_steps.explain_speed(speed, lasting.mean)
            yield from _late_nodes(view, lasting, np.flatnonzero(hit).tolist(), has_reason)


MIN_GAP = 0.035
"""Utilization of a late host below that of the other nodes of its job."""


def _have_rare_gaps(view: findings.DiagnosisView, gaps: _NodeGaps) -> findings.Flags:
    """Return the nodes that work less than before in few moments of two minutes.

    If a step has one gap, a reading of a moment shows it as rarely as it is short.
    """
    usual = slot_sums.or_zero(view.base(DeviceKind.NODE, "job_gap", 0.5)[gaps.nodes])
    return findings.above(usual - gaps.mean, MIN_GAP)


OTHER_GAP_FACTOR = 3.0
"""A late host has this many times the gap of any other node of its job."""


def _stand_out(gaps: _NodeGaps) -> findings.Flags:
    """Return the nodes with a far larger gap than all others: readings of moments show a gap that all have as that of some."""
    # A checkpoint stops all of them.
    differences = np.where(gaps.usual > MIN_OTHERS_USE, gaps.used - gaps.usual, np.nan)
    size = np.fmax(-slot_sums.means_known(differences), 0)
    largest_other = np.array([np.delete(size, place).max(initial=0) for place in range(len(size))])
    return findings.above(size, OTHER_GAP_FACTOR * largest_other)


GAP_FACTOR, PRESSED_GAP_SHARE = 1.5, 0.5
"""A late host is this many times its usual variation below its usual utilization. This share of `MIN_GAP` suffices for a node with
tasks that wait for processors.
"""
LATE_SHARE = 0.6
"""Share of the readings of a minute that must show a late host: some readings miss the gap of a long step."""


def _have_gaps(
    view: findings.DiagnosisView, gaps: _NodeGaps, has_reason: findings.Flags
) -> findings.Flags:
    """Return the nodes that are used less than the others, and than before, in most slots."""
    low = view.base(DeviceKind.NODE, "job_gap", 0.1)[gaps.nodes]
    spread = view.base(DeviceKind.NODE, "job_gap", 0.5)[gaps.nodes] - low
    low = np.where(np.isnan(low), gaps.early, low)
    own_limit = low - np.fmax(MIN_GAP, GAP_FACTOR * slot_sums.or_zero(spread))
    min_gap = np.where(has_reason, PRESSED_GAP_SHARE, 1.0) * MIN_GAP
    limit = np.where(has_reason, -min_gap, np.fmin(own_limit, -min_gap))
    # Readings during which the others do not work either, as in a checkpoint, show no gap.
    differences = np.where(gaps.usual > MIN_OTHERS_USE, gaps.used - gaps.usual, np.nan)
    late = differences < limit
    if np.isnan(differences).all():
        return np.zeros(len(gaps.nodes), np.bool_)
    count, late_count = (~np.isnan(differences)).sum(axis=0), late.sum(axis=0)
    found: findings.Flags = (count >= LATE_SLOTS / 2) & (late_count >= LATE_SHARE * count)
    return found


def _shows_late_nodes(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if gaps alone show a late node: of two nodes, neither is the usual one, and nodes must take common steps."""
    if len(job.nodes) < MIN_PEERS or not job_steps.has_common_steps(view, job):
        return False
    # The minute after a change of phase contains both; with enough readings, a shorter window decides.
    window = view.signals.window
    has_few = _readings(view, job, window) < MIN_WINDOW_READINGS
    return has_few or job_steps.has_common_steps(view, job, window)


def _late_nodes(
    view: findings.DiagnosisView, gaps: _NodeGaps, late: Iterable[int], has_reason: findings.Flags
) -> Iterator[findings.Finding]:
    pressures, limits = view.signals.node["cpu_pressure"], _pressure_limits(view)
    usual_cpu = view.base(DeviceKind.NODE, "cpu")
    for index in late:
        node = gaps.nodes[index]
        name = view.devices.node_names[node]
        uses = float(np.nanmean(gaps.used[:, index])), float(np.nanmean(gaps.usual[:, index]))
        evidence = [
            findings.FindingEvidence(
                "utilization", *uses, "other nodes of the job", name, gaps.job, len(gaps.used)
            )
        ]
        if has_reason[index]:
            is_pressed = pressures[node] > limits[node]
            signal = "cpu_pressure" if is_pressed else "cpu"
            limit = limits[node] if is_pressed else CPU_FACTOR * usual_cpu[node]
            value = float(view.signals.node[signal][node])
            evidence.append(findings.FindingEvidence(signal, value, float(limit), "its past", name))
        differences = gaps.used[:, index] - gaps.usual[:, index]
        above = slot_sums.or_zero(differences - np.nanmin(differences) / 2).cumsum()
        first = int(np.argmax([0.0, *above[:-1]]))  # normal readings follow an earlier low one
        yield findings.Finding(
            "host_late",
            findings.Cause("node", name=name),
            tuple(evidence),
            onset_ns=view.timestamp_ns - (len(differences) - 1 - first) * findings.SLOT_NS,
        )


def _is_pressed(view: findings.DiagnosisView) -> findings.Flags:
    """Return the nodes whose tasks wait for processors more than usual."""
    return findings.above(view.signals.node["cpu_pressure"], _pressure_limits(view))


OTHER_PRESSURE_FACTOR = 2.0
"""A late host has this many times the CPU pressure of the other nodes of its job: what all have delays none alone."""


def _is_pressed_more(view: findings.DiagnosisView, nodes: slot_sums.Positions) -> findings.Flags:
    """Return the nodes of a job whose tasks wait far more than those of the others: what all have, as late input, delays none alone."""
    pressures = view.signals.node["cpu_pressure"][nodes]
    of_others = job_steps.medians_of_others(pressures)
    is_usual: findings.Flags = pressures <= OTHER_PRESSURE_FACTOR * of_others
    return ~is_usual


MIN_CPU, CPU_FACTOR = 0.5, 2.0
"""Processor time in use of a late host, and relative to its past and to the other nodes of its job. Below half, each task finds a free
processor; above, those that are bound to some may wait although others are free.
"""


def _takes_processors(view: findings.DiagnosisView, nodes: slot_sums.Positions) -> findings.Flags:
    """Return the nodes of a job whose processors are far more in use than before, and than those of the others."""
    cpu, usual = (
        each[nodes] for each in (view.signals.node["cpu"], view.base(DeviceKind.NODE, "cpu"))
    )
    highest = np.fmax(usual, job_steps.medians_of_others(cpu))
    return ~np.isnan(usual) & findings.above(cpu, np.fmax(MIN_CPU, CPU_FACTOR * highest))


MIN_PRESSURE, PRESSURE_FACTOR = 0.05, 2.0
"""CPU pressure of a late host beyond this many times its usual one."""


def _pressure_limits(view: findings.DiagnosisView) -> slot_sums.Floats:
    usual = slot_sums.or_zero(view.base(DeviceKind.NODE, "cpu_pressure"))
    return MIN_PRESSURE + PRESSURE_FACTOR * usual


MAX_SOLO_SLOTS = 36
"""Slots for which one rank may work while the others wait, as it evaluates or builds an index; a longer wait is a hang."""
WORKING_POWER_CHANGE = 0.75
"""Power relative to its past above which a spinning GPU without a measure of activity works while the others wait."""


def _working_ranks(view: findings.DiagnosisView, job: ActiveJob) -> slot_sums.Positions:
    """Return the GPUs of a job that work nearly as much as before: the others wait for them, as for an evaluation by one rank."""
    gpu = view.signals.gpu
    limits = job_steps.HUNG_ACTIVITY_CHANGE, WORKING_POWER_CHANGE
    changes = [gpu[name] / view.base(DeviceKind.GPU, name) for name in ("activity", "power")]
    works, has_power = map(findings.above, changes, limits)
    works &= gpu["activity"] > job_steps.HUNG_ACTIVITY
    return job.gpus[np.where(np.isnan(changes[0]), has_power, works)[job.gpus]]


WAIT_FACTOR = 1.5
"""A hang lasts this many times the longest wait that ended."""
MAX_UNLAUNCHED_USE = 0.05
"""Utilization below which no work was launched on a rank of a job that hangs."""


def hung_jobs(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield jobs with ranks that spin in a collective: busy without work, and nothing moves."""
    gpu = view.signals.gpu
    base = view.base(DeviceKind.GPU, "activity")
    for job in view.jobs:
        spins = findings.above(gpu["utilization"][job.gpus], job_steps.MIN_BUSY_USE)
        activity = gpu["activity"][job.gpus]
        # Ranks of one stage may usually work little: all ranks together work less than before.
        change = slot_sums.mean_known(activity) / slot_sums.mean_known(base[job.gpus])
        idle_work = (activity < job_steps.HUNG_ACTIVITY) & (change < job_steps.HUNG_ACTIVITY_CHANGE)
        # GPUs without a measure of activity show by their power that they do no work.
        usual_power = view.base(DeviceKind.GPU, "power")[job.gpus]
        draws_little = gpu["power"][job.gpus] < job_steps.HUNG_POWER_CHANGE * usual_power
        idle_work = np.where(np.isnan(activity), draws_little, idle_work)
        if not _stands_still(view, job) or (spins & idle_work).mean() < MAJORITY:
            continue
        wait = view.states[job.key].history.wait
        if storage_detectors.stores(view, job):
            continue  # storage explains the wait
        if (slots := wait.add(view.signals.slot)) > WAIT_FACTOR * wait.longest:
            is_unlaunched = gpu["utilization"][job.gpus] < MAX_UNLAUNCHED_USE
            missing = job.gpus[~spins & is_unlaunched]
            values = slot_sums.mean_known(activity), job_steps.HUNG_ACTIVITY
            evidence = _of_job(job, "activity", values, "limit", None)
            working = _working_ranks(view, job)
            text = (
                "no work was launched on" if len(missing) else "the others may wait for the work of"
            )
            names = ", ".join(view.gpu_name(p) for p in (missing if len(missing) else working)[:4])
            yield findings.Finding(
                "nccl_hang",
                findings.Cause("job", job=job.key),
                (evidence,),
                severity="info" if len(working) and slots <= MAX_SOLO_SLOTS else "",
                detail=f"{text} {names}" if names else "",
                onset_slots=view.signals.slot - wait.first_slot + view.signals.window,
            )


def _stands_still(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if a job that moved data before moves none: nothing over NVLink, and one of its nodes sends nothing.

    Each step needs all nodes: what the NICs of the others carry meanwhile is storage, or that of others. Without NVLink, all
    nodes must be silent. A job of which no counter shows progress is unknown: readings of moments may miss its work.
    """
    least = findings.MIN_NVLINK_BYTES_PER_SECOND
    if findings.above(view.signals.gpu["nvlink"][job.gpus], least).any():
        return False
    nics = job.exchange_nics
    now, usual = view.signals.nic["send"][nics], view.base(DeviceKind.NIC, "send")[nics]
    has_sent = findings.above(usual, job_steps.HUNG_EXCHANGE)
    has_nvlink = findings.above(view.base(DeviceKind.GPU, "nvlink")[job.gpus], least).any()
    if not has_nvlink and not has_sent.any():
        return False
    nodes = view.groups.nic_node[nics]
    sending = set(nodes[findings.above(now, job_steps.HUNG_EXCHANGE)].tolist())
    silent = set(nodes[has_sent & ~np.isnan(now)].tolist()) - sending
    return not sending or bool(has_nvlink and silent)


def slow_jobs(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield jobs that are slower than before: symptoms, which other findings explain."""
    now = view.signals.table(DeviceKind.GPU, findings.SLOTS_PER_MINUTE)["utilization"]
    past = view.base(DeviceKind.GPU, "utilization")
    for state in filter(lambda each: each.is_slow, view.states.values()):
        used, usual = (job_steps.node_means(view, state.job, each)[1] for each in (now, past))
        # The ranks of one node may wait for those of another.
        works = findings.above(used, job_steps.MIN_BUSY_USE * usual).any()
        if works and job_steps.has_common_steps(view, state.job):
            values, slots = (state.speed, 1.0), findings.SLOTS_PER_MINUTE
            evidence = _of_job(state.job, "send", values, findings.OWN_PAST, slots)
            cause = findings.Cause("job", job=state.job.key)
            yield findings.Finding("job_slowdown", cause, (evidence,))
