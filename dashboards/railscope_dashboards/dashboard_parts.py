"""Common parts of all dashboards: data source, variables, links with time and variables, annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from railscope_dashboards import COLUMNS, CONSOLE_URL
from railscope_dashboards.panels import DATASOURCE, Panel
from railscope_dashboards.promql import CLUSTER, in_cluster, problems
from railscope_dashboards.query import INCIDENT_TITLES

TAG = "railscope"

Section = tuple[str, Callable[[], Iterable[Panel]]]


@dataclass(frozen=True, slots=True)
class DashboardVariable:
    """A variable: the values of a label of a metric, of which one or several are selected.

    `selector` names the metric and restricts it by the variables before.
    """

    name: str
    label: str
    selector: str
    allows_several: bool = False

    def build(self) -> build.QueryVariable:
        """Build Grafana's variable."""
        if faults := problems(self.selector):
            message = f"invalid variable {self.name}: {'; '.join(faults)}"
            raise ValueError(message)
        variable = (
            build.QueryVariable(self.name)
            .label(self.label)
            .datasource(DATASOURCE)
            .query(f"label_values({in_cluster(self.selector)}, {self.name})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.NATURAL_ASC)
            .multi(self.allows_several)
            .include_all(self.allows_several)
        )
        if self.allows_several:
            variable = variable.all_value(".*")
        return variable


@dataclass(frozen=True, slots=True)
class DashboardAnnotation(Builder[AnnotationQuery]):
    """Annotations at the timestamps of a query with a value; `text` may name labels in double braces."""

    name: str
    expression: str
    text: str
    colour: str
    labels: tuple[str, ...]

    def build(self) -> AnnotationQuery:
        """Build Grafana's annotation query."""
        if faults := problems(self.expression):
            message = f"invalid marks {self.name}: {'; '.join(faults)}"
            raise ValueError(message)
        return _PrometheusAnnotation(self)


class _PrometheusAnnotation(AnnotationQuery):
    """An annotation query with the fields that Grafana's Prometheus data source adds.

    grafana: packages/grafana-prometheus/src/types.ts, PromQuery of annotations.
    """

    def __init__(self, marks: DashboardAnnotation) -> None:
        super().__init__(
            name=marks.name,
            datasource=DATASOURCE,
            icon_color=marks.colour,
            expr=in_cluster(marks.expression),
        )
        self._more = {
            "titleFormat": marks.name,
            "textFormat": marks.text,
            "tagKeys": ",".join(marks.labels),
        }

    def to_json(self) -> dict[str, object]:
        """Return the JSON that Grafana reads."""
        return super().to_json() | self._more


def xid_marks(selector: str = "") -> DashboardAnnotation:
    """Annotations at errors reported by a driver."""
    found = f"sum by (node) (increase(railscope_kernel_xids_total{selector}[$__rate_interval])) > 0"
    return DashboardAnnotation("Xid", found, "GPU driver error on {{node}}", "red", ("node",))


def claim_marks(selector: str = "") -> DashboardAnnotation:
    """Annotations at changes of the holders of GPUs."""
    found = f"sum by (node) (changes(railscope_gpu_claims{selector}[$__rate_interval])) > 0"
    return DashboardAnnotation(
        "Claims", found, "holders of GPUs on {{node}} changed", "blue", ("node",)
    )


def incident_marks() -> DashboardAnnotation:
    """Annotations from the opening of an incident to its end, without those of severity info."""
    onset = 'railscope_incident_onset_timestamp_seconds{severity!="info"}'
    titled = f"{onset} * on (incident) group_left (title) {INCIDENT_TITLES}"
    shown = f"min by (title, class, severity, node) ({titled})"
    return DashboardAnnotation(
        "Incidents", shown, "{{title}} ({{severity}})", "purple", ("class", "node")
    )


def loss_marks(selector: str) -> DashboardAnnotation:
    """Annotations while jobs of a tenant lose time to incidents; they name no node, which may be used by others too."""
    lost = f"railscope_tenant_incident_lost_gpu_seconds_total{selector}"
    found = f"sum by (class) (increase({lost}[$__rate_interval])) > 0"
    return DashboardAnnotation(
        "Incidents", found, "{{class}}: jobs of this tenant are slower", "purple", ("class",)
    )


def settings_marks(selector: str = "") -> DashboardAnnotation:
    """Annotations at changes of NIC settings: old and new settings coexist for a while."""
    settings = f"last_over_time(railscope_nic_settings_info{selector}[$__rate_interval])"
    changed = f"count by (node, interface) ({settings}) > 1"
    text = "settings of {{interface}} on {{node}} changed"
    return DashboardAnnotation(
        "Configuration changes", changed, text, "orange", ("node", "interface")
    )


def assemble(  # noqa: PLR0913 - the differences between dashboards
    title: str,
    uid: str,
    question: str,
    sections: Sequence[Section],
    *,
    console: str,
    choices: Sequence[DashboardVariable] = (),
    marks: Sequence[DashboardAnnotation] = (),
    tags: Sequence[str] = (),
    shared: bool = False,
) -> Dashboard:
    """Build a dashboard: one row for each section, titled with a question.

    All rows but the first are folded: Grafana queries their panels when a reader unfolds them. The first section is
    titled with the question of the dashboard. `console` is the path of its page of the web console. A `shared`
    dashboard has no links to dashboards that are not shared, and no annotations that name the nodes of incidents.
    """
    dashboard = (
        build.Dashboard(title)
        .uid(uid)
        .description(question)
        .tags([TAG, *tags])
        .timezone("browser")
        .time("now-6h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
        .annotations([*marks] if shared else [*marks, incident_marks()])
        .with_variable(
            build.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )
    # A tenant's own Prometheus has the metrics of tenants only.
    holder = "railscope_tenant_held_gpus" if shared else "railscope_cluster_nodes"
    dashboard = dashboard.with_variable(_cluster_variable(holder))
    for choice in choices:
        dashboard = dashboard.with_variable(choice.build())
    if not shared:
        dashboard = dashboard.link(_other_dashboards())
    dashboard = dashboard.link(_console_page(console))
    for number, (row, panels) in enumerate(sections, 1):
        header = build.Row(row or question).id(number * 100)
        made = list(_of_equal_height(panels()))
        if number == 1:
            dashboard = dashboard.with_row(header)
            for panel in made:
                dashboard = dashboard.with_panel(panel)
        else:
            for panel in made:
                header = header.with_panel(panel)
            dashboard = dashboard.with_row(header)
    return dashboard.build()


def _cluster_variable(holder: str) -> build.QueryVariable:
    """Build the choice of a cluster, by the label of a metric. All are selected at first: series without the label too."""
    return (
        build.QueryVariable(CLUSTER)
        .label("Cluster")
        .datasource(DATASOURCE)
        .query(f"label_values({holder}, {CLUSTER})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
        .include_all(include_all=True)
        .all_value(".*")
        .current(VariableOption(text="All", value="$__all", selected=True))
    )


def _of_equal_height(panels: Iterable[Panel]) -> Iterator[Panel]:
    """Yield panels; those of one line end at the same height."""
    for line in _side_by_side(panels):
        height = max(_size(panel)[1] for panel in line)
        yield from (panel.height(height) for panel in line)


def _side_by_side(panels: Iterable[Panel]) -> Iterator[list[Panel]]:
    """Yield the panels of each line."""
    line: list[Panel] = []
    used = 0
    for panel in panels:
        width, _ = _size(panel)
        if used + width > COLUMNS:
            yield line
            line, used = [], 0
        line.append(panel)
        used += width
    if line:
        yield line


def _size(panel: Panel) -> tuple[int, int]:
    place = panel.build().grid_pos
    return (place.w, place.h) if place else (0, 0)


def _other_dashboards() -> build.DashboardLink:
    link = build.DashboardLink("Railscope").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return (
        link.as_dropdown(as_dropdown=True)
        .include_vars(include_vars=True)
        .keep_time(keep_time=True)
        .icon("external link")
    )


def _console_page(path: str) -> build.DashboardLink:
    about = f"Web console of the collector at {CONSOLE_URL}; docs/dashboards.md documents how to set this address"
    link = build.DashboardLink("Console").type(DashboardLinkType.LINK).url(CONSOLE_URL + path)
    return link.tooltip(about).icon("external link")
