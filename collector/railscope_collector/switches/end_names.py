"""The names and MAC addresses by which one end of a cable refers to the other."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from railscope_collector.switches.link_ends import HostEnd, Nic, Port, SwitchEnd

_MAC_ADDRESS = re.compile(
    r"(?:0x)?[0-9a-f]{2}([:-]?)(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}|(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}"
)
_NO_ADDRESS = "00:00:00:00:00:00"


def mac_address(text: str) -> str:
    """Return a MAC address as aa:bb:cc:dd:ee:ff, from any notation; empty if the text is none of a single device."""
    lower = text.strip().lower()
    if not _MAC_ADDRESS.fullmatch(lower):
        return ""
    octets = bytes.fromhex(re.sub("[:.-]", "", lower.removeprefix("0x")))
    address = octets.hex(":")
    return "" if octets[0] & 1 or address == _NO_ADDRESS else address


class PortNames:
    """Switches and their ports by all of their names; a name of several is none."""

    def __init__(self, ends: Iterable[SwitchEnd]) -> None:
        self._switches: dict[str, set[str]] = defaultdict(set)
        self._ports: dict[tuple[str, str], set[str]] = defaultdict(set)
        for end in ends:
            for name in (end.switch, end.system_name, short_name(end.system_name), end.chassis):
                if name:
                    self._switches[mac_address(name) or name.lower()].add(end.switch)
            for name in (end.port, *end.names):
                if name:
                    self._ports[end.switch, mac_address(name) or name].add(end.port)

    def find_switches(self, *names: str) -> set[str]:
        """Return the switch that one of these names belongs to, the first known one; or several that have the same names."""
        several = set[str]()
        for name in names:
            key = mac_address(name) or name.lower()
            found = self._switches.get(key, set()) if name else set()
            if len(found) == 1:
                return found
            several = several or found
        return several

    def find_port(self, switch: str, name: str) -> Port | None:
        """Return the port of a switch with this name; its own name counts before the others."""
        found = self._ports.get((switch, mac_address(name) or name), set())
        port = name if name in found else next(iter(found), "")
        return (switch, port) if port and (port == name or len(found) == 1) else None


def short_name(name: str) -> str:
    """Return a host name without its domain."""
    return name.partition(".")[0]


def host_switch(host: HostEnd, names: PortNames) -> str:
    """Return the switch that a NIC received LLDP from; empty if it is unknown."""
    found = announced_switches(host, names)
    return next(iter(found)) if len(found) == 1 else ""


def announced_switches(host: HostEnd, names: PortNames) -> set[str]:
    """Return the switches with the chassis or name that a NIC received; several if these have the same."""
    return names.find_switches(host.chassis, host.switch, short_name(host.switch))


class KnownNics:
    """Nodes by host names and MAC addresses, and NICs by their own MAC address."""

    def __init__(self, nics: Mapping[Nic, HostEnd]) -> None:
        self._nodes: dict[str, set[str]] = defaultdict(set)
        self._short: dict[str, set[str]] = defaultdict(set)
        self._nics: dict[str, set[Nic]] = defaultdict(set)
        for nic, host in nics.items():
            self._nodes[host.node.lower()].add(host.node)
            self._short[short_name(host.node).lower()].add(host.node)
            addresses = list(filter(None, map(mac_address, host.addresses)))
            for address in addresses:
                self._nodes[address].add(host.node)
            for address in addresses[:1]:
                self._nics[address].add(nic)

    def find_nodes(self, name: str) -> set[str]:
        """Return the nodes with this name, or else with its first part, or with this MAC address."""
        if not name:
            return set()
        return self._nodes.get(name) or self._short.get(short_name(name)) or set()

    def find_nics(self, address: str) -> list[Nic]:
        """Return the NICs that report a MAC address as their own."""
        return sorted(self._nics.get(address, ()))
