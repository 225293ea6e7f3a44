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

from agent.host.netlink.wire import (
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_MULTI,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    NLMSG_NOOP,
    NLMSG_OVERRUN,
    Message,
    contradiction,
    encode,
    messages,
    refusal,
)

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
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        made.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        made.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        made.connect((0, 0))
    except OSError:
        made.close()
        raise
    return made


class Connections:
    """Connections of all threads; `open_socket` opens a socket for a protocol."""

    def __init__(self, open_socket: OpenSocket = open_socket) -> None:
        self._open_socket = open_socket
        self._connections: dict[tuple[int, int], Connection] = {}

    def of(self, protocol: int) -> Connection:
        """Connection of the calling thread for a protocol."""
        key = threading.get_ident(), protocol
        if key not in self._connections:
            self._connections[key] = Connection(partial(self._open_socket, protocol))
        return self._connections[key]

    def close(self) -> None:
        """Close the sockets of all threads; a later request reopens them."""
        for connection in list(self._connections.values()):
            connection.close()


class Connection:
    """One persistent socket, for use by one thread."""

    def __init__(self, open_socket: Callable[[], socket.socket]) -> None:
        self._open_socket = open_socket
        self._socket: socket.socket | None = None
        self._sequence = 0

    def ask(self, kind: int, body: bytes) -> bytes:
        """Send a request and return its single answer. Raises OSError."""
        answer = self._exchange(Message(kind, NLM_F_REQUEST, self._next(), body))
        if len(answer.bodies) != 1:
            contradiction(f"{len(answer.bodies)} messages answer a question that has one answer")
        return answer.bodies[0]

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """All entries of a list; the dump is repeated if the list changed, or overflowed, during the read.

        Raises OSError: EAGAIN or ENOBUFS if it kept doing so.
        """
        for _ in range(_TRIES):
            request = Message(kind, NLM_F_REQUEST | NLM_F_DUMP, self._next(), body)
            try:
                answer = self._exchange(request)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                lost = error
            else:
                if not answer.changed:
                    return answer.bodies
                lost = OSError(errno.EAGAIN, "a list of the kernel keeps changing")
        raise lost

    def close(self) -> None:
        """Close the socket, if one is open."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def _next(self) -> int:
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        return self._sequence

    def _exchange(self, request: Message) -> _Answer:
        answer = _Answer(request.sequence)
        try:
            self._socket = self._socket or self._opened()
            self._socket.send(encode(request))
            while not answer.complete:
                answer.take(_receive(self._socket))
        except OSError:
            self.close()  # messages still pending on this socket belong to no request
            raise
        if answer.refused:
            raise answer.refused
        return answer

    def _opened(self) -> socket.socket:
        made = self._open_socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(_TIMEOUT_SECONDS, 0))
        return made


def _receive(source: socket.socket) -> bytes:
    try:
        datagram, _, flags, _ = source.recvmsg(_LARGEST_DATAGRAM)
    except BlockingIOError:
        waited = f"the kernel has not answered in {_TIMEOUT_SECONDS} s"
        raise TimeoutError(errno.ETIMEDOUT, waited) from None
    if flags & socket.MSG_TRUNC:
        raise OSError(errno.EMSGSIZE, f"a netlink answer is over {_LARGEST_DATAGRAM} bytes long")
    if not datagram:
        contradiction("it is empty")
    return datagram


class _Answer:
    """Messages with one sequence number; messages with other numbers arrived too late."""

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence
        self._received_bytes = 0
        self.bodies: list[bytes] = []
        self.changed = False
        self.complete = False
        self.refused: OSError | None = None

    def take(self, datagram: bytes) -> None:
        """Add one datagram. Raises OSError for malformed data and for an answer over the size limit."""
        self._received_bytes += len(datagram)
        if self._received_bytes > _LARGEST_ANSWER:
            raise OSError(errno.EMSGSIZE, f"a netlink answer is over {_LARGEST_ANSWER} bytes long")
        for message in messages(datagram):
            if message.sequence == self._sequence and not self.complete:
                self._add(message)

    def _add(self, message: Message) -> None:
        self.changed |= bool(message.flags & NLM_F_DUMP_INTR)
        if message.kind == NLMSG_OVERRUN:
            raise OSError(errno.ENOBUFS, "the kernel lost a part of a netlink answer")
        if message.kind in (NLMSG_ERROR, NLMSG_DONE):
            self.complete = True
            self.refused = refusal(message)
        elif message.kind != NLMSG_NOOP:
            self.bodies.append(message.body)
            self.complete = not message.flags & NLM_F_MULTI
