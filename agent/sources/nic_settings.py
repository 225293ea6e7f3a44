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
from agent.sampling.source import ProbeFinding, ProbeVerdict, format_count, read_text
from agent.sources import nic_interfaces, nic_setting_parsers
from agent.sources.source_bases import NodeScan, ScanningSource
from agent.topology.network import NetworkScanner, NicFinder, NodeNetwork
from railscope.catalog import declare, entities, nic_settings as c
from railscope.frame import Column, Entity
from railscope.reading import Absent, reason_of

_DIRECTIONS = ("receive", "transmit")
_NETLINK = {
    "dcb": nic_setting_parsers.parse_dcb,
    "pause": nic_setting_parsers.parse_pause,
    "fec": nic_setting_parsers.parse_fec,
    "rings": nic_setting_parsers.parse_rings,
    "link_modes": nic_setting_parsers.parse_link_modes,
}
_NEGOTIATED_SETTINGS = {"dcb", "pause", "fec", "link_modes"}
_FILES = {
    "mtu": nic_setting_parsers.read_mtu,
    "ecn": nic_setting_parsers.read_ecn,
    "qos": nic_setting_parsers.read_qos,
    "rdma": nic_setting_parsers.read_rdma,
    "gids": nic_setting_parsers.read_gids,
}
_USUAL: Mapping[str, tuple[tuple[declare.Metric, *tuple[str, ...]], ...]] = {
    "dcb": tuple((c.PFC_ENABLED, str(priority)) for priority in range(nic_interfaces.PRIORITIES)),
    "pause": tuple((c.PAUSE_ENABLED, direction) for direction in _DIRECTIONS),
    "fec": ((c.FEC_ACTIVE,),),
    "rings": tuple((c.RING, direction) for direction in _DIRECTIONS),
    "link_modes": ((c.AUTONEGOTIATION,), (c.EXPECTED_SPEED,)),
}
"""Usual columns of a query: if it fails, they are absent for the reason of the failure."""
_MALFORMED_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Exceptions raised on an answer of unexpected form."""
_AS_ROOT = (
    "run the agent as root (debugfs is readable by root only), or accept that these are missing"
)
_REMEDIES = {"cc_params": _AS_ROOT, "cc_config": _AS_ROOT}
_ALLOW = "allow the agent netlink sockets (AF_NETLINK) and the calls that its unit forbids"

SettingsQuery = Callable[[], nic_interfaces.SettingAnswers]


class NicSettingsSource(ScanningSource):
    """Settings of every physical interface."""

    name = "nic_settings"
    family = "nic_settings"
    changed = c.SETTING_EVENT

    def __init__(self, period_seconds: float = 60.0, wiring: NetworkScanner | None = None) -> None:
        super().__init__()
        self.period_seconds = period_seconds
        self._wiring = wiring or NetworkScanner()
        self._nics = NicFinder(self._wiring)
        self._network = NodeNetwork()

    def look(self, host: Host) -> NodeScan:
        """Query all settings of every NIC."""
        scan = NodeScan(described=list(self._nics.look(host)))
        self._network = self._wiring.look(host)
        interfaces = nic_interfaces.physical_interfaces(host)
        for interface in interfaces:
            self._scan_nic(host, nic_interfaces.read_interface(host, interface), scan)
        if not interfaces:
            detail = "the node has no physical network interface"
            scan.findings.append(ProbeFinding("NIC settings", ProbeVerdict.ABSENT, detail))
        return scan

    def _scan_nic(self, host: Host, card: nic_interfaces.PhysicalInterface, scan: NodeScan) -> None:
        settings: dict[str, str] = {}
        unanswered: list[str] = []
        link = _link(host, card)
        for name, question in self._questions(host, card, settings):
            part = (card.interface, name)
            try:
                answers = question()
            except OSError as error:
                reason = reason_of(error)
                if reason in {Absent.UNSUPPORTED, Absent.GONE}:
                    unanswered.append(name)
                else:
                    scan.failure(part, reason, _usual(card, name))
                    scan.findings.append(_query_failure(card, name, error))
            except _MALFORMED_ERRORS as error:
                scan.failure(part, Absent.ERROR, _usual(card, name))
                scan.findings.append(_malformed_answer(card, name, error))
            else:
                new = {key: text for key, text in answers.texts.items() if key not in settings}
                settings |= new
                scan.watched[part] = new
                scan.add_readings(part, answers.readings)
        if link[0] != "1" or link != _link(host, card):
            for name in _NEGOTIATED_SETTINGS:
                scan.watched.pop((card.interface, name), None)
        facts = {key: text for key, text in settings.items() if key in entities.NIC_SETTINGS.facts}
        scan.described.append(Entity(entities.NIC_SETTINGS, (card.interface,), facts))
        scan.findings.append(_finding(card, len(settings), unanswered))

    def _questions(
        self, host: Host, card: nic_interfaces.PhysicalInterface, settings: Mapping[str, str]
    ) -> Iterator[tuple[str, SettingsQuery]]:
        """Queries in order of precedence, for settings that several of them return."""
        yield "expected_speed", partial(self._expected_speed, card)
        yield "driver", partial(_driver, host, card)
        for name, parse in _NETLINK.items():
            yield name, partial(_netlink, host, card, name, parse)
        for name, read in _FILES.items():
            yield name, partial(read, host, card)
        for name, directory in nic_setting_parsers.congestion_directories(card).items():
            yield (
                name,
                partial(nic_setting_parsers.read_congestion, host, card, directory, settings),
            )

    def _expected_speed(
        self, card: nic_interfaces.PhysicalInterface
    ) -> nic_interfaces.SettingAnswers:
        answers = nic_interfaces.SettingAnswers(card.interface)
        role = self._network.at(card.pci_address).role
        names = (card.interface, card.rdma_device, card.pci_address, role)
        speed = self._wiring.rules.speed(names)
        if speed is not None:
            answers.put(c.EXPECTED_SPEED, speed)
        return answers


def _link(host: Host, card: nic_interfaces.PhysicalInterface) -> tuple[str, ...]:
    """Carrier state, and the number of carrier changes."""
    files = ("carrier", "carrier_changes")
    return tuple(read_text(host, f"{nic_interfaces.NET}/{card.interface}/{file}") for file in files)


def _driver(host: Host, card: nic_interfaces.PhysicalInterface) -> nic_interfaces.SettingAnswers:
    answers = nic_interfaces.SettingAnswers(card.interface)
    if firmware := host.call("ethtool", "driver", card.interface).get("firmware"):
        answers.set("firmware", firmware)
    return answers


def _netlink(
    host: Host,
    card: nic_interfaces.PhysicalInterface,
    name: str,
    parse: Callable[[nic_interfaces.PhysicalInterface, Json], nic_interfaces.SettingAnswers],
) -> nic_interfaces.SettingAnswers:
    return parse(card, host.call("netlink", name, card.interface))


def _usual(card: nic_interfaces.PhysicalInterface, name: str) -> list[Column]:
    return [
        (metric, Entity(metric.about, (card.interface, *part)))
        for metric, *part in _USUAL.get(name, ())
    ]


def _finding(
    card: nic_interfaces.PhysicalInterface, settings: int, unanswered: list[str]
) -> ProbeFinding:
    what = f"settings of {card.interface}"
    detail = format_count(settings, "setting")
    if unanswered:
        detail += f"; driver {card.driver or 'unknown'} does not report {', '.join(unanswered)}"
    return ProbeFinding(what, ProbeVerdict.SUPPORTED if settings else ProbeVerdict.ABSENT, detail)


def _query_failure(
    card: nic_interfaces.PhysicalInterface, name: str, error: OSError
) -> ProbeFinding:
    denied = reason_of(error) is Absent.DENIED
    verdict = ProbeVerdict.DENIED if denied else ProbeVerdict.BROKEN
    detail = f"{name}: {error.strerror or error}"
    remedy = _REMEDIES.get(name, _ALLOW) if denied else ""
    return ProbeFinding(f"settings of {card.interface}", verdict, detail, remedy)


def _malformed_answer(
    card: nic_interfaces.PhysicalInterface, name: str, error: Exception
) -> ProbeFinding:
    detail = f"{name}: malformed response: {type(error).__name__}: {error}"
    return ProbeFinding(
        f"settings of {card.interface}", ProbeVerdict.BROKEN, detail, "report this as a bug"
    )
