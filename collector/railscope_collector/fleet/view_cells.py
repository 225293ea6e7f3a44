"""Cells and tables of views."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from railscope import api
from railscope.catalog.declare import Metric, MetricKind


def label_names(metric: Metric) -> tuple[str, ...]:
    """Return the labels of a metric's samples: those of its entity, and for an info metric its facts."""
    about = metric.about
    return (*about.labels, *about.facts) if metric.kind is MetricKind.INFO else about.labels


class ViewCell(NamedTuple):
    """One value of a view: a declared (or derived) metric, its labels, and the number.

    The number is in base units; it is a float because exact integers end at the views.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float

    def to_value(self) -> api.MetricValue:
        """Return the cell as a value of the API."""
        labels = dict(zip(label_names(self.metric), self.labels, strict=True))
        return api.MetricValue(self.metric.name, labels, self.value)


@dataclass(frozen=True, slots=True)
class View:
    """A named table of cells, as of a timestamp on the collector's clock."""

    name: str
    timestamp_ns: int
    cells: tuple[ViewCell, ...] = field(default=())

    def rows(self) -> tuple[api.MetricValue, ...]:
        """Return the cells as values of the API."""
        return tuple(cell.to_value() for cell in self.cells)
