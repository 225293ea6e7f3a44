"""Queries and panels made from catalog metrics.

A query takes its unit and its explanation from the metric's declaration, a panel takes both from
its queries. Panel numbers are given by hand: alerts link to panels by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from grafana_foundation_sdk.builders import common as look
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
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
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from railscope.catalog import Kind, Metric, Rollup, Unit, rollups
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
    Unit.VOLTS: "volt",
    Unit.AMPERES: "amp",
    Unit.REVOLUTIONS_PER_MINUTE: "rotrpm",
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

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
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
        """Name the query, to tell it apart from others in a panel."""
        return replace(self, legend=", ".join(filter(None, (name, self.legend))))

    def in_unit(self, unit: str) -> Query:
        """Show the query in another unit, where readers do not think in the declared one."""
        return replace(self, unit=unit)


def now(metric: Metric, how: Rollup, *by: str, where: str = "") -> Query:
    """Aggregate the present value of a gauge."""
    expression = _aggregated(how, by, f"{metric.name}{where}")
    return Query(expression, unit_of(metric), _legend(by), (metric,))


def per_second(counter: Metric, *by: str, where: str = "") -> Query:
    """Sum the rate of a counter."""
    expression = _aggregated(Rollup.SUM, by, f"rate({counter.name}{where}[$__rate_interval])")
    return Query(expression, rate_unit_of(counter), _legend(by), (counter,))


def slope(gauge: Metric, *by: str) -> Query:
    """Sum how fast a gauge grows per second, where what it tells may also be corrected downwards."""
    expression = _aggregated(Rollup.SUM, by, f"deriv({gauge.name}[$__rate_interval])")
    return Query(expression, rate_unit_of(gauge), _legend(by), (gauge,))


def over(scope: str, metric: Metric, how: Rollup, *by: str, where: str = "") -> Query:
    """Take a roll-up that the collectors expose: of each rail, each tenant or the cluster.

    Several collectors may each hold a share of the nodes, so their roll-ups are rolled up again.
    """
    derived = rollups()[derived_name(metric, scope, how)].metric
    return now(derived, how, *(() if scope == "cluster" else (scope,)), *by, where=where)


def unit_of(metric: Metric) -> str:
    """Translate the unit of a metric's value into Grafana's."""
    derived = rollups().get(metric.name)
    if derived and derived.source.kind is Kind.COUNTER:
        return rate_unit_of(derived.source)
    return UNITS.get(metric.unit, COUNT)


def rate_unit_of(metric: Metric) -> str:
    """Translate the unit of a metric's change per second into Grafana's."""
    return RATE_UNITS.get(metric.unit, EVENTS_PER_SECOND)


def number(ident: int, title: str, about: str, query: Query, steps: Steps = GOOD) -> stat.Panel:
    """Show one number as it is now, never an old one, coloured by the step it has reached."""
    last = look.ReduceDataOptions().calcs(["lastNotNull"])
    panel = stat.Panel().reduce_options(last).graph_mode(BigValueGraphMode.NONE).no_value("no data")
    panel = _finished(panel, _instant, ident=ident, title=title, about=about, queries=[query])
    return panel.thresholds(_thresholds(steps)).span(3).height(4)


def lines(
    ident: int, title: str, about: str, *queries: Query, steps: Steps = GOOD, span: int = 8
) -> timeseries.Panel:
    """Draw curves over time; gaps stay gaps, and steps are lines to compare with."""
    legend = look.VizLegendOptions().show_legend(show_legend=True)
    tooltip = look.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    panel = timeseries.Panel().min(0).fill_opacity(8).legend(legend).tooltip(tooltip)
    if len(steps) > 1:
        style = look.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(_thresholds(steps)).thresholds_style(style)
    panel = _finished(panel, _curve, ident=ident, title=title, about=about, queries=queries)
    return panel.span(span).height(8)


def layers(ident: int, title: str, about: str, *queries: Query, span: int = 8) -> timeseries.Panel:
    """Stack the parts of a whole over time."""
    stacked = look.StackingConfig().mode(StackingMode.NORMAL)
    return lines(ident, title, about, *queries, span=span).stacking(stacked).fill_opacity(30)


def bars(ident: int, title: str, about: str, *queries: Query, span: int = 8) -> timeseries.Panel:
    """Draw what happens now and then."""
    return lines(ident, title, about, *queries, span=span).draw_style(GraphDrawStyle.BARS)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, what fills it, its colours, and words for its values."""

    title: str
    query: Query
    steps: Steps = GOOD
    words: Mapping[int, str] = field(default_factory=dict)


def rows(
    ident: int, title: str, about: str, keys: Mapping[str, str], *columns: Column, span: int = 12
) -> table.Panel:
    """List things as they are now, with a row for each combination of the key labels.

    `keys` gives each key label its title.
    """
    names = dict(keys)
    # Grafana calls the values of a query that answers alone "Value", else "Value #A" and so on.
    names |= {"Value": columns[0].title}
    names |= {
        f"Value #{letter}": column.title for letter, column in zip(_LETTERS, columns, strict=False)
    }
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {name: position for position, name in enumerate(names)},
        "renameByName": names,
    }
    panel = (
        table.Panel()
        .with_transformation(DataTransformerConfig("merge", options={}))
        .with_transformation(DataTransformerConfig("organize", options=organize))
    )
    for column in columns:
        panel = panel.override_by_name(column.title, _cell(column))
    queries = [column.query for column in columns]
    panel = _finished(
        panel, _rows, ident=ident, title=title, about=about, queries=queries, unit=COUNT
    )
    return panel.span(span).height(8)


def _aggregated(how: Rollup, by: tuple[str, ...], inner: str) -> str:
    grouping = f" by ({', '.join(by)}) " if by else ""
    return f"{_AGGREGATION[how]}{grouping}({inner})"


def _legend(by: tuple[str, ...]) -> str:
    return ", ".join(f"{label} {{{{{label}}}}}" for label in by)


def _finished(  # noqa: PLR0913 - what all panels have in common
    panel: _Builder,
    target: Callable[[str, Query], prometheus.Dataquery],
    *,
    ident: int,
    title: str,
    about: str,
    queries: Sequence[Query],
    unit: str = "",
) -> _Builder:
    units = {unit} if unit else {query.unit for query in queries}
    if len(units) != 1:
        message = f"panel {title}: the queries have different units: {', '.join(sorted(units))}"
        raise ValueError(message)
    panel = panel.id(ident).title(title).description(_description(about, queries))
    panel = panel.datasource(DATASOURCE).unit(units.pop())
    for letter, query in zip(_LETTERS, queries, strict=False):
        panel = panel.with_target(target(letter, query))
    return panel


def _curve(letter: str, query: Query) -> prometheus.Dataquery:
    return _target(letter, query).range().legend_format(query.legend or "__auto")


def _instant(letter: str, query: Query) -> prometheus.Dataquery:
    return _target(letter, query).instant()


def _rows(letter: str, query: Query) -> prometheus.Dataquery:
    return _target(letter, query).instant().format(PromQueryFormat.TABLE)


def _target(letter: str, query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(letter).expr(query.expression).datasource(DATASOURCE)


def _description(about: str, queries: Iterable[Query]) -> str:
    metrics = dict.fromkeys(metric for query in queries for metric in query.metrics)
    return "\n\n".join((about, *map(_explanation, metrics)))


def _explanation(metric: Metric) -> str:
    derived = rollups().get(metric.name)
    meaning = f"{metric.help} {derived.source.help}" if derived else metric.help
    return f"`{metric.name}`: {meaning}"


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    found = [Threshold(value, colour) for value, colour in steps]
    return build.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found)


def _cell(column: Column) -> list[DynamicConfigValue]:
    cell = [DynamicConfigValue("unit", column.query.unit)]
    if len(column.steps) > 1:
        cell.append(DynamicConfigValue("thresholds", _thresholds(column.steps).build()))
        cell.append(DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    if column.words:
        texts = {str(value): ValueMappingResult(word) for value, word in column.words.items()}
        cell.append(DynamicConfigValue("mappings", [ValueMap(texts)]))
    return cell
