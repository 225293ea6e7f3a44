"""`python -m railscope_dashboards.pictures.site`: a small cluster with faults, a Prometheus, pictures of dashboards and of the console.

Nodes are simulated and replayed by real agents; a real collector receives their data, and a real
Prometheus scrapes all of them. Faults start one after the other, each at half of its node's
capture.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml
from PIL import Image
from playwright import async_api as playwright_api

from railscope import capture, service
from railscope_dashboards import build, prometheus_api, promql
from railscope_dashboards.pictures.fields import UnsupportedFeatureError
from railscope_dashboards.pictures.layout import WIDTH, draw_dashboard
from railscope_simulator import NodeSpec, capture_metadata, moments
from railscope_simulator.demo.cluster import write_identities
from railscope_simulator.demo.process import Program, ProgramError

SCRAPE_SECONDS = 2
INTERVAL_SECONDS = 5
"""Scrape interval set for the data source: rates smooth the steps of training a little."""
WARM_UP_SECONDS = 30
"""Not shown: there are no rates yet."""
START_SECONDS = 120
"""Limit from the start of the first agent to the first scrape of all: captures last longer by this."""
_POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SiteNode:
    """A simulated node, and the share of the run after which its fault starts: half of it or later.

    A fault starts at half of a capture, and no capture may be shorter than the run.
    """

    spec: NodeSpec
    fault_after: float = 0.5


SITE_NODES = (
    SiteNode(NodeSpec("gpu-node-1", seed=7, scheduler="slurm")),
    SiteNode(NodeSpec("gpu-node-2", seed=7, scenario="thermal", scheduler="slurm")),
    SiteNode(NodeSpec("gpu-node-3", seed=3, scenario="slow_receiver", scheduler="kubernetes", unclaimed=True), 0.55),
    SiteNode(NodeSpec("gpu-node-4", seed=4, scenario="incast", scheduler="kubernetes"), 0.65),
    SiteNode(NodeSpec("gpu-node-5", seed=5, scenario="ecc_uncorrected", scheduler="slurm"), 0.8),
    SiteNode(NodeSpec("gpu-node-6", seed=6, scenario="pcie_degraded", scheduler="slurm"), 0.75),
    SiteNode(NodeSpec("gpu-node-7", seed=8, scenario="speed_down", scheduler="kubernetes")),
)  # fmt: skip
CHOSEN: Mapping[str, prometheus_api.Values] = {
    "node": {"node": "gpu-node-2"},
    "pair": {"node": "gpu-node-3", "rail": "3"},
}
"""Values of the variables of dashboards that show one of several devices: those with visible effects."""
TOPS = {"cluster-overview": 2, "rails": 2, "health": 2}
"""Dashboards with an additional picture of the first rows, and the number of rows: for README."""
CONSOLE_PAGES: Mapping[str, str] = {
    "console-overview": "/",
    "console-incident": "/incidents",
    "console-gpu": "/nodes/gpu-node-3/gpus/3",
}
"""Pages of the web console; of the list of incidents, the first one."""
_CONSOLE_HEIGHT = 1000
_COLORS = 128
_QUOTAS = """tenant,gpu_hours,period,gpus,from,to
language,40,month,32,2020-01-01T00:00:00Z,
vision,4,day,32,2020-01-01T00:00:00Z,
"""
_NOT_INSTALLED = "gpu-node-8"
_COLLECTOR = ["collector", "run", "--listen", "127.0.0.1:0", "--state-directory", "collector"]
_COLLECTOR += ["--tokens-file", "tokens.toml", "--allow-anonymous-read"]
_COLLECTOR_SETTINGS = {
    "COLLECTOR_VIEW_REFRESH_SECONDS": "1",
    "COLLECTOR_TENANTS_FILE": "tenants.csv",
    "COLLECTOR_QUOTAS_FILE": "quotas.csv",
    "COLLECTOR_INVENTORY_FILE": "inventory.csv",
    "COLLECTOR_METERING__PERIOD_SECONDS": "1",
    "COLLECTOR_METERING__QUIET_SECONDS": "2",
}
_AGENT = ["agent", "run", "--listen", "127.0.0.1:0"]
_AGENT_SETTINGS = {
    "AGENT_BUDGET__CPU_RATIO": "0",  # a replay costs more than real hardware
    "AGENT_BUDGET__MEMORY_BYTES": str(512 << 20),  # and is larger
    "AGENT_METRICS__DETAIL": "full",
    "AGENT_PERIOD_SECONDS__LINK": "2",
    "AGENT_PERIOD_SECONDS__NIC_SETTINGS": "5",
}


@asynccontextmanager
async def running(directory: Path, seconds: int) -> AsyncIterator[tuple[str, str, list[Program]]]:
    """Run a collector, agents and a Prometheus; yield the addresses of Prometheus and the collector, and our programs."""
    tokens = await service.run_in_thread(_prepare, directory, seconds)
    async with AsyncExitStack() as stack:

        async def start(name: str, arguments: list[str], more: Mapping[str, str]) -> Program:
            environment = {**os.environ, **{f"RAILSCOPE_{key}": more[key] for key in more}}
            program = Program(name, arguments, environment)
            await program.start(directory)
            stack.push_async_callback(program.stop)
            return program

        collector = await start("collector", _COLLECTOR, _COLLECTOR_SETTINGS)
        listen = (await collector.find_logged(r"collector_started .*address=(\S+:\d+)"))[1]
        started = time.monotonic()
        agents = {}
        for node, token in tokens.items():
            arguments = [*_AGENT, "--node", node, "--replay", node, "--state-directory"]
            arguments += [f"state-{node}", "--collector", f"http://{listen}"]
            settings = _AGENT_SETTINGS | {"AGENT_COLLECTOR__TOKEN": token}
            agents[node] = await start(f"agent of {node}", arguments, settings)
        addresses = {
            node: (await agent.find_logged(r"agent_started .*address=(\S+:\d+)"))[1]
            for node, agent in agents.items()
        }
        (directory / "prometheus.yml").write_text(_scrapes(addresses, listen))
        # Evaluated as often as everything is scraped.
        recorded = {"name": "recorded", "rules": list(promql.recording_rules())}
        (directory / "recorded.yml").write_text(yaml.safe_dump({"groups": [recorded]}))
        url = await stack.enter_async_context(_prometheus(directory))
        waited = time.monotonic() - started
        if waited > START_SECONDS:
            message = (
                f"starting the cluster took {waited:.0f} s: expected at most {START_SECONDS} s, "
                "or captures begin again during the run; fix: use a less busy machine"
            )
            raise ProgramError(message)
        yield url, f"http://{listen}", [collector, *agents.values()]


def _prepare(directory: Path, seconds: int) -> dict[str, str]:
    """Write captures and settings of the collector; return the token of each node."""
    for node in SITE_NODES:
        length = round(2 * node.fault_after * (START_SECONDS + WARM_UP_SECONDS + seconds))
        capture.write_capture(
            directory / node.spec.node,
            capture_metadata(node.spec, length),
            moments(node.spec, length),
        )
    (directory / "quotas.csv").write_text(_QUOTAS)
    (directory / "inventory.csv").write_text(_inventory())
    return write_identities(directory, (node.spec.node for node in SITE_NODES))


def _inventory() -> str:
    """Return an inventory of all nodes, and of one that is not installed yet."""
    names = (*(node.spec.node for node in SITE_NODES), _NOT_INSTALLED)
    rows = (f"{name},8,10,2020-01-01T00:00:00Z,\n" for name in names)
    return "node,gpus,rdma_ports,from,to\n" + "".join(rows)


def _scrapes(addresses: Mapping[str, str], collector: str) -> str:
    agents = [
        {"targets": [address], "labels": {"node": node}} for node, address in addresses.items()
    ]
    jobs: list[dict[str, Any]] = [
        {"job_name": "railscope-agent", "static_configs": agents},
        {
            "job_name": "railscope-collector",
            "honor_labels": True,
            "static_configs": [{"targets": [collector]}],
        },
    ]
    often = f"{SCRAPE_SECONDS}s"
    config = {
        "global": {"scrape_interval": often, "evaluation_interval": often},
        "rule_files": ["recorded.yml"],
        "scrape_configs": jobs,
    }
    return yaml.safe_dump(config)


@asynccontextmanager
async def _prometheus(directory: Path) -> AsyncIterator[str]:
    """Run a Prometheus until it answers; it is stopped afterwards by its own pid."""
    if shutil.which("prometheus") is None:
        message = (
            "starting Prometheus failed: prometheus: not found; fix: apt-get install prometheus"
        )
        raise click.ClickException(message)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with (directory / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=tsdb",
            f"--web.listen-address={address}",
            stdout=log,
            stderr=log,
            cwd=directory,
        )
    try:
        async with (
            asyncio.timeout(START_SECONDS),
            prometheus_api.Prometheus(f"http://{address}") as prometheus,
        ):
            while not await _has_scraped(prometheus):  # noqa: ASYNC110 - no event from another process
                await asyncio.sleep(0.2)
        yield f"http://{address}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _has_scraped(prometheus: prometheus_api.Prometheus) -> bool:
    try:
        result = await prometheus.query_instant("up == 1", time.time())
    except prometheus_api.PrometheusError:
        return False
    return len(result.series) > len(SITE_NODES)


async def _run(directory: Path, seconds: int, to: Path) -> None:
    click.echo(f"Simulating {len(SITE_NODES)} nodes ...")
    async with (
        running(directory, seconds) as (url, collector, programs),
        prometheus_api.Prometheus(url) as prometheus,
    ):
        end = time.time() + WARM_UP_SECONDS + seconds
        click.echo(f"Prometheus is at {url}; pictures in {end - time.time():.0f} s ...")
        while (left := end - time.time()) > 0:
            await asyncio.sleep(min(_POLL_SECONDS, left))
            for program in programs:
                program.check_alive()
        missed = await prometheus.query_instant(
            f"100 * avg(1 - avg_over_time(up[{seconds}s]))", end
        )
        click.echo(f"{missed.series[0].values[0]:.2f} % of scrapes failed")
        await _draw_all(
            prometheus, prometheus_api.QueryWindow(end - seconds, end, INTERVAL_SECONDS), to
        )
        await photograph_console(collector, to)


async def photograph_console(url: str, to: Path) -> None:
    """Save pictures of the pages of a console, in Chromium. Raises ClickException without it."""
    program = shutil.which("chromium")
    if program is None:
        message = "taking pictures failed: chromium: not found; fix: apt-get install chromium"
        raise click.ClickException(message)
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    async with playwright_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=sandbox)
        page = await browser.new_page(viewport={"width": WIDTH, "height": _CONSOLE_HEIGHT})
        for name, path in CONSOLE_PAGES.items():
            await page.goto(url + path)
            first = page.locator("main table a").first
            if path == "/incidents" and await first.count():
                await first.click()
                await page.wait_for_url("**/incidents/*")
            with Image.open(io.BytesIO(await page.screenshot())) as image:
                image.quantize(_COLORS).save(to / f"{name}.png", optimize=True)
            click.echo(f"{name}: {page.url}")
        await browser.close()


async def _draw_all(
    prometheus: prometheus_api.Prometheus, window: prometheus_api.QueryWindow, to: Path
) -> None:
    for name, text in build.dashboards():
        stem, dashboard = Path(name).stem, json.loads(text)
        answers = await prometheus_api.query_dashboard(
            prometheus, dashboard, window, CHOSEN.get(stem, {}), WIDTH
        )
        picture = draw_dashboard(dashboard, answers)
        picture.canvas.save(to / f"{stem}.png")
        empty = ", ".join(picture.empty.values())
        click.echo(f"{stem}: {len(picture.drawn)} drawn" + (f"; no data: {empty}" if empty else ""))
        if sections := TOPS.get(stem):
            draw_dashboard(dashboard, answers, sections).canvas.save(to / f"{stem}-top.png")


@click.command()
@click.option(
    "--seconds",
    type=click.IntRange(min=20),
    default=600,
    show_default=True,
    help="Time range of the pictures; the cluster runs slightly longer.",
)
@click.option(
    "--to", type=click.Path(path_type=Path), required=True, help="Directory of the pictures."
)
def main(seconds: int, to: Path) -> None:
    """Run a small cluster with faults, and draw every dashboard of it."""
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="railscope-pictures-") as directory:
        try:
            asyncio.run(_run(Path(directory), seconds, to))
        except (
            prometheus_api.PrometheusError,
            UnsupportedFeatureError,
            ProgramError,
            TimeoutError,
        ) as error:
            raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
