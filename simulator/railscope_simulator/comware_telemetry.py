"""State of a simulated switch as H3C Comware pushes it by gRPC dial-out: the sensor paths, and their rows as JSON text.

A field that the model does not have is absent: PFC deadlocks, FEC and transceivers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from railscope.timestamps import MILLISECOND_NS
from railscope_simulator import port as port_model
from railscope_simulator.switch_ports import FRAME_BYTES, SimulatedSwitch, SwitchPort

TelemetryRow: TypeAlias = dict[str, object]
_KILOBITS_PER_MEGABIT = 1000
_UP, _DOWN = 1, 2


def telemetry_texts(switch: SimulatedSwitch, wall_ns: int) -> Iterator[tuple[str, str]]:
    """Yield each sensor path with the text of its rows at a time."""
    for path, (names, make) in _ROWS.items():
        module, table, row = names.split(".")
        rows = [
            {"IfIndex": number, "Name": port.alias, "IfName": port.alias} | make(port)
            for number, port in enumerate(switch.ports.values(), 1)
        ]
        content = {module: {table: {row: rows}}, "Timestamp": str(wall_ns // MILLISECOND_NS)}
        yield path, json.dumps({"Notification": content})


def _by_priority(values: Mapping[int, int]) -> str:
    """Return a list of eight as text, in the way of the buffer monitor."""
    return json.dumps([values.get(number, 0) for number in port_model.PRIORITIES])


def _lossless(value: int) -> str:
    return _by_priority({port_model.LOSSLESS: value})


def _interface(port: SwitchPort) -> TelemetryRow:
    return {
        "Description": port.description,
        "AdminStatus": _UP,
        "OperStatus": _UP if port.is_up else _DOWN,
        "Actual64Bandwidth": str(port.megabits * _KILOBITS_PER_MEGABIT),
    }


def _statistics(port: SwitchPort) -> TelemetryRow:
    counters, queues = port.counters, port.counters.queues
    return {
        "InOctets": counters.received_bytes,
        "OutOctets": sum(queue.bytes for queue in queues),
        "InPkts": counters.received_packets,
        "OutPkts": sum(queue.packets for queue in queues),
        "InErrors": counters.received_errors,
        "OutErrors": 0,
        "InDiscards": 0,
        "OutDiscards": sum(queue.dropped_packets for queue in queues),
    }


def _pauses(port: SwitchPort) -> TelemetryRow:
    counters = port.counters
    return {
        "PfcSend": _lossless(counters.pauses_sent),
        "PfcRecv": _lossless(counters.pauses_received),
    }


def _marks(port: SwitchPort) -> TelemetryRow:
    return {"EcnMarked": sum(queue.marked_packets for queue in port.counters.queues), "WredDropped": 0}  # fmt: skip


def _drops(port: SwitchPort) -> TelemetryRow:
    dropped = {n: queue.dropped_packets for n, queue in enumerate(port.counters.queues)}
    in_bytes = {n: count * FRAME_BYTES for n, count in dropped.items()}
    return {
        "UnicastDroppedPkts": _by_priority(dropped),
        "UnicastDroppedBytes": _by_priority(in_bytes),
    }


def _depths(port: SwitchPort) -> TelemetryRow:
    depths = {n: queue.occupancy_bytes for n, queue in enumerate(port.counters.queues)}
    return {"SliceCount": 1, "UnicastQueLenInBytes": {"Slice0": _by_priority(depths)}}


def _headroom(port: SwitchPort) -> TelemetryRow:
    used = _lossless(port.counters.headroom_bytes)
    return {"SliceCount": 1, "HeadroomQueLenInBytes": {"Slice0": used}}


_ROWS: Mapping[str, tuple[str, Callable[[SwitchPort], TelemetryRow]]] = {
    "ifmgr/interfaces": ("Ifmgr.Interfaces.Interface", _interface),
    "Ifmgr/Statistics": ("Ifmgr.Statistics.Interface", _statistics),
    "buffermonitor/pfcstatistics": ("BufferMonitor.PFCStatistics.PFCStatistic", _pauses),
    "buffermonitor/ecnandwredstatistics": (
        "BufferMonitor.EcnAndWredStatistics.EcnAndWredStatistic",
        _marks,
    ),
    "buffermonitor/egressdrops": ("BufferMonitor.EgressDrops.EgressDrop", _drops),
    "buffermonitor/commbufferusages": ("BufferMonitor.CommBufferUsages.CommBufferUsage", _depths),
    "buffermonitor/commheadroomusages": (
        "BufferMonitor.CommHeadroomUsages.CommHeadroomUsage",
        _headroom,
    ),
}
"""Module, table and row of each sensor path."""
