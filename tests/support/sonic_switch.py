"""A gNMI server of a SONiC switch on loopback: real gRPC and the official messages, answers by a generator of tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from railscope_simulator import gnmi_server

encode_answer = gnmi_server.encode_answer

PORTS, STATES = ("COUNTERS_DB", "COUNTERS", "Ethernet*"), ("APPL_DB", "PORT_TABLE")
QUEUES = (*PORTS, "Queues")
GROUPS = ("COUNTERS_DB", "PERIODIC_WATERMARKS", "Ethernet*", "PriorityGroups")
POOLS = ("COUNTERS_DB", "COUNTERS_BUFFER_POOL_NAME_MAP")
PROFILE_NAMES, PROFILES = ("APPL_DB", "BUFFER_PG_TABLE"), ("APPL_DB", "BUFFER_PROFILE_TABLE")
NEIGHBOURS, CHASSIS = ("APPL_DB", "LLDP_ENTRY_TABLE"), ("APPL_DB", "LLDP_LOC_CHASSIS")
POOL_OID = "oid:0x18000000000b66"
Row = dict[str, Any]


def port_row(number: int) -> Row:
    """Return the counters of a port, distinguished by its number."""
    row = {
        f"SAI_PORT_STAT_IF_{name}": str(value)
        for name, value in {
            "IN_OCTETS": 10**18 + number, "OUT_OCTETS": (1 << 64) - 1 - number, "IN_UCAST_PKTS": 700, "IN_MULTICAST_PKTS": 80,
            "IN_BROADCAST_PKTS": 9, "IN_NON_UCAST_PKTS": 89, "OUT_UCAST_PKTS": 1100, "OUT_NON_UCAST_PKTS": 120 + number,
            "IN_ERRORS": (1 << 32) + number, "OUT_ERRORS": 200 + number, "IN_DISCARDS": 300 + number, "OUT_DISCARDS": 400,
        }.items()
    }  # fmt: skip
    for priority in range(8):
        counted, estimated = f"SAI_PORT_STAT_PFC_{priority}", f"EST_PORT_STAT_PFC_{priority}"
        row |= {
            f"{counted}_RX_PKTS": str(1000 * number + priority),
            f"{counted}_TX_PKTS": str(2000 * number + priority),
            f"{counted}_ON2OFF_RX_PKTS": str(500 * number + priority),
            f"{estimated}_RX_PAUSE_DURATION_US": str(3_000_000 + priority),
        }
    return row


def queue_row(number: int, queue: int) -> Row:
    """Return the counters of a queue; those of a lossless one have a watchdog."""
    first = 10_000 * number + 10 * queue
    row = {
        f"SAI_QUEUE_STAT_{name}": str(first + position)
        for position, name in enumerate((
            "PACKETS", "BYTES", "DROPPED_PACKETS", "DROPPED_BYTES", "WRED_ECN_MARKED_PACKETS", "WRED_ECN_MARKED_BYTES",
            "WRED_DROPPED_PACKETS", "WRED_DROPPED_BYTES", "CURR_OCCUPANCY_BYTES", "SHARED_WATERMARK_BYTES",
        ))
    }  # fmt: skip
    if queue in (3, 4):
        row |= {
            "PFC_WD_STATUS": "stormed" if queue == 4 else "operational",
            "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": str(queue),
            "PFC_WD_QUEUE_STATS_DEADLOCK_RESTORED": "2",
            "PFC_WD_QUEUE_STATS_TX_DROPPED_PACKETS": "30",
            "PFC_WD_QUEUE_STATS_RX_DROPPED_PACKETS": "4",
        }
    return row


def sonic_tables(port_count: int = 2) -> dict[tuple[str, ...], Row]:
    """Return the answers of a switch by target and path; `Ethernet4` has the alias `etp2`, as all have one."""
    numbers = range(1, port_count + 1)
    aliases = {number: f"etp{number}" for number in numbers}
    return {
        PORTS: {aliases[number]: port_row(number) for number in numbers},
        STATES: {
            "PortConfigDone": {"count": str(port_count)},
            **{
                f"Ethernet{4 * (number - 1)}": {
                    "alias": aliases[number],
                    "index": str(number),
                    "description": f"TO-SERVER-{number}",
                    "speed": "400000",
                    "admin_status": "up",
                    "oper_status": "up" if number % 2 else "down",
                }
                for number in numbers
            },
        },
        QUEUES: {
            f"{aliases[number]}:{queue}": queue_row(number, queue) if queue < 8 else {}
            for number in numbers
            for queue in range(16)
        },
        GROUPS: {
            f"{aliases[number]}:{group}": {
                "SAI_INGRESS_PRIORITY_GROUP_STAT_SHARED_WATERMARK_BYTES": str(5000 + group),
                "SAI_INGRESS_PRIORITY_GROUP_STAT_XOFF_ROOM_WATERMARK_BYTES": str(600 + group),
            }
            for number in numbers
            for group in range(8)
        },
        PROFILE_NAMES: {
            "Ethernet0:0": {"profile": "ingress_lossy"},
            "Ethernet0:3-4": {"profile": "pg_lossless_400000_5m"},
            "Ethernet4:3": {"profile": "[BUFFER_PROFILE_TABLE:pg_lossless_400000_5m]"},
        },
        PROFILES: {
            "ingress_lossy": {"size": "0"},
            "pg_lossless_400000_5m": {"size": "4608", "xon": "4608", "xoff": "160000"},
        },
        POOLS: {"ingress_lossless_pool": POOL_OID},
        ("COUNTERS_DB", "PERIODIC_WATERMARKS", POOL_OID): {
            "SAI_BUFFER_POOL_STAT_WATERMARK_BYTES": "3000",
            "SAI_BUFFER_POOL_STAT_XOFF_ROOM_WATERMARK_BYTES": "432640",
        },
        NEIGHBOURS: {
            "Ethernet0": {
                "lldp_rem_chassis_id_subtype": "4", "lldp_rem_chassis_id": "02:BB:00:00:00:01",
                "lldp_rem_port_id_subtype": "3", "lldp_rem_port_id": "02:bb:00:00:00:02",
                "lldp_rem_port_desc": "eth0", "lldp_rem_sys_name": "gpu-0001",
            },
        },
        CHASSIS: {
            "lldp_loc_chassis_id_subtype": "4", "lldp_loc_chassis_id": "02:aa:00:00:00:07",
            "lldp_loc_sys_name": "leaf-07", "lldp_loc_sys_desc": "SONiC Software Version: SONiC.202505",
        },
    }  # fmt: skip


@dataclass
class SonicSwitch:
    """The server's port, its answers, and the requests that it has received."""

    tables: dict[tuple[str, ...], Row] = field(default_factory=sonic_tables)
    port: int = 0
    raw: dict[tuple[str, ...], bytes] = field(default_factory=dict)
    """Messages that replace the answer for a path."""
    failures: dict[tuple[str, ...], grpc.StatusCode] = field(default_factory=dict)
    silent: set[tuple[str, ...]] = field(default_factory=set)
    requests: list[tuple[str, ...]] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, body: bytes, context: Any) -> bytes:
        """Answer a request for one path."""
        key = gnmi_server.decode_path(body)
        self.requests.append(key)
        self.metadata.append(dict(context.invocation_metadata()))
        if key in self.silent:
            await self.ended.wait()
        if key in self.failures:
            await context.abort(self.failures[key], "a status of the test")
        if key in self.raw:
            return self.raw[key]
        if key not in self.tables:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{key} not found")
        return encode_answer(key[0], json.dumps(self.tables[key]).encode())

    def write_switches(self, directory: Path, name: str = "leaf-07", **more: object) -> Path:
        """Write a switches file with this switch; return its path."""
        settings = {"address": f"127.0.0.1:{self.port}", "protocol": "gnmi"} | more
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        file = directory / "switches.toml"
        file.write_text(f"[{name}]\n" + "\n".join(lines) + "\n")
        return file


@asynccontextmanager
async def sonic_switch(
    credentials: grpc.ServerCredentials | None = None, handler: Any = None
) -> AsyncIterator[SonicSwitch]:
    """Serve a switch on a free port of loopback; `handler` replaces the one of its answers."""
    switch = SonicSwitch()
    handlers = {"Get": handler or grpc.unary_unary_rpc_method_handler(switch.answer)}
    async with gnmi_server.serve(handlers, "127.0.0.1:0", credentials) as port:
        switch.port = port
        try:
            yield switch
        finally:
            switch.ended.set()
