"""The process that sends a load to a collector, over one connection for each node.

`sending` starts `python -m bench.load_sender PORT CAPTURE NODES`, which reads a line for each turn from standard input: the seconds over which
the turn is spread. It answers with a line of JSON. Like an agent, it sends the shapes and names that the collector requests, and then the frames again.

An acknowledgement takes from the time at which its request was sent to the time at which the kernel received its last bytes (`SO_TIMESTAMPNS`).
So a sender that is late, because the machine is busy, adds nothing to it; its lateness is a figure of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench import harness
from bench.load import ENVELOPE_SECONDS, Envelopes, NodeFrames, request
from railscope.timestamps import SECOND_NS

REGISTRATIONS = 32
"""Nodes that are sent to at the same time in a turn that is not spread over a time."""
_CONFLICT, _NOT_NOW = 409, 503
_MAX_TRIES, _PAUSE_SECONDS = 50, 0.2
_SO_TIMESTAMPNS = 35
"""asm-generic/socket.h. Each answer then has a struct timespec of the wall clock."""
_TIMESPEC = struct.Struct("@qq")
_END_OF_HEAD = b"\r\n\r\n"
_CHUNK = 65536


class SentTurn(msgspec.Struct, frozen=True):
    """Result of sending a turn; times in seconds."""

    bytes: int
    """Size of the envelopes."""
    latencies: list[float]
    """From sending each envelope to its acknowledgement."""
    lateness: list[float]
    """Of the sender: from the time at which each envelope was due to sending it."""


class Sender:
    """The process that sends a load."""

    def __init__(self, process: subprocess.Popen[bytes], server: harness.ServerProcess) -> None:
        self._process, self._server = process, server

    def send(self, over_seconds: float = 0.0) -> SentTurn:
        """Send the next turn: spread over some seconds, or as fast as it is acknowledged."""
        if self._process.stdin:
            self._process.stdin.write(msgspec.json.encode(over_seconds) + b"\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            message = (
                "sending a turn failed: the load generator has ended; its error is above. The last"
                f" output of the collector:\n{self._server.log_end()}"
            )
            raise harness.BenchError(message)
        return msgspec.json.decode(line, type=SentTurn)


@contextmanager
def sending(capture: Path, nodes: int, server: harness.ServerProcess) -> Iterator[Sender]:
    """Yield a process that sends the frames of a capture to a collector, under the names of some nodes."""
    command = [
        sys.executable,
        "-m",
        "bench.load_sender",
        str(server.port),
        str(capture),
        str(nodes),
    ]
    with subprocess.Popen(  # noqa: S603 - the bench starts its own parts
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield Sender(process, server)
        finally:
            process.terminate()


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request, with the wall clock in nanoseconds when the kernel received its end."""

    status: int
    content: bytes
    received_ns: int


class Connection:
    """The connection of one node; as agents do, it opens it again if the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    async def open(self) -> socket.socket:
        """Connect, unless it is connected."""
        if not self._socket:
            self._socket = socket.socket()
            self._socket.settimeout(0)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            await asyncio.get_running_loop().sock_connect(self._socket, (harness.HOST, self._port))
        return self._socket

    async def exchange(self, request: bytes) -> Answer:
        """Send a request and return its answer."""
        is_reused = self._socket is not None
        try:
            return await self._exchange(await self.open(), request)
        except ConnectionError:
            if not is_reused:
                raise
        # The server may have closed the idle connection just before it was used.
        if self._socket:
            self._socket.close()
        self._socket = None
        return await self._exchange(await self.open(), request)

    async def _exchange(self, opened: socket.socket, request: bytes) -> Answer:
        await asyncio.get_running_loop().sock_sendall(opened, request)
        data, received_ns = await _receive(opened)
        while _END_OF_HEAD not in data:
            more, received_ns = await _receive(opened)
            data += more
        head, _, content = data.partition(_END_OF_HEAD)
        size = 0
        for line in head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == b"content-length":
                size = int(value)
        while len(content) < size:
            more, received_ns = await _receive(opened)
            content += more
        return Answer(int(head.split(b" ", 2)[1]), content, received_ns)


async def _receive(opened: socket.socket) -> tuple[bytes, int]:
    """Return the next bytes, and when the kernel received them."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def wake() -> None:
        loop.remove_reader(opened)
        readable.set_result(None)

    loop.add_reader(opened, wake)
    await readable
    data, ancillary, _, _ = opened.recvmsg(_CHUNK, socket.CMSG_SPACE(_TIMESPEC.size))
    if not data:
        message = "reading a response failed: the server closed the connection"
        raise ConnectionAbortedError(message)
    for _, kind, content in ancillary:
        if kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(content)
            return data, seconds * SECOND_NS + nanoseconds
    return data, time.time_ns()


class _Generator:
    """Sends the turns of a load."""

    def __init__(self, port: int, frames: NodeFrames, nodes: int) -> None:
        self._envelopes = Envelopes(frames, nodes)
        self._connections = [Connection(port) for _ in range(nodes)]
        self._next_turn = 0

    async def send(self, over_seconds: float) -> SentTurn:
        variants = self._envelopes.variants(self._next_turn)
        self._next_turn += 1
        nodes = len(self._connections)
        slots = asyncio.Semaphore(nodes if over_seconds else REGISTRATIONS)
        sizes, latencies, lateness = [0] * nodes, [0.0] * nodes, [0.0] * nodes
        start = time.monotonic()

        async def send_one(number: int) -> None:
            due = start + over_seconds * number / nodes
            await asyncio.sleep(due - time.monotonic())
            async with slots:
                body = self._envelopes.frames(number, variants[number % len(variants)])
                sizes[number], lateness[number] = len(body), time.monotonic() - due
                latencies[number] = await self._send(number, body)

        async with asyncio.TaskGroup() as tasks:
            for number in range(nodes):
                tasks.create_task(send_one(number))
        # The last of the nodes has a period as well.
        await asyncio.sleep(start + over_seconds - time.monotonic())
        return SentTurn(sum(sizes), latencies, lateness)

    async def _send(self, number: int, body: bytes) -> float:
        """Send frames until they are acknowledged, and the shapes and names that the collector requests; return the seconds."""
        connection = self._connections[number]
        sent_ns = time.time_ns()
        for _ in range(_MAX_TRIES):
            answer = await connection.exchange(request(number, body))
            if answer.status // 100 == 2:  # noqa: PLR2004 - HTTP's success
                return (answer.received_ns - sent_ns) / SECOND_NS
            if answer.status == _CONFLICT:
                reply = json.loads(answer.content)
                requested = (reply.get(f"unknown_{each}", ()) for each in ("shapes", "names"))
                parts = self._envelopes.parts(number, *requested)
                answer = await connection.exchange(request(number, parts))
            elif answer.status != _NOT_NOW:
                break
            if answer.status == _NOT_NOW:
                await asyncio.sleep(_PAUSE_SECONDS)
        message = f"sending an envelope failed: status {answer.status}: {answer.content[:200]!r}"
        raise harness.BenchError(message)


async def _send_turns(port: str, capture: str, nodes: str) -> None:
    frames = NodeFrames(Path(capture), ENVELOPE_SECONDS)
    generator = _Generator(int(port), frames, int(nodes))
    # Between two turns nothing is sent: reading may block the loop.
    for line in sys.stdin.buffer:
        sent = await generator.send(json.loads(line))
        sys.stdout.buffer.write(msgspec.json.encode(sent) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_send_turns(*sys.argv[1:]))
