"""An OTLP receiver that decodes requests by the official messages and answers by a script."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import h11
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from support.otlp_decoding import DecodedMetrics

PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True)
class ScriptedAnswer:
    """Response to one request; without a status, the connection is cut, or left without a response."""

    status: int | None = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    is_cut: bool = False


ACCEPTED = ScriptedAnswer(headers=(("Content-Type", PROTOBUF),))
CUT = ScriptedAnswer(None, is_cut=True)
SILENT = ScriptedAnswer(None)


def partial_success(rejected: int, message: str) -> ScriptedAnswer:
    """Return a response that rejects some points."""
    response = metrics_service_pb2.ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = rejected
    response.partial_success.error_message = message
    return ScriptedAnswer(200, (("Content-Type", PROTOBUF),), response.SerializeToString())


@dataclass
class ReceivedRequest:
    """A request: its target, its headers by lower-case name, and its decoded size."""

    target: str
    headers: dict[str, str]
    size: int


@dataclass
class OtlpServer:
    """The receiver's address, its script, and what it has received; what it rejects is not in `metrics`."""

    url: str = ""
    script: deque[ScriptedAnswer] = field(default_factory=deque)
    """Responses to the next requests; later ones are accepted."""
    requests: list[ReceivedRequest] = field(default_factory=list)
    metrics: DecodedMetrics = field(default_factory=DecodedMetrics)
    records: list[logs_pb2.LogRecord] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _connections: list[asyncio.StreamWriter] = field(default_factory=list)

    async def received(self, count: int) -> list[ReceivedRequest]:
        """Wait until a number of requests has been answered; return all."""
        await self.received_until(lambda: len(self.requests) >= count)
        return self.requests

    async def received_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the answered requests fulfil a condition."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(condition)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        state = h11.Connection(h11.SERVER)
        self._connections.append(writer)
        with suppress(ConnectionError, h11.RemoteProtocolError):
            while request := await _next_request(state, reader):
                if not await self._answer(*request, state, writer):
                    break
        writer.close()

    def close(self) -> None:
        """Cut all connections."""
        self._ended.set()
        for connection in self._connections:
            connection.transport.abort()

    async def _answer(
        self, head: h11.Request, body: bytes, state: h11.Connection, writer: asyncio.StreamWriter
    ) -> bool:
        headers = {name.decode(): value.decode() for name, value in head.headers}
        target = head.target.decode()
        answer = self.script.popleft() if self.script else ACCEPTED
        assert headers["content-type"] == PROTOBUF
        content = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        size = self._decode(target, content, is_kept=answer.status == 200)
        if answer.status is not None:
            fields = [*answer.headers, ("Content-Length", str(len(answer.body)))]
            response = h11.Response(status_code=answer.status, headers=fields)
            for event in (response, h11.Data(data=answer.body), h11.EndOfMessage()):
                writer.write(state.send(event) or b"")
            await writer.drain()
        async with self._changed:
            self.requests.append(ReceivedRequest(target, headers, size))
            self._changed.notify_all()
        if answer is SILENT:
            await self._ended.wait()
        if answer.is_cut or state.our_state is h11.MUST_CLOSE:
            return False
        state.start_next_cycle()
        return True

    def _decode(self, target: str, content: bytes, *, is_kept: bool) -> int:
        if "metrics" in target:
            return (self.metrics if is_kept else DecodedMetrics()).add(content)
        request = logs_service_pb2.ExportLogsServiceRequest.FromString(content)
        records = [
            record
            for of_node in request.resource_logs
            for scope in of_node.scope_logs
            for record in scope.log_records
        ]
        self.records += records if is_kept else ()
        return len(records)


async def _next_request(
    state: h11.Connection, reader: asyncio.StreamReader
) -> tuple[h11.Request, bytes] | None:
    head, body = None, b""
    while True:
        event = state.next_event()
        if event is h11.NEED_DATA:
            state.receive_data(await reader.read(65_536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage) and head:
            return head, body
        else:
            return None


@asynccontextmanager
async def otlp_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[OtlpServer]:
    """Serve on a free port of loopback."""
    receiver = OtlpServer()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        server.close()
        receiver.close()
