"""Links: the NIC and the switch port at the two ends of a cable, joined from what each end announces.

Evidence, in the order of its certainty: the server received the switch's LLDP, the switch received the server's LLDP,
a cabling file. The most certain one determines the link, and others that contradict it are cabling faults. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

HOST_LLDP, SWITCH_LLDP, CABLING_FILE = "host_lldp", "switch_lldp", "cabling_file"
SEVERAL_HOSTS, ENDS_DIFFER, FILE_DIFFERS = "several_hosts", "ends_differ", "file_differs"

Nic: TypeAlias = tuple[str, str]
"""Node and interface."""
Port: TypeAlias = tuple[str, str]
"""Switch and port."""


class HostEnd(NamedTuple):
    """A NIC, and the switch port that it received LLDP from; empty texts for none."""

    node: str
    interface: str
    rail: str = ""
    switch: str = ""
    switch_port: str = ""
    chassis: str = ""


class SwitchEnd(NamedTuple):
    """A switch port with its names, and the neighbour that it received LLDP from; empty texts for none."""

    switch: str
    port: str
    names: tuple[str, ...] = ()
    """Other names of the port: alias, description, MAC address."""
    system_name: str = ""
    chassis: str = ""
    neighbour: str = ""
    neighbour_port: str = ""


class CabledLink(NamedTuple):
    """A row of the cabling file."""

    switch: str
    port: str
    node: str
    interface: str


class PortLink(NamedTuple):
    """Two ends of a cable; `evidence` lists everything that agrees with them."""

    port: Port
    nic: Nic
    rail: str
    evidence: tuple[str, ...]


class CablingFault(NamedTuple):
    """Evidence that contradicts more certain evidence: `stated` is the NIC that it names, `found` the one of the link, if any."""

    kind: str
    port: Port
    found: Nic
    stated: Nic


class JoinedLinks(NamedTuple):
    """All links by switch port, and all contradictions."""

    links: Mapping[Port, PortLink]
    faults: Sequence[CablingFault]


def join_links(
    hosts: Iterable[HostEnd], switches: Iterable[SwitchEnd], cabling: Iterable[CabledLink] = ()
) -> JoinedLinks:
    """Join the ends of links. The most certain evidence of a port or NIC counts, the first one of equal certainty."""
    nics = {(host.node, host.interface): host for host in hosts}
    ports = {(end.switch, end.port): end for end in switches}
    names = _PortNames(ports.values())
    listed = (
        (names.find_port(row.switch, row.port) or (row.switch, row.port), (row.node, row.interface))
        for row in cabling
    )
    evidence = (
        (HOST_LLDP, SEVERAL_HOSTS, _ports_of_hosts(nics.values(), names)),
        (SWITCH_LLDP, ENDS_DIFFER, _hosts_of_ports(ports, nics)),
        (CABLING_FILE, FILE_DIFFERS, listed),
    )
    links: dict[Port, PortLink] = {}
    linked: set[Nic] = set()
    faults: list[CablingFault] = []
    for kind, fault, pairs in evidence:
        for port, nic in sorted(pairs):
            link = links.get(port)
            if link and _agree(link.nic, nic):
                links[port] = link._replace(evidence=tuple(dict.fromkeys((*link.evidence, kind))))
            elif link or nic in linked:
                faults.append(CablingFault(fault, port, link.nic if link else ("", ""), nic))
            elif nic[1]:
                links[port] = PortLink(port, nic, nics[nic].rail if nic in nics else "", (kind,))
                linked.add(nic)
    return JoinedLinks(dict(sorted(links.items())), faults)


def _agree(found: Nic, stated: Nic) -> bool:
    """True if evidence names this NIC, or its node and no NIC that is known."""
    return found == stated or (found[0] == stated[0] and not stated[1])


class _PortNames:
    """Switches and their ports by all of their names; a name of several is none."""

    def __init__(self, ends: Iterable[SwitchEnd]) -> None:
        self._switches: dict[str, set[str]] = defaultdict(set)
        self._ports: dict[tuple[str, str], set[str]] = defaultdict(set)
        for end in ends:
            for name in (end.switch, end.system_name, short_name(end.system_name), end.chassis):
                if name:
                    self._switches[name.lower()].add(end.switch)
            for name in (end.port, *end.names):
                if name:
                    self._ports[end.switch, name].add(end.port)

    def find_switch(self, *names: str) -> str:
        """Return the switch that one of these names belongs to; the first known one counts."""
        for name in names:
            found = self._switches.get(name.lower(), set()) if name else set()
            if len(found) == 1:
                return next(iter(found))
        return ""

    def find_port(self, switch: str, name: str) -> Port | None:
        """Return the port of a switch with this name; its own name counts before the others."""
        found = self._ports.get((switch, name), set())
        port = name if name in found else next(iter(found), "")
        return (switch, port) if port and (port == name or len(found) == 1) else None


def short_name(name: str) -> str:
    """Return a host name without its domain."""
    return name.partition(".")[0]


def _ports_of_hosts(hosts: Iterable[HostEnd], names: _PortNames) -> Iterator[tuple[Port, Nic]]:
    for host in hosts:
        switch = names.find_switch(host.chassis, host.switch, short_name(host.switch))
        port = names.find_port(switch, host.switch_port) if host.switch_port else None
        if port:
            yield port, (host.node, host.interface)


def _hosts_of_ports(
    ports: Mapping[Port, SwitchEnd], nics: Mapping[Nic, HostEnd]
) -> Iterator[tuple[Port, Nic]]:
    """Yield the NIC that each port names: node by host name, interface by name; an unknown interface is empty."""
    nodes: dict[str, set[str]] = defaultdict(set)
    for node, _ in nics:
        nodes[node.lower()].add(node)
        nodes[short_name(node).lower()].add(node)
    for port, end in ports.items():
        named = end.neighbour.lower()
        found = nodes.get(named) or nodes.get(short_name(named)) or set()
        if named and len(found) == 1:
            nic = next(iter(found)), end.neighbour_port
            yield port, nic if nic in nics else (nic[0], "")
