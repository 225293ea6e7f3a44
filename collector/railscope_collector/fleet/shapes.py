"""Shapes: the columns of a stream without the names of devices, which all nodes of one build have in common.

Everything that is determined from columns alone is determined once per shape, so that a thousand nodes of one build use
one layout.

A layout divides the columns of a shape into cells: all
columns of one metric, one part (a priority, a clock) and one rail (the rail of the GPU or NIC
they belong to). One pass of `reduceat` over the columns, ordered by cell, rolls up every metric
of many nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from railscope import catalog, envelopes
from railscope.catalog import rollup
from railscope.catalog.declare import Metric
from railscope.catalog.gpu_health import GPU_HEALTH
from railscope.frame import NO_RAIL
from railscope.wire import BUILD, RAIL_DIGITS, Shape, WireError, content_hash
from railscope_collector.fleet import shape_columns

Positions: TypeAlias = npt.NDArray[np.intp]
KeyPart: TypeAlias = tuple[str, ...]
CellKey: TypeAlias = tuple[Metric, KeyPart]

GPU_STREAM = "gpu"
MAX_GPUS = 256


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SchemaLayout:
    """The columns of a shape, for views.

    `order` lists the columns that roll up, cell by cell; `starts` the start of each cell in it;
    `keys` the metric and part of each run of cells, `key_starts` the start of each run among the
    cells; `cell_rails` the rail of each cell. `counters` lists the counters with rates that views
    read, `averaged` the gauges that views read as means, `rate_columns` both; `rated` their positions
    in `order`, and `rates` the rate column of each of these.
    """

    shape: bytes
    """Hash of the shape."""
    stream: str
    columns: int
    counters: Positions
    averaged: Positions
    rate_columns: Positions
    windowed: Positions
    """Rate columns of which the last minute is shown."""
    largest: npt.NDArray[np.bool_]
    """True for those of which the largest share of a slot is shown."""
    narrow: npt.NDArray[np.bool_]
    max_rates: npt.NDArray[np.float64]
    """Highest rates of these counters in stored steps; infinity without one."""
    order: Positions
    rated: Positions
    rates: Positions
    starts: Positions
    cell_rails: npt.NDArray[np.int64]
    keys: tuple[CellKey, ...]
    key_starts: Positions
    health: Positions
    """Columns with the verdicts on GPUs."""
    viewed: Positions
    """Columns that views read; `packed_columns` are the rest."""
    packed_columns: Positions
    slots: Positions
    """Position in `viewed` of each column that is in it."""
    bounded: Positions
    """Gauges whose quantity has limits; `lowest` and `highest` are their limits in stored steps."""
    lowest: npt.NDArray[np.int64]
    highest: npt.NDArray[np.int64]

    @property
    def rails(self) -> int:
        """Return the number of rails, not counting -1 (no rail)."""
        return int(self.cell_rails.max(initial=-1)) + 1


def make_layout(digest: bytes, shape: Shape) -> SchemaLayout:
    """Return the layout of a shape.

    Metrics that are not in the catalog are stored but not rolled up.
    """
    cells: list[tuple[int, KeyPart, int, int]] = []
    metrics: list[Metric] = []
    counters, narrow, max_rates = [], [], []
    viewed: set[int] = set()
    column = -1
    for group in shape.groups:
        metric, scale = catalog.METRICS.get(group.metric), group.scale[0] / group.scale[1]
        for number in group.entities:
            column += 1
            slot = shape.slots[number]
            if metric and shape_columns.is_of_jobs(metric, slot):
                viewed.add(column)
            if metric and shape_columns.has_rate(metric, slot):
                counters.append(column)
                narrow.append(metric.wraps_at_bits == 32 and not metric.saturates)  # noqa: PLR2004 - narrower than 64 bits
                max_rates.append(metric.max_per_second / scale)
            # The verdict has no roll-up, but the list of GPUs reads it by rail as metrics that have one.
            is_by_rail = (metric and metric.rollups) or metric is GPU_HEALTH
            if metric and is_by_rail and slot.kind == metric.about.name:
                rail = shape_columns.rail_of(shape, slot)
                cells.append((len(metrics), slot.part, rail, column))
        if metric:
            metrics.append(metric)
    starts: list[int] = []
    cell_rails: list[int] = []
    keys: list[CellKey] = []
    key_starts: list[int] = []
    previous: tuple[int, KeyPart, int] | None = None
    cells.sort()
    for position, (number, part, rail, _) in enumerate(cells):
        if previous is None or previous[:2] != (number, part):
            keys.append((metrics[number], part))
            key_starts.append(len(starts))
        if previous != (number, part, rail):
            starts.append(position)
            cell_rails.append(rail)
        previous = (number, part, rail)
    rate_metrics = shape_columns.rate_columns(shape)
    positions = {column: number for number, column in enumerate(rate_metrics)}
    windowed = {
        positions[column]: metric
        for column, metric in rate_metrics.items()
        if rollup.is_of_last_minute(metric)
    }
    health = [
        each for each, group, _ in shape_columns.slots_of(shape) if group.metric == GPU_HEALTH.name
    ]
    viewed.update(rate_metrics, health, (column for *_, column in cells))
    is_viewed = np.zeros(column + 1, np.bool_)
    is_viewed[list(viewed)] = True
    rated = [(n, positions[column]) for n, (*_, column) in enumerate(cells) if column in positions]
    return SchemaLayout(
        digest,
        shape.stream,
        column + 1,
        np.array(counters, np.intp),
        np.array(list(rate_metrics)[len(counters) :], np.intp),
        np.array(list(rate_metrics), np.intp),
        np.array(list(windowed), np.intp),
        np.array([rollup.shows_largest(each) for each in windowed.values()], np.bool_),
        np.array(narrow, np.bool_),
        np.array(max_rates, np.float64),
        np.array([column for *_, column in cells], np.intp),
        np.array([position for position, _ in rated], np.intp),
        np.array([counter for _, counter in rated], np.intp),
        np.array(starts, np.intp),
        np.array(cell_rails, np.int64),
        tuple(keys),
        np.array(key_starts, np.intp),
        np.array(health, np.intp),
        np.flatnonzero(is_viewed),
        np.flatnonzero(~is_viewed),
        np.cumsum(is_viewed) - 1,
        *_gauge_limits(shape),
    )


def _gauge_limits(shape: Shape) -> npt.NDArray[np.int64]:
    """Return the columns of gauges whose quantity has limits, and the lowest and the highest value of each."""
    limits = [
        (column, metric.valid_steps[0], metric.valid_steps[-1])
        for column, group, _ in shape_columns.slots_of(shape)
        if (metric := catalog.METRICS.get(group.metric))
        and metric.has_limits
        and group.scale == metric.scale.as_integer_ratio()
    ]
    return np.array(limits, np.int64).reshape(-1, 3).T.copy()


@dataclass(frozen=True, slots=True, eq=False)
class ShapeGpu:
    """A GPU of a shape: number of its name, rail (its position in the node), and its columns."""

    name: int
    rail: int
    columns: Positions


@dataclass(slots=True, eq=False)
class KnownShape:
    """A shape, and everything that is determined from it alone."""

    digest: bytes
    shape: Shape
    size_bytes: int
    layout: SchemaLayout
    gpus: tuple[ShapeGpu, ...]
    metered: shape_columns.MeteredColumns
    devices: shape_columns.DeviceColumns
    source_states: Mapping[str, int]
    """The columns with the states of sources, if the agent reports them in it."""
    jobs: shape_columns.JobColumns | None
    key_lengths: tuple[int | None, ...]
    """Number of labels of each name; None for a kind that is not in the catalog."""
    reserved: frozenset[int]
    """Numbers of the names that may not be in use."""
    segment: int = 0
    """Last segment of the frame log with frames of it, and the same as of the stored row."""
    stored_segment: int = 0

    @property
    def uses_names(self) -> bool:
        """True if metering or the inventory read names of it."""
        has_devices = bool(self.gpus or self.metered.counters or self.devices.numbers)
        return has_devices or self.shape.stream == shape_columns.MIG_STREAM

    def check_names(self, lengths: bytes) -> None:
        """Raise WireError for names with these numbers of labels if they do not fit the shape."""
        subject = f"names of stream {self.shape.stream!r}"
        if len(lengths) != len(self.key_lengths):
            message = f"{subject}: {len(lengths)} rows: expected {len(self.key_lengths)}, as its shape has"
            raise WireError(message)
        for number, (found, length) in enumerate(zip(lengths, self.key_lengths, strict=True)):
            if found != length is not None and (found or number not in self.reserved):
                message = f"{subject}: name {number} with {found} labels: expected {length}"
                raise WireError(message)

    @classmethod
    def from_content(cls, content: bytes, limit: int) -> KnownShape:
        """Return a shape of at most some columns and slots. Raises WireError if it is invalid or contradicts the catalog."""
        shape = envelopes.decode_shape(content)
        for problem in _find_problems(shape, limit):
            raise WireError(problem)
        lengths = _key_lengths(shape)
        digest = content_hash(content)
        kinds = [(slot.name, catalog.KINDS.get(slot.kind)) for slot in shape.slots]
        return cls(
            digest,
            shape,
            len(content),
            make_layout(digest, shape),
            _shape_gpus(shape),
            shape_columns.find_metered_columns(shape),
            shape_columns.device_columns(shape),
            shape_columns.state_columns(shape),
            shape_columns.job_columns(shape),
            lengths,
            frozenset(number for number, kind in kinds if kind and kind.varies).difference(
                number for number, kind in kinds if not (kind and kind.varies)
            ),
        )


def _find_problems(shape: Shape, limit: int) -> Iterator[str]:
    stream, count = f"shape of stream {shape.stream!r}", len(shape.slots)
    columns = sum(len(group.entities) for group in shape.groups)
    if max(columns, count, len(shape.groups), len(shape.rails)) > limit:
        yield f"{stream}: expected at most {limit} columns and slots"
    if any(not NO_RAIL <= rail < 10**RAIL_DIGITS for rail in shape.rails):
        yield f"{stream}: invalid rail: expected at most {RAIL_DIGITS} digits"
    if any(not BUILD <= slot.name < len(shape.rails) for slot in shape.slots):
        yield f"{stream}: slot without a name"
    if len(shape_columns.gpu_slots(shape)) > MAX_GPUS:
        yield f"{stream}: expected at most {MAX_GPUS} GPUs"
    for group in shape.groups:
        metric = catalog.METRICS.get(group.metric)
        if group.entities and not 0 <= min(group.entities) <= max(group.entities) < count:
            yield f"{stream}: column without a slot"
        elif group.scale[1] <= 0:
            yield f"metric {group.metric}: invalid scale {group.scale}: expected positive integers"
        elif metric and metric.scale.as_integer_ratio() != tuple(group.scale):
            fix = "run the same version of agent and collector"
            yield f"metric {group.metric}: the sender declares another scale; fix: {fix}"


def _key_lengths(shape: Shape) -> tuple[int | None, ...]:
    """Return the number of labels of each name. Raises WireError if slots contradict the catalog, or each other."""
    lengths: list[int | None] = [None] * len(shape.rails)
    for slot in shape.slots:
        kind = catalog.KINDS.get(slot.kind)
        if kind is None:
            continue
        length = len(kind.labels) - len(slot.part)
        if length < 0 or (length and slot.name == BUILD):
            labels = ", ".join(kind.labels)
            message = f"shape of stream {shape.stream!r}: slot {slot.kind}: expected {labels}"
            raise WireError(message)
        if slot.name != BUILD:
            if lengths[slot.name] not in (None, length):
                message = f"shape of stream {shape.stream!r}: name {slot.name} has two lengths"
                raise WireError(message)
            lengths[slot.name] = length
    return tuple(lengths)


def _shape_gpus(shape: Shape) -> tuple[ShapeGpu, ...]:
    if shape.stream != GPU_STREAM:
        return ()
    columns: dict[int, list[int]] = {slot.name: [] for slot in shape_columns.gpu_slots(shape)}
    for column, _, slot in shape_columns.slots_of(shape):
        if slot.kind == shape_columns.GPU and slot.name in columns:
            columns[slot.name].append(column)
    return tuple(
        ShapeGpu(name, shape.rails[name], np.array(positions, np.intp))
        for name, positions in columns.items()
    )
