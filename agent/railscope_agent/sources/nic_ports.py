"""Ports of NICs: MAC addresses, the connected switch port (LLDP), and the plugged transceiver or cable.

Neighbours are announced by the switch. The host collects the frames, which arrive about every 30
seconds, and drops a neighbour when its time to live has expired (IEEE 802.1AB). Until a link has
been up for twice the frame interval, a neighbour without a frame is not reported as unknown.

Transceivers and cables: identity, temperature, optical power, and the module's own alarms. A
module's data are in its EEPROM (SFF-8472, SFF-8636, CMIS), which the NIC's firmware reads over a
slow bus: rarely, and on the source's own thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from railscope.catalog import cabling, declare, entities
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading, is_failure, reason_of
from railscope_agent.host import Host, Json
from railscope_agent.sampling import answer_readings, fact_readers, probe_result
from railscope_agent.sampling.source import SYSTEM
from railscope_agent.sources.nic_interfaces import NET, join_items
from railscope_agent.sources.nic_setting_parsers import dscp_map
from railscope_agent.sources.source_bases import NodeScan, ScanningSource
from railscope_agent.topology.network import NetworkScanner

_NEIGHBOUR = "neighbour"
_NEIGHBOUR_FACTS: Mapping[str, str] = {
    "switch": "system",
    "switch_port": "port",
    "chassis": "chassis",
    "management_address": "management_address",
    "port_description": "port_description",
    "vlan": "port_vlan",
    "largest_frame_bytes": "maximum_frame_bytes",
}
FIRST_FRAME_WITHIN_NS = 60_000_000_000
"""Twice the default time between two frames (IEEE 802.1AB, msgTxInterval)."""
_LLDP_REMEDY = "install the drop-in network.conf (CAP_NET_RAW), or accept that these are missing"


_MAC_ADDRESS = re.compile(r"(?!00(:00){5})[0-9a-f]{2}(:[0-9a-f]{2}){5}")
"""Of an Ethernet interface: an address of InfiniBand has 20 bytes."""


class NeighbourSource(ScanningSource):
    """MAC addresses and neighbour of every physical interface."""

    name = "neighbour"
    lane = SYSTEM
    period_seconds = 10.0
    min_period_seconds = 1.0
    changed = cabling.NEIGHBOUR_EVENT

    def __init__(self, wiring: NetworkScanner | None = None) -> None:
        super().__init__()
        self._wiring = wiring or NetworkScanner()
        self._up_since: dict[str, int] = {}
        self._announced: dict[str, tuple[str, dict[str, str]]] = {}
        """Place of each interface at its last change, and the facts of the neighbour there."""

    def scan(self, host: Host) -> NodeScan:
        """Read the current neighbours."""
        scan = NodeScan(described_entities=list(self._wiring.find_nics(host)))
        links = {
            # An interface that is administratively down returns EINVAL.
            name: answer_readings.parsed_reading(host.read, f"{NET}/{name}/carrier")
            for name in self._wiring.scan(host).ports
        }
        scan.described_entities += filter(None, (_address(host, name) for name in links))
        if not links:
            return scan
        try:
            neighbours = host.call("lldp", "neighbours")
        except OSError as error:
            _add_lldp_failure(scan, links, error)
            return scan
        now_ns = host.clock.now().boot_ns
        ups = [interface for interface, carrier in links.items() if carrier == 1]
        # Interfaces that went down start again when they are up: the cable may lead elsewhere.
        self._up_since = {interface: self._up_since.get(interface, now_ns) for interface in ups}
        self._announced = {name: at for name, at in self._announced.items() if name in links}
        for interface, carrier in links.items():
            reading = Absent.UNSUPPORTED if carrier == 0 else carrier
            if interface in ups:
                reading = self._reading(interface, neighbours, now_ns)
            scan.add_readings((interface, _NEIGHBOUR), {_column(interface): reading})
        for interface in ups:
            if interface in neighbours:
                self._add_neighbour(scan, interface, neighbours[interface])
        return scan

    def _add_neighbour(self, scan: NodeScan, interface: str, neighbour: Json) -> None:
        texts = {
            fact: str(neighbour.get(key, "")).strip() for fact, key in _NEIGHBOUR_FACTS.items()
        }
        facts = fact_readers.nonempty_facts(**texts) | _announced_settings(neighbour)
        scan.described_entities.append(Entity(entities.NIC_NEIGHBOUR, (interface,), facts))
        place, known = _join_facts(facts, "switch", "switch_port", "chassis"), facts
        before = self._announced.get(interface)
        # Otherwise each restart of the switch's daemon would be a move to another port and back.
        if before and _is_same_port(before[1], facts):
            place, known = before[0], before[1] if _is_address(facts) else facts
        # Two switches that announce in turn would be a move with each announcement: they are a finding instead.
        if before and before[1].get("chassis") in neighbour.get("other_chassis", ()):
            place, known = before
        self._announced[interface] = place, known
        if place:
            scan.watched_values[interface, _NEIGHBOUR] = {_NEIGHBOUR: place}
        if others := neighbour.get("other_chassis"):
            found = ", ".join(map(str, (neighbour.get("chassis", ""), *others)))
            finding = probe_result.ProbeFinding(
                "LLDP of",
                probe_result.ProbeVerdict.BROKEN,
                f"several switches: {found}: expected one",
                "connect the cable to a switch port that no device forwards LLDP to",
                interface,
            )
            scan.findings.append(finding)

    def _reading(self, interface: str, neighbours: Json, now_ns: int) -> Reading:
        if interface in neighbours:  # a neighbour that expires is reported at once
            self._up_since[interface] = now_ns - FIRST_FRAME_WITHIN_NS
            return 1
        listened_ns = now_ns - self._up_since[interface]
        return 0 if listened_ns >= FIRST_FRAME_WITHIN_NS else Absent.NOT_DUE


def _is_address(facts: Mapping[str, str]) -> bool:
    return _MAC_ADDRESS.fullmatch(facts.get("switch_port", "")) is not None


def _is_same_port(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """True if two announcements are of one port of a chassis, whatever name the switch has.

    One of them may have a MAC address for the port: a daemon announces it until it is configured.
    """

    def is_equal(name: str) -> bool:
        return before.get(name) == now.get(name)

    is_unnamed = _is_address(before) != _is_address(now) and is_equal("port_description")
    return is_equal("chassis") and (is_equal("switch_port") or is_unnamed)


def _add_lldp_failure(scan: NodeScan, links: Mapping[str, Reading], error: OSError) -> None:
    """Record that all neighbours are unknown; the verdict depends on the reason."""
    if not is_failure(error):
        return
    for interface in links:
        scan.failure((interface, _NEIGHBOUR), reason_of(error), [_column(interface)])
    scan.findings.append(probe_result.ProbeFinding.failed("LLDP neighbours", error, _LLDP_REMEDY))


def _address(host: Host, interface: str) -> Entity | None:
    """Return the addresses of an interface; a member of a bond has that of the bond, and its own permanent one."""
    files = ("address", "bonding_slave/perm_hwaddr")
    texts = (fact_readers.read_text(host, f"{NET}/{interface}/{file}").lower() for file in files)
    address, permanent = (text if _MAC_ADDRESS.fullmatch(text) else "" for text in texts)
    facts = fact_readers.nonempty_facts(
        mac_address=address, permanent_mac_address="" if permanent == address else permanent
    )
    return Entity(entities.NIC_ADDRESS, (interface,), facts) if facts else None


def _column(interface: str) -> Column:
    return cabling.NEIGHBOUR_KNOWN, Entity(entities.NIC, (interface,))


def _announced_settings(neighbour: Json) -> dict[str, str]:
    """Return PFC and DSCP map of a switch port, as facts of NICs state them, if it announces them by DCBX."""
    found = {}
    if "pfc_priorities" in neighbour:
        found["pfc"] = join_items(neighbour["pfc_priorities"])
    if pairs := [entry.split(":") for entry in neighbour.get("dscp_priorities", ())]:
        numbers = {int(priority) for priority, _ in pairs}
        found["dscp_map"] = dscp_map(
            {n: [int(d) for p, d in pairs if int(p) == n] for n in numbers}
        )
    return found


_MODULE = "module"
_VALUES: Mapping[str, declare.Metric] = {
    "temperature_millicelsius": cabling.TRANSCEIVER_TEMPERATURE,
    "voltage_microvolts": cabling.TRANSCEIVER_SUPPLY,
}
_LANE: Mapping[str, declare.Metric] = {
    "receive_power_nanowatts": cabling.TRANSCEIVER_RECEIVE_POWER,
    "transmit_power_nanowatts": cabling.TRANSCEIVER_TRANSMIT_POWER,
    "bias_microamperes": cabling.TRANSCEIVER_BIAS,
}
_THRESHOLDS: Mapping[tuple[str, str], declare.Metric] = {
    ("temperature_", "_millicelsius"): cabling.TRANSCEIVER_TEMPERATURE_THRESHOLD,
    ("receive_power_", "_nanowatts"): cabling.TRANSCEIVER_RECEIVE_POWER_THRESHOLD,
    ("transmit_power_", "_nanowatts"): cabling.TRANSCEIVER_TRANSMIT_POWER_THRESHOLD,
}
"""Prefix and suffix of a threshold's key; the part between them is its name: low_alarm."""
_MODULE_REMEDY = (
    "install the drop-in network.conf (CAP_NET_ADMIN), or accept that these are missing"
)


class OpticsSource(ScanningSource):
    """Transceiver of every physical interface."""

    name = "optics"
    period_seconds = 60.0
    min_period_seconds = 1.0
    changed = cabling.TRANSCEIVER_EVENT

    def __init__(self, wiring: NetworkScanner | None = None) -> None:
        super().__init__()
        self._wiring = wiring or NetworkScanner()

    def scan(self, host: Host) -> NodeScan:
        """Read the transceiver of every NIC."""
        scan = NodeScan(described_entities=list(self._wiring.find_nics(host)))
        for interface in self._wiring.scan(host).ports:
            _scan_module(host, interface, scan)
        return scan


def _scan_module(host: Host, interface: str, scan: NodeScan) -> None:
    part = (interface, _MODULE)
    try:
        answer = host.call("netlink", _MODULE, interface)
        names = entities.NIC_TRANSCEIVER.facts
        facts = fact_readers.nonempty_facts(**{n: str(answer.get(n, "")).strip() for n in names})
        scan.add_readings(part, dict(_module_readings(interface, answer)))
    except (OSError, *answer_readings.MALFORMED_ERRORS) as error:
        reason = reason_of(error) if isinstance(error, OSError) else Absent.ERROR
        if isinstance(error, OSError) and reason in {Absent.UNSUPPORTED, Absent.GONE}:
            return
        usual = [(cabling.TRANSCEIVER_READABLE, Entity(entities.NIC, (interface,)))]
        scan.failure(part, reason, usual)
        scan.findings.append(
            probe_result.ProbeFinding.failed(
                "transceiver of", error, _MODULE_REMEDY, device=interface
            )
        )
    else:
        scan.described_entities.append(Entity(entities.NIC_TRANSCEIVER, (interface,), facts))
        if identity := _join_facts(facts, "vendor", "part_number", "serial"):
            scan.watched_values[part] = {_MODULE: identity}


def _join_facts(facts: Mapping[str, str], *names: str) -> str:
    return " ".join(facts[name] for name in names if name in facts)


def _module_readings(interface: str, answer: Json) -> Iterator[tuple[Column, Reading]]:
    yield (cabling.TRANSCEIVER_READABLE, Entity(entities.NIC, (interface,))), 1
    for key, metric in _VALUES.items():
        if key in answer:
            yield (metric, Entity(entities.NIC, (interface,))), int(answer[key])
    for lane, values in enumerate(answer.get("lanes", ())):
        for key, metric in _LANE.items():
            if key in values:
                yield (metric, Entity(entities.NIC_LANE, (interface, str(lane)))), int(values[key])
    for key, value in answer.get("thresholds", {}).items():
        for (start, end), metric in _THRESHOLDS.items():
            if key.startswith(start) and key.endswith(end):
                name = key.removeprefix(start).removesuffix(end)
                about = Entity(entities.NIC_TRANSCEIVER_THRESHOLD, (interface, name))
                yield (metric, about), int(value)
