"""The demo's files for Prometheus, Alertmanager and Grafana are sufficient."""

from __future__ import annotations

import json
import shlex
from configparser import ConfigParser
from pathlib import Path

import yaml

from railscope_simulator.demo.monitoring import GRAFANA, PROMETHEUS, start_commands, write_files

COLLECTOR = "127.0.0.1:19470"


def test_grafana_finds_dashboards_and_the_prometheus_that_is_started(tmp_path: Path):
    write_files(tmp_path, COLLECTOR, {})
    settings = ConfigParser()
    settings.read(tmp_path / "grafana/grafana.ini")
    provisioning = Path(settings["paths"]["provisioning"])
    (provider,) = yaml.safe_load((provisioning / "dashboards/railscope.yml").read_text())[
        "providers"
    ]
    dashboards = {path.name for path in Path(provider["options"]["path"]).glob("*.json")}
    assert {"cluster-overview.json", "node.json", "rails.json"} < dashboards
    assert Path(settings["dashboards"]["default_home_dashboard_path"]).name in dashboards
    for path in Path(provider["options"]["path"]).glob("*.json"):
        links = json.loads(path.read_text())["links"]
        assert links[-1]["url"].startswith("http://127.0.0.1:19470/"), path
    (source,) = yaml.safe_load((provisioning / "datasources/railscope.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == f"http://{PROMETHEUS}"


def test_an_alert_leads_to_a_dashboard_and_to_pages_of_the_console(tmp_path: Path):
    write_files(tmp_path, COLLECTOR, {})
    rules = [
        rule
        for path in (tmp_path / "prometheus/rules").glob("*.yml")
        for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert len(rules) > 100
    for links in (rule["annotations"] for rule in rules):
        assert links["runbook_url"].startswith("http://127.0.0.1:19470/runbooks/")
        assert links.get("console_url", "http://127.0.0.1:19470/").startswith(
            "http://127.0.0.1:19470/"
        )
        assert links["dashboard_url"].startswith(f"http://{GRAFANA}/d/")


def test_nothing_is_sent_away(tmp_path: Path):
    write_files(tmp_path, COLLECTOR, {})
    settings = yaml.safe_load((tmp_path / "alertmanager/alertmanager.yml").read_text())
    assert len(settings["receivers"]) > 3
    assert all(receiver.keys() == {"name"} for receiver in settings["receivers"])


def test_commands_name_files_that_exist_also_in_a_directory_with_a_blank(tmp_path: Path):
    directory = tmp_path / "a demo"
    write_files(directory, COLLECTOR, {"gpu-node-1": "127.0.0.1:19461"})
    files = {
        word.partition("=")[2]
        for line in start_commands(directory).splitlines()[1:]
        for word in (shlex.split(line) if line.startswith("  ") and "--" in line else ())
        if word.startswith("--config")
    }
    assert {Path(file).name for file in files} == {
        "prometheus.yml",
        "alertmanager.yml",
        "grafana.ini",
    }
    assert all(Path(file).is_file() for file in files)
    for rules in yaml.safe_load((directory / "prometheus/prometheus.yml").read_text())[
        "rule_files"
    ]:
        assert (directory / "prometheus" / rules).is_file()
    (agent,) = json.loads((directory / "prometheus/targets/agents.yml").read_text())
    assert agent == {"targets": ["127.0.0.1:19461"], "labels": {"node": "gpu-node-1"}}
