"""The names of dcgm-exporter from a whole agent that replays a recorded server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from click.testing import CliRunner
from support.cases import CASES
from support.metric_samples import Sample, samples

from railscope.capture import read_capture
from railscope_agent.commands import agent
from railscope_agent.config import AgentSettings
from railscope_agent.host.live_clock import LiveClock
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.service import Agent

PATIENCE_SECONDS = 60


CAPTURE = CASES / "hgx-h100-load"


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Session with the metrics endpoint of an agent that has replayed a whole capture."""
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    clock = LiveClock()
    started_ns = clock.now().boot_ns
    host = RecordedHost(read_capture(directory), clock, lambda: clock.now().boot_ns - started_ns)
    agent = Agent(
        AgentSettings(listen="127.0.0.1:0"),
        host,
        "node-1",
        on_listening=lambda _, port: listening.set_result(port),
    )
    task = asyncio.create_task(agent.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            url = f"http://127.0.0.1:{await listening}"
            async with aiohttp.ClientSession(url) as session:
                while not await ready(session):  # noqa: ASYNC110 - a metrics endpoint has no event
                    await asyncio.sleep(0.02)
                yield session
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


async def ready(session: aiohttp.ClientSession) -> bool:
    async with session.get("/-/ready") as answer:
        return answer.status == 200


async def page(session: aiohttp.ClientSession, path: str) -> dict[Sample, float]:
    async with session.get(path) as answer:
        assert answer.status == 200
        return samples(await answer.text())


def by_gpu(found: dict[Sample, float], name: str, label: str) -> dict[str, float]:
    """The values of a metric by the label that has the UUID of the GPU."""
    return {
        dict(labels)[label]: value
        for (found_name, labels), value in found.items()
        if found_name == name
    }


async def test_a_running_agent_serves_both_names_of_one_reading() -> None:
    async with running(CAPTURE) as session:
        ours = await page(session, "/metrics")
        theirs = await page(session, "/metrics/dcgm")
        async with session.get("/nowhere") as answer:
            assert "/metrics/dcgm" in await answer.text()
        async with session.get("/") as answer:
            assert 'href="/metrics/dcgm"' in await answer.text()
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
