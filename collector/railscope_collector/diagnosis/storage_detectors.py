"""Detector of slow storage: a server, or a client, that answers more slowly than before at the same load, while jobs wait.

All clients of a server that are slower alike have a slow server; one that is slower alone has a fault of its own. A client that does
far more than usual, as for a checkpoint or a start, causes its latency itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from railscope_collector.diagnosis import findings, job_steps, slot_sums
from railscope_collector.diagnosis.jobs import ActiveJob
from railscope_collector.diagnosis.quantities import DeviceKind

SLOW_FACTOR, MIN_LATENCY_SECONDS = 2.5, 0.005
"""Latency, relative to the past, from which on the clients of a server are slow, unless an operation still takes less than this."""
ALONE_FACTOR = 4.0
"""As `SLOW_FACTOR`, for a client of which the server is not slow: some of many have the lesser one by chance."""
MIN_USUAL_SECONDS = 0.0001
"""Lowest usual latency that others are compared with: that of a cache."""
MIN_IN_FLIGHT = 0.01
"""Operations in flight on average (Little's law) below which a latency is that of few short operations."""
MIN_GAP, MIN_EXPLAINED = 0.02, 0.5
"""Utilization that ranks lose at least while they wait, and share of the tasks' wait that operations in flight must explain."""
AS_SLOW = 0.6
"""Latency relative to the present one from which on storage was as slow then."""
MAX_UNHARMED_SLOTS = 12
"""Slots in which a job ran as before although its storage was slow: with more, it waits for something else."""
MIN_INSIDE = 0.6
"""Share of the clients of a server that must be slow if the server is."""
BUSY_FACTOR, MIN_BUSY_OPERATIONS = 3.0, 5.0
"""Operations per second, relative to the usual ones and beyond them, from which on a client causes its latency itself."""
MIN_IO_PRESSURE = 0.1
"""I/O pressure beyond `BUSY_FACTOR` times the usual one from which on the tasks of a node wait for storage."""
ONSET_SLOTS = 24
BUSY_PAST_SLOTS = 12
_LATENCIES = ("read_latency", "write_latency")
_RATES = ("reads", "writes")


def slow_storage(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield servers, or single clients, that are slow while jobs wait for them.

    Harm is needed to open an incident. It lasts as long as the storage is slow: checkpoints hide waits.
    """
    mounts = view.devices.mounts
    if not mounts:
        return
    by_server: dict[str, list[int]] = defaultdict(list)
    for position, mount in enumerate(mounts):
        by_server[mount.server].append(position)
    changes = _latency_changes(view)
    change = np.fmax.reduce(changes)
    slow = findings.above(change, SLOW_FACTOR)
    busy = is_busy(view, "reads") | is_busy(view, "writes")
    for server, positions in by_server.items():
        hit = [p for p in positions if slow[p]]
        clients = int((~np.isnan(change[positions])).sum())
        whole = findings.Cause("storage", name=server)
        is_whole = len(hit) >= MIN_INSIDE * clients and (len(hit) > 1 or clients == 1)
        alone = [p for p in hit if change[p] > ALONE_FACTOR]
        of_nodes = {findings.Cause("node", name=mounts[p].node): [p] for p in alone}
        for cause, members in ({whole: hit} if is_whole and hit else of_nodes).items():
            slots = _slow_slots(view, members)
            is_load = busy[members].mean() > 1 - MIN_INSIDE
            nodes = {mounts[p].node for p in members}
            jobs = [job for job in view.jobs if not nodes.isdisjoint(job.nodes)]
            if ("storage_bound", cause) in view.open_faults:
                waits = not all(_runs(view, job) for job in jobs)
            else:
                waits = not is_load and any(_is_delayed(view, job, slots) for job in jobs)
            if waits:
                yield findings.Finding(
                    "storage_bound",
                    cause,
                    tuple(_latency_evidence(view, p, changes[:, p]) for p in members[:4]),
                    onset_ns=view.timestamp_ns - (slots - 1) * findings.SLOT_NS,
                    parts=tuple(members) if cause == whole else (),
                )


def _runs(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if a job has run as before for minutes: slow storage no longer delays it."""
    state = view.states[job.key]
    speeds = np.array(state.history.speeds[-MAX_UNHARMED_SLOTS:])
    return len(speeds) == MAX_UNHARMED_SLOTS and bool((speeds >= state.losing_speed).all())


def _is_delayed(view: findings.DiagnosisView, job: ActiveJob, slots: int) -> bool:
    """True if a job lost time when its storage became slow, and its nodes show the wait: gaps of most, or tasks that wait for I/O."""
    state = view.states[job.key]
    nodes, used = job_steps.node_means(view, job, view.signals.gpu["utilization"])
    waits = waits_for_io(view, nodes)
    usual_use = job_steps.node_means(view, job, job_steps.low_use(view))[1]
    is_new = np.isnan(usual_use).all()
    if is_new or np.isnan(state.speed):  # it exchanges nothing, as on one GPU
        # Tasks cannot wait longer than the operations take together: else they wait for another disk.
        pressure = view.signals.node["io_pressure"][nodes]
        explained = _in_flight(view)[nodes] > MIN_EXPLAINED * pressure
        usual = np.where(np.isnan(usual_use), 1.0, usual_use)
        return bool((waits & explained & (used < job_steps.MIN_BUSY_USE * usual)).any())
    speeds = np.array(state.history.speeds)
    since, before = speeds[-slots:], speeds[: max(len(speeds) - slots, 0)]
    earlier = slot_sums.median_known(before[-findings.SLOTS_PER_MINUTE :])
    limit = state.losing_speed * float(np.fmin(earlier, 1.0))
    if (
        not state.speed < limit
        or state.works_more
        or np.sum(since >= limit) > MAX_UNHARMED_SLOTS
        or state.history.restarts(view.signals.slot)
        or state.utilization_now < job_steps.MIN_INPUT
        or view.has_cause(job.key, "storage_bound")
    ):
        return False
    has_gaps = used < (1 - MIN_GAP) * usual_use
    return bool(has_gaps.mean() > MIN_INSIDE or waits.any())


def _in_flight(view: findings.DiagnosisView) -> slot_sums.Floats:
    """Return the operations of each node that mounted storage has in progress on average (Little's law)."""
    now, node = view.signals.mount, view.devices.nodes
    seconds = (now[latency] * now[rate] for latency, rate in zip(_LATENCIES, _RATES, strict=True))
    positions = [node[mount.node].position for mount in view.devices.mounts]
    of_mounts = sum(map(slot_sums.or_zero, seconds))
    return np.bincount(positions, of_mounts, len(view.devices.node_names)).astype(np.float64)


def _latency_changes(view: findings.DiagnosisView) -> slot_sums.Floats:
    """Return the latencies of reads and writes relative to the past, shape (kinds, mounts); NaN for few short operations."""
    now = view.signals.mount
    latencies = np.stack([now[name] for name in _LATENCIES])
    in_flight = latencies * np.stack([now[name] for name in _RATES])
    counts = findings.above(in_flight, MIN_IN_FLIGHT)
    usual = np.stack([view.base(DeviceKind.MOUNT, name) for name in _LATENCIES])
    ratios = latencies / np.maximum(usual, MIN_USUAL_SECONDS)
    ratios = np.where(latencies < MIN_LATENCY_SECONDS, np.minimum(ratios, 1.0), ratios)
    found: slot_sums.Floats = np.where(counts, ratios, np.nan)
    return found


def _slow_slots(view: findings.DiagnosisView, mounts: Sequence[int]) -> int:
    """Return for how many of the last slots the usual one of some mounts has been about as slow as now, at least 1.

    Slots with far more operations than usual, as those of checkpoints, show nothing, nor do slots without any.
    """
    slots = view.signals.slots(DeviceKind.MOUNT, ONSET_SLOTS)
    ratios = np.full((ONSET_SLOTS, len(mounts)), np.nan)
    for latency, rate in zip(_LATENCIES, _RATES, strict=True):
        usual, usual_rate = (view.base(DeviceKind.MOUNT, each)[mounts] for each in (latency, rate))
        of_kind = slots[latency][:, mounts] / np.maximum(usual, MIN_USUAL_SECONDS)
        limits = _busy_limits(slot_sums.or_zero(usual_rate))
        is_busy_slot = findings.above(slots[rate][:, mounts], limits)
        ratios = np.fmax(ratios, np.where(is_busy_slot, np.nan, of_kind))
    usual_ratios = np.array([slot_sums.median_known(of_slot) for of_slot in ratios[::-1]])
    shown = np.flatnonzero(~np.isnan(usual_ratios))
    is_slow = usual_ratios[shown] > AS_SLOW * max(SLOW_FACTOR, *usual_ratios[shown[:1]])
    run = shown if is_slow.all() else shown[: int(is_slow.argmin())]
    return int(run[-1]) + 1 if len(run) else 1


def _latency_evidence(
    view: findings.DiagnosisView, position: int, changes: slot_sums.Floats
) -> findings.FindingEvidence:
    """Return the latency of a mount that differs most from its past."""
    mount, kind = view.devices.mounts[position], int(np.nanargmax(changes))
    value = float(view.signals.mount[_LATENCIES[kind]][position])
    name = f"{mount.node} {mount.export}"
    return findings.FindingEvidence(
        _LATENCIES[kind], value, float(changes[kind]), findings.TIMES_PAST, name
    )


def stores(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if a node of a job writes or reads much more than usual: its ranks wait for a checkpoint."""
    if (is_busy(view, "writes") | is_busy(view, "reads"))[_mounts_of(view, job)].any():
        return True
    nodes = [view.devices.nodes[name].position for name in job.nodes]
    return bool(waits_for_io(view, np.array(nodes)).any())


def is_busy(view: findings.DiagnosisView, signal: str) -> findings.Flags:
    """Return the mounts with many more operations than usual.

    Until it is known what is usual, it is the mean of the minutes before: a job that loads its data all the time is not busy by that.
    """
    window = view.signals.window
    usual = view.base(DeviceKind.MOUNT, signal)
    before = view.signals.table(DeviceKind.MOUNT, BUSY_PAST_SLOTS, window)[signal]
    usual = slot_sums.or_zero(np.where(np.isnan(usual), before, usual))
    return findings.above(view.signals.mount[signal], _busy_limits(usual))


def _busy_limits(usual: slot_sums.Floats) -> slot_sums.Floats:
    return BUSY_FACTOR * usual + MIN_BUSY_OPERATIONS


def storing_slots(view: findings.DiagnosisView, job: ActiveJob, slots: int) -> findings.Flags:
    """Return in which of the last slots a node of a job wrote much more than usual, as for a checkpoint."""
    mounts = _mounts_of(view, job)
    limits = _busy_limits(slot_sums.or_zero(view.base(DeviceKind.MOUNT, "writes")[mounts]))
    rates = view.signals.slots(DeviceKind.MOUNT, slots)["writes"][:, mounts]
    return np.asarray(findings.above(rates, limits).any(axis=1))


def _mounts_of(view: findings.DiagnosisView, job: ActiveJob) -> list[int]:
    return [p for p, mount in enumerate(view.devices.mounts) if mount.node in job.nodes]


def waits_for_io(view: findings.DiagnosisView, nodes: slot_sums.Positions) -> findings.Flags:
    """Return which nodes have tasks that wait for I/O much more than usual."""
    usual = slot_sums.or_zero(view.base(DeviceKind.NODE, "io_pressure"))[nodes]
    pressure = view.signals.node["io_pressure"][nodes]
    return findings.above(pressure, MIN_IO_PRESSURE + BUSY_FACTOR * usual)
