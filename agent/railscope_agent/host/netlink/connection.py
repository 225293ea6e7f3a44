"""Requests to the kernel over netlink sockets, one socket per thread and protocol.

The kernel processes a request inside send(2), holding the driver's locks. Sockets are not shared
between threads, so that a hanging driver does not block the requests of other threads.

Messages and attributes are encoded and decoded with every length checked. Format: linux UAPI
include/uapi/linux/netlink.h; integers are in native byte order. Inconsistent data raises OSError
with EBADMSG.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, NoReturn

NLMSG_NOOP, NLMSG_ERROR, NLMSG_DONE, NLMSG_OVERRUN = 1, 2, 3, 4
NLM_F_REQUEST, NLM_F_MULTI, NLM_F_DUMP_INTR, NLM_F_DUMP = 0x01, 0x02, 0x10, 0x300
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200
_NESTED = 1 << 15
_TYPE_MASK = 0x3FFF
_ERROR_TEXT = 1  # NLMSGERR_ATTR_MSG
_INTERFACE_BYTES = 15  # linux/if.h, IFNAMSIZ less the end of the string
_LARGEST_ERRNO = 4095  # include/linux/err.h, MAX_ERRNO

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")
_INTEGERS = {1: "B", 2: "=H", 4: "=I", 8: "=Q"}


class NetlinkMessage(NamedTuple):
    """One message, without alignment padding."""

    kind: int
    flags: int
    sequence: int
    body: bytes


def raise_inconsistent(problem: str) -> NoReturn:
    """Raise OSError for inconsistent bytes."""
    raise OSError(errno.EBADMSG, f"malformed netlink response: {problem}")


def encode(message: NetlinkMessage) -> bytes:
    """Encode a message for the kernel."""
    kind, flags, sequence, body = message
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def messages(datagram: bytes) -> Iterator[NetlinkMessage]:
    """Messages of one received datagram."""
    offset = 0
    while offset < len(datagram):
        if len(datagram) - offset < _HEADER.size:
            raise_inconsistent("truncated message header")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(datagram, offset)
        if not _HEADER.size <= length <= len(datagram) - offset:
            raise_inconsistent(
                f"message of {length} bytes: {len(datagram) - offset} bytes are left"
            )
        yield NetlinkMessage(
            kind, flags, sequence, datagram[offset + _HEADER.size : offset + length]
        )
        offset += _align(length)


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute, padded to the start of the next one."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(_align(length) - length)


def nest(kind: int, *inner: bytes) -> bytes:
    """An attribute that contains attributes."""
    return attribute(kind | _NESTED, b"".join(inner))


def text_attribute(kind: int, value: str) -> bytes:
    """An attribute that contains a string."""
    return attribute(kind, value.encode(errors="replace") + b"\0")


def interface_attribute(kind: int, interface: str) -> bytes:
    """An attribute with an interface name. Raises OSError with ENODEV for an invalid name."""
    if not 0 < len(interface.encode(errors="replace")) <= _INTERFACE_BYTES or "\0" in interface:
        raise OSError(errno.ENODEV, f"invalid interface name {interface!r}")
    return text_attribute(kind, interface)


def attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute, in order."""
    return ((kind, raw[place]) for kind, place in attribute_places(raw, slice(0, len(raw))))


def attribute_places(raw: bytes, within: slice) -> Iterator[tuple[int, slice]]:
    """Type and place of the value of each attribute in a part of an answer, in order."""
    offset = within.start
    while within.stop - offset >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(raw, offset)
        if not _ATTRIBUTE.size <= length <= within.stop - offset:
            raise_inconsistent(
                f"attribute of {length} bytes: {within.stop - offset} bytes are left"
            )
        yield kind & _TYPE_MASK, slice(offset + _ATTRIBUTE.size, offset + length)
        offset += _align(length)


def integer(raw: bytes) -> int:
    """An unsigned integer of 1, 2, 4 or 8 bytes."""
    if len(raw) not in _INTEGERS:
        raise_inconsistent(f"integer of {len(raw)} bytes")
    (value,) = struct.unpack(_INTEGERS[len(raw)], raw)
    return int(value)


def text(raw: bytes) -> str:
    """A string, up to its terminator."""
    return raw.split(b"\0")[0].decode(errors="replace")


def unpack(layout: struct.Struct, raw: bytes) -> tuple[Any, ...]:
    """Members of a C structure; a newer kernel may append more members."""
    if len(raw) < layout.size:
        raise_inconsistent(f"structure of {len(raw)} bytes: expected {layout.size}")
    return layout.unpack_from(raw)


def answer_error(message: NetlinkMessage) -> OSError | None:
    """Error that ends an answer (NLMSG_ERROR, NLMSG_DONE); None on success.

    The text includes the extended acknowledgement of the driver or the kernel.
    """
    if message.kind == NLMSG_DONE and not message.body:
        return None
    (code,) = unpack(_ERRNO, message.body)
    if code >= 0:
        return None
    if code < -_LARGEST_ERRNO:
        raise_inconsistent(f"error {code}")
    explanation = "".join(
        text(value) for kind, value in _explanation(message) if kind == _ERROR_TEXT
    )
    return OSError(-code, os.strerror(-code) + (f": {explanation}" if explanation else ""))


def _explanation(message: NetlinkMessage) -> Iterator[tuple[int, bytes]]:
    if not message.flags & NLM_F_ACK_TLVS:
        return
    offset = _ERRNO.size
    if message.kind == NLMSG_ERROR:  # struct nlmsgerr: the header of the request, or all of it
        length, *_ = unpack(_HEADER, message.body[offset:])
        offset += _HEADER.size if message.flags & NLM_F_CAPPED else _align(length)
    yield from attributes(message.body[offset:])


def _align(length: int) -> int:
    return length + 3 & ~3


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
        netlink_socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        netlink_socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
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
        answer = self._exchange(NetlinkMessage(kind, NLM_F_REQUEST, self._next(), body))
        if len(answer.bodies) != 1:
            raise_inconsistent(f"{len(answer.bodies)} messages: expected 1")
        return answer.bodies[0]

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """All entries of a list; the dump is repeated if the list changed, or overflowed, during the read.

        Raises OSError: EAGAIN or ENOBUFS if it kept doing so.
        """
        for _ in range(_TRIES):
            request = NetlinkMessage(kind, NLM_F_REQUEST | NLM_F_DUMP, self._next(), body)
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
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        return self._sequence

    def _exchange(self, request: NetlinkMessage) -> _NetlinkAnswer:
        answer = _NetlinkAnswer(request.sequence)
        try:
            self._socket = self._socket or self._open()
            self._socket.send(encode(request))
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
        raise_inconsistent("empty response")
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
        for message in messages(datagram):
            if message.sequence == self._sequence and not self.complete:
                self._add(message)

    def _add(self, message: NetlinkMessage) -> None:
        self.changed |= bool(message.flags & NLM_F_DUMP_INTR)
        if message.kind == NLMSG_OVERRUN:
            raise OSError(errno.ENOBUFS, "the kernel dropped a part of a netlink response")
        if message.kind in (NLMSG_ERROR, NLMSG_DONE):
            self.complete = True
            self.error = answer_error(message)
        elif message.kind != NLMSG_NOOP:
            self.bodies.append(message.body)
            self.complete = not message.flags & NLM_F_MULTI
