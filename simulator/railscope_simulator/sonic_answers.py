"""Answers of a simulated switch in the form of SONiC: tables of COUNTERS_DB and APPL_DB with values as text.

A counter that the model does not have is absent, as on a switch that does not support it: the PFC watchdog, the shared
watermarks of priority groups and the buffer pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from railscope_simulator import port as port_model
from railscope_simulator.switch_ports import FRAME_BYTES, SimulatedSwitch, SwitchPort

TablePath: TypeAlias = tuple[str, ...]
"""Target, and the elements of the path."""
FindAnswer: TypeAlias = Callable[[TablePath], Mapping[str, object] | None]
"""Returns the table of a switch at a path, None if it does not have it. Blocking."""
SonicRow: TypeAlias = dict[str, str]

DESCRIPTION = "SONiC Software Version: SONiC.202505"
_MAC_LENGTH = 17


def find_answer(switch: SimulatedSwitch, path: TablePath) -> Mapping[str, object] | None:
    """Return the table at a path, or None if the switch does not have it."""
    make = _TABLES.get(path)
    return make(switch) if make else None


def find_all(switch: SimulatedSwitch) -> dict[TablePath, Mapping[str, object]]:
    """Return all tables of a switch."""
    return {path: make(switch) for path, make in _TABLES.items()}


def _counters(switch: SimulatedSwitch) -> dict[str, SonicRow]:
    return {name: _port_counters(port) for name, port in switch.ports.items()}


def _port_counters(port: SwitchPort) -> SonicRow:
    counters = port.counters
    sent_packets = sum(queue.packets for queue in counters.queues)
    values = {
        "IF_IN_OCTETS": counters.received_bytes,
        "IF_OUT_OCTETS": sum(queue.bytes for queue in counters.queues),
        "IF_IN_UCAST_PKTS": counters.received_packets - counters.received_multicasts,
        "IF_OUT_UCAST_PKTS": sent_packets - counters.sent_multicasts,
        "IF_IN_NON_UCAST_PKTS": counters.received_multicasts,
        "IF_OUT_NON_UCAST_PKTS": counters.sent_multicasts,
        "IF_IN_ERRORS": counters.received_errors,
        "IF_OUT_ERRORS": 0,
        "IF_IN_DISCARDS": 0,
        "IF_OUT_DISCARDS": sum(queue.dropped_packets for queue in counters.queues),
    }
    row = {f"SAI_PORT_STAT_{name}": str(value) for name, value in values.items()}
    for priority in port_model.PRIORITIES:
        is_lossless = priority == port_model.LOSSLESS
        counted, estimated = f"SAI_PORT_STAT_PFC_{priority}", f"EST_PORT_STAT_PFC_{priority}"
        received = str(counters.pauses_received * is_lossless)
        row |= {
            f"{counted}_RX_PKTS": received,
            f"{counted}_TX_PKTS": str(counters.pauses_sent * is_lossless),
            f"{counted}_ON2OFF_RX_PKTS": received,
            f"{estimated}_RX_PAUSE_DURATION_US": str(counters.paused_ns * is_lossless // 1000),
        }
    return row


def _states(switch: SimulatedSwitch) -> dict[str, SonicRow]:
    return {
        name: {
            "alias": port.alias,
            "index": str(port.number),
            "description": port.description,
            "speed": str(port.megabits),
            "admin_status": "up",
            "oper_status": "up" if port.is_up else "down",
        }
        for name, port in switch.ports.items()
    }


def _queues(switch: SimulatedSwitch) -> dict[str, SonicRow]:
    rows = {}
    for name, port in switch.ports.items():
        for number, queue in enumerate(port.counters.queues):
            values = {
                "PACKETS": queue.packets,
                "BYTES": queue.bytes,
                "DROPPED_PACKETS": queue.dropped_packets,
                "DROPPED_BYTES": queue.dropped_packets * FRAME_BYTES,
                "WRED_ECN_MARKED_PACKETS": queue.marked_packets,
                "WRED_ECN_MARKED_BYTES": queue.marked_packets * FRAME_BYTES,
                "WRED_DROPPED_PACKETS": 0,
                "WRED_DROPPED_BYTES": 0,
                "CURR_OCCUPANCY_BYTES": queue.occupancy_bytes,
                "SHARED_WATERMARK_BYTES": queue.watermark_bytes,
            }
            rows[f"{name}:{number}"] = {f"SAI_QUEUE_STAT_{k}": str(v) for k, v in values.items()}
    return rows


def _groups(switch: SimulatedSwitch) -> dict[str, SonicRow]:
    """Return the headroom of the priority groups; only that of RDMA traffic is used."""
    name = "SAI_INGRESS_PRIORITY_GROUP_STAT_XOFF_ROOM_WATERMARK_BYTES"
    return {
        f"{port.name}:{number}": {
            name: str(port.counters.headroom_watermark_bytes * (number == port_model.LOSSLESS))
        }
        for port in switch.ports.values()
        for number in port_model.PRIORITIES
    }


def _neighbours(switch: SimulatedSwitch) -> dict[str, SonicRow]:
    # Subtypes of IEEE 802.1AB: of a chassis 4 is a MAC address; of a port 3 is a MAC address, 7 a local name.
    return {
        name: {
            "lldp_rem_chassis_id_subtype": "4",
            "lldp_rem_chassis_id": port.neighbour.chassis,
            "lldp_rem_port_id_subtype": "3" if len(port.neighbour.port) == _MAC_LENGTH else "7",
            "lldp_rem_port_id": port.neighbour.port,
            "lldp_rem_port_desc": port.neighbour.port_description,
            "lldp_rem_sys_name": port.neighbour.system_name,
        }
        for name, port in switch.ports.items()
        if port.is_up
    }


def _chassis(switch: SimulatedSwitch) -> SonicRow:
    return {
        "lldp_loc_chassis_id_subtype": "4",
        "lldp_loc_chassis_id": switch.chassis,
        "lldp_loc_sys_name": switch.name,
        "lldp_loc_sys_desc": DESCRIPTION,
    }


_TABLES: Mapping[TablePath, Callable[[SimulatedSwitch], Mapping[str, object]]] = {
    ("COUNTERS_DB", "COUNTERS", "Ethernet*"): _counters,
    ("COUNTERS_DB", "COUNTERS", "Ethernet*", "Queues"): _queues,
    ("COUNTERS_DB", "PERIODIC_WATERMARKS", "Ethernet*", "PriorityGroups"): _groups,
    ("APPL_DB", "PORT_TABLE"): _states,
    ("APPL_DB", "LLDP_ENTRY_TABLE"): _neighbours,
    ("APPL_DB", "LLDP_LOC_CHASSIS"): _chassis,
}
