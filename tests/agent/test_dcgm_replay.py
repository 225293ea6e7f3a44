"""The names of dcgm-exporter from a whole agent that replays a recorded server."""

from __future__ import annotations

import aiohttp
import pytest
from click.testing import CliRunner
from support.cases import CASES
from support.health_agents import ReadCapture
from support.metric_samples import Sample, samples

from railscope.http_server import HttpServer
from railscope_agent.commands import agent
from railscope_agent.service import Agent

CAPTURE = CASES / "hgx-h100-load"


@pytest.fixture(scope="module")
def agent_of_gpus(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    """An agent at the end of the capture."""
    return ReadCapture("hgx-h100-load", tmp_path_factory.mktemp("agent")).agent


async def page(session: aiohttp.ClientSession, path: str) -> str:
    async with session.get(path) as answer:
        return await answer.text()


def by_gpu(found: dict[Sample, float], name: str, label: str) -> dict[str, float]:
    """The values of a metric by the label that has the UUID of the GPU."""
    return {
        dict(labels)[label]: value
        for (found_name, labels), value in found.items()
        if found_name == name
    }


async def test_an_agent_serves_both_names_of_one_reading(agent_of_gpus: Agent) -> None:
    server = HttpServer(agent_of_gpus.endpoint.respond)
    _, port = await server.start("127.0.0.1:0", None)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        ours, theirs = [
            samples(await page(session, path)) for path in ("/metrics", "/metrics/dcgm")
        ]
        assert "/metrics/dcgm" in await page(session, "/nowhere")
        assert "/metrics/dcgm\n" in await page(session, "/")
    await server.close()
    sizes = by_gpu(ours, "railscope_gpu_memory_size_bytes", "gpu")
    assert sizes
    mebibytes = {gpu: size / 2**20 for gpu, size in sizes.items()}
    assert by_gpu(theirs, "DCGM_FI_DEV_FB_TOTAL", "UUID") == mebibytes
    assert {dict(labels)["UUID"] for _, labels in theirs} == set(sizes)


def test_the_command_prints_the_names_on_request() -> None:
    printed = {}
    for form in ("prom", "dcgm"):
        arguments = ["once", "--replay", str(CAPTURE), "--format", form]
        outcome = CliRunner().invoke(agent, arguments)
        assert outcome.exit_code == 0, outcome.output
        printed[form] = samples(outcome.output)
    celsius = by_gpu(printed["prom"], "railscope_gpu_temperature_celsius", "gpu")
    assert celsius
    assert by_gpu(printed["dcgm"], "DCGM_FI_DEV_GPU_TEMP", "UUID") == celsius
    assert all(name.startswith("DCGM_FI_") for name, _ in printed["dcgm"])
