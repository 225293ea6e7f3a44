"""Witnesses with a valid cosignature of a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from railscope.audit import log_checkpoint, signed_note
from railscope_collector.audit import cosignatures


@dataclass(frozen=True, slots=True)
class Cosigner:
    """A node that has cosigned a checkpoint of the log, with the checkpoint's size and the time."""

    node: str
    size: int
    seconds: int


def signed_notes(
    cosigned: Mapping[str, cosignatures.CosignedCheckpoint], key: signed_note.PublicKey
) -> Iterator[str]:
    """Yield the notes of witnesses that the log's key has signed: one for each tree."""
    sizes = set()
    for cosigned_checkpoint in cosigned.values():
        try:
            tree = log_checkpoint.read_checkpoint(cosigned_checkpoint.note, key).tree
        except signed_note.NoteError:
            continue  # reported by `find_cosigners`
        if tree not in sizes:
            sizes.add(tree)
            yield cosigned_checkpoint.note


def find_cosigners(
    cosigned: Mapping[str, cosignatures.CosignedCheckpoint],
    key: signed_note.PublicKey,
    keys: Mapping[str, str],
    *,
    is_partial: bool,
) -> tuple[tuple[Cosigner, ...], tuple[str, ...]]:
    """Return the witnesses with a valid cosignature, and the defects of the others.

    `keys` are those of the witnesses, as recorded in the log; some may be in records that were not read (`is_partial`).
    """
    cosigners, doubts = [], []
    unread = cosigned.keys() - keys.keys() if is_partial else set()
    for node, cosigned_checkpoint in sorted(cosigned.items()):
        if node in unread:
            continue
        try:
            tree = log_checkpoint.read_checkpoint(cosigned_checkpoint.note, key).tree
            seconds = cosigned_checkpoint.seconds()
        except signed_note.NoteError as error:
            doubts.append(f"invalid cosignature of witness {node}: {error}")
            continue
        # Else the writer of the log could invent a witness with a key of its own.
        if keys.get(node) != cosigned_checkpoint.key:
            doubts.append(f"wrong key of witness {node}: expected the recorded one")
            continue
        # Else one agent could count as several witnesses.
        if not cosigned_checkpoint.is_named_for(node):
            doubts.append(f"wrong key of witness {node}: it has the name of another node")
            continue
        cosigners.append(Cosigner(node, tree.size, seconds))
    doubts += [
        f"missing cosignature of witness {node}, whose key is recorded"
        for node in sorted(keys.keys() - cosigned.keys())
    ]
    if unread:
        doubts.append(f"witnesses whose keys are not in the records that were read: {len(unread)}")
    cosigners.sort(key=lambda cosigner: (-cosigner.size, cosigner.node))
    return tuple(cosigners), tuple(doubts)
