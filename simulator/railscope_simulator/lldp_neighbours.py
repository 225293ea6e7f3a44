"""Ports at the other ends of the cables of a node, as its NICs receive them by LLDP."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

from railscope.capture import CaptureMoment, Json
from railscope_simulator import (
    node_model,
)
from railscope_simulator.spec import MAX_GPUS

LEAF = "leaf-"
"""Start of the name of the leaf switch of a rail."""
_NODES_OF_A_GROUP = 32
_LARGEST_FRAME_BYTES = 9216
_NUMBER = re.compile(r"(\d+)$")


def show_neighbours(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add the neighbours of all ports to a `CaptureMoment`.

    The fabric is rail-optimized: the NIC of rail i of every node is connected to leaf i of its group of 32
    nodes. Storage has its own leaves. A node's number is the trailing number of its name.
    """
    leaves = neighbours_of(model)
    into.calls["lldp.neighbours()"] = {
        cable.port.interface: _neighbour(leaves[cable.port.interface], cable.port.interface)
        for cable in model.present_cables
    }


def _node_number(name: str) -> int:
    """Return the trailing number of a name, or a hash of a name without one."""
    match = _NUMBER.search(name)
    # Not hash(), which differs between processes.
    return int(match[1]) if match else zlib.crc32(name.encode()) % _NODES_OF_A_GROUP + 1


def leaf_name(group: int, rail: int) -> str:
    """Return the name of the leaf switch of a rail in a group of nodes."""
    return f"{LEAF}{group * MAX_GPUS + rail + 1}"


class LeafPort(NamedTuple):
    """Port of a leaf switch; `place` is its number among the ports of the leaf."""

    switch: str
    chassis: str
    management_address: str
    place: int

    @property
    def alias(self) -> str:
        """Name of the port, as LLDP has it: two NICs share one port of the front panel."""
        return f"Ethernet{self.place // 2 + 1}/{self.place % 2 + 1}"


def neighbours_of(model: node_model.NodeModel) -> dict[str, LeafPort]:
    """Return the port at the other end of each cable of a node, by interface."""
    group, place = divmod(max(_node_number(model.spec.node) - 1, 0), _NODES_OF_A_GROUP)
    storage = [cable.port for cable in model.cables if cable.port.rail is None]
    found = {}
    for port in (cable.port for cable in model.cables):
        if port.rail is None:
            number = storage.index(port)
            leaf, name = (
                MAX_GPUS + number,
                f"storage-leaf-{group * len(storage) + number + 1}",
            )
        else:
            leaf, name = group * MAX_GPUS + port.rail, leaf_name(group, port.rail)
        chassis = f"9c:05:91:{group % 256:02x}:{leaf % 256:02x}:00"
        address = f"10.1.{group % 256}.{leaf % 256}"
        found[port.interface] = LeafPort(name, chassis, address, place)
    return found


def _neighbour(leaf: LeafPort, interface: str) -> dict[str, Json]:
    return {
        "chassis": leaf.chassis,
        "port": leaf.alias,
        "port_description": f"to {interface}",
        "system": leaf.switch,
        "system_description": "Cumulus Linux version 5.9.2 running on NVIDIA SN5600",
        "management_address": leaf.management_address,
        "capabilities": ["bridge", "router"],
        "ttl_seconds": 120,
        "maximum_frame_bytes": _LARGEST_FRAME_BYTES,
        "port_vlan": 100,
    }
