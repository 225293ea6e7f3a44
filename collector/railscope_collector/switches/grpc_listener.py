"""Listener of gRPC for senders that are not trusted: bounds of connections, calls, messages and metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import grpc

from railscope import listen_address, server_connections
from railscope.settings import SettingsError
from railscope_collector.switches import switch_settings

MAX_CALLS = switch_settings.MAX_SWITCHES
"""Calls of all senders: an exporter does not repeat one that is rejected because of this limit."""
_OPTIONS = (
    ("grpc.max_concurrent_streams", 8),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.so_reuseport", 0),  # an address in use is an error, not a shared one
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 300_000),
)


@asynccontextmanager
async def grpc_listener(
    listen: str,
    handlers: Sequence[grpc.GenericRpcHandler],
    credentials: grpc.ServerCredentials | None,
    max_message_bytes: int,
    max_connections: int,
) -> AsyncIterator[int]:
    """Serve on an address; the value is the port. Raises SettingsError."""
    listen_address.split_address(listen)
    # Anyone may open connections: they must not take the file descriptors of the collector.
    connections = server_connections.ServerConnections.within_descriptors(max_connections, 1)
    handshake_seconds = server_connections.HANDSHAKE_SECONDS
    limits = (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_allowed_incoming_connections", connections.max_connections),
        ("grpc.server_handshake_timeout_ms", round(handshake_seconds * 1000)),
    )
    server = grpc.aio.server(maximum_concurrent_rpcs=MAX_CALLS, options=(*_OPTIONS, *limits))
    server.add_generic_rpc_handlers(handlers)
    async with serving_at(server, listen, credentials) as port:
        yield port


@asynccontextmanager
async def serving_at(
    server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None
) -> AsyncIterator[int]:
    """Run a server on an address, without TLS unless there are credentials; the value is the port. Raises SettingsError."""
    try:
        port = (
            server.add_secure_port(listen, credentials)
            if credentials
            else server.add_insecure_port(listen)
        )
    except RuntimeError as error:
        message = f"cannot listen on {listen}: {error}"
        raise SettingsError(message) from error
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def server_credentials(
    certificate_file: str, key_file: str, client_ca_file: str = ""
) -> grpc.ServerCredentials | None:
    """Return the certificate, and the authorities that clients must have one of; None without TLS.

    Blocking; raises OSError.
    """
    if not certificate_file:
        return None
    key, certificate = (
        Path(file).read_bytes() for file in (key_file or certificate_file, certificate_file)
    )
    authorities = Path(client_ca_file).read_bytes() if client_ca_file else None
    return grpc.ssl_server_credentials(
        [(key, certificate)], authorities, require_client_auth=bool(authorities)
    )


def peer_address(peer: str) -> str:
    """Return the address of a peer as gRPC states it, such as ipv4:192.0.2.8:4317 or ipv6:%5B::1%5D:4317."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")
