"""Nodes, pods and leaf switches of a rail-optimized fabric, and the flows of collectives in it.

The NIC of rail r of every node of a pod is connected to leaf r of this pod; leaves of a rail are connected by
spines. Collectives send on every rail to the NIC of the same rail (NCCL moves data between rails over
NVLink), so that each rail is a fabric of its own: arrays have the shape (nodes, rails) or (pods, rails).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.intp]
Pattern: TypeAlias = Literal["ring", "tree", "all_to_all", "pipeline"]


@dataclass(frozen=True, slots=True)
class ClusterTopology:
    """Size of a cluster. `uplinks` is the uplink capacity of a leaf, relative to that of its NICs."""

    pods: int = 1
    nodes_per_pod: int = 4
    rails: int = 8
    uplinks: float = 1.0

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.pods * self.nodes_per_pod

    def node_name(self, number: int) -> str:
        """Return the name of a node; its trailing number is the place in the racks, from 1 on (LLDP)."""
        pod, place = divmod(number, self.nodes_per_pod)
        return f"gpu-node-{pod * 32 + place + 1}"

    def pod_of(self, nodes: IntArray) -> IntArray:
        """Return the pods of nodes."""
        return nodes // self.nodes_per_pod


@dataclass(frozen=True, slots=True, eq=False)
class FlowGroup:
    """Flows of one job on each of its rails, of the shape (flows,).

    `weights` are shares of the NIC's line rate while the job exchanges at full speed.
    """

    sources: IntArray
    destinations: IntArray
    weights: FloatArray
    rails: IntArray


def collective_flows(
    pattern: Pattern, members: Sequence[int], rate: float, rails: Sequence[int]
) -> FlowGroup:
    """Return the flows of a collective between nodes, each of which sends at most this rate.

    A ring sends to the next node, and so does a pipeline, except for its last node. In a tree
    each node exchanges with its parent; half of the nodes are leaves of it, and a parent has two children
    (NCCL uses two complementary trees, which is why the flows of one have half of the rate).
    """
    nodes = np.array(members, dtype=np.intp)
    count = len(nodes)
    if pattern == "all_to_all":
        source, destination = (indices.ravel() for indices in np.indices((count, count)))
        other = source != destination
        source, destination = source[other], destination[other]
        weights = np.full(len(source), rate / max(count - 1, 1))
    elif pattern == "tree":
        child = np.arange(1, count)
        parent = (child - 1) // 2
        # The second tree is the first one in reverse order: the leaves of one are inner nodes of the other.
        source = np.concatenate([child, parent, count - 1 - child, count - 1 - parent])
        destination = np.concatenate([parent, child, count - 1 - parent, count - 1 - child])
        weights = np.full(len(source), rate / 4)
    else:
        # A single node has no other to send to.
        source = np.arange(count if pattern == "ring" and count > 1 else count - 1)
        destination = (source + 1) % count
        weights = np.full(len(source), rate)
    return FlowGroup(nodes[source], nodes[destination], weights, np.array(rails, dtype=np.intp))


def incast_flows(
    senders: Sequence[int], receiver: int, rate: float, rails: Sequence[int]
) -> FlowGroup:
    """Return flows of several nodes to one, each at this rate."""
    sources = np.array([node for node in senders if node != receiver], dtype=np.intp)
    destinations = np.full(len(sources), receiver, dtype=np.intp)
    weights = np.full(len(sources), rate)
    return FlowGroup(sources, destinations, weights, np.array(rails, dtype=np.intp))
