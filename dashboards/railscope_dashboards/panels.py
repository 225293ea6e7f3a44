"""Panels: the appearance of each kind, their common properties, and the colours of numbers and states.

Panel ids are set by hand: alerts link to panels by id. Thresholds are the numbers at which a value
changes its colour; states have texts and colours.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from grafana_foundation_sdk.builders import (
    common,
    dashboard as build,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
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

from railscope.catalog import Metric, rollups
from railscope.catalog.declare import BASIC
from railscope_dashboards import COLUMNS, CONSOLE_URL
from railscope_dashboards.promql import detail_of, recorded_in
from railscope_dashboards.query import (
    COUNT,
    SHARE,
    Query,
    joins_for,
    with_device_names,
    with_device_titles,
)

BY_TITLE = 0
"""Replacement of a panel id: the generator derives one from the title. Others are fixed."""
_FIRST_DERIVED = 100_000
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Every panel reads the data source that the dashboard's variable selects."""

_AXIS_WIDTH = 80
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

MAX_POINTS = 360
"""Points of a curve: one per minute over six hours. The memory of a query grows with them."""

Step = tuple[float | None, str]
Steps = tuple[Step, ...]
GOOD: Steps = ((None, "green"),)

Panel = stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel
_Builder = TypeVar("_Builder", stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)

Worst = Literal["highest", "lowest"]
WORST = "Worst"
"""Title of the column of a grid by which its rows are sorted."""

DETAILS = {"node": "railscope-node", "tenant": "railscope-tenant", "switch": "railscope-switches"}
"""Labels with a detail dashboard for each value: a table cell links to it. That of a rail links to the console."""


def number(ident: int, title: str, about: str, query: Query, steps: Steps = GOOD) -> stat.Panel:
    """Show the current value of one number, never an old one, coloured by the threshold it has reached."""
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    panel = stat.Panel().reduce_options(last).graph_mode(BigValueGraphMode.NONE).no_value("no data")
    panel = _finish(
        panel,
        lambda *of: _target(*of).instant(),
        ident=ident,
        title=title,
        about=about,
        queries=[query],
    )
    return panel.thresholds(_thresholds(steps)).span(3).height(4)


def lines(
    ident: int, title: str, about: str, *queries: Query, steps: Steps = GOOD, span: int = 8
) -> timeseries.Panel:
    """Draw curves over time; gaps stay gaps, and thresholds are lines to compare with."""
    legend = common.VizLegendOptions().show_legend(show_legend=True)
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    panel = timeseries.Panel().min(0).fill_opacity(8).legend(legend).tooltip(tooltip)
    panel = panel.max_data_points(MAX_POINTS)
    if span == COLUMNS:  # panels below each other share one time axis
        panel = panel.axis_width(_AXIS_WIDTH)
    if len(queries) == 1 and not queries[0].legend:  # Grafana would write out the expression
        queries = (queries[0].with_name(title),)
    if len(steps) > 1:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(_thresholds(steps)).thresholds_style(style)
    panel = _finish(panel, _curve, ident=ident, title=title, about=about, queries=queries)
    return panel.span(span).height(8)


def layers(ident: int, title: str, about: str, *queries: Query, span: int = 8) -> timeseries.Panel:
    """Stack the parts of a whole over time."""
    stacked = common.StackingConfig().mode(StackingMode.NORMAL)
    return lines(ident, title, about, *queries, span=span).stacking(stacked).fill_opacity(30)


def in_colours(panel: timeseries.Panel, colours: Mapping[str, str]) -> timeseries.Panel:
    """Assign curves meaningful colours, by their names in the legend."""
    for name, colour in colours.items():
        fixed = DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
        panel = panel.override_by_name(name, [fixed])
    return panel


def bars(ident: int, title: str, about: str, *queries: Query, span: int = 8) -> timeseries.Panel:
    """Draw occasional events as bars."""
    return lines(ident, title, about, *queries, span=span).draw_style(GraphDrawStyle.BARS)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, its query, its colours, and texts for its values."""

    title: str
    query: Query
    steps: Steps = GOOD
    texts: Mapping[int, str] = field(default_factory=dict)
    worst: Worst | None = None
    """The worst value of the column, for columns by which the table is sorted."""


def rows(  # noqa: PLR0913 - the differences between tables
    ident: int,
    title: str,
    about: str,
    keys: Mapping[str, str],
    *columns: Column,
    span: int = 12,
    leads_on: bool = True,
) -> table.Panel:
    """List current values, with a row for each combination of the key labels.

    `keys` maps each key label to its title. The worst rows come first: rows are sorted by the
    columns that have a worst value, in their order. Equal rows are in the order of the keys, unless
    a query selects the first or last in its own order. Nodes and tenants link to their dashboards, rails to the console,
    unless the reader has no access to other dashboards; rows of GPUs and NICs then show all names.

    Raises ValueError if no column has a worst value.
    """
    worst = [(column.title, column.worst) for column in columns if column.worst]
    if not worst:
        message = (
            f"invalid table {title}: no column to sort by: expected a column with a worst value"
        )
        raise ValueError(message)
    if leads_on and (ways := joins_for(keys)):
        keys = with_device_titles(keys, *ways)
        columns = tuple(
            replace(column, query=with_device_names(column.query, *ways)) for column in columns
        )
    names = dict(keys)
    # Grafana names the values of a single query "Value", else "Value #A" and so on.
    names |= {"Value": columns[0].title}
    names |= {
        f"Value #{letter}": column.title for letter, column in zip(_LETTERS, columns, strict=False)
    }
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {name: position for position, name in enumerate(names)},
        "renameByName": names,
    }
    panel = table.Panel().sort_by([_sorted_by(name, end) for name, end in worst])
    panel = panel.with_transformation(DataTransformerConfig("merge", options={}))
    picked = any(re.search(r"\b(top|bottom)k\(", column.query.expression) for column in columns)
    for key in [] if picked else reversed(list(keys)):
        panel = panel.with_transformation(_in_order_of(key))
    panel = panel.with_transformation(DataTransformerConfig("organize", options=organize))
    for column in columns:
        panel = panel.override_by_name(column.title, _cell(column))
    for label in [label for label in (*DETAILS, "rail") if label in keys and leads_on]:
        panel = panel.override_by_name(keys[label], [_link_of(label)])
    queries = [column.query for column in columns]
    panel = _finish(
        panel, _rows, ident=ident, title=title, about=about, queries=queries, unit=COUNT
    )
    return panel.span(span).height(8)


def grid(  # noqa: PLR0913, PLR0917 - the differences between grids
    ident: int,
    title: str,
    about: str,
    column: str,
    query: Query,
    steps: Steps = GOOD,
    span: int = 12,
    texts: Mapping[int, tuple[str, str]] | None = None,
    worst: Worst = "highest",
) -> table.Panel:
    """Show one current value of each node for each value of a label: nodes by columns, in colours.

    `texts` maps values to texts and colours. A last column repeats the worst value of each row;
    rows with the worst come first.
    """
    options = {
        "rowField": "node",
        "columnField": column,
        "valueField": "Value",
        "emptyValue": "null",
    }
    coloured = [
        DynamicConfigValue("thresholds", _thresholds(steps).build()),
        DynamicConfigValue("custom.cellOptions", {"type": "color-background"}),
    ]
    if texts:
        coloured.append(DynamicConfigValue("mappings", [_text_map(texts)]))
    panel = (
        table.Panel()
        .with_transformation(_in_order_of("node"))
        .with_transformation(_in_order_of(column))
        .with_transformation(DataTransformerConfig("groupingToMatrix", options=options))
        .with_transformation(_worst_of_row(worst))
        .sort_by([_sorted_by(WORST, worst)])
        .override_by_field_type("number", coloured)
    )
    if query.unit == SHARE:
        panel = panel.decimals(1)
    panel = panel.override_by_name(f"node\\{column}", [_link_of("node")])
    panel = _finish(panel, _rows, ident=ident, title=title, about=about, queries=[query])
    return panel.span(span).height(9)


def states(  # noqa: PLR0913, PLR0917 - the differences between panels
    ident: int,
    title: str,
    about: str,
    query: Query,
    texts: Mapping[int, tuple[str, str]],
    span: int = 24,
) -> statetimeline.Panel:
    """Draw states over time, a band for each curve; `texts` maps a value to its text and colour."""
    panel = statetimeline.Panel().mappings([_text_map(texts)]).row_height(0.9)
    panel = panel.max_data_points(MAX_POINTS)
    panel = _finish(panel, _curve, ident=ident, title=title, about=about, queries=[query])
    return panel.span(span).height(10)


def _finish(  # noqa: PLR0913 - common properties of all panels
    panel: _Builder,
    target: Callable[[str, Query], prometheus.Dataquery],
    *,
    ident: int,
    title: str,
    about: str,
    queries: Sequence[Query],
    unit: str = "",
) -> _Builder:
    units = {unit} if unit else {query.shown.unit for query in queries}
    if len(units) != 1:
        message = (
            f"invalid panel {title}: expected one unit of all queries: {', '.join(sorted(units))}"
        )
        raise ValueError(message)
    panel = (
        panel.id(_derived_number(title) if ident == BY_TITLE else ident)
        .title(title)
        .description(_description(about, queries))
    )
    panel = panel.datasource(DATASOURCE).unit(units.pop())
    for letter, query in zip(_LETTERS, queries, strict=False):
        panel = panel.with_target(target(letter, query))
    return panel


def _derived_number(title: str) -> int:
    """Panel id by its title: it stays when panels are added and removed around it."""
    return _FIRST_DERIVED + zlib.crc32(title.encode()) % _FIRST_DERIVED


def _curve(letter: str, query: Query) -> prometheus.Dataquery:
    return _target(letter, query).range().legend_format(query.legend or "__auto")


def _rows(letter: str, query: Query) -> prometheus.Dataquery:
    return _target(letter, query).instant().format(PromQueryFormat.TABLE)


def _target(letter: str, query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(letter).expr(query.shown.expression).datasource(DATASOURCE)


def _description(about: str, queries: Iterable[Query]) -> str:
    metrics = dict.fromkeys(metric for query in queries for metric in query.metrics)
    return "\n\n".join(
        (about, *map(_explanation, metrics), *_recording(queries), *_needed_detail(queries))
    )


def _recording(queries: Iterable[Query]) -> Iterator[str]:
    """Yield a note for each recorded series of the queries, which needs a recording rule."""
    for name in sorted(recorded_in(" ".join(query.expression for query in queries))):
        yield f"`{name}`: a rule of alerts/rules/recorded.yml, which Prometheus must be given."


def _needed_detail(queries: Iterable[Query]) -> Iterator[str]:
    """Yield a note if the queries need metrics that the metrics endpoint omits by default."""
    detail = detail_of(" ".join(query.expression for query in queries))
    if detail != BASIC:
        yield f'Requires `detail = "{detail}"` in the section `[metrics]` of the agents.'


def _explanation(metric: Metric) -> str:
    derived = rollups().get(metric.name)
    meaning = f"{metric.help} {derived.source.help}" if derived else metric.help
    return f"`{metric.name}`: {meaning}"


def _in_order_of(label: str) -> DataTransformerConfig:
    """Sort rows; equal rows keep their order (grafana: transformers/sortBy.ts)."""
    return DataTransformerConfig("sortBy", options={"sort": [{"field": label}]})


def _sorted_by(title: str, worst: Worst) -> common.TableSortByFieldState:
    return common.TableSortByFieldState().display_name(title).desc(worst == "highest")


def _worst_of_row(worst: Worst) -> DataTransformerConfig:
    """Add a column with the worst number of each row (grafana: transformers/calculateField.ts)."""
    options = {
        "mode": "reduceRow",
        "reduce": {"reducer": "max" if worst == "highest" else "min"},
        "alias": WORST,
        "replaceFields": False,
    }
    return DataTransformerConfig("calculateField", options=options)


def _text_map(texts: Mapping[int, tuple[str, str]]) -> ValueMap:
    results = {
        str(value): ValueMappingResult(text=text, color=colour, index=position)
        for position, (value, (text, colour)) in enumerate(texts.items())
    }
    return ValueMap(results)


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    thresholds = [Threshold(value, colour) for value, colour in steps]
    return build.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(thresholds)


def _cell(column: Column) -> list[DynamicConfigValue]:
    cell = [DynamicConfigValue("unit", column.query.shown.unit)]
    if len(column.steps) > 1:
        cell.append(DynamicConfigValue("thresholds", _thresholds(column.steps).build()))
        cell.append(DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    if column.texts:
        texts = {str(value): ValueMappingResult(text) for value, text in column.texts.items()}
        cell.append(DynamicConfigValue("mappings", [ValueMap(texts)]))
    return cell


def _link_of(label: str) -> DynamicConfigValue:
    """Link of a cell: its dashboard with the same data source, cluster and time range, or its page of the console."""
    value, times = "${__value.raw:percentencode}", "${__url_time_range}"
    if label in DETAILS:
        url = f"/d/{DETAILS[label]}?var-{label}={value}&${{datasource:queryparam}}&${{cluster:queryparam}}&{times}"
    else:
        url = f"{CONSOLE_URL}/{label}s/{value}"
    return DynamicConfigValue("links", [{"title": f"Open this {label}", "url": url}])


NONE_IS_GOOD: Steps = ((None, "green"), (1, "red"))
ANY_IS_BAD: Steps = ((None, "green"), (1e-9, "red"))
ALL_IS_GOOD: Steps = ((None, "red"), (1, "green"))
PAUSE: Steps = ((None, "green"), (0.05, "orange"), (0.5, "red"))
STALL: Steps = ((None, "green"), (0.3, "orange"))
HOT: Steps = ((None, "green"), (80, "orange"), (90, "red"))
OLD: Steps = ((None, "green"), (60, "orange"), (300, "red"))
BELOW_OTHERS: Steps = ((None, "red"), (-0.2, "orange"), (-0.05, "green"), (0.2, "orange"))
BEHIND_OTHERS: Steps = ((None, "green"), (0.05, "orange"), (0.2, "red"))
FULL: Steps = ((None, "green"), (0.8, "orange"), (1, "red"))

HEALTH: Mapping[int, tuple[str, str]] = {
    0: ("healthy", "green"),
    1: ("degraded", "orange"),
    2: ("unknown", "purple"),
    3: ("failed", "red"),
}
"""Text and colour of each health state of a GPU by number; unknown is worse than degraded."""

COUNTED_AS: Mapping[str, str] = {
    "observed": "green",
    "inferred": "light-green",
    "idle": "blue",
    "reserved": "light-blue",
    "system": "dark-blue",
    "maintenance": "yellow",
    "stranded": "orange",
    "unclaimed": "red",
    "down": "dark-red",
    "unknown": "purple",
}
"""Colour of each state of GPU time: held is green, free or set aside is blue."""
