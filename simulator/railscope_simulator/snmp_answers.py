"""State of a simulated switch as objects of SNMP: those of the standard MIBs, or those of H3C Comware.

Ports have the names that their LLDP announces. An object that the model does not have is absent, as on a switch that does
not have it: Comware has the rates of PFC frames and no counts, and no transceiver is in a port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from railscope.timestamps import SECOND_NS
from railscope_simulator import port as port_model
from railscope_simulator.switch_ports import (
    FRAME_BYTES,
    HEADROOM_BYTES,
    QUEUE_LIMIT_BYTES,
    SimulatedSwitch,
    SwitchPort,
    SwitchPortCounters,
)

Oid: TypeAlias = tuple[int, ...]


class SnmpType(IntEnum):
    """Tag of a value in BER (RFC 2578)."""

    INTEGER = 0x02
    OCTETS = 0x04
    OBJECT_ID = 0x06
    COUNTER32 = 0x41
    GAUGE32 = 0x42
    TIME_TICKS = 0x43
    COUNTER64 = 0x46


class SnmpObject(NamedTuple):
    """An object with its value: a number, bytes, or the numbers of an OID."""

    oid: Oid
    kind: SnmpType
    value: int | bytes | Oid


FindObjects: TypeAlias = Callable[[], list[SnmpObject]]
"""Returns the objects of a switch in the order of their OIDs. Blocking."""
_TICK_NS = SECOND_NS // 100
_RANGES = {SnmpType.COUNTER32: 1 << 32, SnmpType.TIME_TICKS: 1 << 32, SnmpType.COUNTER64: 1 << 64}
_MAC_LENGTH = 17
_ETHERNET, _OTHER = 6, 1
_CHASSIS_MAC, _PORT_MAC, _PORT_NAME = 4, 3, 5
"""Subtypes of LLDP-MIB."""
_LOCAL_PORTS = 4096
"""Number of a port in LLDP, less the index of its interface: they differ in devices as well."""
_LINUX, _H3C = "1.3.6.1.4.1.8072.3.2.10", "1.3.6.1.4.1.25506.1.4242"
"""Values of sysObjectID: of Net-SNMP, and of a device of H3C that does not exist."""
_DESCRIPTION = "Simulated switch"
_H3C_DESCRIPTION = (
    "H3C Comware Software, Version 7.1.070, Release 6715\r\nH3C S9825-64D\r\nSimulated"
)


def find_objects(switch: SimulatedSwitch, tables: str) -> list[SnmpObject]:
    """Return the objects of a switch in their order; `tables` is a key of `TABLES`."""
    return sorted(TABLES[tables](switch))


def _oid(text: str) -> Oid:
    return tuple(map(int, text.split(".")))


def _object(oid: str, kind: SnmpType, value: int | bytes | str) -> SnmpObject:
    """Return an object; a number within the range of its type."""
    if kind is SnmpType.OBJECT_ID:
        return SnmpObject(_oid(oid), kind, _oid(str(value)))
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, int) and kind in _RANGES:
        value %= _RANGES[kind]
    return SnmpObject(_oid(oid), kind, value)


def _rows(
    prefix: str, index: str, columns: Mapping[int, tuple[SnmpType, int | bytes | str]]
) -> Iterator[SnmpObject]:
    """Yield the columns of a row of a table."""
    for column, (kind, value) in columns.items():
        yield _object(f"{prefix}.{column}.{index}", kind, value)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


# Standard MIBs -----------------------------------------------------------------------------------

_SYSTEM, _IF, _IFX = "1.3.6.1.2.1.1", "1.3.6.1.2.1.2.2.1", "1.3.6.1.2.1.31.1.1.1"
_PFC = "1.3.111.2.802.1.1.21.1.1.1"
_LLDP = "1.0.8802.1.1.2.1"


def _standard(switch: SimulatedSwitch) -> Iterator[SnmpObject]:
    """Yield the objects of a switch with standard MIBs only."""
    yield from _common(switch, _DESCRIPTION, _LINUX)
    for port in switch.ports.values():
        counted = SnmpType.COUNTER32
        yield from _rows(_PFC, str(_index(port)), {
            2: (counted, port.counters.pauses_sent), 3: (counted, port.counters.pauses_received),
        })  # fmt: skip


def _common(switch: SimulatedSwitch, description: str, identity: str) -> Iterator[SnmpObject]:
    ticks = switch.uptime_ns // _TICK_NS
    yield from (
        _object(f"{_SYSTEM}.1.0", SnmpType.OCTETS, description),
        _object(f"{_SYSTEM}.2.0", SnmpType.OBJECT_ID, identity),
        _object(f"{_SYSTEM}.3.0", SnmpType.TIME_TICKS, ticks),
        _object(f"{_SYSTEM}.5.0", SnmpType.OCTETS, switch.name),
        _object(f"{_LLDP}.3.1.0", SnmpType.INTEGER, _CHASSIS_MAC),
        _object(f"{_LLDP}.3.2.0", SnmpType.OCTETS, _mac(switch.chassis)),
        _object(f"{_IF}.2.1", SnmpType.OCTETS, "NULL0"),
        _object(f"{_IF}.3.1", SnmpType.INTEGER, _OTHER),
        _object(f"{_IFX}.1.1", SnmpType.OCTETS, "NULL0"),
    )
    for port in switch.ports.values():
        # The ports of a chassis share its MAC address.
        yield from _interface(port, _mac(switch.chassis))
        yield from _neighbour(port, ticks)


def _index(port: SwitchPort) -> int:
    """Return the index of an interface; 1 is that of NULL0."""
    return port.number + 2


def _interface(port: SwitchPort, mac: bytes) -> Iterator[SnmpObject]:
    index, counters = str(_index(port)), port.counters
    sent_packets = sum(queue.packets for queue in counters.queues)
    narrow, wide = SnmpType.COUNTER32, SnmpType.COUNTER64
    yield from _rows(_IF, index, {
        2: (SnmpType.OCTETS, port.alias), 3: (SnmpType.INTEGER, _ETHERNET), 6: (SnmpType.OCTETS, mac),
        7: (SnmpType.INTEGER, 1), 8: (SnmpType.INTEGER, 1 if port.is_up else 2),
        13: (narrow, 0), 14: (narrow, counters.received_errors),
        19: (narrow, sum(queue.dropped_packets for queue in counters.queues)), 20: (narrow, 0),
    })  # fmt: skip
    yield from _rows(_IFX, index, {
        1: (SnmpType.OCTETS, port.alias), 6: (wide, counters.received_bytes),
        7: (wide, counters.received_packets - counters.received_multicasts), 8: (wide, counters.received_multicasts),
        9: (wide, 0), 10: (wide, sum(queue.bytes for queue in counters.queues)),
        11: (wide, sent_packets - counters.sent_multicasts), 12: (wide, counters.sent_multicasts), 13: (wide, 0),
        15: (SnmpType.GAUGE32, port.megabits), 18: (SnmpType.OCTETS, port.description),
    })  # fmt: skip


def _neighbour(port: SwitchPort, ticks: int) -> Iterator[SnmpObject]:
    local, neighbour = _index(port) + _LOCAL_PORTS, port.neighbour
    yield from _rows(f"{_LLDP}.3.7.1", str(local), {
        2: (SnmpType.INTEGER, _PORT_NAME), 3: (SnmpType.OCTETS, port.alias),
        4: (SnmpType.OCTETS, f"{port.alias} Interface"),
    })  # fmt: skip
    if not port.is_up:
        return
    is_mac = len(neighbour.port) == _MAC_LENGTH
    yield from _rows(f"{_LLDP}.4.1.1", f"{ticks % 1000}.{local}.1", {
        4: (SnmpType.INTEGER, _CHASSIS_MAC), 5: (SnmpType.OCTETS, _mac(neighbour.chassis)),
        6: (SnmpType.INTEGER, _PORT_MAC if is_mac else _PORT_NAME),
        7: (SnmpType.OCTETS, _mac(neighbour.port) if is_mac else neighbour.port),
        8: (SnmpType.OCTETS, neighbour.port_description), 9: (SnmpType.OCTETS, neighbour.system_name),
    })  # fmt: skip


# H3C Comware -------------------------------------------------------------------------------------

_HH3C = "1.3.6.1.4.1.25506.2"
_RATES, _BUFFERS, _ETHER, _QUEUES = (
    f"{_HH3C}.{table}" for table in ("40.2.2.5.1", "40.2.2.6.1", "40.5.1.1.1", "65.1.1.2.1.1")
)
_PERCENT = 100


def _comware(switch: SimulatedSwitch) -> Iterator[SnmpObject]:
    """Yield the objects of a switch of H3C."""
    yield from _common(switch, _H3C_DESCRIPTION, _H3C)
    for port in switch.ports.values():
        index, counters, wide = str(_index(port)), port.counters, SnmpType.COUNTER64
        errors = counters.received_errors
        yield from _rows(_ETHER, index, {8: (wide, errors), 9: (wide, 0), 10: (wide, 0)})
        for number in port_model.PRIORITIES:
            yield from _buffers(counters, index, number)
            yield from _queue(counters, index, number)


def _buffers(counters: SwitchPortCounters, port: str, number: int) -> Iterator[SnmpObject]:
    """Yield the rows by priority and queue, which are numbered from 1."""
    is_lossless = number == port_model.LOSSLESS
    queue, gauge, index = counters.queues[number], SnmpType.GAUGE32, f"{port}.{number + 1}"
    yield from _rows(_RATES, index, {
        2: (gauge, counters.pauses_received_per_second * is_lossless),
        3: (gauge, counters.pauses_sent_per_second * is_lossless),
    })  # fmt: skip
    yield from _rows(_BUFFERS, index, {
        4: (gauge, queue.occupancy_bytes * _PERCENT // QUEUE_LIMIT_BYTES),
        5: (gauge, queue.watermark_bytes * _PERCENT // QUEUE_LIMIT_BYTES),
        16: (gauge, counters.headroom_bytes * is_lossless * _PERCENT // HEADROOM_BYTES),
        17: (gauge, counters.headroom_watermark_bytes * is_lossless * _PERCENT // HEADROOM_BYTES),
    })  # fmt: skip


def _queue(counters: SwitchPortCounters, port: str, number: int) -> Iterator[SnmpObject]:
    """Yield the row of a queue, which are numbered from 0."""
    queue, wide, gauge = counters.queues[number], SnmpType.COUNTER64, SnmpType.GAUGE32
    dropped = queue.dropped_packets
    yield from _rows(_QUEUES, f"{port}.{number}", {
        1: (wide, queue.packets), 2: (wide, dropped), 3: (wide, queue.bytes), 6: (wide, dropped * FRAME_BYTES),
        9: (gauge, queue.occupancy_bytes // FRAME_BYTES), 10: (gauge, queue.occupancy_bytes),
        13: (wide, dropped), 14: (wide, dropped * FRAME_BYTES), 17: (wide, 0), 18: (wide, 0),
    })  # fmt: skip


TABLES: Mapping[str, Callable[[SimulatedSwitch], Iterator[SnmpObject]]] = {
    "standard": _standard,
    "comware": _comware,
}
"""Objects of a switch by its tables, which are the community to read them with."""
