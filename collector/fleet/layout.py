"""Layouts: the shape that all nodes of one build share, prepared for vector operations.

A layout is a schema without the names of its entities. Its columns are divided into cells: all
columns of one metric, one part (a priority, a clock) and one rail (the rail of the GPU or NIC they
belong to). One pass of `reduceat` over the columns, ordered by cell, rolls up every metric of many
nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.catalog import KINDS, METRICS
from railscope.catalog.declare import Kind, Metric
from railscope.wire import WireError, WireSchema, part_of_key, rails_of_entities

MAX_GPUS = 256
GPU_KIND = "gpu"
Positions: TypeAlias = npt.NDArray[np.intp]
Part: TypeAlias = tuple[str, ...]
Key: TypeAlias = tuple[Metric, Part]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The shape of a schema.

    `order` lists the columns that roll up, cell by cell; `starts` the start of each cell in it;
    `keys` the metric and part of each run of cells, `key_starts` the start of each run among the
    cells; `cell_rails` the rail of each cell.
    """

    stream: str
    columns: int
    counters: Positions
    narrow: npt.NDArray[np.bool_]
    order: Positions
    starts: Positions
    cell_rails: npt.NDArray[np.int64]
    keys: tuple[Key, ...]
    key_starts: Positions
    is_rate: npt.NDArray[np.bool_]

    @property
    def rails(self) -> int:
        """Return the number of rails, not counting -1 (no rail)."""
        return int(self.cell_rails.max(initial=-1)) + 1


def check_schema(schema: WireSchema, most: int) -> None:
    """Reject a schema that exceeds its bounds or contradicts this version's catalog. Raises WireError."""
    columns = sum(len(group.entities) for group in schema.groups)
    if columns > most or len(schema.entities) > most or len(schema.groups) > most:
        message = f"schema of stream {schema.stream!r} has more than {most} columns or entities"
        raise WireError(message)
    if sum(entity.kind == GPU_KIND for entity in schema.entities) > MAX_GPUS:
        message = f"schema of stream {schema.stream!r} has more than {MAX_GPUS} GPUs"
        raise WireError(message)
    count = len(schema.entities)
    for group in schema.groups:
        if not all(0 <= member < count for member in group.entities):
            message = f"schema of stream {schema.stream!r}: a column of no entity"
            raise WireError(message)
        metric = METRICS.get(group.metric)
        if group.scale[1] <= 0:
            message = f"metric {group.metric}: a scale of {group.scale} is none"
            raise WireError(message)
        if metric and metric.scale.as_integer_ratio() != tuple(group.scale):
            message = (
                f"metric {group.metric} has another scale here than at the sender:"
                " agent and collector are of different versions"
            )
            raise WireError(message)
    for entity in schema.entities:
        kind = KINDS.get(entity.kind)
        if kind and len(entity.key) != len(kind.labels):
            message = f"schema of stream {schema.stream!r}: {entity.kind} needs {kind.labels}"
            raise WireError(message)


def make_layout(schema: WireSchema) -> Layout:
    """Return the layout of a schema. Metrics that are not in the catalog are stored, but not rolled up."""
    entity_rails = rails_of_entities(schema)
    cells: list[tuple[int, Part, int, int]] = []
    metrics: list[Metric] = []
    counters, narrow = [], []
    column = -1
    for group in schema.groups:
        metric = METRICS.get(group.metric)
        for member in group.entities:
            column += 1
            entity = schema.entities[member]
            if metric and metric.kind is Kind.COUNTER:
                counters.append(column)
                narrow.append(metric.wraps_at_bits == 32 and not metric.saturates)  # noqa: PLR2004 - narrower than 64 bits
            if metric and metric.rollups and entity.kind == metric.about.name:
                part = part_of_key(entity)
                cells.append((len(metrics), part, entity_rails[member], column))
        if metric:
            metrics.append(metric)
    return _assemble(schema.stream, column + 1, counters, narrow, sorted(cells), metrics)


def _assemble(  # noqa: PLR0913, PLR0917 - the pieces of one object
    stream: str,
    columns: int,
    counters: list[int],
    narrow: list[bool],
    cells: list[tuple[int, Part, int, int]],
    metrics: list[Metric],
) -> Layout:
    starts: list[int] = []
    cell_rails: list[int] = []
    keys: list[Key] = []
    key_starts: list[int] = []
    previous: tuple[int, Part, int] | None = None
    for position, (metric, part, rail, _) in enumerate(cells):
        if previous is None or previous[:2] != (metric, part):
            keys.append((metrics[metric], part))
            key_starts.append(len(starts))
        if previous != (metric, part, rail):
            starts.append(position)
            cell_rails.append(rail)
        previous = (metric, part, rail)
    return Layout(
        stream,
        columns,
        np.array(counters, np.intp),
        np.array(narrow, np.bool_),
        np.array([column for *_, column in cells], np.intp),
        np.array(starts, np.intp),
        np.array(cell_rails, np.int64),
        tuple(keys),
        np.array(key_starts, np.intp),
        np.array([metric.kind is Kind.COUNTER for metric, _ in keys], np.bool_),
    )
