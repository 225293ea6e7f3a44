"""The queries of dashboards: valid, and bounded in what Prometheus must hold for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.dashboards import DASHBOARDS, QUERIES, VARIABLE, panels_of
from support.promtool import QueryCase, check_queries, evaluate

from railscope_collector.console import curves, group_curves
from railscope_collector.workloads.job_roster import JobKey
from railscope_dashboards.promql import fill_variables, labels_in, problems


def test_a_query_is_made_of_what_the_catalog_declares_and_its_rate_follows_the_scrape_interval():
    for query in (param.values[0] for param in QUERIES):
        text = query["expr"]
        assert problems(text) == [], text
        assert query["datasource"] == VARIABLE, text
        shown = set(re.findall(r"\{\{(\w+)\}\}", query.get("legendFormat", "")))
        assert shown <= labels_in(text), text
        windows = re.findall(r"\b(?:rate|deriv|increase|changes)\([^\[]*\[([^\]]*)\]", text)
        assert set(windows) <= {"$__rate_interval"}, text


@pytest.mark.parametrize(("key", "figures"), [
    ("0", group_curves.RAIL_FIGURES), (JobKey("a", "b", "c"), group_curves.JOB_FIGURES),
])  # fmt: skip
def test_the_console_requests_what_the_collector_exposes(
    key: group_curves.GroupKey, figures: curves.FigureTitles
):
    queries = group_curves.queries(key, figures)
    assert len(queries) > 5
    assert [found for each in queries for found in problems(each.text)] == []


def test_a_panel_with_a_curve_for_each_server_draws_few():
    """A thousand curves are expensive and unreadable."""
    for dashboard in DASHBOARDS.values():
        several = any(v.get("multi") for v in dashboard["templating"]["list"])
        for panel in panels_of(dashboard):
            for target in panel.get("targets", ()) if several else ():
                if "{{node}}" in target.get("legendFormat", ""):
                    few = re.search(r"^(top|bottom)k\(|> 0|\) and (top|bottom)k\(", target["expr"])
                    assert few, (dashboard["uid"], panel["id"], target["expr"])


def test_prometheus_understands_every_query(tmp_path: Path):
    queries = (param.values[0]["expr"] for param in QUERIES)
    check_queries(tmp_path, (query.replace("$__rate_interval", "1m") for query in queries))


_ON_SWITCH = "railscope_switch_port_transmit_pfc_pause_seconds_total"
_ON_NIC = "railscope_nic_receive_{}_pause_seconds_total"


def test_pause_is_the_longest_of_all_priorities_and_of_the_link(tmp_path: Path):
    """Shares of time overlap: they are not added, and are 100 % at most."""
    queries = {
        (panel["id"], target["refId"]): target["expr"]
        for panel in panels_of(DASHBOARDS["rails.json"])
        for target in panel.get("targets", ())
    }
    by_switch, by_nics = (queries[602, reference] for reference in "AB")
    nics = queries[201, "A"]
    series = {
        f'{_ON_NIC.format("pfc")}{{node="n1", interface="eth1", priority="3"}}': "0+18x9",
        f'{_ON_NIC.format("pfc")}{{node="n1", interface="eth1", priority="4"}}': "0+12x9",
        f'{_ON_NIC.format("global")}{{node="n1", interface="eth1"}}': "0x9",
        f'{_ON_NIC.format("pfc")}{{node="n2", interface="eth1", priority="3"}}': "0x9",
        f'{_ON_NIC.format("global")}{{node="n2", interface="eth1"}}': "0+63x9",
        f'{_ON_SWITCH}{{switch="s1", port="p1", priority="3"}}': "0+18x9",
        f'{_ON_SWITCH}{{switch="s1", port="p1", priority="4"}}': "0+12x9",
        'railscope_switch_link_info{switch="s1", port="p1", node="n1", interface="eth1", rail="0"}': "1x9",
        'railscope_nic_info{node="n1", interface="eth1", rail="0"}': "1x9",
        'railscope_nic_info{node="n2", interface="eth1", rail="0"}': "1x9",
        'railscope_rail_max_nic_receive_pfc_pause_ratio{rail="0", priority="3"}': "0.25x9",
        'railscope_rail_max_nic_receive_global_pause_ratio{rail="0"}': "0.75x9",
    }
    expected = {
        by_switch: {'{rail="0"}': 0.3},
        by_nics: {'{rail="0"}': 0.3},
        nics: {'{node="n1", rail="0"}': 0.3, '{node="n2", rail="0"}': 1.0},
        queries[203, "A"]: {'{rail="0"}': 0.75},
        queries[101, "A"]: {"{}": 0.75},
    }
    choices = {"__rate_interval": "5m", "cluster": ".*", "node": ".*", "rail": ".*"}
    # promtool compares exactly.
    rounded = [
        (f"round({fill_variables(query, choices)}, 0.01)", values)
        for query, values in expected.items()
    ]
    evaluate(tmp_path, QueryCase(series, rounded, minutes=9))


@pytest.mark.parametrize(
    ("chosen", "others", "nodes"), [(".*", "", 5), (".*", ', cluster="west"', 5), ("east", ', cluster="west"', 2)]
)  # fmt: skip
def test_numbers_are_of_the_chosen_cluster(tmp_path: Path, chosen: str, others: str, nodes: int):
    """With a single cluster, series need no label."""
    own = f', cluster="{chosen}"' if chosen != ".*" else ""
    name = "railscope_cluster_nodes_reporting"
    series = {
        f'{name}{{instance="a"{own}}}': "2x9",
        f'{name}{{instance="b"{others}}}': "3x9",
    }
    (panel,) = (
        p for p in panels_of(DASHBOARDS["cluster-overview.json"]) if p["title"] == "Nodes reporting"
    )
    query = fill_variables(panel["targets"][0]["expr"], {"cluster": chosen})
    evaluate(tmp_path, QueryCase(series, [(query, {"{}": nodes})], minutes=9))


def test_an_open_incident_is_listed_once_by_title(tmp_path: Path):
    """Also while two collectors have it, and without the names of its cause."""
    (panel,) = (
        p for p in panels_of(DASHBOARDS["incidents.json"]) if p["title"] == "Open incidents"
    )
    incident = 'incident="0a1b", class="gpu_lost", severity="critical", kind="gpu", node="n1", device="4", rail=""'
    title = "GPU lost · n1 · GPU 4"
    series = {
        f'railscope_incident_onset_timestamp_seconds{{instance="{name}", {incident}}}': "60x9"
        for name in "ab"
    } | {
        f'railscope_incident_title{{instance="{name}", incident="0a1b", title="{title}", action="drain"}}': "1x9"
        for name in "ab"
    }
    query = fill_variables(panel["targets"][0]["expr"], {"cluster": ".*"})
    expected = {f'{{title="{title}", class="gpu_lost", node="n1", device="4"}}': 3.0}
    cause = 'railscope_incident_cause{instance="a", incident="0a1b", kind="gpu", node="n1", gpu="GPU-1", pci_address="0:3b"}'
    named = {f'{{title="{title}", class="gpu_lost", node="n1", device="4", gpu="GPU-1", pci_address="0:3b"}}': 3.0}  # fmt: skip
    evaluate(tmp_path, QueryCase(series, [(query, expected)], minutes=9))
    evaluate(tmp_path, QueryCase({**series, cause: "1x9"}, [(query, named)], minutes=9))
