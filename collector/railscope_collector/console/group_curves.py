"""Curves of rails and jobs: from the last hour of the diagnosis, or roll-ups of a server with longer history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from railscope.catalog import Rollup, derived_metric, rollups
from railscope.catalog.incidents import JOB_STEP
from railscope_collector.console import curves, node_history
from railscope_collector.console.history_server import CurveQuery, quoted
from railscope_collector.diagnosis import diagnosis_curves
from railscope_collector.http.read_api import ViewApi
from railscope_collector.workloads.job_roster import JobKey

RAIL_FIGURES = {
    "traffic": ("Traffic of all NICs", ("sent", "received")),
    "pauses": ("Share of time in which a priority is paused", ("max_paused", "max_pausing")),
    "congestion": ("Congestion marks and notifications", ("marks", "notifications")),
    "order": ("Packets out of sequence", ("out_of_order",)),
    "nics": ("NICs with a reading", ("nics",)),
}
JOB_FIGURES = {
    "step": ("Step period", (diagnosis_curves.STEP_CURVE,)),
    "utilization": ("GPU utilization", ("mean_utilization", "min_utilization")),
    "power": ("GPU power", ("power",)),
    "temperature": ("GPU temperature", ("max_temperature",)),
    "gpus": ("GPUs with a reading", ("gpus",)),
    **RAIL_FIGURES,
}
GroupFigures = Mapping[str, tuple[str, Sequence[str]]]
"""Title and curves of each figure."""
LABELS = {curve.name: (curve.label, curve.unit) for curve in diagnosis_curves.GROUP_CURVES}
LABELS[diagnosis_curves.STEP_CURVE] = ("Step period", "seconds")
BEFORE_HISTORY = "not kept: one hour at most, since the start of the collector or of the job"

ROLLUPS: Mapping[str, Sequence[str]] = {
    "sent": ("sum_rdma_transmit_bytes_per_second", "sum_nic_transmit_bytes_per_second"),
    "received": ("sum_rdma_receive_bytes_per_second", "sum_nic_receive_bytes_per_second"),
    "max_paused": ("max_nic_receive_pfc_pause_ratio", "max_nic_receive_global_pause_ratio"),
    "max_pausing": ("max_nic_transmit_pfc_pause_ratio", "max_nic_transmit_global_pause_ratio"),
    "marks": ("sum_rdma_ecn_marked_packets_per_second", "sum_nic_receive_ecn_marked_packets_per_second"),
    "notifications": ("sum_rdma_congestion_notifications_sent_per_second",),
    "out_of_order": ("sum_rdma_out_of_sequence_packets_per_second",),
    "mean_utilization": ("mean_gpu_utilization_ratio",),
    "power": ("sum_gpu_power_watts",),
    "max_temperature": ("max_gpu_temperature_celsius",),
}  # fmt: skip
"""Roll-ups of a rail or a job in order of preference; a curve without any has no longer history. Jobs have a few of them."""


def queries(key: diagnosis_curves.GroupKey, figures: GroupFigures) -> list[CurveQuery]:
    """Return the queries of the curves of a rail or a job: the largest pause of several priorities counts."""
    scope, labels = ("job", key._asdict()) if isinstance(key, JobKey) else ("rail", {"rail": key})
    matchers = ",".join(f"{label}={quoted(value)}" for label, value in labels.items())
    found = []
    for name in (name for _, names in figures.values() for name in names):
        named = (f"railscope_{scope}_{each}" for each in ROLLUPS.get(name, ()))
        metrics = [each for each in named if each in rollups()]
        if name == diagnosis_curves.STEP_CURVE:
            metrics = [JOB_STEP.name]
        if metrics:
            text = " or ".join(_combined(metric, f"{{{matchers}}}") for metric in metrics)
            found.append(CurveQuery(name, *LABELS[name], text))
    return found


def _combined(name: str, selector: str) -> str:
    """Return the query of a roll-up: several collectors may each have a part of a rail or a job."""
    rollup = rollups().get(name)
    if rollup is not None and rollup.rollup is Rollup.SUM:
        return f"sum({name}{selector})"
    if rollup is not None and rollup.rollup is Rollup.MEAN:
        count = derived_metric(rollup.source, rollup.scope, Rollup.COUNT).name + selector
        return f"sum({name}{selector} * {count}) / sum({count})"
    return f"max({name}{selector})"


def read_history(
    history: diagnosis_curves.GroupHistory,
    key: diagnosis_curves.GroupKey,
    figures: GroupFigures,
    period: curves.TimeRange,
) -> dict[str, curves.HistoryCurve]:
    """Return the curves of a rail or a job from the memory of the diagnosis."""
    names = [name for _, names in figures.values() for name in names]
    return {name: _curve(history, key, name, period) for name in names}


def _curve(
    history: diagnosis_curves.GroupHistory,
    key: diagnosis_curves.GroupKey,
    name: str,
    period: curves.TimeRange,
) -> curves.HistoryCurve:
    points = history.read(key, name, *period)
    times_ns, values = points or diagnosis_curves.GroupPoints(np.zeros(0, np.int64), np.zeros(0))
    codes = np.where(np.isnan(values), node_history.NO_DEVICE, 0).astype(np.uint8)
    first_ns = int(times_ns[0]) if len(times_ns) else period.to_ns
    outside = [
        curves.CurveGap(period.from_ns, first_ns, BEFORE_HISTORY),
        curves.CurveGap(*period, BEFORE_HISTORY),
    ]
    found = node_history.with_gaps(
        times_ns, values, codes, period, outside, node_history.NOT_EVALUATED
    )
    return curves.HistoryCurve(name, *LABELS[name], found[0], found[1], tuple(found[2]))


def has_group(api: ViewApi, key: diagnosis_curves.GroupKey) -> bool:
    """True if a rail has a GPU or a NIC, or a job runs. Blocking."""
    if isinstance(key, JobKey):
        return any(job.key == key for job in api.views().jobs.jobs)
    if any(cell.labels[:1] == (key,) for cell in api.views().rail.cells):
        return True
    return any(key in map(str, rails) for rails in list(api.core.gpus_by_node.values()))
