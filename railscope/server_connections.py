"""Listen addresses, TLS and connections of servers.

Connections of a server: bounded in number, and closed after a deadline without a request.

A client may open connections and send nothing, or send headers byte by byte. Each waiting
connection has a deadline; above a limit in total or per address the connection that has waited
longest is closed, so that requests are served however many connections are open. Exhaustion of
file descriptors is logged once per minute and only delays new connections.

Listen addresses, and TLS for servers.
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
from pathlib import Path

import structlog

from railscope.settings import SettingsError

log = structlog.get_logger(__name__)

HEADER_SECONDS = 20.0
"""Limit from the first byte of a request, or from the opening of a connection, to the end of its headers."""
IDLE_SECONDS = 75.0
"""Limit between two requests."""
HANDSHAKE_SECONDS = 10.0
RESERVED_DESCRIPTORS = 128
"""File descriptors reserved for other uses: files, databases, outgoing connections."""
_REAP_SECONDS, _RETRY_SECONDS, _REPORT_SECONDS = 5.0, 0.2, 60.0
_NETWORK_BITS = 64
_BACKLOG = 512
CLOSE_REASONS = ("busy", "evicted", "timeout", "descriptors")


def source_of(address: str) -> str:
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
    """One connection: its source, the start of its wait for a request, and a function that closes it."""

    source: str
    end: Callable[[], object]
    waiting_since: float | None
    """None while a request is served."""
    deadline: float
    header_seconds: float = HEADER_SECONDS
    idle_seconds: float = IDLE_SECONDS

    def begin_request(self) -> None:
        """Record a received byte: the request it begins has a deadline."""
        if self.waiting_since is not None:
            self.deadline = min(self.deadline, time.monotonic() + self.header_seconds)

    def begin_response(self) -> None:
        """Record that the headers of a request are complete."""
        self.waiting_since = None

    def begin_idle(self) -> None:
        """Record that a request was served and the next one is awaited."""
        self.waiting_since = time.monotonic()
        self.deadline = self.waiting_since + self.idle_seconds


@dataclass(slots=True)
class ServerConnections:
    """All connections of a server."""

    max_connections: int
    max_per_address: int
    header_seconds: float = HEADER_SECONDS
    idle_seconds: float = IDLE_SECONDS
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
        source = source_of(address)
        of_source = self._open.get(source, {})
        if len(of_source) >= self.max_per_address and not self._evict(source):
            self.count("busy")
            return None
        if self._count >= self.max_connections:
            busiest = max(self._open, key=lambda peer: len(self._open[peer]))
            if not (self._evict(busiest) or any(map(self._evict, list(self._open)))):
                self.count("busy")
                return None
        now = time.monotonic()
        times = self.header_seconds, self.idle_seconds
        created = ServerConnection(source, end, now, now + self.header_seconds, *times)
        self._open.setdefault(source, {})[created] = None
        self._count += 1
        self._opened.set()
        self.accepted += 1
        return created

    def close(self, connection: ServerConnection) -> None:
        """Remove a connection that has ended."""
        of_source = self._open.get(connection.source, {})
        if connection in of_source:
            del of_source[connection]
            self._count -= 1
            if not self._count:
                self._opened.clear()
            if not of_source:
                del self._open[connection.source]

    def _evict(self, source: str) -> bool:
        """Close the connection of a host that has waited longest; False if none waits."""
        waiting = (peer for peer in self._open.get(source, ()) if peer.waiting_since is not None)
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
                for of_source in self._open.values()
                for connection in of_source
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
                transport.abort()
            else:
                accepted.close()


async def listening_sockets(listen: str) -> list[socket.socket]:
    """Sockets that listen on an address. Raises SettingsError if it is unavailable."""
    host, port = split_address(listen)
    try:
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, host or None, port, start_serving=False
        )
    except OSError as error:
        message = f"cannot listen on {listen}: {error.strerror or error}"
        raise SettingsError(message) from error
    try:
        created = [listener.dup() for listener in server.sockets]
    finally:
        server.close()
    for listener in created:
        listener.listen(_BACKLOG)
    return created


MAX_PORT = 65_535
MAX_HOST = 255


def split_address(listen: str) -> tuple[str, int]:
    """Split "host:port" into host and port; IPv6 hosts are in brackets. Raises SettingsError."""
    host, colon, port = listen.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT))
    if not colon or not digits or int(port) > MAX_PORT:
        message = (
            f"invalid listen address {listen[:200]!r}: expected HOST:PORT with a port from 0 to"
            f" {MAX_PORT}, such as 127.0.0.1:9469 or [::]:9469"
        )
        raise SettingsError(message)
    host = host.strip("[]")
    if not _is_host(host):
        message = (
            f"invalid listen address {listen[:200]!r}: expected the name or address of a host, such"
            " as 127.0.0.1:9469 or [::]:9469"
        )
        raise SettingsError(message)
    return host, int(port)


def is_loopback(host: str) -> bool:
    """True for the name or an address of the loopback interface, which other nodes cannot reach."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _is_host(host: str) -> bool:
    """True if the text is a valid DNS host name: printable labels of 1 to 63 characters."""
    if len(host) > MAX_HOST or not host.isprintable() or " " in host:
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def client_tls(setting: str, ca_file: str) -> ssl.SSLContext | bool:
    """Return the TLS of a client that verifies servers with a CA file; without one, with the system's CAs.

    Raises SettingsError that names the setting.
    """
    try:
        return ssl.create_default_context(cafile=ca_file) if ca_file else True
    except OSError as error:
        message = f"invalid {setting} {ca_file!r}: {error}"
        raise SettingsError(message) from None


def client_pem(
    ca_file: str, certificate_file: str, key_file: str
) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return CA certificates, key and certificate of a client from their files, as gRPC takes them.

    Without a CA file, the CAs are those of the system; without a key file, the key is in the file of the certificate.
    Blocking; raises OSError.
    """
    trusted = ca_file or ssl.get_default_verify_paths().cafile
    names = trusted, certificate_file and (key_file or certificate_file), certificate_file
    authorities, key, certificate = (Path(name).read_bytes() if name else None for name in names)
    return authorities, key, certificate


def server_tls(
    certificate_file: str, key_file: str, client_ca_file: str = ""
) -> ssl.SSLContext | None:
    """Return the TLS context of a server; None for plain HTTP. Raises SettingsError.

    With a client CA, clients may present a certificate; one that does not chain to it is rejected.
    """
    if not certificate_file:
        if client_ca_file:
            message = f"invalid tls.client_ca_file: {client_ca_file}: expected tls.certificate_file as well"
            raise SettingsError(message)
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate_file, key_file or None)
    except OSError as error:
        message = f"cannot use certificate {certificate_file} or key {key_file}: {error}"
        raise SettingsError(message) from error
    if client_ca_file:
        try:
            context.load_verify_locations(client_ca_file)
        except OSError as error:
            message = f"cannot use tls.client_ca_file {client_ca_file}: {error}"
            raise SettingsError(message) from error
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
