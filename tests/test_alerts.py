"""The alerts: a rule, test cases, a runbook page and a link to the right panel, for each."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import boards
from dashboards.promql import labels_in, metric_named, metrics_in, problems
from railscope.catalog import rollups

ROOT = Path(__file__).parent.parent
RULES = ROOT / "alerts/rules/railscope.yml"
CASES = ROOT / "alerts/tests/railscope_test.yml"
RUNBOOKS = ROOT / "alerts/runbooks"
PROMETHEUS = ROOT / "deploy/prometheus/prometheus.yml"
SITE = "https://railscope.example"

ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
NAMES = sorted({rule["alert"] for rule in ALERTS})
EACH_ALERT = pytest.mark.parametrize(
    "rule", [pytest.param(rule, id=f"{i}-{rule['alert']}") for i, rule in enumerate(ALERTS)]
)
EACH_NAME = pytest.mark.parametrize("name", NAMES)


def promtool(*arguments: str) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    outcome = subprocess.run(
        ["promtool", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def queries_in(page: Path) -> list[str]:
    blocks = re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_prometheus_accepts_the_rules():
    promtool("check", "rules", str(RULES))


def test_alerts_fire_stay_quiet_and_resolve_as_promised():
    promtool("test", "rules", str(CASES))


def test_prometheus_accepts_the_scrape_configuration():
    promtool("check", "config", str(PROMETHEUS))


def test_the_scrape_configuration_keeps_the_label_node():
    jobs = {
        job["job_name"]: job for job in yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    }
    assert jobs["railscope-collector"]["honor_labels"] is True
    (relabelling,) = jobs["railscope-agent"]["relabel_configs"]
    assert relabelling["target_label"] == "node"
    targets = yaml.safe_load((PROMETHEUS.parent / "targets/agents.yml").read_text())
    assert all(address.endswith(":9469") for group in targets for address in group["targets"])


@EACH_ALERT
def test_an_alert_says_how_urgent_it_is_and_what_it_is_about(rule: dict[str, Any]):
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert "for" in rule
    notes = rule["annotations"]
    assert "{{" not in notes["summary"], "the summary is the same for a whole group"
    assert "$labels.node" in notes["description"]
    shown = set(re.findall(r"\$labels\.(\w+)", notes["description"]))
    assert shown <= labels_in(rule["expr"])


@EACH_ALERT
def test_an_alert_is_made_of_what_the_catalog_declares(rule: dict[str, Any]):
    assert problems(rule["expr"]) == []
    named = re.findall(r"railscope_\w+", rule["annotations"]["description"])
    assert [name for name in named if metric_named(name) is None] == []


@EACH_ALERT
def test_an_alert_links_to_its_runbook(rule: dict[str, Any]):
    assert rule["annotations"]["runbook_url"] == f"{SITE}/runbooks/{rule['alert']}"


@EACH_ALERT
def test_an_alert_links_to_a_panel_that_shows_its_metric(rule: dict[str, Any]):
    link = re.fullmatch(
        rf"{SITE}/d/(?P<uid>[\w-]+)\?viewPanel=(?P<panel>\d+)", rule["annotations"]["dashboard_url"]
    )
    assert link
    found = {board["uid"]: board for board in (json.loads(text) for _, text in boards())}
    panels = {panel["id"]: panel for panel in found[link["uid"]]["panels"]}
    shown: set[str] = set()
    for target in panels[int(link["panel"])]["targets"]:
        shown |= metrics_in(target["expr"])
    shown |= {rollups()[name].source.name for name in shown if name in rollups()}
    assert shown & metrics_in(rule["expr"])


@EACH_NAME
def test_rules_of_one_name_have_one_summary(name: str):
    summaries = {rule["annotations"]["summary"] for rule in ALERTS if rule["alert"] == name}
    assert len(summaries) == 1


@EACH_NAME
def test_an_alert_has_a_case_that_fires_and_one_that_is_quiet(name: str):
    cases = [
        case
        for situation in yaml.safe_load(CASES.read_text())["tests"]
        for case in situation["alert_rule_test"]
        if case["alertname"] == name
    ]
    assert any(case.get("exp_alerts") for case in cases)
    assert any(not case.get("exp_alerts") for case in cases)


@EACH_ALERT
def test_every_rule_fires_in_some_case(rule: dict[str, Any]):
    fired = [
        alert["exp_labels"]
        for situation in yaml.safe_load(CASES.read_text())["tests"]
        for case in situation["alert_rule_test"]
        if case["alertname"] == rule["alert"]
        for alert in case.get("exp_alerts", [])
    ]
    assert any(rule["labels"].items() <= labels.items() for labels in fired)


@EACH_NAME
def test_a_runbook_has_its_four_parts(name: str):
    page = (RUNBOOKS / f"{name}.md").read_text()
    headings = re.findall(
        r"^(#+ .*)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE
    )
    parts = ["## Meaning", "## Impact", "## Diagnosis", "## Action"]
    assert headings == [f"# {name}", *parts]
    assert "```" in page, "diagnosis has commands"


def test_there_is_no_runbook_without_an_alert():
    assert sorted(page.stem for page in RUNBOOKS.glob("*.md")) == NAMES


@EACH_NAME
def test_queries_of_a_runbook_are_made_of_what_the_catalog_declares(name: str):
    queries = queries_in(RUNBOOKS / f"{name}.md")
    assert queries
    assert [problem for query in queries for problem in problems(query)] == []


def test_prometheus_understands_the_queries_of_the_runbooks(tmp_path: Path):
    queries = [query for page in sorted(RUNBOOKS.glob("*.md")) for query in queries_in(page)]
    rules = [{"record": f"runbook:query{i}", "expr": query} for i, query in enumerate(queries)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    promtool("check", "rules", str(path))
