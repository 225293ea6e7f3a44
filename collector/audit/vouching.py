"""Verification of the cosignatures stored beside a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.audit.guard import DIRECTORY
from collector.audit.witnesses import Vouched
from railscope.audit.checkpoint import read_checkpoint
from railscope.audit.note import NoteError, PublicKey


@dataclass(frozen=True, slots=True)
class Witness:
    """A node that has cosigned a checkpoint of the log, with the checkpoint's size and the time."""

    node: str
    size: int
    seconds: int


def signed_notes(said: Mapping[str, Vouched], key: PublicKey) -> Iterator[str]:
    """Yield the notes of witnesses that the log's key has signed: one for each tree."""
    sizes = set()
    for vouched in said.values():
        try:
            tree = read_checkpoint(vouched.note, key).tree
        except NoteError:
            continue  # reported by `vouched_for`
        if tree not in sizes:
            sizes.add(tree)
            yield vouched.note


def disputed_notes(directory: Path) -> Iterator[str]:
    """Yield the checkpoints of agents that contradict this log. Raises OSError."""
    disputed = directory / DIRECTORY
    for path in sorted(disputed.iterdir()) if disputed.exists() else ():
        yield path.read_bytes().decode(errors="replace")


def vouched_for(
    said: Mapping[str, Vouched], key: PublicKey, keys: Mapping[str, str]
) -> tuple[tuple[Witness, ...], tuple[str, ...]]:
    """Return the witnesses with a valid cosignature, and the defects of the others.

    `keys` are those of the witnesses, as recorded in the log.
    """
    found, doubts = [], []
    for node, vouched in sorted(said.items()):
        try:
            tree = read_checkpoint(vouched.note, key).tree
            seconds = vouched.seconds()
        except NoteError as error:
            doubts.append(f"witness {node}: {error}")
            continue
        if keys.get(node) != vouched.key:
            doubts.append(f"witness {node}: its key is not the one that the log has recorded")
            continue
        if not vouched.is_of(node):
            doubts.append(f"witness {node}: its key is in the name of another")
            continue
        found.append(Witness(node, tree.size, seconds))
    doubts += [
        f"witness {node}: its key is recorded, and what it has cosigned is not there"
        for node in sorted(keys.keys() - said.keys())
    ]
    found.sort(key=lambda one: (-one.size, one.node))
    return tuple(found), tuple(doubts)
