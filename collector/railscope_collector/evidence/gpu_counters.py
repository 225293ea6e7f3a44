"""Increments of the counters of a GPU, and of the counters of the ports on its rail."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from railscope import frame
from railscope.catalog import gpu as gpu_metrics
from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope_collector.evidence import gpu_node_history, node_intervals
from railscope_collector.fleet.shape_columns import AGENT_MEASURES, CounterSubject
from railscope_collector.metering import counter_increments as measures, evidence as usage_evidence


def counter_increments(
    gpu: str,
    intervals: Sequence[node_intervals.EvidenceInterval],
    stays: Sequence[usage_evidence.NodeStay] = (),
) -> dict[measures.CountedQuantity, measures.CounterIncrements]:
    """Return the increments of a GPU's counters and of the counters of the ports on its rail.

    A node's readings count while the GPU is in that node. Counters of different nodes, or of one before and after the
    GPU was in another one, are different: no increment is from a time without the GPU.

    The later reading of two determines whether bytes of a port count: the port is on the rail that the node last
    reported of the GPU, and is an RDMA port or has none beside it on the rail in that interval.
    """
    moved = {stay.node for stay in stays} != {interval.node for interval in intervals}
    moved |= len(stays) > 1
    since_ns = min((stay.start_ns for stay in stays), default=-FOREVER_NS)
    readings: dict[_CounterInStay, dict[tuple[str, str], dict[int, _Reading]]] = {}
    described = gpu_node_history.find_descriptions(gpu, intervals)
    with_rdma = {
        (interval.node, interval.boot, interval.number, counter.measure, counter.rail)
        for interval in intervals
        for counter in node_intervals.read_counters(interval)
        if counter.rdma
    }
    for key, all_series in _merge_parts(intervals).items():
        node, boot, _ = key
        rails = described.get(node, ())
        own_rails = {each.rail for each in rails}
        for series in all_series.values():
            for column, counter in enumerate(series.counters):
                if counter.gpu != gpu and (counter.gpu or counter.rail not in own_rails):
                    continue
                # The device keeps its counters over restarts of the agent; those that the agent sums begin again with
                # each run.
                run = series.run if counter.measure in AGENT_MEASURES else ""
                has_rdma = (*key, counter.measure, counter.rail) in with_rdma
                for cell in series.cells.values():
                    value = int.from_bytes(
                        cell.values[8 * column : 8 * column + 8], "little", signed=True
                    )
                    stay_ns = _find_stay(node, stays, cell.timestamp_ns) if moved else 0
                    if value < 0 or cell.timestamp_ns < since_ns or stay_ns is None:
                        continue
                    in_stay = _CounterInStay(counter, node, stay_ns)
                    cells = readings.setdefault(in_stay, {}).setdefault((boot, run), {})
                    number = cell.boot_ns // node_intervals.GRID_NS
                    counts = bool(counter.gpu) or (
                        _rail_at(rails, cell.timestamp_ns) == counter.rail
                        and counter.rdma == has_rdma
                    )
                    new = (cell.boot_ns, cell.timestamp_ns, value, counts)
                    # The first reading of a cell, as in memory: it may be in parts of several collectors.
                    cells[number] = min(new, cells.get(number, new))
    increments_by_quantity: dict[measures.CountedQuantity, list[measures.CounterIncrements]] = {}
    for (counter, *_), runs in sorted(readings.items()):
        increments = _compute_increments(runs, _MAX_PER_SECOND.get(counter.measure))
        increments_by_quantity.setdefault(counter.measure, []).append(increments)
    return {measure: _merge_increments(parts) for measure, parts in increments_by_quantity.items()}


_IntervalKey: TypeAlias = tuple[str, str, int]
"""Node, boot, and number of the interval."""


def _merge_parts(
    intervals: Iterable[node_intervals.EvidenceInterval],
) -> dict[_IntervalKey, dict[str, node_intervals.CounterSeries]]:
    """Return the series of each interval: of a cell in several parts of it, the first reading.

    A part of a collector that received some of the frames has later readings, which count only if they are the first.
    """
    merged: dict[_IntervalKey, dict[str, node_intervals.CounterSeries]] = {}
    for interval in intervals:
        of_interval = merged.setdefault((interval.node, interval.boot, interval.number), {})
        for name, series in interval.series.items():
            other = of_interval.setdefault(name, series)
            if other is not series:
                joined = node_intervals.CounterSeries(series.run, series.counters, {**other.cells})
                of_interval[name] = joined
                for number, cell in series.cells.items():
                    joined.offer(number, cell)
    return merged


_Reading: TypeAlias = tuple[int, int, int, bool]
"""Boot and wall timestamp, value, and whether an increment that ends with it counts."""


def _rail_at(rails: Sequence[gpu_node_history.GpuDescription], timestamp_ns: int) -> int:
    """Return the rail that was last reported up to a time."""
    position = bisect_right(rails, timestamp_ns, key=itemgetter(0))
    return rails[position - 1].rail if position else frame.NO_RAIL


class _CounterInStay(NamedTuple):
    """A counter in one node during one stay of the GPU."""

    counter: CounterSubject
    node: str
    stay_ns: int


def _find_stay(
    node: str, stays: Iterable[usage_evidence.NodeStay], timestamp_ns: int
) -> int | None:
    """Return the start of the stay of a GPU in a node at a time; None if there is none."""
    starts = (s.start_ns for s in stays if s.node == node and s.start_ns <= timestamp_ns < s.end_ns)
    return next(starts, None)


_MAX_PER_SECOND = {
    measures.CountedQuantity.ENERGY: gpu_metrics.GPU_POWER.valid_steps[-1],
    measures.CountedQuantity.USED: SECOND_NS,
    measures.CountedQuantity.MEMORY: int(gpu_metrics.GPU_MEMORY_USED.valid_steps[-1] / gpu_metrics.GPU_MEMORY_USED_TIME.scale),
}  # fmt: skip
"""Highest increment of a GPU's counter, by the bound of the gauge that it sums."""
_SLACK_SECONDS = 60
"""Maximum age of a value when it is read: two of the longest samples that an agent adds up."""


def _compute_increments(
    runs: Mapping[tuple[str, str], Mapping[int, _Reading]], max_per_second: int | None
) -> measures.CounterIncrements:
    """Return the increments between readings of a counter that count.

    One that the device cannot have made is an error of a reading: a counter that jumps, or returns from a jump.
    """
    readings: list[measures.CounterReadings] = []
    uncounted_ns: list[measures.Column] = []
    for (boot, run), cells in runs.items():
        table = np.array(sorted(cells.values()), np.int64).reshape(-1, 4)
        # The boot clock determines the order; transport delays may make wall timestamps decrease.
        timestamps_ns = np.maximum.accumulate(table[:, 1])
        ages_ns, counters = table[:, 0].copy(), table[:, 2].copy()
        readings.append(measures.CounterReadings(boot, timestamps_ns, counters, run, ages_ns))
        uncounted_ns.append(timestamps_ns[table[:, 3] == 0])
    found = measures.compute_increments(readings)
    counts = ~np.isin(found.ends_ns, np.concatenate(uncounted_ns))
    if max_per_second is not None:
        # In floating point: this is a bound of plausibility, and no amount.
        seconds = (found.ends_ns - found.starts_ns) / SECOND_NS + _SLACK_SECONDS
        counts &= found.amounts <= max_per_second * seconds
    return measures.CounterIncrements(
        found.starts_ns[counts], found.ends_ns[counts], found.amounts[counts], found.same[counts]
    )


def _merge_increments(parts: Sequence[measures.CounterIncrements]) -> measures.CounterIncrements:
    """Merge the increments of several ports into one series."""
    if len(parts) == 1:
        return parts[0]
    ends = np.concatenate([part.ends_ns for part in parts])
    order = np.argsort(ends, kind="stable")
    return measures.CounterIncrements(
        np.concatenate([part.starts_ns for part in parts])[order],
        ends[order],
        np.concatenate([part.amounts for part in parts])[order],
        np.concatenate([part.same for part in parts])[order],
    )
