"""A kernel at the other end of a socket, with netlink answers set by a test.

Messages are assembled here from linux UAPI netlink.h, not by the code under test.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from railscope_agent.host.netlink import Netlink

MULTI, DUMP_INTERRUPTED, CAPPED, WITH_TEXT = 0x02, 0x10, 0x100, 0x200
ERROR, DONE, OVERRUN = 2, 3, 4
ETHTOOL_FAMILY = 0x15
CONTROLLER = 0x10


@dataclass(frozen=True)
class NetlinkRequest:
    """A request as received over the socket of a protocol."""

    protocol: int
    kind: int
    flags: int
    sequence: int
    body: bytes

    def message(self, kind: int, body: bytes = b"", flags: int = 0) -> bytes:
        """Return an answer message, padded to the next one."""
        head = struct.pack("=IHHII", 16 + len(body), kind, flags, self.sequence, 4711)
        return pad(head + body)

    def refused(self, number: int, text: str = "", *, capped: bool = True) -> bytes:
        """Return an error, with the driver's message if it has one (struct nlmsgerr)."""
        own = struct.pack("=IHHII", 16 + len(self.body), self.kind, self.flags, self.sequence, 0)
        body = struct.pack("=i", -number) + own + (b"" if capped else pad(self.body))
        flags = CAPPED if capped else 0
        if text:
            body += attribute(1, text.encode() + b"\0")
            flags |= WITH_TEXT
        return self.message(ERROR, body, flags)

    def done(self, number: int = 0, flags: int = MULTI) -> bytes:
        """Return the end of a dump."""
        return self.message(DONE, struct.pack("=i", -number), flags)


Answer = Callable[[NetlinkRequest], Iterable[bytes]]


def pad(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 4)


def attribute(kind: int, value: bytes) -> bytes:
    return pad(struct.pack("=HH", 4 + len(value), kind) + value)


def attributes(raw: bytes) -> dict[int, bytes]:
    """Return the attributes of a request; the requests of tests are well-formed."""
    found = {}
    while raw:
        length, kind = struct.unpack_from("=HH", raw)
        found[kind & 0x3FFF] = raw[4:length]
        raw = raw[(length + 3) & ~3 :]
    return found


class FakeKernel:
    """Opens sockets with an answering other end, each on its own thread."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._threads: list[threading.Thread] = []
        self.requests: list[NetlinkRequest] = []
        self.opened: list[int] = []

    def open(self, protocol: int) -> socket.socket:
        self.opened.append(protocol)
        asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        thread = threading.Thread(target=self._serve, args=(protocol, answering), daemon=True)
        self._threads.append(thread)
        thread.start()
        return asking

    def join(self) -> None:
        """Wait for the threads, which end when the sockets are closed."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a socket was left open"

    def _serve(self, protocol: int, answering: socket.socket) -> None:
        with answering:
            while raw := answering.recv(1 << 16):
                length, kind, flags, sequence, _ = struct.unpack_from("=IHHII", raw)
                request = NetlinkRequest(protocol, kind, flags, sequence, raw[16:length])
                self.requests.append(request)
                try:
                    for datagram in self._answer(request):
                        answering.send(datagram)
                except (BrokenPipeError, ConnectionResetError):
                    return  # the client has closed the socket because of an answer


@contextmanager
def open_netlink(answer: Answer) -> Iterator[tuple[Netlink, FakeKernel]]:
    """Open netlink with a kernel that answers with this function."""
    kernel = FakeKernel(answer)
    netlink = Netlink(kernel.open)
    try:
        yield netlink, kernel
    finally:
        netlink.close()
        kernel.join()


def ethtool(command: int, *output: bytes, version: int = 1) -> Answer:
    """Return a kernel with an ethtool family that answers one command, and no other."""

    def answer(request: NetlinkRequest) -> list[bytes]:
        if request.kind == CONTROLLER:
            name = attributes(request.body[4:])[2]
            assert name == b"ethtool\0", name
            family = attribute(1, struct.pack("=H", ETHTOOL_FAMILY)) + attribute(2, name)
            return [request.message(CONTROLLER, struct.pack("=BBxx", 1, 2) + family)]
        if request.kind != ETHTOOL_FAMILY or request.body[0] != command:
            return [request.refused(errno.EOPNOTSUPP)]
        body = struct.pack("=BBxx", command, version) + b"".join(output)
        return [request.message(ETHTOOL_FAMILY, body)]

    return answer
