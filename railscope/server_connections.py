"""Connections of a server: bounded in number, and closed after a deadline without a request.

A client may open connections and send nothing, or send headers byte by byte. Each waiting
connection has a deadline; above a limit in total or per address the connection that has waited
longest is closed, so that requests are served however many connections are open. Exhaustion of
file descriptors is logged once per minute and only delays new connections.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

import structlog

log = structlog.get_logger(__name__)

HEADER_SECONDS = 20.0
"""Limit from the first byte of a request, or from the opening of a connection, to the end of its headers."""
IDLE_SECONDS = 75.0
"""Limit between two requests, and for a client that takes nothing of a response."""
HANDSHAKE_SECONDS = 10.0
RESERVED_DESCRIPTORS = 128
"""File descriptors reserved for other uses: files, databases, outgoing connections."""
_REAP_SECONDS, _RETRY_SECONDS, _REPORT_SECONDS = 5.0, 0.2, 60.0
# A site has at least a /64 (RFC 6177), so single addresses cost a client nothing.
_NETWORK_BITS = 64
CLOSE_REASONS = ("busy", "evicted", "timeout", "descriptors")


def host_of(address: str) -> str:
    """Return the host that an address belongs to: in IPv6 one network counts as one host."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and not parsed.ipv4_mapped:
        return str(int(parsed) >> (128 - _NETWORK_BITS))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


@dataclass(eq=False, slots=True)
class ServerConnection:
    """One connection: the host of its client, the start of its wait for a request, and a function that closes it."""

    host: str
    end: Callable[[], object]
    waiting_since: float | None
    """None while a request is served."""
    deadline: float
    header_seconds: float

    def begin_request(self) -> None:
        """Record a received byte: the request it begins has a deadline."""
        if self.waiting_since is not None:
            # The earlier one: bytes that are sent one by one must not extend it.
            self.deadline = min(self.deadline, time.monotonic() + self.header_seconds)

    def begin_response(self) -> None:
        """Record that the headers of a request are complete."""
        self.waiting_since = None

    def begin_idle(self) -> None:
        """Record that a request was served and the next one is awaited."""
        self.waiting_since = time.monotonic()
        self.deadline = self.waiting_since + IDLE_SECONDS


@dataclass(slots=True)
class ServerConnections:
    """All connections of a server."""

    max_connections: int
    max_per_address: int
    header_seconds: float = HEADER_SECONDS
    accepted: int = 0
    closed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLOSE_REASONS, 0))
    """Connections that the server closed or rejected, by reason."""
    _open: dict[str, dict[ServerConnection, None]] = field(default_factory=dict)
    _count: int = 0
    _opened: asyncio.Event = field(default_factory=asyncio.Event)
    _reported: dict[str, tuple[float, int]] = field(default_factory=dict)

    @classmethod
    def within_descriptors(cls, max_connections: int, max_per_address: int) -> ServerConnections:
        """Return an instance limited to the file descriptors that the process can spare."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            max_connections = min(max_connections, max(8, soft - RESERVED_DESCRIPTORS))
        return cls(max_connections, min(max_per_address, max_connections))

    def __len__(self) -> int:
        """Number of open connections."""
        return self._count

    def open(self, address: str, end: Callable[[], object]) -> ServerConnection | None:
        """Register a connection; None if the limit is reached and no waiting connection can be closed."""
        host = host_of(address)
        of_host = self._open.get(host, {})
        # The host's own oldest waiting connection is closed: it cannot displace those of others.
        if len(of_host) >= self.max_per_address and not self._evict(host):
            self.count("busy")
            return None
        if self._count >= self.max_connections:
            # Of the host with most connections, so that one with many loses them before one with few.
            busiest = max(self._open, key=lambda peer: len(self._open[peer]))
            if not (self._evict(busiest) or any(map(self._evict, list(self._open)))):
                self.count("busy")
                return None
        now = time.monotonic()
        created = ServerConnection(host, end, now, now + self.header_seconds, self.header_seconds)
        self._open.setdefault(host, {})[created] = None
        self._count += 1
        self._opened.set()
        self.accepted += 1
        return created

    def close(self, connection: ServerConnection) -> None:
        """Remove a connection that has ended."""
        of_host = self._open.get(connection.host, {})
        if connection in of_host:
            del of_host[connection]
            self._count -= 1
            if not self._count:
                self._opened.clear()
            if not of_host:
                del self._open[connection.host]

    def _evict(self, host: str) -> bool:
        """Close the connection of a host that has waited longest; False if none waits."""
        waiting = (peer for peer in self._open.get(host, ()) if peer.waiting_since is not None)
        oldest = min(waiting, key=lambda peer: peer.waiting_since or 0.0, default=None)
        if oldest is not None:
            self._end(oldest, "evicted")
        return oldest is not None

    def _end(self, connection: ServerConnection, reason: str) -> None:
        self.close(connection)
        self.count(reason)
        connection.end()

    def count(self, reason: str, problem: str = "") -> None:
        """Count a closed or rejected connection, and log it at most once per minute."""
        self.closed[reason] += 1
        now = time.monotonic()
        since, count = self._reported.get(reason, (-_REPORT_SECONDS, 0))
        if now - since < _REPORT_SECONDS:
            return
        self._reported[reason] = now, self.closed[reason]
        log.warning(
            "connections_closed",
            reason=reason,
            connections=self.closed[reason] - count,
            open_connections=self._count,
            problem=problem,
        )

    async def reap(self) -> None:
        """Close connections that miss the deadline of a request, until cancelled."""
        while True:
            await self._opened.wait()  # no wake-ups while there are no connections
            await asyncio.sleep(min(_REAP_SECONDS, self.header_seconds))
            now = time.monotonic()
            late = [
                connection
                for of_host in self._open.values()
                for connection in of_host
                if connection.waiting_since is not None and connection.deadline < now
            ]
            for connection in late:
                self._end(connection, "timeout")


class GuardedProtocol(asyncio.Protocol):
    """Wrapper of a protocol that tracks its connection and provides a future of its end."""

    def __init__(self, inner: asyncio.Protocol, connection: ServerConnection) -> None:
        self._inner = inner
        self._connection = connection
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Forward the call."""
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Update the connection, and forward the call."""
        self._connection.begin_request()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Forward the call."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Forward the call."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Forward the call."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forward the call, and complete the future."""
        self._inner.connection_lost(exc)
        if not self.closed.done():
            self.closed.set_result(None)


@dataclass(slots=True)
class ConnectionAcceptor:
    """Acceptor of connections on listening sockets; `protocol` creates the handler of each."""

    connections: ServerConnections
    protocol: Callable[[ServerConnection], asyncio.Protocol]
    tls: ssl.SSLContext | None = None
    by_transport: dict[asyncio.BaseTransport, ServerConnection] = field(default_factory=dict)
    _sockets: list[socket.socket] = field(default_factory=list)
    _accepting: list[asyncio.Task[None]] = field(default_factory=list)
    _served: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, sockets: list[socket.socket]) -> None:
        """Accept on sockets that are already listening."""
        self._sockets = sockets
        for listener in sockets:
            listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
        works = [*map(self._accept, sockets), self.connections.reap()]
        self._accepting = [asyncio.ensure_future(work) for work in works]

    async def stop(self) -> None:
        """Stop accepting; open connections continue."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._sockets:
            listener.close()

    async def close(self) -> None:
        """Stop accepting, and close all connections."""
        await self.stop()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # the client has already disconnected
            except OSError as error:  # out of descriptors or memory
                # The listening socket stays readable: without a pause, this loop would use all of a core.
                self.connections.count("descriptors", str(error.strerror))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            address = str(peer[0]) if isinstance(peer, tuple) else ""
            task = asyncio.ensure_future(self._serve(accepted, address))
            self._served.add(task)
            task.add_done_callback(self._served.discard)

    async def _serve(self, accepted: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        connection = self.connections.open(address, task.cancel) if task else None
        if connection is None:
            accepted.close()
            return
        if accepted.family != socket.AF_UNIX:
            # A response may take longer than any deadline; the kernel ends one of which nothing is taken, also
            # by a client that keeps its window closed (tcp(7)).
            accepted.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * IDLE_SECONDS)
            )
        transport: asyncio.BaseTransport | None = None
        try:
            transport, guarded = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: GuardedProtocol(self.protocol(connection), connection),
                accepted,
                ssl=self.tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self.tls else None,
            )
            self.by_transport[transport] = connection
            await guarded.closed
        except OSError as error:
            log.debug("connection_closed", problem=str(error) or type(error).__name__)
        finally:
            self.connections.close(connection)
            if isinstance(transport, asyncio.WriteTransport):
                del self.by_transport[transport]
                # Not `close`, which waits until a client that reads nothing has taken all data.
                transport.abort()
            else:
                accepted.close()
