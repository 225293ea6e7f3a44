"""Steps of a job: whether its nodes take them together, what it exchanges, and whether its work was steady before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from railscope_collector.diagnosis import findings, slot_sums
from railscope_collector.diagnosis.jobs import ActiveJob
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import Floats

LOW_QUANTILE = 0.3
"""Quantile of the past that most minutes exceed."""
ALIKE_QUANTILE = 0.9
"""Quantile of the differences of ranks that covers nearly all of them."""
MAX_STEP_SPREAD = 0.06
"""Standard deviation of the change of the exchange between the nodes of a job, relative to its mean, below which they take common steps."""
MIN_BUSY_USE = 0.9
"""Utilization above which a rank works or spins, absolute or relative to its past or to that of its peers."""


def has_common_steps(
    view: findings.DiagnosisView, job: ActiveJob, window_slots: int = findings.SLOTS_PER_MINUTE
) -> bool:
    """True unless nodes of a job work for themselves, as replicas of a service, or between phases of training.

    All nodes take the same steps, so what slows the steps lowers the exchange over NICs, or over NVLink, alike on all nodes.
    Steps that are longer than the window show it less than equal gaps of all ranks do.
    """
    if _has_equal_gaps(view, job, window_slots):
        return True
    spreads = list[float]()
    for kind, name, positions, nodes in (
        (DeviceKind.NIC, "send", job.nics, view.groups.nic_node),
        (DeviceKind.GPU, "nvlink", job.gpus, view.groups.gpu_node),
    ):
        now = view.signals.table(kind, window_slots)[name][positions]
        past = view.base(kind, name)[positions]
        both = ~np.isnan(now + past)
        sums, usual = (
            np.bincount(nodes[positions][both], each[both]).astype(np.float64)
            for each in (now, past)
        )
        if usual.any():
            changes = sums[usual > 0] / usual[usual > 0]
            spreads.append(float(np.std(changes)) / max(float(np.mean(changes)), 1e-9))
    return min(spreads, default=0.0) < MAX_STEP_SPREAD


MAX_USE_WITH_GAPS, MAX_GAP_SPREAD = 0.9, 0.03
"""Utilization relative to its past below which ranks may have gaps, and its spread, relative to it, up to which the gaps of nearly
all ranks are equal by their cause.
"""


def _has_equal_gaps(view: findings.DiagnosisView, job: ActiveJob, window_slots: int) -> bool:
    """True if all ranks of a job on several nodes were busy before, and wait equally long now."""
    used = view.signals.table(DeviceKind.GPU, window_slots)["utilization"][job.gpus]
    changes = used / view.base(DeviceKind.GPU, "utilization")[job.gpus]
    changes = changes[~np.isnan(changes)]
    if len(job.nodes) < 2 or len(changes) < ALIKE_QUANTILE * len(job.gpus):  # noqa: PLR2004 - nodes to compare
        return False
    usual = slot_sums.median(changes)
    spread = float(np.quantile(np.abs(changes - usual), ALIKE_QUANTILE))
    return usual < MAX_USE_WITH_GAPS and spread <= MAX_GAP_SPREAD * usual


_MAJORITY_QUANTILES, _HALF_QUANTILES, _RANGE_QUANTILES = (LOW_QUANTILE, 0.7), (0.5, 1.0), (0.0, 1.0)
"""Quantiles of the past: of most minutes, of half of them and the highest, of the lowest and the highest."""


def steadiness(view: findings.DiagnosisView, job: ActiveJob, signal: str) -> float:
    """Return the least of a signal of a job's GPUs in most minutes, relative to the highest in most minutes; NaN if unknown.

    After few minutes, most of them are compared with the highest one; after two, both.
    """
    ratios = (
        _steadiness(view, job, signal, quantiles)
        for quantiles in (_MAJORITY_QUANTILES, _HALF_QUANTILES, _RANGE_QUANTILES)
    )
    return next((ratio for ratio in ratios if not np.isnan(ratio)), np.nan)


def _steadiness(
    view: findings.DiagnosisView, job: ActiveJob, signal: str, quantiles: tuple[float, float]
) -> float:
    low, high = (view.base(DeviceKind.GPU, signal, each)[job.gpus] for each in quantiles)
    return slot_sums.median_known(slot_sums.divide(low, high))


HISTORY_SLOTS = 24


def waiting_slots(
    view: findings.DiagnosisView, job: ActiveJob, lowest: float, highest: float
) -> int:
    """Return for how many of the last slots the usual GPU of a job was used by a share of its past between two limits.

    At most HISTORY_SLOTS: when a longer wait began is unknown. Slots without utilization end a wait.
    """
    base = view.base(DeviceKind.GPU, "utilization")[job.gpus]
    for back in range(HISTORY_SLOTS):
        used = view.signals.table(DeviceKind.GPU, 1, back)["utilization"][job.gpus]
        if not lowest < slot_sums.median_known(used / base) < highest:
            return back
    return HISTORY_SLOTS


def low_use(view: findings.DiagnosisView) -> slot_sums.Floats:
    """Return a utilization that each GPU had in most minutes; after few, the usual one; after two, the lower."""
    low = view.base(DeviceKind.GPU, "utilization", LOW_QUANTILE)
    for quantile in (0.5, 0.0):
        low = np.where(np.isnan(low), view.base(DeviceKind.GPU, "utilization", quantile), low)
    return low


def node_means(
    view: findings.DiagnosisView, job: ActiveJob, values: slot_sums.Floats
) -> tuple[slot_sums.Positions, slot_sums.Floats]:
    """Return the nodes of a job, and the mean of each node's GPUs; values have the shape (…, GPUs)."""
    nodes, of_gpu = np.unique(view.groups.gpu_node[job.gpus], return_inverse=True)
    rows = values[..., job.gpus].reshape(-1, len(job.gpus))
    shape, count = (*values.shape[:-1], len(nodes)), len(rows) * len(nodes)
    present = ~np.isnan(rows)
    places = (np.arange(len(rows))[:, None] * len(nodes) + of_gpu)[present]
    sums = np.bincount(places, rows[present], count).astype(np.float64)
    readings = np.bincount(places, minlength=count).astype(np.float64)
    return nodes, slot_sums.divide(sums, readings).reshape(shape)


def progress(view: findings.DiagnosisView, job: ActiveJob, slots: int, before: int = 0) -> float:
    """Return what a job exchanges, relative to its past; starved steps still end, and those of a checkpoint do not."""
    return next(exchange_changes(view, job, slots, before), float("nan"))


def exchange_changes(
    view: findings.DiagnosisView, job: ActiveJob, slots: int, before: int = 0
) -> Iterator[float]:
    """Yield what a job exchanges over its NICs and over NVLink, relative to its past, where it is known."""
    for kind, name, positions, past in _past_exchanges(view, job):
        now = view.signals.table(kind, slots, before)[name][positions]
        if not np.isnan(now).all():
            yield slot_sums.sum_known(now) / slot_sums.sum_known(past)


class _PastExchange(NamedTuple):
    """Signal of what some devices of a job exchange, and its past."""

    kind: DeviceKind
    name: str
    positions: slot_sums.Positions
    past: Floats


def _past_exchanges(view: findings.DiagnosisView, job: ActiveJob) -> Iterator[_PastExchange]:
    """Yield what a job has exchanged so far, over its NICs and over NVLink."""
    for kind, name, positions, least in (
        (DeviceKind.NIC, "send", job.exchange_nics, findings.MIN_EXCHANGE),
        (DeviceKind.GPU, "nvlink", job.gpus, findings.MIN_NVLINK_BYTES_PER_SECOND),
    ):
        past = view.base(kind, name)[positions]
        if slot_sums.mean_known(past) > least:
            yield _PastExchange(kind, name, positions, past)


PAUSES, MIN_USUAL_SLOTS = 2, 6
"""Pauses of a job, as for checkpoints, that are in one window at most, and the slots without them that show its steps."""
MIN_INPUT, MIN_PROGRESS = 0.15, 0.12
"""Utilization below which a job is idle rather than without input, and exchange below which no steps end, relative to their past."""


def use_without_pauses(
    view: findings.DiagnosisView, job: ActiveJob, stores: findings.Flags
) -> float:
    """Return the utilization of a job in the last slots, relative to its past, without pauses for something else than its steps.

    These are the pauses in which it stores (`stores`, one flag per slot), and the two longest of the rest. In a pause nothing is
    exchanged, or the ranks are idle; its first and last slot are parts of others. NaN if too few slots are left, unless a third
    pause is in them: then the pauses are those of its steps.
    """
    slots = len(stores)
    past = view.base(DeviceKind.GPU, "utilization")[job.gpus]
    used = view.signals.slots(DeviceKind.GPU, slots)["utilization"][:, job.gpus]
    use = slot_sums.means_known((used / past).T)
    exchange = np.fmax.reduce([np.full(slots, np.nan), *_slot_exchanges(view, job, slots)])
    is_pause = (use < MIN_INPUT) | (exchange < MIN_PROGRESS)
    # A slot without readings may be in the pause before it.
    for slot in np.flatnonzero(np.isnan(use) & np.isnan(exchange)):
        is_pause[slot] = is_pause[max(slot - 1, 0)]
    edges = np.flatnonzero(np.diff(is_pause, prepend=False, append=False)).reshape(-1, 2).tolist()
    # The length of a pause that has not ended is unknown.
    edges.sort(key=lambda edge: edge[1] - edge[0] if edge[1] < slots else slots, reverse=True)
    stored = [edge for edge in edges if stores[slice(*edge)].any()]
    other_edges = [edge for edge in edges if edge not in stored]
    for first, end in (*stored, *other_edges[:PAUSES]):
        use[max(first - 1, 0) : end + 1] = np.nan
    is_enough = len(other_edges) > PAUSES or np.sum(~np.isnan(use)) >= MIN_USUAL_SLOTS
    return slot_sums.mean_known(use) if is_enough else np.nan


def _slot_exchanges(view: findings.DiagnosisView, job: ActiveJob, slots: int) -> Iterator[Floats]:
    """Yield what a job exchanges in each slot over its NICs and over NVLink, relative to its past, where it is known."""
    for kind, name, positions, past in _past_exchanges(view, job):
        sent = view.signals.slots(kind, slots)[name][:, positions]
        yield slot_sums.means_known(sent.T) / slot_sums.mean_known(past)


UNEVEN_FACTOR = 2.0
"""Maximum ratio of the exchange relative to the past over NICs and over NVLink, or in two halves of a window, in equal steps."""


def is_other_work(view: findings.DiagnosisView, job: ActiveJob, slots: int) -> bool:
    """True if a job moved less over NVLink than its exchange over NICs explains: fewer equal steps have less of both alike."""
    of_nics, of_nvlink, *_ = (*exchange_changes(view, job, slots), np.nan, np.nan)
    return of_nics > UNEVEN_FACTOR * of_nvlink


MAX_SERVING_USE, MAX_SERVING_SEND = 0.95, 0.1
"""Usual utilization, and load of its NICs, below which a job may be a service: its GPUs wait for requests, and the ranks of training spin."""
MAX_BUSY_SERVING_USE, MAX_SERVING_STEADINESS = 0.98, 0.985
"""As `MAX_SERVING_USE`, for a job with a lower ratio of low to high utilization: a service whose load varies may be nearly as busy as
training.
"""
MAX_VARYING_STEADINESS = 0.9
"""As `MAX_SERVING_STEADINESS`, below which a job may be a service, however busy: checkpoints vary it far less."""
HUNG_EXCHANGE = 0.002
"""Load of the NICs of a job below which nothing moves."""


HUNG_ACTIVITY, HUNG_ACTIVITY_CHANGE, HUNG_POWER_CHANGE = 0.3, 0.7, 0.55
"""Activity of spinning GPUs of a job that hangs, absolute and relative to its past: below both, all ranks may hang; above both, one works
while the others wait. Of GPUs without a measure of activity, power relative to its past below which they do no work.
"""


def does_no_work(state: findings.JobState) -> bool:
    """True if the GPUs of a job have spun or idled for a minute: what its NICs carry is no progress of it."""
    if np.isnan(state.activity_change):
        return state.power_change < HUNG_POWER_CHANGE
    return state.activity < HUNG_ACTIVITY and state.activity_change < HUNG_ACTIVITY_CHANGE


def may_serve(view: findings.DiagnosisView, job: ActiveJob) -> bool:
    """True if a job may be a service, which has the readings of missing input when it has less load.

    The GPUs of a service wait for requests, and its nodes exchange little. The ranks of training spin, or exchange much; the load
    of a service that is nearly as busy varies; one that varies far more than with checkpoints is a service, however busy.
    """
    if len(job.nodes) == 1:
        return True
    use = slot_sums.median_known(view.base(DeviceKind.GPU, "utilization")[job.gpus])
    sent = view.base(DeviceKind.NIC, "send")[job.nics]
    sent = sent[findings.above(sent, HUNG_EXCHANGE)]
    steady = steadiness(view, job, "utilization")
    max_use = MAX_SERVING_USE
    if steady < MAX_SERVING_STEADINESS:
        max_use = MAX_BUSY_SERVING_USE
    if steady < MAX_VARYING_STEADINESS:
        max_use = np.inf
    return use < max_use and slot_sums.mean_known(sent) < MAX_SERVING_SEND


MAX_LOSS_FACTOR, LOSS_NOISE = 3.0, 0.1
"""Loss of speed, relative to the gaps in the work of a rank, beyond which they do not explain it, and loss that noise may add: a step takes
longer by its gap.
"""


def explain_speed(speed: float, gap: slot_sums.Floats) -> findings.Flags:
    """Return the nodes whose gaps explain the speed of the job; all if it is unknown."""
    lowest = 1 + MAX_LOSS_FACTOR * gap - LOSS_NOISE
    explains: findings.Flags = ~(speed < lowest)
    return explains


def uses_of_nodes(
    view: findings.DiagnosisView, job: ActiveJob, slots: slot_sums.Floats
) -> tuple[slot_sums.Floats, slot_sums.Floats]:
    """Return the utilization of the nodes of a job, and the median of the job's others, shape (slots, nodes)."""
    used = node_means(view, job, slots)[1]
    return used, medians_of_others(used)


def medians_of_others(values: Floats) -> Floats:
    """Return, for each value, the median of the others of its row that are known; NaN without any.

    Values have the shape (…, devices).
    """
    rows = values.reshape(-1, values.shape[-1])
    # Explicit numbers of rows: `take_along_axis` takes longer to compute them than to take a few values.
    numbers, last = np.arange(len(rows))[:, None], rows.shape[-1] - 1
    order = np.argsort(rows, axis=-1)  # NaN last
    ordered, ranks = rows[numbers, order], np.empty_like(order)
    ranks[numbers, order] = np.arange(rows.shape[-1])
    are_known = ~np.isnan(rows)
    # Without a value itself, where it is known, the values above it have the next lower rank.
    other_counts = are_known.sum(axis=-1, keepdims=True) - are_known
    places = (np.maximum(other_counts - 1, 0) // 2, other_counts // 2)
    low, high = (
        ordered[numbers, np.minimum(place + (are_known & (ranks <= place)), last)]
        for place in places
    )
    return np.where(other_counts > 0, (low + high) / 2, np.nan).reshape(values.shape)
