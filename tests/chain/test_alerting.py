"""From a fault to a message: agents, collector, a real Prometheus, a real Alertmanager, a webhook."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from chain_support import Site, free_port, server, until

from railscope.simulator import NodeSpec
from tests.support.alert_rules import ROOT, RULES

CAPTURE_SECONDS = 24
"""Faults strike at half of it; the replay starts over at its end."""
FALLS_SILENT = "n1"
FAULTS = {
    "n1": "ecc_uncorrected",
    "n2": "xid79",
    "n3": "thermal",
    "n4": "nvlink_errors",
    "n5": "pcie_degraded",
    "n6": "flapping",
    "n7": "pause_storm",
    "n8": "gpu_hung",
    "n9": "speed_down",
}
WANTED: list[dict[str, str]] = [
    {"alertname": "RailscopeGpuEccUncorrected", "node": "n1", "severity": "critical"},
    {"alertname": "RailscopeGpuXid", "node": "n2", "severity": "critical", "xid": "79"},
    {"alertname": "RailscopeGpuThermalThrottle", "node": "n3"},
    {"alertname": "RailscopeNvlinkErrors", "node": "n4"},
    {"alertname": "RailscopePcieDegraded", "node": "n5"},
    {"alertname": "RailscopeLinkDown", "node": "n6"},
    {"alertname": "RailscopePfcStorm", "node": "n7", "severity": "critical"},
    {"alertname": "RailscopeLosslessDiscards", "node": "n7"},
    {"alertname": "RailscopeSourcePartial", "node": "n8"},
    {"alertname": "RailscopeLinkSpeed", "node": "n9"},
    {"alertname": "RailscopeDeadMansSwitch", "severity": "info"},
]
SILENT = {"alertname": "RailscopeNodeSilent", "node": FALLS_SILENT, "heard_by": "collector"}
NOT_TOLD = [
    {"alertname": "RailscopeGpuHealth", "node": "n3", "severity": "critical"},
    {"alertname": "RailscopeGpuEccUncorrected", "node": "n2"},
    {"alertname": "RailscopePcieDegraded", "node": "n4"},
    {"alertname": "RailscopeSourceFailing"},
]
"""What would be wrong."""


@dataclass
class Webhook:
    """What a receiver of Alertmanager was told: the labels of alerts that fire."""

    port: int
    heard: list[Mapping[str, str]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        """Take one message."""
        for alert in (await request.json())["alerts"]:
            if alert["status"] == "firing":
                self.heard.append(alert["labels"])
        return web.Response()

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether it was told of an alert with these labels."""
        return any(labels.items() <= told.items() for told in self.heard)


@asynccontextmanager
async def webhook() -> AsyncIterator[Webhook]:
    """A receiver on loopback."""
    hook = Webhook(free_port())
    app = web.Application()
    app.router.add_post("/{receiver}", hook.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", hook.port).start()
    try:
        yield hook
    finally:
        await runner.cleanup()


def at_once(path: Path) -> dict[str, Any]:
    """The rules of a file, without the minutes they wait."""
    rules: dict[str, Any] = yaml.safe_load(path.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = "0s"
    return rules


def write_settings(site: Site, pages: Mapping[str, str], alertmanager: int, hook: int) -> None:
    """The example for Alertmanager with our receiver, and Prometheus with all rules."""
    example = (ROOT / "deploy/alertmanager.yml").read_text()
    example = re.sub(r"https://\w+\.example/(\w+)(\?\S+)?", rf"http://127.0.0.1:{hook}/\1", example)
    example = re.sub(r"group_wait: \w+", "group_wait: 0s", example)
    example = re.sub(r"group_interval: \w+", "group_interval: 1s", example)
    (site.folder / "alertmanager.yml").write_text(example)
    for path in RULES:
        (site.folder / f"rules-{path.name}").write_text(yaml.safe_dump(at_once(path)))
    targets = [{"targets": [page], "labels": {"node": node}} for node, page in pages.items()]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules-*.yml"],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]
        },
        "scrape_configs": [
            {"job_name": "railscope-agent", "static_configs": targets},
            {
                "job_name": "railscope-collector",
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{site.port}"]}],
            },
        ],
    }
    (site.folder / "prometheus.yml").write_text(yaml.safe_dump(config))


async def errors_of_rules(port: int) -> list[str]:
    """What Prometheus could not evaluate; every rule has been tried once at least."""
    url = f"http://127.0.0.1:{port}/api/v1/rules"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        groups = (await response.json())["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 100
    assert all(rule["health"] != "unknown" for rule in rules)
    return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]


async def test_a_fault_reaches_who_must_act(site: Site) -> None:
    """Each fault is told with the right labels, and no rule fails on what agents really say."""
    site.prepare_all(
        [
            NodeSpec(node=node, seed=seed, gpus=2, scenario=scenario, scheduler="slurm")
            for seed, (node, scenario) in enumerate(FAULTS.items())
        ],
        CAPTURE_SECONDS,
    )
    await site.collector(RAILSCOPE_COLLECTOR_STALE_SECONDS="4")
    settings = {
        "RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0",
        "RAILSCOPE_AGENT_PERIODS__NIC_SETTINGS": "2",
        "RAILSCOPE_AGENT_PERIODS__NVLINK": "1",
    }
    started = await asyncio.gather(*(site.agent(node, **settings) for node in FAULTS))
    agents = dict(zip(FAULTS, started, strict=True))
    pages = {node: (await agent.said(r"page=(\S+:\d+)"))[1] for node, agent in agents.items()}
    port, alertmanager = free_port(), free_port()
    async with AsyncExitStack() as stack:
        hook = await stack.enter_async_context(webhook())
        write_settings(site, pages, alertmanager, hook.port)
        await stack.enter_async_context(
            server(
                "prometheus-alertmanager",
                "prometheus-alertmanager",
                "--config.file=alertmanager.yml",
                "--storage.path=alertmanager",
                f"--web.listen-address=127.0.0.1:{alertmanager}",
                "--cluster.listen-address=",
                folder=site.folder,
            )
        )
        await stack.enter_async_context(
            server(
                "prometheus",
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=tsdb",
                "--rules.alert.resend-delay=1s",
                f"--web.listen-address=127.0.0.1:{port}",
                folder=site.folder,
            )
        )

        async def told() -> bool:
            return all(map(hook.has, WANTED))

        try:
            await until(told, "the faults are told")
        except pytest.fail.Exception:
            missing = [labels for labels in WANTED if not hook.has(labels)]
            names = sorted({(told["alertname"], told.get("node", "")) for told in hook.heard})
            pytest.fail(f"not told: {missing}; told: {names}")
        assert await errors_of_rules(port) == []
        assert [labels for labels in NOT_TOLD if hook.has(labels)] == []
        await agents[FALLS_SILENT].stop()

        async def silence_told() -> bool:
            return hook.has(SILENT)

        await until(silence_told, f"the silence of {FALLS_SILENT} is told")
