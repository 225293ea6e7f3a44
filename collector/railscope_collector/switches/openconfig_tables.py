"""Answers of switches with OpenConfig, or the models of Nokia SR Linux: leaves in, readings out. Pure."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import ClassVar, NamedTuple, TypeAlias

from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Column, Entity
from railscope.reading import UNSIGNED_RANGE, Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_collector.switches import gnmi_updates, switch_facts as facts, switch_reading as base
from railscope_collector.switches.fact_readings import (
    EIGHT,
    KnownSwitch,
    PortPart,
    SwitchAnswers,
    as_identifier,
    clean_text,
    fact_readings,
    neighbour_reading,
)

MAX_QUEUES = 8
"""Queues of a port for unicast packets, one for each priority."""
Paths: TypeAlias = tuple[str, ...]
"""Paths of a text; the first one that the switch answers counts."""
_FACTS = facts.select(lambda fact: fact.openconfig, lambda fact: fact.srlinux)
_TRANSCEIVER, _LANES_OF_PORT = f"{facts.OC_STATE}transceiver", f"{facts.OC_STATE}physical-channel"
_TYPE: Paths = (f"{facts.OC_STATE}type",)
_PORT_FACTS: Mapping[str, Paths] = {
    "index": (f"{facts.OC_STATE}ifindex", f"{facts.SRL_PORT}ifindex"),
    "description": (f"{facts.OC_STATE}description", f"{facts.SRL_PORT}description"),
    "mac_address": (
        f"{facts.OC_ETHERNET}hw-mac-address",
        f"{facts.SRL_PORT}ethernet/hw-mac-address",
    ),
}
_QUEUE_ID, _QUEUE_TYPE = f"{facts.OC_QUEUE}id", f"{facts.OC_QUEUE}queue-type"
_CHASSIS, _CHASSIS_KIND, _PORT_ID, _PORT_KIND, _DESCRIPTION, _SYSTEM_NAME = (
    (f"{facts.OC_NEIGHBOUR}{name}", f"{facts.SRL_NEIGHBOUR}{name}")
    for name in ("chassis-id", "chassis-id-type", "port-id", "port-id-type", "port-description", "system-name")
)  # fmt: skip
_BOOT_TIME = "system/state/boot-time"
_HOST_NAME: Paths = ("system/state/hostname", "lldp/state/system-name")
_OWN_CHASSIS, _OWN_CHASSIS_KIND, _OWN_DESCRIPTION = (
    f"lldp/state/{name}" for name in ("chassis-id", "chassis-id-type", "system-description")
)
_NAMES = {metric: names for of_stream in _FACTS.values() for metric, names in of_stream.items()}


def _paths(*metrics: declare.Metric) -> frozenset[str]:
    """Return the paths of facts."""
    return frozenset(
        path for metric in metrics for paths in _NAMES.get(metric, ()) for path in paths
    )


TREE = gnmi_updates.build_tree({
    *_paths(*_NAMES), *chain.from_iterable(_PORT_FACTS.values()), *_TYPE, *_CHASSIS, *_CHASSIS_KIND, *_PORT_ID, *_PORT_KIND,
    *_DESCRIPTION, *_SYSTEM_NAME, *_HOST_NAME, _TRANSCEIVER, _LANES_OF_PORT, _QUEUE_ID, _QUEUE_TYPE, _BOOT_TIME, _OWN_CHASSIS,
    _OWN_CHASSIS_KIND, _OWN_DESCRIPTION,
})  # fmt: skip
"""All paths that are kept."""

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
_GROUPS_OF_FACTS: Mapping[declare.Metric, Sequence[str]] = {
    metric: [
        next(group.name for group in (*GROUPS, *SRL_GROUPS) if is_requested(path, group))
        for path in chain.from_iterable(names)
    ]
    for metric, names in _NAMES.items()
}
"""Groups of the paths of each fact."""
_FACTS_BY_NAME: Mapping[str, frozenset[str]] = {
    "Ethernet counters": _paths(catalog.SPEED, catalog.PAUSE_SENT),
    "FEC": _paths(catalog.FEC_CORRECTED),
    "PFC": _paths(catalog.PFC_SENT),
    "PFC watchdog": _paths(*_FACTS[base.WATCHDOG]),
    "system": frozenset((_BOOT_TIME, *_HOST_NAME)),
    "queues": _paths(catalog.QUEUE_PACKETS),
    "ECN marks": _paths(catalog.QUEUE_MARKED_PACKETS),
    "optics": _paths(catalog.TRANSCEIVER_RECEIVE_POWER),
    "LLDP": frozenset(_CHASSIS),
}
"""Facts that a switch may not have, with their paths."""
_GROUP_OF_NAME = {"FEC": "Ethernet counters", "PFC watchdog": "PFC", "ECN marks": "queues"}


class Lane(NamedTuple):
    """Keys of a lane in the paths of a transceiver, or of a port."""

    component: str
    key: str


@dataclass(slots=True)
class SwitchFacts(KnownSwitch):
    """Findings of earlier polls, with the parts of the ports."""

    queues: dict[str, list[PortPart]] = field(default_factory=dict)
    """Queues of each port."""
    lanes: dict[str, list[PortPart]] = field(default_factory=dict)
    """Lanes of the transceiver of each port."""


@dataclass(frozen=True, slots=True)
class OpenConfigAnswers(SwitchAnswers[str, str]):
    """Leaves of one poll, and the groups that were due."""

    leaves: gnmi_updates.Leaves
    due: Collection[str]
    """Names of groups that were requested, or that the switch does not have."""
    failures: Mapping[str, Absent] = field(default_factory=dict)
    """Reasons of the groups whose request failed; a leaf that arrived before counts."""
    known: SwitchFacts = field(default_factory=SwitchFacts)

    units: ClassVar = facts.UNITS[facts.OPENCONFIG]

    def read(self, metric: declare.Metric, name: str, port: str, part: object) -> Reading | Decimal:
        """Return a number at a path; the one of a port at a path by priority is the sum of all of them."""
        leaf = self.leaves.get(name, *_keys(name, port, part))
        if leaf is None:
            is_by_priority = part is None and name.count("[") > 1
            numbers = base.PRIORITIES if is_by_priority else ()
            parts = [self.read(metric, name, port, number) for number in numbers]
            return base.sum_counters(parts) if parts else Absent.UNSUPPORTED
        convert = _CONVERSIONS.get(metric, as_count)
        return as_decimal(leaf) if metric in self.units else convert(leaf)

    def absence(self, metric: declare.Metric) -> Absent:
        """Return the first reason of the groups with a path of a fact: any of them may have it."""
        reasons = (self.failures.get(group) for group in _GROUPS_OF_FACTS[metric])
        return next((each for each in reasons if each is not None), Absent.UNSUPPORTED)

    def parts(self, stream: str, kind: declare.EntityKind, port: str) -> Iterable[PortPart]:
        """Return the queues and lanes that the switch has; the watchdog counts by priority."""
        if kind is entities.SWITCH_LANE:
            return self.known.lanes.get(port, ())
        if kind is entities.SWITCH_QUEUE and stream != base.WATCHDOG:
            return self.known.queues.get(port, ())
        return EIGHT

    def text(self, paths: Iterable[str], name: str = "", *more: str) -> str:
        """Return a text; empty if there is none."""
        for path in paths:
            leaf = self.leaves.get(path, name, *more)
            if leaf is not None:
                return as_text(leaf)
        return ""


def _keys(path: str, port: str, part: object) -> tuple[str, ...]:
    if part is None:
        return (port,)
    if isinstance(part, Lane):
        return part.component, part.key
    return (port, str(part), "UNICAST") if "[queue-type]" in path else (port, str(part))


# Values ------------------------------------------------------------------------------------------


def as_count(leaf: object) -> Reading:
    """Return a leaf as an unsigned number: JSON_IETF has 64-bit numbers as text, some switches as floating point."""
    if isinstance(leaf, bool):
        return Absent.ERROR
    if isinstance(leaf, int | str):
        return base.as_number(leaf)
    number = as_decimal(leaf)
    if isinstance(number, Absent):
        return number
    return base.as_number(int(number)) if number == number.to_integral_value() else Absent.ERROR


def as_decimal(leaf: object) -> Decimal | Absent:
    """Return a leaf as a number with a fraction; also one of 4 or 8 bytes, as Junos sends it, in base64 in JSON_IETF."""
    if isinstance(leaf, Absent):
        return leaf
    if isinstance(leaf, str) and not leaf.strip():
        return Absent.UNSUPPORTED
    try:
        if isinstance(leaf, str) and not _DECIMAL_TEXT.fullmatch(leaf):
            leaf = base64.b64decode(leaf, validate=True)
        if isinstance(leaf, bytes):
            if len(leaf) not in _FLOAT_FORMATS:
                return Absent.ERROR
            (leaf,) = struct.unpack(_FLOAT_FORMATS[len(leaf)], leaf)
        number = Decimal(str(leaf))
    except (ValueError, InvalidOperation):  # of base64, also for text that is not ASCII
        return Absent.ERROR
    return number if number.is_finite() and abs(number) < UNSIGNED_RANGE else Absent.ERROR


def as_text(leaf: object) -> str:
    """Return a leaf as printable text of limited length; empty if it is none."""
    is_text = isinstance(leaf, str | int) and not isinstance(leaf, bool)
    return clean_text(str(leaf)) if is_text else ""


def _state(leaf: object) -> Reading:
    return _STATUSES.get(gnmi_updates.local_name(as_text(leaf)).upper(), Absent.ERROR)


def _speed(leaf: object) -> Reading:
    text = gnmi_updates.local_name(as_text(leaf))
    if not text or text == "SPEED_UNKNOWN":
        return Absent.UNSUPPORTED
    matched = _PORT_SPEED.fullmatch(text)
    return int(matched[1]) * _MEGABITS[matched[2]] if matched else Absent.ERROR


_CONVERSIONS: Mapping[declare.Metric, Callable[[object], Reading]] = {
    catalog.PORT_UP: _state,
    catalog.PORT_ENABLED: _state,
    catalog.SPEED: _speed,
}


def _identifier(answers: OpenConfigAnswers, paths: Paths, kinds: Paths, *keys: str) -> str:
    """Return the identifier of a chassis or port."""
    is_mac = gnmi_updates.local_name(answers.text(kinds, *keys)) == _MAC
    return as_identifier(answers.text(paths, *keys), is_mac=is_mac)


# Readings ----------------------------------------------------------------------------------------


def make_reading(switch: str, answers: OpenConfigAnswers, known: SwitchFacts) -> base.SwitchReading:
    """Return the readings of a switch, and update what is known. Raises SwitchReadError if it has no ports."""
    _note(answers, known)
    found = sorted(_port_names(answers), key=_natural_order)
    if not found:
        message = "no Ethernet ports: expected interfaces with a state"
        raise base.SwitchReadError(message)
    ports = {name: _port(switch, name, answers) for name in found[: base.MAX_PORTS]}
    streams = [base.PORTS, base.PRIORITY, base.WATCHDOG]
    if "queues" in answers.due:
        streams += [base.QUEUES, base.QUEUE_MARKS, base.WATERMARKS]
        if "queues" not in answers.failures:
            known.queues = {port: _queues(port, answers) for port in ports}
    if "optics" in answers.due:
        streams.append(base.LANES)
        if "optics" not in answers.failures:
            known.lanes = {port: _lanes(port, answers) for port in ports}
    readings = fact_readings(
        {stream: _FACTS[stream] for stream in streams}, ports, replace(answers, known=known)
    )
    uptime_ns = _uptime_ns(answers)
    uptime = Absent.UNSUPPORTED if uptime_ns is None else uptime_ns // _UPTIME_STEP_NS
    readings[base.SWITCH] = known.readings(switch, len(found), uptime)
    if "LLDP" in answers.due:
        readings[base.NEIGHBOURS] = list(_neighbour_readings(ports.values(), answers))
    return base.SwitchReading(readings, uptime_ns, dialect="openconfig")


def _note(answers: OpenConfigAnswers, known: SwitchFacts) -> None:
    for name, paths in _FACTS_BY_NAME.items():
        group = _GROUP_OF_NAME.get(name, name)
        # A failure of this poll changes nothing.
        if group in answers.due and group not in answers.failures:
            known.missing[name] = not answers.leaves.has(paths)
    if "LLDP" in answers.due or not known.identity:
        known.identity = {
            "system_name": answers.text(_HOST_NAME),
            "description": answers.text([_OWN_DESCRIPTION]),
            "chassis": _identifier(answers, (_OWN_CHASSIS,), (_OWN_CHASSIS_KIND,)),
        }


def _port_names(answers: OpenConfigAnswers) -> list[str]:
    """Return the names of the Ethernet ports: interfaces of that type, or those with a speed where none has a type."""
    leaves = answers.leaves
    names = leaves.names(_PORT_PATHS)
    if leaves.has(_TYPE):
        types = {name: gnmi_updates.local_name(answers.text(_TYPE, name)) for name in names}
        return [name for name, kind in types.items() if kind in _ETHERNET_TYPES]
    with_speed = frozenset(leaves.names(_paths(catalog.SPEED)))
    return [name for name in names if name in with_speed] if with_speed else names


def _natural_order(name: str) -> list[tuple[bool, int, str]]:
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in _DIGITS.split(name)
    ]


def _port(switch: str, name: str, answers: OpenConfigAnswers) -> Entity:
    """Return a port. LLDP of these systems announces the name of the interface as port ID."""
    texts = {fact: answers.text(paths, name) for fact, paths in _PORT_FACTS.items()}
    texts |= {"alias": "", "mac_address": texts["mac_address"].lower(), "lldp_port_id": name}
    return Entity(entities.SWITCH_PORT, (switch, name), texts)


def _uptime_ns(answers: OpenConfigAnswers) -> int | None:
    """Return the time since the switch started, both times by its own clock."""
    started = as_count(answers.leaves.get(_BOOT_TIME))
    if isinstance(started, Absent):
        return None
    uptime_ns = answers.leaves.newest_ns - started
    return uptime_ns if 0 <= uptime_ns < _MAX_UPTIME_NS else None


def _queues(port: str, answers: OpenConfigAnswers) -> list[PortPart]:
    """Return the queues of unicast packets of a port by their number, or by their name if the switch states none."""
    paths = _paths(*_FACTS[base.QUEUES], *_FACTS[base.QUEUE_MARKS], *_FACTS[base.WATERMARKS])
    keys = sorted({keys[0] for path in paths for keys in answers.leaves.more_keys(path, port)})
    found: dict[str, PortPart] = {}
    for key in keys:
        if answers.text([_QUEUE_TYPE], port, key) not in _UNICAST or key.startswith("multicast-"):
            continue
        matched = _NUMBERED_QUEUE.fullmatch(key)
        label = answers.text([_QUEUE_ID], port, key) or (matched[1] if matched else key)
        found.setdefault(label, PortPart(label, key))
    return [found[label] for label in sorted(found, key=_natural_order)[:MAX_QUEUES]]


def _lanes(port: str, answers: OpenConfigAnswers) -> list[PortPart]:
    """Return the lanes of a port from 1. A transceiver with a channel 0 counts from 0."""
    leaves = answers.leaves
    # In OpenConfig, lanes belong to a component, which several ports may share.
    component = answers.text([_TRANSCEIVER], port) or port
    paths = _paths(*_FACTS[base.LANES])
    found = [
        number
        for number in _CHANNELS
        if any(leaves.get(path, component, str(number)) is not None for path in paths)
    ]
    of_port = leaves.get(_LANES_OF_PORT, port)
    named = {as_text(each) for each in of_port} if isinstance(of_port, tuple) else set()
    own = [number for number in found if str(number) in named] or found
    first = 0 if 0 in found else 1
    return [
        PortPart(str(number - first + 1), Lane(component, str(number)))
        for number in own[:_MAX_LANES]
    ]


def _neighbour_readings(
    ports: Iterable[Entity], answers: OpenConfigAnswers
) -> Iterator[tuple[Column, Reading]]:
    is_missing = not answers.leaves.has(_CHASSIS)
    for port in ports:
        name = port.key[1]
        keys = sorted({
            keys for path in _CHASSIS for keys in answers.leaves.more_keys(path, name)
        })  # fmt: skip
        absence = None
        if is_missing or (not keys and "LLDP" in answers.failures):
            absence = answers.failures.get("LLDP", Absent.UNSUPPORTED)
        yield neighbour_reading(port, [_neighbour(answers, name, each) for each in keys], absence)


def _neighbour(answers: OpenConfigAnswers, port: str, keys: gnmi_updates.Keys) -> dict[str, str]:
    return {
        "system_name": answers.text(_SYSTEM_NAME, port, *keys),
        "chassis": _identifier(answers, _CHASSIS, _CHASSIS_KIND, port, *keys),
        "neighbour_port": _identifier(answers, _PORT_ID, _PORT_KIND, port, *keys),
        "port_description": answers.text(_DESCRIPTION, port, *keys),
    }
