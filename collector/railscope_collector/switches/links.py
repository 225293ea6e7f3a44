"""Links: the NIC and the switch port at the two ends of a cable, joined from what each end announces.

Evidence, in the order of its certainty: the server received the switch's LLDP, the switch received the server's LLDP,
a cabling file. The most certain one determines the link, and others that contradict it are cabling faults. Evidence of
equal certainty that contradicts itself is decided by the less certain one, and joins nothing without it. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from railscope_collector.fleet import rail_cabling
from railscope_collector.switches.end_names import KnownNics, PortNames, mac_address
from railscope_collector.switches.link_ends import NO_NIC, CabledLink, HostEnd, Nic, Port, SwitchEnd

HOST_LLDP, SWITCH_LLDP, CABLING_FILE = "host_lldp", "switch_lldp", "cabling_file"
EVIDENCE_WORDS = {
    HOST_LLDP: "LLDP as the node receives it",
    SWITCH_LLDP: "LLDP as the switch receives it",
    CABLING_FILE: "the cabling file",
}
SEVERAL_HOSTS, ENDS_DIFFER, FILE_DIFFERS = "several_hosts", "ends_differ", "file_differs"
SEVERAL_PORTS, DUPLICATE_ADDRESS = "several_ports", "duplicate_address"
NODES_DIFFER, DUPLICATE_SWITCH, WRONG_RAIL = "nodes_differ", "duplicate_switch", "wrong_rail"
FAULT_KINDS = (
    *(SEVERAL_HOSTS, ENDS_DIFFER, FILE_DIFFERS, SEVERAL_PORTS, DUPLICATE_ADDRESS, NODES_DIFFER),
    *(DUPLICATE_SWITCH, WRONG_RAIL),
)


class PortLink(NamedTuple):
    """Two ends of a cable; `evidence` lists everything that agrees with them."""

    port: Port
    nic: Nic
    rail: str
    evidence: tuple[str, ...]


class CablingFault(NamedTuple):
    """A contradiction in the evidence, or a NIC on a leaf of another rail.

    `found` is the NIC of the link, if any, and `stated` the one that the contradicting evidence names.
    """

    kind: str
    port: Port
    found: Nic
    stated: Nic = NO_NIC
    expected: tuple[str, ...] = ()
    """Leaves of the rail of the NIC."""


class JoinedLinks(NamedTuple):
    """All links by switch port, and all faults."""

    links: Mapping[Port, PortLink]
    faults: Sequence[CablingFault]
    nics: int = 0
    """NICs whose switch is known; without any there is nothing that could be a fault."""


Pair: TypeAlias = tuple[Port, Nic]
_NumberedEnd: TypeAlias = tuple[int, Port | Nic]
"""End of a pair: 0 and the port, or 1 and the NIC."""


def join_links(
    hosts: Iterable[HostEnd], switches: Iterable[SwitchEnd], cabling: Iterable[CabledLink] = ()
) -> JoinedLinks:
    """Join the ends of links by the most certain evidence of each, in whatever order it is stated."""
    nics = {(host.node, host.interface): host for host in hosts}
    ports = {(end.switch, end.port): end for end in switches}
    names = PortNames(ports.values())
    join = _LinkJoin(nics)
    listed = set[Pair]()
    for row in cabling:
        port = row.switch, row.port
        found = port if port in ports else names.find_port(*port)
        listed.add((found or port, (row.node, row.interface)))
    of_switches = dict(_hosts_of_ports(ports, nics, join.faults))
    of_file = dict(sorted(listed))
    join.faults += _duplicate_switches(nics, names)
    join.add(HOST_LLDP, SEVERAL_HOSTS, _ports_of_hosts(nics, names), (of_switches, of_file))
    join.add(SWITCH_LLDP, ENDS_DIFFER, of_switches.items(), (of_file,))
    join.add(CABLING_FILE, FILE_DIFFERS, listed, ())
    places = join.switch_ports(names)
    faults = [*map(join.with_link, join.faults), *_wrong_rails(places, nics)]
    return JoinedLinks(dict(sorted(join.links.items())), sorted(faults), len(places))


class _LinkJoin:
    """Links and faults that follow from the evidence so far, the most certain first."""

    def __init__(self, nics: Mapping[Nic, HostEnd]) -> None:
        self.links: dict[Port, PortLink] = {}
        self.faults: list[CablingFault] = []
        self._nics = nics
        self._linked: set[Nic] = set()
        self._undecided: set[_NumberedEnd] = set()
        """Ports and NICs for which evidence of equal certainty states several ends."""

    def add(
        self, kind: str, fault: str, pairs: Iterable[Pair], weaker: Sequence[Mapping[Port, Nic]]
    ) -> None:
        """Add evidence of a kind: links of free ends, and faults where it contradicts links or itself."""
        free: list[Pair] = []
        for port, nic in sorted(pairs):
            link = self.links.get(port)
            if link and _agree(link.nic, nic):
                self.links[port] = link._replace(evidence=(*link.evidence, kind))
            elif (
                link or nic in self._linked or self._undecided.intersection(enumerate((port, nic)))
            ):
                self.faults.append(CablingFault(fault, port, link.nic if link else NO_NIC, nic))
            elif nic[1]:
                free.append((port, nic))
        self._decide(kind, fault, free, weaker)

    def _decide(
        self, kind: str, fault: str, free: Sequence[Pair], weaker: Sequence[Mapping[Port, Nic]]
    ) -> None:
        """Link free ends; of several for one port or NIC, the one that weaker evidence supports most."""
        rivals: dict[_NumberedEnd, list[Pair]] = defaultdict(list)
        for pair in free:
            for end in enumerate(pair):
                rivals[end].append(pair)
        support = {
            (port, nic): tuple(_agree(nic, evidence.get(port, NO_NIC)) for evidence in weaker)
            for port, nic in free
        }
        undecided = []
        for pair in free:
            rival_pairs = {other for end in enumerate(pair) for other in rivals[end]} - {pair}
            # Compared in the order of certainty: less certain evidence decides only if the other is equal.
            if all(support[other] < support[pair] for other in rival_pairs):
                port, nic = pair
                rail = self._nics[nic].rail if nic in self._nics else ""
                self.links[port] = PortLink(port, nic, rail, (kind,))
                self._linked.add(nic)
            else:
                undecided.append(pair)
        for port, nic in undecided:
            found = self.links[port].nic if port in self.links else rivals[0, port][0][1]
            if found != nic:
                self.faults.append(CablingFault(fault, port, found, nic))
            elif len(rivals[1, nic]) > 1:
                is_linked = nic in self._linked
                self.faults.append(
                    CablingFault(fault if is_linked else SEVERAL_PORTS, port, NO_NIC, nic)
                )
            self._undecided.update(enumerate((port, nic)))

    def with_link(self, fault: CablingFault) -> CablingFault:
        """Return a fault with the NIC of the link at its port as the one that is found, if it names that NIC."""
        link = self.links.get(fault.port)
        is_stated = link is not None and link.nic == fault.stated
        return fault._replace(found=fault.stated, stated=fault.found) if is_stated else fault

    def switch_ports(self, names: PortNames) -> dict[Nic, Port]:
        """Return the switch and port of each NIC: those of its link, or else as the switch announces itself to it."""
        found = {link.nic: port for port, link in self.links.items()}
        for nic, host in self._nics.items():
            switch = names.find_switch(host) or host.switch or host.chassis
            if switch and (1, nic) not in self._undecided:
                found.setdefault(nic, (switch, host.switch_port))
        return found


def _wrong_rails(places: Mapping[Nic, Port], nics: Mapping[Nic, HostEnd]) -> Iterator[CablingFault]:
    """Yield the NICs that end on a leaf of another rail."""
    ends = (
        rail_cabling.RailEnd(nic, nics[nic].rail, switch)
        for nic, (switch, _) in places.items()
        if nic in nics
    )
    for wrong in rail_cabling.find_wrong_rails(ends):
        nic = wrong.end.nic
        yield CablingFault(WRONG_RAIL, places[nic], nic, expected=wrong.leaves)


def _agree(found: Nic, stated: Nic) -> bool:
    """True if evidence names this NIC, or its node and no NIC that is known."""
    return found == stated or (found[0] == stated[0] and not stated[1])


def _duplicate_switches(nics: Mapping[Nic, HostEnd], names: PortNames) -> Iterator[CablingFault]:
    """Yield a fault for each NIC that receives a chassis and a name which several switches have."""
    for nic, host in nics.items():
        switches = names.find_switches(host)
        if len(switches) > 1:
            port = min(switches), host.switch_port
            yield CablingFault(DUPLICATE_SWITCH, port, NO_NIC, nic)


def _ports_of_hosts(nics: Mapping[Nic, HostEnd], names: PortNames) -> Iterator[Pair]:
    for nic, host in nics.items():
        switch = names.find_switch(host)
        if port := names.find_port(switch, host.switch_port, host.port_description):
            yield port, nic


def _hosts_of_ports(
    ports: Mapping[Port, SwitchEnd], nics: Mapping[Nic, HostEnd], faults: list[CablingFault]
) -> Iterator[Pair]:
    """Yield the NIC that each port names, with an empty interface if only the node is known, and add faults.

    The MAC address of the port determines the NIC, or else the interface that the port ID or the description names, with
    the host name or the chassis. A MAC address of several nodes names no NIC. A second node at the port is a fault; a
    neighbour that is no known node, such as the DPU of a node, is none.
    """
    names = KnownNics(nics)
    for port, end in ports.items():
        port_id = end.neighbour_port
        owners = names.find_nics(mac_address(port_id))
        is_shared = len({node for node, _ in owners}) > 1
        if is_shared:
            faults += (
                CablingFault(DUPLICATE_ADDRESS, port, owners[0], other) for other in owners[1:]
            )
            owners, port_id = [], ""
        owning = {node for node, _ in owners}
        named = names.find_nodes(end.neighbour.lower())
        stated = [
            nodes
            for nodes in (owning, named, names.find_nodes(mac_address(end.neighbour_chassis)))
            if nodes
        ]
        common = set[str].intersection(*stated) if stated else set()
        if len(common) == 1:
            node = next(iter(common))
            interface = names.find_interface(node, port_id, end.neighbour_description)
            yield port, (node, interface)
            faults += (
                CablingFault(SEVERAL_HOSTS, port, (node, interface), (other, ""))
                for other in sorted(_other_nodes(end, names) - {node})
            )
        elif stated and not is_shared:
            found = owners[0] if owners else (min(stated[0]), "")
            other = min(set[str]().union(*stated) - {found[0]})
            faults.append(CablingFault(NODES_DIFFER, port, found, (other, "")))


def _other_nodes(end: SwitchEnd, names: KnownNics) -> set[str]:
    """Return the nodes that the other neighbours of a port are, by name or else by chassis."""
    found = (
        names.find_nodes(name.lower()) or names.find_nodes(mac_address(chassis))
        for name, chassis in end.others
    )
    return {next(iter(nodes)) for nodes in found if len(nodes) == 1}
