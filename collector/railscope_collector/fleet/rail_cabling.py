"""Rails and their leaves: NICs that end on a leaf of another rail.

A rail is correct when its NICs in a pod end on the leaves of the rail. Which leaves these are follows from the
majority: leaves of several rails, several leaves of a rail, and fabrics without rails are correct. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

MIN_PEERS = 3
"""Other nodes whose NICs of the rail end on an expected leaf."""
MIN_LEAF_RATIO = 4
"""Nodes of the largest rail of a leaf, and of the other leaves of a rail, for each node of a rail that does not belong
there: with more of them it is a design."""
MIN_POD_RATIO = 3
"""Nodes of a pod for each one with a NIC on a leaf of another rail: with more of them it is not cabled by rails."""


class RailEnd(NamedTuple):
    """A NIC of a rail, as node and interface, and the leaf at the other end of its cable."""

    nic: tuple[str, str]
    rail: str
    leaf: str


class WrongRail(NamedTuple):
    """A NIC on a leaf of another rail, and the leaves of its own."""

    end: RailEnd
    leaves: tuple[str, ...]
    peers: int
    """Other nodes with a NIC of the rail on these leaves."""


def find_wrong_rails(ends: Iterable[RailEnd]) -> Iterator[WrongRail]:
    """Yield the NICs that end on a leaf of another rail, in their order."""
    rail_ends = sorted(end for end in ends if end.rail and end.leaf)
    nodes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for end in rail_ends:
        nodes[end.leaf][end.rail].add(end.nic[0])
    rails = {leaf: set(_usual_rails(of_leaf)) for leaf, of_leaf in nodes.items()}
    usual = [end for end in rail_ends if end.rail in rails[end.leaf]]
    wrong = [end for end in rail_ends if end.rail not in rails[end.leaf]]
    pods = _Pods(usual if wrong else ())
    # Each node once, by one of its NICs.
    total, misplaced = (
        Counter(map(pods.find, {end.nic[0]: end for end in each}.values()))
        for each in (rail_ends, wrong)
    )
    leaves: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for end in usual if wrong else ():
        leaves[pods.find(end), end.rail][end.leaf].add(end.nic[0])
    for end in wrong:
        pod = pods.find(end)
        of_rail = leaves.get((pod, end.rail), {})
        peers_on = {leaf: members - {end.nic[0]} for leaf, members in of_rail.items()}
        expected = [leaf for leaf, members in peers_on.items() if len(members) >= MIN_PEERS]
        peers = len(set[str]().union(*(peers_on[leaf] for leaf in expected)))
        elsewhere = nodes[end.leaf][end.rail].union(*peers_on.values()) - {end.nic[0]}
        if (
            expected
            and peers >= MIN_LEAF_RATIO * (len(elsewhere) - peers)
            and MIN_POD_RATIO * misplaced[pod] <= total[pod]
            and all(
                rails[leaf].isdisjoint(rails[end.leaf])
                for leaf, members in peers_on.items()
                if members
            )
        ):  # otherwise leaves are of no rail
            yield WrongRail(end, tuple(sorted(expected)), peers)


def _usual_rails(nodes: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the rails of a leaf, given their nodes: not those of few nodes compared with its largest rail."""
    largest = max(map(len, nodes.values()))
    for rail, members in nodes.items():
        if len(members) == largest or len(members) > max(1, largest // MIN_LEAF_RATIO):
            yield rail


class _Pods:
    """Pods by their first leaf: leaves that nodes share are of one pod."""

    def __init__(self, ends: Iterable[RailEnd]) -> None:
        self._parent: dict[str, str] = {}
        self._leaf_of_node: dict[str, str] = {}
        for end in ends:
            first = self._leaf_of_node.setdefault(end.nic[0], end.leaf)
            self._parent[self._root(end.leaf)] = self._root(first)

    def _root(self, leaf: str) -> str:
        while (parent := self._parent.setdefault(leaf, leaf)) != leaf:
            # Shortens the path (union-find), so that the search stays nearly constant.
            self._parent[leaf] = self._parent[parent]
            leaf = parent
        return leaf

    def find(self, end: RailEnd) -> str:
        """Return the pod of a node, or of the leaf if no other NIC of the node shows it."""
        return self._root(self._leaf_of_node.get(end.nic[0], end.leaf))
