"""The switch port that each interface is plugged into, as the switch itself says (LLDP).

The host collects the frames, which come every half a minute or so, and forgets a neighbour when its
time to live has run out (IEEE 802.1AB).
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.facts import counted, known
from agent.host import Host, Json
from agent.source import Finding, Verdict
from agent.sources.look import Look, Looking
from agent.sources.settings.card import NET, physical_interfaces
from railscope.catalog import neighbour as c
from railscope.catalog.entities import NIC, NIC_NEIGHBOUR
from railscope.entity import Entity
from railscope.frame import Column
from railscope.reading import Absent, Reading, parse_integer, reason_of

_NEIGHBOUR = "neighbour"
_FACTS: Mapping[str, str] = {
    "switch": "system",
    "switch_port": "port",
    "chassis": "chassis",
    "management_address": "management_address",
    "port_description": "port_description",
    "vlan": "port_vlan",
}
_WHAT = "LLDP neighbours"
_REMEDY = "give the agent CAP_NET_RAW (AmbientCapabilities= of its unit), or do without these"


class Neighbour(Looking):
    """The neighbour of every physical interface."""

    name = "neighbour"
    family = "neighbour"
    changed = c.NEIGHBOUR_EVENT

    def __init__(self, period_seconds: float = 10.0) -> None:
        super().__init__()
        self.period_seconds = period_seconds

    def look(self, host: Host) -> Look:
        """Take the neighbours that are known now."""
        look = Look()
        links = {name: _carrier(host, name) for name in physical_interfaces(host)}
        if not links:
            detail = "there is no physical network interface"
            look.findings.append(Finding(_WHAT, Verdict.ABSENT, detail))
            return look
        try:
            neighbours = host.call("lldp", "neighbours")
        except OSError as error:
            self._refused(look, links, error)
            return look
        ups = [interface for interface, carrier in links.items() if carrier == 1]
        for interface, carrier in links.items():
            reading = Absent.UNSUPPORTED if carrier == 0 else carrier
            if interface in ups:
                reading = int(interface in neighbours)
            look.told((interface, _NEIGHBOUR), {_column(interface): reading})
        known_ones = [interface for interface in ups if interface in neighbours]
        for interface in known_ones:
            _describe(look, interface, neighbours[interface])
        detail = f"{len(known_ones)} of {counted(len(ups), 'interface')} with a carrier"
        look.findings.append(Finding(_WHAT, Verdict.SUPPORTED, detail))
        return look

    def _refused(self, look: Look, links: Mapping[str, Reading], error: OSError) -> None:
        """Nobody's neighbour can be known; whether that is broken depends on why."""
        reason, detail = reason_of(error), error.strerror or str(error)
        if reason in {Absent.UNSUPPORTED, Absent.GONE}:
            look.findings.append(Finding(_WHAT, Verdict.ABSENT, detail))
            return
        for interface in links:
            look.failure((interface, _NEIGHBOUR), reason, [_column(interface)])
        denied = reason is Absent.DENIED
        verdict = Verdict.DENIED if denied else Verdict.BROKEN
        look.findings.append(Finding(_WHAT, verdict, detail, _REMEDY if denied else ""))


def _column(interface: str) -> Column:
    return c.NEIGHBOUR_KNOWN, Entity(NIC, (interface,))


def _carrier(host: Host, interface: str) -> Reading:
    """1 with a carrier, 0 without; an interface that is switched off answers EINVAL."""
    try:
        return parse_integer(host.read(f"{NET}/{interface}/carrier"))
    except OSError as error:
        return reason_of(error)


def _describe(look: Look, interface: str, told: Json) -> None:
    texts = {fact: str(told.get(key, "")).strip() for fact, key in _FACTS.items()}
    facts = known(**texts)
    look.described.append(Entity(NIC_NEIGHBOUR, (interface,), facts))
    names = ("switch", "switch_port", "chassis")
    place = " ".join(facts[name] for name in names if name in facts)
    if place:
        look.watched[interface, _NEIGHBOUR] = {_NEIGHBOUR: place}
