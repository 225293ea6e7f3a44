"""A small HTTP server for the agent's page: h11 for the protocol, asyncio for the connections.

The agent serves one page to a few scrapers; a web framework would be half of its memory. h11 parses
and checks; what is here opens, reads, writes and closes, within bounds of time, size and number.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import h11
import structlog

from railscope.listen import split_address
from railscope.settings import SettingsError

log = structlog.get_logger(__name__)

MOST_CONNECTIONS = 64
MOST_HEADER_BYTES = 16 << 10
IDLE_SECONDS = 75.0
WRITE_SECONDS = 30.0
GZIP_LEVEL = 1
READ_BYTES = 4 << 10
"""Smaller than the bound on headers, which h11 applies to what is not complete yet."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request. Header names are in lower case; there is a body only where one is taken."""

    path: str
    headers: dict[str, str]
    method: str = "GET"
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; it is compressed on the way out if the client takes gzip."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
        """A line of plain text."""
        return cls(text.encode() + b"\n", status=status)


Respond = Callable[[Request], Response | Awaitable[Response]]


class HttpServer:
    """Serves what `respond` answers, on one address, until closed.

    Without a bound on bodies only GET and HEAD are served, and bodies are left unread.
    """

    def __init__(self, respond: Respond, most_body_bytes: int | None = None) -> None:
        self._respond = respond
        self._most_body_bytes = most_body_bytes
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, listen: str, tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Start listening and say where. Raises SettingsError where the address cannot be had."""
        host, port = split_address(listen)
        try:
            self._server = await asyncio.start_server(self._connected, host, port, ssl=tls)
        except OSError as error:
            message = f"cannot listen on {listen}: {error.strerror or error}"
            raise SettingsError(message) from error
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def start_unix(self, listening: socket.socket) -> None:
        """Start serving a Unix socket that is bound already."""
        self._server = await asyncio.start_unix_server(self._connected, sock=listening)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MOST_CONNECTIONS:
            log.warning("connection_refused", most=MOST_CONNECTIONS)
            writer.close()
            return
        self._connections.add(task)
        try:
            talk = _Conversation(self._respond, reader, writer, self._most_body_bytes)
            await talk.run()
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            log.debug("connection_ended", problem=str(error) or type(error).__name__)
        finally:
            self._connections.discard(task)
            writer.close()


class _Conversation:
    """One connection: request, answer, and again for as long as both sides keep it open."""

    def __init__(
        self,
        respond: Respond,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        most_body_bytes: int | None,
    ) -> None:
        self._respond = respond
        self._reader = reader
        self._writer = writer
        self._most_body_bytes = most_body_bytes
        self._state = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEADER_BYTES)

    async def run(self) -> None:
        while True:
            try:
                request = await self._next_request()
            except h11.RemoteProtocolError as error:
                await self._refuse(error)
                return
            if request is None:
                return
            await self._answer(*request)
            if self._state.our_state is h11.MUST_CLOSE:
                return
            self._state.start_next_cycle()

    async def _next_request(self) -> tuple[h11.Request, bytes] | None:
        """The next request and its body, empty where none is taken; None at the connection's end."""
        request: h11.Request | None = None
        body = b""
        async with asyncio.timeout(IDLE_SECONDS):
            while True:
                event = self._state.next_event()
                if event is h11.NEED_DATA:
                    self._state.receive_data(await self._reader.read(READ_BYTES))
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data) and self._most_body_bytes is not None:
                    body += bytes(event.data)
                    if len(body) > self._most_body_bytes:
                        message = f"a request has at most {self._most_body_bytes} bytes"
                        raise h11.RemoteProtocolError(message, error_status_hint=413)
                elif isinstance(event, h11.EndOfMessage) and request is not None:
                    return request, body
                elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                    return None

    async def _answer(self, request: h11.Request, content: bytes) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers
        }
        path = request.target.decode("latin-1").split("?", 1)[0]
        method = request.method.decode("latin-1")
        if method in {"GET", "HEAD"} or self._most_body_bytes is not None:
            answer = self._respond(Request(path, headers, method, content))
            response = answer if isinstance(answer, Response) else await answer
        else:
            response = Response.text("only GET is served here", HTTPStatus.METHOD_NOT_ALLOWED)
        body, more = response.body, dict(response.headers)
        if "gzip" in headers.get("accept-encoding", "") and body:
            body = await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL)
            more["Content-Encoding"] = "gzip"
        await self._send(request.method, response, body, more)

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Say what is wrong with a request that is none, if nothing has been said yet."""
        if self._state.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            status = HTTPStatus(error.error_status_hint)
            response = Response.text(str(error), status)
            await self._send(b"GET", response, response.body, {"Connection": "close"})

    async def _send(
        self, method: bytes, response: Response, body: bytes, more: dict[str, str]
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
        if method != b"HEAD":
            pieces.append(self._state.send(h11.Data(body)))
        pieces.append(self._state.send(h11.EndOfMessage()))
        self._writer.write(b"".join(piece for piece in pieces if piece))
        async with asyncio.timeout(WRITE_SECONDS):
            await self._writer.drain()
