"""Requests to the kernel over netlink sockets, one socket per thread and protocol.

The kernel processes a request inside send(2), holding the driver's locks. Sockets are not shared
between threads, so that a hanging driver does not block the requests of other threads.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial

from railscope_agent.host.netlink import messages

OpenSocket = Callable[[int], socket.socket]

# linux/netlink.h; the socket module defines only the protocol of routing.
ROUTE, GENERIC, RDMA = 0, 16, 20
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_TIMEOUT_SECONDS = 2
_TIMEVAL = struct.Struct("ll")
_LARGEST_DATAGRAM = 1 << 16
"""The kernel sends a dump in datagrams of up to 32 KiB (net/netlink/af_netlink.c)."""
_LARGEST_ANSWER = 16 << 20
_TRIES = 4


def open_socket(protocol: int) -> socket.socket:
    """Open a socket that only the kernel can send to. Raises OSError."""
    netlink_socket = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol
    )
    try:
        # Asks the kernel for the text of errors, and for answers without a copy of the request.
        netlink_socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        netlink_socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        # Port 0 is the kernel: datagrams of other processes are rejected.
        netlink_socket.connect((0, 0))
    except OSError:
        netlink_socket.close()
        raise
    return netlink_socket


class NetlinkConnections:
    """Connections of all threads; `open_socket` opens a socket for a protocol."""

    def __init__(self, open_socket: OpenSocket = open_socket) -> None:
        self._open_socket = open_socket
        self._connections: dict[tuple[int, int], NetlinkConnection] = {}

    def connection(self, protocol: int) -> NetlinkConnection:
        """Return the connection of the calling thread for a protocol."""
        key = threading.get_ident(), protocol
        if key not in self._connections:
            self._connections[key] = NetlinkConnection(partial(self._open_socket, protocol))
        return self._connections[key]

    def close(self) -> None:
        """Close the sockets of all threads; a later request reopens them."""
        # A copy: threads that are still in a call may add connections.
        for connection in list(self._connections.values()):
            connection.close()


class NetlinkConnection:
    """One persistent socket, for use by one thread."""

    def __init__(self, open_socket: Callable[[], socket.socket]) -> None:
        self._open_socket = open_socket
        self._socket: socket.socket | None = None
        self._sequence = 0

    def request(self, kind: int, body: bytes) -> bytes:
        """Send a request and return its single answer. Raises OSError."""
        answer = self._exchange(messages.Message(kind, messages.NLM_F_REQUEST, self._next(), body))
        if len(answer.bodies) != 1:
            messages.raise_inconsistent(f"{len(answer.bodies)} messages: expected 1")
        return answer.bodies[0]

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """All entries of a list; the dump is repeated if the list changed, or overflowed, during the read.

        Raises OSError: EAGAIN or ENOBUFS if it kept doing so.
        """
        for _ in range(_TRIES):
            request = messages.Message(
                kind, messages.NLM_F_REQUEST | messages.NLM_F_DUMP, self._next(), body
            )
            try:
                answer = self._exchange(request)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                lost = error
            else:
                if not answer.changed:
                    return answer.bodies
                lost = OSError(errno.EAGAIN, "a list of the kernel changes on every read")
        raise lost

    def close(self) -> None:
        """Close the socket, if one is open."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def _next(self) -> int:
        # 32 bits, and never 0, the number of messages that answer no request.
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        return self._sequence

    def _exchange(self, request: messages.Message) -> _NetlinkAnswer:
        answer = _NetlinkAnswer(request.sequence)
        try:
            self._socket = self._socket or self._open()
            self._socket.send(messages.encode(request))
            while not answer.complete:
                answer.add(_receive(self._socket))
        except OSError:
            self.close()  # messages still pending on this socket belong to no request
            raise
        if answer.error:
            raise answer.error
        return answer

    def _open(self) -> socket.socket:
        netlink_socket = self._open_socket()
        netlink_socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(_TIMEOUT_SECONDS, 0)
        )
        return netlink_socket


def _receive(source: socket.socket) -> bytes:
    try:
        datagram, _, flags, _ = source.recvmsg(_LARGEST_DATAGRAM)
    except BlockingIOError:
        waited = f"the kernel did not respond within {_TIMEOUT_SECONDS} s"
        raise TimeoutError(errno.ETIMEDOUT, waited) from None
    if flags & socket.MSG_TRUNC:
        raise OSError(
            errno.EMSGSIZE, f"netlink response too long: expected at most {_LARGEST_DATAGRAM} bytes"
        )
    if not datagram:
        messages.raise_inconsistent("empty response")
    return datagram


class _NetlinkAnswer:
    """Messages with one sequence number; messages with other numbers arrived too late."""

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence
        self._received_bytes = 0
        self.bodies: list[bytes] = []
        self.changed = False
        self.complete = False
        self.error: OSError | None = None

    def add(self, datagram: bytes) -> None:
        """Add one datagram. Raises OSError for malformed data and for an answer over the size limit."""
        self._received_bytes += len(datagram)
        if self._received_bytes > _LARGEST_ANSWER:
            raise OSError(
                errno.EMSGSIZE,
                f"netlink response too long: expected at most {_LARGEST_ANSWER} bytes",
            )
        for message in messages.decode(datagram):
            if message.sequence == self._sequence and not self.complete:
                self._add(message)

    def _add(self, message: messages.Message) -> None:
        self.changed |= bool(message.flags & messages.NLM_F_DUMP_INTR)
        if message.kind == messages.NLMSG_OVERRUN:
            raise OSError(errno.ENOBUFS, "the kernel dropped a part of a netlink response")
        if message.kind in (messages.NLMSG_ERROR, messages.NLMSG_DONE):
            self.complete = True
            self.error = messages.answer_error(message)
        elif message.kind != messages.NLMSG_NOOP:
            self.bodies.append(message.body)
            self.complete = not message.flags & messages.NLM_F_MULTI
