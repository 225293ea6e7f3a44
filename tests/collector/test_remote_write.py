"""Remote write and text import: encoding against independent decoders, and requests that a server rejects or delays."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import math
import re
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from time import time

import pyarrow as pa
import pytest
from aiohttp import web
from hypothesis import given, strategies as st
from msgspec import structs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from structlog.testing import capture_logs
from support.otlp_decoding import DecodedMetrics

from railscope.catalog import METRICS, collector as catalog, rollups
from railscope.catalog.declare import MetricKind
from railscope.settings import SettingsError
from railscope_collector.config import RemoteWriteSettings
from railscope_collector.fleet.view_cells import ViewCell, label_names
from railscope_collector.sinks import MAX_PROBLEM_LENGTH
from railscope_collector.sinks.otlp_format import OtlpMetricsFormat
from railscope_collector.sinks.remote_write import RemoteWriteSink
from railscope_collector.sinks.sample_formats import (
    STALE_MARKER,
    ImportTextFormat,
    SampleEncoder,
    WriteRequestFormat,
)

MILLISECOND_NS = 1_000_000
STALE = struct.unpack("<Q", STALE_MARKER)[0]
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


NAMES = st.text(st.characters(codec="utf-8"), max_size=300)
CELLS = st.dictionaries(NAMES, st.floats(), max_size=20)


@given(CELLS, st.integers(-(1 << 40), 1 << 60), NAMES)
def test_every_sample_is_decoded_as_it_was(cells: dict[str, float], timestamp: int, site: str):
    encoder = SampleEncoder(
        WriteRequestFormat(), {"site": site, "job": "railscope-collector"}, max_samples=7
    )
    batches = encoder.encode(timestamp, [up(name, value) for name, value in cells.items()])
    assert all(batch.size == len(decoded(batch.body)) <= 7 for batch in batches)
    expected = [
        (
            tuple(
                (name, text)
                for name, text in sorted({
                    "__name__": catalog.NODE_UP.name, "job": "railscope-collector", "node": node, "site": site,
                }.items())
                if text
            ),
            bits(value),
            timestamp // MILLISECOND_NS % (1 << 64),
        )
        for node, value in cells.items()
    ]  # fmt: skip
    assert [each for batch in batches for each in decoded(batch.body)] == expected


LINE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+) (-?\d+)\n')
LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')


@given(CELLS, st.integers(0, 1 << 60))
def test_every_line_is_read_as_it_was(cells: dict[str, float], timestamp: int):
    encoder = SampleEncoder(ImportTextFormat(), {"job": "railscope-collector"})
    text = "".join(
        gzip.decompress(batch.body).decode()
        for batch in encoder.encode(timestamp, [up(node, value) for node, value in cells.items()])
    )
    position, found = 0, {}
    while position < len(text):
        line = LINE.match(text, position)
        assert line, text[position:]
        position = line.end()
        labels = {
            name: re.sub(r"\\(.)", lambda escape: escape[1].replace("n", "\n"), value)
            for name, value in LABEL.findall(line[2])
        }
        assert labels.pop("job") == "railscope-collector"
        assert int(line[4]) == timestamp // MILLISECOND_NS
        found[labels.get("node", "")] = float(line[3])
    assert found.keys() == cells.keys()
    assert all(
        bits(found[name]) == bits(value) or math.isnan(value) for name, value in cells.items()
    )


def test_a_series_that_ends_gets_one_stale_marker():
    encoder = SampleEncoder(WriteRequestFormat(), {})
    periods = [[up("a"), up("b")], [up("a")], [up("a")], [up("a"), up("b", math.nan)]]
    found = []
    for second, cells in enumerate(periods):
        batches = encoder.encode(second * 10**9, cells)
        series = [each for batch in batches for each in decoded(batch.body)]
        found.append({labels[-1][1]: value for labels, value, _ in series})
    one = bits(1.0)
    assert found == [
        {"a": one, "b": one},
        {"a": one, "b": STALE},
        {"a": one},
        {"a": one, "b": bits(math.nan)},
    ]
    assert bits(math.nan) != STALE


def test_zeros_of_sparse_metrics_and_repeated_series_are_omitted():
    metric = next(each for each in METRICS.values() if each.sparse)
    sparse = ViewCell(metric, ("x",) * len(metric.about.labels), 0.0)
    (batch,) = SampleEncoder(WriteRequestFormat(), {}).encode(0, [up("a"), sparse, up("a", 2.0)])
    assert [value for _, value, _ in decoded(batch.body)] == [bits(1.0)]


def otlp_encoder(max_samples: int = 10_000) -> SampleEncoder:
    """Encoder of the requests that a sink with the format otlp sends."""
    url = "http://h:4318/v1/metrics"
    sink = RemoteWriteSink(
        RemoteWriteSettings(
            url=url, format="otlp", labels={"site": "x"}, max_buffered_samples=max_samples
        ),
        instance="c1:9470",
    )
    return sink._encoder()  # noqa: SLF001 - the encoder of the settings


def test_points_of_otlp_are_the_samples_and_end_with_their_series():
    encoder, received = otlp_encoder(max_samples=2), DecodedMetrics()
    counter = ViewCell(catalog.REMOTE_WRITTEN, (), 2.0**53)
    nodes = [up("a\x00b"), up(""), up("ü", 0.5)]
    for second, cells in enumerate([[*nodes, counter], [nodes[0], counter]], 1):
        for batch in encoder.encode(second * 10**9, cells):
            assert received.add(gzip.decompress(batch.body)) == batch.size <= 2
    name, written = catalog.NODE_UP.name, catalog.REMOTE_WRITTEN.name
    assert received.samples == {
        (name, frozenset({("node", "a\x00b")})): 1.0,
        (written, frozenset()): 2.0**53,
    }
    assert received.ended == [(name, frozenset()), (name, frozenset({("node", "ü")}))]
    assert {point.time_unix_nano for point in received.points.values()} == {2 * 10**9}
    assert received.messages[written].sum.is_monotonic
    assert received.resources[0] == {
        "service.name": "railscope-collector", "service.instance.id": "c1:9470", "site": "x",
    }  # fmt: skip


def test_messages_of_otlp_are_kept_and_leave_with_their_series():
    encoder, received = otlp_encoder(max_samples=2), DecodedMetrics()
    assert isinstance(encoder.format, OtlpMetricsFormat)
    name, written = catalog.NODE_UP.name, catalog.REMOTE_WRITTEN.name
    kept: set[int] = set()
    messages = []
    for second in range(1, 5):
        own = ViewCell(catalog.REMOTE_WRITTEN, (), float(second))
        for batch in encoder.encode(second * 10**9, [*(up(n, second / 4) for n in "abc"), own]):
            received.add(gzip.decompress(batch.body))
        messages += [each.points for each in encoder.format.kept_points.values()]
        kept |= {id(points) for points in messages}
    assert len(messages) == 4 * len(kept) == 12
    assert received.samples == {
        **{(name, frozenset({("node", node)})): 1.0 for node in "abc"},
        (written, frozenset()): 4.0,
    }
    encoder.encode(5 * 10**9, [own])
    assert [key[0] for key in encoder.format.kept_points] == [written]


def test_names_of_otlp_are_those_of_the_metrics_endpoint_for_every_metric():
    encoder, received = otlp_encoder(), DecodedMetrics()
    metrics = [*METRICS.values(), *(each.metric for each in rollups().values())]
    plain = [each for each in metrics if each.kind is not MetricKind.HISTOGRAM and not each.sparse]
    cells = [ViewCell(each, ("x",) * len(label_names(each)), 1.0) for each in plain]
    for batch in encoder.encode(10**9, cells):
        received.add(gzip.decompress(batch.body))
    assert {key[0] for key in received.samples} == {each.name for each in plain}


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


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422])
async def test_rejected_samples_are_dropped_with_a_bounded_reason(status: int):
    reason = "out of order sample\x07\n" + "x" * 5000
    with capture_logs() as logs:
        async with serving(web.Response(status=status, text=reason)) as server:
            settings = RemoteWriteSettings(url=server.url, period_seconds=0.1)
            async with writing(settings, [up("a")], [up("a"), up("b")]) as sink:
                await until(lambda: sink.writer.written == 2)
    assert (sink.writer.rejected, sink.writer.overflowed, sink.writer.waiting) == (1, 0, 0)
    assert [timestamp for _, _, timestamp in server.series] == [2000, 2000]
    (line,) = [each for each in logs if each["event"] == "sink_batch_rejected"]
    assert line["problem"].startswith(f"{status} out of order sample")
    assert len(line["problem"]) <= MAX_PROBLEM_LENGTH
    assert line["problem"].isprintable()
    assert line["entries"] == 1


BROKEN_GZIP = gzip.compress(b"bad request")[:-9] + b"broken"


@pytest.mark.parametrize("headers", [{"Content-Encoding": "gzip"}, {"Content-Encoding": "deflate"}])
@pytest.mark.parametrize(("status", "counts"), [(400, (1, 1)), (204, (2, 0)), (200, (2, 0))])
async def test_a_response_that_cannot_be_decompressed_does_not_hide_its_status(
    status: int, counts: tuple[int, int], headers: dict[str, str]
):
    broken = web.Response(status=status, body=BROKEN_GZIP, headers=headers)
    async with serving(broken) as server:
        settings = RemoteWriteSettings(url=server.url, period_seconds=0.1)
        async with writing(settings, [up("a")], [up("a")]) as sink:
            await until(lambda: sink.writer.written + sink.writer.rejected == 2)
    assert (sink.writer.written, sink.writer.rejected) == counts
    assert len(server.requests) == 2
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


async def test_a_rejection_whose_body_ends_early_is_final():
    received = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 99\r\n\r\nbad")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/api/v1/write"
        settings = RemoteWriteSettings(url=url, period_seconds=0.1)
        async with writing(settings, [up("a")], [up("a")]) as sink:
            await until(lambda: sink.writer.rejected == 2)
    assert len(received) == 2


def partial_success(rejected: int, message: str) -> bytes:
    response = metrics_service_pb2.ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = rejected
    response.partial_success.error_message = message
    return response.SerializeToString()


@pytest.mark.parametrize(
    ("status", "body", "counts"),
    [
        (200, b"", (1, 0)),
        (200, b"\xff\xff", (1, 0)),
        (200, partial_success(1, "too\nold"), (0, 1)),
        (200, partial_success(1 << 40, "all"), (0, 1)),
        (200, partial_success(-3, "slow"), (1, 0)),
        (500, b"final", (0, 1)),
        (501, b"final", (0, 1)),
    ],
)
async def test_receivers_of_otlp_may_reject_a_part(
    status: int, body: bytes, counts: tuple[int, int]
):
    with capture_logs() as logs:
        async with serving(web.Response(status=status, body=body)) as server:
            settings = RemoteWriteSettings(url=server.url, format="otlp", period_seconds=0.1)
            async with writing(settings, [up("a")]) as sink:
                await until(lambda: sink.writer.written + sink.writer.rejected > 0)
    assert (sink.writer.written, sink.writer.rejected) == counts
    assert server.requests[0].headers["Content-Encoding"] == "gzip"
    with pytest.raises(SettingsError) if counts[1] else contextlib.nullcontext():
        async with serving(web.Response(status=status, body=body)) as server:
            await RemoteWriteSink(structs.replace(settings, url=server.url)).probe()
    if body == partial_success(1, "too\nold"):
        assert logs[0]["problem"] == "too\\nold"
        assert logs[0]["entries"] == 1


@pytest.mark.parametrize("after", ["", "1", "date", "soon"])
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_samples_wait_for_a_server_that_may_accept_them_later(status: int, after: str):
    after = formatdate(usegmt=True) if after == "date" else after
    answer = web.Response(status=status, headers={"Retry-After": after} if after else {})
    with capture_logs() as logs:
        async with serving(answer) as server:
            settings = RemoteWriteSettings(url=f"{server.url}?key=hunter2", period_seconds=0.1)
            async with writing(settings, [up("a")], [up("a", 2.0)]) as sink:
                await until(lambda: sink.writer.written == 2)
    assert sink.writer.dropped == 0
    assert {each["url"] for each in logs} == {server.url}, "a query may contain a credential"
    assert [timestamp for _, _, timestamp in server.series] == [1000, 2000]
    events = [each["event"] for each in logs]
    assert events == ["sink_connection_failed", "sink_connected"]


async def test_the_oldest_samples_are_dropped_above_the_limit():
    async with serving() as server:
        pass
    settings = RemoteWriteSettings(url=server.url, period_seconds=0.1, max_buffered_samples=3)
    async with writing(settings, *[[up("a"), up("b")]] * 6) as sink:
        await until(lambda: sink.writer.overflowed == 8)
        assert sink.writer.waiting == 2
        assert sink.writer.written == sink.writer.rejected == 0
        cells = {(cell.metric.name, *cell.labels): cell.value for cell in sink.cells()}
    assert cells["railscope_collector_remote_write_dropped_samples_total", "overflow"] == 8


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
