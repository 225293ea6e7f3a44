"""The Merkle tree against RFC 6962's definition, written down a second time."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, strategies as st

from railscope.audit.merkle import (
    EMPTY_ROOT,
    CompactRange,
    Hash,
    Nodes,
    TreeHead,
    consistency_proof,
    consistent,
    includes,
    inclusion_proof,
    leaf_hash,
    root_of,
)

MAX_ENTRIES = 70
LEAVES = [leaf_hash(b"%d" % number) for number in range(MAX_ENTRIES)]


def defined_root(leaves: list[Hash]) -> Hash:
    """MTH of RFC 6962, section 2.1, by its recursive definition."""
    if len(leaves) <= 1:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    both = defined_root(leaves[:split]) + defined_root(leaves[split:])
    return hashlib.sha256(b"\x01" + both).digest()


def nodes_over(leaves: list[Hash]) -> Nodes:
    def node(level: int, index: int) -> Hash:
        assert (index + 1) << level <= len(leaves), "only complete subtrees may be asked for"
        return defined_root(leaves[index << level : (index + 1) << level])

    return node


NODES = nodes_over(LEAVES)
ROOTS = [defined_root(LEAVES[:size]) for size in range(MAX_ENTRIES + 1)]


def test_the_root_is_the_defined_one_at_every_size() -> None:
    grown = CompactRange()
    assert grown.root == EMPTY_ROOT
    for size, leaf in enumerate(LEAVES, 1):
        grown.append(leaf)
        assert (grown.size, grown.root) == (size, ROOTS[size])
        assert root_of(NODES, size) == ROOTS[size]


def test_every_record_is_proven_in_every_size() -> None:
    for size in range(1, MAX_ENTRIES + 1):
        for index in range(size):
            proof = inclusion_proof(NODES, index, size)
            assert includes(LEAVES[index], index, size, proof, ROOTS[size])


def test_every_size_is_proven_to_continue_every_smaller_one() -> None:
    for new in range(MAX_ENTRIES + 1):
        for old in range(new + 1):
            proof = consistency_proof(NODES, old, new)
            assert consistent(TreeHead(old, ROOTS[old]), TreeHead(new, ROOTS[new]), proof)


@given(st.data())
def test_no_altered_inclusion_proof_is_accepted(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, MAX_ENTRIES))
    index = data.draw(st.integers(0, size - 1))
    proof = inclusion_proof(NODES, index, size)
    if proof and data.draw(st.booleans()):
        forged = altered(data, proof)
        assert not includes(LEAVES[index], index, size, forged, ROOTS[size])
    other = data.draw(st.integers(0, size - 1).filter(lambda at: at != index) | st.just(-1))
    assert not includes(LEAVES[index], other, size, proof, ROOTS[size])
    assert not includes(leaf_hash(b"other"), index, size, proof, ROOTS[size])


@given(st.data())
def test_no_altered_consistency_proof_is_accepted(data: st.DataObject) -> None:
    new = data.draw(st.integers(1, MAX_ENTRIES))
    old = data.draw(st.integers(1, new))
    proof = consistency_proof(NODES, old, new)
    trees = TreeHead(old, ROOTS[old]), TreeHead(new, ROOTS[new])
    assert not consistent(trees[0], trees[1], altered(data, proof) if proof else [LEAVES[0]])
    forged = TreeHead(old, defined_root([leaf_hash(b"forged"), *LEAVES[1:old]]))
    assert not consistent(forged, trees[1], proof)
    assert new == old or not consistent(trees[1], trees[0], proof)


def altered(data: st.DataObject, proof: list[Hash]) -> list[Hash]:
    """A proof with one bit flipped, one hash too few or one too many."""
    at = data.draw(st.integers(0, len(proof) - 1))
    how = data.draw(st.sampled_from(["flip", "drop", "repeat"]))
    if how == "flip":
        bit = data.draw(st.integers(0, 255))
        number = int.from_bytes(proof[at], "big") ^ (1 << bit)
        return [*proof[:at], number.to_bytes(32, "big"), *proof[at + 1 :]]
    if how == "drop":
        return [*proof[:at], *proof[at + 1 :]]
    return [*proof[: at + 1], *proof[at:]]


def test_proofs_of_what_is_not_there_are_rejected() -> None:
    with pytest.raises(ValueError, match="record index: 5: expected less than 5"):
        inclusion_proof(NODES, 5, 5)
    with pytest.raises(ValueError, match="consistency proof: from 4 to 3 records"):
        consistency_proof(NODES, 4, 3)
