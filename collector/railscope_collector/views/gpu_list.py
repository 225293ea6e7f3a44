"""Readings of each GPU, and of the NICs on its rail, for the list of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from railscope.catalog import METRICS
from railscope.catalog.tenancy import GPU_CLAIMED, GPU_UNCLAIMED_PROCESSES
from railscope.frame import NO_RAIL
from railscope_collector.fleet import shapes
from railscope_collector.views.fresh_rows import Floats, FreshRows

LISTED_METRICS = (
    "railscope_gpu_health",
    "railscope_gpu_utilization_ratio",
    "railscope_gpu_power_watts",
    "railscope_gpu_temperature_celsius",
    "railscope_gpu_memory_used_bytes",
    "railscope_gpu_memory_size_bytes",
    "railscope_gpu_unclaimed_processes",
    "railscope_gpu_throttle_seconds_total",
    "railscope_network_link_up",
    "railscope_rdma_port_up",
    "railscope_nic_receive_bytes_total",
    "railscope_nic_transmit_bytes_total",
    "railscope_rdma_receive_bytes_total",
    "railscope_rdma_transmit_bytes_total",
    "railscope_nic_receive_pfc_pause_seconds_total",
    "railscope_nic_receive_global_pause_seconds_total",
    "railscope_nic_transmit_pfc_pause_seconds_total",
    "railscope_nic_transmit_global_pause_seconds_total",
)
"""Metrics of the list of GPUs; counters are read as rates."""
_HEALTH_REASON = "railscope_gpu_health_reason_active"
_LOWEST = frozenset({"railscope_network_link_up", "railscope_rdma_port_up"})
"""Several ports of a rail: the lowest value counts, not the sum."""
_HIGHEST = frozenset(name for name in LISTED_METRICS if "pause" in name or "throttle" in name)
"""Shares of time of several priorities or reasons: the highest value counts."""
_THROTTLE, _THERMAL = "railscope_gpu_throttle_seconds_total", "thermal"


class ListedColumns(NamedTuple):
    """Columns of a layout for the list of GPUs: positions among those that roll up, metrics and rails."""

    positions: npt.NDArray[np.intp]
    metrics: npt.NDArray[np.intp]
    rails: npt.NDArray[np.intp]
    reason_positions: npt.NDArray[np.intp]
    reasons: tuple[tuple[int, str], ...]
    """Rail and name of the reason of each of `reason_positions`."""
    use_positions: npt.NDArray[np.intp]
    """Positions of the number of processes without a claim, and of the claimed share, of each GPU that has both."""


# Weak, so that a layout without nodes is released with its columns.
_LISTED: WeakKeyDictionary[shapes.SchemaLayout, ListedColumns] = WeakKeyDictionary()


def _listed_columns(layout: shapes.SchemaLayout) -> ListedColumns:
    """Return the columns of a layout for the list of GPUs, determined once."""
    if (columns := _LISTED.get(layout)) is not None:
        return columns
    listed: list[tuple[int, int, int]] = []
    reasons: list[tuple[int, tuple[int, str]]] = []
    use: dict[str, dict[int, int]] = {GPU_UNCLAIMED_PROCESSES.name: {}, GPU_CLAIMED.name: {}}
    cell_of = np.searchsorted(layout.starts, np.arange(len(layout.order)), "right") - 1
    key_of = np.searchsorted(layout.key_starts, cell_of, "right") - 1
    rails = layout.cell_rails[cell_of].tolist()
    for position, (number, rail) in enumerate(zip(key_of.tolist(), rails, strict=True)):
        metric, part = layout.keys[number]
        if rail != NO_RAIL and metric.name in use:
            use[metric.name][rail] = position
        is_other_throttle = metric.name == _THROTTLE and not part[0].endswith(_THERMAL)
        if rail != NO_RAIL and metric.name in LISTED_METRICS and not is_other_throttle:
            listed.append((position, LISTED_METRICS.index(metric.name), rail))
        elif rail != NO_RAIL and metric.name == _HEALTH_REASON:
            reasons.append((position, (rail, part[0])))
    positions, metrics, on_rails = np.array(listed, np.intp).reshape(-1, 3).T
    places = np.array([position for position, _ in reasons], np.intp)
    processes, claimed = use.values()
    pairs = [(processes[rail], claimed[rail]) for rail in processes.keys() & claimed.keys()]
    found = ListedColumns(
        positions,
        metrics,
        on_rails,
        places,
        tuple(each for _, each in reasons),
        np.array(pairs, np.intp).reshape(-1, 2).T,
    )
    _LISTED[layout] = found
    return found


@dataclass
class ListedReadings:
    """Readings of the GPUs and of the NICs on their rails, as of one refresh."""

    gpus: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """UUID of the GPU on each rail, by node; GPUs without a rail have a negative key."""
    reasons: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    """Active reasons of the health, by node and rail."""
    unclaimed: float | None = None
    """GPUs that processes use without a claim, less their claimed shares; None if no agent reports them."""
    _parts: list[tuple[list[str], ListedColumns, Floats]] = field(default_factory=list)

    def add(self, fresh: FreshRows) -> None:
        """Add rows of a block."""
        columns = _listed_columns(fresh.block.layout)
        self._add_use(fresh, columns.use_positions)
        if not len(columns.positions):
            return
        nodes = [fresh.block.nodes[row] or "" for row in fresh.rows.tolist()]
        values = fresh.values[:, columns.positions]
        if fresh.present is not None:
            values[~fresh.present[:, columns.positions]] = np.nan
        self._parts.append((nodes, columns, values))
        is_active = fresh.values[:, columns.reason_positions] > 0
        if fresh.present is not None:
            is_active &= fresh.present[:, columns.reason_positions]
        for row, column in np.argwhere(is_active).tolist():
            rail, reason = columns.reasons[column]
            self.reasons.setdefault((nodes[row], rail), []).append(reason)

    def _add_use(self, fresh: FreshRows, positions: npt.NDArray[np.intp]) -> None:
        """Add what processes use without a claim; a GPU whose claims are unknown is not counted."""
        if not positions.size:
            return
        processes, claimed = (fresh.values[:, column] for column in positions)
        is_used = processes > 0
        if fresh.present is not None:
            is_used &= fresh.present[:, positions[0]] & fresh.present[:, positions[1]]
        unclaimed = 1.0 - claimed[is_used] * float(GPU_CLAIMED.scale)
        self.unclaimed = (self.unclaimed or 0.0) + float(unclaimed.sum())

    def by_gpu(self, places: Sequence[tuple[str, int]]) -> Floats:
        """Return values in base units by metric and GPU, NaN for none; `places` are sorted nodes and rails."""
        nodes = {name: number for number, name in enumerate(dict.fromkeys(n for n, _ in places))}
        rails = np.array([rail for _, rail in places], np.intp)
        keys = _place_keys(np.array([nodes[node] for node, _ in places], np.int64), rails)
        shape = len(LISTED_METRICS), len(places)
        sums, counts = np.zeros(shape), np.zeros(shape, np.int32)
        lowest, highest = np.full(shape, np.inf), np.full(shape, -np.inf)
        for names, columns, values in self._parts if places else ():
            # Nodes that are not listed have keys that no place has.
            numbers = np.array([nodes.get(name, -1) for name in names], np.int64)
            found_keys = _place_keys(numbers[:, np.newaxis], columns.rails)
            gpus = np.minimum(np.searchsorted(keys, found_keys), len(keys) - 1)
            row, column = np.nonzero(~np.isnan(values) & (keys[gpus] == found_keys))
            place = columns.metrics[column], gpus[row, column]
            np.add.at(sums, place, values[row, column])
            np.add.at(counts, place, 1)
            np.minimum.at(lowest, place, values[row, column])
            np.maximum.at(highest, place, values[row, column])
        for number, name in enumerate(LISTED_METRICS):
            scale = METRICS[name].scale
            extremes = {**dict.fromkeys(_LOWEST, lowest), **dict.fromkeys(_HIGHEST, highest)}
            found = extremes.get(name, sums)[number]
            sums[number] = found * scale.numerator / scale.denominator
        sums[counts == 0] = np.nan
        return sums


def _place_keys(nodes: npt.NDArray[np.int64], rails: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Return numbers that sort as node and rail; a rail may be negative, and has few digits."""
    return nodes * (1 << 20) + rails + (1 << 16)
