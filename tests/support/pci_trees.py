"""Random PCI trees, and the distance of two devices by walking from one to the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from railscope_agent.topology.pci import PciPlace
from railscope_agent.topology.pci_distance import PciDistance

SHAPES = st.recursive(
    st.just("device"), lambda below: st.lists(below, min_size=1, max_size=3), max_leaves=6
)
"""Children of a root port: a device, or a switch with the children of its ports."""
BRIDGES = st.lists(
    st.tuples(st.sampled_from(["0", "1", ""]), st.lists(SHAPES, min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
)
"""Host bridges: the NUMA node of each, and its root ports."""


@dataclass
class PciTree:
    """Positions of all devices, and the same tree as a graph of host bridges, switches and devices."""

    places: list[PciPlace] = field(default_factory=list)
    edges: dict[str, set[str]] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)

    def join(self, one: str, other: str) -> None:
        self.edges.setdefault(one, set()).add(other)
        self.edges.setdefault(other, set()).add(one)

    def walk(self, start: str, end: str) -> list[str]:
        """Return the path between two nodes of the graph, breadth first; empty if there is none."""
        paths = deque([[start]])
        while paths:
            path = paths.popleft()
            if path[-1] == end:
                return path[1:-1]
            paths.extend([*path, n] for n in sorted(self.edges[path[-1]]) if n not in path)
        return []


def plant(bridges: list[tuple[str, list[Any]]]) -> PciTree:
    """Return the tree of a drawn shape."""
    tree, addresses = PciTree(), _addresses()
    for number, (numa_node, ports) in enumerate(bridges):
        bridge = f"pci{number:04x}:00"
        tree.numa[bridge] = numa_node
        for shape in ports:
            _grow(tree, PciPlace(bridge, (next(addresses),), numa_node), bridge, shape, addresses)
    return tree


def _grow(tree: PciTree, port: PciPlace, above: str, shape: Any, addresses: Iterator[str]) -> None:
    own = next(addresses)
    chain = (*port.chain, own)
    tree.join(above, own)
    if shape == "device":
        tree.places.append(PciPlace(port.bridge, chain, port.numa_node))
        return
    for below in shape:
        downstream = PciPlace(port.bridge, (*chain, next(addresses)), port.numa_node)
        _grow(tree, downstream, own, below, addresses)


def _addresses() -> Iterator[str]:
    for number in range(1 << 16):
        yield f"0000:{number >> 5:02x}:{number & 31:02x}.0"


def walked_distance(tree: PciTree, one: PciPlace, other: PciPlace) -> PciDistance:
    """Return the distance by the devices between: host bridges, or else switches."""
    if one.bridge != other.bridge:
        same = tree.numa[one.bridge] == tree.numa[other.bridge] != ""
        return PciDistance.NODE if same else PciDistance.SYS
    between = tree.walk(one.address, other.address)
    if one.bridge in between:
        return PciDistance.PHB
    return PciDistance.PIX if len(between) <= 1 else PciDistance.PXB
