"""Table of `nvidia-smi topo -m`, made without that program."""

from __future__ import annotations

import re

from agent.topology.distance import MEANING
from agent.topology.network import NetworkDevice
from agent.topology.node import Node

_AFFINITY = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_NONE = "N/A"


def matrix(node: Node) -> tuple[list[str], list[list[str]]]:
    """Return the column heads, and a row for each GPU and each NIC, with its name first.

    Rows of GPUs end with CPUs, NUMA node and NUMA node of the GPU's memory.
    """
    cards = table_cards(node)
    ends = [(f"GPU{gpu.index}", gpu.address) for gpu in node.gpus]
    ends += [(f"NIC{place}", card.address) for place, (_, card) in enumerate(cards)]
    affinity = {
        gpu.address: [
            node.cpus.get(gpu.address) or _NONE,
            gpu.device.place.numa_node or _NONE,
            gpu.memory_node or _NONE,
        ]
        for gpu in node.gpus
    }
    rows = [
        [name, *(node.apart(address, other) for _, other in ends), *affinity.get(address, [])]
        for name, address in ends
    ]
    return [*(name for name, _ in ends), *_AFFINITY], rows


def table_cards(node: Node) -> list[tuple[str, NetworkDevice]]:
    """Return RDMA devices by name, in the order of the table: mlx5_2 precedes mlx5_10."""
    named = [(name, card) for card in node.cards for name in card.rdma]
    return sorted(named, key=lambda entry: _natural(entry[0]))


def table(node: Node) -> str:
    """Format the table and its legends like nvidia-smi: columns separated by tabs."""
    heads, rows = matrix(node)
    lines = ["\t" + "\t".join(heads)]
    for name, *cells in rows:
        words = [" X " if cell == "X" else cell for cell in cells]
        if len(words) == len(heads):
            *words, node_of_memory = words
            words += ["", node_of_memory]
        lines.append("\t".join([name, *words]))
    used = {cell for row in rows for cell in row}
    lines += ["", "Legend:", "", "  X    = Self"]
    lines += [
        f"  {distance.name:<4} = {meaning}"
        for distance, meaning in MEANING.items()
        if distance.name != "P2C" or "P2C" in used
    ]
    lines.append("  NV#  = Connection traversing a bonded set of # NVLinks")
    if cards := table_cards(node):
        lines += ["", "NIC Legend:", ""]
        lines += [f"  NIC{place}: {name}" for place, (name, _) in enumerate(cards)]
    return "\n".join(lines) + "\n"


def _natural(name: str) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
