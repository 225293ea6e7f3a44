"""The demo's files for Prometheus, Alertmanager and Grafana are sufficient."""

from __future__ import annotations

import json
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from chain_support import ProgramDirectory, debian_server, wait_until

from railscope_simulator.demo.process import free_port
from railscope_simulator.demo.watchers import WatcherPorts, Watchers


async def fetch(url: str) -> Any:
    """Return JSON from a program that may not listen yet; None until it does."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.json() if response.status == 200 else None
    except aiohttp.ClientConnectionError:
        return None


@pytest.mark.thorough
async def test_the_commands_start_programs_that_watch_and_warn(
    site: ProgramDirectory, tmp_path: Path
):
    site.prepare({"n1": "training"})
    await site.collector()
    agent = await site.agent("n1")
    left = Watchers(tmp_path / "left", WatcherPorts(free_port(), free_port(), free_port()))
    left.write()
    page = (await agent.find_logged(r"agent_started .*address=(\S+:\d+)"))[1]
    left.point_at(f"127.0.0.1:{site.port}", {"n1": page})
    settings = tmp_path / "left/prometheus/prometheus.yml"
    settings.write_text(settings.read_text().replace("15s", "1s"))
    for rules in (tmp_path / "left/prometheus/rules").glob("*.yml"):
        rules.write_text(rules.read_text().replace("interval: 1m", "interval: 1s"))
    prometheus, alertmanager, _ = left.commands().values()
    reported = f"http://127.0.0.1:{left.ports.alertmanager}/api/v2/alerts"
    seen = f"http://127.0.0.1:{left.ports.prometheus}/api/v1/targets?state=active"

    async def all_seen() -> bool:
        targets = ((await fetch(seen)) or {"data": {"activeTargets": []}})["data"]["activeTargets"]
        found = {
            (target["labels"]["job"], target["labels"].get("node"), target["health"])
            for target in targets
        }
        return found == {("railscope-agent", "n1", "up"), ("railscope-collector", None, "up")}

    async def warned() -> bool:
        names = {alert["labels"]["alertname"] for alert in (await fetch(reported)) or ()}
        return "RailscopeDeadMansSwitch" in names

    async with (
        debian_server(
            "prometheus", *prometheus, "--rules.alert.resend-delay=1s", directory=tmp_path
        ),
        debian_server("prometheus-alertmanager", *alertmanager, directory=tmp_path),
    ):
        await wait_until(all_seen, "Prometheus scrapes the agent and the collector")
        await wait_until(warned, "Alertmanager hears of an alert")


def test_grafana_finds_dashboards_and_the_prometheus_that_is_started(tmp_path: Path):
    left = Watchers(tmp_path)
    left.write()
    left.point_at("127.0.0.1:19470", {})
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
    assert source["url"] == f"http://127.0.0.1:{left.ports.prometheus}"


def test_an_alert_leads_to_a_dashboard_and_to_pages_of_the_console(tmp_path: Path):
    left = Watchers(tmp_path)
    left.write()
    left.point_at("127.0.0.1:19470", {})
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
        assert links["dashboard_url"].startswith(f"http://127.0.0.1:{left.ports.grafana}/d/")


def test_nothing_is_sent_away(tmp_path: Path):
    Watchers(tmp_path).write()
    settings = yaml.safe_load((tmp_path / "alertmanager/alertmanager.yml").read_text())
    assert len(settings["receivers"]) > 3
    assert all(receiver.keys() == {"name"} for receiver in settings["receivers"])
