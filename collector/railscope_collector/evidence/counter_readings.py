"""Increments of the counters of GPUs on a day, from the readings in quarters of their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from railscope.catalog import gpu as gpu_metrics
from railscope.timestamps import SECOND_NS
from railscope_collector.evidence.node_intervals import GRID_NS, CounterSeries, EvidenceInterval
from railscope_collector.fleet.shape_columns import AGENT_MEASURES, CounterSubject
from railscope_collector.metering.counter_increments import (
    Column,
    CountedQuantity,
    CounterIncrements,
    CounterReadings,
    compute_increments,
)
from railscope_collector.metering.timeline import TimePiece

_MAX_PER_SECOND = {
    CountedQuantity.ENERGY: gpu_metrics.GPU_POWER.valid_steps[-1],
    CountedQuantity.USED: SECOND_NS,
    CountedQuantity.MEMORY: int(gpu_metrics.GPU_MEMORY_USED.valid_steps[-1] / gpu_metrics.GPU_MEMORY_USED_TIME.scale),
}  # fmt: skip
"""Highest increment of a GPU's counter, by the bound of the gauge that it sums."""
_SLACK_SECONDS = 60
"""Maximum age of a value when it is read: two of the longest samples that an agent adds up."""


class _Source(NamedTuple):
    """Series with the same columns, of one boot of a node."""

    node: str
    boot: str
    run: str
    counters: tuple[CounterSubject, ...]
    with_rdma: frozenset[tuple[CountedQuantity, int]]
    """Measures and rails that ports of RDMA have in the same quarter."""


class _Readings(NamedTuple):
    boot_ns: Column
    timestamps_ns: Column
    values: Any
    """A row for each reading, a column for each counter; negative where it was not read."""


@dataclass(frozen=True, slots=True)
class DayCounters:
    """All readings of counters around a day."""

    _by_source: Mapping[_Source, _Readings]

    @classmethod
    def of_quarters(cls, quarters: Mapping[str, Sequence[EvidenceInterval]]) -> Self:
        """Return the readings in the quarters of some nodes."""
        series: dict[_Source, list[CounterSeries]] = {}
        for of_node in quarters.values():
            with_rdma: dict[tuple[str, int], set[tuple[CountedQuantity, int]]] = {}
            for quarter in of_node:
                of_quarter = with_rdma.setdefault((quarter.boot, quarter.number), set())
                for each in quarter.series.values():
                    of_quarter |= {(c.measure, c.rail) for c in each.counters if c.rdma}
            for quarter in of_node:
                known = frozenset(with_rdma[quarter.boot, quarter.number])
                for each in filter(_has_readings, quarter.series.values()):
                    source = _Source(
                        quarter.node, quarter.boot, each.run, tuple(each.counters), known
                    )
                    series.setdefault(source, []).append(each)
        return cls({source: _join_series(found) for source, found in series.items()})

    def increments(
        self, gpu: str, stays: Sequence[TimePiece[str]], models: Sequence[TimePiece[Any]]
    ) -> dict[CountedQuantity, CounterIncrements]:
        """Return the increments of the counters of a GPU, and of those of the ports on its rail.

        A node's readings count while the GPU is in it: no increment is from a time without the GPU.
        """
        readings: dict[tuple[CounterSubject, str, int], dict[tuple[str, str], list[Any]]] = {}
        for source, found in self._by_source.items():
            for column, counter in enumerate(source.counters):
                # Of the ports of a rail those of RDMA count, or the interfaces if there are none.
                is_port = not counter.gpu
                has_rdma = (counter.measure, counter.rail) in source.with_rdma
                if counter.gpu != gpu and not (is_port and counter.rdma == has_rdma):
                    continue
                run = source.run if counter.measure in AGENT_MEASURES else ""
                for stay in stays:
                    for model in models:
                        if stay.value != source.node or (
                            is_port and counter.rail != model.value[0]
                        ):
                            continue
                        low_ns = max(stay.start_ns, model.start_ns)
                        high_ns = min(stay.end_ns, model.end_ns)
                        table = _select_rows(found, column, low_ns, high_ns)
                        of_stay = readings.setdefault((counter, source.node, stay.start_ns), {})
                        of_stay.setdefault((source.boot, run), []).append(table)
        joined: dict[CountedQuantity, list[CounterIncrements]] = {}
        for (counter, *_), runs in sorted(readings.items()):
            counted = _join_readings(runs, _MAX_PER_SECOND.get(counter.measure))
            joined.setdefault(counter.measure, []).append(counted)
        names = ("starts_ns", "ends_ns", "amounts", "same")
        return {
            measure: CounterIncrements(
                *(np.concatenate([getattr(each, name) for each in parts]) for name in names)
            )
            for measure, parts in joined.items()
        }


def _has_readings(series: CounterSeries) -> bool:
    return bool(series.cells)


def _join_series(series: Sequence[CounterSeries]) -> _Readings:
    """Return all readings of some series with the same columns."""
    cells = [cell for each in series for cell in each.cells.values()]
    values = np.frombuffer(b"".join(cell.values for cell in cells), "<i8").reshape(len(cells), -1)
    times = np.array([(cell.boot_ns, cell.timestamp_ns) for cell in cells], np.int64)
    return _Readings(times[:, 0], times[:, 1], values)


def _select_rows(found: _Readings, column: int, low_ns: int, high_ns: int) -> Any:
    """Return boot time, timestamp and value of the readings of a column in [low, high)."""
    is_here = (found.timestamps_ns >= low_ns) & (found.timestamps_ns < high_ns)
    counts = is_here & (found.values[:, column] >= 0)
    columns = (found.boot_ns, found.timestamps_ns, found.values[:, column])
    return np.column_stack([each[counts] for each in columns])


def _join_readings(
    runs: Mapping[tuple[str, str], Sequence[Any]], max_per_second: int | None
) -> CounterIncrements:
    """Return the increments between the first readings of each cell of the grid.

    One that the device cannot have made is an error of a reading: a counter that jumps, or returns from a jump.
    """
    readings = []
    for (boot, run), tables in runs.items():
        table = np.concatenate(tables)
        table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
        table = table[np.unique(table[:, 0] // GRID_NS, return_index=True)[1]]
        # The boot clock determines the order; transport delays may make wall timestamps decrease.
        times_ns = np.maximum.accumulate(table[:, 1])
        columns = (times_ns, table[:, 2].copy(), run, table[:, 0].copy())
        readings.append(CounterReadings(boot, *columns))
    found = compute_increments(readings)
    if max_per_second is None:
        return found
    # In floating point: this is a bound of plausibility, and no amount.
    seconds = (found.ends_ns - found.starts_ns) / SECOND_NS + _SLACK_SECONDS
    is_possible = found.amounts <= max_per_second * seconds
    return CounterIncrements(
        found.starts_ns[is_possible],
        found.ends_ns[is_possible],
        found.amounts[is_possible],
        found.same[is_possible],
    )
