"""Network seams of the host: ethtool's ioctl, netlink, and LLDP frames.

Netlink and LLDP are imported on first use, so that an agent that never uses them has no cost.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agent.host import Clock, Json
from agent.host.ethtool import Ethtool

if TYPE_CHECKING:
    from agent.host.lldp import Lldp
    from agent.host.netlink import Netlink

SEAMS = frozenset({"ethtool", "netlink", "lldp"})


class Network:
    """Dispatch of calls to the network seams. Thread-safe. Raises OSError."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free = [Ethtool()]
        """Each call takes one: a thread that is stuck in a driver holds only its own."""
        self._lock = threading.Lock()
        self._netlink: Netlink | None = None
        self._lldp: Lldp | None = None

    def call(self, seam: str, function: str, *arguments: int | str) -> Json:
        """Call a function of a seam by its name."""
        if seam == "ethtool":
            return self._ask_ethtool(function, str(arguments[0]))
        netlink, lldp = self._loaded()
        if seam == "netlink":
            return netlink.call(function, *arguments)
        return {"neighbours": lldp.neighbours}[function](self._clock.now().boot_ns)

    def close(self) -> None:
        """Close every socket."""
        for ethtool in self._free:
            ethtool.close()
        if self._netlink and self._lldp:
            self._netlink.close()
            self._lldp.close()

    def _ask_ethtool(self, function: str, interface: str) -> Json:
        try:
            ethtool = self._free.pop()
        except IndexError:
            ethtool = Ethtool()
        try:
            return ethtool.call(function, interface)
        finally:
            self._free.append(ethtool)

    def _loaded(self) -> tuple[Netlink, Lldp]:
        with self._lock:
            if self._netlink is None or self._lldp is None:
                from agent.host.lldp import Lldp  # noqa: PLC0415 - see the module's docstring
                from agent.host.netlink import Netlink  # noqa: PLC0415 - as above

                self._netlink = Netlink()
                self._lldp = Lldp(self._netlink.ethernet_ports)
            return self._netlink, self._lldp
