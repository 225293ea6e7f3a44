"""Tables of SNMP: objects of standard and vendor MIBs, and the readings that their rows become.

Pure: rows in, readings out. What a switch does not have is unsupported. A table that could not be read in a poll, while
others could, has the reason of that failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Entity
from railscope.reading import UNSIGNED_RANGE, Absent, Reading, known_speed
from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import printable
from railscope_collector.switches import end_names, switch_reading as base
from railscope_collector.switches.link_ends import LIST_SEPARATOR

SnmpValue: TypeAlias = object
"""Value of an object as the library returns it: an integer, bytes, or the text of an OID or address."""
Index: TypeAlias = tuple[int, ...]
Rows: TypeAlias = dict[Index, SnmpValue]
"""Values of one column of a table, by the index of their row."""

_IF, _IFX = "1.3.6.1.2.1.2.2.1.", "1.3.6.1.2.1.31.1.1.1."
IF_COLUMNS: Mapping[str, str] = {
    "ifDescr": f"{_IF}2", "ifType": f"{_IF}3", "ifPhysAddress": f"{_IF}6", "ifAdminStatus": f"{_IF}7",
    "ifOperStatus": f"{_IF}8", "ifInDiscards": f"{_IF}13", "ifInErrors": f"{_IF}14", "ifOutDiscards": f"{_IF}19",
    "ifOutErrors": f"{_IF}20", "ifName": f"{_IFX}1", "ifHCInOctets": f"{_IFX}6", "ifHCInUcastPkts": f"{_IFX}7",
    "ifHCInMulticastPkts": f"{_IFX}8", "ifHCInBroadcastPkts": f"{_IFX}9", "ifHCOutOctets": f"{_IFX}10",
    "ifHCOutUcastPkts": f"{_IFX}11", "ifHCOutMulticastPkts": f"{_IFX}12", "ifHCOutBroadcastPkts": f"{_IFX}13",
    "ifHighSpeed": f"{_IFX}15", "ifAlias": f"{_IFX}18",
}  # fmt: skip
"""Columns of ifTable and ifXTable (RFC 2863), by interface."""
_PFC, _CISCO_PFC, _MELLANOX = (
    "1.3.111.2.802.1.1.21.1.1.1.",
    "1.3.6.1.4.1.9.9.813.1.2.1.",
    "1.3.6.1.4.1.33049.15.1.1.1.",
)
PFC_COLUMNS: Mapping[str, str] = {"sent": f"{_PFC}2", "received": f"{_PFC}3"}
"""ieee8021PfcIfTable, by interface: requests are sent, indications received."""
PRIORITY_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "standard": {},
    "cisco": {"sent": f"{_CISCO_PFC}2", "received": f"{_CISCO_PFC}3"},
    "sonic": {"sent": f"{_CISCO_PFC}2", "received": f"{_CISCO_PFC}3"},
    "onyx": {"sent": f"{_MELLANOX}15", "received": f"{_MELLANOX}8"},
}
"""PFC by interface and priority, from the table of each manufacturer."""
_CISCO_QUEUES = "1.3.6.1.4.1.9.9.580.1.5.5.1.4"
QUEUE_COLUMNS: Mapping[str, str] = {"cisco": _CISCO_QUEUES, "sonic": _CISCO_QUEUES}
"""csqIfQosGroupStats, by interface, direction, queue and statistic."""
_LLDP = "1.0.8802.1.1.2.1."
NEIGHBOUR_COLUMNS: Mapping[str, str] = {
    "chassis_kind": f"{_LLDP}4.1.1.4", "chassis": f"{_LLDP}4.1.1.5", "port_kind": f"{_LLDP}4.1.1.6",
    "port": f"{_LLDP}4.1.1.7", "port_description": f"{_LLDP}4.1.1.8", "system_name": f"{_LLDP}4.1.1.9",
    "local_port": f"{_LLDP}3.7.1.3", "local_description": f"{_LLDP}3.7.1.4",
}  # fmt: skip
"""lldpRemTable, by time, local port and number; lldpLocPortTable, by local port."""
SYS_UPTIME = "1.3.6.1.2.1.1.3.0"
SCALARS: Mapping[str, str] = {
    "sysDescr": "1.3.6.1.2.1.1.1.0", "sysUpTime": SYS_UPTIME, "sysName": "1.3.6.1.2.1.1.5.0",
    "chassis_kind": f"{_LLDP}3.1.0", "chassis": f"{_LLDP}3.2.0",
}  # fmt: skip
TICK_NS = SECOND_NS // 100
UPTIME_RANGE_NS = (1 << 32) * TICK_NS
"""Range of TimeTicks: 497 days."""

_ETHERNET = frozenset({6, 62, 69, 117})
"""ethernetCsmacd, and the former types of fast and gigabit Ethernet (IANAifType-MIB)."""
_CHASSIS_MAC, _PORT_MAC, _MAC_BYTES = 4, 3, 6
_MAX_OTHERS = 7
"""Maximum of further neighbours of a port; behind a device that forwards LLDP there are a few."""
_EGRESS = 2
_NEIGHBOUR_INDEX = 3
"""Time of the last change, local port, number."""
_IS_UP = {1: 1, 2: 0, 3: 0, 5: 0, 6: 0, 7: 0}
"""Statuses of an interface (RFC 2863) as 1 for up and 0 for down; 4 is unknown."""
QUEUE_STATISTICS: Mapping[int, declare.Metric] = {
    1: catalog.QUEUE_PACKETS, 2: catalog.QUEUE_BYTES, 5: catalog.QUEUE_DROPPED_PACKETS, 6: catalog.QUEUE_DROPPED_BYTES,
}  # fmt: skip
"""Statistics of unicast packets."""
_COUNTERS: Mapping[declare.Metric, str] = {
    catalog.RECEIVED: "ifHCInOctets", catalog.SENT: "ifHCOutOctets", catalog.RECEIVED_ERRORS: "ifInErrors",
    catalog.SENT_ERRORS: "ifOutErrors", catalog.RECEIVED_DISCARDS: "ifInDiscards", catalog.SENT_DISCARDS: "ifOutDiscards",
}  # fmt: skip
_KINDS = ("Ucast", "Multicast", "Broadcast")
_NO_ROWS: Rows = {}


@dataclass(slots=True)
class TableRows:
    """Columns of a table that were read; or the reason why they could not be."""

    columns: Mapping[str, Rows] = field(default_factory=dict)
    failure: Absent | None = None

    def column(self, name: str) -> Rows:
        """Return the rows of a column."""
        return self.columns.get(name, _NO_ROWS)

    @property
    def is_missing(self) -> bool:
        """True if the switch does not have the table."""
        return self.failure is None and not any(self.columns.values())

    def number(self, name: str, index: Index) -> Reading:
        """Return a number; unsupported if the switch does not have it, an error if it is none."""
        if self.failure:
            return self.failure
        return as_number(self.column(name).get(index))

    def text(self, name: str, index: Index) -> str:
        """Return a text; empty if there is none."""
        return as_text(self.column(name).get(index, b""))


def as_number(value: SnmpValue | None) -> Reading:
    """Return a value as a number of at most 64 bits."""
    if value is None:
        return Absent.UNSUPPORTED
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < UNSIGNED_RANGE else Absent.ERROR  # type: ignore[return-value, operator]  # checked


def as_text(value: SnmpValue) -> str:
    """Return a value as printable text of limited length."""
    # A text that is not UTF-8 must not end the poll: its bytes are shown escaped.
    text = value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
    return base.cut_text(printable(text.rstrip("\0")))


def as_identifier(value: SnmpValue, *, is_mac: bool) -> str:
    """Return the identifier of a chassis or port; a MAC address as aa:bb:cc:dd:ee:ff."""
    if is_mac and isinstance(value, bytes) and len(value) == _MAC_BYTES:
        return value.hex(":")
    return as_text(value)


@dataclass(slots=True)
class SwitchTables:
    """All rows of one poll; a table that is None was not due."""

    scalars: Mapping[str, SnmpValue]
    interfaces: TableRows
    pfc: TableRows = field(default_factory=TableRows)
    priorities: TableRows = field(default_factory=TableRows)
    queues: TableRows = field(default_factory=TableRows)
    neighbours: TableRows | None = None


def make_reading(switch: str, tables: SwitchTables) -> base.SwitchReading:
    """Return the readings of a switch. Raises SwitchReadError if it has no Ethernet ports."""
    found = dict(_ports(switch, tables.interfaces))
    ports = dict(list(found.items())[: base.MAX_PORTS])
    if not ports:
        message = (
            "no Ethernet ports: expected rows of ifTable; fix: permit IF-MIB for this credential"
        )
        raise base.SwitchReadError(message)
    streams = {
        base.SWITCH: _switch(switch, tables, len(found)),
        base.PORTS: _port_readings(ports, tables),
        base.PRIORITY: _priority_readings(ports, tables.priorities),
        base.QUEUES: _queue_readings(ports, tables.queues),
    }
    if tables.neighbours is not None:
        streams[base.NEIGHBOURS] = _neighbour_readings(ports, tables.neighbours)
    ticks = as_number(tables.scalars.get("sysUpTime"))
    uptime_ns = None if isinstance(ticks, Absent) else ticks * TICK_NS
    return base.SwitchReading(streams, uptime_ns, UPTIME_RANGE_NS)


def _switch(switch: str, tables: SwitchTables, port_count: int) -> base.StreamReadings:
    missing = {
        "IEEE8021-PFC-MIB": tables.pfc,
        "PFC by priority": tables.priorities,
        "queues": tables.queues,
        "LLDP-MIB": tables.neighbours or TableRows({"": {(): 0}}),
    }
    scalars = tables.scalars
    is_mac = scalars.get("chassis_kind") == _CHASSIS_MAC
    facts = {
        "system_name": as_text(scalars.get("sysName", b"")),
        "description": as_text(scalars.get("sysDescr", b"")),
        "chassis": as_identifier(scalars.get("chassis", b""), is_mac=is_mac),
        "missing_tables": ", ".join(name for name, table in missing.items() if table.is_missing),
    }
    entity = Entity(entities.SWITCH, (switch,), facts)
    uptime = as_number(scalars.get("sysUpTime"))
    return [((catalog.UPTIME, entity), uptime), ((catalog.PORTS, entity), port_count)]


def _ports(switch: str, interfaces: TableRows) -> Iterator[tuple[Index, Entity]]:
    """Yield the Ethernet ports by index; their names are unique. Raises SwitchReadError."""
    types = interfaces.column("ifType")
    indexes = [index for index, kind in types.items() if kind in _ETHERNET and len(index) == 1]
    _check_last_row("ifType", types, interfaces.column("ifDescr"))
    _check_last_row("ifName", interfaces.column("ifName"), indexes)
    names = {i: interfaces.text("ifName", i) or interfaces.text("ifDescr", i) for i in indexes}
    counts, used = Counter(names.values()), set[str]()
    for index, name in names.items():
        facts = {
            "index": str(index[0]),
            "alias": interfaces.text("ifAlias", index),
            "description": interfaces.text("ifDescr", index),
            "mac_address": as_identifier(
                interfaces.column("ifPhysAddress").get(index, b""), is_mac=True
            ),
        }
        unique = name if name and counts[name] == 1 else f"{name}#{index[0]}"
        while unique in used:
            unique += f"#{index[0]}"
        used.add(unique)
        yield index, Entity(entities.SWITCH_PORT, (switch, unique), facts)


def _check_last_row(name: str, rows: Rows, expected: Collection[Index]) -> None:
    """Raise SwitchReadError if a column ends early: the library returns the rows before an error of the switch."""
    if rows and expected and max(rows) < max(expected):
        message = f"{name} ends early: expected a row of each interface"
        raise base.SwitchReadError(message)


def _port_readings(ports: Mapping[Index, Entity], tables: SwitchTables) -> base.StreamReadings:
    interfaces = tables.interfaces
    part: base.StreamReadings = []
    for index, port in ports.items():
        part += [
            ((catalog.PORT_UP, port), _status(interfaces.number("ifOperStatus", index))),
            ((catalog.PORT_ENABLED, port), _status(interfaces.number("ifAdminStatus", index))),
            ((catalog.SPEED, port), known_speed(interfaces.number("ifHighSpeed", index))),
            ((catalog.RECEIVED_PACKETS, port), _packets(interfaces, "ifHCIn", index)),
            ((catalog.SENT_PACKETS, port), _packets(interfaces, "ifHCOut", index)),
            ((catalog.ALL_PFC_RECEIVED, port), tables.pfc.number("received", index)),
            ((catalog.ALL_PFC_SENT, port), tables.pfc.number("sent", index)),
        ]
        part += [
            ((metric, port), interfaces.number(name, index)) for metric, name in _COUNTERS.items()
        ]
    return part


def _status(value: Reading) -> Reading:
    if isinstance(value, Absent):
        return value
    return _IS_UP.get(value, Absent.ERROR)


def _packets(interfaces: TableRows, direction: str, index: Index) -> Reading:
    """Return the sum of the packets of all kinds, which counts as the parts do, in 64 bits."""
    total = 0
    for kind in _KINDS:
        value = interfaces.number(f"{direction}{kind}Pkts", index)
        if isinstance(value, Absent):
            return value
        total += value
    return total % UNSIGNED_RANGE


def _priority_readings(ports: Mapping[Index, Entity], rows: TableRows) -> base.StreamReadings:
    part: base.StreamReadings = []
    for index, port in ports.items():
        for priority in base.PRIORITIES:
            entity = Entity(entities.SWITCH_PRIORITY, (*port.key, str(priority)))
            row = (*index, priority)
            part += [
                ((catalog.PFC_RECEIVED, entity), rows.number("received", row)),
                ((catalog.PFC_SENT, entity), rows.number("sent", row)),
            ]
    return part


def _queue_readings(ports: Mapping[Index, Entity], rows: TableRows) -> base.StreamReadings:
    """Return readings of the eight queues of each port; the MIB counts them from 1."""
    part: base.StreamReadings = []
    for index, port in ports.items():
        for queue in base.PRIORITIES:
            entity = Entity(entities.SWITCH_QUEUE, (*port.key, str(queue)))
            part += [
                ((metric, entity), rows.number("queues", (*index, _EGRESS, queue + 1, statistic)))
                for statistic, metric in QUEUE_STATISTICS.items()
            ]
    return part


# Neighbours --------------------------------------------------------------------------------------


def _neighbour_readings(ports: Mapping[Index, Entity], rows: TableRows) -> base.StreamReadings:
    part: base.StreamReadings = []
    received: dict[tuple[str, ...], list[Index]] = {}
    local_ports = _local_ports(ports, rows)
    for index in rows.column("chassis"):
        if len(index) == _NEIGHBOUR_INDEX and (port := local_ports.get(index[1])):
            received.setdefault(port.key, []).append(index)
    for port in ports.values():
        # The first part of an index is the time of the announcement (LLDP-MIB lldpRemTimeMark).
        newest, *others = sorted(received.get(port.key, ()), reverse=True) or [()]
        facts = _neighbour(rows, newest) if newest else {}
        if others:
            facts |= _other_neighbours(rows, others[:_MAX_OTHERS], facts["chassis"])
        presence: Reading = int(bool(newest))
        if rows.failure or rows.is_missing:
            presence = rows.failure or Absent.UNSUPPORTED
        entity = Entity(entities.SWITCH_NEIGHBOUR, port.key, facts)
        part.append(((catalog.NEIGHBOUR_KNOWN, entity), presence))
    return part


def _neighbour(rows: TableRows, index: Index) -> dict[str, str]:
    is_chassis_mac = rows.column("chassis_kind").get(index) == _CHASSIS_MAC
    is_port_mac = rows.column("port_kind").get(index) == _PORT_MAC
    return {
        "system_name": rows.text("system_name", index),
        "chassis": as_identifier(rows.column("chassis")[index], is_mac=is_chassis_mac),
        "neighbour_port": as_identifier(rows.column("port").get(index, b""), is_mac=is_port_mac),
        "port_description": rows.text("port_description", index),
    }


def _other_neighbours(rows: TableRows, others: Sequence[Index], newest: str) -> dict[str, str]:
    """Return names and chassis of other neighbours that a port still receives, in the same order.

    An older row with the chassis of the newest one is an earlier announcement of it.
    """
    found = [_neighbour(rows, index) for index in others]
    found = [each for each in found if each["chassis"] != newest]
    return {
        "other_system_names": LIST_SEPARATOR.join(each["system_name"] for each in found),
        "other_chassis": LIST_SEPARATOR.join(each["chassis"] for each in found),
    }


def _local_ports(ports: Mapping[Index, Entity], rows: TableRows) -> dict[int, Entity]:
    """Return the ports by their number in LLDP, which need not be the index of the interface.

    A number belongs to the port that its local port ID or description names; else to the interface whose index is that
    port ID, or else the number itself, unless another number names that port, or has another index than its port.
    """
    by_name = {port.key[1]: port for port in ports.values()}
    named = end_names.DevicePorts(
        (port.key[0] for port in ports.values()),
        (
            end_names.NamedPort(
                name,
                (name, *(port.facts[text] for text in ("description", "mac_address", "alias"))),
            )
            for name, port in by_name.items()
        ),
    )
    found: dict[int, Entity] = {}
    ids = rows.column("local_port")
    for number in {*ids, *rows.column("local_description")}:
        port_id = ids.get(number, b"")
        description = rows.text("local_description", number)
        is_mac = isinstance(port_id, bytes) and len(port_id) == _MAC_BYTES  # or a name of six bytes
        name = is_mac and named.find(as_identifier(port_id, is_mac=True))
        name = name or named.find(as_text(port_id), description)
        if name and len(number) == 1:
            found[number[0]] = by_name[name]
    taken = {port.key for port in found.values()}
    free = {index[0]: port for index, port in ports.items() if port.key not in taken}
    are_indexes = all(port.facts["index"] == str(number) for number, port in found.items())
    indexes = {str(index): port for index, port in free.items()}
    by_index = {
        number[0]: indexes[text]
        for number in ids
        if len(number) == 1 and (text := rows.text("local_port", number)) in indexes
    }
    return (free if are_indexes else {}) | by_index | found
