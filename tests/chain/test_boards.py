"""Every query of every board, asked of a real Prometheus that scrapes servers with faults."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from chain_support import Site, free_port, server, until

from dashboards.build import boards
from dashboards.recorded import RULES
from railscope.demo.process import Program
from railscope.simulator import NodeSpec
from railscope.simulator.machine import machine

CAPTURE_SECONDS = 24
"""Faults strike at half of it; the replay starts over at its end."""
SPECS = [
    NodeSpec(node="n1", seed=1, gpus=2, scenario="ecc_uncorrected", scheduler="slurm"),
    NodeSpec(
        node="n2", seed=2, gpus=2, scenario="slow_receiver", scheduler="kubernetes", stray=True
    ),
    NodeSpec(node="n3", seed=3, gpus=2, scenario="xid79", scheduler="slurm"),
    NodeSpec(node="n4", seed=4, gpus=1, scenario="gpu_hung"),
    NodeSpec(node="n5", seed=5, gpus=2, scenario="settings_drift"),
    NodeSpec(node="n6", seed=6, gpus=2, scenario="speed_down"),
    NodeSpec(node="n7", seed=7, gpus=2, scenario="pcie_degraded"),
]
FALLS_SILENT = "n7"
QUOTAS = """tenant,gpu_hours,period,gpus,from,to
slurm:research,5000,month,64,2020-01-01T00:00:00Z,
"""
INVENTORY = """node,gpus,rdma_ports,from,to
n1,2,4,2020-01-01T00:00:00Z,
n2,1,3,2020-01-01T00:00:00Z,
n3,2,4,2020-01-01T00:00:00Z,
n4,1,3,2020-01-01T00:00:00Z,
n5,2,5,2020-01-01T00:00:00Z,
n7,2,4,2020-01-01T00:00:00Z,
never-installed,8,8,2020-01-01T00:00:00Z,
"""
RETIRED = f"gpu,from,to,why\n{machine(SPECS[4]).gpus[1].uuid},2020-01-01T00:00:00Z,,sent back\n"
TOO_SHORT = "Amounts are of readings half a minute apart, between which the holder stayed the same."
QUIET: Mapping[tuple[str, str], str] = {
    ("Audit", "Agents that dispute the log"): "No one has changed the audit log.",
    ("Billing and reconciliation", "Energy so far"): TOO_SHORT,
    ("Billing and reconciliation", "Time computing so far"): TOO_SHORT,
    ("Billing and reconciliation", "Sent so far"): TOO_SHORT,
    ("Tenant", "Energy so far"): TOO_SHORT,
    ("Tenant", "Time computing so far"): TOO_SHORT,
    ("Tenant", "Network traffic so far"): TOO_SHORT,
    ("Railscope itself", "Sources read less often"): "Budgets are off: replays are dear.",
}
"""Panels that have nothing to show here, by board and title, and why."""

Values = dict[str, str]


@dataclass
class Question:
    """A query of a board, with every choice of its variables; it is answered by any of them."""

    board: str
    panel: str
    expression: str
    variables: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        """Say which one it is."""
        return f"{self.board}, {self.panel}: {self.expression}"


@dataclass
class Prometheus:
    """A running Prometheus, and since when it runs."""

    port: int
    session: aiohttp.ClientSession
    started: float

    async def get(self, path: str, **parameters: str) -> Any:
        """What it answers; a query it does not understand fails the test."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}"
        async with self.session.get(url, params=parameters) as response:
            answer = await response.json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    async def has(self, expression: str) -> bool:
        """Whether a query had a value at any time of the run."""
        found = await self.get(
            "query_range",
            query=filled(expression, {"__rate_interval": "5s"}),
            start=str(self.started),
            end=str(time.time()),
            step="1",
        )
        return bool(found["result"])

    async def choices(
        self, variables: Sequence[Mapping[str, Any]], made: Values
    ) -> AsyncIterator[Values]:
        """Every way to choose values, as Grafana would offer them."""
        if not variables:
            yield made
            return
        variable, *rest = variables
        name = variable["name"]
        if variable["type"] == "datasource":
            values = [""]
        elif variable["multi"]:
            values = [variable["allValue"]]
        else:
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
            assert asked
            values = await self.get(
                f"label/{asked[2]}/values", **{"match[]": filled(asked[1], made)}
            )
        for value in values[:1] if variable.get("hide") else values:
            async for choice in self.choices(rest, made | {name: value}):
                yield choice

    async def answers(self, question: Question) -> bool:
        """Whether any choice of the variables has data."""
        async for choice in self.choices(question.variables, {}):
            if await self.has(filled(question.expression, choice)):
                return True
        return False


def filled(text: str, values: Mapping[str, str]) -> str:
    """Put values where a text names variables."""
    return re.sub(r"\$(\w+)", lambda name: values.get(name[1], name[0]), text)


def questions() -> Iterator[Question]:
    for _, text in boards():
        board = json.loads(text)
        variables = board["templating"]["list"]
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield Question(board["title"], panel["title"], target["expr"], variables)
        for marks in board["annotations"]["list"]:
            yield Question(board["title"], marks["name"], marks["expr"], variables)


@asynccontextmanager
async def prometheus(site: Site, pages: Mapping[str, str]) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes agents and collector, and records as it is told."""
    agents = [{"targets": [page], "labels": {"node": node}} for node, page in pages.items()]
    collector = [{"targets": [f"127.0.0.1:{site.port}"]}]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["recorded.yml"],
        "scrape_configs": [
            {"job_name": "railscope-agent", "static_configs": agents},
            {
                "job_name": "railscope-collector",
                "honor_labels": True,
                "static_configs": collector,
            },
        ],
    }
    recorded = yaml.safe_load((RULES / "recorded.yml").read_text())
    for group in recorded["groups"]:
        group.pop("interval", None)
    (site.folder / "recorded.yml").write_text(yaml.safe_dump(recorded))
    (site.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    async with (
        aiohttp.ClientSession() as session,
        server("prometheus", *command, folder=site.folder),
    ):
        running = Prometheus(port, session, time.time())

        async def ready() -> bool:
            try:
                return await running.has("up")
            except aiohttp.ClientError:
                return False

        await until(ready, "Prometheus answers")
        yield running


async def start(site: Site, folder: Path) -> dict[str, Program]:
    """A collector and agents, all quick to notice what lasts for seconds only."""
    site.prepare_all(SPECS, CAPTURE_SECONDS)
    for kind, text in (("quotas", QUOTAS), ("inventory", INVENTORY), ("retired", RETIRED)):
        (folder / f"{kind}.csv").write_text(text)
    await site.collector(
        RAILSCOPE_COLLECTOR_QUOTAS_FILE="quotas.csv",
        RAILSCOPE_COLLECTOR_INVENTORY_FILE="inventory.csv",
        RAILSCOPE_COLLECTOR_RETIRED_FILE="retired.csv",
        RAILSCOPE_COLLECTOR_STALE_SECONDS="4",
        RAILSCOPE_COLLECTOR_METERING__PERIOD_SECONDS="0.5",
        RAILSCOPE_COLLECTOR_METERING__QUIET_SECONDS="1",
    )
    settings = {
        "RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0",
        "RAILSCOPE_AGENT_PERIODS__LINK": "1",
        "RAILSCOPE_AGENT_PERIODS__NIC_SETTINGS": "2",
    }
    agents = await asyncio.gather(*(site.agent(spec.node, **settings) for spec in SPECS))
    return dict(zip((spec.node for spec in SPECS), agents, strict=True))


async def test_every_panel_shows_something(site: Site, tmp_path: Path) -> None:
    agents = await start(site, tmp_path)
    pages = {node: (await agent.said(r"page=(\S+:\d+)"))[1] for node, agent in agents.items()}
    waiting = [q for q in questions() if (q.board, q.panel) not in QUIET]
    assert len(waiting) > 100
    async with prometheus(site, pages) as running:

        async def struck() -> bool:
            return await running.has('railscope_pcie_path_state{state="degraded"} == 1')

        await until(struck, f"the fault of {FALLS_SILENT} has struck")
        await agents[FALLS_SILENT].stop()

        async def all_show_something() -> bool:
            waiting[:] = [q for q in waiting if not await running.answers(q)]
            return not waiting

        try:
            await until(all_show_something, "every panel shows something")
        except pytest.fail.Exception:
            pytest.fail("nothing to show:\n" + "\n".join(map(str, waiting)))


def test_what_is_quiet_is_there() -> None:
    """The list of panels that stay empty names panels that exist, and says why."""
    known = {(question.board, question.panel) for question in questions()}
    assert QUIET.keys() <= known
    assert all(why.endswith(".") for why in QUIET.values())
