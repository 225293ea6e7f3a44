"""Detector of slow storage: servers, or single clients, that jobs wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from railscope_collector.diagnosis import findings, job_steps, slot_sums
from railscope_collector.diagnosis.jobs import MIN_PEERS, ActiveJob
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.signals import SignalTable


def slow_storage(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield servers, or single clients, with a latency of many times their own past while their jobs wait.

    A client that does more than usual, as for a checkpoint or a start, causes its latency itself. A job that has waited
    for a minute waits until its storage is as before: checkpoints and evaluations hide that, and its past contains it.
    """
    return _slow_mounts(view) if view.devices.mounts else iter(())


def _slow_mounts(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    thresholds, alike_share = view.thresholds.jobs, view.thresholds.storage.alike_share
    mounts = view.devices.mounts
    by_server: dict[str, list[int]] = defaultdict(list)
    for position, each in enumerate(mounts):
        by_server[each.server].append(position)
    changes, is_slow = _latency_changes(view)
    change = np.fmax.reduce(changes)
    busy = is_busy(view, "reads") | is_busy(view, "writes")
    for positions in by_server.values():
        if not busy[positions].any() and _are_slow_alike(view, positions, changes):
            is_slow[positions] = ~np.isnan(change[positions])
    slow = is_slow & ~busy
    waiting_jobs, lasting = _waiting_jobs(view, slow, is_slow, changes)
    slow[lasting] = True
    if not slow.any():
        return
    histories = [view.states[job.key].history.storage for job in waiting_jobs]
    harmless_change = max((each.harmless_change for each in histories), default=0.0)
    waiting = _waiting_nodes(view, waiting_jobs)
    is_waiting = np.array([each.node in waiting for each in mounts])
    for server, positions in by_server.items():
        hit = [p for p in positions if slow[p]]
        if not hit or not is_waiting[hit].any():
            continue
        # Clients that only read show nothing of slow writes.
        limit = min(thresholds.latency_factor, float(np.nanmax(changes[:, hit])))
        slow_kinds = (changes[:, hit] >= limit).any(axis=1)
        shown = np.logical_or.reduce(~np.isnan(changes[slow_kinds]))
        clients = [p for p in positions if shown[p]]
        evidence = tuple(_latency_evidence(view, p, changes[:, p]) for p in hit[:4])
        # A checkpoint makes all clients slower: that of a job with a slow client shows no slow server.
        slow_nodes = {mounts[p].node for p in hit if _is_reported(view, mounts[p].node)}
        if slow_nodes and busy[hit].any():
            hit = [p for p in hit if mounts[p].node in slow_nodes]
        # Clients that are slower alike have a slow server, even if some of them are below the limit; one of two is not.
        usual = float(np.quantile(change[clients], 0.5, method="lower"))
        is_alike = usual > alike_share * thresholds.latency_factor and not slow_nodes
        if len(hit) >= thresholds.majority * len(clients) or is_alike:
            cause = findings.Cause("storage", name=server)
            onset_ns = _slow_since_ns(view, hit, harmless_change)
            yield findings.Finding(
                "storage_bound", cause, evidence, onset_ns=onset_ns, parts=tuple(hit)
            )
        else:
            for node in sorted({mounts[p].node for p in hit if is_waiting[p]}):
                of_node = [p for p in hit if mounts[p].node == node]
                onset_ns = _slow_since_ns(view, of_node, harmless_change)
                cause = findings.Cause("node", name=node)
                yield findings.Finding("storage_bound", cause, evidence, onset_ns=onset_ns)


def _slow_since_ns(
    view: findings.DiagnosisView, mounts: Sequence[int], harmless_change: float
) -> int:
    """Return the end of the first slot since which the usual one of some mounts is slow: jobs wait later; 0 if unknown.

    `harmless_change` is a latency, relative to the past, with which the jobs that wait have run as before.
    Slots with far more operations than usual, as those of checkpoints, show nothing, nor do slots without any.
    """
    thresholds, storage = view.thresholds.jobs, view.thresholds.storage
    slots = view.signals.slots(DeviceKind.MOUNT, ONSET_SLOTS)
    ratios = np.full((ONSET_SLOTS, len(mounts)), np.nan)
    for latency, rate in zip(_LATENCIES, ("reads", "writes"), strict=True):
        usual, usual_rate = (view.base(DeviceKind.MOUNT, each)[mounts] for each in (latency, rate))
        of_kind = slots[latency][:, mounts] / np.maximum(usual, storage.min_usual_latency_seconds)
        max_rate = thresholds.busy_factor * slot_sums.or_zero(usual_rate)
        max_rate += storage.min_busy_operations
        is_busy_slot = findings.above(slots[rate][:, mounts], max_rate)
        ratios = np.fmax(ratios, np.where(is_busy_slot, np.nan, of_kind))
    usual_ratios = np.array([slot_sums.median_known(of_slot) for of_slot in ratios[::-1]])
    shown = np.flatnonzero(~np.isnan(usual_ratios))
    limit = storage.alike_share * thresholds.latency_factor
    limit = max(limit, storage.worse_factor * harmless_change)
    is_slow = usual_ratios[shown] > limit
    run = shown if is_slow.all() else shown[: int(is_slow.argmin())]
    return view.timestamp_ns - int(run[-1]) * findings.SLOT_NS if len(run) else 0


def _waiting_nodes(view: findings.DiagnosisView, waiting_jobs: Sequence[ActiveJob]) -> set[str]:
    """Return the nodes of jobs that wait for storage, and single ones that do."""
    # A job of one node may be a service with less load, unless most jobs wait.
    many_wait = len(waiting_jobs) >= view.thresholds.jobs.majority * len(view.jobs)
    jobs = (job for job in waiting_jobs if many_wait or len(job.nodes) > 1)
    waiting = {name for job in jobs for name in job.nodes}
    return waiting | {name for job in view.jobs for name in _nodes_waiting_for_storage(view, job)}


def _is_reported(view: findings.DiagnosisView, node: str) -> bool:
    """True if a client has an incident of its own."""
    return ("storage_bound", findings.Cause("node", name=node)) in view.open_faults


ONSET_SLOTS = 24


def _are_slow_alike(
    view: findings.DiagnosisView, positions: list[int], changes: slot_sums.Floats
) -> bool:
    """True if the usual client of a server has a latency that one client alone may have by chance."""
    thresholds = view.thresholds.jobs
    limit = view.thresholds.storage.alike_share * thresholds.latency_factor
    for name, change in zip(_LATENCIES, changes[:, positions], strict=True):
        known_changes = change[~np.isnan(change)]
        latency = slot_sums.median_known(view.signals.mount[name][positions])
        if (
            len(known_changes) >= MIN_PEERS
            and latency > thresholds.min_latency_seconds
            and slot_sums.median(known_changes) > limit
        ):
            return True
    return False


def _latency_evidence(
    view: findings.DiagnosisView, position: int, changes: slot_sums.Floats
) -> findings.FindingEvidence:
    """Return the latency of a mount that differs most from its past."""
    mount, kind = view.devices.mounts[position], int(np.nanargmax(changes))
    value = float(view.signals.mount[_LATENCIES[kind]][position])
    name = f"{mount.node} {mount.export}"
    return findings.FindingEvidence(
        _LATENCIES[kind], value, float(changes[kind]), "times its past", name
    )


def _waiting_jobs(
    view: findings.DiagnosisView,
    slow: findings.Flags,
    is_slow: findings.Flags,
    changes: slot_sums.Floats,
) -> tuple[list[ActiveJob], list[int]]:
    """Return the jobs that wait for slow storage, and the mounts for which some of them have waited longer."""
    mounts_of: dict[str, list[int]] = defaultdict(list)
    for position in np.flatnonzero(is_slow).tolist():
        mounts_of[view.devices.mounts[position].node].append(position)
    thresholds, reads, change = view.thresholds.storage, changes[0], np.fmax.reduce(changes)
    before = view.signals.table(
        DeviceKind.MOUNT, findings.SLOTS_PER_MINUTE, findings.SLOTS_PER_MINUTE
    )
    change_before = np.fmax.reduce(_relative_latencies(view, before))
    waiting, lasting = list[ActiveJob](), list[int]()
    for job in view.jobs:
        job_mounts = [p for node in job.nodes for p in mounts_of.get(node, ())]
        # Mounts that are slow by the load of the job itself, as at its start, are not in `slow`.
        is_own_slow = slow[job_mounts]
        fails = reads[job_mounts] > thresholds.certain_latency_factor
        is_certain = bool((is_own_slow & fails).any())
        state = view.states[job.key]
        history = state.history
        if job_mounts:
            history.storage.begin(view.signals.slot, history.speeds)
        runs = state.utilization_change > thresholds.max_waiting_use
        runs = runs and not state.speed < thresholds.max_waiting_speed
        earlier, now = (
            slot_sums.median_known(each[job_mounts]) for each in (change_before, change)
        )
        history.storage.add_run(earlier, runs=runs and bool(is_own_slow.all()))
        may_wait = bool(is_own_slow.any())
        may_wait = may_wait and (is_certain or history.storage.may_delay(now, thresholds))
        may_wait = may_wait and _job_waits(view, job, slow, is_certain=is_certain)
        waits = may_wait and not _waited_before(view, job, slow)
        slot, is_any_slow = view.signals.slot, bool(job_mounts)
        if history.storage.add(slot, waits=waits, runs=runs, is_slow=is_any_slow):
            lasting += job_mounts
            waits = True
        if waits:
            waiting.append(job)
    return waiting, lasting


def stores(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if a node of a job writes or reads much more than usual: its ranks wait for a checkpoint."""
    if (is_busy(view, "writes") | is_busy(view, "reads"))[_mounts_of(view, job)].any():
        return True
    nodes = [view.devices.nodes[name].position for name in job.nodes]
    return bool(waits_for_io(view, np.array(nodes)).any())


def _latency_changes(view: findings.DiagnosisView) -> tuple[slot_sums.Floats, findings.Flags]:
    """Return the latencies of each mount relative to its past, shape (kinds, mounts), and whether it is slow by one.

    That of few short operations is unknown.
    """
    thresholds, now = view.thresholds.jobs, view.signals.mount
    latencies = np.stack([now[name] for name in _LATENCIES])
    in_flight = latencies * np.stack([now["reads"], now["writes"]])
    has_enough = findings.above(in_flight, view.thresholds.storage.min_in_flight)
    changes = np.where(has_enough, _relative_latencies(view, now), np.nan)
    is_slow = findings.above(changes, thresholds.latency_factor)
    is_slow &= findings.above(latencies, thresholds.min_latency_seconds)
    return changes, np.logical_or.reduce(is_slow)


def _relative_latencies(view: findings.DiagnosisView, table: SignalTable) -> slot_sums.Floats:
    """Return the latencies of reads and writes in a window relative to the past, shape (kinds, mounts)."""
    usual = np.stack([view.base(DeviceKind.MOUNT, name) for name in _LATENCIES])
    usual = np.maximum(usual, view.thresholds.storage.min_usual_latency_seconds)
    ratios: slot_sums.Floats = np.stack([table[name] for name in _LATENCIES]) / usual
    return ratios


BUSY_PAST_SLOTS = 12


def is_busy(view: findings.DiagnosisView, signal: str, slots: int = 0) -> findings.Flags:
    """Return the mounts with many more operations than usual, in the usual window or in the last slots.

    Until it is known what is usual, it is the mean of the minutes before: a job that loads its data all the time is not busy by that.
    """
    slots = slots or view.signals.window
    usual = view.base(DeviceKind.MOUNT, signal)
    before = view.signals.table(DeviceKind.MOUNT, BUSY_PAST_SLOTS, slots)[signal]
    usual = slot_sums.or_zero(np.where(np.isnan(usual), before, usual))
    rates = view.signals.table(DeviceKind.MOUNT, slots)[signal]
    return findings.above(rates, _busy_limits(view, usual))


def _busy_limits(view: findings.DiagnosisView, usual: slot_sums.Floats) -> slot_sums.Floats:
    """Return the operations per second beyond which a mount is busy, from the usual ones."""
    thresholds = view.thresholds
    return thresholds.jobs.busy_factor * usual + thresholds.storage.min_busy_operations


def _has_stored(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if a node of a job wrote much more than usual in the last minute, whose gaps may be those of its checkpoint."""
    return bool(is_busy(view, "writes", findings.SLOTS_PER_MINUTE)[_mounts_of(view, job)].any())


def storing_slots(view: findings.DiagnosisView, job: ActiveJob, slots: int) -> findings.Flags:
    """Return in which of the last slots a node of a job wrote much more than usual, as for a checkpoint."""
    mounts = _mounts_of(view, job)
    limits = _busy_limits(view, slot_sums.or_zero(view.base(DeviceKind.MOUNT, "writes")[mounts]))
    rates = view.signals.slots(DeviceKind.MOUNT, slots)["writes"][:, mounts]
    return np.asarray(findings.above(rates, limits).any(axis=1))


def _mounts_of(view: findings.DiagnosisView, job: ActiveJob) -> list[int]:
    return [p for p, mount in enumerate(view.devices.mounts) if mount.node in job.nodes]


IDLE_SLOTS = 2


def _is_idle(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if the usual GPU of a job has just been idle: the minute that has work before this shows no wait."""
    used = view.signals.table(DeviceKind.GPU, IDLE_SLOTS)["utilization"][job.gpus]
    return slot_sums.median_known(used) < view.thresholds.jobs.min_input


def _job_waits(
    view: findings.DiagnosisView, job: ActiveJob, slow: findings.Flags, *, is_certain: bool
) -> bool:
    """True if the nodes of a job that use slow mounts have gaps in their work; a job that has ended, or (re)starts, is idle.

    Gaps of few of them have another reason, as a late host. The load of a service varies, and alternating phases differ: their
    work shows no wait.
    """
    thresholds, storage = view.thresholds.jobs, view.thresholds.storage
    state = view.states[job.key]
    pauses = state.history.restarts(view.signals.slot) or _has_stored(view, job)
    pauses = pauses or _is_idle(view, job)
    if (
        state.works_more
        or (pauses and not is_certain)
        or not job_steps.is_steady(view, job, "utilization")
    ):
        return False
    # Of long steps, some minutes show a part on some of the nodes.
    windows = (findings.SLOTS_PER_MINUTE, 3 * findings.SLOTS_PER_MINUTE)[: 1 + is_certain]
    if not any(job_steps.has_common_steps(view, job, slots) for slots in windows):
        return False
    used = view.signals.table(DeviceKind.GPU, findings.SLOTS_PER_MINUTE)["utilization"]
    nodes, now = job_steps.node_means(view, job, used)
    changes = now / job_steps.node_means(view, job, job_steps.low_use(view))[1]
    change = _median_by_weight(changes, _operations(view, slow)[nodes])
    speed: float = state.speed
    steps = view.thresholds.steps
    lowest = 1 + steps.max_loss_factor * (change - 1) - steps.loss_noise
    # A job that was as slow before its storage was is so for another reason.
    limit = thresholds.max_losing_speed if is_certain else storage.max_waiting_speed
    is_slow = speed < limit * state.history.storage.earlier_speed
    # Ranks that wait for the one that waits for storage run as before.
    is_slow &= is_certain or (change < storage.max_waiting_use and lowest < speed)
    return thresholds.min_input < change < thresholds.max_input or is_slow


def _operations(view: findings.DiagnosisView, slow: findings.Flags) -> slot_sums.Floats:
    """Return the operations per second of each node on slow mounts: the usual ones, or those of now if these are more."""
    mounts = np.flatnonzero(slow)
    nodes = [view.devices.nodes[view.devices.mounts[p].node].position for p in mounts.tolist()]
    rates = np.zeros(len(mounts))
    for name in ("reads", "writes"):
        usual = view.base(DeviceKind.MOUNT, name)
        rates += slot_sums.or_zero(np.fmax(view.signals.mount[name], usual)[mounts])
    return np.bincount(nodes, rates, len(view.devices.node_names)).astype(np.float64)


def _median_by_weight(values: slot_sums.Floats, weights: slot_sums.Floats) -> float:
    """Return the value below which half of the weight lies; NaN without any. Unknown values are ignored."""
    ordered = np.argsort(values)
    ordered = ordered[~np.isnan(values[ordered]) & (weights[ordered] > 0)]
    if not len(ordered):
        return float("nan")
    sums = np.cumsum(weights[ordered])
    return float(values[ordered[np.searchsorted(sums, sums[-1] / 2)]])


MAX_LATE_SLOTS = 3


def _waited_before(view: findings.DiagnosisView, job: ActiveJob, slow: findings.Flags) -> bool:
    """True if a job waited well before the mounts of its nodes became slower: they are not the reason.

    Slots without operations leave a mount as it is; those without utilization show no wait.
    """
    mounts = [
        p for p, mount in enumerate(view.devices.mounts) if slow[p] and mount.node in job.nodes
    ]
    lowest = view.thresholds.storage.min_usual_latency_seconds
    usual = {
        name: np.maximum(view.base(DeviceKind.MOUNT, name)[mounts], lowest) for name in _LATENCIES
    }
    limit = np.sqrt(view.thresholds.jobs.latency_factor)
    slots = job_steps.waiting_slots(view, job, 0.0, view.thresholds.jobs.max_input)
    stall = view.open_faults.get(("dataloader_stall", findings.Cause("job", job=job.key)))
    if stall:  # its waits need not fill all slots
        since = (view.timestamp_ns - stall.onset_ns) // findings.SLOT_NS
        slow_slots = view.signals.slot - view.states[job.key].history.storage.first_slot
        if since > slow_slots + findings.SLOTS_PER_MINUTE:
            return True
        slots = min(max(slots, since), job_steps.HISTORY_SLOTS)
    if not mounts or slots <= MAX_LATE_SLOTS:
        return False
    # The first sample that shows slow operations may be a slot later than the first that shows the wait.
    table = view.signals.table(DeviceKind.MOUNT, MAX_LATE_SLOTS, slots - MAX_LATE_SLOTS - 1)
    # Only one kind of operations may be slow.
    ratios = np.fmax.reduce([table[name][mounts] / usual[name] for name in _LATENCIES])
    return bool(slot_sums.median_known(ratios) < limit)


_LATENCIES = ("read_latency", "write_latency")


def _nodes_waiting_for_storage(view: findings.DiagnosisView, job: ActiveJob) -> list[str]:
    """Return the nodes of a job with idle GPUs while tasks wait for I/O: of a job that is too young for a past."""
    nodes, past = job_steps.node_means(
        view, job, view.base(DeviceKind.GPU, "utilization", job_steps.LOW_QUANTILE)
    )
    used = job_steps.node_means(view, job, view.signals.gpu["utilization"])[1]
    is_idle = used < view.thresholds.steps.min_busy_use
    hit = np.isnan(past) & is_idle & waits_for_io(view, nodes)
    # Tasks cannot wait longer than the operations take together: else they wait for another disk.
    share = view.thresholds.storage.min_explained_pressure
    pressure = view.signals.node["io_pressure"][nodes]
    hit &= _in_flight(view)[nodes] > share * pressure
    return [view.devices.node_names[node] for node in nodes[hit].tolist()]


def _in_flight(view: findings.DiagnosisView) -> slot_sums.Floats:
    """Return the operations of each node that mounted storage has in progress on average (Little's law)."""
    now, node = view.signals.mount, view.devices.nodes
    seconds = now["read_latency"] * now["reads"], now["write_latency"] * now["writes"]
    positions = [node[mount.node].position for mount in view.devices.mounts]
    of_mounts = sum(map(slot_sums.or_zero, seconds))
    return np.bincount(positions, of_mounts, len(view.devices.node_names)).astype(np.float64)


def waits_for_io(view: findings.DiagnosisView, nodes: slot_sums.Positions) -> findings.Flags:
    """Return which nodes have tasks that wait for I/O much more than usual."""
    usual = slot_sums.or_zero(view.base(DeviceKind.NODE, "io_pressure"))[nodes]
    pressure = view.signals.node["io_pressure"][nodes]
    limit = view.thresholds.jobs.busy_factor * usual
    return findings.above(pressure, view.thresholds.storage.min_io_pressure + limit)
