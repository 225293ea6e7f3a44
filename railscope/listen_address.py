"""Listen addresses of servers: their form, and the sockets that listen on them."""

from __future__ import annotations

import asyncio
import errno
import socket
from ipaddress import ip_address

from railscope.settings import SettingsError

_BACKLOG = 512


async def listening_sockets(listen: str) -> list[socket.socket]:
    """Sockets that listen on an address. Raises SettingsError if it is unavailable."""
    host, port = split_address(listen)
    try:
        # By the event loop, which resolves the name and binds all of its addresses.
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, host or None, port, start_serving=False
        )
    except OSError as error:
        raise SettingsError(unavailable(listen, error)) from error
    try:
        # Duplicates: closing the server closes its own sockets.
        created = [listener.dup() for listener in server.sockets]
    finally:
        server.close()
    for listener in created:
        listener.listen(_BACKLOG)
    return created


def unavailable(listen: str, error: OSError) -> str:
    """Return the message of an address on which a server cannot listen, with the remedy."""
    port = listen.rpartition(":")[2]
    fixes = {
        errno.EADDRINUSE: f"stop the program that listens there (ss -ltnp sport = :{port}), or set another port",
        errno.EADDRNOTAVAIL: "set an address of this machine (ip address), or 0.0.0.0 for all of them",
        errno.EACCES: "set a port from 1024 on, or grant CAP_NET_BIND_SERVICE",
    }
    fix = fixes.get(error.errno or 0, "set another address")
    return f"cannot listen on {listen}: {error.strerror or error}; fix: {fix}"


MAX_PORT = 65_535
MAX_HOST = 255


def split_address(listen: str) -> tuple[str, int]:
    """Split "host:port" into host and port; IPv6 hosts are in brackets. Raises SettingsError."""
    host, colon, port = listen.rpartition(":")
    # `isdecimal` also accepts digits of other scripts.
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
