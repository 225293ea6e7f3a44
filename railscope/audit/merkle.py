"""The Merkle tree of RFC 6962: hashes, roots, and publicly verifiable proofs.

  leaf   SHA-256(0x00 || record)
  node   SHA-256(0x01 || left || right), split at the largest power of two below the size
  empty  SHA-256("")

Building a proof needs the hashes of complete subtrees only (`Nodes`), in any storage.
Verification follows RFC 9162, sections 2.1.3.2 and 2.1.4.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Hash = bytes
"""SHA-256 hash of 32 bytes."""
Nodes = Callable[[int, int], Hash]
"""Hash of a complete subtree, by its level (0 is a leaf) and its index from the left."""

HASH_BYTES = 32
EMPTY_ROOT: Hash = hashlib.sha256().digest()


def leaf_hash(record: bytes) -> Hash:
    """Hash of a record as a leaf."""
    # Different first bytes for leaves and nodes: no record can be passed off as a node (RFC 6962, 2.1).
    return hashlib.sha256(b"\x00" + record).digest()


def node_hash(left: Hash, right: Hash) -> Hash:
    """Hash of two subtrees side by side."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(slots=True)
class CompactRange:
    """Append-only tree: its size, and the roots of its complete subtrees."""

    size: int = 0
    roots: list[Hash] = field(default_factory=list)
    """Largest first; as many as the size has one-bits."""

    def append(self, leaf: Hash) -> list[Hash]:
        """Append a leaf; return the hashes of the complete subtrees that end with it, by level: about two on average."""
        completed, size = [leaf], self.size
        # Each one-bit of the size is a complete subtree, which joins the new one as in an addition with carry.
        while size & 1:
            completed.append(node_hash(self.roots.pop(), completed[-1]))
            size >>= 1
        self.roots.append(completed[-1])
        self.size += 1
        return completed

    def copy(self) -> CompactRange:
        """Return a tree that grows separately."""
        return CompactRange(self.size, list(self.roots))

    @property
    def root(self) -> Hash:
        """Root of the complete tree."""
        return _root_of_subtrees(self.roots)

    @property
    def head(self) -> TreeHead:
        """Size and root."""
        return TreeHead(self.size, self.root)


def subtrees(size: int) -> Iterator[tuple[int, int]]:
    """Yield the complete subtrees, (level, index), that make up a tree of this size, from the left."""
    return _pieces(0, size)


def root_of(nodes: Nodes, size: int) -> Hash:
    """Root of the first `size` leaves."""
    return _root_of_subtrees([nodes(level, index) for level, index in subtrees(size)])


def inclusion_proof(nodes: Nodes, index: int, size: int) -> list[Hash]:
    """Return the audit path from the leaf at `index` to the root of `size` leaves.

    Raises ValueError if there is no such leaf.
    """
    if not 0 <= index < size:
        message = f"invalid record index: {index}: expected less than {size}, the size of the tree"
        raise ValueError(message)
    proof, _ = _hashes_beside(nodes, index, size, lambda start, end: end - start == 1)
    return proof[::-1]


def consistency_proof(nodes: Nodes, old: int, new: int) -> list[Hash]:
    """Return the proof that the tree of `old` leaves is a prefix of the tree of `new` leaves.

    Raises ValueError if the old tree is larger.
    """
    if not 0 <= old <= new:
        message = (
            f"invalid consistency proof: from {old} to {new} records: expected a later size that is"
            " not smaller"
        )
        raise ValueError(message)
    if old == 0:
        return []
    proof, start = _hashes_beside(nodes, old - 1, new, lambda _, end: end == old)
    if start:
        proof.append(_range_hash(nodes, start, old))
    return proof[::-1]


def _hashes_beside(
    nodes: Nodes, index: int, size: int, is_last: Callable[[int, int], bool]
) -> tuple[list[Hash], int]:
    """Return the sibling hashes of the path from the root to a leaf, down to the last subtree; and its start."""
    start, end = 0, size
    hashes = []
    while not is_last(start, end):
        left = 1 << ((end - start - 1).bit_length() - 1)  # a power of two, below the size
        middle = start + left
        if index < middle:
            hashes.append(_range_hash(nodes, middle, end))
            end = middle
        else:
            hashes.append(_range_hash(nodes, start, middle))
            start = middle
    return hashes, start


def includes(leaf: Hash, index: int, size: int, proof: Sequence[Hash], root: Hash) -> bool:
    """True if the proof leads from the leaf at `index` to the root of a tree of `size` leaves."""
    sides = _sides(index, size - 1, len(proof)) if 0 <= index < size else None
    if sides is None:
        return False
    hashed = leaf
    for sibling, is_left in zip(proof, sides, strict=True):
        hashed = node_hash(sibling, hashed) if is_left else node_hash(hashed, sibling)
    return hashed == root


def _sides(index: int, last: int, siblings: int) -> list[bool] | None:
    """Return for each sibling on the way from a node to the root whether it is on the left side.

    None if the way has another number of siblings. `last` is the index of the last node of the level.
    """
    sides: list[bool] = []
    while last and len(sides) < siblings:
        sides.append(bool(index & 1) or index == last)
        if sides[-1]:
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        index, last = index >> 1, last >> 1
    return sides if last == 0 and len(sides) == siblings else None


@dataclass(frozen=True, slots=True)
class TreeHead:
    """Size and root hash of a tree, as in a checkpoint."""

    size: int
    root: Hash


def consistent(old: TreeHead, new: TreeHead, proof: Sequence[Hash]) -> bool:
    """True if the proof shows that the old tree is a prefix of the new one."""
    if old.size > new.size or old.size < 0:
        return False
    if old.size == new.size:
        return not proof and old.root == new.root
    if old.size == 0:
        return not proof and old.root == EMPTY_ROOT
    path = list(proof)
    # A complete tree is a node of the new one: its root is known, and is not in the proof (RFC 9162, 2.1.4.2).
    if old.size & (old.size - 1) == 0:
        path.insert(0, old.root)
    return bool(path) and _climbs(old, new, path)


def _climbs(old: TreeHead, new: TreeHead, path: list[Hash]) -> bool:
    index, last = old.size - 1, new.size - 1
    while index & 1:
        index, last = index >> 1, last >> 1
    old_root = new_root = path[0]
    sides = _sides(index, last, len(path) - 1)
    if sides is None:
        return False
    for sibling, is_left in zip(path[1:], sides, strict=True):
        if is_left:
            old_root = node_hash(sibling, old_root)
            new_root = node_hash(sibling, new_root)
        else:
            new_root = node_hash(new_root, sibling)
    return old_root == old.root and new_root == new.root


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Complete subtrees that make up [start, end), where `start` is aligned to the first."""
    while start < end:
        level = (end - start).bit_length() - 1
        yield level, start >> level
        start += 1 << level


def _range_hash(nodes: Nodes, start: int, end: int) -> Hash:
    return _root_of_subtrees([nodes(level, index) for level, index in _pieces(start, end)])


def _root_of_subtrees(roots: Sequence[Hash]) -> Hash:
    """Root over complete subtrees, the largest first."""
    if not roots:
        return EMPTY_ROOT
    joined = roots[-1]
    for root in reversed(roots[:-1]):
        joined = node_hash(root, joined)
    return joined
