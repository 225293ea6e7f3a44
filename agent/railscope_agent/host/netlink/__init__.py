"""The kernel's network configuration and counters over netlink, without a subprocess.

links()                        all interfaces, their state and statistics
dcb(interface)                 priority flow control, bandwidth shares, trust, buffers
pause, fec, standard_statistics, rings, link_modes, link_state (interface)
module(interface)              the plugged transceiver or cable
rdma_statistics(device, port)  counters of an RDMA port
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from railscope.capture import Json
from railscope_agent.host import module_eeprom
from railscope_agent.host.netlink import dcb, interfaces, rdma_statistics
from railscope_agent.host.netlink.connection import (
    GENERIC,
    RDMA,
    ROUTE,
    NetlinkConnections,
    OpenSocket,
    open_socket,
)
from railscope_agent.host.netlink.ethtool import EthtoolFamily

__all__ = ["Netlink"]


class Netlink:
    """Netlink calls by function name; thread-safe. Raises OSError.

    An error has the kernel's number and the text that the driver attached to it. A function that
    the driver does not implement raises EOPNOTSUPP, a missing interface ENODEV.
    """

    def __init__(self, open_socket: OpenSocket = open_socket) -> None:
        self._connections = NetlinkConnections(open_socket)
        ethtool = EthtoolFamily(partial(self._connections.connection, GENERIC))
        self._module_half = ethtool.module_half
        self.rdma = rdma_statistics.RdmaStatistics(partial(self._connections.connection, RDMA))
        self._functions: dict[str, Callable[..., Json]] = {
            "links": lambda: interfaces.list_links(self._connections.connection(ROUTE)),
            "dcb": lambda interface: dcb.read_dcb(self._connections.connection(ROUTE), interface),
            "pause": ethtool.pause,
            "fec": ethtool.fec,
            "standard_statistics": ethtool.standard_statistics,
            "rings": ethtool.rings,
            "link_modes": ethtool.link_modes,
            "link_state": ethtool.link_state,
            "module": self._module,
            "rdma_statistics": self.rdma.statistics,
        }

    def call(self, function: str, *arguments: int | str) -> Json:
        """Call a function by its name."""
        return self._functions[function](*arguments)

    def ethernet_ports(self) -> dict[str, interfaces.EthernetPort]:
        """Ethernet interfaces that are up, by name."""
        return interfaces.ethernet_ports(self._connections.connection(ROUTE))

    def close(self) -> None:
        """Close all sockets; a later call reopens them."""
        self._connections.close()

    def _module(self, interface: str) -> Json:
        return module_eeprom.decode(partial(self._module_half, interface))
