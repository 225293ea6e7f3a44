"""NICs on leaves of other rails, and cabling in which no rail is wrong."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, strategies as st

from railscope_collector.fleet.rail_cabling import RailEnd, find_wrong_rails

LeafOf = Callable[[int, int], str]


def cluster(nodes: int, rails: int, leaf_of: LeafOf) -> list[RailEnd]:
    """Return the ends of a cluster; `leaf_of` returns the leaf of a node's rail."""
    return [
        RailEnd((f"n{node:02}", f"eth{rail}"), str(rail), leaf_of(node, rail))
        for node in range(nodes)
        for rail in range(rails)
    ]


def by_rail(_: int, rail: int) -> str:
    return f"leaf-{rail}"


def by_pod(node: int, rail: int) -> str:
    return f"leaf-{node // 8}-{rail}"


def wrong(ends: list[RailEnd]) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {"_".join(each.end.nic): (each.end.leaf, each.leaves) for each in find_wrong_rails(ends)}


DESIGNS: dict[str, LeafOf] = {
    "one leaf for each rail": by_rail,
    "pods": by_pod,
    "one leaf for all rails": lambda _node, _rail: "leaf",
    "one leaf for each rack": lambda node, _rail: f"leaf-{node // 4}",
    "a leaf for four rails": lambda node, rail: f"leaf-{node // 8}-{rail // 4}",
    "two leaves for each rail, by node": lambda node, rail: f"leaf-{rail}-{node % 2}",
    "three leaves for each rail, by node": lambda node, rail: f"leaf-{rail}-{node % 3}",
    "unknown": lambda _node, _rail: "",
}


@pytest.mark.parametrize("leaf_of", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("nodes", [3, 24])
def test_no_rail_is_wrong_by_design(leaf_of, nodes):
    assert wrong(cluster(nodes, 8, leaf_of)) == {}


@pytest.mark.parametrize("nodes", [6])
def test_third_of_a_rail_on_the_leaf_of_another_is_a_design(nodes):
    ends = cluster(nodes, 3, lambda node, rail: f"leaf-{0 if rail == 1 and not node % 3 else rail}")
    assert wrong(ends) == {}


@pytest.mark.parametrize("leaves", [4])
def test_cabling_without_rails_has_no_wrong_ones(leaves):
    random = Random(leaves)  # noqa: S311 - cabling, no secret
    for _ in range(20):
        ends = cluster(32, 8, lambda _node, _rail: f"leaf-{random.randrange(leaves)}")
        assert wrong(ends) == {}


@given(
    st.integers(5, 20),
    st.integers(2, 8),
    st.sampled_from(["one leaf for each rail", "pods", "two leaves for each rail, by node"]),
    st.data(),
)
def test_one_moved_cable_is_found_wherever_it_ends(nodes, rails, design, data):
    """Whatever the order of the ends; a leaf of its own rail, or a new one, is not of another rail."""
    nodes += nodes * (design == "two leaves for each rail, by node")
    ends = cluster(nodes, rails, DESIGNS[design])
    position = data.draw(st.integers(0, len(ends) - 1))
    leaf = data.draw(st.sampled_from([*sorted({end.leaf for end in ends}), "new"]))
    is_other = leaf not in {end.leaf for end in ends if end.rail == ends[position].rail} | {"new"}
    on_leaf = {end.nic[0] for end in ends if end.leaf == leaf}
    ends[position] = ends[position]._replace(leaf=leaf)
    expected = [ends[position]] if is_other and len(on_leaf) > 1 else []
    peers = {end.nic[0] for end in ends if end.leaf and end.rail == ends[position].rail}
    of_pod = {
        n
        for n in peers
        if design != "pods" or int(n[1:]) // 8 == int(ends[position].nic[0][1:]) // 8
    }
    if len(of_pod) <= 3:  # with itself
        expected = []
    found = list(find_wrong_rails(data.draw(st.permutations(ends))))
    assert [each.end for each in found] == expected
