"""Detectors of jobs and their hosts: storage, input, late hosts, hangs; and nodes that do not report.

Phases of a job (start, checkpoint, evaluation, requeue) change its readings as faults do. A checkpoint ends
within 90 seconds, in an evaluation the GPUs go on computing, and a requeue leaves them idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from collector.diagnosis.findings import (
    Cause,
    DiagnosisView,
    Finding,
    FindingEvidence,
    JobState,
    above,
)
from collector.diagnosis.jobs import ActiveJob
from collector.diagnosis.quantities import DeviceKind
from collector.diagnosis.slot_sums import Floats, mean_known

LATENCY_FACTOR = 4.0
MIN_LATENCY_SECONDS = 0.005
MAJORITY = 0.6


def slow_storage(view: DiagnosisView) -> Iterator[Finding]:
    """Yield servers, or single clients, with a latency of many times their own past while their jobs wait."""
    mounts = view.devices.mounts
    if not mounts:
        return
    mount = view.signals.mount
    slow = np.zeros(len(mounts), np.bool_)
    used = np.zeros(len(mounts), np.bool_)
    change = np.full(len(mounts), np.nan)
    for signal in ("read_latency", "write_latency"):
        baseline = np.fmax(view.base(DeviceKind.MOUNT, signal), 1e-4)
        used |= ~np.isnan(mount[signal])
        ratio = mount[signal] / baseline
        change = np.fmax(change, ratio)
        slow |= above(ratio, LATENCY_FACTOR) & above(mount[signal], MIN_LATENCY_SECONDS)
    waits = np.array([_node_waits(view, each.node) for each in mounts])
    by_server: dict[str, list[int]] = defaultdict(list)
    for position, each in enumerate(mounts):
        by_server[each.server].append(position)
    for server, positions in by_server.items():
        clients = [p for p in positions if used[p]]
        hit = [p for p in clients if slow[p]]
        if not hit or not waits[hit].any():
            continue
        evidence = tuple(
            FindingEvidence(
                "read_latency",
                float(np.fmax(mount["read_latency"], mount["write_latency"])[p]),
                float(change[p]),
                "times its past",
                f"{mounts[p].node} {mounts[p].export}",
            )
            for p in hit[:4]
        )
        if len(hit) >= MAJORITY * len(clients):
            yield Finding(
                "storage_bound", Cause("storage", name=server), evidence, parts=tuple(hit)
            )
        else:
            for node in sorted({mounts[p].node for p in hit if waits[p]}):
                yield Finding("storage_bound", Cause("node", name=node), evidence)


def _node_waits(view: DiagnosisView, node: str) -> bool:
    """True if a job on a node waits more than before."""
    for state in view.states.values():
        if node in state.job.nodes and (state.utilization_change < 0.85 or state.speed < 0.9):  # noqa: PLR2004 - beyond the noise of a minute
            return True
    return False


MIN_INPUT, MAX_INPUT = 0.15, 0.85
MAX_RANK_DEVIATION = 0.12
MIN_USE = 0.8
"""Utilization of a job that trains; that of a service varies with its load."""

INPUT_SLOTS = 2
"""Slots over which utilization counts: a longer window would mix a short checkpoint with the work around it."""


def jobs_without_input(view: DiagnosisView) -> Iterator[Finding]:
    """Yield jobs of which all ranks wait alike, and not for storage."""
    gpu = view.signals.table(DeviceKind.GPU, INPUT_SLOTS)
    baseline = view.base(DeviceKind.GPU, "utilization")
    for job in view.jobs:
        changes = gpu["utilization"][job.gpus] / baseline[job.gpus]
        known_values = changes[~np.isnan(changes)]
        computes = above(baseline[job.gpus], MIN_USE).mean() > MAJORITY
        if not computes or len(known_values) < MAJORITY * len(job.gpus):
            continue
        usual = float(np.median(known_values))
        alike = np.mean(np.abs(known_values - usual) <= MAX_RANK_DEVIATION) >= 0.9  # noqa: PLR2004 - nearly all ranks
        if MIN_INPUT < usual < MAX_INPUT and alike and _makes_progress(view, job):
            evidence = FindingEvidence(
                "utilization", usual, MAX_INPUT, "relative to its past", job.key.workload
            )
            yield Finding("dataloader_stall", Cause("job", job=job.key), (evidence,))


MIN_PROGRESS = 0.12


def _makes_progress(view: DiagnosisView, job: ActiveJob) -> bool:
    """True unless a job exchanges next to nothing, as in a checkpoint: starved steps still end."""
    for kind, name, positions in (
        (DeviceKind.NIC, "send", job.nics),
        (DeviceKind.GPU, "nvlink", job.gpus),
    ):
        table = view.signals.table(kind, INPUT_SLOTS)
        past = np.nansum(view.base(kind, name)[positions])
        if past > 0 and not np.isnan(table[name][positions]).all():
            return bool(np.nansum(table[name][positions]) > MIN_PROGRESS * past)
    return True


MIN_GAP = 0.035


def late_hosts(view: DiagnosisView) -> Iterator[Finding]:
    """Yield the node of a job with GPUs that have gaps in their work while those of other nodes have none."""
    gpu = view.signals.gpu
    baseline = view.base(DeviceKind.GPU, "utilization")
    for job in view.jobs:
        state = view.states.get(job.key)
        if state is None or len(job.nodes) < 2:  # noqa: PLR2004 - other nodes to compare with
            continue
        used = np.array([_node_mean(view, job, name, gpu["utilization"]) for name in job.nodes])
        before = np.array([_node_mean(view, job, name, baseline) for name in job.nodes])
        for index, name in enumerate(job.nodes):
            other_nodes = np.delete(used, index)
            usual = float(np.nanmedian(other_nodes)) if not np.isnan(other_nodes).all() else np.nan
            # Stages of a pipeline may differ by design: a node without a past is unknown.
            fell = used[index] < float(np.minimum(usual, before[index])) - MIN_GAP
            if usual > 0.75 and fell and used[index] > 0.05:  # noqa: PLR2004 - the others work, and it still does
                pressure = view.signals.node["cpu_pressure"][view.devices.nodes[name].position]
                evidence = (
                    FindingEvidence(
                        "utilization", float(used[index]), usual, "other nodes of the job", name
                    ),
                    FindingEvidence("cpu_pressure", float(pressure), 0.0, "limit", name),
                )
                yield Finding("host_late", Cause("node", name=name), evidence)


def _node_mean(view: DiagnosisView, job: ActiveJob, name: str, values: Floats) -> float:
    of_node = job.gpus[view.groups.gpu_node[job.gpus] == view.devices.nodes[name].position]
    return mean_known(values[of_node])


HUNG_ACTIVITY, HUNG_EXCHANGE, HUNG_NVLINK = 0.3, 0.002, 1e9
MIN_BUSY_USE = 0.9


def hung_jobs(view: DiagnosisView) -> Iterator[Finding]:
    """Yield jobs with ranks that spin in a collective: busy without work, and nothing moves."""
    gpu, nic = view.signals.gpu, view.signals.nic
    base = view.base(DeviceKind.GPU, "activity")
    for job in view.jobs:
        spins = above(gpu["utilization"][job.gpus], MIN_BUSY_USE)
        activity = gpu["activity"][job.gpus]
        idle_work = (activity < HUNG_ACTIVITY) & (activity < 0.6 * np.nan_to_num(base[job.gpus]))
        if np.isnan(activity).all():
            power = gpu["power"][job.gpus]
            idle_work = power < 0.55 * view.base(DeviceKind.GPU, "power")[job.gpus]
        quiet = (
            ~above(nic["send"][job.nics], HUNG_EXCHANGE).any()
            and not above(gpu["nvlink"][job.gpus], HUNG_NVLINK).any()
        )
        if quiet and (spins & idle_work).mean() >= MAJORITY:
            missing = job.gpus[~spins & (gpu["utilization"][job.gpus] < 0.05)]  # noqa: PLR2004 - never launched
            evidence = FindingEvidence(
                "activity", float(np.nanmean(activity)), HUNG_ACTIVITY, "limit", job.key.workload
            )
            detail = ", ".join(view.gpu_name(p) for p in missing[:4].tolist())
            yield Finding("nccl_hang", Cause("job", job=job.key), (evidence,), detail=detail)


def slow_jobs(view: DiagnosisView) -> Iterator[Finding]:
    """Yield jobs that are slower than before: symptoms, which other findings explain."""
    for state in view.states.values():
        if state.is_slow and state.utilization_change > MIN_BUSY_USE:
            evidence = FindingEvidence(
                "send", state.speed, 1.0, "relative to its past", state.job.key.workload
            )
            yield Finding("job_slowdown", Cause("job", job=state.job.key), (evidence,))


STALLED_SPEED, MIN_WAITING_USE = 0.1, 0.7


def is_stalled(state: JobState | None) -> bool:
    """True if the ranks of a job wait and make no progress; those of a job that has ended are idle."""
    if state is None or not state.utilization_now > MIN_WAITING_USE:
        return False
    return bool(state.exchange_now < STALLED_SPEED)
