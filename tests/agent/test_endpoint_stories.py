"""The agent's HTTP server over a socket, as text.

    serve [TOKEN]              a node with a NIC and a GPU; the endpoint requires the token
    file PATH TEXT             another content of a file of the node; `name JSON` is the GPU's name
    fail, heal                 the driver of the GPU fails, or works again
    pass SECONDS               the clock advances, and due sources are read; `stop` ends all reads
    step SECONDS               the wall clock is set
    get PATH [HEADER: VALUE]   a request; below it, the status, the type of the content and its encoding
    has TEXT                   lines of the last body that contain it
    send TEXT                  bytes of a client, with escapes; below it, the first line of each response

No response names the software of the server.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from contextlib import AsyncExitStack

from support.framing import FRAMINGS, SMUGGLED
from support.gpus import add_gpus
from support.machine import FakeHost
from support.rdma_nics import add_nic
from support.reading import at_period
from support.sampling import RunningSampler, run_sampler
from support.stories import Story

from railscope.http_server import HttpServer
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.host import NvmlError
from railscope_agent.sampling.status import SourceState
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.rdma import RdmaSource

COUNT = "nvml.nvmlDeviceGetCount()"
SOFTWARE = (b"\r\nserver:", b"\r\nx-powered-by:", b"h11", b"python")


class Endpoint:
    """A node, its sampler, and the server."""

    def __init__(self) -> None:
        self.host = FakeHost()
        add_nic(self.host)
        add_gpus(self.host, 1)
        self.count = self.host.calls[COUNT]
        self.stack, self.reads = AsyncExitStack(), AsyncExitStack()
        self.run: RunningSampler
        self.states: list[SourceState] = []
        self.port, self.body = 0, ""

    async def play(self, command: str) -> list[str]:
        """Run a command."""
        name, _, text = command.partition(" ")
        return await getattr(self, f"on_{name}")(text) or []

    async def close(self) -> None:
        """End all."""
        await self.stack.aclose()
        await self.reads.aclose()

    async def on_serve(self, token: str) -> None:
        sources = [RdmaSource(), at_period(GpuSource.load(), 4.0)]
        self.run = await self.reads.enter_async_context(run_sampler(self.host, sources))
        self.states = list(self.run.sampler.statuses.values())
        clock = self.host.clock
        page = MetricsEndpoint("node-1", lambda: self.states, lambda: clock.now().boot_ns, token)
        server = HttpServer(page.respond)
        _, self.port = await server.start("127.0.0.1:0", None)
        self.stack.push_async_callback(server.close)

    async def on_file(self, text: str) -> None:
        path, content = text.split(" ", 1)
        self.host.files[path] = content

    async def on_name(self, text: str) -> None:
        self.host.calls["nvml.nvmlDeviceGetName(0)"] = json.loads(text)

    async def on_fail(self, _: str) -> None:
        self.host.calls[COUNT] = NvmlError(999)

    async def on_heal(self, _: str) -> None:
        self.host.calls[COUNT] = self.count

    async def on_pass(self, seconds: str) -> None:
        if self.run.sampler and self.reads_are_running:
            await self.run.step(float(seconds))
        else:
            self.host.clock.advance(float(seconds))

    async def on_stop(self, _: str) -> None:
        await self.reads.aclose()
        self.reads_are_running = False

    reads_are_running = True

    async def on_step(self, seconds: str) -> None:
        self.host.clock.step_wall(float(seconds))

    async def on_starting(self, _: str) -> None:
        self.states.append(SourceState(GpuSource.load()))

    async def on_get(self, text: str) -> list[str]:
        path, _, header = text.partition(" ")
        lines = [f"GET {path} HTTP/1.1", "Host: a", *filter(None, [header]), "Connection: close"]
        answer = await self._exchange("\r\n".join([*lines, "", ""]).encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        first, *fields = head.decode().split("\r\n")
        named = dict(field.lower().split(": ", 1) for field in fields)
        encoding = named.get("content-encoding", "")
        self.body = (gzip.decompress(body) if encoding else body).decode()
        shown = [first.split()[1], named.get("content-type", ""), encoding]
        return [" ".join(filter(None, shown))]

    async def on_has(self, text: str) -> list[str]:
        assert not set("\u202e\u2066\u200f\x1b") & set(self.body)
        return [line for line in self.body.splitlines() if text in line]

    async def on_send(self, text: str) -> list[str]:
        content = text.encode().decode("unicode_escape").encode("latin-1")
        answer = await self._exchange(content)
        return [line.decode() for line in re.findall(rb"HTTP/1\.1 [^\r]*", answer)]

    async def on_framings(self, _: str) -> list[str]:
        shown = []
        for name, framing in FRAMINGS.items():
            head = b"GET /metrics HTTP/1.1\r\nHost: a\r\n"
            answer = await self._exchange(head + framing + SMUGGLED)
            shown.append(f"{name}: {answer[9:12].decode()}, {answer.count(b'HTTP/1.1 ')} response")
        return shown

    async def _exchange(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert not any(name in head for name in SOFTWARE)
        return answer


def test_story(story: Story) -> None:
    with asyncio.Runner() as runner:
        endpoint = Endpoint()
        try:
            story.play(lambda command: runner.run(endpoint.play(command)))
        finally:
            runner.run(endpoint.close())
