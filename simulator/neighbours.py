"""Switch port of each simulated port, as the switches report by LLDP.

The fabric is rail-optimized: the NIC of rail i of every node is connected to leaf i of its group of 32
nodes. Storage has its own leaves. A node's number is the trailing number of its name.
"""

from __future__ import annotations

import re
import zlib

from railscope.capture import Json, Moment
from simulator.fabric import Cable
from simulator.model import NodeModel
from simulator.spec import MAX_GPUS

_NODES_OF_A_GROUP = 32
_LARGEST_FRAME_BYTES = 9216
_NUMBER = re.compile(r"(\d+)$")


def show(model: NodeModel, into: Moment) -> None:
    """Add the neighbours of all ports to a `Moment`."""
    number = _node_number(model.spec.node)
    storage = [cable for cable in model.cables if cable.port.rail is None]
    into.calls["lldp.neighbours()"] = {
        cable.port.interface: _neighbour(cable, number, storage) for cable in model.present_cables
    }


def _node_number(name: str) -> int:
    """Return the trailing number of a name, or a hash of a name without one."""
    match = _NUMBER.search(name)
    return int(match[1]) if match else zlib.crc32(name.encode()) % _NODES_OF_A_GROUP + 1


def _neighbour(cable: Cable, node: int, storage: list[Cable]) -> dict[str, Json]:
    group, place = divmod(max(node - 1, 0), _NODES_OF_A_GROUP)
    rail = cable.port.rail
    if rail is None:
        leaf, name = MAX_GPUS + storage.index(cable), f"storage-leaf-{storage.index(cable) + 1}"
    else:
        leaf = group * MAX_GPUS + rail
        name = f"leaf-{leaf + 1}"
    return {
        "chassis": f"9c:05:91:{group % 256:02x}:{leaf % 256:02x}:00",
        "port": f"Ethernet{place // 2 + 1}/{place % 2 + 1}",
        "port_description": f"to {cable.port.interface}",
        "system": name,
        "system_description": "Cumulus Linux version 5.9.2 running on NVIDIA SN5600",
        "management_address": f"10.1.{group % 256}.{leaf % 256}",
        "capabilities": ["bridge", "router"],
        "ttl_seconds": 120,
        "maximum_frame_bytes": _LARGEST_FRAME_BYTES,
        "port_vlan": 100,
    }
