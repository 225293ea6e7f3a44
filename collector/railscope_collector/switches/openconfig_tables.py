"""Table of OpenConfig facts: paths of the public models and of native ones, and the readings that their leaves become.

Pure: leaves in, readings out. Each fact names its paths in OpenConfig, which Arista EOS extends, and in Nokia SR Linux:
the first one that the switch answers counts. A fact without an answer is unsupported. If its request failed, it has the
reason of the failure.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import NamedTuple, TypeAlias

from railscope import untrusted_text
from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Column, Entity
from railscope.reading import UNSIGNED_RANGE, Absent, Reading, known_speed
from railscope.timestamps import SECOND_NS
from railscope_collector.switches import gnmi_updates, switch_reading as base
from railscope_collector.switches.link_ends import other_neighbours

MAX_QUEUES = 8
"""Queues of a port for unicast packets, one for each priority."""
_PORT, _SRL_PORT = "interfaces/interface[name]/", "interface[name]/"
_STATE, _ETHERNET = f"{_PORT}state/", f"{_PORT}ethernet/state/"
_COUNTERS, _SRL_COUNTERS = f"{_STATE}counters/", f"{_SRL_PORT}statistics/"
_PFC, _WATCHDOG = (
    f"{_PORT}ethernet/pfc/priorities/priority[index]/state/",
    f"{_PORT}ethernet/pfc/watchdog/tx-queues/tx-queue[index][queue-type]/state/",
)
_SRL_PFC = "qos/interfaces/interface[interface-id]/pfc/statistics/pfc-priority[index]/"
_QUEUE = "qos/interfaces/interface[interface-id]/output/queues/queue[name]/state/"
_SRL_QUEUE = "qos/interfaces/interface[interface-id]/output/queues/queue[queue-name]/queue-statistics/aggregate-statistics/"
_NEIGHBOUR, _SRL_NEIGHBOUR = (
    "lldp/interfaces/interface[name]/neighbors/neighbor[id]/state/",
    "system/lldp/interface[name]/neighbor[id]/",
)
_CHANNEL, _SRL_CHANNEL = (
    "components/component[name]/transceiver/physical-channels/channel[index]/state/",
    f"{_SRL_PORT}transceiver/channel[index]/",
)

Paths: TypeAlias = tuple[str, ...]
"""Paths of a fact; the first one that the switch answers counts."""
_PORT_COUNTERS: Mapping[declare.Metric, Paths] = {
    catalog.RECEIVED: (f"{_COUNTERS}in-octets", f"{_SRL_COUNTERS}in-octets"),
    catalog.SENT: (f"{_COUNTERS}out-octets", f"{_SRL_COUNTERS}out-octets"),
    catalog.RECEIVED_ERRORS: (f"{_COUNTERS}in-errors", f"{_SRL_COUNTERS}in-error-packets"),
    catalog.SENT_ERRORS: (f"{_COUNTERS}out-errors", f"{_SRL_COUNTERS}out-error-packets"),
    catalog.RECEIVED_DISCARDS: (f"{_COUNTERS}in-discards", f"{_SRL_COUNTERS}in-discarded-packets"),
    catalog.SENT_DISCARDS: (f"{_COUNTERS}out-discards", f"{_SRL_COUNTERS}out-discarded-packets"),
    catalog.FCS_ERRORS: (f"{_COUNTERS}in-fcs-errors", f"{_ETHERNET}counters/in-crc-errors"),
    catalog.FEC_CORRECTED: (f"{_ETHERNET}counters/fec-corrected-blocks",),
    catalog.FEC_UNCORRECTABLE: (f"{_ETHERNET}counters/fec-uncorrectable-blocks",),
    catalog.PAUSE_RECEIVED: (
        f"{_ETHERNET}counters/in-mac-pause-frames", f"{_SRL_PORT}ethernet/statistics/in-mac-pause-frames",
    ),
    catalog.PAUSE_SENT: (
        f"{_ETHERNET}counters/out-mac-pause-frames", f"{_SRL_PORT}ethernet/statistics/out-mac-pause-frames",
    ),
}  # fmt: skip
_PACKETS: Mapping[declare.Metric, Paths] = {
    catalog.RECEIVED_PACKETS: (f"{_COUNTERS}in-pkts", f"{_SRL_COUNTERS}in-packets"),
    catalog.SENT_PACKETS: (f"{_COUNTERS}out-pkts", f"{_SRL_COUNTERS}out-packets"),
}
_PACKET_KINDS: Mapping[declare.Metric, Sequence[str]] = {
    metric: [f"{_COUNTERS}{direction}-{kind}-pkts" for kind in ("unicast", "multicast", "broadcast")]
    for metric, direction in ((catalog.RECEIVED_PACKETS, "in"), (catalog.SENT_PACKETS, "out"))
}  # fmt: skip
"""Parts of the packets of switches without a total of all kinds."""
_PRIORITY_COUNTERS: Mapping[declare.Metric, Paths] = {
    catalog.PFC_RECEIVED: (f"{_PFC}in-frames", f"{_SRL_PFC}pfc-pause-frames-received"),
    catalog.PFC_SENT: (f"{_PFC}out-frames", f"{_SRL_PFC}pfc-pause-frames-generated"),
}
_ALL_PRIORITIES: Mapping[declare.Metric, declare.Metric] = {
    catalog.ALL_PFC_RECEIVED: catalog.PFC_RECEIVED,
    catalog.ALL_PFC_SENT: catalog.PFC_SENT,
}
_QUEUE_COUNTERS: Mapping[declare.Metric, Paths] = {
    catalog.QUEUE_PACKETS: (f"{_QUEUE}transmit-pkts", f"{_SRL_QUEUE}transmitted-packets"),
    catalog.QUEUE_BYTES: (f"{_QUEUE}transmit-octets", f"{_SRL_QUEUE}transmitted-octets"),
    catalog.QUEUE_DROPPED_PACKETS: (f"{_QUEUE}dropped-pkts", f"{_SRL_QUEUE}dropped-packets"),
    catalog.QUEUE_DROPPED_BYTES: (f"{_QUEUE}dropped-octets", f"{_SRL_QUEUE}dropped-octets"),
}
_MARK_COUNTERS: Mapping[declare.Metric, Paths] = {
    catalog.QUEUE_MARKED_PACKETS: (f"{_QUEUE}ecn-marked-pkts", f"{_SRL_QUEUE}ecn-marked-packets"),
    catalog.QUEUE_MARKED_BYTES: (f"{_QUEUE}ecn-marked-octets",),
    catalog.QUEUE_WRED_DROPPED_PACKETS: (f"{_QUEUE}wred-dropped-pkts",),
}
_WATERMARKS: Mapping[declare.Metric, Paths] = {
    # A gauge, though its type is counter64 (openconfig-qos-interfaces: "Maximum observed queue length", bytes).
    catalog.QUEUE_WATERMARK: (f"{_QUEUE}max-queue-len",),
}
_WATCHDOG_COUNTERS: Mapping[declare.Metric, Paths] = {
    catalog.WATCHDOG_DETECTED: (f"{_WATCHDOG}stuck-count",),
    catalog.WATCHDOG_RESTORED: (f"{_WATCHDOG}recovery-count",),
}
"""By queue and its type."""
_PRIORITY_WATCHDOG: Mapping[declare.Metric, Paths] = {
    catalog.WATCHDOG_DETECTED: (),
    catalog.WATCHDOG_RESTORED: (f"{_SRL_PFC}deadlock-recovery-occurrences",),
}
"""By priority, which has the number of its queue."""
_LANE_POWERS: Mapping[declare.Metric, Paths] = {
    catalog.TRANSCEIVER_RECEIVE_POWER: (f"{_CHANNEL}input-power/instant", f"{_SRL_CHANNEL}input-power/latest-value"),
    catalog.TRANSCEIVER_TRANSMIT_POWER: (f"{_CHANNEL}output-power/instant", f"{_SRL_CHANNEL}output-power/latest-value"),
}  # fmt: skip
"""In dBm."""
_LANE_BIAS: Paths = (
    f"{_CHANNEL}laser-bias-current/instant", f"{_SRL_CHANNEL}laser-bias-current/latest-value",
)  # fmt: skip
"""In milliamperes."""
_TRANSCEIVER, _LANES_OF_PORT = f"{_STATE}transceiver", f"{_STATE}physical-channel"
_STATUS: Paths = (f"{_STATE}oper-status", f"{_SRL_PORT}oper-state")
_ENABLED: Paths = (f"{_STATE}admin-status", f"{_SRL_PORT}admin-state")
_SPEED: Paths = (f"{_ETHERNET}port-speed", f"{_SRL_PORT}ethernet/port-speed")
_TYPE: Paths = (f"{_STATE}type",)
_PORT_FACTS: Mapping[str, Paths] = {
    "index": (f"{_STATE}ifindex", f"{_SRL_PORT}ifindex"),
    "description": (f"{_STATE}description", f"{_SRL_PORT}description"),
    "mac_address": (f"{_ETHERNET}hw-mac-address", f"{_SRL_PORT}ethernet/hw-mac-address"),
}
_QUEUE_ID, _QUEUE_TYPE = f"{_QUEUE}id", f"{_QUEUE}queue-type"
_CHASSIS, _PORT_ID, _DESCRIPTION, _SYSTEM_NAME = (
    (f"{_NEIGHBOUR}{name}", f"{_SRL_NEIGHBOUR}{name}")
    for name in ("chassis-id", "port-id", "port-description", "system-name")
)
_CHASSIS_KIND, _PORT_KIND = (
    (f"{_NEIGHBOUR}{name}-id-type", f"{_SRL_NEIGHBOUR}{name}-id-type")
    for name in ("chassis", "port")
)
_BOOT_TIME = "system/state/boot-time"
_HOST_NAME: Paths = ("system/state/hostname", "lldp/state/system-name")
_OWN_CHASSIS, _OWN_CHASSIS_KIND, _OWN_DESCRIPTION = (
    f"lldp/state/{name}" for name in ("chassis-id", "chassis-id-type", "system-description")
)
TREE = gnmi_updates.build_tree({
    *chain.from_iterable(chain.from_iterable(table.values() for table in (
        _PORT_COUNTERS, _PACKETS, _PACKET_KINDS, _PRIORITY_COUNTERS, _QUEUE_COUNTERS, _MARK_COUNTERS, _WATERMARKS,
        _WATCHDOG_COUNTERS, _PRIORITY_WATCHDOG, _PORT_FACTS, _LANE_POWERS,
    ))),
    *_STATUS, *_ENABLED, *_SPEED, *_TYPE, *_CHASSIS, *_CHASSIS_KIND, *_PORT_ID, *_PORT_KIND, *_DESCRIPTION,
    *_SYSTEM_NAME, *_HOST_NAME, *_LANE_BIAS, _TRANSCEIVER, _LANES_OF_PORT, _QUEUE_ID, _QUEUE_TYPE, _BOOT_TIME, _OWN_CHASSIS, _OWN_CHASSIS_KIND, _OWN_DESCRIPTION,
})  # fmt: skip
"""All paths of the table."""

_STATUSES: Mapping[str, Reading] = {
    "UP": 1, "ENABLE": 1, "UNKNOWN": Absent.UNSUPPORTED,
    **dict.fromkeys(("DOWN", "DISABLE", "TESTING", "DORMANT", "NOT_PRESENT", "LOWER_LAYER_DOWN"), 0),
}  # fmt: skip
_ETHERNET_TYPES = frozenset({"ethernetCsmacd", "IF_ETHERNET"})
_UNICAST = frozenset({"UC", "MIXEDUCMC", ""})
"""Types of queues that have unicast packets, as Arista EOS names them."""
_NUMBERED_QUEUE = re.compile(r"(?:unicast-)?([0-7])")
"""Name of a queue with its number: SR Linux has unicast-0 to unicast-7."""
_PORT_SPEED = re.compile(r"(?:SPEED_)?(\d{1,6})([MGT])B?")
"""SPEED_400GB of OpenConfig, 400G of SR Linux."""
_MEGABITS = {"M": 1, "G": 1000, "T": 1_000_000}
_MAC = "MAC_ADDRESS"
_DIGITS = re.compile(r"(\d+)")
_DECIMAL_TEXT = re.compile(r"[+-]?\d{1,20}(?:\.\d{1,20})?")
_FLOAT_FORMATS = {4: ">f", 8: ">d"}
_MAX_LANES = 8
"""Lanes of a port: 512 ports with more would exceed the columns of a stream."""
_CHANNELS = range(2 * _MAX_LANES + 1)
"""Numbers of the lanes of a transceiver, from 0 or 1; several ports may share it."""
_UPTIME_STEP_NS = int(SECOND_NS * catalog.UPTIME.scale)
_MAX_UPTIME_NS = 100 * 366 * 86_400 * SECOND_NS


# Requests ----------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Facts that are requested together, and no more often than their period."""

    name: str
    """Name in the facts of the switch if it has none of them."""
    model: str
    """Model of the switch (Capabilities) that has these paths."""
    paths: Paths
    period_seconds: float = 0


PORTS, SRL_PORTS = (
    Group("ports", "openconfig-interfaces", ("interfaces/interface/state",)),
    Group(
        "ports",
        "srl_nokia-interfaces",
        tuple(f"interface/{name}" for name in ("statistics", "oper-state", "admin-state", "description", "ifindex")),
    ),
)  # fmt: skip
GROUPS: Sequence[Group] = (
    PORTS,
    Group("Ethernet counters", "openconfig-if-ethernet", ("interfaces/interface/ethernet/state",)),
    Group("PFC", "arista-intf-augments", ("interfaces/interface/ethernet/pfc",)),
    Group("system", "openconfig-system", ("system/state",)),
    Group("queues", "openconfig-qos", ("qos/interfaces/interface/output/queues/queue/state",), base.QUEUE_SECONDS),
    Group("optics", "openconfig-platform-transceiver", ("components/component/transceiver/physical-channels",), base.NEIGHBOUR_SECONDS),
    Group("LLDP", "openconfig-lldp", ("lldp/interfaces/interface/neighbors/neighbor/state", "lldp/state"), base.NEIGHBOUR_SECONDS),
)  # fmt: skip
SRL_GROUPS: Sequence[Group] = (
    SRL_PORTS,
    Group("Ethernet counters", "srl_nokia-interfaces", tuple(f"interface/ethernet/{name}" for name in ("statistics", "port-speed", "hw-mac-address"))),
    Group("PFC", "srl_nokia-qos", ("qos/interfaces/interface/pfc/statistics",)),
    Group("system", "openconfig-system", ("system/state",)),
    Group("queues", "srl_nokia-qos", ("qos/interfaces/interface/output/queues/queue/queue-statistics/aggregate-statistics",), base.QUEUE_SECONDS),
    Group("optics", "srl_nokia-interfaces", ("interface/transceiver/channel",), base.NEIGHBOUR_SECONDS),
    Group("LLDP", "srl_nokia-lldp", ("system/lldp/interface/neighbor",), base.NEIGHBOUR_SECONDS),
)  # fmt: skip
MODELS = frozenset(group.model for group in (*GROUPS, *SRL_GROUPS))
"""Models that this table uses."""


def is_requested(leaf: str, group: Group) -> bool:
    """True if a path of the table is below one of a group."""
    names = [element.partition("[")[0] for element in leaf.split("/")]
    return any(names[: path.count("/") + 1] == path.split("/") for path in group.paths)


_PORT_PATHS = frozenset(
    leaf for leaf in TREE.leaves() if any(is_requested(leaf, each) for each in (PORTS, SRL_PORTS))
)
_FACTS_BY_NAME: Mapping[str, frozenset[str]] = {
    "Ethernet counters": frozenset((*_SPEED, *_PORT_COUNTERS[catalog.PAUSE_SENT])),
    "FEC": frozenset(_PORT_COUNTERS[catalog.FEC_CORRECTED]),
    "PFC": frozenset(_PRIORITY_COUNTERS[catalog.PFC_SENT]),
    "PFC watchdog": frozenset(
        chain.from_iterable((*_WATCHDOG_COUNTERS.values(), *_PRIORITY_WATCHDOG.values()))
    ),
    "system": frozenset((_BOOT_TIME, *_HOST_NAME)),
    "queues": frozenset(_QUEUE_COUNTERS[catalog.QUEUE_PACKETS]),
    "ECN marks": frozenset(_MARK_COUNTERS[catalog.QUEUE_MARKED_PACKETS]),
    "optics": frozenset(_LANE_POWERS[catalog.TRANSCEIVER_RECEIVE_POWER]),
    "LLDP": frozenset(_CHASSIS),
}
"""Facts that a switch may not have, with their paths."""
_GROUP_OF_FACT = {"FEC": "Ethernet counters", "PFC watchdog": "PFC", "ECN marks": "queues"}


class Lane(NamedTuple):
    """A lane of a transceiver, from 1."""

    number: int
    component: str
    key: str
    """Key in the paths of the component, or port."""


class Queue(NamedTuple):
    """A queue of unicast packets."""

    label: str
    key: str
    """Key in the paths."""


@dataclass(slots=True)
class SwitchFacts:
    """Findings of earlier polls, since not all groups are due in each."""

    missing: dict[str, bool] = field(default_factory=dict)
    """Facts that the switch has (false) or does not have (true)."""
    identity: Mapping[str, str] = field(default_factory=dict)
    queues: dict[str, list[Queue]] = field(default_factory=dict)
    """Queues of each port."""
    lanes: dict[str, list[Lane]] = field(default_factory=dict)
    """Lanes of the transceiver of each port."""


@dataclass(frozen=True, slots=True)
class OpenConfigAnswers:
    """Leaves of one poll, and the groups that were due."""

    leaves: gnmi_updates.Leaves
    due: Collection[str]
    """Names of groups that were requested, or that the switch does not have."""
    failures: Mapping[str, Absent] = field(default_factory=dict)
    """Reasons of the groups whose request failed; a leaf that arrived before counts."""
    dialect: str = "openconfig"

    def count(self, group: str, paths: Paths, name: str, *more: str) -> Reading:
        """Return a number of at most 64 bits: the first of these paths that the switch answered."""
        for path in paths:
            leaf = self.leaves.get(path, name, *more)
            if leaf is not None:
                return as_count(leaf)
        return self.failures.get(group, Absent.UNSUPPORTED)

    def decimal(self, group: str, paths: Paths, name: str, *more: str) -> Decimal | Absent:
        """Return a number with a fraction: the first of these paths that the switch answered."""
        for path in paths:
            leaf = self.leaves.get(path, name, *more)
            if leaf is not None:
                return as_decimal(leaf)
        return self.failures.get(group, Absent.UNSUPPORTED)

    def text(self, paths: Iterable[str], name: str = "", *more: str) -> str:
        """Return a text; empty if there is none."""
        for path in paths:
            leaf = self.leaves.get(path, name, *more)
            if leaf is not None:
                return as_text(leaf)
        return ""


# Values ------------------------------------------------------------------------------------------


def as_count(leaf: gnmi_updates.Leaf) -> Reading:
    """Return a leaf as an unsigned number: JSON_IETF has 64-bit numbers as text, some switches as floating point."""
    if isinstance(leaf, bool):
        return Absent.ERROR
    if isinstance(leaf, int | str):
        return base.as_number(leaf)
    number = as_decimal(leaf)
    if isinstance(number, Absent):
        return number
    return base.as_number(int(number)) if number == number.to_integral_value() else Absent.ERROR


def as_decimal(leaf: gnmi_updates.Leaf) -> Decimal | Absent:
    """Return a leaf as a number with a fraction; also one of 4 or 8 bytes, as Junos sends it, in base64 in JSON_IETF."""
    if isinstance(leaf, Absent):
        return leaf
    if isinstance(leaf, str) and not leaf.strip():
        return Absent.UNSUPPORTED
    try:
        if isinstance(leaf, str) and not _DECIMAL_TEXT.fullmatch(leaf):
            leaf = base64.b64decode(leaf, validate=True)
        if isinstance(leaf, bytes):
            (leaf,) = struct.unpack(_FLOAT_FORMATS.get(len(leaf), ""), leaf)
        number = Decimal(str(leaf))
    except (binascii.Error, struct.error, InvalidOperation):
        return Absent.ERROR
    return number if number.is_finite() and abs(number) < UNSIGNED_RANGE else Absent.ERROR


def as_text(leaf: object) -> str:
    """Return a leaf as printable text of limited length; empty if it is none."""
    is_text = isinstance(leaf, str | int) and not isinstance(leaf, bool)
    return base.cut_text(untrusted_text.printable(str(leaf))) if is_text else ""


def _state(answers: OpenConfigAnswers, paths: Paths, port: str) -> Reading:
    text = gnmi_updates.local_name(answers.text(paths, port)).upper()
    if not text:
        is_damaged = any(answers.leaves.get(path, port) is not None for path in paths)
        return Absent.ERROR if is_damaged else answers.failures.get("ports", Absent.UNSUPPORTED)
    return _STATUSES.get(text, Absent.ERROR)


def _speed(answers: OpenConfigAnswers, port: str) -> Reading:
    text = gnmi_updates.local_name(answers.text(_SPEED, port))
    if not text or text == "SPEED_UNKNOWN":
        return answers.failures.get("Ethernet counters", Absent.UNSUPPORTED)
    matched = _PORT_SPEED.fullmatch(text)
    return known_speed(int(matched[1]) * _MEGABITS[matched[2]]) if matched else Absent.ERROR


def _identifier(text: str, kind: str) -> str:
    """Return the identifier of a chassis or port; a MAC address as aa:bb:cc:dd:ee:ff."""
    is_mac = gnmi_updates.local_name(kind) == _MAC
    return text.lower().replace("-", ":") if is_mac else text


# Readings ----------------------------------------------------------------------------------------


def make_reading(
    switch: str, answers: OpenConfigAnswers, found_before: SwitchFacts
) -> base.SwitchReading:
    """Return the readings of a switch, and update what is known. Raises SwitchReadError if it has no ports."""
    _note(answers, found_before)
    found = sorted(_port_names(answers), key=_natural_order)
    if not found:
        message = "no Ethernet ports: expected interfaces with a state"
        raise base.SwitchReadError(message)
    ports = [_port(switch, name, answers) for name in found[: base.MAX_PORTS]]
    uptime_ns = _uptime_ns(answers)
    streams = {
        base.SWITCH: _switch(switch, found_before, len(found), uptime_ns),
        base.PORTS: list(_port_readings(ports, answers)),
        base.PRIORITY: list(_priority_readings(ports, answers)),
        base.WATCHDOG: list(_watchdog_readings(ports, answers)),
    }
    if "queues" in answers.due:
        if "queues" not in answers.failures:
            found_before.queues = {port.key[1]: _queues(port, answers) for port in ports}
        queues = [
            (port, queue) for port in ports for queue in found_before.queues.get(port.key[1], ())
        ]
        streams[base.QUEUES] = list(_queue_readings(queues, answers, _QUEUE_COUNTERS))
        streams[base.QUEUE_MARKS] = list(_queue_readings(queues, answers, _MARK_COUNTERS))
        streams[base.WATERMARKS] = list(_queue_readings(queues, answers, _WATERMARKS))
    if "optics" in answers.due:
        if "optics" not in answers.failures:
            found_before.lanes = {port.key[1]: _lanes(port.key[1], answers) for port in ports}
        streams[base.LANES] = list(_lane_readings(ports, answers, found_before.lanes))
    if "LLDP" in answers.due:
        streams[base.NEIGHBOURS] = list(_neighbour_readings(ports, answers))
    return base.SwitchReading(streams, uptime_ns, dialect=answers.dialect)


def _note(answers: OpenConfigAnswers, found: SwitchFacts) -> None:
    for name, paths in _FACTS_BY_NAME.items():
        group = _GROUP_OF_FACT.get(name, name)
        # A failure of this poll changes nothing.
        if group in answers.due and group not in answers.failures:
            found.missing[name] = not answers.leaves.has(paths)
    if "LLDP" in answers.due or not found.identity:
        chassis = answers.text([_OWN_CHASSIS])
        found.identity = {
            "system_name": answers.text(_HOST_NAME),
            "description": answers.text([_OWN_DESCRIPTION]),
            "chassis": _identifier(chassis, answers.text([_OWN_CHASSIS_KIND])),
        }


def _port_names(answers: OpenConfigAnswers) -> list[str]:
    """Return the names of the Ethernet ports: interfaces of that type, or those with a speed where none has a type."""
    leaves = answers.leaves
    names = leaves.names(_PORT_PATHS)
    if leaves.has(_TYPE):
        types = {name: gnmi_updates.local_name(answers.text(_TYPE, name)) for name in names}
        return [name for name, kind in types.items() if kind in _ETHERNET_TYPES]
    with_speed = frozenset(leaves.names(_SPEED))
    return [name for name in names if name in with_speed] if with_speed else names


def _natural_order(name: str) -> list[tuple[bool, int, str]]:
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in _DIGITS.split(name)
    ]


def _port(switch: str, name: str, answers: OpenConfigAnswers) -> Entity:
    """Return a port. LLDP of these systems announces the name of the interface as port ID."""
    facts = {fact: answers.text(paths, name) for fact, paths in _PORT_FACTS.items()}
    facts |= {"alias": "", "mac_address": facts["mac_address"].lower(), "lldp_port_id": name}
    return Entity(entities.SWITCH_PORT, (switch, name), facts)


def _uptime_ns(answers: OpenConfigAnswers) -> int | None:
    """Return the time since the switch started, both times by its own clock."""
    started = answers.count("system", (_BOOT_TIME,), "")
    if isinstance(started, Absent):
        return None
    uptime_ns = answers.leaves.newest_ns - started
    return uptime_ns if 0 <= uptime_ns < _MAX_UPTIME_NS else None


def _switch(
    switch: str, found: SwitchFacts, port_count: int, uptime_ns: int | None
) -> base.StreamReadings:
    missing = ", ".join(name for name, is_missing in found.missing.items() if is_missing)
    entity = Entity(entities.SWITCH, (switch,), {**found.identity, "missing_tables": missing})
    uptime = Absent.UNSUPPORTED if uptime_ns is None else uptime_ns // _UPTIME_STEP_NS
    return [((catalog.UPTIME, entity), uptime), ((catalog.PORTS, entity), port_count)]


def _port_readings(
    ports: Sequence[Entity], answers: OpenConfigAnswers
) -> Iterator[tuple[Column, Reading]]:
    for port in ports:
        name = port.key[1]
        yield (catalog.PORT_UP, port), _state(answers, _STATUS, name)
        yield (catalog.PORT_ENABLED, port), _state(answers, _ENABLED, name)
        yield (catalog.SPEED, port), _speed(answers, name)
        for metric, paths in _PACKETS.items():
            yield (metric, port), _packets(answers, metric, paths, name)
        for metric, of_priority in _ALL_PRIORITIES.items():
            paths = _PRIORITY_COUNTERS[of_priority]
            parts = (answers.count("PFC", paths, name, str(each)) for each in base.PRIORITIES)
            yield (metric, port), base.sum_counters(parts)
        for metric, paths in _PORT_COUNTERS.items():
            group = "Ethernet counters" if paths[0].startswith(_ETHERNET) else "ports"
            yield (metric, port), answers.count(group, paths, name)


def _packets(
    answers: OpenConfigAnswers, metric: declare.Metric, paths: Paths, port: str
) -> Reading:
    total = answers.count("ports", paths, port)
    if total is not Absent.UNSUPPORTED:
        return total
    kinds = _PACKET_KINDS[metric]
    return base.sum_counters(answers.count("ports", (kind,), port) for kind in kinds)


def _priority_readings(
    ports: Sequence[Entity], answers: OpenConfigAnswers
) -> Iterator[tuple[Column, Reading]]:
    for port in ports:
        for priority in map(str, base.PRIORITIES):
            entity = Entity(entities.SWITCH_PRIORITY, (*port.key, priority))
            for metric, paths in _PRIORITY_COUNTERS.items():
                yield (metric, entity), answers.count("PFC", paths, port.key[1], priority)


def _watchdog_readings(
    ports: Sequence[Entity], answers: OpenConfigAnswers
) -> Iterator[tuple[Column, Reading]]:
    for port in ports:
        for queue in map(str, base.PRIORITIES):
            entity = Entity(entities.SWITCH_QUEUE, (*port.key, queue))
            for metric, paths in _WATCHDOG_COUNTERS.items():
                reading = answers.count("PFC", paths, port.key[1], queue, "UNICAST")
                if reading is Absent.UNSUPPORTED:
                    by_priority = _PRIORITY_WATCHDOG[metric]
                    reading = answers.count("PFC", by_priority, port.key[1], queue)
                yield (metric, entity), reading


def _queues(port: Entity, answers: OpenConfigAnswers) -> list[Queue]:
    """Return the queues of unicast packets of a port by their number, or by their name if the switch states none."""
    name, leaves = port.key[1], answers.leaves
    paths = chain.from_iterable(
        (*_QUEUE_COUNTERS.values(), *_MARK_COUNTERS.values(), *_WATERMARKS.values())
    )
    keys = sorted({keys[0] for path in paths for keys in leaves.more_keys(path, name)})
    found: dict[str, Queue] = {}
    for key in keys:
        if answers.text([_QUEUE_TYPE], name, key) not in _UNICAST or key.startswith("multicast-"):
            continue
        matched = _NUMBERED_QUEUE.fullmatch(key)
        label = answers.text([_QUEUE_ID], name, key) or (matched[1] if matched else key)
        found.setdefault(label, Queue(label, key))
    return [found[label] for label in sorted(found, key=_natural_order)[:MAX_QUEUES]]


def _queue_readings(
    queues: Iterable[tuple[Entity, Queue]],
    answers: OpenConfigAnswers,
    counters: Mapping[declare.Metric, Paths],
) -> Iterator[tuple[Column, Reading]]:
    for port, queue in queues:
        entity = Entity(entities.SWITCH_QUEUE, (*port.key, queue.label))
        for metric, paths in counters.items():
            yield (metric, entity), answers.count("queues", paths, port.key[1], queue.key)


def _lane_readings(
    ports: Sequence[Entity], answers: OpenConfigAnswers, lanes: Mapping[str, Sequence[Lane]]
) -> Iterator[tuple[Column, Reading]]:
    for port in ports:
        for lane in lanes.get(port.key[1], ()):
            entity = Entity(entities.SWITCH_LANE, (*port.key, str(lane.number)))
            for metric, paths in _LANE_POWERS.items():
                power = answers.decimal("optics", paths, lane.component, lane.key)
                yield (
                    (metric, entity),
                    power if isinstance(power, Absent) else base.as_nanowatts(float(power)),
                )
            bias = answers.decimal("optics", _LANE_BIAS, lane.component, lane.key)
            microamperes = bias if isinstance(bias, Absent) else int(bias * 1000)
            yield (catalog.TRANSCEIVER_BIAS, entity), microamperes


def _lanes(port: str, answers: OpenConfigAnswers) -> list[Lane]:
    """Return the lanes of a port. A transceiver with a channel 0 counts from 0."""
    leaves = answers.leaves
    # In OpenConfig, lanes belong to a component, which several ports may share.
    component = answers.text([_TRANSCEIVER], port) or port
    paths = (*chain.from_iterable(_LANE_POWERS.values()), *_LANE_BIAS)
    found = [
        number
        for number in _CHANNELS
        if any(leaves.get(path, component, str(number)) is not None for path in paths)
    ]
    of_port = leaves.get(_LANES_OF_PORT, port)
    named = {as_text(each) for each in of_port} if isinstance(of_port, tuple) else set()
    own = [number for number in found if str(number) in named] or found
    first = 0 if 0 in found else 1
    return [Lane(number - first + 1, component, str(number)) for number in own[:_MAX_LANES]]


def _neighbour_readings(
    ports: Sequence[Entity], answers: OpenConfigAnswers
) -> Iterator[tuple[Column, Reading]]:
    is_missing = not answers.leaves.has(_CHASSIS)
    for port in ports:
        name = port.key[1]
        keys = sorted({
            keys for path in _CHASSIS for keys in answers.leaves.more_keys(path, name)
        })  # fmt: skip
        facts = _neighbour(answers, name, keys[0]) if keys else {}
        if keys:
            others = (_neighbour(answers, name, key) for key in keys[1:])
            facts |= other_neighbours(others, facts["chassis"])
        presence: Reading = int(bool(keys))
        if is_missing or (not keys and "LLDP" in answers.failures):
            presence = answers.failures.get("LLDP", Absent.UNSUPPORTED)
        entity = Entity(entities.SWITCH_NEIGHBOUR, port.key, facts)
        yield (catalog.NEIGHBOUR_KNOWN, entity), presence


def _neighbour(answers: OpenConfigAnswers, port: str, keys: gnmi_updates.Keys) -> dict[str, str]:
    chassis, port_id = (answers.text(paths, port, *keys) for paths in (_CHASSIS, _PORT_ID))
    return {
        "system_name": answers.text(_SYSTEM_NAME, port, *keys),
        "chassis": _identifier(chassis, answers.text(_CHASSIS_KIND, port, *keys)),
        "neighbour_port": _identifier(port_id, answers.text(_PORT_KIND, port, *keys)),
        "port_description": answers.text(_DESCRIPTION, port, *keys),
    }
