"""Load of the cluster at each refresh of the views, for the last 15 minutes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from railscope.catalog import account
from railscope.timestamps import SECOND_NS
from railscope_collector.fleet.view_cells import ViewCell

HISTORY_NS = 900 * SECOND_NS
STEP_NS = 10 * SECOND_NS
"""Distance of points: a curve of 15 minutes is 90 pixels wide."""
_SENT = ("sum_rdma_transmit_bytes_per_second", "sum_nic_transmit_bytes_per_second")
_PAUSES = tuple(
    f"max_nic_{direction}_{kind}_pause_ratio"
    for direction in ("receive", "transmit")
    for kind in ("pfc", "global")
)


class ClusterLoad(NamedTuple):
    """Load at one time; None is not known."""

    timestamp_ns: int
    held_gpus: float | None = None
    """GPUs that tenants hold; parts of a GPU count as parts."""
    mean_utilization_ratio: float | None = None
    power_watts: float | None = None
    transmit_bytes_per_second: float | None = None
    """Of the NICs on all rails."""
    max_pause_ratio: float | None = None
    """Largest share of time in which a NIC was paused or paused its switch."""
    running_jobs: float | None = None
    gpu_hours_today: float | None = None
    """GPU time held since midnight (UTC)."""


def measure_load(
    timestamp_ns: int,
    cluster: Iterable[ViewCell],
    held_gpus: float | None,
    gpu_hours_today: float | None,
) -> ClusterLoad:
    """Return the load by the cells of the cluster."""
    values = defaultdict[str, list[float]](list)
    for cell in cluster:
        values[cell.metric.name].append(cell.value)

    def roll_up(*names: str) -> list[float]:
        """Return the values of some roll-ups, those of each priority too."""
        return [each for name in names for each in values[f"railscope_cluster_{name}"]]

    return ClusterLoad(
        timestamp_ns,
        held_gpus,
        next(iter(roll_up("mean_gpu_utilization_ratio")), None),
        next(iter(roll_up("sum_gpu_power_watts")), None),
        next(iter(roll_up(*_SENT)), None),
        max(roll_up(*_PAUSES), default=None),
        next(iter(values[account.CLUSTER_JOBS.name]), None),
        gpu_hours_today,
    )


def extend_load(points: tuple[ClusterLoad, ...], newest: ClusterLoad) -> tuple[ClusterLoad, ...]:
    """Return the points of the last 15 minutes, one per step, the newest last."""
    end_ns = newest.timestamp_ns
    # Points after the newest one are of a clock that was set back.
    kept = [
        each
        for each in points
        if end_ns - HISTORY_NS <= each.timestamp_ns < end_ns // STEP_NS * STEP_NS
    ]
    return (*kept, newest)
