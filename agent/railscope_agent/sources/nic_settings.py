"""Settings of NICs, and every change of them.

A setting is a configured value: MTU, PFC, trust, ring sizes. Values that result from the link, such
as its speed or the FEC in use, change with the link and are not settings; they have readings but no
events.

Some drivers return the negotiated values instead of the configured ones (with the link down, ice
reports autonegotiation as off, and firmware that runs DCBX reports no PFC). So while a link is
down, or when it goes down, such values are reported but not compared with earlier ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from railscope.catalog import declare, entities, nic_settings as c
from railscope.frame import Entity
from railscope.reading import Absent, is_failure, reason_of
from railscope_agent.host import Host, Json
from railscope_agent.sampling import answer_readings, fact_readers, probe_result
from railscope_agent.sampling.source import SYSTEM
from railscope_agent.sources import nic_interfaces, nic_setting_parsers as parsers, source_bases
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_device import NodeNetwork
from railscope_agent.topology.network_interface import NetworkInterface, read_driver

_SUBJECT = "settings of"
_HASH_DIGITS = 12
_DIRECTIONS = ("receive", "transmit")
_NETLINK = {
    "dcb": parsers.parse_dcb,
    "pause": parsers.parse_pause,
    "fec": parsers.parse_fec,
    "rings": parsers.parse_rings,
    "link_modes": parsers.parse_link_modes,
}
_NEGOTIATED_SETTINGS = {"dcb", "pause", "fec", "link_modes"}
_FILES = {
    "mtu": parsers.read_mtu,
    "ecn": parsers.read_ecn,
    "qos": parsers.read_qos,
    "rdma": parsers.read_rdma,
    "gids": parsers.read_gids,
}
_USUAL: Mapping[str, tuple[tuple[declare.Metric, *tuple[str, ...]], ...]] = {
    "dcb": tuple((c.PFC_ENABLED, str(priority)) for priority in range(nic_interfaces.PRIORITIES)),
    "pause": tuple((c.PAUSE_ENABLED, direction) for direction in _DIRECTIONS),
    "fec": ((c.FEC_ACTIVE,),),
    "rings": tuple((c.RING, direction) for direction in _DIRECTIONS),
    "link_modes": ((c.AUTONEGOTIATION,), (c.EXPECTED_SPEED,)),
}
"""Usual columns of a query: if it fails, they are absent for the reason of the failure."""
_AS_ROOT = (
    "run the agent as root (debugfs is readable by root only), or accept that these are missing"
)
_REMEDIES = {"cc_params": _AS_ROOT, "cc_config": _AS_ROOT}
_ALLOW = "allow the agent netlink sockets (AF_NETLINK) and the calls that its unit forbids"

SettingsQuery = Callable[[nic_interfaces.SettingAnswers, Host], None]
"""Adds the answers to one query of a NIC. Raises OSError."""


class NicSettingsSource(source_bases.ScanningSource):
    """Settings of every physical interface."""

    name = "nic_settings"
    lane = SYSTEM
    period_seconds = 60.0
    min_period_seconds = 1.0
    changed = c.SETTING_EVENT

    def __init__(self, wiring: NetworkScanner | None = None) -> None:
        super().__init__()
        self._wiring = wiring or NetworkScanner()
        self._network = NodeNetwork()

    def scan(self, host: Host) -> source_bases.NodeScan:
        """Query all settings of every NIC."""
        scan = source_bases.NodeScan(described_entities=list(self._wiring.find_nics(host)))
        self._network = self._wiring.scan(host)
        for interface in self._network.ports:
            self._scan_nic(host, self._network.interfaces[interface], scan)
        return scan

    def _scan_nic(self, host: Host, nic: NetworkInterface, scan: source_bases.NodeScan) -> None:
        settings: dict[str, str] = {}
        link, is_complete = _link(host, nic), True
        for name, query in self._queries(nic, settings):
            part = (nic.name, name)
            answers = nic_interfaces.SettingAnswers(nic)
            try:
                query(answers, host)
            except (OSError, *answer_readings.MALFORMED_ERRORS) as error:
                reason = reason_of(error) if isinstance(error, OSError) else Absent.ERROR
                if isinstance(error, OSError) and not is_failure(error):
                    continue  # the driver does not report it
                is_complete = False
                usual = [
                    (metric, Entity(metric.about, (nic.name, *key)))
                    for metric, *key in _USUAL.get(name, ())
                ]
                scan.failure(part, reason, usual)
                remedy = _REMEDIES.get(name, _ALLOW)
                scan.findings.append(
                    probe_result.ProbeFinding.failed(_SUBJECT, error, remedy, name, nic.name)
                )
            else:
                # The first query that returns a setting has precedence; a second answer may be in another
                # form.
                new = {key: text for key, text in answers.texts.items() if key not in settings}
                settings |= new
                scan.watched_values[part] = new
                scan.add_readings(part, answers.readings)
                is_complete &= not any(isinstance(r, Absent) for r in answers.readings.values())
        # Compared with the link before the queries: one that went down and up in between has changed the
        # answers.
        if link[0] != "1" or link != _link(host, nic):
            is_complete = False
            for name in _NEGOTIATED_SETTINGS:
                scan.watched_values.pop((nic.name, name), None)
        facts = {key: text for key, text in settings.items() if key in entities.NIC_SETTINGS.facts}
        # A hash of a part would differ from those of equal NICs.
        if settings and is_complete:
            facts["hash"] = _settings_hash(settings)
        scan.described_entities.append(Entity(entities.NIC_SETTINGS, (nic.name,), facts))

    def _queries(
        self, nic: NetworkInterface, settings: Mapping[str, str]
    ) -> Iterator[tuple[str, SettingsQuery]]:
        """Queries in order of precedence, for settings that several of them return."""
        yield "expected_speed", self._add_expected_speed
        yield "driver", _add_firmware
        for name, parse in _NETLINK.items():
            yield name, partial(_add_netlink, name=name, parse=parse)
        yield from _FILES.items()
        for name, directory in parsers.congestion_directories(nic).items():
            read = partial(parsers.read_congestion, directory=directory, settings_before=settings)
            yield name, read

    def _add_expected_speed(self, answers: nic_interfaces.SettingAnswers, host: Host) -> None:  # noqa: ARG002 - a query
        nic = answers.nic
        role = self._network.device_of(nic.name).role
        names = (nic.name, nic.rdma_device, nic.function, role)
        speed = self._wiring.rules.expected_speed(names)
        if speed is not None:
            answers.put(c.EXPECTED_SPEED, speed)


def _settings_hash(settings: Mapping[str, str]) -> str:
    """Return a digest of all settings, equal for NICs with equal settings; firmware is not a setting."""
    compared = sorted((name, text) for name, text in settings.items() if name != "firmware")
    return hashlib.sha256(repr(compared).encode()).hexdigest()[:_HASH_DIGITS]


def _link(host: Host, nic: NetworkInterface) -> tuple[str, ...]:
    """Carrier state, and the number of carrier changes."""
    files = ("carrier", "carrier_changes")
    return tuple(
        fact_readers.read_text(host, f"{nic_interfaces.NET}/{nic.name}/{file}") for file in files
    )


def _add_firmware(answers: nic_interfaces.SettingAnswers, host: Host) -> None:
    if firmware := read_driver(host, answers.nic.name).get("firmware"):
        answers.set("firmware", firmware)


def _add_netlink(
    answers: nic_interfaces.SettingAnswers,
    host: Host,
    name: str,
    parse: Callable[[nic_interfaces.SettingAnswers, Json], None],
) -> None:
    parse(answers, host.call("netlink", name, answers.nic.name))
