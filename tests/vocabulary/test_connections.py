"""Connections are bounded, and those without a request are closed."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from railscope.listen_address import listening_sockets
from railscope.server_connections import (
    RESERVED_DESCRIPTORS,
    ConnectionAcceptor,
    ServerConnection,
    ServerConnections,
)

PATIENCE_SECONDS = 60


class EchoProtocol(asyncio.Protocol):
    """Answers each line with the same; a line is a request."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"work\n":
            self._connection.begin_response()
        elif data.endswith(b"\n"):
            self._connection.begin_response()
            self._transport.write(data)
            self._connection.begin_idle()


@asynccontextmanager
async def serving(connections: ServerConnections) -> AsyncIterator[int]:
    acceptor = ConnectionAcceptor(connections, EchoProtocol)
    sockets = await listening_sockets("127.0.0.1:0")
    acceptor.start(sockets)
    try:
        yield sockets[0].getsockname()[1]
    finally:
        await acceptor.close()
        assert len(connections) == 0


async def asked(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = await reader.readline()
    writer.transport.abort()
    return found


async def test_a_thousand_connections_without_a_request_prevent_no_other_request():
    connections = ServerConnections(64, 32)
    async with serving(connections) as port:
        held = []
        for number in range(1000):
            held.append(await asyncio.open_connection("127.0.0.1", port))
            held[-1][1].write(b"GET / HT")
            if number % 100 == 0:
                assert await asked(port) == b"hello\n"
        assert await asked(port) == b"hello\n"
        assert len(connections) <= 32
        assert connections.closed["evicted"] >= 960
        for _, writer in held:
            writer.transport.abort()


SMALL = """
import asyncio, resource, sys
sys.path[:0] = {path!r}
from test_connections import EchoProtocol
from railscope.listen_address import listening_sockets
from railscope.server_connections import ConnectionAcceptor, ServerConnections

async def run():
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    assert ServerConnections.within_descriptors(1000, 1000).max_connections == 8
    acceptor = ConnectionAcceptor(ServerConnections(1000, 1000), EchoProtocol)
    sockets = await listening_sockets("127.0.0.1:0")
    acceptor.start(sockets)
    print(sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # noqa: TID251 - ends with the test
    await acceptor.close()

asyncio.run(run())
"""


async def test_running_out_of_descriptors_is_a_line_and_not_the_end():
    program = subprocess.Popen(  # noqa: ASYNC220 - this interpreter, on the text above
        [sys.executable, "-c", SMALL.format(path=sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert program.stdout is not None
    try:
        port = int(program.stdout.readline())
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for line in program.stdout:
            if "reason=descriptors" in line:
                break
        for one in held:
            one.close()
        assert await asked(port) == b"hello\n"
    finally:
        output, _ = program.communicate()
    assert RESERVED_DESCRIPTORS > 40
    assert "Traceback" not in output
    assert output.count("\n") <= 2, output
