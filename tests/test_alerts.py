"""The alerts: a rule, test cases, a runbook page and a link to the right panel, for each."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml
from support.alert_rules import (
    CASES,
    ROOT,
    RULES,
    proofs,
    rules_of,
    situations,
)
from support.dashboards import panels_of
from support.each import of_each
from support.promtool import check_queries, promtool
from support.query_notes import annotated_queries, detail_note

from railscope.catalog import rollups
from railscope.catalog.declare import MetricDetail
from railscope.catalog.xids import ERROR_CLASSES, xids
from railscope_collector.console.page_table import PAGES
from railscope_collector.diagnosis.incident_classes import CLASSES, INCIDENT_RUNBOOK
from railscope_collector.diagnosis.incident_commands import REMEDIES
from railscope_dashboards.build import dashboards
from railscope_dashboards.promql import (
    detail_of,
    expand,
    labels_in,
    metric_named,
    metrics_in,
    problems,
    recorded_expressions,
    recorded_in,
)

RUNBOOKS = ROOT / "alerts/runbooks"
PROMETHEUS = ROOT / "deploy/prometheus/prometheus.yml"
COMMAND_LINE = ROOT / "docs/cli.md"
ALERTMANAGER = ROOT / "deploy/alertmanager.yml"
SITE = "https://railscope.example"
ALWAYS_FIRES = "RailscopeDeadMansSwitch"

ALERTS: list[dict[str, Any]] = [
    rule for path in RULES for rule in rules_of(path) if "alert" in rule
]
NAMES = sorted({rule["alert"] for rule in ALERTS})
EACH_ALERT = of_each(ALERTS, lambda rule: str(rule["alert"]))
SITUATIONS = situations()
DASHBOARDS = {
    dashboard["uid"]: dashboard for dashboard in (json.loads(text) for _, text in dashboards())
}


def amtool(*arguments: str) -> str:
    if not shutil.which("amtool"):
        pytest.skip("amtool is missing: install the Debian package prometheus-alertmanager")
    outcome = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


def receivers(**labels: str) -> list[str]:
    """Receivers of an alert by the example for Alertmanager."""
    matchers = (f"{name}={value}" for name, value in labels.items())
    reported = amtool("config", "routes", "test", f"--config.file={ALERTMANAGER}", *matchers)
    return reported.strip().split(",")


def queries_in(page: Path) -> list[str]:
    return [query for _, query in annotated_queries(page.read_text())]


def test_prometheus_accepts_the_rules():
    promtool("check", "rules", *map(str, RULES))


@pytest.mark.journey
@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alerts_fire_stay_quiet_and_resolve_as_promised(cases: Path):
    promtool("test", "rules", str(cases))


def test_prometheus_accepts_the_scrape_configuration():
    promtool("check", "config", str(PROMETHEUS))


def test_prometheus_is_given_every_rule():
    named = yaml.safe_load(PROMETHEUS.read_text())["rule_files"]
    assert [(PROMETHEUS.parent / name).resolve() for name in named] == RULES


def test_alertmanager_accepts_its_example():
    amtool("check-config", str(ALERTMANAGER))


@pytest.mark.parametrize(
    ("labels", "reported"),
    [
        ({"alertname": "RailscopeGpuLost", "severity": "critical"}, ["pager"]),
        ({"alertname": "RailscopeLinkSpeed", "severity": "warning"}, ["tickets"]),
        ({"alertname": "RailscopeNodeRebooted", "severity": "info"}, ["nobody"]),
        ({"alertname": "RailscopeIncident", "severity": "critical"}, ["pager"]),
        ({"alertname": "RailscopeIncident", "severity": "warning"}, ["tickets"]),
        ({"alertname": "RailscopeIncident", "severity": "info"}, ["nobody"]),
        ({"alertname": "RailscopeIncidentReach", "severity": "info"}, ["nobody"]),
        ({"alertname": "RailscopeTenantOverQuota", "severity": "warning"}, ["billing"]),
        (
            {"alertname": "RailscopeAuditCheckpointConflict", "severity": "critical"},
            ["pager", "billing"],
        ),
        ({"alertname": ALWAYS_FIRES, "severity": "info"}, ["watch"]),
    ],
)
def test_alertmanager_notifies_the_right_receivers(labels: dict[str, str], reported: list[str]):
    assert receivers(**labels) == reported


@EACH_ALERT
def test_an_alert_states_the_detail_that_it_needs(rule: dict[str, Any]):
    looked_up = " ".join(re.findall(r'printf "((?:[^"\\\\]|\\\\.)*)"', str(rule["annotations"])))
    needed = max(map(list(MetricDetail).index, map(detail_of, (rule["expr"], looked_up))))
    assert rule["labels"].get("detail", "basic") == list(MetricDetail)[needed]


def test_alertmanager_names_only_alerts_and_labels_that_exist():
    example = yaml.safe_load(ALERTMANAGER.read_text())
    # `cluster` is an external label of Prometheus.
    known = {*(label for rule in ALERTS for label in rule["labels"]), "alertname", "cluster"}
    for rule in ALERTS:
        known |= labels_in(rule["expr"])
    for inhibition in example["inhibit_rules"]:
        assert set(inhibition.get("equal", [])) <= known
    for pattern in re.findall(r'alertname=~?"([^"]*)"', ALERTMANAGER.read_text()):
        for term in pattern.split("|"):
            assert any(re.fullmatch(term, name) for name in NAMES), term


@pytest.mark.thorough
@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_a_node_with_two_targets_disables_no_rule(cases: Path, tmp_path: Path):
    """One duplicate on the unique side of a join fails a rule for all nodes, without an alert."""
    content = yaml.load(cases.read_text(), yaml.CSafeLoader)
    content["rule_files"] = [str(cases.parent / path) for path in content["rule_files"]]
    for case in content["tests"]:
        case["input_series"] = [
            each | {"series": copy}
            for each in case.get("input_series", [])
            for copy in copies(each["series"])
        ]
        case["promql_expr_test"] = [
            {"expr": "vector(1)", "eval_time": "20m", "exp_samples": [{"labels": "{}", "value": 1}]}
        ]
        case.pop("alert_rule_test", None)
    changed = tmp_path / "two_targets.yml"
    changed.write_text(json.dumps(content))
    promtool("test", "rules", str(changed))


def copies(series: str) -> list[str]:
    """A series of an agent as of two targets; others, which name their instance, as they are."""
    if "instance=" in series or "{" not in series:
        return [series]
    return [series.replace("{", f'{{instance="{name}:9469",', 1) for name in ("gpu-1", "10.0.0.1")]


NAMES_OF_DEVICES = {
    "gpu": {"index", "pci_address"},
    "interface": {"rdma_device", "rail"},
    "device": {"interface", "rail"},
}
OF_INCIDENTS = re.compile(r"railscope_incident_onset_timestamp_seconds")
OF_GPUS_ALONE = re.compile(r"railscope_gpu_(xid_errors_total|last_xid|events_total|device_state)")


def names_missing(rule: dict[str, Any]) -> set[str]:
    """Names of GPUs and NICs that the texts of a rule lack, of those that it names by a label."""
    text = " ".join(rule["annotations"][name] for name in ("summary", "description"))
    used = set(re.findall(r"\$labels\.(\w+)", re.sub(r'printf "[^|]*\|', "", text)))
    looked_up = set(re.findall(r"[^$]labels\.(\w+)", text, re.IGNORECASE))
    if OF_INCIDENTS.search(rule["expr"]):  # `device` is the interface or the index
        return {"device", "rail", "pci_address"} - used - looked_up
    wanted = set().union(*(NAMES_OF_DEVICES[label] for label in used & NAMES_OF_DEVICES.keys()))
    if "pci_address" in used:
        wanted |= {"index"}
        if not OF_GPUS_ALONE.search(rule["expr"]):
            wanted |= {"gpu", "interface", "rdma_device", "rail"}
    return wanted - looked_up


@EACH_ALERT
def test_a_description_has_all_names_of_a_gpu_or_nic(rule: dict[str, Any]):
    assert names_missing(rule) == set()


@EACH_ALERT
def test_an_alert_has_a_severity_and_a_subject(rule: dict[str, Any]):
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert "for" in rule
    notes = rule["annotations"]
    shown = set(re.findall(r"\$labels\.(\w+)", notes["description"]))
    assert shown <= labels_in(rule["expr"])
    if rule["alert"] != ALWAYS_FIRES:
        assert shown, "it says what it is about"


PLACES = {"node", "instance", "rail", "switch", "collector", "workload", "tenant", "group"}
WITHOUT_PLACE = {
    "RailscopeDeadMansSwitch",
    "RailscopeIncident",  # its title has the place
    "RailscopeIncidentReach",  # no receiver gets it
}


@EACH_ALERT
def test_a_summary_names_the_place(rule: dict[str, Any]):
    if rule["alert"] in WITHOUT_PLACE:
        return
    notes = rule["annotations"]
    named = set(re.findall(r"\$labels\.(\w+)", notes["summary"]))
    if "node" in re.findall(r"\$labels\.(\w+) }}", notes["description"]):
        assert "node" in named
    # A notification is about the alerts of one node: a summary with a GPU or interface is not that of all of them.
    assert named & PLACES
    assert named <= PLACES | {"job"}


WITHOUT_PAGE = {"RailscopeDeadMansSwitch", "RailscopeIncidentReach", "RailscopeCollectorDown"}


@EACH_ALERT
def test_an_alert_links_to_a_page_of_the_console(rule: dict[str, Any]):
    notes = rule["annotations"]
    assert ("console_url" in notes) == (rule["alert"] not in WITHOUT_PAGE)
    if "console_url" not in notes:
        return
    address, _, query = notes["console_url"].partition("?")
    path = re.sub(r"{{ \$labels\.(\w+)(?: \| urlquery)? }}", r"{\1}", address.removeprefix(SITE))
    (page,) = [page for page in PAGES if page.path == path]
    assert not query or set(parse_qs(query)) <= set(page.query.__struct_fields__)


@EACH_ALERT
def test_the_description_of_a_page_ends_with_the_action(rule: dict[str, Any]):
    description = rule["annotations"]["description"]
    if rule["labels"]["severity"] == "critical" and rule["alert"] != "RailscopeIncident":
        _, _, action = description.partition(" Action: ")
        assert action
        assert action.endswith(".")
        for form in re.split(r"{{[^}]*}}", action):
            assert len(form.split()) <= 12


@EACH_ALERT
def test_an_alert_is_made_of_what_the_catalog_declares(rule: dict[str, Any]):
    assert problems(rule["expr"]) == []
    description = expand(rule["annotations"]["description"])
    named = re.findall(r"railscope_\w+", description)
    assert [name for name in named if metric_named(name) is None] == []


def test_every_recorded_series_is_used_by_an_alert_or_a_dashboard():
    """Prometheus evaluates it also without a reader."""
    reported = [rule["expr"] for path in RULES for rule in rules_of(path)]
    shown = [
        t["expr"]
        for dashboard in DASHBOARDS.values()
        for p in panels_of(dashboard)
        for t in p.get("targets", ())
    ]
    used = frozenset[str]().union(*map(recorded_in, [*reported, *shown]))
    assert recorded_expressions().keys() == used


def xid_lists(name: str, severity: str) -> set[tuple[str, frozenset[int]]]:
    """Matchers and numbers of the one rule of a name and severity."""
    (rule,) = (
        rule for rule in ALERTS if rule["alert"] == name and rule["labels"]["severity"] == severity
    )
    return {
        (matcher, frozenset(map(int, numbers.split("|"))))
        for matcher, numbers in re.findall(r'xid([=!]~)"([^"]*)"', rule["expr"])
    }


def test_xids_alert_by_the_class_that_the_catalog_gives_them():
    classes = {
        name: frozenset(n for n, xid in xids().items() if xid.error_class == name)
        for name in ERROR_CLASSES
    }
    fatal = frozenset(
        n for n, xid in xids().items() if xid.severity == "fatal" and "ignore" not in xid.actions
    ) | {94}
    harmless = classes["application"] | classes["record"]
    assert fatal <= classes["hardware"]
    assert xid_lists("RailscopeGpuXid", "critical") == {("=~", fatal)}
    assert xid_lists("RailscopeGpuXid", "warning") == {("!~", fatal | harmless)}
    assert xid_lists("RailscopeGpuXid", "info") == {("=~", classes["record"])}
    wanted = {("=~", classes["application"])}
    assert xid_lists("RailscopeGpuApplicationError", "info") == wanted
    assert {13, 31, 43, 45} <= classes["application"]


@EACH_ALERT
def test_an_alert_links_to_its_runbook(rule: dict[str, Any]):
    name = rule["alert"]
    (path,) = {path for path in RULES if rule in rules_of(path)}
    section = f"{path.stem}#{name.lower()}"
    expected = f"{name}#{{{{ $labels.class }}}}" if name == INCIDENT_RUNBOOK else section
    assert rule["annotations"]["runbook_url"] == f"{SITE}/runbooks/{expected}"


@EACH_ALERT
def test_an_alert_links_to_a_dashboard_or_to_a_panel_that_shows_its_metric(rule: dict[str, Any]):
    address, _, query = rule["annotations"]["dashboard_url"].partition("?")
    dashboard = DASHBOARDS[address.removeprefix(f"{SITE}/d/")]
    asked = dict(part.split("=", 1) for part in query.split("&") if part)
    subjects = {
        "var-node": "{{ $labels.node }}",
        "var-tenant": "{{ $labels.tenant | urlquery }}",
    }
    for name in asked.keys() - {"viewPanel"}:
        assert asked[name] == subjects[name]
        assert name in {f"var-{variable['name']}" for variable in dashboard["templating"]["list"]}
    if "viewPanel" in asked:
        panels = {str(panel["id"]): panel for panel in panels_of(dashboard)}
        shown: set[str] = set()
        for target in panels[asked["viewPanel"]]["targets"]:
            shown |= metrics_in(target["expr"])
        shown |= {rollups()[name].source.name for name in shown if name in rollups()}
        needed = metrics_in(rule["expr"])
        totals = {
            metric.total for metric in filter(None, map(metric_named, needed)) if metric.total
        }
        assert shown & (needed | totals)


@EACH_ALERT
def test_the_cases_prove_what_a_rule_promises(rule: dict[str, Any]):
    """It fires and resolves; it is quiet when all is well or idle, after a reset, over a gap."""
    given = proofs(rule, SITUATIONS)
    if rule["alert"] == ALWAYS_FIRES:
        assert given == {"fires"}
        return
    missing = sorted({"fires", "resolves", "healthy", "idle", "gap", "reset"} - given)
    assert not missing, (
        f"{rule['alert']} has no test case that shows: {', '.join(missing)};"
        ' see "Add an alert" in docs/developer.md'
    )


def test_the_runbook_of_incidents_has_a_section_for_each_class():
    page = (RUNBOOKS / "RailscopeIncident.md").read_text()
    assert re.findall(r"^### (.*)$", page, re.MULTILINE) == list(CLASSES)
    for kind in CLASSES.values():
        head = f"\n### {kind.name}\n\n**{kind.title}.** {kind.text}\n\nAction: {kind.action}.\n"
        assert head in page
        assert (f"{head}\n```sh\n" in page) is (kind.name in REMEDIES)


def test_there_is_no_runbook_without_an_alert():
    pages = sorted(RUNBOOKS.glob("*.md"))
    sections = [
        name
        for page in pages
        for name in re.findall(r"^## (Railscope\w+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted([*sections, INCIDENT_RUNBOOK]) == NAMES
    assert {page.stem for page in pages} <= {path.stem for path in RULES} | {INCIDENT_RUNBOOK}


EACH_PAGE = of_each(sorted(RUNBOOKS.glob("*.md")))


@EACH_PAGE
def test_queries_of_a_runbook_are_made_of_what_the_catalog_declares(page: Path):
    queries = queries_in(page)
    assert queries
    assert [problem for query in queries for problem in problems(query)] == []


@EACH_PAGE
def test_a_query_of_a_runbook_states_the_detail_that_it_needs(page: Path):
    for note, query in annotated_queries(page.read_text()):
        assert note == detail_note(query), query


def test_prometheus_understands_the_queries_of_the_runbooks(tmp_path: Path):
    check_queries(
        tmp_path, (query for page in sorted(RUNBOOKS.glob("*.md")) for query in queries_in(page))
    )


@EACH_PAGE
def test_commands_of_a_runbook_are_those_of_the_command_line(page: Path):
    known = set(re.findall(r"^## (railscope[a-z -]*)$", COMMAND_LINE.read_text(), re.MULTILINE))
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for command in re.findall(r"^railscope(?: [a-z-]+(?= |$))+", block, re.MULTILINE):
            assert command.split(" --")[0] in known
