"""Tables of SONiC: rows of its databases, as gNMI returns them, and the readings that they become.

Pure: rows in, readings out. Values are text; those of counters are decimal numbers below 2^64. What a switch does not
have is unsupported, and named in the facts of the switch. A table that could not be read in a poll, while others could,
has the reason of that failure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from railscope import untrusted_text
from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading, known_speed
from railscope_collector.switches import switch_reading as base

POOLS = "switch_pools"
"""Stream of the frames of a switch that only SONiC has."""
MAX_POOLS = 32
_DAMAGED = object()
"""Any value of a damaged row."""
_STATUSES, _WATCHDOG_STATES = {"up": 1, "down": 0}, {"operational": 0, "stormed": 1}
_MAC_SUBTYPES = "4", "3"
"""Subtypes of a chassis and of a port that are identified by a MAC address (IEEE 802.1AB)."""
_PORT_COUNTERS: Mapping[declare.Metric, str] = {
    catalog.RECEIVED: "IF_IN_OCTETS", catalog.SENT: "IF_OUT_OCTETS", catalog.RECEIVED_ERRORS: "IF_IN_ERRORS",
    catalog.SENT_ERRORS: "IF_OUT_ERRORS", catalog.RECEIVED_DISCARDS: "IF_IN_DISCARDS",
    catalog.SENT_DISCARDS: "IF_OUT_DISCARDS", catalog.FEC_CORRECTED: "IF_IN_FEC_CORRECTABLE_FRAMES",
    catalog.FEC_UNCORRECTABLE: "IF_IN_FEC_NOT_CORRECTABLE_FRAMES",
}  # fmt: skip
_QUEUE_FIELDS: Mapping[declare.Metric, str] = {
    catalog.QUEUE_PACKETS: "PACKETS", catalog.QUEUE_BYTES: "BYTES", catalog.QUEUE_DROPPED_PACKETS: "DROPPED_PACKETS",
    catalog.QUEUE_DROPPED_BYTES: "DROPPED_BYTES",
}  # fmt: skip
_MARK_FIELDS: Mapping[declare.Metric, str] = {
    catalog.QUEUE_MARKED_PACKETS: "WRED_ECN_MARKED_PACKETS", catalog.QUEUE_MARKED_BYTES: "WRED_ECN_MARKED_BYTES",
    catalog.QUEUE_WRED_DROPPED_PACKETS: "WRED_DROPPED_PACKETS", catalog.QUEUE_OCCUPANCY: "CURR_OCCUPANCY_BYTES",
}  # fmt: skip
_WATCHDOG_FIELDS: Mapping[declare.Metric, Sequence[str]] = {
    catalog.WATCHDOG_DETECTED: ("DEADLOCK_DETECTED",), catalog.WATCHDOG_RESTORED: ("DEADLOCK_RESTORED",),
    catalog.WATCHDOG_DROPPED: ("TX_DROPPED_PACKETS", "RX_DROPPED_PACKETS"),
}  # fmt: skip
_GROUP_FIELDS: Mapping[declare.Metric, str] = {
    catalog.GROUP_SHARED_WATERMARK: "SHARED_WATERMARK_BYTES",
    catalog.GROUP_HEADROOM_WATERMARK: "XOFF_ROOM_WATERMARK_BYTES",
}
_POOL_FIELDS: Mapping[declare.Metric, str] = {
    catalog.POOL_WATERMARK: "WATERMARK_BYTES",
    catalog.POOL_HEADROOM_WATERMARK: "XOFF_ROOM_WATERMARK_BYTES",
}


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
        return _clean(value) if isinstance(value, str) else ""

    def state(self, row: str, name: str, states: Mapping[str, int]) -> Reading:
        """Return the number of a state; another one is an error."""
        if self.failure:
            return self.failure
        text = self.text(row, name)
        is_damaged = self._value(row, name) is _DAMAGED
        return states.get(text, Absent.ERROR) if text or is_damaged else Absent.UNSUPPORTED

    def total(self, row: str, names: Sequence[str]) -> Reading:
        """Return the sum of counters, which counts as they do, in 64 bits; absent if one of them is."""
        return base.sum_counters(self.number(row, name) for name in names)

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


@dataclass(slots=True)
class SwitchFacts:
    """Findings of earlier polls, since not all tables are due in each."""

    missing: dict[str, bool] = field(default_factory=dict)
    """Tables that the switch has (false) or does not have (true)."""
    identity: Mapping[str, str] = field(default_factory=dict)

    def update(self, tables: SonicTables) -> None:
        """Replace what this poll has found."""
        _note(self.missing, "PORT_TABLE", tables.port_states)
        _note(self.missing, "estimated pause time", tables.ports, "EST_PORT_STAT_PFC_")
        if tables.queues:
            _note(self.missing, "queues", tables.queues)
            _note(self.missing, "WRED_ECN_QUEUE", tables.queues, "SAI_QUEUE_STAT_WRED_")
            _note(self.missing, "PFC watchdog", tables.queues, "PFC_WD_")
        if tables.groups and tables.pools:
            _note(self.missing, "watermarks of priority groups", tables.groups)
            _note(self.missing, "watermarks of buffer pools", tables.pools)
        if tables.neighbours:
            _note(self.missing, "LLDP_ENTRY_TABLE", tables.neighbours)
        chassis = tables.chassis
        if chassis and not chassis.failure:
            is_mac = chassis.text("", "lldp_loc_chassis_id_subtype") == _MAC_SUBTYPES[0]
            self.identity = {
                "system_name": chassis.text("", "lldp_loc_sys_name"),
                "description": chassis.text("", "lldp_loc_sys_desc"),
                "chassis": _identifier(chassis, "", "lldp_loc_chassis_id", is_mac=is_mac),
            }


def _note(missing: dict[str, bool], name: str, table: SonicTable, prefix: str = "") -> None:
    if table.failure in {None, Absent.UNSUPPORTED}:  # a failure of this poll changes nothing
        missing[name] = not table.has_field(prefix)


def make_reading(switch: str, tables: SonicTables, found_before: SwitchFacts) -> base.SwitchReading:
    """Return the readings of a switch, and update what is known. Raises SwitchReadError if it has no ports."""
    found_before.update(tables)
    states, keys = tables.port_states, {_clean(key) for key in tables.ports.rows}
    counters = _by_port(tables.ports, states)
    # By length first, which is the order of their numbers: Ethernet8 before Ethernet16.
    found = sorted(counters.rows, key=lambda name: (len(name), name))
    if not found:
        message = "no ports: expected rows of COUNTERS/Ethernet* in COUNTERS_DB"
        raise base.SwitchReadError(message)
    ports = [_port(switch, name, states) for name in found[: base.MAX_PORTS]]
    streams = {
        base.SWITCH: _switch(switch, found_before, len(found)),
        base.PORTS: list(_port_readings(ports, counters, states)),
        base.PRIORITY: list(_priority_readings(ports, counters)),
    }
    if tables.queues:
        queues = _by_queue(tables.queues, states, keys)
        streams[base.QUEUES] = list(_readings(ports, queues, _QUEUE_FIELDS))
        streams[base.QUEUE_MARKS] = list(_readings(ports, queues, _MARK_FIELDS))
        streams[base.WATCHDOG] = list(_watchdog_readings(ports, queues))
        if tables.groups and tables.pools:
            groups = _by_queue(tables.groups, states, keys)
            headroom = _headroom(_by_queue(tables.profile_names, states), tables.profiles, ports)
            streams[base.WATERMARKS] = [
                *_watermark_readings(ports, queues, groups),
                *_headroom_readings(ports, headroom),
            ]
            streams[POOLS] = list(_pool_readings(switch, tables.pools))
    if tables.neighbours:
        streams[base.NEIGHBOURS] = list(_neighbour_readings(ports, tables.neighbours))
    return base.SwitchReading(streams, dialect="sonic")


def _switch(switch: str, found_before: SwitchFacts, port_count: int) -> base.StreamReadings:
    missing = ", ".join(name for name, is_missing in found_before.missing.items() if is_missing)
    entity = Entity(
        entities.SWITCH, (switch,), {**found_before.identity, "missing_tables": missing}
    )
    # COUNTERS_DB has no uptime
    return [((catalog.UPTIME, entity), Absent.UNSUPPORTED), ((catalog.PORTS, entity), port_count)]


# Names -------------------------------------------------------------------------------------------


def _clean(text: str) -> str:
    return base.cut_text(untrusted_text.printable(text))


def _identifier(table: SonicTable, row: str, name: str, *, is_mac: bool) -> str:
    """Return the identifier of a chassis or port; a MAC address as aa:bb:cc:dd:ee:ff."""
    text = table.text(row, name)
    return text.lower().replace("-", ":") if is_mac else text


def _ports_of_keys(
    keys: Collection[str], states: SonicTable, like: Collection[str]
) -> dict[str, Collection[str]]:
    """Return the ports of each key of a table; gNMI returns aliases in place of the names, in some tables.

    An alias may be the name of another port. So all keys of a table are aliases if one of them is an alias only, or if
    none is a name only and those `like` them are aliases.
    """
    names = {_clean(name) for name in states.rows}
    ports_of: dict[str, set[str]] = defaultdict(set)
    for name in states.rows:
        ports_of[states.text(name, "alias") or _clean(name)].add(_clean(name))
    aliases = ports_of.keys()
    has_names = any(key in names and key not in aliases for key in keys)
    decisive = keys if has_names else (*keys, *like)
    are_aliases = any(key in aliases and key not in names for key in decisive)
    return {key: ports_of.get(key, (key,)) if are_aliases else (key,) for key in keys}


def _by_port(table: SonicTable, states: SonicTable) -> SonicTable:
    """Return a table by the names of the ports. The row of several ports is damaged: it may be of any of them."""
    found = {_clean(key): row for key, row in table.rows.items()}
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
    ports_of = _ports_of_keys({_clean(key.rpartition(":")[0]) for key in table.rows}, states, like)
    parts = ((*key.rpartition(":")[::2], row) for key, row in table.rows.items())
    rows = {
        f"{port}:{number}": row if len(ports_of[_clean(key)]) == 1 else None
        for key, number, row in parts
        for port in ports_of[_clean(key)]
    }
    return SonicTable(rows, table.failure)


def _port(switch: str, name: str, states: SonicTable) -> Entity:
    """Return a port; lldpmgrd of SONiC announces the alias as its port ID, or the name if there is none."""
    facts = {key: states.text(name, key) for key in ("index", "alias", "description")}
    facts |= {"mac_address": "", "lldp_port_id": facts["alias"] or name}
    return Entity(entities.SWITCH_PORT, (switch, name), facts)


# Readings ----------------------------------------------------------------------------------------


def _port_readings(
    ports: Sequence[Entity], counters: SonicTable, states: SonicTable
) -> Iterator[tuple[Column, Reading]]:
    for port in ports:
        name = port.key[1]
        yield (catalog.PORT_UP, port), states.state(name, "oper_status", _STATUSES)
        yield (catalog.PORT_ENABLED, port), states.state(name, "admin_status", _STATUSES)
        yield (catalog.SPEED, port), known_speed(states.number(name, "speed"))
        yield (catalog.RECEIVED_PACKETS, port), _packets(counters, name, "SAI_PORT_STAT_IF_IN_")
        yield (catalog.SENT_PACKETS, port), _packets(counters, name, "SAI_PORT_STAT_IF_OUT_")
        for metric, direction in ((catalog.ALL_PFC_RECEIVED, "RX"), (catalog.ALL_PFC_SENT, "TX")):
            fields = [f"SAI_PORT_STAT_PFC_{each}_{direction}_PKTS" for each in base.PRIORITIES]
            yield (metric, port), counters.total(name, fields)
        for metric, suffix in _PORT_COUNTERS.items():
            yield (metric, port), counters.number(name, f"SAI_PORT_STAT_{suffix}")


def _packets(counters: SonicTable, port: str, prefix: str) -> Reading:
    """Return the packets of all kinds; some switches count multicast and broadcast together only."""
    unicast = f"{prefix}UCAST_PKTS"
    apart = counters.total(port, (unicast, f"{prefix}MULTICAST_PKTS", f"{prefix}BROADCAST_PKTS"))
    if apart is not Absent.UNSUPPORTED:
        return apart
    return counters.total(port, (unicast, f"{prefix}NON_UCAST_PKTS"))


def _priority_readings(
    ports: Sequence[Entity], counters: SonicTable
) -> Iterator[tuple[Column, Reading]]:
    for port in ports:
        name = port.key[1]
        for priority in base.PRIORITIES:
            entity = Entity(entities.SWITCH_PRIORITY, (*port.key, str(priority)))
            counted, estimated = f"SAI_PORT_STAT_PFC_{priority}", f"EST_PORT_STAT_PFC_{priority}"
            yield (catalog.PFC_RECEIVED, entity), counters.number(name, f"{counted}_RX_PKTS")
            yield (catalog.PFC_SENT, entity), counters.number(name, f"{counted}_TX_PKTS")
            ended = counters.number(name, f"{counted}_ON2OFF_RX_PKTS")
            yield (catalog.PAUSES_ENDED, entity), ended
            duration = counters.number(name, f"{estimated}_RX_PAUSE_DURATION_US")
            yield (catalog.ESTIMATED_PAUSE, entity), duration


def _queue_entities(ports: Sequence[Entity]) -> Iterator[tuple[str, Entity]]:
    """Yield the queues of unicast packets with their key in the tables."""
    for port in ports:
        for queue in base.PRIORITIES:
            yield (
                f"{port.key[1]}:{queue}",
                Entity(entities.SWITCH_QUEUE, (*port.key, str(queue))),
            )


def _readings(
    ports: Sequence[Entity], queues: SonicTable, fields: Mapping[declare.Metric, str]
) -> Iterator[tuple[Column, Reading]]:
    for key, entity in _queue_entities(ports):
        for metric, suffix in fields.items():
            yield (metric, entity), queues.number(key, f"SAI_QUEUE_STAT_{suffix}")


def _watchdog_readings(
    ports: Sequence[Entity], queues: SonicTable
) -> Iterator[tuple[Column, Reading]]:
    for key, entity in _queue_entities(ports):
        state = queues.state(key, "PFC_WD_STATUS", _WATCHDOG_STATES)
        yield (catalog.WATCHDOG_STORM, entity), state
        for metric, suffixes in _WATCHDOG_FIELDS.items():
            names = [f"PFC_WD_QUEUE_STATS_{suffix}" for suffix in suffixes]
            yield (metric, entity), queues.total(key, names)


def _watermark_readings(
    ports: Sequence[Entity], queues: SonicTable, groups: SonicTable
) -> Iterator[tuple[Column, Reading]]:
    for key, queue in _queue_entities(ports):
        watermark = queues.number(key, "SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES")
        yield (catalog.QUEUE_WATERMARK, queue), watermark
        group = Entity(entities.SWITCH_PRIORITY_GROUP, queue.key)
        for metric, suffix in _GROUP_FIELDS.items():
            yield (
                (metric, group),
                groups.number(key, f"SAI_INGRESS_PRIORITY_GROUP_STAT_{suffix}"),
            )


def _headroom(groups: SonicTable, profiles: SonicTable, ports: Sequence[Entity]) -> SonicTable:
    """Return the sizes of headroom by priority group; releases before 202012 write a profile as [TABLE:NAME]."""
    rows: dict[str, object] = {}
    names = {port.key[1] for port in ports}
    for key in groups.rows:
        port, _, span = key.rpartition(":")
        if port not in names:
            continue  # a hostile switch may name many, with eight groups each
        first, _, last = span.partition("-")
        profile = groups.text(key, "profile").strip("[]").rpartition(":")[2]
        for number in base.PRIORITIES:
            if first <= str(number) <= (last or first):
                rows[f"{port}:{number}"] = profiles.rows.get(profile, {})
    return SonicTable(rows, groups.failure or profiles.failure)


def _headroom_readings(
    ports: Sequence[Entity], headroom: SonicTable
) -> Iterator[tuple[Column, Reading]]:
    for key, queue in _queue_entities(ports):
        group = Entity(entities.SWITCH_PRIORITY_GROUP, queue.key)
        yield (catalog.GROUP_HEADROOM, group), headroom.number(key, "xoff")


def _pool_readings(switch: str, pools: SonicTable) -> Iterator[tuple[Column, Reading]]:
    cleaned = {_clean(name): name for name in sorted(pools.rows)[:MAX_POOLS]}
    for shown, name in cleaned.items():
        entity = Entity(entities.SWITCH_POOL, (switch, shown))
        for metric, suffix in _POOL_FIELDS.items():
            yield (metric, entity), pools.number(name, f"SAI_BUFFER_POOL_STAT_{suffix}")


def _neighbour_readings(
    ports: Sequence[Entity], table: SonicTable
) -> Iterator[tuple[Column, Reading]]:
    """Yield the neighbours; LLDP_ENTRY_TABLE has a row for each port with one, by the name of the port."""
    for port in ports:
        name = port.key[1]
        is_known = name in table.rows
        facts = {}
        if is_known:
            chassis, port_kind = (
                table.text(name, f"lldp_rem_{kind}_id_subtype") for kind in ("chassis", "port")
            )
            facts = {
                "system_name": table.text(name, "lldp_rem_sys_name"),
                "chassis": _identifier(
                    table, name, "lldp_rem_chassis_id", is_mac=chassis == _MAC_SUBTYPES[0]
                ),
                "neighbour_port": _identifier(
                    table, name, "lldp_rem_port_id", is_mac=port_kind == _MAC_SUBTYPES[1]
                ),
                "port_description": table.text(name, "lldp_rem_port_desc"),
            }
        entity = Entity(entities.SWITCH_NEIGHBOUR, port.key, facts)
        yield (catalog.NEIGHBOUR_KNOWN, entity), table.failure or int(is_known)
