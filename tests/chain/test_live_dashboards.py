"""Every query of every dashboard, run on a real Prometheus that scrapes nodes with faults."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from chain_support import ProgramDirectory, debian_server, wait_until
from live_switches import LiveSwitches
from PIL import Image

from railscope.catalog.declare import BASIC, FULL, MetricDetail
from railscope_dashboards.build import dashboards
from railscope_dashboards.pictures import layout, tables
from railscope_dashboards.prometheus_api import (
    DashboardResults,
    Prometheus,
    PrometheusError,
    QueryWindow,
    Values,
    fill_variables,
    query_dashboard,
)
from railscope_dashboards.promql import RULES, detail_of
from railscope_simulator import NodeSpec
from railscope_simulator.demo.process import Program, free_port
from railscope_simulator.node_hardware import build_node_hardware

ROOT = Path(__file__).parent.parent.parent
DASHBOARDS: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in dashboards()}
CAPTURE_SECONDS = 24
"""Faults start at half of it; the replay starts again at its end."""
SPECS = [
    NodeSpec(node="n1", seed=1, gpus=2, scenario="ecc_uncorrected", scheduler="slurm"),
    NodeSpec(
        node="n2", seed=2, gpus=2, scenario="slow_receiver", scheduler="kubernetes", unclaimed=True
    ),
    NodeSpec(node="n3", seed=3, gpus=2, scenario="xid79", scheduler="slurm"),
    NodeSpec(node="n4", seed=4, gpus=1, scenario="gpu_hung"),
    NodeSpec(node="n5", seed=5, gpus=2, scenario="settings_drift"),
    NodeSpec(node="n6", seed=6, gpus=2, scenario="speed_down"),
    NodeSpec(node="n7", seed=7, gpus=2, scenario="pcie_degraded"),
]
FALLS_SILENT = "n7"
SCRAPE_SECONDS = 1.0
"""The common scrape interval: short-lived values are not missed."""
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
RETIRED = f"gpu,from,to,reason\n{build_node_hardware(SPECS[4]).gpus[1].uuid},2020-01-01T00:00:00Z,,sent back\n"
TOO_SHORT = "Amounts are of readings half a minute apart, between which the holder stayed the same."
TOO_COOL = "No GPU gets hot before its capture starts again."
NO_LOSS = "No job is slower than before: captures are too short for its past."
QUIET: Mapping[tuple[str, str], str] = {
    ("Audit", "Agents with a checkpoint conflict"): "No one has changed the audit log.",
    ("Faults and health matrix", "NVLink errors"): "No link has errors.",
    ("Faults and health matrix", "Throttled by temperature or power brake"): TOO_COOL,
    ("Jobs and stragglers", "Throttled GPUs"): TOO_COOL,
    ("Jobs and stragglers", "Throttled GPUs of jobs"): TOO_COOL,
    ("Billing and reconciliation", "Energy so far"): TOO_SHORT,
    ("Billing and reconciliation", "Time computing so far"): TOO_SHORT,
    ("Billing and reconciliation", "Sent so far"): TOO_SHORT,
    ("Tenant", "Energy so far"): TOO_SHORT,
    ("Tenant", "Time computing so far"): TOO_SHORT,
    ("Tenant", "Network traffic so far"): TOO_SHORT,
    ("Incidents", "GPUs lost by class"): NO_LOSS,
    ("Incidents", "GPUs lost by tenant"): NO_LOSS,
    ("Incidents", "GPU time lost so far"): NO_LOSS,
    ("Tenant", "GPUs lost by class"): NO_LOSS,
    ("Tenant", "Incidents"): NO_LOSS,
    ("Self-monitoring", "Sources read less often"): "Budgets are off: replays are dear.",
    (
        "Rails and congestion",
        "Pause frames that only one end counted",
    ): "Both ends are read for less than its 15 minutes.",
}
"""Panels without data here, by dashboard and title, with the reason."""


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    """A query of a dashboard, with the title of its panel or annotation."""

    dashboard: str
    panel: str
    expression: str
    variables: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        """Return the title and the expression for messages."""
        return f"{self.dashboard}, {self.panel}: {self.expression}"


def dashboard_queries(dashboard: Mapping[str, Any]) -> Iterator[DashboardQuery]:
    """Yield every query of a dashboard, including those of its annotations."""
    variables = dashboard["templating"]["list"]
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield DashboardQuery(dashboard["title"], panel["title"], target["expr"], variables)
    for marks in dashboard["annotations"]["list"]:
        yield DashboardQuery(dashboard["title"], marks["name"], marks["expr"], variables)


@dataclass
class RunningPrometheus:
    """A running Prometheus, and its start time."""

    prometheus: Prometheus
    started: float

    async def has(self, expression: str) -> bool:
        """True if a query had a value at any time of the run."""
        instants = np.arange(self.started, time.time(), 1.0)
        query = fill_variables(expression, {"__rate_interval": "5s"})
        return bool((await self.prometheus.query_range(query, instants)).series)

    async def choice_with_data(self, question: DashboardQuery) -> Values | None:
        """Return a selection of the variables for which a query has data, None if there is none yet."""
        async for choice in self.prometheus.choices(question.variables):
            if await self.has(fill_variables(question.expression, choice)):
                return choice
        return None


def every_question() -> list[DashboardQuery]:
    return [
        question for dashboard in DASHBOARDS.values() for question in dashboard_queries(dashboard)
    ]


@asynccontextmanager
async def prometheus(
    site: ProgramDirectory, pages: Mapping[str, str], detail: MetricDetail
) -> AsyncIterator[RunningPrometheus]:
    """Run a Prometheus that scrapes agents and collector, and evaluates the recording rules."""
    agents = [{"targets": [page], "labels": {"node": node}} for node, page in pages.items()]
    collector = [{"targets": [f"127.0.0.1:{site.port}"]}]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["recorded.yml"],
        "scrape_configs": [
            {
                "job_name": "railscope-agent",
                "params": {"detail": [str(detail)]},
                "static_configs": agents,
            },
            {
                "job_name": "railscope-collector",
                "honor_labels": True,
                "static_configs": collector,
            },
        ],
    }
    recorded = yaml.load((RULES / "recorded.yml").read_text(), yaml.CSafeLoader)
    for group in recorded["groups"]:
        group.pop("interval", None)
    (site.directory / "recorded.yml").write_text(yaml.safe_dump(recorded))
    (site.directory / f"{detail}.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={detail}.yml",
        f"--storage.tsdb.path=tsdb-{detail}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    async with (
        debian_server("prometheus", *command, directory=site.directory),
        Prometheus(f"http://127.0.0.1:{port}") as asked,
    ):
        running = RunningPrometheus(asked, time.time())

        async def ready() -> bool:
            try:
                return await running.has("up")
            except PrometheusError:
                return False

        await wait_until(ready, "Prometheus answers")
        yield running


async def start(
    site: ProgramDirectory, directory: Path, switches: LiveSwitches
) -> dict[str, Program]:
    """Start a collector and agents, all with short periods, to detect states of a few seconds."""
    site.prepare_all(SPECS, CAPTURE_SECONDS)
    for kind, text in (("quotas", QUOTAS), ("inventory", INVENTORY), ("retired", RETIRED)):
        (directory / f"{kind}.csv").write_text(text)
    await site.collector(
        RAILSCOPE_COLLECTOR_QUOTAS_FILE="quotas.csv",
        RAILSCOPE_COLLECTOR_INVENTORY_FILE="inventory.csv",
        RAILSCOPE_COLLECTOR_RETIRED_FILE="retired.csv",
        RAILSCOPE_COLLECTOR_STALE_SECONDS="4",
        RAILSCOPE_COLLECTOR_VIEW_REFRESH_SECONDS="0.5",
        RAILSCOPE_COLLECTOR_METERING__PERIOD_SECONDS="0.5",
        RAILSCOPE_COLLECTOR_METERING__QUIET_SECONDS="1",
        **switches.settings,
    )
    settings = {
        "RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0",
        "RAILSCOPE_AGENT_PERIOD_SECONDS__LINK": "1",
        "RAILSCOPE_AGENT_PERIOD_SECONDS__NIC_SETTINGS": "2",
    }
    listen = {
        "n1": {"RAILSCOPE_AGENT_COLLECTIVES__NCCL_INSPECTOR_LISTEN": f"127.0.0.1:{free_port()}"}
    }
    agents = await asyncio.gather(
        *(site.agent(spec.node, **settings, **listen.get(spec.node, {})) for spec in SPECS)
    )
    return dict(zip((spec.node for spec in SPECS), agents, strict=True))


@pytest.mark.timeout(400)  # waits twice, and draws every dashboard
async def test_every_panel_shows_something(site: ProgramDirectory, tmp_path: Path) -> None:
    async with LiveSwitches(tmp_path).running() as switches:
        await check_panels(site, tmp_path, await start(site, tmp_path, switches))


async def check_panels(
    site: ProgramDirectory, tmp_path: Path, agents: Mapping[str, Program]
) -> None:
    pages = {
        node: (await agent.find_logged(r"agent_started .*address=(\S+:\d+)"))[1]
        for node, agent in agents.items()
    }
    shown = [q for q in every_question() if (q.dashboard, q.panel) not in QUIET]
    of_basic = [q for q in shown if detail_of(q.expression) is BASIC]
    assert len(of_basic) > 100
    async with prometheus(site, pages, BASIC) as basic, prometheus(site, pages, FULL) as full:
        # Both: the pictures are drawn from the one that may have started after an event that the other one has.
        waiting = [*((basic, q) for q in of_basic), *((full, q) for q in shown)]

        async def has_begun() -> bool:
            degraded = 'railscope_pcie_path_state{state="degraded"} == 1'
            return await basic.has(degraded) and await full.has(degraded)

        await wait_until(has_begun, f"the fault of {FALLS_SILENT} has begun", SCRAPE_SECONDS)
        await agents[FALLS_SILENT].stop()

        selected: dict[str, list[Values]] = {
            dashboard["title"]: [] for dashboard in DASHBOARDS.values()
        }

        async def shows_something(server: RunningPrometheus, question: DashboardQuery) -> bool:
            choice = await server.choice_with_data(question)
            if choice is not None and choice not in selected[question.dashboard]:
                selected[question.dashboard].append(choice)
            return choice is not None

        async def all_show_something() -> bool:
            waiting[:] = [each for each in waiting if not await shows_something(*each)]
            return not waiting

        try:
            await wait_until(all_show_something, "every panel shows something", SCRAPE_SECONDS)
        except pytest.fail.Exception:
            pytest.fail("nothing to show:\n" + "\n".join(str(q) for _, q in waiting))
        await check_command(full.prometheus.url, tmp_path / "drawn")  # it draws the last minute
        newest = time.time()
        await site.stop()  # Prometheus has all that is drawn
        await check_pictures(full, newest, selected, tmp_path)


async def check_pictures(
    running: RunningPrometheus,
    newest: float,
    selected: Mapping[str, Sequence[Values]],
    directory: Path,
) -> None:
    """Every dashboard is drawn, and each of its panels has data in at least one of its pictures.

    They are drawn for the selections of variables, by title of the dashboard, with which queries
    had data: not all devices show everything.

    Tables show one timestamp: data missing at the present are searched at earlier timestamps.
    """
    missing = {
        name: {
            panel["id"]
            for panel in dashboard["panels"]
            if "targets" in panel and (dashboard["title"], panel["title"]) not in QUIET
        }
        for name, dashboard in DASHBOARDS.items()
    }

    saved = min(DASHBOARDS, key=lambda name: len(DASHBOARDS[name]["panels"]))
    begun: set[str] = set()

    async def drawn(name: str, wanted: Values, end: float) -> None:
        window = QueryWindow(running.started, end, 1.0)
        shown = DASHBOARDS[name]
        if name in begun:  # only the panels that had no data before
            panels = [panel for panel in shown["panels"] if panel["id"] in missing[name]]
            shown = {**shown, "panels": panels}
        answers = await query_dashboard(running.prometheus, shown, window, wanted, layout.WIDTH)
        check_columns(shown, answers)
        picture = layout.draw_dashboard(shown, answers)
        missing[name] -= picture.drawn.keys()
        if name == saved and name not in begun:
            picture.canvas.save(directory / "saved.png")
        begun.add(name)

    for end in np.arange(newest, running.started, -SCRAPE_SECONDS):
        for name in DASHBOARDS:
            for wanted in selected[DASHBOARDS[name]["title"]]:
                if missing[name]:
                    await drawn(name, wanted, float(end))
    assert not any(missing.values()), missing
    assert begun == DASHBOARDS.keys()
    with Image.open(directory / "saved.png") as image:
        assert image.format == "PNG"
        assert image.size == (layout.WIDTH, layout.height(DASHBOARDS[saved]["panels"]))


def check_columns(dashboard: Mapping[str, Any], answers: DashboardResults) -> None:
    """Each column of a table has a title: no column of an unwanted label remains."""
    for panel in dashboard["panels"]:
        for step in panel.get("transformations", ()):
            if step["id"] == "organize":
                frame = tables.frame_of(panel, answers.panels[panel["id"]])
                titles = set(step["options"]["renameByName"].values())
                assert set(frame.columns) <= titles, (dashboard["title"], panel["title"])


async def check_command(url: str, directory: Path) -> None:
    """The command line draws the pictures."""
    command = [sys.executable, "-m", "railscope_dashboards.pictures", "--prometheus", url, "--to", str(directory),
               "--dashboard", "pair", "--choose", "node=n3", "--range", "1m", "--scrape-interval", "1s",
               "--sections", "1"]  # fmt: skip
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert f"{directory / 'pair.png'}: 8 panels drawn" in output.decode()
    with Image.open(directory / "pair.png") as image:
        assert image.size[0] == layout.WIDTH


def test_what_is_quiet_is_there() -> None:
    """The list of panels that stay empty names existing panels, with reasons."""
    known = {(question.dashboard, question.panel) for question in every_question()}
    assert QUIET.keys() <= known
    assert all(why.endswith(".") for why in QUIET.values())
