"""Queries and panels made from catalog metrics.

A query takes its unit and its explanation from the metric's declaration, a panel takes both from
its queries. Panel numbers are given by hand: alerts link to panels by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from grafana_foundation_sdk.builders import common as look
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    GraphDrawStyle,
    GraphThresholdsStyleMode,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from railscope.catalog import ROLLUPS, Kind, Metric, Rollup, Unit
from railscope.catalog.rollup import derived_name

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Every panel reads the data source that the board's variable names."""

COUNT = "short"
UNITS: Mapping[Unit, str] = {
    Unit.BYTES: "bytes",
    Unit.BYTES_PER_SECOND: "Bps",
    Unit.SECONDS: "s",
    Unit.RATIO: "percentunit",
    Unit.WATTS: "watt",
    Unit.JOULES: "joule",
    Unit.CELSIUS: "celsius",
    Unit.HERTZ: "hertz",
}
RATE_UNITS: Mapping[Unit, str] = {
    Unit.BYTES: "Bps",
    Unit.SECONDS: "percentunit",
    Unit.JOULES: "watt",
    Unit.PACKETS: "pps",
}
EVENTS_PER_SECOND = "cps"

_AGGREGATION = {Rollup.SUM: "sum", Rollup.MEAN: "avg", Rollup.MAX: "max", Rollup.MIN: "min"}

Step = tuple[float | None, str]
Steps = tuple[Step, ...]
GOOD: Steps = ((None, "green"),)

Panel = stat.Panel | table.Panel | timeseries.Panel
_Builder = TypeVar("_Builder", stat.Panel, table.Panel, timeseries.Panel)


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, the Grafana unit of its result, its legend, and the metrics it is made of."""

    expression: str
    unit: str
    legend: str = ""
    metrics: tuple[Metric, ...] = ()

    def named(self, name: str) -> Query:
        """The same query as one of several in a panel, told apart by a name."""
        return replace(self, legend=", ".join(filter(None, (name, self.legend))))

    def in_unit(self, unit: str) -> Query:
        """The same query where the declared unit is not what a reader thinks in."""
        return replace(self, unit=unit)


def now(metric: Metric, how: Rollup, *by: str, where: str = "") -> Query:
    """The present value of a gauge, aggregated."""
    expression = _aggregated(how, by, f"{metric.name}{where}")
    return Query(expression, unit_of(metric), _legend(by), (metric,))


def per_second(counter: Metric, *by: str, where: str = "") -> Query:
    """The rate of a counter, summed."""
    expression = _aggregated(Rollup.SUM, by, f"rate({counter.name}{where}[$__rate_interval])")
    return Query(expression, rate_unit_of(counter), _legend(by), (counter,))


def over(scope: str, metric: Metric, how: Rollup, *by: str, where: str = "") -> Query:
    """A roll-up that the collectors expose: of one rail, one tenant or the cluster.

    Several collectors may each hold a share of the nodes, so their roll-ups are rolled up again.
    """
    derived = ROLLUPS[derived_name(metric, scope, how)].metric
    query = now(derived, how, *(() if scope == "cluster" else (scope,)), *by, where=where)
    return replace(query, metrics=(derived, metric))


def unit_of(metric: Metric) -> str:
    """The Grafana unit of a metric's value."""
    derived = ROLLUPS.get(metric.name)
    if derived and derived.source.kind is Kind.COUNTER:
        return rate_unit_of(derived.source)
    return UNITS.get(metric.unit, COUNT)


def rate_unit_of(counter: Metric) -> str:
    """The Grafana unit of a counter's rate."""
    return RATE_UNITS.get(counter.unit, EVENTS_PER_SECOND)


def number(ident: int, title: str, about: str, query: Query, steps: Steps = GOOD) -> stat.Panel:
    """One number, coloured by the step it has reached."""
    panel = stat.Panel().reduce_options(look.ReduceDataOptions().calcs(["lastNotNull"]))
    return _finished(panel, ident, title, about, [query]).thresholds(_thresholds(steps)).span(3).height(4)


def lines(
    ident: int, title: str, about: str, *queries: Query, steps: Steps = GOOD, span: int = 8
) -> timeseries.Panel:
    """Curves over time; gaps stay gaps, and steps are drawn as lines to compare with."""
    panel = (
        timeseries.Panel()
        .min(0)
        .fill_opacity(8)
        .tooltip(look.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if len(steps) > 1:
        style = look.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(_thresholds(steps)).thresholds_style(style)
    return _finished(panel, ident, title, about, queries).span(span).height(8)


def layers(ident: int, title: str, about: str, *queries: Query, span: int = 8) -> timeseries.Panel:
    """Parts of a whole over time, stacked."""
    stacked = look.StackingConfig().mode(StackingMode.NORMAL)
    return lines(ident, title, about, *queries, span=span).stacking(stacked).fill_opacity(30)


def bars(ident: int, title: str, about: str, *queries: Query, span: int = 8) -> timeseries.Panel:
    """Happenings over time: most of the time there are none."""
    return lines(ident, title, about, *queries, span=span).draw_style(GraphDrawStyle.BARS)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, what fills it, and from which value it is coloured."""

    title: str
    query: Query
    steps: Steps = GOOD


def rows(  # noqa: PLR0913 - what a table is made of
    ident: int, title: str, about: str, keys: tuple[str, ...], *columns: Column, span: int = 12
) -> table.Panel:
    """A table with a row for each combination of the key labels, as things are now."""
    queries = [column.query for column in columns]
    panel = _finished(table.Panel(), ident, title, about, queries, unit=COUNT, as_table=True)
    values = [f"Value #{letter}" for letter in _letters(len(columns))]
    if len(columns) == 1:
        values = ["Value"]
    titles = [key.replace("_", " ").capitalize() for key in keys] + [c.title for c in columns]
    panel = panel.with_transformation(DataTransformerConfig("merge", options={}))
    panel = panel.with_transformation(
        DataTransformerConfig(
            "organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": {name: index for index, name in enumerate((*keys, *values))},
                "renameByName": dict(zip((*keys, *values), titles, strict=True)),
            },
        )
    )
    for column in columns:
        panel = panel.override_by_name(column.title, _cell(column))
    return panel.span(span).height(9)


def _aggregated(how: Rollup, by: tuple[str, ...], inner: str) -> str:
    grouping = f" by ({', '.join(by)}) " if by else ""
    return f"{_AGGREGATION[how]}{grouping}({inner})"


def _legend(by: tuple[str, ...]) -> str:
    return ", ".join(f"{label} {{{{{label}}}}}" for label in by)


def _finished(  # noqa: PLR0913 - what all panels have in common
    panel: _Builder,
    ident: int,
    title: str,
    about: str,
    queries: Iterable[Query],
    *,
    unit: str = "",
    as_table: bool = False,
) -> _Builder:
    queries = list(queries)
    units = {unit} if unit else {query.unit for query in queries}
    if len(units) != 1:
        message = f"panel {title}: the queries have different units: {', '.join(sorted(units))}"
        raise ValueError(message)
    panel = panel.id(ident).title(title).description(_description(about, queries))
    panel = panel.datasource(DATASOURCE).unit(units.pop())
    for letter, query in zip(_letters(len(queries)), queries, strict=True):
        panel = panel.with_target(_target(letter, query, as_table=as_table))
    return panel


def _target(letter: str, query: Query, *, as_table: bool) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(letter).expr(query.expression).datasource(DATASOURCE)
    if as_table:
        return target.instant().format(PromQueryFormat.TABLE)
    return target.range().legend_format(query.legend or "__auto")


def _description(about: str, queries: Iterable[Query]) -> str:
    explained = {metric.name: metric.help for query in queries for metric in query.metrics}
    return "\n\n".join((about, *(f"`{name}`: {help_}" for name, help_ in explained.items())))


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    found = [Threshold(value, colour) for value, colour in steps]
    return build.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found)


def _cell(column: Column) -> list[DynamicConfigValue]:
    cell = [DynamicConfigValue("unit", column.query.unit)]
    if len(column.steps) > 1:
        cell.append(DynamicConfigValue("thresholds", _thresholds(column.steps).build()))
        cell.append(DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    return cell


def _letters(count: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count]
