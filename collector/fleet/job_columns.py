"""Columns of a schema that are used for jobs, and the GPU or rail of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.catalog import KINDS, METRICS
from railscope.catalog.declare import Kind, Metric
from railscope.catalog.entities import GPU
from railscope.catalog.jobs import BY_JOB, STRAGGLER_MEASURES
from railscope.frame import NO_RAIL
from railscope.wire import WireSchema, part_of_key, rails_of_entities

Positions: TypeAlias = npt.NDArray[np.intp]
Key: TypeAlias = tuple[Metric, tuple[str, ...]]
"""A metric, and the part of the GPU or port that it describes: a clock, a priority."""

_COMPARED = frozenset((each.metric, each.part) for each in STRAGGLER_MEASURES.values())


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a column: a GPU by its UUID, or the GPU on a rail of the node."""

    gpu: str = ""
    rail: int = NO_RAIL


@dataclass(frozen=True, slots=True, eq=False)
class JobColumns:
    """The columns in order, each with its key and its owner; and the counters among them."""

    columns: Positions
    keys: tuple[Key, ...]
    owners: tuple[Owner, ...]
    owner_of: Positions
    counters: Positions
    """Indices of counters in `columns`; `rates` has their positions among all counters."""
    rates: Positions

    def seats(
        self, by_gpu: Mapping[str, int], by_rail: Mapping[int, int], nobody: int
    ) -> Positions:
        """Return for each column the seat of its owner."""
        found = [
            by_gpu.get(owner.gpu, nobody) if owner.gpu else by_rail.get(owner.rail, nobody)
            for owner in self.owners
        ]
        return np.array(found, np.intp)[self.owner_of]


def job_columns(wire: WireSchema) -> JobColumns | None:
    """Return the columns of a schema for jobs; None if there are none."""
    entity_rails = rails_of_entities(wire)
    owners: dict[Owner, int] = {}
    rows: list[tuple[int, Key, int, int]] = []
    column = counters = -1
    for group in wire.groups:
        metric = METRICS.get(group.metric)
        counts = metric is not None and metric.kind is Kind.COUNTER
        for member in group.entities:
            column += 1
            counters += counts
            entity = wire.entities[member]
            if metric is None or entity.kind != metric.about.name:
                continue
            key = metric, part_of_key(entity)
            if metric not in BY_JOB and key not in _COMPARED:
                continue
            is_gpu = KINDS[entity.kind].whole is GPU
            owner = Owner(gpu=entity.key[0]) if is_gpu else Owner(rail=entity_rails[member])
            if is_gpu or owner.rail != NO_RAIL:
                number = owners.setdefault(owner, len(owners))
                rows.append((column, key, number, counters if counts else -1))
    if not rows:
        return None
    columns, keys, owner_of, rates = zip(*rows, strict=True)
    places = np.array(rates, np.intp)
    return JobColumns(
        np.array(columns, np.intp), keys, tuple(owners), np.array(owner_of, np.intp),
        np.flatnonzero(places >= 0), places[places >= 0],
    )  # fmt: skip
