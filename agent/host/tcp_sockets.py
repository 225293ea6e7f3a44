"""TCP sockets of this node: their users, and the processes that have them, as of /proc/net/tcp (proc_net_tcp.rst).

The kernel lists the other end of a connection on loopback, whatever the process that has it states about itself.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from itertools import islice

from agent.host.files import RootedFiles
from railscope.capture import Json

TCP_SOCKETS = "tcp_sockets"
MAX_DESCRIPTORS = 16_384
"""Maximum number of descriptors of a process among which a socket is searched."""
_LISTENING = b"0A"


class TcpSocketCalls:
    """The host interface "tcp_sockets". Without `live`, there are no processes."""

    def __init__(self, files: RootedFiles, *, live: bool = True) -> None:
        self._files = files
        self._live = live

    def call(self, function: str, *arguments: int | str) -> Json:
        """Return the answer of a call. Raises OSError.

        tcp_sockets.owners(address, port, peer, peer_port, *pids)   user of the socket with this address and this peer, and
                                                                    those of the processes that have it; empty without one
        """
        if function != "owners" or not self._live:
            raise OSError(errno.ENODEV, "processes are not available in a copied tree")
        address, port, peer, peer_port, *pids = arguments
        family = socket.AF_INET6 if ":" in str(address) else socket.AF_INET
        local, remote = (str(address), int(port)), (str(peer), int(peer_port))
        user, inode = self.find_socket(family, local, remote)
        return [user, *(int(pid) for pid in pids if self.has_socket(int(pid), inode))] * bool(inode)

    def listening_users(self, family: int, address: str, port: int) -> Iterable[int]:
        """Return the users of the sockets that listen on an address, or on all addresses."""
        local = _endpoint(family, address, port)
        wildcard = re.sub(rb"\w+(?=:)", lambda match: b"0" * len(match[0]), local)
        return (
            int(fields[7])
            for fields in self._connections(family)
            if fields[3] == _LISTENING and fields[1] in {local, wildcard}
        )

    def find_socket(
        self, family: int, local: tuple[str, int], remote: tuple[str, int]
    ) -> tuple[int, int]:
        """Return user and inode of a connected socket; the inode is 0 if no process has it."""
        ends = [_endpoint(family, *local), _endpoint(family, *remote)]
        found = (fields for fields in self._connections(family) if fields[1:3] == ends)
        return next(((int(fields[7]), int(fields[9])) for fields in found), (0, 0))

    def has_socket(self, pid: int, inode: int) -> bool:
        """True if a process has a socket; False as well if it has ended, or its descriptors may not be read."""
        target = f"socket:[{inode}]"
        try:
            with os.scandir(self._files.real(f"/proc/{pid}/fd")) as entries:
                for entry in islice(entries, MAX_DESCRIPTORS):
                    try:
                        if os.readlink(entry.path) == target:  # noqa: PTH115 - many of them
                            return True
                    except FileNotFoundError:
                        continue  # closed since
        except OSError:
            return False
        return False

    def _connections(self, family: int) -> Iterator[list[bytes]]:
        name = "tcp6" if family == socket.AF_INET6 else "tcp"
        for line in self._files.read(f"/proc/self/net/{name}").splitlines()[1:]:
            yield line.split()


def _endpoint(family: int, address: str, port: int) -> bytes:
    """Return an endpoint as /proc/net/tcp has it: words of the address in the byte order of the node."""
    packed = socket.inet_pton(family, address)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}".encode()
