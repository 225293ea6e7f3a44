"""Host interfaces of the network: ethtool's ioctl, netlink, and LLDP frames.

Netlink and LLDP are imported on first use, so that an agent that never uses them has no cost.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from railscope.capture import Json
from railscope_agent.host import Clock
from railscope_agent.host.ethtool_ioctl import Ethtool

if TYPE_CHECKING:
    from railscope_agent.host.lldp import Lldp
    from railscope_agent.host.netlink import Netlink


HOST_INTERFACES = frozenset({"ethtool", "netlink", "lldp"})


class NetworkCalls:
    """Dispatch of calls to the host interfaces of the network. Thread-safe. Raises OSError."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free = [Ethtool()]
        """Each call takes one: a thread that is stuck in a driver holds only its own."""
        self._lock = threading.Lock()
        self._netlink: Netlink | None = None
        self._lldp: Lldp | None = None

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Call a function of a host interface by its name."""
        if host_interface == "ethtool":
            return self._call_ethtool(function, str(arguments[0]))
        netlink, lldp = self._load_interfaces()
        if host_interface == "netlink":
            return netlink.call(function, *arguments)
        return {"neighbours": lldp.neighbours}[function](self._clock.now().boot_ns)

    def rdma_counters(self, device: str, port: int) -> tuple[Sequence[str], Sequence[int]]:
        """Names and values of the counters of an RDMA port."""
        return self._load_interfaces()[0].rdma.counters(device, port)

    def close(self) -> None:
        """Close every socket."""
        for ethtool in self._free:
            ethtool.close()
        if self._netlink and self._lldp:
            self._netlink.close()
            self._lldp.close()

    def _call_ethtool(self, function: str, interface: str) -> Json:
        try:
            ethtool = self._free.pop()
        except IndexError:
            ethtool = Ethtool()
        try:
            return ethtool.call(function, interface)
        finally:
            self._free.append(ethtool)

    def _load_interfaces(self) -> tuple[Netlink, Lldp]:
        with self._lock:
            if self._netlink is None or self._lldp is None:
                from railscope_agent.host.lldp import Lldp  # noqa: PLC0415 - see the module's docstring
                from railscope_agent.host.netlink import Netlink  # noqa: PLC0415 - as above

                self._netlink = Netlink()
                self._lldp = Lldp(self._netlink.ethernet_ports)
            return self._netlink, self._lldp
