"""Small HTTP client of one server: h11 for the protocol, asyncio for the connection.

One connection is kept open and reused, with one request at a time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from railscope import convert_errors
from railscope.http_responses import MAX_HEAD_BYTES
from railscope_agent.shipping import ShippingError

MAX_ANSWER_BYTES = 1 << 20
READ_BYTES = 64 << 10
_PORTS = {"http": 80, "https": 443}


class HttpError(ShippingError, OSError):
    """The response is not HTTP, or ended too early."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Status, headers (names in lower case) and body of a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Client of one server, at the path of its URL or another. Raises ValueError for an invalid URL."""

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext | None,
        timeout_seconds: float,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            message = f"invalid URL {url!r}: expected http:// or https://"
            raise ValueError(message)
        self._host = parts.hostname
        self._port = parts.port or _PORTS[parts.scheme]
        self._tls = tls if parts.scheme == "https" else None
        self.target = parts.path or "/"
        self._authority = parts.netloc.rpartition("@")[2]
        self._timeout_seconds = timeout_seconds
        self._max_answer_bytes = max_answer_bytes
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._state = h11.Connection(h11.CLIENT)

    async def post(self, body: bytes, headers: Mapping[str, str], target: str = "") -> HttpResponse:
        """Send a POST request. Raises OSError (TLS errors included), HttpError or TimeoutError."""
        headers = {"Content-Length": str(len(body)), **headers}
        return await self._request(("POST", target or self.target), body, headers)

    async def get(self, headers: Mapping[str, str], target: str = "") -> HttpResponse:
        """Send a GET request. Raises as `post` does."""
        return await self._request(("GET", target or self.target), b"", headers)

    async def _request(
        self, request_line: tuple[str, str], body: bytes, headers: Mapping[str, str]
    ) -> HttpResponse:
        # One limit for connecting, sending and receiving together, and for the second attempt.
        async with asyncio.timeout(self._timeout_seconds):
            is_reused = self._writer is not None
            try:
                return await self._request_once(request_line, body, headers)
            except (ConnectionError, HttpError):
                # The server may have closed the idle connection just before it was used.
                await self.close()
                # A new connection that fails is a failure of the server: a second attempt would not help.
                if not is_reused:
                    raise
                return await self._request_once(request_line, body, headers)
            finally:
                # An exchange that was cancelled or cut in the middle leaves bytes on the connection: it
                # cannot be reused.
                if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
                    await self.close()
                else:
                    self._state.start_next_cycle()

    async def _request_once(
        self, request_line: tuple[str, str], body: bytes, headers: Mapping[str, str]
    ) -> HttpResponse:
        method, target = request_line
        reader, writer = await self._open()
        fields = {"Host": self._authority, **headers}
        head = h11.Request(method=method, target=target, headers=list(fields.items()))
        pieces = [
            self._state.send(head),
            self._state.send(h11.Data(body)),
            self._state.send(h11.EndOfMessage()),
        ]
        writer.write(b"".join(piece for piece in pieces if piece))
        await writer.drain()
        with convert_errors(h11.RemoteProtocolError, HttpError):
            return await self._answer(reader)

    async def _answer(self, reader: asyncio.StreamReader) -> HttpResponse:
        head: h11.Response | None = None
        body = bytearray()
        received = 0
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                piece = await reader.read(READ_BYTES)
                received += len(piece)
                # Also the bytes received: chunks of one byte, or a head without end, would exceed any bound
                # of the body.
                self._check_length(received - MAX_HEAD_BYTES)
                self._state.receive_data(piece)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                self._check_length(len(body))
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in head.headers}
                return HttpResponse(head.status_code, headers, bytes(body))
            elif isinstance(event, h11.ConnectionClosed):
                message = "the server closed the connection without a response"
                raise HttpError(message)

    def _check_length(self, length: int) -> None:
        """Raise HttpError for a response that is too long."""
        if length > self._max_answer_bytes:
            message = f"response too long: expected at most {self._max_answer_bytes} bytes"
            raise HttpError(message)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            self._state = h11.Connection(h11.CLIENT)
            self._reader, self._writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls
            )
        return self._reader, self._writer

    async def close(self) -> None:
        """Abort the connection, if there is one, without flushing unsent data."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is None:
            return
        # A server that does not read would keep a normal close waiting for its unsent data.
        writer.transport.abort()
        try:
            await writer.wait_closed()
        except OSError:
            return  # the connection was broken already
