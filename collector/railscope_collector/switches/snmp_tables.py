"""Tables of SNMP as readings.

Pure: rows in, readings out. What a switch does not have is unsupported. A table that could not be read in a poll, while
others could, has the reason of that failure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from railscope.catalog import entities, switches as catalog
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading, known_speed
from railscope.timestamps import SECOND_NS
from railscope_collector.switches import snmp_columns as columns, switch_reading as base
from railscope_collector.switches.snmp_columns import (
    NEIGHBOUR_COLUMNS,  # noqa: F401 - names of the columns of `SwitchTables.neighbours`
)
from railscope_collector.switches.snmp_neighbours import CHASSIS_MAC, neighbour_readings
from railscope_collector.switches.snmp_values import (
    LANES,
    Index,
    Rows,
    SnmpValue,
    TableRows,
    as_identifier,
    as_number,
    as_text,
)

TICK_NS = SECOND_NS // 100
UPTIME_RANGE_NS = (1 << 32) * TICK_NS
"""Range of TimeTicks: 497 days."""
_ETHERNET = frozenset({6, 62, 69, 117})
"""ethernetCsmacd, and the former types of fast and gigabit Ethernet (IANAifType-MIB)."""
_IS_UP = {1: 1, 2: 0, 3: 0, 5: 0, 6: 0, 7: 0}
"""Statuses of an interface (RFC 2863) as 1 for up and 0 for down; 4 is unknown."""
_WHOLE = "0"
"""Lane that stands for the whole transceiver."""
_NUMBERED = 2
"""Numbers in the index of a row: interface, and priority, queue or lane."""


@dataclass(slots=True)
class SwitchTables:
    """All rows of one poll; a table that is None was not due."""

    scalars: Mapping[str, SnmpValue]
    interfaces: TableRows
    pfc: TableRows = field(default_factory=TableRows)
    vendor: Mapping[columns.VendorTable, TableRows | None] = field(default_factory=dict)
    neighbours: TableRows | None = None
    missing: dict[str, bool] = field(default_factory=dict)
    """Tables that the switch does not have (true) or has (false), as of this and earlier polls."""

    @property
    def chassis(self) -> str:
        """Identifier of the switch in LLDP."""
        is_mac = self.scalars.get("chassis_kind") == CHASSIS_MAC
        return as_identifier(self.scalars.get("chassis", b""), is_mac=is_mac)


def make_reading(switch: str, tables: SwitchTables, dialect: str = "") -> base.SwitchReading:
    """Return the readings of a switch. Raises SwitchReadError if it has no Ethernet ports."""
    found = dict(_ports(switch, tables.interfaces))
    ports = dict(list(found.items())[: base.MAX_PORTS])
    if not ports:
        message = (
            "no Ethernet ports: expected rows of ifTable; fix: permit IF-MIB for this credential"
        )
        raise base.SwitchReadError(message)
    _note_missing(tables)
    streams = {
        base.SWITCH: _switch(switch, tables, len(found)),
        base.PORTS: _port_readings(ports, tables),
    }
    for table, rows in tables.vendor.items():
        if rows is not None:
            streams.setdefault(table.stream, []).extend(_vendor_readings(ports, table, rows))
    _add_defaults(streams, ports)
    if tables.neighbours is not None:
        streams[base.NEIGHBOURS] = neighbour_readings(ports, tables.neighbours, tables.chassis)
    ticks = as_number(tables.scalars.get("sysUpTime"))
    uptime_ns = None if isinstance(ticks, Absent) else ticks * TICK_NS
    return base.SwitchReading(streams, uptime_ns, UPTIME_RANGE_NS, dialect)


def _note_missing(tables: SwitchTables) -> None:
    """Update the tables that the switch does not have; a failure of this poll changes nothing."""
    of_vendor = {table.name: rows for table, rows in tables.vendor.items()}
    found: dict[str, TableRows | None] = {"IEEE8021-PFC-MIB": tables.pfc}
    for table in columns.DEFAULT_TABLES:
        found[table.name] = of_vendor.pop(table.name, TableRows())
    for name, rows in (found | of_vendor | {"LLDP-MIB": tables.neighbours}).items():
        tables.missing.setdefault(name, False)
        if rows is not None and not rows.failure:
            tables.missing[name] = rows.is_missing


def _switch(switch: str, tables: SwitchTables, port_count: int) -> base.StreamReadings:
    scalars = tables.scalars
    facts = {
        "system_name": as_text(scalars.get("sysName", b"")),
        "description": as_text(scalars.get("sysDescr", b"")),
        "chassis": tables.chassis,
        "missing_tables": ", ".join(name for name, missing in tables.missing.items() if missing),
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
        alias, description = (interfaces.text(text, index) for text in ("ifAlias", "ifDescr"))
        # Comware's text of a port to which the operator has given none.
        is_default = alias in {f"{text} Interface" for text in (name, description)}
        facts = {
            "index": str(index[0]),
            "alias": "" if is_default else alias,
            "description": description,
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
            ((metric, port), interfaces.number(name, index))
            for metric, name in columns.COUNTERS.items()
        ]
    return part


def _status(value: Reading) -> Reading:
    if isinstance(value, Absent):
        return value
    return _IS_UP.get(value, Absent.ERROR)


def _packets(interfaces: TableRows, direction: str, index: Index) -> Reading:
    """Return the sum of the packets of all kinds."""
    return base.sum_counters(
        interfaces.number(f"{direction}{kind}Pkts", index) for kind in columns.PACKET_KINDS
    )


# Tables of manufacturers -------------------------------------------------------------------------


def _vendor_readings(
    ports: Mapping[Index, Entity], table: columns.VendorTable, rows: TableRows
) -> Iterator[tuple[Column, Reading]]:
    if table.about is entities.SWITCH_PORT:
        for index, port in ports.items():
            # The facts of a port are those of one stream: each stream with them has a series of the info metric.
            entity = port if table.stream == base.PORTS else Entity(table.about, port.key)
            yield from _readings(entity, table.facts, rows, index)
    elif table.about is entities.SWITCH_LANE:
        yield from _lane_readings(ports, table, rows)
    else:
        yield from _numbered_readings(ports, table, rows)


def _readings(
    entity: Entity, facts: Iterable[columns.Fact], rows: TableRows, index: Index
) -> Iterator[tuple[Column, Reading]]:
    for fact in facts:
        value = rows.column(fact.column).get((*index, *fact.after))
        yield (fact.metric, entity), rows.failure or fact.convert(value)


def _numbered_readings(
    ports: Mapping[Index, Entity], table: columns.VendorTable, rows: TableRows
) -> Iterator[tuple[Column, Reading]]:
    """Yield the facts of eight priorities or queues of each port; an error where their numbers are ambiguous."""
    first = _first_number(rows) if table.first is None else table.first
    if first is None:
        rows = TableRows(failure=Absent.ERROR)
    for index, port in ports.items():
        for number in base.PRIORITIES:
            entity = Entity(table.about, (*port.key, str(number)))
            row = (*index, *table.before, number + (first or 0))
            yield from _readings(entity, table.facts, rows, row)


def _first_number(rows: TableRows) -> int | None:
    """Return the number of queue 0: there is a row of queue 0, or of queue 8 as the last of eight."""
    numbers = {index[1] for of in rows.columns.values() for index in of if len(index) == _NUMBERED}
    if not numbers or 0 in numbers:
        return 0
    return 1 if len(base.PRIORITIES) in numbers else None


def _lane_readings(
    ports: Mapping[Index, Entity], table: columns.VendorTable, rows: TableRows
) -> Iterator[tuple[Column, Reading]]:
    """Yield the facts of the lanes of each port that has rows of lanes, or else of the whole transceiver."""
    lanes: dict[Index, set[int]] = defaultdict(set)
    for fact in table.facts:
        for index in rows.column(fact.column):
            if len(index) == _NUMBERED and index[1] in LANES:
                lanes[index[:1]].add(index[1])
    for index, port in ports.items():
        for lane in sorted(lanes.get(index, ())):
            entity = Entity(table.about, (*port.key, str(lane)))
            yield from _readings(entity, table.facts, rows, (*index, lane))
        if index not in lanes:
            entity = Entity(table.about, (*port.key, _WHOLE))
            yield from _readings(entity, table.of_ports, rows, index)


def _add_defaults(streams: dict[str, base.StreamReadings], ports: Mapping[Index, Entity]) -> None:
    """Add those facts of priorities and queues that no table of the manufacturer has: they are unsupported."""
    for table in columns.DEFAULT_TABLES:
        part = streams.setdefault(table.stream, [])
        present = {metric for (metric, _), _ in part}
        part += [
            ((fact.metric, Entity(table.about, (*port.key, str(number)))), Absent.UNSUPPORTED)
            for port in ports.values()
            for number in base.PRIORITIES
            for fact in table.facts
            if fact.metric not in present
        ]
