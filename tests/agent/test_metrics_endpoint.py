"""The agent's metrics endpoint: access, formats, and readings too old to be exported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from support.clock import ManualClock
from support.gpus import add_gpus
from support.machine import FakeHost
from support.metric_samples import Sample, sample, samples
from support.rdma_nics import add_nic
from support.reading import at_period
from support.sampling import run_sampler

from railscope.http_server import HttpServer
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.host import NvmlError
from railscope_agent.sampling.status import FAILED, OK, STARTING, UNSUPPORTED, SourceState
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.rdma import RdmaSource

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
SHOWN = "let-me-in"
PACKETS = sample("railscope_rdma_transmit_packets_total", device="mlx5_0", port="1")
POWER = sample("railscope_gpu_power_watts", gpu="GPU-0")


@asynccontextmanager
async def served(
    statuses: Iterable[SourceState], clock: ManualClock, token: str = ""
) -> AsyncIterator[aiohttp.ClientSession]:
    """Session with the metrics endpoint of these sources."""
    listed = list(statuses)
    page = MetricsEndpoint("node-1", lambda: listed, lambda: clock.now().boot_ns, token)
    server = HttpServer(page.respond)
    _, port = await server.start("127.0.0.1:0", None)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as found:
            yield found
    finally:
        await server.close()


def host_with_nic() -> FakeHost:
    host = FakeHost()
    add_nic(host)
    add_gpus(host, 1)
    return host


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ],
)
async def test_the_exposition_has_the_requested_format(accept: str, content_type: str) -> None:
    host = host_with_nic()
    async with (
        run_sampler(host, [RdmaSource()]) as run,
        served(run.sampler.statuses.values(), host.clock) as session,
        session.get("/metrics", headers={"Accept": accept} if accept else {}) as answer,
    ):
        text = await answer.text()
        assert (answer.status, answer.headers["Content-Type"]) == (200, content_type)
        assert "Accept" in answer.headers["Vary"]
        assert text.endswith("# EOF\n") == ("openmetrics" in content_type)
        assert samples(text)[PACKETS] == 100


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
async def test_metrics_are_compressed_for_clients_that_accept_it(accept: str) -> None:
    host = host_with_nic()
    async with (
        run_sampler(host, [RdmaSource(), GpuSource.load()]) as run,
        served(run.sampler.statuses.values(), host.clock) as session,
    ):
        bodies: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for encoding in ("identity", "gzip", "deflate, gzip;q=1.0, *;q=0.5"):
            headers = {"Accept": accept, "Accept-Encoding": encoding}
            async with session.get("/metrics", headers=headers) as answer:
                packed = answer.headers.get("Content-Encoding") == "gzip"
                assert packed == ("gzip" in encoding)
                assert "Accept-Encoding" in answer.headers["Vary"]
                bodies[encoding] = await answer.text()
                sizes[encoding] = int(answer.headers["Content-Length"])
        assert len(set(bodies.values())) == 1
        assert sizes["gzip"] < sizes["identity"] / 3


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("POST", "/metrics", 405), ("GET", "/metrics?x=1", 200)],
)
async def test_other_paths_and_methods(method: str, path: str, status: int) -> None:
    async with (
        served([], ManualClock()) as session,
        session.request(method, path) as answer,
    ):
        assert answer.status == status


async def test_a_token_guards_the_page_and_not_its_health() -> None:
    async with served([], ManualClock(), SHOWN) as session:
        for header, status in (
            (None, 401),
            ("Bearer wrong", 401),
            (f"Bearer {SHOWN}-too", 401),
            ("Bearer l\xe9t", 401),
            ("Basic bGV0OmluCg==", 401),
            (f"Bearer {SHOWN}", 200),
        ):
            headers = {"Authorization": header} if header else {}
            for path in ("/metrics", "/"):
                async with session.get(path, headers=headers) as answer:
                    assert (answer.status, header) == (status, header)
                    if status == 401:
                        assert answer.headers["WWW-Authenticate"] == "Bearer"
                        assert "metrics_token" in await answer.text()
        for path in ("/-/healthy", "/-/ready"):
            async with session.get(path) as answer:
                assert answer.status == 200


async def test_ready_when_every_source_has_reported() -> None:
    gpu, rdma = SourceState(GpuSource.load()), SourceState(RdmaSource())
    async with served([gpu, rdma], ManualClock()) as session:
        for states, status, text in (
            ((STARTING, STARTING), 503, "waiting for gpu, rdma"),
            ((STARTING, OK), 503, "waiting for gpu"),
            ((FAILED, UNSUPPORTED), 200, "ready"),
        ):
            gpu.state, rdma.state = states
            async with session.get("/-/ready") as answer:
                assert (answer.status, (await answer.text()).strip()) == (status, text)
            async with session.get("/-/healthy") as answer:
                assert answer.status == 200, "alive, whatever its sources do"


async def scrape(session: aiohttp.ClientSession) -> dict[Sample, float]:
    async with session.get("/metrics", headers={"Accept-Encoding": "identity"}) as answer:
        return samples(await answer.text())


async def test_readings_that_are_too_old_are_left_out() -> None:
    """Three periods, but never less than five seconds."""
    host = host_with_nic()
    async with run_sampler(host, [RdmaSource(), at_period(GpuSource.load(), 4.0)]) as run:
        statuses = run.sampler.statuses.values()
    async with served(statuses, host.clock) as session:
        assert {PACKETS, POWER} <= set(await scrape(session))
        host.clock.advance(5.0)
        assert {PACKETS, POWER} <= set(await scrape(session))
        host.clock.advance(0.1)
        assert PACKETS not in await scrape(session)
        assert POWER in await scrape(session)
        host.clock.advance(6.8)
        assert POWER in await scrape(session)
        host.clock.advance(0.2)
        assert await scrape(session) == {}


async def test_a_source_that_failed_leaves_the_page_and_comes_back() -> None:
    host = host_with_nic()
    count = "nvml.nvmlDeviceGetCount()"
    async with (
        run_sampler(host, [RdmaSource(), GpuSource.load()]) as run,
        served(run.sampler.statuses.values(), host.clock) as session,
    ):
        assert POWER in await scrape(session)
        healthy, host.calls[count] = host.calls[count], NvmlError(999)
        await run.step(60)  # the next probe
        assert set(await scrape(session)) >= {PACKETS}
        assert POWER not in await scrape(session)
        host.calls[count] = healthy
        await run.step()
        assert POWER in await scrape(session)
