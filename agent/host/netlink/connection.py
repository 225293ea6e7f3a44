"""Questions to the kernel over netlink sockets, one socket for each thread and protocol.

The kernel works on a question inside of send(2), with the driver's locks taken. So a driver that
hangs must not keep other threads from asking: sockets are not shared between threads.
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

# linux/netlink.h; the socket module names only the protocol of routing.
ROUTE, GENERIC, RDMA = 0, 16, 20
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_TIMEOUT_SECONDS = 2
_TIMEVAL = struct.Struct("ll")
_LARGEST_DATAGRAM = 1 << 16
"""The kernel makes the parts of a dump up to 32 KiB large (net/netlink/af_netlink.c)."""
_LARGEST_ANSWER = 16 << 20
_TRIES = 4


def open_socket(protocol: int) -> socket.socket:
    """A socket that only the kernel can write to. Raises OSError."""
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
    """The connections of all threads; `open_socket` makes a socket for a protocol."""

    def __init__(self, open_socket: OpenSocket = open_socket) -> None:
        self._open_socket = open_socket
        self._connections: dict[tuple[int, int], Connection] = {}

    def of(self, protocol: int) -> Connection:
        """The calling thread's connection for a protocol."""
        key = threading.get_ident(), protocol
        if key not in self._connections:
            self._connections[key] = Connection(partial(self._open_socket, protocol))
        return self._connections[key]

    def close(self) -> None:
        """Close the sockets of all threads; a later question opens them anew."""
        for connection in list(self._connections.values()):
            connection.close()


class Connection:
    """One socket, kept open. For one thread."""

    def __init__(self, open_socket: Callable[[], socket.socket]) -> None:
        self._open_socket = open_socket
        self._socket: socket.socket | None = None
        self._sequence = 0

    def ask(self, kind: int, body: bytes) -> bytes:
        """The one message that answers a question. Raises OSError."""
        answer = self._exchange(Message(kind, NLM_F_REQUEST, self._next(), body))
        if len(answer.bodies) != 1:
            contradiction(f"{len(answer.bodies)} messages answer a question that has one answer")
        return answer.bodies[0]

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """All entries of a list; asked again where it changed, or overflowed, while it was read.

        Raises OSError: EAGAIN or ENOBUFS where it kept doing so.
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
            self.close()  # what is still to come on this socket answers nothing any more
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
    """What the messages of one sequence number say; those of others came too late."""

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence
        self._received_bytes = 0
        self.bodies: list[bytes] = []
        self.changed = False
        self.complete = False
        self.refused: OSError | None = None

    def take(self, datagram: bytes) -> None:
        """Add one datagram. Raises OSError for nonsense, and for an answer without end."""
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
