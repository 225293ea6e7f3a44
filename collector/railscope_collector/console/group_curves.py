"""Curves of rails and jobs: their roll-ups, as queries to a server with history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from railscope.catalog import Rollup, derived_metric, rollups
from railscope.catalog.incidents import JOB_STEP
from railscope_collector.console.curves import FigureTitles
from railscope_collector.console.history_server import CurveQuery, quoted
from railscope_collector.workloads.job_roster import JobKey

GroupKey: TypeAlias = str | JobKey
"""A rail by its number, or a job."""


class GroupCurve(NamedTuple):
    """A curve of a rail or a job by its roll-ups in order of preference, of which the largest counts if they are maxima. Jobs have a few."""

    label: str
    unit: str
    rollups: Sequence[str]


CURVES: Mapping[str, GroupCurve] = {
    "sent": GroupCurve("Sent by all NICs", "bytes per second", ("sum_rdma_transmit_bytes_per_second", "sum_nic_transmit_bytes_per_second")),
    "received": GroupCurve("Received by all NICs", "bytes per second", ("sum_rdma_receive_bytes_per_second", "sum_nic_receive_bytes_per_second")),
    "max_paused": GroupCurve("NIC that the switch pauses most", "ratio", ("max_nic_receive_pfc_pause_ratio", "max_nic_receive_global_pause_ratio")),
    "max_pausing": GroupCurve("NIC that pauses the switch most", "ratio", ("max_nic_transmit_pfc_pause_ratio", "max_nic_transmit_global_pause_ratio")),
    "marks": GroupCurve("Marked packets received (ECN)", "per second", ("sum_rdma_ecn_marked_packets_per_second", "sum_nic_receive_ecn_marked_packets_per_second")),
    "notifications": GroupCurve("Notifications sent (CNP)", "per second", ("sum_rdma_congestion_notifications_sent_per_second",)),
    "out_of_order": GroupCurve("Packets out of sequence", "per second", ("sum_rdma_out_of_sequence_packets_per_second",)),
    "mean_utilization": GroupCurve("Mean utilization", "ratio", ("mean_gpu_utilization_ratio",)),
    "power": GroupCurve("Power of all GPUs", "watts", ("sum_gpu_power_watts",)),
    "max_temperature": GroupCurve("Hottest GPU", "celsius", ("max_gpu_temperature_celsius",)),
    "step_period": GroupCurve("Step period", "seconds", (JOB_STEP.name,)),
}  # fmt: skip
RAIL_FIGURES: FigureTitles = {
    "traffic": ("Traffic of all NICs", ("sent", "received")),
    "pauses": ("Share of time in which a priority is paused", ("max_paused", "max_pausing")),
    "congestion": ("Congestion marks and notifications", ("marks", "notifications")),
    "order": ("Packets out of sequence", ("out_of_order",)),
}
JOB_FIGURES: FigureTitles = {
    "step": ("Step period", ("step_period",)),
    "utilization": ("GPU utilization", ("mean_utilization",)),
    "power": ("GPU power", ("power",)),
    "temperature": ("GPU temperature", ("max_temperature",)),
    **RAIL_FIGURES,
}


def queries(key: GroupKey, figures: FigureTitles) -> list[CurveQuery]:
    """Return the queries of the curves of a rail or a job: the largest pause of several priorities counts."""
    scope, labels = ("job", key._asdict()) if isinstance(key, JobKey) else ("rail", {"rail": key})
    matchers = ",".join(f"{label}={quoted(value)}" for label, value in labels.items())
    found = []
    for name in (name for _, names in figures.values() for name in names):
        curve = CURVES[name]
        named = (f"railscope_{scope}_{each}" for each in curve.rollups)
        metrics = [each for each in named if each in rollups()]
        metrics += [each for each in curve.rollups if each == JOB_STEP.name]
        if metrics:
            text = _combined_all(metrics, matchers)
            found.append(CurveQuery(name, curve.label, curve.unit, text))
    return found


def _combined_all(metrics: Sequence[str], matchers: str) -> str:
    """Return the query of metrics in order of preference. A port uses PFC or link-wide pause: of maxima the largest counts."""
    if len(metrics) > 1 and all(rollups()[each].rollup is Rollup.MAX for each in metrics):
        return f"max({{__name__=~{quoted('|'.join(metrics))},{matchers}}})"
    return " or ".join(_combined(metric, f"{{{matchers}}}") for metric in metrics)


def _combined(name: str, selector: str) -> str:
    """Return the query of a roll-up: several collectors may each have a part of a rail or a job."""
    rollup = rollups().get(name)
    if rollup is not None and rollup.rollup is Rollup.SUM:
        return f"sum({name}{selector})"
    if rollup is not None and rollup.rollup is Rollup.MEAN:
        count = derived_metric(rollup.source, rollup.scope, Rollup.COUNT).name + selector
        return f"sum({name}{selector} * {count}) / sum({count})"
    return f"max({name}{selector})"
