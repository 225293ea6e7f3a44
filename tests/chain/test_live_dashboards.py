"""Every query of every dashboard, run on a real Prometheus that scrapes nodes with faults."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from chain_support import ProgramDirectory
from live_switches import LiveSwitches
from prometheus_support import RunningPrometheus, running_prometheus
from support.dashboards import DASHBOARDS, panels_of
from support.waiting import wait_until

from railscope.catalog import switches as catalog
from railscope.catalog.declare import BASIC, FULL, MetricDetail
from railscope_dashboards.promql import RULES, detail_of, fill_variables
from railscope_simulator import NodeSpec
from railscope_simulator.demo.process import Program
from railscope_simulator.node_hardware import build_node_hardware

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
BOTH_ENDS = "Both ends are read for less than its 15 minutes."
TOO_COOL = "No GPU gets hot before its capture starts again."
NO_LOSS = "No job is slower than before: captures are too short for its past."
QUIET: Mapping[tuple[str, str], str] = {
    ("Cluster overview", "Collector: rejected envelopes"): "No envelope is invalid.",
    ("Self-monitoring", "Rejected envelopes"): "No envelope is invalid.",
    ("Faults and health matrix", "NVLink errors"): "No link has errors.",
    ("Faults and health matrix", "Throttled by temperature or power brake"): TOO_COOL,
    ("Jobs and stragglers", "Throttled GPUs"): TOO_COOL,
    ("Jobs and stragglers", "Throttled GPUs of jobs"): TOO_COOL,
    ("Tenant", "Energy so far"): TOO_SHORT,
    ("Tenant", "Time computing so far"): TOO_SHORT,
    ("Tenant", "Network traffic so far"): TOO_SHORT,
    ("Incidents", "GPUs lost by class"): NO_LOSS,
    ("Incidents", "GPUs lost by tenant"): NO_LOSS,
    ("Incidents", "GPU time lost so far"): NO_LOSS,
    ("Tenant", "GPUs lost by class"): NO_LOSS,
    ("Tenant", "Incidents"): NO_LOSS,
    ("Self-monitoring", "Sources read less often"): "Budgets are off: replays are expensive.",
    (
        "Rails and congestion",
        "Pause frames that only one end counted",
    ): BOTH_ENDS,
    ("Switches", "Pause frames at both ends"): BOTH_ENDS,
}
"""Panels without data here, by dashboard and title, with the reason."""
OTHER_SWITCHES = (
    catalog.QUEUE_PEAK, catalog.GROUP_HEADROOM_PEAK, catalog.FCS_ERRORS, catalog.SYMBOL_ERRORS, catalog.FEC_CORRECTED, catalog.FEC_UNCORRECTABLE,
)  # fmt: skip
"""Facts that other dialects have than the switches here; those of transceivers as well."""


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    """A query of a dashboard, with its panel or annotation."""

    dashboard: str
    panel: str
    expression: str
    variables: Sequence[Mapping[str, Any]]
    targets: Sequence[Mapping[str, Any]] = ()
    transformations: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        """Return the title and the expression for messages."""
        return f"{self.dashboard}, {self.panel}: {self.expression}"

    def check_columns(self, labels: Collection[str]) -> None:
        """Each column of a table has a title or is hidden, and a grid has its row and its column."""
        steps = {step["id"]: step["options"] for step in self.transformations}
        if columns := steps.get("organize"):
            several = len(self.targets) > 1
            values = {f"Value #{t['refId']}" if several else "Value" for t in self.targets}
            hidden = {name for name, is_hidden in columns["excludeByName"].items() if is_hidden}
            assert {"Time", *labels, *values} <= columns["renameByName"].keys() | hidden, self
        if grid := steps.get("groupingToMatrix"):
            assert {grid["rowField"], grid["columnField"]} <= set(labels), self


def dashboard_queries(dashboard: Mapping[str, Any]) -> Iterator[DashboardQuery]:
    """Yield every query of a dashboard, including those of its annotations."""
    title, variables = dashboard["title"], dashboard["templating"]["list"]
    for panel in panels_of(dashboard):
        targets, transformations = panel.get("targets", ()), panel.get("transformations", ())
        for target in targets:
            yield DashboardQuery(title, panel["title"], target["expr"], variables, targets, transformations)  # fmt: skip
    for marks in dashboard["annotations"]["list"]:
        yield DashboardQuery(title, marks["name"], marks["expr"], variables)


@dataclass
class LiveDashboards:
    """Queries of dashboards on a Prometheus that started at a time."""

    prometheus: RunningPrometheus
    started: float = field(default_factory=time.time)

    async def labels(self, expression: str) -> frozenset[str] | None:
        """Return the labels of all values that a query had in the run; None without any value."""
        query = fill_variables(expression, {"__rate_interval": "5s"})
        times = {"start": str(self.started), "end": str(time.time()), "step": "1"}
        found = (await self.prometheus.get("query_range", query=query, **times))["result"]
        return frozenset().union(*(series["metric"] for series in found)) if found else None

    async def shows_something(self, question: DashboardQuery) -> bool:
        """True if a query has data for a selection of the variables."""
        async for choice in self._choices(question.variables, {}):
            labels = await self.labels(fill_variables(question.expression, choice))
            if labels is not None:
                question.check_columns(labels)
                return True
        return False

    async def _choices(
        self, variables: Sequence[Mapping[str, Any]], made: Mapping[str, str]
    ) -> AsyncIterator[Mapping[str, str]]:
        """Yield the combinations of values of variables that Grafana offers."""
        if not variables:
            yield made
            return
        variable, *rest = variables
        for value in await self._offered(variable, made):
            async for choice in self._choices(rest, {**made, variable["name"]: value}):
                yield choice

    async def _offered(self, variable: Mapping[str, Any], made: Mapping[str, str]) -> list[str]:
        """Return the values of a variable that Grafana offers."""
        if variable["type"] == "datasource":
            return [""]
        if variable["includeAll"]:
            return [variable["allValue"]]
        query = fill_variables(variable["query"], made)
        selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
        values: list[str] = await self.prometheus.get(
            f"label/{label}/values", **{"match[]": selector}
        )
        return values


def every_question() -> list[DashboardQuery]:
    return [
        question for dashboard in DASHBOARDS.values() for question in dashboard_queries(dashboard)
    ]


@asynccontextmanager
async def prometheus(
    site: ProgramDirectory, pages: Mapping[str, str], detail: MetricDetail
) -> AsyncIterator[LiveDashboards]:
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
    storage = f"--storage.tsdb.path=tsdb-{detail}"
    async with running_prometheus(site.directory, config, storage, name=str(detail)) as running:
        yield LiveDashboards(running)


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
        "RAILSCOPE_AGENT_PERIOD_SECONDS": "{ link = 1, nic_settings = 2 }",
    }
    agents = await asyncio.gather(*(site.agent(spec.node, **settings) for spec in SPECS))
    return dict(zip((spec.node for spec in SPECS), agents, strict=True))


@pytest.mark.thorough
@pytest.mark.timeout(400)  # waits twice
async def test_every_panel_shows_something(site: ProgramDirectory, tmp_path: Path) -> None:
    async with LiveSwitches(tmp_path).running() as switches:
        await check_panels(site, await start(site, tmp_path, switches))


async def check_panels(site: ProgramDirectory, agents: Mapping[str, Program]) -> None:
    pages = {
        node: (await agent.find_logged(r"agent_started .*address=(\S+:\d+)"))[1]
        for node, agent in agents.items()
    }
    shown = [
        q
        for q in every_question()
        if (q.dashboard, q.panel) not in QUIET
        and not any(metric.name in q.expression for metric in OTHER_SWITCHES)
        and "railscope_switch_transceiver_" not in q.expression
    ]
    of_basic = [q for q in shown if detail_of(q.expression) is BASIC]
    assert len(of_basic) > 100
    async with prometheus(site, pages, BASIC) as basic, prometheus(site, pages, FULL) as full:
        waiting = deque([*((basic, q) for q in of_basic), *((full, q) for q in shown)])

        async def has_begun() -> bool:
            degraded = 'railscope_pcie_path_state{state="degraded"} == 1'
            return None not in {await basic.labels(degraded), await full.labels(degraded)}

        await wait_until(has_begun, f"the fault of {FALLS_SILENT} has begun", SCRAPE_SECONDS)
        await agents[FALLS_SILENT].stop()

        async def all_show_something() -> bool:
            """Ask the queries in turn: a query without data is asked again before the next one is."""
            while waiting and await waiting[0][0].shows_something(waiting[0][1]):
                waiting.popleft()
            return not waiting

        try:
            await wait_until(all_show_something, "every panel shows something", SCRAPE_SECONDS)
        except pytest.fail.Exception:
            empty = [str(q) for page, q in waiting if not await page.shows_something(q)]
            pytest.fail("nothing to show:\n" + "\n".join(empty))
