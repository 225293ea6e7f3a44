"""Remote write and text import: encoding against independent decoders, and requests that a server rejects or delays."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import time

import pyarrow as pa
from aiohttp import web

from railscope.catalog import collector as catalog
from railscope_collector.config import RemoteWriteSettings
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.sinks.remote_write import RemoteWriteSink

Decoded = list[tuple[tuple[tuple[str, str], ...], int, int]]


def up(name: str, value: float = 1.0) -> ViewCell:
    return ViewCell(catalog.NODE_UP, (name,), value)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Decode a protobuf message by its specification."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        elif kind == 1:
            position += 8
            yield number, int.from_bytes(message[position - 8 : position], "little")
        else:
            assert kind == 2
            length = varint()
            position += length
            assert position <= len(message)
            yield number, message[position - length : position]


def uncompressed(block: bytes) -> bytes:
    """Decode a Snappy block, whose length is in its first bytes."""
    length = shift = 0
    for byte in block:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return pa.Codec("snappy").decompress(block, decompressed_size=length, asbytes=True)


def decoded(body: bytes) -> Decoded:
    """Return labels, bits of the value and timestamp of each series of a WriteRequest."""
    found: Decoded = []
    for number, series in fields(uncompressed(body)):
        assert number == 1
        labels, samples = [], []
        for part, content in fields(series):
            pairs = list(fields(content))
            assert [each for each, _ in pairs] == [1, 2]
            if part == 1:
                labels.append((pairs[0][1].decode(), pairs[1][1].decode()))
            else:
                samples.append((pairs[0][1], pairs[1][1]))
        assert labels == sorted(labels)
        assert len(samples) == 1
        found.append((tuple(labels), *samples[0]))
    return found


def bits(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]


@dataclass
class StoreServer:
    """Server with prepared responses, then 204; keeps requests and accepted series."""

    answers: list[web.Response]
    url: str = ""
    requests: list[web.Request] = field(default_factory=list)
    series: Decoded = field(default_factory=list)

    async def write(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append(request)
        if self.answers:
            return self.answers.pop(0)
        self.series += decoded(body)
        return web.Response(status=204)


@contextlib.asynccontextmanager
async def serving(*answers: web.Response) -> AsyncIterator[StoreServer]:
    server = StoreServer(list(answers))
    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/api/v1/write", server.write)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1/write"
    try:
        yield server
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def writing(
    settings: RemoteWriteSettings, *periods: list[ViewCell]
) -> AsyncIterator[RemoteWriteSink]:
    """A sink that writes some periods, one second apart."""
    steps = iter([(second * 10**9, cells) for second, cells in enumerate(periods, 1)])
    sink = RemoteWriteSink(settings, lambda: next(steps, (len(periods) * 10**9, [])))
    task = asyncio.create_task(sink.run())
    try:
        yield sink
    finally:
        task.cancel()
        await asyncio.wait({task})


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - a counter without an event
            await asyncio.sleep(0.02)


async def test_requests_have_the_headers_of_the_protocol_and_of_the_settings(tmp_path: Path):
    (tmp_path / "password").write_text("hunter2\n")
    async with serving() as server:
        settings = RemoteWriteSettings(
            url=server.url, user="me", password_file=str(tmp_path / "password"),
            headers={"X-Scope-OrgID": "gpu"}, labels={"instance": "", "site": "x"}, period_seconds=0.1,
        )  # fmt: skip
        async with writing(settings, [up("a")]) as sink:
            await until(lambda: sink.writer.written == 1)
        message = await RemoteWriteSink(settings, lambda: (0, ())).probe()
    headers = server.requests[0].headers
    assert headers["Content-Encoding"] == "snappy"
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    assert headers["User-Agent"].startswith("railscope-collector/")
    assert headers["X-Scope-OrgID"] == "gpu"
    assert headers["Authorization"] == "Basic bWU6aHVudGVyMg=="
    assert message == f"{server.url} accepts samples"
    common = (("job", "railscope-collector"), ("site", "x"))
    assert server.series[1][0] == (("__name__", "railscope_check"), *common)
    assert abs(server.series[1][2] / 1000 - time()) < 300
