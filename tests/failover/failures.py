"""Failures of a run: links that can be cut and delayed, and what fails at which time.

A cut link forwards nothing and closes nothing, so that neither side is notified; what waits in it arrives once it is
restored, as segments that TCP sends again do. What a link holds is bounded: beyond it, the sender has to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"
COLLECTORS = ("a", "b", "c")


class FailureKind(StrEnum):
    """Kind of a failure; all but the last are of one collector."""

    CUT_AGENTS = "its agents cannot reach it"
    CUT_DATABASE = "it cannot reach the database"
    SLOW_AGENTS = "its agents reach it after 200 ms"
    SLOW_DATABASE = "it reaches the database after 200 ms"
    SUSPENDED = "it is suspended"
    LOST = "it was killed, and its state directory deleted"
    PROMOTION = "the primary was killed, and the standby promoted"


class Failure(NamedTuple):
    """One failure."""

    kind: FailureKind
    collector: str
    start: float
    end: float


STANDARD = (
    Failure(FailureKind.SLOW_AGENTS, "c", 0.0, 0.45),
    Failure(FailureKind.CUT_AGENTS, "a", 0.05, 0.25),
    Failure(FailureKind.LOST, "b", 0.25, 0.4),
    Failure(FailureKind.SLOW_DATABASE, "a", 0.3, 0.9),
    Failure(FailureKind.SUSPENDED, "c", 0.5, 0.6),
    Failure(FailureKind.CUT_DATABASE, "b", 0.5, 0.7),
    Failure(FailureKind.PROMOTION, "", 0.75, 0.75),
)
"""Each kind once. A database link is cut when the primary is reached through it."""
_PER_COLLECTOR = tuple(FailureKind)[:-1]


def draw_failures(seed: int) -> tuple[Failure, ...]:
    """Draw failures: of each collector one after the other, at any time of those of the others."""
    return tuple(sorted(_draw(random.Random(seed)), key=lambda each: each.start))  # noqa: S311 - reproducible


def _draw(drawn: random.Random) -> Iterator[Failure]:
    for collector in COLLECTORS:
        edges = sorted(drawn.uniform(0.02, 0.95) for _ in range(2 * drawn.randint(1, 3)))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            yield Failure(drawn.choice(_PER_COLLECTOR), collector, start, end)
    start = drawn.uniform(0.2, 0.9)
    yield Failure(FailureKind.PROMOTION, "", start, start)


# Links --------------------------------------------------------------------------------------------

_CHUNK_BYTES, _MAX_CHUNKS = 64 << 10, 16


@dataclass(eq=False)
class Link:
    """A link to a server that listens on a port of this host, or on a Unix socket."""

    server: int | Path
    port: int = 0
    """Port that it listens on; chosen by the kernel at the start."""
    delay_seconds: float = 0.0
    """Delay of each direction."""
    held_bytes: int = 0
    """Bytes that arrived while it was cut."""
    _listener: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)
    _is_whole: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Accept connections."""
        self._is_whole.set()
        self._listener = await asyncio.start_server(self._accept, HOST, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Forward nothing from now on."""
        self._is_whole.clear()

    def restore(self) -> None:
        """Forward again, beginning with what has arrived meanwhile."""
        self._is_whole.set()

    async def close(self) -> None:
        """Close all connections."""
        if self._listener is not None:
            self._listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(reader, writer)
        finally:
            self._connections.discard(task)
            # Also after an error: the other program finds the connection closed, as without the link.
            await _abort(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect to the server, and forward until either side has closed its connection."""
        await self._is_whole.wait()
        if isinstance(self.server, Path):
            far_reader, far_writer = await asyncio.open_unix_connection(self.server)
        else:
            far_reader, far_writer = await asyncio.open_connection(HOST, self.server)
        both = [
            asyncio.create_task(self._forward(*ends))
            for ends in ((reader, far_writer), (far_reader, writer))
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            await _abort(far_writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction until its sender has closed it and all of it has arrived."""
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_CHUNKS)
        receiving = asyncio.create_task(self._receive(reader, chunks))
        try:
            while True:
                due, chunk = await chunks.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._is_whole.wait()
                if not chunk:
                    writer.close()
                    await writer.wait_closed()
                    return
                writer.write(chunk)
                await writer.drain()
        finally:
            receiving.cancel()

    async def _receive(
        self, reader: asyncio.StreamReader, chunks: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        """Queue what arrives, each chunk with the time at which it is due; an empty one at the end."""
        chunk = b"begin"
        while chunk:
            try:
                chunk = await reader.read(_CHUNK_BYTES)
            except OSError:
                chunk = b""
            if not self._is_whole.is_set():
                self.held_bytes += len(chunk)
            await chunks.put((time.monotonic() + self.delay_seconds, chunk))


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    await asyncio.sleep(0)  # the loop closes the socket in its next turn
