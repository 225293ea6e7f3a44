"""Driver facts and statistics of network interfaces by ethtool's ioctl, without a subprocess.

Sources: linux UAPI include/uapi/linux/ethtool.h and sockios.h, net/ethtool/ioctl.c.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import mmap
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Protocol

from railscope.capture import Json

_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO = 0x3, 0x1B, 0x1D, 0x37
_SS_STATS = 1
_STRING_BYTES, _VALUE_BYTES = 32, 8
_TRIES = 5
_INTERFACE_BYTES = 15
_DRIVER_INFO = struct.Struct("=I32s32s32s32s32s12xIIIII")
_COUNT, _STRINGS, _VALUES = struct.Struct("=IIQI"), struct.Struct("=III"), struct.Struct("=II")
_MAX_CACHED_INTERFACES = 256
"""Maximum of interfaces with cached names: interfaces of containers are created and removed constantly."""
_BUFFER_BYTES = 1 << 20
"""Size of the buffer of all answers: far larger than any list, of which only the written pages occupy memory.

Older kernels write as many statistics as the driver currently has, regardless of the caller's buffer
size (fixed by commit 7b07be1ff1cb), and a list may grow many times over between two calls (a NIC that
goes up adds its queues).
"""
_MAX_STATISTICS = _BUFFER_BYTES // _STRING_BYTES // 4
"""More statistics than any driver has, and a quarter of the buffer's capacity."""


class EthtoolKernel(Protocol):
    """Executor of ethtool commands: `buffer` holds the command, then the answer."""

    buffer: memoryview

    def execute(self, interface: str) -> None:
        """Execute the command at the start of the buffer. Raises OSError."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


class LiveEthtoolKernel:
    """Kernel of this node, called through a socket."""

    def __init__(self) -> None:
        # Mapped and not allocated: the address is stable, and pages that no answer reaches cost nothing.
        self._memory = mmap.mmap(-1, _BUFFER_BYTES)
        self._start = ctypes.c_char.from_buffer(self._memory)
        self.buffer = memoryview(self._memory)
        self._socket: socket.socket | None = None

    def execute(self, interface: str) -> None:
        """Execute the command at the start of the buffer."""
        name = interface.encode()
        # The kernel would silently use the first 15 bytes: another interface may have that name.
        if len(name) > _INTERFACE_BYTES:
            raise OSError(errno.ENODEV, f"interface name too long: {interface}")
        request = bytearray(struct.pack("16sP16x", name, ctypes.addressof(self._start)))
        self._socket = self._socket or socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        fcntl.ioctl(self._socket.fileno(), _SIOCETHTOOL, request)

    def close(self) -> None:
        """Close the socket, if it was opened."""
        if self._socket:
            self._socket.close()
            self._socket = None


@dataclass(frozen=True, slots=True)
class _StatisticNames:
    raw: bytes
    names: list[str]


class Ethtool:
    """Driver facts and statistics of network interfaces. Raises OSError. Thread-safe."""

    def __init__(self, kernel: EthtoolKernel | None = None) -> None:
        self._kernel: EthtoolKernel = kernel or LiveEthtoolKernel()
        self._names: dict[str, _StatisticNames] = {}
        # All commands share the buffer.
        self._lock = threading.Lock()

    def call(self, function: str, interface: str) -> Json:
        """Return "driver" or "statistics" of an interface."""
        with self._lock:
            if function == "driver":
                return self._driver(interface)
            return self._statistics(interface)

    def _driver(self, interface: str) -> dict[str, str]:
        """Driver name, driver and firmware version, and bus address of an interface."""
        _DRIVER_INFO.pack_into(self._kernel.buffer, 0, _GDRVINFO, *[b""] * 5, *[0] * 5)
        self._kernel.execute(interface)
        _, driver, version, firmware, bus, *_ = _DRIVER_INFO.unpack_from(self._kernel.buffer)
        named = {"driver": driver, "version": version, "firmware": firmware, "bus": bus}
        return {key: _text(raw) for key, raw in named.items()}

    def _statistics(self, interface: str) -> dict[str, list[str] | list[int]]:
        """Names and values of all statistics, in the driver's order.

        The list of names is the same object as long as the names do not change. Raises OSError with
        EAGAIN if the list kept changing during the read.

        Names and values need two calls, and the list may change in between, even at the same length: PFC
        moved from one priority to another. So names are read after the values as well, and values count
        only if those names equal the cached ones. Reading the names costs no firmware command; they are
        decoded only if their bytes differ. The count is not read again once names are cached: both answers
        contain it, or are empty if the kernel finds a different count (commit 7b07be1ff1cb).
        """
        for _ in range(_TRIES):
            cached = self._names.get(interface)
            if cached is None:
                count = self._count(interface)
                if count == 0:
                    return {"names": [], "values": []}
                cached = self._cached_names(interface, self._strings(interface, count))
            if count := len(cached.names):
                values = self._values(interface, count)
                if len(values) == count and self._strings(interface, count) == cached.raw:
                    return {"names": cached.names, "values": values}
            # The names no longer fit: the next attempt reads them again.
            del self._names[interface]
        raise OSError(errno.EAGAIN, f"the list of statistics of {interface} changes on every read")

    def _cached_names(self, interface: str, raw: bytes) -> _StatisticNames:
        if len(self._names) >= _MAX_CACHED_INTERFACES:
            self._names.clear()
        starts = range(0, len(raw), _STRING_BYTES)
        names = [_text(raw[start : start + _STRING_BYTES]) for start in starts]
        cached = self._names[interface] = _StatisticNames(raw, names)
        return cached

    def _count(self, interface: str) -> int:
        _COUNT.pack_into(self._kernel.buffer, 0, _GSSET_INFO, 0, 1 << _SS_STATS, 0)
        self._kernel.execute(interface)
        _, _, mask, count = _COUNT.unpack_from(self._kernel.buffer)
        if mask and count > _MAX_STATISTICS:
            raise OSError(errno.EOVERFLOW, f"too many statistics of {interface}: {count}")
        # The kernel clears the bit of a set that the driver does not have.
        return int(count) if mask else 0

    def _strings(self, interface: str, count: int) -> bytes:
        _STRINGS.pack_into(self._kernel.buffer, 0, _GSTRINGS, _SS_STATS, count)
        self._kernel.execute(interface)
        returned = _STRINGS.unpack_from(self._kernel.buffer)[2]
        start = _STRINGS.size
        return bytes(self._kernel.buffer[start : start + returned * _STRING_BYTES])

    def _values(self, interface: str, count: int) -> list[int]:
        _VALUES.pack_into(self._kernel.buffer, 0, _GSTATS, count)
        self._kernel.execute(interface)
        returned = _VALUES.unpack_from(self._kernel.buffer)[1]
        values = array.array("Q")
        values.frombytes(self._kernel.buffer[_VALUES.size : _VALUES.size + returned * _VALUE_BYTES])
        return values.tolist()

    def close(self) -> None:
        """Close the socket, if it was opened."""
        self._kernel.close()


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode(errors="replace")
