"""The kernel's ethtool interface, by ioctl and without a subprocess.

Source: linux UAPI include/uapi/linux/ethtool.h and sockios.h, net/ethtool/ioctl.c. Two hazards:

- Older kernels write as many statistics as the driver has now, whatever room the caller made (fixed
  by commit 7b07be1ff1cb), and a list may grow many times over from one call to the next (a card
  that goes up gets its queues). So all answers go into one room that is far larger than any list,
  and of which only the pages that were written take memory.
- Names and values come by two calls, and the list may change in between, even without changing its
  length: PFC moved from one priority to another. So names are read after the values as well, and
  values count only if the names then are the ones that were known before: the list was the same all
  the while. Reading the names costs no firmware command; they are decoded when their bytes differ.
  How many there are is not asked for again once names are known: both answers tell, or are empty
  where the kernel finds that it is not what was said (7b07be1ff1cb).
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
_REMEMBERED = 256
"""Interfaces whose names are kept: those of containers come and go for ever."""
_ROOM_BYTES = 1 << 20
_MOST = _ROOM_BYTES // _STRING_BYTES // 4
"""More statistics than any driver has, and a quarter of what there is room for."""


class Kernel(Protocol):
    """What answers ethtool commands: the command is in the room, and so is the answer then."""

    room: memoryview

    def ask(self, interface: str) -> None:
        """Carry out the command at the start of the room. Raises OSError."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


class LiveKernel:
    """The kernel of this machine, asked through a socket."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _ROOM_BYTES)
        self._start = ctypes.c_char.from_buffer(self._memory)
        self.room = memoryview(self._memory)
        self._socket: socket.socket | None = None

    def ask(self, interface: str) -> None:
        """Carry out the command at the start of the room."""
        name = interface.encode()
        if len(name) > _INTERFACE_BYTES:
            raise OSError(errno.ENODEV, f"{interface} is too long for an interface name")
        request = bytearray(struct.pack("16sP16x", name, ctypes.addressof(self._start)))
        self._socket = self._socket or socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        fcntl.ioctl(self._socket.fileno(), _SIOCETHTOOL, request)

    def close(self) -> None:
        """Close the socket, if one was needed."""
        if self._socket:
            self._socket.close()
            self._socket = None


@dataclass(frozen=True, slots=True)
class _Names:
    raw: bytes
    names: list[str]


class Ethtool:
    """Driver facts and statistics of network interfaces. Raises OSError. Safe among threads."""

    def __init__(self, kernel: Kernel | None = None) -> None:
        self._kernel: Kernel = kernel or LiveKernel()
        self._known: dict[str, _Names] = {}
        self._lock = threading.Lock()

    def call(self, function: str, interface: str) -> Json:
        """Answer "driver" or "statistics" for an interface."""
        with self._lock:
            if function == "driver":
                return self._driver(interface)
            return self._statistics(interface)

    def _driver(self, interface: str) -> dict[str, str]:
        """Driver name, driver and firmware version and bus address of an interface."""
        _DRIVER_INFO.pack_into(self._kernel.room, 0, _GDRVINFO, *[b""] * 5, *[0] * 5)
        self._kernel.ask(interface)
        _, driver, version, firmware, bus, *_ = _DRIVER_INFO.unpack_from(self._kernel.room)
        named = {"driver": driver, "version": version, "firmware": firmware, "bus": bus}
        return {key: _text(raw) for key, raw in named.items()}

    def _statistics(self, interface: str) -> dict[str, list[str] | list[int]]:
        """Names and values of all statistics, in the driver's order.

        The list of names is the same object as long as the names are. Raises OSError with EAGAIN
        where the list kept changing while it was read.
        """
        for _ in range(_TRIES):
            known = self._known.get(interface)
            if known is None:
                count = self._count(interface)
                if count == 0:
                    return {"names": [], "values": []}
                known = self._know(interface, self._strings(interface, count))
            if count := len(known.names):
                values = self._values(interface, count)
                if len(values) == count and self._strings(interface, count) == known.raw:
                    return {"names": known.names, "values": values}
            del self._known[interface]
        raise OSError(errno.EAGAIN, f"the list of statistics of {interface} keeps changing")

    def _know(self, interface: str, raw: bytes) -> _Names:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        starts = range(0, len(raw), _STRING_BYTES)
        names = [_text(raw[start : start + _STRING_BYTES]) for start in starts]
        known = self._known[interface] = _Names(raw, names)
        return known

    def _count(self, interface: str) -> int:
        _COUNT.pack_into(self._kernel.room, 0, _GSSET_INFO, 0, 1 << _SS_STATS, 0)
        self._kernel.ask(interface)
        _, _, mask, count = _COUNT.unpack_from(self._kernel.room)
        if mask and count > _MOST:
            raise OSError(errno.EOVERFLOW, f"{interface} has {count} statistics")
        return int(count) if mask else 0

    def _strings(self, interface: str, count: int) -> bytes:
        _STRINGS.pack_into(self._kernel.room, 0, _GSTRINGS, _SS_STATS, count)
        self._kernel.ask(interface)
        found = _STRINGS.unpack_from(self._kernel.room)[2]
        start = _STRINGS.size
        return bytes(self._kernel.room[start : start + found * _STRING_BYTES])

    def _values(self, interface: str, count: int) -> list[int]:
        _VALUES.pack_into(self._kernel.room, 0, _GSTATS, count)
        self._kernel.ask(interface)
        found = _VALUES.unpack_from(self._kernel.room)[1]
        values = array.array("Q")
        values.frombytes(self._kernel.room[_VALUES.size : _VALUES.size + found * _VALUE_BYTES])
        return values.tolist()

    def close(self) -> None:
        """Close the socket, if one was needed."""
        self._kernel.close()


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode(errors="replace")
