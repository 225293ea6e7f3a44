"""The agent's HTTP server and client against peers that misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from railscope.http_server import (
    MAX_CONNECTIONS,
    MAX_OF_AN_ADDRESS,
    HttpServer,
    HttpServerRequest,
    HttpServerResponse,
    RequestChecks,
)
from railscope_agent.shipping.http_client import HttpClient, HttpError

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def respond(request: HttpServerRequest) -> HttpServerResponse:
    return HttpServerResponse.text(f"you asked for {request.path}")


@asynccontextmanager
async def serving(max_body_bytes: int | None = None) -> AsyncIterator[int]:
    server = HttpServer(respond, max_body_bytes)
    _, port = await server.start("127.0.0.1:0", None)
    try:
        yield port
    finally:
        await server.close()


async def exchange(port: int, request: bytes, *, until_closed: bool = True) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read() if until_closed else await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return answer


GET = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n"


async def test_connections_are_bounded():
    async with serving() as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
        for _, writer in held:
            writer.write(GET + b"\r\n")
        for reader, _ in held[-MAX_OF_AN_ADDRESS:]:
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in await exchange(port, GET + b"Connection: close\r\n\r\n"), (
            "the longest idle connection is closed"
        )
        for _, writer in held:
            writer.transport.abort()


async def test_a_client_that_does_not_read_holds_no_connection():
    """The end of its responses is not sent when the server closes the connection."""
    has_answered = asyncio.Event()

    def respond_at_length(_: HttpServerRequest) -> HttpServerResponse:
        has_answered.set()
        return HttpServerResponse(b"x" * 10_000)

    async def reject_others(request: HttpServerRequest) -> HttpServerResponse | None:
        return None if request.path == "/metrics" else HttpServerResponse.text("rejected")

    checks = RequestChecks(reject_others)
    server = HttpServer(respond_at_length, checks=checks, max_connections=1)
    _, port = await server.start("127.0.0.1:0", None)
    loop = asyncio.get_running_loop()
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.settimeout(0)
        await loop.sock_connect(stuck, ("127.0.0.1", port))
        acceptor = server._acceptor  # noqa: SLF001 - for the unsent bytes of its connection
        assert acceptor is not None
        unsent = 0
        while not unsent:
            has_answered.clear()
            await loop.sock_sendall(stuck, GET + b"\r\n")
            await has_answered.wait()
            (transport,) = acceptor.by_transport
            assert isinstance(transport, asyncio.WriteTransport)
            unsent = transport.get_write_buffer_size()
        await loop.sock_sendall(stuck, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        stuck.shutdown(socket.SHUT_WR)
        while not transport.is_closing():  # noqa: ASYNC110 - the server reports nothing
            await asyncio.sleep(0)
        assert transport.get_write_buffer_size()
        answer = await exchange(port, GET + b"Connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK")
    await server.close()


@asynccontextmanager
async def peer(talk: Talk) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/frames"


async def take(reader: asyncio.StreamReader) -> bytes:
    """One request with a body of four bytes."""
    return await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(4)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def test_a_kept_connection_is_used_again_and_replaced_when_the_server_has_closed_it():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):
            await take(reader)
            writer.write(OK)
            await writer.drain()

    async with peer(talk) as url:
        client = HttpClient(url, None, 5)
        for _ in range(5):
            assert (await client.post(b"body", {})).body == b"{}"
        await client.close()
        assert connections == 3


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "ConnectionClosed"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "illegal"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "without sending complete"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + bytes(2 << 20), "too long"),
    ],
    ids=["nothing", "another protocol", "cut off", "endless"],
)
async def test_answers_that_are_none_are_errors(answer: bytes, problem: str):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(answer)
        await writer.drain()

    async with peer(talk) as url:
        client = HttpClient(url, None, 5)
        with pytest.raises(HttpError, match=problem):
            await client.post(b"body", {})
        await client.close()
