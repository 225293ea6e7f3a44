"""Answers of switches by SNMP: rows in, readings out. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_collector.switches import (
    snmp_columns as columns,
    switch_facts as facts,
    switch_reading as base,
)
from railscope_collector.switches.fact_readings import (
    EIGHT,
    KnownSwitch,
    PortPart,
    SwitchAnswers,
    fact_readings,
)
from railscope_collector.switches.snmp_neighbours import (
    CHASSIS_MAC,
    local_port_ids,
    neighbour_readings,
)
from railscope_collector.switches.snmp_values import (
    LANES,
    Index,
    Rows,
    SnmpValue,
    TableRows,
    as_identifier,
    as_signed,
    as_text,
)

TICK_NS = SECOND_NS // 100
UPTIME_RANGE_NS = (1 << 32) * TICK_NS
"""Range of TimeTicks: 497 days."""
_ETHERNET = frozenset({6, 62, 69, 117})
"""ethernetCsmacd, and the former types of fast and gigabit Ethernet (IANAifType-MIB)."""
_IS_UP = {1: 1, 2: 0, 3: 0, 5: 0, 6: 0, 7: 0}
"""Statuses of an interface (RFC 2863) as 1 for up and 0 for down; 4 is unknown."""
_STATES = {catalog.PORT_UP, catalog.PORT_ENABLED}
_WHOLE = PortPart("0", "whole")
"""Lane that stands for the whole transceiver."""
_NUMBERED = 2
"""Numbers in the index of a row: interface, and priority, queue or lane."""


@dataclass(slots=True)
class SwitchTables:
    """All rows of one poll; a table that is None was not due."""

    scalars: Mapping[str, SnmpValue]
    interfaces: TableRows
    optional: Mapping[facts.SnmpTable, TableRows | None] = field(default_factory=dict)
    neighbours: TableRows | None = None
    missing: dict[str, bool] = field(default_factory=dict)
    """Tables that the switch does not have (true) or has (false), as of this and earlier polls."""
    port_ids: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Port ID that the switch announces for each port, as of the last poll in which it was due."""

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
    _note_port_ids(tables, ports)
    ports = {
        index: replace(
            port, facts={**port.facts, "lldp_port_id": tables.port_ids.get(port.key, "")}
        )
        for index, port in ports.items()
    }
    due = {facts.INTERFACES: tables.interfaces}
    due |= {table: rows for table, rows in tables.optional.items() if rows is not None}
    uptime = base.as_number(tables.scalars.get("sysUpTime"))
    streams = fact_readings(_select(due), ports, _SnmpAnswers(due))
    streams[base.SWITCH] = KnownSwitch(tables.missing, _identity(tables)).readings(
        switch, len(found), uptime
    )
    if tables.neighbours is not None:
        streams[base.NEIGHBOURS] = neighbour_readings(ports, tables.neighbours, tables.chassis)
    uptime_ns = None if isinstance(uptime, Absent) else uptime * TICK_NS
    return base.SwitchReading(streams, uptime_ns, UPTIME_RANGE_NS, dialect)


def _note_missing(tables: SwitchTables) -> None:
    """Update the tables that the switch does not have; a failure of this poll changes nothing."""
    found: dict[str, TableRows | None] = {
        table.name: TableRows() for table in columns.VENDOR_TABLES[facts.CISCO]
    }
    found |= {table.name: rows for table, rows in tables.optional.items()}
    for name, rows in (found | {facts.LLDP.name: tables.neighbours}).items():
        tables.missing.setdefault(name, False)
        if rows is not None and not rows.failure:
            tables.missing[name] = rows.is_missing


def _note_port_ids(tables: SwitchTables, ports: Mapping[Index, Entity]) -> None:
    """Replace the port IDs by those of this poll; a failure of it changes nothing."""
    if tables.neighbours is not None and not tables.neighbours.failure:
        tables.port_ids.clear()
        tables.port_ids |= local_port_ids(ports, tables.neighbours, tables.chassis)


def _identity(tables: SwitchTables) -> dict[str, str]:
    return {
        "system_name": as_text(tables.scalars.get("sysName", b"")),
        "description": as_text(tables.scalars.get("sysDescr", b"")),
        "chassis": tables.chassis,
    }


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


# Facts -------------------------------------------------------------------------------------------


def _select(
    tables: Collection[facts.SnmpTable],
) -> dict[str, dict[declare.Metric, facts.Names[facts.Oid]]]:
    """Return the facts of these tables, and those that each manufacturer has, also without a table."""
    found: dict[str, dict[declare.Metric, facts.Names[facts.Oid]]] = defaultdict(dict)
    for stream, rows in facts.FACTS.items():
        for fact in rows if stream != base.NEIGHBOURS else ():
            oids = [oid for oid in fact.snmp.values() if oid.table in tables]
            if oids or fact.snmp.keys() & columns.DEFAULT_COLUMNS:
                found[stream][fact.metric] = tuple(
                    tuple(oid._replace(name=name) for name in oid.name.split(facts.SUM))
                    for oid in oids
                )
    return found


@dataclass(slots=True)
class _SnmpAnswers(SwitchAnswers[Index, facts.Oid]):
    """Rows of the tables of one poll."""

    tables: Mapping[facts.SnmpTable, TableRows]
    _first: dict[facts.SnmpTable, int | None] = field(default_factory=dict)
    """Number of priority or queue 0; None if the numbers are ambiguous."""
    _lanes: dict[Index, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Lanes of the ports that have rows of lanes."""

    units: ClassVar = facts.UNITS[facts.COMWARE]

    def __post_init__(self) -> None:
        """Read the numbers of queues and lanes from the rows."""
        for table, rows in self.tables.items():
            self._first[table] = _first_number(rows) if table.first is None else table.first
        oids = [oid for fact in facts.FACTS[base.LANES] for oid in fact.snmp.values() if oid.whole]
        for oid in oids:
            of_lanes = self.tables.get(oid.table, TableRows()).column(oid.name)
            for port, lane in (index for index in of_lanes if len(index) == _NUMBERED):
                if lane in LANES:
                    self._lanes[port,].add(lane)

    def parts(self, _stream: str, kind: declare.EntityKind, port: Index) -> Iterable[PortPart]:
        """Return the lanes that have rows, or else the whole transceiver; eight priorities and queues."""
        if kind is not entities.SWITCH_LANE:
            return EIGHT
        lanes = [PortPart(str(lane), lane) for lane in sorted(self._lanes.get(port, ()))]
        return lanes or [_WHOLE]

    def read(self, metric: declare.Metric, name: facts.Oid, port: Index, part: object) -> Reading:
        """Return the value of a row; an error where the numbers of queues are ambiguous."""
        rows, column, row = self.tables[name.table], name.name, port
        if part == _WHOLE.key:
            column = name.whole
        elif isinstance(part, int):
            first = self._first[name.table]
            if first is None:
                return Absent.ERROR
            row = (*port, *name.table.before, part + first)
        value = rows.column(column).get((*row, *name.after))
        if rows.failure:
            return rows.failure
        if metric in self.units:
            return as_signed(value)
        number = base.as_number(value)
        if isinstance(number, int) and metric in _STATES:
            return _IS_UP.get(number, Absent.ERROR)
        return number


def _first_number(rows: TableRows) -> int | None:
    """Return the number of queue 0: there is a row of queue 0, or of queue 8 as the last of eight."""
    numbers = {index[1] for of in rows.columns.values() for index in of if len(index) == _NUMBERED}
    if not numbers or 0 in numbers:
        return 0
    return 1 if len(base.PRIORITIES) in numbers else None
