"""Curves of rails and jobs: roll-ups of a server with history, else the frame log of some of their nodes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from railscope.catalog import Rollup, derived_metric, rollups
from railscope.catalog.incidents import JOB_STEP
from railscope.device_names import DeviceKey, Names
from railscope_collector.console import curves, device_figures, node_history, stored_frames
from railscope_collector.console.history_server import CurveQuery, quoted
from railscope_collector.http.read_api import ViewApi
from railscope_collector.workloads.job_roster import JobKey

GroupKey: TypeAlias = str | JobKey
"""A rail by its number, or a job."""
MAX_NODES = 8
"""Nodes whose frames one page reads, with a curve each, in colors that differ."""
BEFORE_JOB = "the job did not hold these GPUs"


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
GroupFigures = Mapping[str, tuple[str, Sequence[str]]]
"""Title and curves of each figure."""
RAIL_FIGURES: GroupFigures = {
    "traffic": ("Traffic of all NICs", ("sent", "received")),
    "pauses": ("Share of time in which a priority is paused", ("max_paused", "max_pausing")),
    "congestion": ("Congestion marks and notifications", ("marks", "notifications")),
    "order": ("Packets out of sequence", ("out_of_order",)),
}
JOB_FIGURES: GroupFigures = {
    "step": ("Step period", ("step_period",)),
    "utilization": ("GPU utilization", ("mean_utilization",)),
    "power": ("GPU power", ("power",)),
    "temperature": ("GPU temperature", ("max_temperature",)),
    **RAIL_FIGURES,
}


def queries(key: GroupKey, figures: GroupFigures) -> list[CurveQuery]:
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


# Frame log: a curve per node ---


_RAIL = re.compile(r"0|[1-9][0-9]{0,3}")


class GroupDevices(NamedTuple):
    """Devices of a rail or a job on one node."""

    gpus: frozenset[str]
    """UUIDs."""
    rails: frozenset[str]
    since_ns: int = 0
    """Start of the job on the last of these GPUs: readings before it are those of others."""


GroupMembers: TypeAlias = Mapping[str, GroupDevices]
"""Devices by node, the worst node first."""


class GroupNode(NamedTuple):
    """A node of a rail or a job, the keys of its devices there, and the time from which on their readings count."""

    node: str
    keys: node_history.DeviceKeys
    since_ns: int


def find_members(api: ViewApi, key: GroupKey) -> GroupMembers:
    """Return the devices of a rail, or of a running job. Blocking.

    Of a job they are the GPUs that it does not share, with the NICs on their rails: readings of others are not its own.
    """
    if isinstance(key, JobKey):
        members = _members_of_job(api, key)
        return {row.node: members[row.node] for row in api.node_rows() if row.node in members}
    if not _RAIL.fullmatch(key):
        return {}
    rail = int(key)
    on_rail = (row.node for row in api.node_rows() if row.rails[rail : rail + 1] not in {"", "-"})
    return {
        node: GroupDevices(
            frozenset({api.core.gpus_by_rail(node).get(rail, "")} - {""}), frozenset({key})
        )
        for node in on_rail
    }


def _members_of_job(api: ViewApi, key: JobKey) -> GroupMembers:
    own: dict[str, dict[str, int]] = defaultdict(dict)
    for place in (p for job in api.views().jobs.jobs if job.key == key for p in job.places):
        of_node = own[place.holding.node]
        if place.is_alone:
            of_node[place.gpu] = place.holding.start_ns
    found = {}
    for node, gpus in own.items():
        by_rail = api.core.gpus_by_rail(node)
        rails = frozenset(str(rail) for rail, gpu in by_rail.items() if gpu in gpus)
        found[node] = GroupDevices(frozenset(gpus), rails, max(gpus.values(), default=0))
    return found


def group_node(node: str, names: Mapping[DeviceKey, Names], devices: GroupDevices) -> GroupNode:
    """Return a node with the keys of devices."""
    keys = {
        "gpu": frozenset(key for key, each in names.items() if each.get("uuid") in devices.gpus),
        "nic": frozenset(
            key
            for key, each in names.items()
            if each["kind"] == "nic" and each["rail"] in devices.rails
        ),
    }
    return GroupNode(node, keys, devices.since_ns)


def named_figures(figures: GroupFigures) -> list[device_figures.NamedFigure]:
    """Return figures of roll-ups, which have no devices."""
    return [
        device_figures.NamedFigure(
            name,
            title,
            CURVES[of[0]].unit,
            tuple(
                device_figures.NamedCurve(each, CURVES[each].label, "", (), "sum") for each in of
            ),
        )
        for name, (title, of) in figures.items()
    ]


def read_nodes(
    frames: stored_frames.StoredFrames,
    nodes: Sequence[GroupNode],
    period: curves.TimeRange,
) -> tuple[list[device_figures.NamedFigure], dict[str, curves.HistoryCurve]]:
    """Return figures with a curve per node, and these curves. Blocking; raises OSError."""
    shown = [each for each in nodes if any(each.keys.values()) and each.since_ns < period.to_ns]
    max_records = stored_frames.MAX_RECORDS // max(len(shown), 1)
    kinds = {kind for each in shown for kind, keys in each.keys.items() if keys}
    bases = [each for each in device_figures.GROUP_FIGURES if each.curves[0].device in kinds]
    found: dict[str, curves.HistoryCurve] = {}
    for number, member in enumerate(shown):
        since_ns = max(period.from_ns, member.since_ns)
        own = curves.TimeRange(since_ns, period.to_ns)
        before = curves.CurveGap(period.from_ns, since_ns, BEFORE_JOB)
        read = node_history.read_curves(
            frames, member.node, member.keys, bases, own, max_records
        ).curves
        for name, curve in read.items():
            found[f"{name}_{number}"] = replace(
                curve,
                name=f"{name}_{number}",
                label=member.node,
                gaps=(*((before,) if since_ns > period.from_ns else ()), *curve.gaps),
            )
    figures = [
        device_figures.NamedFigure(
            base.name,
            base.title,
            base.unit,
            tuple(
                replace(base.curves[0], name=f"{base.curves[0].name}_{number}", label=each.node)
                for number, each in enumerate(shown)
            ),
        )
        for base in bases
    ]
    return figures, found
