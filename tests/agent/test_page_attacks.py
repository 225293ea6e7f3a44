"""The agent's metrics endpoint over raw sockets, with input of hostile devices and clients."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from support.framing import FRAMINGS, SMUGGLED
from support.gpus import add_gpus
from support.machine import FakeHost
from support.rdma_nics import add_nic
from support.sampling import run_sampler

from railscope.http_server import HttpServer
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.rdma import RdmaSource

BIDIRECTIONAL = "\u202e\u2066\u200f"
GET = b"GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
NEGATIVE = "port_xmit_packets"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Port of a metrics endpoint with a NIC whose counter is negative and a GPU whose name reverses text."""
    host = FakeHost()
    add_nic(host)
    add_gpus(host, 1)
    path = next(p for p in host.files if p.endswith(NEGATIVE))
    host.files[path] = "-5\n"
    host.calls["nvml.nvmlDeviceGetName(0)"] = f"NVIDIA {BIDIRECTIONAL}001H\n# HELP x\x1b[2J"
    async with run_sampler(host, [GpuSource.load(), RdmaSource()]) as run:
        statuses = run.sampler.statuses
        page = MetricsEndpoint("node-1", statuses.values, lambda: run.clock.now().boot_ns, "")
        server = HttpServer(page.respond)
        _, found = await server.start("127.0.0.1:0", None)
        try:
            yield found
        finally:
            await server.close()


async def answered(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_negative_counter_is_not_a_value(port: int) -> None:
    answer = (await answered(port, GET % b"/metrics")).decode()
    assert "railscope_rdma_transmit_packets_total{" not in answer
    assert 'railscope_rdma_port_state{device="mlx5_0",' in answer
    assert not re.search(r" -5(\.0)?$", answer, re.MULTILINE)


@pytest.mark.parametrize("path", [b"/metrics", b"/"])
async def test_text_that_turns_or_hides_other_text_is_escaped(port: int, path: bytes) -> None:
    answer = (await answered(port, GET % path)).decode()
    assert answer.startswith("HTTP/1.1 200 ")
    assert not set(BIDIRECTIONAL + "\x1b") & set(answer)
    assert "\n# HELP x" not in answer
    if path == b"/metrics":
        assert r"NVIDIA \\u202e\\u2066\\u200f001H" in answer


@pytest.mark.parametrize(
    "request_",
    [GET % b"/metrics", GET % b"/nowhere", b"nonsense\r\n\r\n", b"POST / HTTP/1.0\r\n\r\n"],
    ids=["200", "404", "400", "405"],
)
async def test_no_answer_names_the_software(port: int, request_: bytes) -> None:
    head = (await answered(port, request_)).partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 ")
    assert not any(
        header in head for header in (b"\r\nserver:", b"\r\nx-powered-by:", b"h11", b"python")
    )


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS)
async def test_an_ambiguous_length_is_rejected_with_all_that_follows(
    port: int, framing: bytes
) -> None:
    answer = await answered(port, b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + framing + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
