"""The dashboards: generated, complete, and allowed by the schema of Grafana."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

from support.dashboards import DASHBOARDS, panels_of
from support.each import of_each
from support.grafana_schema import mistakes

from railscope_collector.access.credentials import ANYONE
from railscope_collector.console import page_table
from railscope_dashboards import CONSOLE_URL
from railscope_dashboards.promql import labels_in, problems

PARTS = dict.fromkeys(re.findall(r"{(\w+)}", " ".join(p.path for p in page_table.PAGES)), "x")
LABEL_VALUES = re.compile(r"label_values\((?P<selector>.*), (?P<label>\w+)\)")


EACH_DASHBOARD = of_each(DASHBOARDS.values(), lambda dashboard: str(dashboard["title"]))


def used_in(text: str) -> set[str]:
    """The variables of a dashboard that a text names; Grafana's own begin with two underscores."""
    return set(re.findall(r"\$((?!__)\w+)", text))


def test_uids_are_unique_and_stable():
    """Alerts and bookmarks lead to dashboards by them."""
    assert {
        name.removesuffix(".json"): dashboard["uid"] for name, dashboard in DASHBOARDS.items()
    } == {
        "cluster-overview": "railscope-cluster",
        "incidents": "railscope-incidents",
        "rails": "railscope-rails",
        "node": "railscope-node",
        "efficiency": "railscope-efficiency",
        "health": "railscope-health",
        "links": "railscope-links",
        "switches": "railscope-switches",
        "jobs": "railscope-jobs",
        "tenant": "railscope-tenant",
        "self-monitoring": "railscope-self-monitoring",
    }


@EACH_DASHBOARD
def test_a_dashboard_is_what_grafanas_schema_allows(dashboard: dict[str, Any]):
    assert mistakes(dashboard) == []


@EACH_DASHBOARD
def test_a_variable_takes_its_values_from_what_is_declared(dashboard: dict[str, Any]):
    before: set[str] = set()
    for variable in dashboard["templating"]["list"][1:]:
        asked = LABEL_VALUES.fullmatch(variable["query"])
        assert asked, variable["query"]
        assert problems(asked["selector"]) == []
        assert asked["label"] in labels_in(asked["selector"])
        assert used_in(asked["selector"]) <= before, "variables follow from those before them"
        before.add(variable["name"])
    used = {
        name
        for panel in panels_of(dashboard)
        for t in panel.get("targets", ())
        for name in used_in(t["expr"])
    }
    assert used <= before
    unused = (
        before
        - used
        - {name for v in dashboard["templating"]["list"] for name in used_in(v["query"])}
    )
    assert not unused


@EACH_DASHBOARD
def test_a_variable_that_may_select_all_is_matched_as_a_pattern(dashboard: dict[str, Any]):
    several = {v["name"]: v.get("includeAll", False) for v in dashboard["templating"]["list"]}
    for panel in panels_of(dashboard):
        for target in panel.get("targets", ()):
            for operator, name in re.findall(r'(=~?)"\$(\w+)"', target["expr"]):
                assert (operator == "=~") == several[name], target["expr"]


@EACH_DASHBOARD
def test_marks_are_made_of_what_is_declared(dashboard: dict[str, Any]):
    for marks in dashboard["annotations"]["list"]:
        assert problems(marks["expr"]) == []
        shown = set(re.findall(r"\{\{(\w+)\}\}", marks["textFormat"]))
        assert shown | set(marks["tagKeys"].split(",")) <= labels_in(marks["expr"])


@EACH_DASHBOARD
def test_links_to_the_console_name_pages_on_the_subject(dashboard: dict[str, Any]):
    """Each path is that of one page, with a value for each of its parts, and the end of the period if the page takes one."""
    own = dashboard["links"][-1]
    assert own["title"] == "Console"
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    urls = re.findall(rf'"url": "{CONSOLE_URL}(/[^"]*)"', json.dumps(dashboard))
    assert own["url"].removeprefix(CONSOLE_URL) in urls
    found = {}
    for url in urls:
        path, _, query = url.partition("?")
        names = re.findall(r"\$\{([\w.]+):percentencode\}", path)
        assert set(names) <= variables | {"__value.raw"}, url
        filled = re.sub(r"\$\{[^}]*\}", "x", path)
        patterns = {page: re.sub(r"\{\w+\}", "[^/]+", page.path) for page in page_table.PAGES}
        (page,) = (page for page, pattern in patterns.items() if re.fullmatch(pattern, filled))
        assert len(names) == page.path.count("{"), url
        assert query == ("to=${__to}" if page.query is page_table.HistoryQuery else ""), url
        found[url] = page
    page = found[own["url"].removeprefix(CONSOLE_URL)]
    assert not own["keepTime"], "the console has no pages of the past"
    uid_by_page = {
        each: re.findall(
            r"/d/([\w-]+)",
            page_table.PageRequest(ANYONE, PARTS, page=each, grafana_url="http://g").dashboard(),
        )
        for each in page_table.PAGES
    }
    if [dashboard["uid"]] in uid_by_page.values():
        assert uid_by_page[page] == [dashboard["uid"]], "the console links to it from another page"


def test_a_cell_leads_to_a_dashboard_that_has_the_variable():
    variables = {
        dashboard["uid"]: {v["name"] for v in dashboard["templating"]["list"]}
        for dashboard in DASHBOARDS.values()
    }
    urls = re.findall(r'"url": "(/d/[^"]+)"', json.dumps(list(DASHBOARDS.values())))
    assert urls
    for url in urls:
        found = re.fullmatch(r"/d/([\w-]+)\?var-(\w+)=\$\{__value\.raw:percentencode\}&(.*)", url)
        assert found, url
        assert found[2] in variables[found[1]]
        assert found[3] == "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"


def test_the_dashboard_of_a_tenant_shows_nothing_of_others():
    dashboard = DASHBOARDS["tenant.json"]
    (link,) = dashboard["links"]
    assert link["url"] == f"{CONSOLE_URL}/tenants/${{tenant:percentencode}}"
    annotations = dashboard["annotations"]["list"]
    assert [each["name"] for each in annotations] == ["Incidents"]
    shown = [target for panel in panels_of(dashboard) for target in panel.get("targets", ())]
    for expression in (each["expr"] for each in (*annotations, *shown)):
        found = re.findall(r"(railscope_\w+)(\{tenant=\"\$tenant\"[^}]*\})?", expression)
        assert found
        assert all(narrowed for _, narrowed in found), expression
        assert all(name.startswith(("railscope_tenant_", "railscope_job_")) for name, _ in found)
    for panel in panels_of(dashboard):
        assert not re.search(r'"url"', json.dumps(panel.get("fieldConfig", {}).get("overrides")))


@EACH_DASHBOARD
def test_panels_have_their_own_number_and_place(dashboard: dict[str, Any]):
    numbers = [panel["id"] for panel in panels_of(dashboard)]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in panels_of(dashboard)]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


@EACH_DASHBOARD
def test_rows_but_the_first_are_folded(dashboard: dict[str, Any]):
    first, *others = (panel for panel in dashboard["panels"] if panel["type"] == "row")
    assert not first["collapsed"]
    assert others
    assert all(row["collapsed"] and row["panels"] for row in others)
    assert dashboard["panels"][-1] is others[-1], "panels of a folded row are in the row"


@EACH_DASHBOARD
def test_every_query_selects_the_chosen_clusters_and_all_at_first(dashboard: dict[str, Any]):
    variable = dashboard["templating"]["list"][1]
    assert (variable["name"], variable["allValue"], variable["current"]["value"]) == (
        "cluster",
        ".*",
        "$__all",
    )
    expressions = [
        *(target["expr"] for panel in panels_of(dashboard) for target in panel.get("targets", ())),
        *(marks["expr"] for marks in dashboard["annotations"]["list"]),
        *(each["query"] for each in dashboard["templating"]["list"][2:]),
    ]
    for expression in expressions:
        series = re.findall(r"\b(?:railscope[_:][\w:]+|up\b)(\{[^}]*\})?", expression)
        assert all('cluster=~"$cluster"' in selector for selector in series), expression


def test_incidents_are_shown_by_title():
    shown = json.dumps(DASHBOARDS["incidents.json"])
    assert '"title": "Incident"' in shown
    assert '"incident": "' not in shown
    for dashboard in DASHBOARDS.values():
        for marks in dashboard["annotations"]["list"]:
            if "railscope_incident_onset" in marks["expr"]:
                assert "{{title}}" in marks["textFormat"]
