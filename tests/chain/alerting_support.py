"""A real Prometheus with our rules, a real Alertmanager with our example, and a recording webhook."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import yaml
from aiohttp import web
from chain_support import (
    PATIENCE_SECONDS,
    ProgramDirectory,
    debian_server,
)
from support.alert_rules import ROOT, RULES
from support.waiting import wait_until

from bench.harness import free_port
from railscope_simulator.demo.process import Program

SCRAPES_PER_MINUTE = 3
"""Scrapes in place of the minutes of a rule's range, for tests that cannot wait for minutes."""


@dataclass
class AlertWebhook:
    """A receiver of Alertmanager: records the labels of alerts that fire."""

    port: int
    received: list[Mapping[str, str]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        """Receive one message."""
        for alert in (await request.json())["alerts"]:
            if alert["status"] == "firing":
                self.received.append(alert["labels"])
        return web.Response()

    def has(self, labels: Mapping[str, str]) -> bool:
        """True if it received an alert with these labels."""
        return any(labels.items() <= reported.items() for reported in self.received)


@asynccontextmanager
async def webhook() -> AsyncIterator[AlertWebhook]:
    """Run a receiver on loopback."""
    hook = AlertWebhook(free_port())
    app = web.Application()
    app.router.add_post("/{receiver}", hook.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", hook.port).start()
    try:
        yield hook
    finally:
        await runner.cleanup()


class RuleTimes(NamedTuple):
    """Times of Prometheus and of its rules in a test. A rule is evaluated once per scrape."""

    scrape_seconds: int = 1
    agent_scrapes: int = 1
    """Scrapes of the collector for each of an agent: fewer scrapes of many nodes take less processor time."""
    short: bool = False
    """Ranges of rules are some scrapes for each of their minutes."""
    holds: bool = False
    """Alertmanager sends incidents only and keeps alerts on symptoms, which it would send after two minutes.

    `for` durations of the rules are one evaluation for each minute; without this, rules have none.
    """

    def rules(self, path: Path) -> dict[str, Any]:
        """Return the rules of a file with these times, and with the shared evaluation interval."""
        rules: dict[str, Any] = yaml.load(path.read_text(), yaml.CSafeLoader)
        for group in rules["groups"]:
            group.pop("interval", None)
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = self._shortened(rule["for"], 1) if self.holds else "0s"
                if self.short:
                    rule["expr"] = re.sub(
                        r"(?<=\[)\d+m(?=\])",
                        lambda found: self._shortened(found[0], SCRAPES_PER_MINUTE),
                        rule["expr"],
                    )
        return rules

    def _shortened(self, duration: str, scrapes_per_minute: int) -> str:
        minutes = int(duration[:-1]) * {"s": 1 / 60, "m": 1, "h": 60, "d": 1440}[duration[-1]]
        return f"{round(minutes * scrapes_per_minute * self.scrape_seconds)}s"


AT_ONCE = RuleTimes()


def write_settings(
    site: ProgramDirectory,
    pages: Mapping[str, str],
    ports: tuple[int, int],
    times: RuleTimes,
) -> None:
    """Write the example for Alertmanager with our receiver, and Prometheus' settings with all rules."""
    alertmanager, hook = ports
    example = (ROOT / "deploy/alertmanager.yml").read_text()
    example = re.sub(r"https://\w+\.example/(\w+)(\?\S+)?", rf"http://127.0.0.1:{hook}/\1", example)
    waits = {"2m": "1h"} if times.holds else {}
    example = re.sub(r"(?<=group_wait: )\w+", lambda found: waits.get(found[0], "0s"), example)
    example = re.sub(r"group_interval: \w+", "group_interval: 1s", example)
    (site.directory / "alertmanager.yml").write_text(example)
    for path in RULES:
        (site.directory / f"rules-{path.name}").write_text(yaml.safe_dump(times.rules(path)))
    targets = [{"targets": [page], "labels": {"node": node}} for node, page in pages.items()]
    config = {
        "global": dict.fromkeys(
            ("scrape_interval", "evaluation_interval"), f"{times.scrape_seconds}s"
        ),
        "rule_files": ["rules-*.yml"],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]
        },
        "scrape_configs": [
            {
                "job_name": "railscope-agent",
                "scrape_interval": f"{times.agent_scrapes * times.scrape_seconds}s",
                "static_configs": targets,
            },
            {
                "job_name": "railscope-collector",
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{site.port}"]}],
            },
        ],
    }
    (site.directory / "prometheus.yml").write_text(yaml.safe_dump(config))


async def errors_of_rules(port: int) -> list[str]:
    """Return the evaluation errors of rules, after every rule was evaluated at least once."""
    url = f"http://127.0.0.1:{port}/api/v1/rules"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        groups = (await response.json())["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 100
    assert all(rule["health"] != "unknown" for rule in rules)
    return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]


@dataclass(frozen=True)
class AlertingServers:
    """A running Prometheus and Alertmanager: the alerts at the webhook, and the address of Prometheus."""

    hook: AlertWebhook
    prometheus: int
    alertmanager: int

    async def wait_for_alerts(
        self, wanted: Iterable[Mapping[str, str]], patience: float = PATIENCE_SECONDS
    ) -> None:
        """Wait until the webhook has received all of these; fail with the missing ones."""
        every = list(wanted)

        async def reported() -> bool:
            return all(map(self.hook.has, every))

        try:
            await wait_until(reported, "the faults are reported", patience=patience)
        except pytest.fail.Exception:
            missing = [labels for labels in every if not self.hook.has(labels)]
            labels = ("alertname", "class", "severity", "node")
            names = sorted({tuple(one.get(k, "") for k in labels) for one in self.hook.received})
            pytest.fail(f"not reported: {missing}; reported: {names}")

    async def evaluates_to(self, wanted: Sequence[Mapping[str, str]]) -> None:
        """Wait until these alerts fire in Prometheus, inhibited by Alertmanager or not."""
        url = f"http://127.0.0.1:{self.prometheus}/api/v1/alerts"

        async def fire() -> bool:
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                alerts = (await response.json())["data"]["alerts"]
            return all(any(w.items() <= a["labels"].items() for a in alerts) for w in wanted)

        await wait_until(fire, f"Prometheus fires {wanted}")

    async def alerts(self) -> list[tuple[str, dict[str, str]]]:
        """Return the state and the labels of each alert that Alertmanager has."""
        url = f"http://127.0.0.1:{self.alertmanager}/api/v2/alerts"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return [(each["status"]["state"], each["labels"]) for each in await response.json()]

    async def wait_for_evaluations(self, count: int, patience: float) -> None:
        """Wait until Prometheus has evaluated each alert on an incident so many times."""
        url = f"http://127.0.0.1:{self.prometheus}/api/v1/query"
        query = (
            'min(count_over_time(ALERTS{alertname="RailscopeIncident",alertstate="firing"}[1h]))'
        )

        async def are_done() -> bool:
            async with (
                aiohttp.ClientSession(raise_for_status=True) as session,
                session.get(url, params={"query": query}) as response,
            ):
                found = (await response.json())["data"]["result"]
            return bool(found) and float(found[0]["value"][1]) >= count

        what = f"Prometheus has evaluated the incidents {count} times"
        await wait_until(are_done, what, every=1, patience=patience)

    async def alertmanager_has(self, state: str, wanted: Sequence[Mapping[str, str]]) -> None:
        """Wait until Alertmanager has these alerts in a state: active, or suppressed if they are inhibited."""

        async def present() -> bool:
            alerts = [labels for found, labels in await self.alerts() if found == state]
            return all(any(w.items() <= labels.items() for labels in alerts) for w in wanted)

        await wait_until(present, f"Alertmanager has {wanted} as {state}")


@asynccontextmanager
async def run_alerting(
    site: ProgramDirectory,
    pages: Mapping[str, str],
    times: RuleTimes = AT_ONCE,
) -> AsyncIterator[AlertingServers]:
    """Start them over the metrics endpoints of agents, by node, and that of the collector."""
    port, alertmanager = free_port(), free_port()
    async with webhook() as hook:
        write_settings(site, pages, (alertmanager, hook.port), times)
        async with (
            debian_server(
                "prometheus-alertmanager",
                "prometheus-alertmanager",
                "--config.file=alertmanager.yml",
                "--storage.path=alertmanager",
                f"--web.listen-address=127.0.0.1:{alertmanager}",
                "--cluster.listen-address=",
                directory=site.directory,
            ),
            debian_server(
                "prometheus",
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=tsdb",
                "--rules.alert.resend-delay=1s",
                f"--web.listen-address=127.0.0.1:{port}",
                directory=site.directory,
            ),
        ):
            await wait_until(lambda: _are_ready(port, alertmanager), "both servers are ready")
            yield AlertingServers(hook, port, alertmanager)


async def _are_ready(*ports: int) -> bool:
    async with aiohttp.ClientSession() as session:
        for port in ports:
            try:
                async with session.get(f"http://127.0.0.1:{port}/-/ready") as response:
                    if response.status != HTTPStatus.OK:
                        return False
            except aiohttp.ClientConnectionError:
                return False
    return True


async def metrics_addresses(agents: Mapping[str, Program]) -> dict[str, str]:
    """Return the address of each agent's metrics endpoint."""
    return {
        node: (await agent.find_logged(r"agent_started .*address=(\S+:\d+)"))[1]
        for node, agent in agents.items()
    }
