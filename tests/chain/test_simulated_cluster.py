"""A simulated cluster that sends its frames to a collector: history, tokens, settings that cannot work."""

from __future__ import annotations

import json
import os
import shutil

import aiohttp
import pytest
from chain_support import ProgramDirectory
from support.command_line import run
from support.forked_program import ForkedProgram
from support.scenarios import SLOW_RECEIVER
from support.waiting import wait_until

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


@pytest.mark.thorough
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
