"""Counters of RDMA ports over netlink.

Sources: linux UAPI rdma_netlink.h and drivers/infiniband/core/nldev.c.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Sequence

from railscope_agent.host.netlink import messages
from railscope_agent.host.netlink.connection import NetlinkConnection

_NLDEV = 5 << 10  # RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, ...)
_DEVICE_GET, _STATISTICS_GET = _NLDEV | 1, _NLDEV | 17
_DEVICE_INDEX, _DEVICE_NAME, _PORT = 1, 2, 3
_COUNTER_TABLE, _COUNTER_NAME, _COUNTER_VALUE = 80, 82, 83
_VALUE_BYTES = 8


class _CounterLayout:
    """Places of the counters in an answer; of two answers about a port usually only their values differ."""

    def __init__(self, body: bytes) -> None:
        names, members, end = list[str](), ["="], 0
        for name, place in _counter_places(body):
            if place.stop - place.start != _VALUE_BYTES:
                messages.raise_inconsistent(f"counter of {place.stop - place.start} bytes")
            names.append(name)
            members.append(f"{place.start - end}sQ")
            end = place.stop
        self.names = tuple(names)
        self._layout = struct.Struct("".join(members) + f"{len(body) - end}s")
        # Everything except the values, names and lengths included: if it is the same, the values are at the
        # same places.
        self._between_values = self._layout.unpack(body)[::2]

    def values(self, body: bytes) -> Sequence[int] | None:
        """Values of the counters; None if anything else differs from the first answer."""
        if len(body) != self._layout.size:
            return None
        members = self._layout.unpack(body)
        return members[1::2] if members[::2] == self._between_values else None


def _counter_places(body: bytes) -> Iterator[tuple[str, slice]]:
    for kind, table in messages.attribute_places(body, slice(0, len(body))):
        if kind != _COUNTER_TABLE:
            continue
        for _, entry in messages.attribute_places(body, table):
            places = dict(messages.attribute_places(body, entry))
            name = messages.text(body[places.get(_COUNTER_NAME, slice(0))])
            yield name, places.get(_COUNTER_VALUE, slice(0, 0))


class RdmaStatistics:
    """Statistics of RDMA ports.

    Source: linux UAPI rdma_netlink.h and drivers/infiniband/core/nldev.c. RDMA_NLDEV_CMD_STAT_GET of a
    device and a port returns the counters below `hw_counters`, and the optional counters that an
    administrator enabled (`rdma statistic set link ... optional-counters ...`), which are in no file.
    Devices are identified by an index; a missing device, or one without counters, returns EINVAL.
    """

    def __init__(self, connection: Callable[[], NetlinkConnection]) -> None:
        self._connection = connection
        self._indexes: dict[str, int] = {}
        self._layouts: dict[tuple[str, int], _CounterLayout] = {}

    def statistics(self, device: str, port: int) -> dict[str, int]:
        """Name and value of each counter of a port. Raises OSError as `counters` does."""
        return dict(zip(*self.counters(device, port), strict=True))

    def counters(self, device: str, port: int) -> tuple[Sequence[str], Sequence[int]]:
        """Names and values of the counters of a port. Raises OSError.

        The names are the same object as long as they do not change. EPROTONOSUPPORT if the kernel has no
        RDMA, ENODEV if it has no such device.
        """
        connection = self._connection()
        if device in self._indexes:
            try:
                body = _port_statistics(connection, self._indexes[device], port)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                layout = self._layouts.get((device, port))
                if layout and (values := layout.values(body)) is not None:
                    return layout.names, values
                # The index may be that of another device since: the answer states its name.
                if messages.text(dict(messages.attributes(body)).get(_DEVICE_NAME, b"")) == device:
                    return self._first_counters(device, port, body)
        # First request, renamed, or registered again after a reset of the NIC: indexes have
        # changed.
        self._indexes, self._layouts = _devices(connection), {}
        if device not in self._indexes:
            raise OSError(errno.ENODEV, f"RDMA device {device} does not exist")
        body = _port_statistics(connection, self._indexes[device], port)
        return self._first_counters(device, port, body)

    def _first_counters(
        self, device: str, port: int, body: bytes
    ) -> tuple[Sequence[str], Sequence[int]]:
        layout = self._layouts[device, port] = _CounterLayout(body)
        return layout.names, layout.values(body) or ()


def _devices(connection: NetlinkConnection) -> dict[str, int]:
    devices = [dict(messages.attributes(body)) for body in connection.dump(_DEVICE_GET, b"")]
    return {
        messages.text(values.get(_DEVICE_NAME, b"")): messages.integer(
            values.get(_DEVICE_INDEX, b"")
        )
        for values in devices
    }


def _port_statistics(connection: NetlinkConnection, index: int, port: int) -> bytes:
    device = messages.attribute(_DEVICE_INDEX, struct.pack("=I", index))
    return connection.request(
        _STATISTICS_GET, device + messages.attribute(_PORT, struct.pack("=I", port))
    )
