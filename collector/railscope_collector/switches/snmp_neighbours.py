"""Neighbours of the ports of a switch: rows of LLDP-MIB, and the ports that its local numbers stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from railscope.frame import Entity
from railscope.reading import Absent
from railscope_collector.switches import end_names, switch_reading as base
from railscope_collector.switches.fact_readings import neighbour_reading
from railscope_collector.switches.snmp_values import (
    MAC_BYTES,
    Index,
    SnmpValue,
    TableRows,
    as_identifier,
    as_text,
)

CHASSIS_MAC, _PORT_MAC = 4, 3
"""Subtypes of a chassis and of a port that are identified by a MAC address (LLDP-MIB)."""
_NEIGHBOUR_INDEX = 3
"""Time of the last change, local port, number."""


def neighbour_readings(
    ports: Mapping[Index, Entity], rows: TableRows, chassis: str
) -> base.StreamReadings:
    """Return the newest neighbour of each port; `chassis` is the identifier of the switch itself."""
    part: base.StreamReadings = []
    received: dict[tuple[str, ...], list[Index]] = {}
    local_ports = _local_ports(ports, rows, chassis)
    for index in rows.column("chassis"):
        if len(index) == _NEIGHBOUR_INDEX and (port := local_ports.get(index[1])):
            received.setdefault(port.key, []).append(index)
    for port in ports.values():
        # The first part of an index is the time of the announcement (LLDP-MIB lldpRemTimeMark).
        newest = sorted(received.get(port.key, ()), reverse=True)
        absence = rows.failure or (Absent.UNSUPPORTED if rows.is_missing else None)
        part.append(neighbour_reading(port, [_neighbour(rows, index) for index in newest], absence))
    return part


def local_port_ids(
    ports: Mapping[Index, Entity], rows: TableRows, chassis: str
) -> dict[tuple[str, ...], str]:
    """Return the port ID that the switch announces for each port, by the key of the port: lldpLocPortId.

    Servers receive it, and it need not be a name of the port: Junos announces the index of the interface.
    """
    found = {}
    for number, port in _local_ports(ports, rows, chassis).items():
        ids = _local_ids(
            rows.column("local_port").get((number,), b""), rows.column("local_kind").get((number,))
        )
        if len(ids) == 1 and ids[0]:
            found[port.key] = ids[0]
    return found


def _neighbour(rows: TableRows, index: Index) -> dict[str, str]:
    is_chassis_mac = rows.column("chassis_kind").get(index) == CHASSIS_MAC
    is_port_mac = rows.column("port_kind").get(index) == _PORT_MAC
    return {
        "system_name": rows.text("system_name", index),
        "chassis": as_identifier(rows.column("chassis")[index], is_mac=is_chassis_mac),
        "neighbour_port": as_identifier(rows.column("port").get(index, b""), is_mac=is_port_mac),
        "port_description": rows.text("port_description", index),
    }


def _local_ports(ports: Mapping[Index, Entity], rows: TableRows, chassis: str) -> dict[int, Entity]:
    """Return the ports by their number in LLDP, which need not be the index of the interface.

    A number belongs to the port that its local port ID or description names; else to the interface whose index is that
    port ID, or else the number itself, unless another number names that port, or has another index than its port. A
    port ID of several numbers, such as the MAC address of the chassis, identifies none of them.
    """
    by_name = {port.key[1]: port for port in ports.values()}
    texts_of = {
        name: ("", name, *(port.facts[text] for text in ("description", "mac_address", "alias")))
        for name, port in by_name.items()
    }
    switches = {port.key[0] for port in ports.values()}
    named = end_names.DevicePorts(switches, texts_of, chassis)
    found: dict[int, Entity] = {}
    ids = {
        number: _local_ids(value, rows.column("local_kind").get(number))
        for number, value in rows.column("local_port").items()
    }
    counts = Counter(text for texts in ids.values() for text in texts)
    for number in {*ids, *rows.column("local_description")}:
        description = rows.text("local_description", number)
        texts = [text for text in ids.get(number, ()) if counts[text] == 1] or [""]
        name = next(filter(None, map(named.find, texts[:-1])), "")
        name = name or named.find(texts[-1], description)
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


def _local_ids(value: SnmpValue, kind: SnmpValue | None) -> list[str]:
    """Return a local port ID as its subtype requires: a MAC address or a text; six bytes without a subtype as both."""
    is_mac = isinstance(value, bytes) and len(value) == MAC_BYTES
    texts = [as_identifier(value, is_mac=True)] if is_mac and kind in {None, _PORT_MAC} else []
    return texts + ([] if texts and kind else [as_text(value)])
