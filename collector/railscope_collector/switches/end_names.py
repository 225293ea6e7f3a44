"""The names and MAC addresses by which one end of a cable refers to the other."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from railscope.slurm.node_lists import is_same_node
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
    # The lowest bit of the first octet marks the address of a group (IEEE 802).
    return "" if octets[0] & 1 or address == _NO_ADDRESS else address


class DevicePorts:
    """Ports of one device, by what the device announces about one of them.

    A port has texts: the port ID that the device announces for it by LLDP, empty if it is unknown, then its names.

    The port ID has one of seven subtypes, and MAC addresses and aliases need not be unique (IEEE 802.1AB, LLDP-MIB): a
    text that several ports have names none of them. The MAC address of the `chassis` names no port either: a switch may
    give it to all ports, of which only one is listed with it.
    """

    def __init__(
        self, device: Iterable[str], ports: Mapping[str, Sequence[str]], chassis: str = ""
    ) -> None:
        self._device = {each.lower() for name in device for each in (name, short_name(name))} - {""}
        kinds = max(map(len, ports.values()), default=0)
        self._ports: list[dict[str, set[str]]] = [defaultdict(set) for _ in range(kinds)]
        """Ports by text, for each kind of text."""
        shared = mac_address(chassis)
        for port, texts in ports.items():
            for kind, text in enumerate(texts):
                address = mac_address(text)
                if text and (address != shared or not address):
                    self._ports[kind][address or text].add(port)

    def find(self, port_id: str, description: str = "") -> str:
        """Return the port that these texts name; empty if they name none, or several.

        The port ID counts. The description decides what it leaves open: if it names none or several ports, or is the ID
        of one and the name of another.
        """
        identified = self._named(port_id)
        described = self._described(description)
        is_open = not identified or len(identified[0]) > 1
        if described and (is_open or any(described in ports for ports in identified)):
            return described
        return "" if is_open else next(iter(identified[0]))

    def _described(self, description: str) -> str:
        """Return the port that a description names, also behind `DEVICE:` or before a blank."""
        device, _, rest = description.partition(":")
        own = rest.strip() if device.strip().lower() in self._device else description
        for text in (description, own, *own.split()[:1]):
            if found := self._named(text, first_kind=1):
                return next(iter(found[0])) if len(found[0]) == 1 else ""
        return ""

    def _named(self, text: str, first_kind: int = 0) -> list[set[str]]:
        """Return the ports that a text names, for each kind of text that knows it."""
        key = mac_address(text) or text
        return [ports[key] for ports in self._ports[first_kind:] if key in ports]


class PortNames:
    """Switches by all of their names, and their ports; a name of several is none."""

    def __init__(self, ends: Iterable[SwitchEnd]) -> None:
        self._switches: dict[str, set[str]] = defaultdict(set)
        self._known: dict[str, SwitchEnd] = {}
        """Any port of each switch: all of them have its names."""
        texts: dict[str, dict[str, Sequence[str]]] = defaultdict(dict)
        for end in ends:
            self._known[end.switch] = end
            texts[end.switch][end.port] = end.port_id, end.port, *end.names
            for name in (end.switch, end.system_name, short_name(end.system_name), end.chassis):
                if name:
                    self._switches[_key(name)].add(end.switch)
        self._ports = {
            switch: DevicePorts((switch, end.system_name), texts[switch], end.chassis)
            for switch, end in self._known.items()
        }

    def find_switches(self, host: HostEnd) -> set[str]:
        """Return the switch that a NIC received LLDP from, or several that have the same chassis and name.

        It has the chassis, or else the name or its first part. A switch that has another chassis, or the same name in
        another domain, is another switch.
        """
        several = set[str]()
        for text in (host.chassis, host.switch, short_name(host.switch)):
            found = self._switches.get(_key(text), set()) if text else set()
            if text != host.chassis:
                found = {each for each in found if not self._contradicts(each, host)}
            if len(found) == 1:
                return found
            several = several or found
        return several

    def find_switch(self, host: HostEnd) -> str:
        """Return the switch that a NIC received LLDP from; empty if it is unknown."""
        found = self.find_switches(host)
        return next(iter(found)) if len(found) == 1 else ""

    def _contradicts(self, switch: str, host: HostEnd) -> bool:
        known = self._known[switch]
        addresses = {mac_address(host.chassis), mac_address(known.chassis)} - {""}
        return len(addresses) > 1 or is_of_other_domain(host.switch, known.system_name)

    def find_port(self, switch: str, port_id: str, description: str = "") -> Port | None:
        """Return the port of a switch that these texts name."""
        ports = self._ports.get(switch)
        port = ports.find(port_id, description) if ports else ""
        return (switch, port) if port else None


def short_name(name: str) -> str:
    """Return a host name without its domain."""
    return name.partition(".")[0]


def _key(name: str) -> str:
    return mac_address(name) or name.lower()


def is_of_other_domain(name: str, other: str) -> bool:
    """True if two names have the same first part, and each has a domain of its own."""
    one, two = name.lower(), other.lower()
    return short_name(one) == short_name(two) and not is_same_node(one, two)


class KnownNics:
    """Nodes by host names and MAC addresses, and NICs by their own MAC address."""

    def __init__(self, nics: Mapping[Nic, HostEnd]) -> None:
        self._nodes: dict[str, set[str]] = defaultdict(set)
        self._short: dict[str, set[str]] = defaultdict(set)
        self._nics: dict[str, set[Nic]] = defaultdict(set)
        texts: dict[str, dict[str, Sequence[str]]] = defaultdict(dict)
        for nic, host in nics.items():
            self._nodes[host.node.lower()].add(host.node)
            self._short[short_name(host.node).lower()].add(host.node)
            addresses = list(filter(None, map(mac_address, host.addresses)))
            for address in addresses:
                self._nodes[address].add(host.node)
            for address in addresses[:1]:
                self._nics[address].add(nic)
            texts[host.node][host.interface] = "", host.interface, *addresses[:1]
        self._ports = {node: DevicePorts((node,), found) for node, found in texts.items()}

    def find_nodes(self, name: str) -> set[str]:
        """Return the nodes with this name, or else with its first part and no other domain, or with this MAC address."""
        if not name:
            return set()
        found = self._nodes.get(name) or self._short.get(short_name(name)) or set()
        return {node for node in found if not is_of_other_domain(name, node)}

    def find_nics(self, address: str) -> list[Nic]:
        """Return the NICs that report a MAC address as their own."""
        return sorted(self._nics.get(address, ()))

    def find_interface(self, node: str, port_id: str, description: str) -> str:
        """Return the interface of a node that these texts name; empty if they name none, or several."""
        return self._ports[node].find(port_id, description)
