"""Switch port of each interface, as announced by the switch (LLDP).

The host collects the frames, which arrive about every 30 seconds, and drops a neighbour when its
time to live has expired (IEEE 802.1AB). Until a link has been up for twice the frame interval, a
neighbour without a frame is not reported as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.host import Host, Json
from agent.sampling.facts import counted, known
from agent.sampling.source import Finding, Verdict
from agent.sources.look import Look, Looking
from agent.sources.settings.card import NET, physical_interfaces
from agent.topology.cards import Cards
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
HEARD_WITHIN_NS = 60_000_000_000
"""Twice the default time between two frames (IEEE 802.1AB, msgTxInterval)."""
_WHAT = "LLDP neighbours"
_REMEDY = "install the drop-in network.conf (CAP_NET_RAW), or do without these"


class Neighbour(Looking):
    """Neighbour of every physical interface."""

    name = "neighbour"
    family = "neighbour"
    changed = c.NEIGHBOUR_EVENT

    def __init__(self, period_seconds: float = 10.0, cards: Cards | None = None) -> None:
        super().__init__()
        self.period_seconds = period_seconds
        self._cards = cards or Cards()
        self._up_since: dict[str, int] = {}

    def look(self, host: Host) -> Look:
        """Read the current neighbours."""
        look = Look(described=list(self._cards.look(host)))
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
        now_ns = host.clock.now().boot_ns
        ups = [interface for interface, carrier in links.items() if carrier == 1]
        self._up_since = {interface: self._up_since.get(interface, now_ns) for interface in ups}
        for interface, carrier in links.items():
            reading = Absent.UNSUPPORTED if carrier == 0 else carrier
            if interface in ups:
                reading = self._heard(interface, neighbours, now_ns)
            look.told((interface, _NEIGHBOUR), {_column(interface): reading})
        known_ones = [interface for interface in ups if interface in neighbours]
        for interface in known_ones:
            _describe(look, interface, neighbours[interface])
        look.findings.append(self._finding(len(known_ones), now_ns))
        return look

    def _heard(self, interface: str, neighbours: Json, now_ns: int) -> Reading:
        if interface in neighbours:  # a neighbour that expires is reported at once
            self._up_since[interface] = now_ns - HEARD_WITHIN_NS
            return 1
        listened_ns = now_ns - self._up_since[interface]
        return 0 if listened_ns >= HEARD_WITHIN_NS else Absent.NOT_DUE

    def _finding(self, heard: int, now_ns: int) -> Finding:
        detail = f"{heard} of {counted(len(self._up_since), 'interface')} with a carrier"
        if heard < len(self._up_since) and now_ns - max(self._up_since.values()) < HEARD_WITHIN_NS:
            detail += " so far: frames come every half a minute or so"
        return Finding(_WHAT, Verdict.SUPPORTED, detail)

    def _refused(self, look: Look, links: Mapping[str, Reading], error: OSError) -> None:
        """Record that all neighbours are unknown; the verdict depends on the reason."""
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
    """1 with a carrier, 0 without; an interface that is administratively down returns EINVAL."""
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
