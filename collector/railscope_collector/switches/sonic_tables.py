"""Answers of SONiC: rows of its databases as gNMI returns them in, readings out. Pure.

Values are text; those of counters are decimal numbers below 2^64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading
from railscope_collector.switches import switch_reading as base
from railscope_collector.switches.fact_readings import (
    KnownSwitch,
    SwitchAnswers,
    as_identifier,
    clean_text,
    fact_readings,
    neighbour_reading,
)
from railscope_collector.switches.switch_facts import POOLS, select

MAX_POOLS = 32
_DAMAGED = object()
"""Any value of a damaged row."""
_STATUSES = {"up": 1, "down": 0}
_CHASSIS_MAC, _PORT_MAC = "4", "3"
"""Subtypes of a chassis and of a port that are identified by a MAC address (IEEE 802.1AB)."""
_STATES: Mapping[declare.Metric, Mapping[str, int]] = {
    catalog.PORT_UP: _STATUSES,
    catalog.PORT_ENABLED: _STATUSES,
    catalog.WATCHDOG_STORM: {"operational": 0, "stormed": 1},
}
_FACTS = select(lambda fact: fact.sonic)


@dataclass(frozen=True, slots=True)
class SonicTable:
    """Rows of a table by their key; or the reason why there are none. A row that is no object is damaged."""

    rows: Mapping[str, object] = field(default_factory=dict)
    failure: Absent | None = None

    def number(self, row: str, name: str) -> Reading:
        """Return a value as a number of at most 64 bits."""
        return self.failure or base.as_number(self._value(row, name))

    def text(self, row: str, name: str) -> str:
        """Return a value as printable text of limited length; empty if there is none."""
        value = self._value(row, name)
        return clean_text(value) if isinstance(value, str) else ""

    def state(self, row: str, name: str, states: Mapping[str, int]) -> Reading:
        """Return the number of a state; another one is an error."""
        if self.failure:
            return self.failure
        text = self.text(row, name)
        is_damaged = self._value(row, name) is _DAMAGED
        return states.get(text, Absent.ERROR) if text or is_damaged else Absent.UNSUPPORTED

    def has_field(self, prefix: str) -> bool:
        """True if a row has a field that starts with this text."""
        rows = (row for row in self.rows.values() if isinstance(row, Mapping))
        return any(name.startswith(prefix) for row in rows for name in row)

    def _value(self, row: str, name: str) -> object:
        """Return a value as the switch returned it; None if there is none."""
        found = self.rows.get(row, {})
        return found.get(name) if isinstance(found, Mapping) else _DAMAGED


_NOT_REQUESTED = SonicTable(failure=Absent.UNSUPPORTED)


@dataclass(slots=True)
class SonicTables:
    """All tables of one poll; one that is None was not due."""

    ports: SonicTable
    port_states: SonicTable = _NOT_REQUESTED
    queues: SonicTable | None = None
    groups: SonicTable | None = None
    """Priority groups; they are due with the watermarks of queues, and pools."""
    pools: SonicTable | None = None
    neighbours: SonicTable | None = None
    chassis: SonicTable | None = None
    profile_names: SonicTable = _NOT_REQUESTED
    profiles: SonicTable = _NOT_REQUESTED
    """Buffer profiles; the rows of `profile_names` are priority groups such as `Ethernet0:3-4`."""


def _note(known: KnownSwitch, tables: SonicTables) -> None:
    """Replace what this poll has found; a failure of it changes nothing."""
    for name, table, prefix in (
        ("PORT_TABLE", tables.port_states, ""),
        ("estimated pause time", tables.ports, "EST_PORT_STAT_PFC_"),
        ("queues", tables.queues, ""),
        ("WRED_ECN_QUEUE", tables.queues, "SAI_QUEUE_STAT_WRED_"),
        ("PFC watchdog", tables.queues, "PFC_WD_"),
        ("watermarks of priority groups", tables.groups, ""),
        ("watermarks of buffer pools", tables.pools, ""),
        ("LLDP_ENTRY_TABLE", tables.neighbours, ""),
    ):
        if table and table.failure in {None, Absent.UNSUPPORTED}:
            known.missing[name] = not table.has_field(prefix)
    chassis = tables.chassis
    if chassis and not chassis.failure:
        known.identity = {
            "system_name": chassis.text("", "lldp_loc_sys_name"),
            "description": chassis.text("", "lldp_loc_sys_desc"),
            "chassis": _identifier(chassis, "", "lldp_loc_chassis_id", _CHASSIS_MAC),
        }


def make_reading(switch: str, tables: SonicTables, known: KnownSwitch) -> base.SwitchReading:
    """Return the readings of a switch, and update what is known. Raises SwitchReadError if it has no ports."""
    _note(known, tables)
    states, keys = tables.port_states, {clean_text(key) for key in tables.ports.rows}
    counters = _by_port(tables.ports, states)
    # By length first, which is the order of their numbers: Ethernet8 before Ethernet16.
    found = sorted(counters.rows, key=lambda name: (len(name), name))
    if not found:
        message = "no ports: expected rows of COUNTERS/Ethernet* in COUNTERS_DB"
        raise base.SwitchReadError(message)
    ports = {name: _port(switch, name, states) for name in found[: base.MAX_PORTS]}
    by_name = {"PORT_TABLE": states, "COUNTERS": counters}
    streams = [base.PORTS, base.PRIORITY]
    if tables.queues:
        by_name["Queues"] = _by_queue(tables.queues, states, keys)
        streams += [base.QUEUES, base.QUEUE_MARKS, base.WATCHDOG]
        if tables.groups and tables.pools:
            by_name["PriorityGroups"] = _by_queue(tables.groups, states, keys)
            profiles = _by_queue(tables.profile_names, states)
            by_name["BUFFER_PROFILE_TABLE"] = _headroom(profiles, tables.profiles, ports)
            streams.append(base.WATERMARKS)
    readings = fact_readings(
        {stream: _FACTS[stream] for stream in streams}, ports, _SonicAnswers(by_name)
    )
    readings[base.SWITCH] = known.readings(
        switch,
        len(found),
        Absent.UNSUPPORTED,  # COUNTERS_DB has no uptime
    )
    if base.WATERMARKS in streams and tables.pools:
        readings[POOLS] = list(_pool_readings(switch, tables.pools))
    if tables.neighbours:
        readings[base.NEIGHBOURS] = list(_neighbour_readings(ports.values(), tables.neighbours))
    return base.SwitchReading(readings, dialect="sonic")


# Names -------------------------------------------------------------------------------------------


def _identifier(table: SonicTable, row: str, name: str, mac_subtype: str) -> str:
    """Return the identifier of a chassis or port, with the subtype of a MAC address."""
    is_mac = table.text(row, f"{name}_subtype") == mac_subtype
    return as_identifier(table.text(row, name), is_mac=is_mac)


def _ports_of_keys(
    keys: Collection[str], states: SonicTable, like: Collection[str]
) -> dict[str, Collection[str]]:
    """Return the ports of each key of a table; gNMI returns aliases in place of the names, in some tables.

    An alias may be the name of another port. So all keys of a table are aliases if one of them is an alias only, or if
    none is a name only and those `like` them are aliases.
    """
    names = {clean_text(name) for name in states.rows}
    ports_of: dict[str, set[str]] = defaultdict(set)
    for name in states.rows:
        ports_of[states.text(name, "alias") or clean_text(name)].add(clean_text(name))
    aliases = ports_of.keys()
    has_names = any(key in names and key not in aliases for key in keys)
    decisive = keys if has_names else (*keys, *like)
    are_aliases = any(key in aliases and key not in names for key in decisive)
    return {key: ports_of.get(key, (key,)) if are_aliases else (key,) for key in keys}


def _by_port(table: SonicTable, states: SonicTable) -> SonicTable:
    """Return a table by the names of the ports. The row of several ports is damaged: it may be of any of them."""
    found = {clean_text(key): row for key, row in table.rows.items()}
    ports_of = _ports_of_keys(found.keys() - {""}, states, ())
    rows = {
        port: found[key] if len(ports) == 1 else None
        for key, ports in ports_of.items()
        for port in ports
    }
    return SonicTable(rows, table.failure)


def _by_queue(
    table: SonicTable, states: SonicTable, like: Collection[str] = frozenset()
) -> SonicTable:
    """Return a table by port and number, from keys such as `Ethernet0:3`; an alias may contain colons."""
    ports_of = _ports_of_keys(
        {clean_text(key.rpartition(":")[0]) for key in table.rows}, states, like
    )
    parts = ((*key.rpartition(":")[::2], row) for key, row in table.rows.items())
    rows = {
        f"{port}:{number}": row if len(ports_of[clean_text(key)]) == 1 else None
        for key, number, row in parts
        for port in ports_of[clean_text(key)]
    }
    return SonicTable(rows, table.failure)


def _port(switch: str, name: str, states: SonicTable) -> Entity:
    """Return a port; lldpmgrd of SONiC announces the alias as its port ID, or the name if there is none."""
    facts = {key: states.text(name, key) for key in ("index", "alias", "description")}
    facts |= {"mac_address": "", "lldp_port_id": facts["alias"] or name}
    return Entity(entities.SWITCH_PORT, (switch, name), facts)


# Readings ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SonicAnswers(SwitchAnswers[str, str]):
    """Tables of one poll by name; their rows are by port, or by port and number."""

    tables: Mapping[str, SonicTable]

    def read(self, metric: declare.Metric, name: str, port: str, part: object) -> Reading:
        """Return a field of a port, or of its priority, queue or group."""
        table, _, field_name = name.partition("/")
        rows = self.tables[table]
        if states := _STATES.get(metric):
            return rows.state(port if part is None else f"{port}:{part}", field_name, states)
        if part is None or table == "COUNTERS":
            return rows.number(port, field_name.format(part))
        return rows.number(f"{port}:{part}", field_name)


def _headroom(groups: SonicTable, profiles: SonicTable, ports: Collection[str]) -> SonicTable:
    """Return the sizes of headroom by priority group; releases before 202012 write a profile as [TABLE:NAME]."""
    rows: dict[str, object] = {}
    for key in groups.rows:
        port, _, span = key.rpartition(":")
        if port not in ports:
            continue  # a hostile switch may name many, with eight groups each
        first, _, last = span.partition("-")
        profile = groups.text(key, "profile").strip("[]").rpartition(":")[2]
        for number in base.PRIORITIES:
            if first <= str(number) <= (last or first):
                rows[f"{port}:{number}"] = profiles.rows.get(profile, {})
    return SonicTable(rows, groups.failure or profiles.failure)


def _pool_readings(switch: str, pools: SonicTable) -> Iterator[tuple[Column, Reading]]:
    cleaned = {clean_text(name): name for name in sorted(pools.rows)[:MAX_POOLS]}
    for shown, name in cleaned.items():
        entity = Entity(entities.SWITCH_POOL, (switch, shown))
        for metric, ((field_name,),) in _FACTS[POOLS].items():
            yield (metric, entity), pools.number(name, field_name)


def _neighbour_readings(
    ports: Iterable[Entity], table: SonicTable
) -> Iterator[tuple[Column, Reading]]:
    """Yield the neighbours; LLDP_ENTRY_TABLE has a row for each port with one, by the name of the port."""
    for port in ports:
        name = port.key[1]
        found = [_neighbour(table, name)] if name in table.rows else []
        yield neighbour_reading(port, found, table.failure)


def _neighbour(table: SonicTable, port: str) -> dict[str, str]:
    return {
        "system_name": table.text(port, "lldp_rem_sys_name"),
        "chassis": _identifier(table, port, "lldp_rem_chassis_id", _CHASSIS_MAC),
        "neighbour_port": _identifier(table, port, "lldp_rem_port_id", _PORT_MAC),
        "port_description": table.text(port, "lldp_rem_port_desc"),
    }
