"""Table of the distances between the GPUs and NICs of a node, as `nvidia-smi topo -m` prints it, made without that program."""

from __future__ import annotations

import re

from railscope.untrusted_text import printable
from railscope_agent.topology import node_topology, pci_distance
from railscope_agent.topology.network_device import NetworkDevice

_AFFINITY = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_NONE = "N/A"


def create_matrix(node: node_topology.NodeTopology) -> tuple[list[str], list[list[str]]]:
    """Return the column heads, and a row for each GPU and each NIC, with its name first.

    Rows of GPUs end with CPUs, NUMA node and NUMA node of the GPU's memory.
    """
    nics = matrix_nics(node)
    ends = [(f"GPU{gpu.index}", gpu.address) for gpu in node.gpus]
    ends += [(f"NIC{place}", nic.address) for place, (_, nic) in enumerate(nics)]
    affinity = {
        gpu.address: [
            node.cpus.get(gpu.address) or _NONE,
            gpu.device.place.numa_node or _NONE,
            gpu.memory_node or _NONE,
        ]
        for gpu in node.gpus
    }
    rows = [
        [
            name,
            *(node.format_distance(address, other) for _, other in ends),
            *affinity.get(address, []),
        ]
        for name, address in ends
    ]
    return [*(name for name, _ in ends), *_AFFINITY], rows


def matrix_nics(node: node_topology.NodeTopology) -> list[tuple[str, NetworkDevice]]:
    """Return RDMA devices by name, in the order of the table: mlx5_2 precedes mlx5_10.

    The device of bonded ports is at the first of them.
    """
    # Reversed, so that the first of several ports with one name remains.
    named = {name: nic for nic in reversed(node.nics) for name in nic.rdma}
    return sorted(named.items(), key=lambda entry: _natural_order(entry[0]))


def format_matrix(node: node_topology.NodeTopology) -> str:
    """Format the table and its legends like nvidia-smi: columns separated by tabs."""
    heads, rows = create_matrix(node)
    lines = ["\t" + "\t".join(heads)]
    for name, *cells in rows:
        shown = [" X " if cell == "X" else cell for cell in cells]
        # As nvidia-smi does, which has an empty column before the last one in the rows of GPUs.
        if len(shown) == len(heads):
            shown.insert(-1, "")
        lines.append("\t".join([name, *shown]))
    used = {cell for row in rows for cell in row}
    lines += ["", "Legend:", "", "  X    = Self"]
    lines += [
        f"  {distance.name:<4} = {meaning}"
        for distance, meaning in pci_distance.DISTANCE_MEANINGS.items()
        if distance.name != "P2C" or "P2C" in used
    ]
    lines.append("  NV#  = Connection traversing a bonded set of # NVLinks")
    if nics := matrix_nics(node):
        lines += ["", "NIC Legend:", ""]
        lines += [f"  NIC{place}: {printable(name)}" for place, (name, _) in enumerate(nics)]
    return "\n".join(lines) + "\n"


def _natural_order(name: str) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
