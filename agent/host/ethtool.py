"""The kernel's ethtool interface, by ioctl and without a subprocess.

Source: linux UAPI include/uapi/linux/ethtool.h and sockios.h. Older kernels write as many
statistics as the driver has now, whatever room the caller made (fixed by commit 7b07be1ff1cb), and
the mlx5 list changes its length while running. So every call asks for the count anew, makes four
times that room, states what it expects and pairs names with values only if both counts agree.
"""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct

from railscope.capture import Json

_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO = 0x3, 0x1B, 0x1D, 0x37
_SS_STATS = 1
_STRING_BYTES = 32
_SPARE = 4
_TRIES = 5
_INTERFACE_BYTES = 15
_DRIVER_INFO = struct.Struct("=I32s32s32s32s32s12xIIIII")


class Ethtool:
    """Driver facts and statistics of network interfaces. Raises OSError."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._names: dict[str, list[str]] = {}

    def call(self, function: str, interface: str) -> Json:
        """Answer "driver" or "statistics" for an interface."""
        if function == "driver":
            return self.driver(interface)
        return self.statistics(interface)

    def driver(self, interface: str) -> dict[str, str]:
        """Driver name, driver and firmware version and bus address of an interface."""
        block = bytearray(_DRIVER_INFO.size)
        struct.pack_into("=I", block, 0, _GDRVINFO)
        self._ioctl(interface, block)
        _, driver, version, firmware, bus, *_ = _DRIVER_INFO.unpack(block)
        named = {"driver": driver, "version": version, "firmware": firmware, "bus": bus}
        return {key: raw.split(b"\0")[0].decode(errors="replace") for key, raw in named.items()}

    def statistics(self, interface: str) -> dict[str, list[str] | list[int]]:
        """Names and values of all statistics, in the driver's order.

        Raises OSError with EAGAIN where the list kept changing while it was read.
        """
        for _ in range(_TRIES):
            count = self._count(interface)
            if count == 0:
                return {"names": [], "values": []}
            names = self._names.get(interface)
            if names is None or len(names) != count:
                names = self._names[interface] = self._strings(interface, count)
            values = self._values(interface, count)
            if len(names) == len(values) == count:
                return {"names": names, "values": values}
            self._names.pop(interface, None)
        raise OSError(errno.EAGAIN, f"the list of statistics of {interface} keeps changing")

    def _count(self, interface: str) -> int:
        block = bytearray(struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
        self._ioctl(interface, block)
        _, _, mask, count = struct.unpack("=IIQI", block)
        return int(count) if mask else 0

    def _strings(self, interface: str, count: int) -> list[str]:
        head = struct.pack("=III", _GSTRINGS, _SS_STATS, count)
        block = bytearray(head + bytes(count * _SPARE * _STRING_BYTES))
        self._ioctl(interface, block)
        found = struct.unpack_from("=III", block)[2]
        raw = bytes(block[len(head) : len(head) + found * _STRING_BYTES])
        pieces = [raw[i : i + _STRING_BYTES] for i in range(0, len(raw), _STRING_BYTES)]
        return [piece.split(b"\0")[0].decode(errors="replace") for piece in pieces]

    def _values(self, interface: str, count: int) -> list[int]:
        head = struct.pack("=II", _GSTATS, count)
        block = bytearray(head + bytes(count * _SPARE * 8))
        self._ioctl(interface, block)
        found = struct.unpack_from("=II", block)[1]
        values = array.array("Q")
        values.frombytes(block[len(head) : len(head) + found * values.itemsize])
        return values.tolist()

    def _ioctl(self, interface: str, block: bytearray) -> None:
        name = interface.encode()
        if len(name) > _INTERFACE_BYTES:
            raise OSError(errno.ENODEV, f"{interface} is too long for an interface name")
        buffer = array.array("B", block)
        address, _ = buffer.buffer_info()
        request = bytearray(struct.pack("16sP16x", name, address))
        self._socket = self._socket or socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        fcntl.ioctl(self._socket.fileno(), _SIOCETHTOOL, request)
        block[:] = buffer.tobytes()

    def close(self) -> None:
        """Close the socket, if one was needed."""
        if self._socket:
            self._socket.close()
            self._socket = None
