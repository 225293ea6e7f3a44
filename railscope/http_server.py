"""Small HTTP server for endpoints with few clients: h11 for the protocol, asyncio for the connections.

A web framework would need half of the agent's memory. h11 parses and validates;
this module opens, reads, writes and closes, with bounds on time, size and number.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import h11
import structlog

from railscope import listen_address, server_connections, service

log = structlog.get_logger(__name__)

MAX_CONNECTIONS, MAX_OF_AN_ADDRESS = 64, 32
MAX_HEADER_BYTES = 16 << 10
WRITE_SECONDS = 30.0
BODY_SECONDS = 15.0
"""Limit from the end of the headers of a request to the end of its body."""
LINGER_SECONDS = 2.0
"""Time for which the rest of a rejected body is read and dropped: a reset would overtake the response."""
GZIP_LEVEL = 1
COMPRESSED_AT_ONCE_BYTES = 512 << 10
"""Largest body that is compressed on the event loop, in 2 ms: a thread costs as much as 60 KiB."""
READ_BYTES = 4 << 10
"""Smaller than the bound on headers, which h11 applies to incomplete events."""


@dataclass(frozen=True, slots=True)
class HttpServerRequest:
    """A request. Header names are in lower case; the body is empty if the server accepts none."""

    path: str
    headers: dict[str, str]
    method: str = "GET"
    body: bytes = b""
    query: str = ""
    peer: str = ""
    """Address of the client; empty for a Unix socket."""


@dataclass(frozen=True, slots=True)
class HttpServerResponse:
    """A response, compressed when sent if the client accepts gzip."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str, status: HTTPStatus = HTTPStatus.OK) -> HttpServerResponse:
        """Return a line of plain text."""
        return cls(text.encode() + b"\n", status=status)


RequestHandler = Callable[[HttpServerRequest], HttpServerResponse | Awaitable[HttpServerResponse]]
HeadCheck = Callable[[HttpServerRequest], Awaitable[HttpServerResponse | None]]
"""Returns the response to a request whose body is not to be read; None if it is."""


class RequestChecks(NamedTuple):
    """Checks of requests before their responses."""

    check_head: HeadCheck | None = None
    body_seconds: float = BODY_SECONDS
    on_invalid: Callable[[HTTPStatus, str, str], None] = lambda _status, _problem, _peer: None
    """Called with the status of each response to an invalid request, the problem, and the address of the client."""


NO_CHECKS = RequestChecks()


class _RequestHandling(NamedTuple):
    respond: RequestHandler
    max_body_bytes: int | None
    checks: RequestChecks


class HttpServer:
    """Serves the responses of `respond` on one address until closed.

    Without a bound on bodies, only GET and HEAD are served, and bodies are not read.
    """

    def __init__(
        self,
        respond: RequestHandler,
        max_body_bytes: int | None = None,
        checks: RequestChecks = NO_CHECKS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._handling = _RequestHandling(respond, max_body_bytes, checks)
        self._max_connections = max_connections
        self._acceptor: server_connections.ConnectionAcceptor | None = None
        self.port = 0

    async def start(self, listen: str, tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Start listening and return the address. Raises SettingsError if it cannot be bound."""
        sockets = await listen_address.listening_sockets(listen)
        bound = sockets[0].getsockname()
        self._accept(sockets, MAX_OF_AN_ADDRESS, tls)
        self.port = int(bound[1])
        return str(bound[0]), self.port

    async def start_unix(self, listening: socket.socket) -> None:
        """Start serving a Unix socket that is bound already."""
        listening.listen()
        self._accept([listening], MAX_CONNECTIONS, None)

    def _accept(
        self, sockets: list[socket.socket], max_per_address: int, tls: ssl.SSLContext | None
    ) -> None:
        connections = server_connections.ServerConnections.within_descriptors(
            self._max_connections, max_per_address
        )
        self._acceptor = server_connections.ConnectionAcceptor(connections, self._protocol, tls)
        self._acceptor.start(sockets)

    def _protocol(self, connection: server_connections.ServerConnection) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(
            asyncio.StreamReader(), partial(self._serve_connection, connection)
        )

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._acceptor:
            await self._acceptor.close()

    async def _serve_connection(
        self,
        connection: server_connections.ServerConnection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            talk = _HttpConversation(self._handling, reader, writer, connection)
            await talk.run()
        except (OSError, h11.RemoteProtocolError) as error:
            log.debug("connection_closed", problem=str(error) or type(error).__name__)
        finally:
            # `close` waits until the client has read everything: from now on, the connection has a deadline.
            connection.begin_idle()
            writer.close()


def _check_framing(request: h11.Request) -> None:
    """Raise if a request specifies its length in two ways, which proxies may resolve differently."""
    names = {name for name, _ in request.headers}
    if names >= {b"content-length", b"transfer-encoding"}:
        message = "invalid request: Content-Length and Transfer-Encoding: expected one of them"
        raise h11.RemoteProtocolError(message, error_status_hint=400)


class _HttpConversation:
    """One connection: requests and responses for as long as both sides keep it open."""

    def __init__(
        self,
        handling: _RequestHandling,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: server_connections.ServerConnection,
    ) -> None:
        self._connection = connection
        self._handling, self._checks = handling, handling.checks
        peer = writer.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)

    async def run(self) -> None:
        while True:
            try:
                request = await self._next_request()
            except h11.RemoteProtocolError as error:
                await self._reject(error)
                return
            if request is None:
                return
            self._connection.begin_response()
            if isinstance(request, HttpServerResponse):
                more = {**request.headers, "Connection": "close"}
                await self._send("POST", request, request.body, more)
                await self._linger()
                return
            await self._answer(request)
            self._connection.begin_idle()
            if self._state.our_state is h11.MUST_CLOSE:
                return
            self._state.start_next_cycle()
            # Further requests may have arrived: they are read without waiting, and may be many.
            await asyncio.sleep(0)

    async def _next_request(self) -> HttpServerRequest | HttpServerResponse | None:
        """Return the next request and its body (empty if none is accepted); None at the end.

        Returns the response if the body is not to be read.
        """
        try:
            async with asyncio.timeout(None) as limit:
                return await self._read_request(limit)
        except TimeoutError as error:
            message = f"incomplete body after {self._checks.body_seconds:g} s"
            raise h11.RemoteProtocolError(message, error_status_hint=408) from error

    async def _read_request(
        self, limit: asyncio.Timeout
    ) -> HttpServerRequest | HttpServerResponse | None:
        request: HttpServerRequest | None = None
        body, max_bytes = bytearray(), self._handling.max_body_bytes
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.Request):
                _check_framing(event)
                request, check_head = self._served(event), self._checks.check_head
                # Before the body is read: a sender without a credential must not make the server store one.
                if check_head and (rejection := await check_head(request)):
                    return rejection
                if max_bytes is not None and self._state.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(
                        status_code=HTTPStatus.CONTINUE, reason=b"Continue", headers=[]
                    )
                    self._writer.write(self._state.send(go_on) or b"")
                # Only from here on: until the headers are complete, the deadline of the connection applies.
                limit.reschedule(asyncio.get_running_loop().time() + self._checks.body_seconds)
            elif isinstance(event, h11.Data) and max_bytes is not None:
                body += event.data
                if len(body) > max_bytes:
                    message = f"request body too long: expected at most {max_bytes} bytes"
                    raise h11.RemoteProtocolError(message, error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                return replace(request, body=bytes(body))
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return None

    async def _linger(self) -> None:
        """Read until the client closes, for a limited time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                # Ends the response, while the client may still send.
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                while await self._reader.read(READ_BYTES):
                    pass

    def _served(self, request: h11.Request) -> HttpServerRequest:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers
        }
        path, _, query = request.target.decode("latin-1").partition("?")
        method = request.method.decode("latin-1")
        return HttpServerRequest(path, headers, method, b"", query, self._peer)

    async def _answer(self, served: HttpServerRequest) -> None:
        if served.method in {"GET", "HEAD"} or self._handling.max_body_bytes is not None:
            answer = self._handling.respond(served)
            response = answer if isinstance(answer, HttpServerResponse) else await answer
        else:
            response = HttpServerResponse.text(
                "invalid method: expected GET or HEAD", HTTPStatus.METHOD_NOT_ALLOWED
            )
        body, more = response.body, dict(response.headers)
        if "gzip" in served.headers.get("accept-encoding", "") and body:
            if len(body) > COMPRESSED_AT_ONCE_BYTES:
                body = await service.run_in_thread(gzip.compress, body, GZIP_LEVEL)
            else:
                body = gzip.compress(body, GZIP_LEVEL)
            more["Content-Encoding"] = "gzip"
        await self._send(served.method, response, body, more)

    async def _reject(self, error: h11.RemoteProtocolError) -> None:
        """Send the error for an invalid request, unless a response has been started."""
        if self._state.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            status = HTTPStatus(error.error_status_hint)
            self._checks.on_invalid(status, str(error), self._peer)
            response = HttpServerResponse.text(str(error), status)
            await self._send("GET", response, response.body, {"Connection": "close"})
            if status in {HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT}:
                await self._linger()

    async def _send(
        self, method: str, response: HttpServerResponse, body: bytes, more: dict[str, str]
    ) -> None:
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(body)),
            "Vary": "Accept, Accept-Encoding",
            **more,
        }
        head = h11.Response(
            status_code=response.status,
            reason=response.status.phrase,
            headers=list(headers.items()),
        )
        pieces = [self._state.send(head)]
        if method != "HEAD":
            pieces.append(self._state.send(h11.Data(body)))
        pieces.append(self._state.send(h11.EndOfMessage()))
        self._writer.write(b"".join(piece for piece in pieces if piece))
        if self._writer.transport.get_write_buffer_size():
            async with asyncio.timeout(WRITE_SECONDS):
                await self._writer.drain()
