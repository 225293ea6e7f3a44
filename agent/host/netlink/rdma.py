"""Counters of RDMA ports over netlink, optional ones included.

Source: linux UAPI rdma_netlink.h and drivers/infiniband/core/nldev.c. RDMA_NLDEV_CMD_STAT_GET of a
device and a port returns the counters below `hw_counters`, and the optional counters that an
administrator enabled (`rdma statistic set link ... optional-counters ...`), which are in no file.
Devices are identified by an index; a missing device, or one without counters, returns EINVAL.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

from agent.host.netlink.connection import Connection
from agent.host.netlink.wire import attribute, attributes, integer, text

_NLDEV = 5 << 10  # RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, ...)
_DEVICE_GET, _STATISTICS_GET = _NLDEV | 1, _NLDEV | 17
_DEVICE_INDEX, _DEVICE_NAME, _PORT = 1, 2, 3
_COUNTERS, _COUNTER_NAME, _COUNTER_VALUE = 80, 82, 83


class Rdma:
    """Statistics of RDMA ports."""

    def __init__(self, connection: Callable[[], Connection]) -> None:
        self._connection = connection
        self._indexes: dict[str, int] = {}

    def statistics(self, device: str, port: int) -> dict[str, int]:
        """Name and value of each counter of a port. Raises OSError.

        EPROTONOSUPPORT if the kernel has no RDMA, ENODEV if it has no such device.
        """
        connection = self._connection()
        if device in self._indexes:
            try:
                said = _statistics(connection, self._indexes[device], port)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                if text(said.get(_DEVICE_NAME, b"")) == device:
                    return _counters(said)
        # First request, renamed, or registered again after a reset of the NIC: indexes have
        # changed.
        self._indexes = _devices(connection)
        if device not in self._indexes:
            raise OSError(errno.ENODEV, f"there is no RDMA device {device}")
        return _counters(_statistics(connection, self._indexes[device], port))


def _devices(connection: Connection) -> dict[str, int]:
    found = [dict(attributes(body)) for body in connection.dump(_DEVICE_GET, b"")]
    return {
        text(said.get(_DEVICE_NAME, b"")): integer(said.get(_DEVICE_INDEX, b"")) for said in found
    }


def _statistics(connection: Connection, index: int, port: int) -> dict[int, bytes]:
    device = attribute(_DEVICE_INDEX, struct.pack("=I", index))
    question = device + attribute(_PORT, struct.pack("=I", port))
    return dict(attributes(connection.ask(_STATISTICS_GET, question)))


def _counters(said: dict[int, bytes]) -> dict[str, int]:
    answer = {}
    for _, entry in attributes(said.get(_COUNTERS, b"")):
        counter = dict(attributes(entry))
        name = text(counter.get(_COUNTER_NAME, b""))
        answer[name] = integer(counter.get(_COUNTER_VALUE, b""))
    return answer
