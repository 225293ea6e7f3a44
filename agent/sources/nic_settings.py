"""Settings of NICs, and every change of them.

A setting is a configured value: MTU, PFC, trust, ring sizes. Values that result from the link, such
as its speed or the FEC in use, change with the link and are not settings; they have readings but no
events.

Some drivers return the negotiated values instead of the configured ones (ice has autonegotiation
off while the link is down, firmware that does DCBX has no PFC then). So for a link that is or goes
down such values are reported, but not compared with earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from agent.host import Host, Json
from agent.sampling.facts import counted, text
from agent.sampling.source import Finding, Verdict
from agent.sources.look import Look, Looking
from agent.sources.settings import files, netlink
from agent.sources.settings.card import NET, PRIORITIES, Card, Told, card, physical_interfaces
from agent.topology.cards import Cards
from agent.topology.network import Network, Wiring
from railscope.catalog import nic_settings as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC_SETTINGS
from railscope.entity import Entity
from railscope.frame import Column
from railscope.reading import Absent, reason_of

_DIRECTIONS = ("receive", "transmit")
_NETLINK = {
    "dcb": netlink.dcb,
    "pause": netlink.pause,
    "fec": netlink.fec,
    "rings": netlink.rings,
    "link_modes": netlink.link_modes,
}
_AGREED = {"dcb", "pause", "fec", "link_modes"}
_FILES = {
    "mtu": files.mtu,
    "ecn": files.ecn,
    "qos": files.qos,
    "rdma": files.rdma,
    "gids": files.gids,
}
_USUAL: Mapping[str, tuple[tuple[Metric, *tuple[str, ...]], ...]] = {
    "dcb": tuple((c.PFC_ENABLED, str(priority)) for priority in range(PRIORITIES)),
    "pause": tuple((c.PAUSE_ENABLED, direction) for direction in _DIRECTIONS),
    "fec": ((c.FEC_ACTIVE,),),
    "rings": tuple((c.RING, direction) for direction in _DIRECTIONS),
    "link_modes": ((c.AUTONEGOTIATION,), (c.EXPECTED_SPEED,)),
}
"""Usual columns of a query: if it fails, they are absent for the reason of the failure."""
_OTHER_FORM = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Exceptions raised on an answer of unexpected form."""
_AS_ROOT = "run the agent as root: debugfs is for root alone; or do without these"
_REMEDIES = {"cc_params": _AS_ROOT, "cc_config": _AS_ROOT}
_ALLOW = "allow the agent netlink sockets (AF_NETLINK) and what its unit forbids"

Question = Callable[[], Told]


class NicSettings(Looking):
    """Settings of every physical interface."""

    name = "nic_settings"
    family = "nic_settings"
    changed = c.SETTING_EVENT

    def __init__(self, period_seconds: float = 60.0, wiring: Wiring | None = None) -> None:
        super().__init__()
        self.period_seconds = period_seconds
        self._wiring = wiring or Wiring()
        self._cards = Cards(self._wiring)
        self._network = Network()

    def look(self, host: Host) -> Look:
        """Query all settings of every NIC."""
        look = Look(described=list(self._cards.look(host)))
        self._network = self._wiring.look(host)
        interfaces = physical_interfaces(host)
        for interface in interfaces:
            self._look_at(host, card(host, interface), look)
        if not interfaces:
            detail = "there is no physical network interface"
            look.findings.append(Finding("network card settings", Verdict.ABSENT, detail))
        return look

    def _look_at(self, host: Host, card: Card, look: Look) -> None:
        settings: dict[str, str] = {}
        silent: list[str] = []
        link = _link(host, card)
        for name, question in self._questions(host, card, settings):
            part = (card.interface, name)
            try:
                told = question()
            except OSError as error:
                reason = reason_of(error)
                if reason in {Absent.UNSUPPORTED, Absent.GONE}:
                    silent.append(name)
                else:
                    look.failure(part, reason, _usual(card, name))
                    look.findings.append(_trouble(card, name, error))
            except _OTHER_FORM as error:
                look.failure(part, Absent.ERROR, _usual(card, name))
                look.findings.append(_strange(card, name, error))
            else:
                new = {key: said for key, said in told.texts.items() if key not in settings}
                settings |= new
                look.watched[part] = new
                look.told(part, told.readings)
        if link[0] != "1" or link != _link(host, card):
            for name in _AGREED:
                look.watched.pop((card.interface, name), None)
        facts = {key: said for key, said in settings.items() if key in NIC_SETTINGS.facts}
        look.described.append(Entity(NIC_SETTINGS, (card.interface,), facts))
        look.findings.append(_finding(card, len(settings), silent))

    def _questions(
        self, host: Host, card: Card, settings: Mapping[str, str]
    ) -> Iterator[tuple[str, Question]]:
        """Queries in order of precedence, for settings that several of them return."""
        yield "expected_speed", partial(self._expected_speed, card)
        yield "driver", partial(_driver, host, card)
        for name, tell in _NETLINK.items():
            yield name, partial(_netlink, host, card, name, tell)
        for name, read in _FILES.items():
            yield name, partial(read, host, card)
        for name, directory in files.congestion_directories(card).items():
            yield name, partial(files.congestion, host, card, directory, settings)

    def _expected_speed(self, card: Card) -> Told:
        told = Told(card.interface)
        role = self._network.at(card.pci_address).role
        names = (card.interface, card.rdma_device, card.pci_address, role)
        speed = self._wiring.rules.speed(names)
        if speed is not None:
            told.put(c.EXPECTED_SPEED, speed)
        return told


def _link(host: Host, card: Card) -> tuple[str, ...]:
    """Carrier state, and the number of carrier changes."""
    files = ("carrier", "carrier_changes")
    return tuple(text(host, f"{NET}/{card.interface}/{file}") for file in files)


def _driver(host: Host, card: Card) -> Told:
    told = Told(card.interface)
    if firmware := host.call("ethtool", "driver", card.interface).get("firmware"):
        told.say("firmware", firmware)
    return told


def _netlink(host: Host, card: Card, name: str, tell: Callable[[Card, Json], Told]) -> Told:
    return tell(card, host.call("netlink", name, card.interface))


def _usual(card: Card, name: str) -> list[Column]:
    return [
        (metric, Entity(metric.about, (card.interface, *part)))
        for metric, *part in _USUAL.get(name, ())
    ]


def _finding(card: Card, settings: int, silent: list[str]) -> Finding:
    what = f"settings of {card.interface}"
    detail = counted(settings, "setting")
    if silent:
        detail += f"; driver {card.driver or 'unknown'} does not tell {', '.join(silent)}"
    return Finding(what, Verdict.SUPPORTED if settings else Verdict.ABSENT, detail)


def _trouble(card: Card, name: str, error: OSError) -> Finding:
    denied = reason_of(error) is Absent.DENIED
    verdict = Verdict.DENIED if denied else Verdict.BROKEN
    detail = f"{name}: {error.strerror or error}"
    remedy = _REMEDIES.get(name, _ALLOW) if denied else ""
    return Finding(f"settings of {card.interface}", verdict, detail, remedy)


def _strange(card: Card, name: str, error: Exception) -> Finding:
    detail = f"{name}: an answer of unknown form ({type(error).__name__}: {error})"
    return Finding(f"settings of {card.interface}", Verdict.BROKEN, detail, "report this as a bug")
