"""A simulated cluster that sends its frames to a collector: history, tokens, settings that cannot work."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import aiohttp
import pytest
from chain_support import ProgramDirectory, wait_until
from support.command_line import run
from support.forked_program import ForkedProgram
from support.scenarios import SLOW_RECEIVER

PARTITION = """
[[faults]]
fault = "node_partition"
begin_seconds = 100
length_seconds = 100
nodes = [3]
"""

DOWN = """
seconds = 300

[cluster]
nodes_per_pod = 2

[[faults]]
fault = "node_down"
begin_seconds = 3
nodes = [1]
"""

TOO_FAST = """
seconds = 300
step_seconds = 0.1
"""


async def start_simulator(site: ProgramDirectory, scenario: str, *options: str) -> ForkedProgram:
    """Start a simulated cluster that sends to the collector of the site."""
    (site.directory / "scenario.toml").write_text(scenario)
    simulator = ForkedProgram(
        "simulator",
        ["simulate", "cluster", "scenario.toml", "simulated", "--collector", site.url, *options],
        {**os.environ, "RAILSCOPE_AGENT_COLLECTOR__MAX_RETRY_SECONDS": "0.5"},
    )
    site.programs.append(simulator)
    await simulator.start(site.directory)
    return simulator


async def test_history_is_loaded_and_diagnosed(site: ProgramDirectory) -> None:
    """The collector starts after the simulator, with the tokens that it has written."""
    simulator = await start_simulator(site, SLOW_RECEIVER + PARTITION, "--speed", "maximum")
    simulated = site.directory / "simulated"
    await simulator.find_logged("collector_unreachable")
    shutil.copy(simulated / "tokens.toml", site.directory)
    await site.collector()
    assert await simulator.wait_for_end() == 0
    names = [f"gpu-node-{number}" for number in (1, 2, 3, 4)]

    async def lists_all_nodes() -> bool:
        rows = (await site.get("/api/v1/nodes"))["rows"]
        return [(row["node"], row["gpus"]) for row in rows] == [(name, 8) for name in names]

    await wait_until(lists_all_nodes, "the views contain all nodes")
    truth = [json.loads(line) for line in (simulated / "truth.jsonl").read_text().splitlines()]
    await site.stop()
    outcome = run("diagnose", "--frame-log", str(site.directory / "collector"), "--format", "json")
    incidents = {row["class"]: row for row in map(json.loads, outcome.stdout.splitlines())}
    assert incidents["slow_receiver"]["cause"]["interface"] == truth[0]["cause"][0]["interface"]
    assert incidents["slow_receiver"]["onset"] > truth[0]["onset"]


async def test_a_simulation_that_is_behind_the_clock_warns(site: ProgramDirectory) -> None:
    """Its frames are late, and a diagnosis would see nodes that do not report. The first sample takes a second."""
    simulator = await start_simulator(site, TOO_FAST)
    found = await simulator.find_logged(r'simulation_delayed .*fix="(.*?)"')
    assert "step_seconds" in found[1]


async def test_a_node_that_is_down_serves_no_metrics(site: ProgramDirectory) -> None:
    await start_simulator(site, DOWN, "--listen", "127.0.0.1:0")
    targets = site.directory / "simulated" / "targets.json"

    async def listens() -> bool:
        return targets.exists()

    await wait_until(listens, "the nodes serve their metrics")
    up, down = (target["targets"][0] for target in json.loads(targets.read_text()))

    async def is_down() -> bool:
        try:
            await metrics_of(down)
        except aiohttp.ClientConnectorError:
            return True
        return False

    await wait_until(is_down, "the second node is down")
    assert "railscope_gpu_info" in await metrics_of(up)


async def metrics_of(address: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as response,
    ):
        return await response.text()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--collector", "collector:9470"], "expected http:// or https://"),
        (["--collector", "http://127.0.0.1:1", "--listen", "9461"], "expected HOST:PORT"),
        (
            ["--collector", "http://127.0.0.1:1", "--listen", "127.0.0.1:65535"],
            "expected HOST:PORT with a port from 0 to 65535",
        ),
        (["--collector", "http://127.0.0.1:1", "--collector", "tcp://b"], "expected http"),
        (["--listen", "127.0.0.1:0"], "--listen without --collector: expected both"),
        (["--speed", "maximum"], "--speed without --collector: expected both"),
        (["--switches", "127.0.0.1:0"], "--switches without --collector: expected both"),
        (["--config", "agent.toml"], "--config without --collector: expected both"),
    ],
)
def test_settings_that_cannot_work_are_rejected_and_nothing_is_written(
    tmp_path: Path, options: list[str], problem: str
) -> None:
    (tmp_path / "scenario.toml").write_text("seconds = 1\n[cluster]\nnodes_per_pod = 2\n")
    outcome = run(
        "simulate", "cluster", str(tmp_path / "scenario.toml"), str(tmp_path / "out"), *options
    )
    assert outcome.exit_code
    assert problem in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_a_directory_with_content_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text("seconds = 1\n")
    arguments = ("simulate", "cluster", str(tmp_path / "scenario.toml"), str(tmp_path))
    outcome = run(*arguments, "--collector", "http://127.0.0.1:1")
    assert outcome.exit_code == 1
    assert "expected a new or empty directory" in outcome.stderr
