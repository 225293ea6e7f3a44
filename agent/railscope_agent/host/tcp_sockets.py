"""TCP sockets of this node: their users, and the processes that have them, as of /proc/net/tcp (proc_net_tcp.rst).

The kernel lists the other end of a connection on loopback, whatever the process that has it states about itself.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterator
from itertools import islice

from railscope_agent.host.files import RootedFiles

MAX_DESCRIPTORS = 16_384
"""Maximum number of descriptors of a process among which a socket is searched."""
_LISTENING = b"0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
"""Target of the link of a descriptor (proc_pid_fd(5))."""
_MAPPED = "::ffff:"
"""Prefix of IPv4 addresses in sockets of IPv6 (RFC 4291, section 2.5.5.2)."""


class TcpSockets:
    """Sockets of the node, searched in its files."""

    def __init__(self, files: RootedFiles) -> None:
        self._files = files

    def listening_users(self, family: int, address: str, port: int) -> Iterator[int]:
        """Yield the users of the sockets that listen on an address, or on all addresses."""
        accepted = {
            _endpoint(family, host, port)
            for host in (address, "::" if family == socket.AF_INET6 else "0.0.0.0")  # noqa: S104 - searched, not bound
        }
        for fields in self._connections(family):
            if fields[3] == _LISTENING and fields[1] in accepted:
                yield int(fields[7])

    def find_socket(self, local: tuple[str, int], remote: tuple[str, int]) -> tuple[int, int]:
        """Return user and inode of a connected socket; the inode is 0 if no process has it.

        A socket of IPv6 with a connection of IPv4 is listed with mapped addresses, whichever family its peer has.
        """
        for family, hosts in _listed_forms(local[0], remote[0]):
            ends = [_endpoint(family, hosts[0], local[1]), _endpoint(family, hosts[1], remote[1])]
            for fields in self._connections(family):
                if fields[1:3] == ends:
                    return int(fields[7]), int(fields[9])
        return 0, 0

    def has_socket(self, pid: int, inode: int) -> bool:
        """True if a process has a socket; False as well if it has ended, or its descriptors may not be read."""
        return inode in self._inodes(pid)

    def _inodes(self, pid: int) -> Iterator[int]:
        """Yield the sockets of a process."""
        try:
            with os.scandir(self._files.real(f"/proc/{pid}/fd")) as entries:
                for entry in islice(entries, MAX_DESCRIPTORS):
                    try:
                        target = os.readlink(entry.path)  # noqa: PTH115 - many of them
                    except FileNotFoundError:
                        continue  # closed since
                    if match := _SOCKET.fullmatch(target):
                        yield int(match[1])
        # The process has ended, or is another user's: it is not known to have the socket, so it is not
        # believed.
        except OSError:
            return

    def _connections(self, family: int) -> Iterator[list[bytes]]:
        name = "tcp6" if family == socket.AF_INET6 else "tcp"
        for line in self._files.read(f"/proc/self/net/{name}").splitlines()[1:]:
            yield line.split()


def _listed_forms(*hosts: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the families of sockets that may have these addresses, with the addresses as they are listed there."""
    addresses = [ipaddress.ip_address(host.partition("%")[0]) for host in hosts]
    plain = [str(getattr(each, "ipv4_mapped", None) or each) for each in addresses]
    if any(":" in host for host in plain):
        yield socket.AF_INET6, plain
    else:
        yield socket.AF_INET, plain
        yield socket.AF_INET6, [_MAPPED + host for host in plain]


def _endpoint(family: int, address: str, port: int) -> bytes:
    """Return an endpoint as /proc/net/tcp has it: words of the address in the byte order of the node."""
    packed = socket.inet_pton(family, address)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}".encode()
