"""Checkpoint of a log: its size and root hash, as a signed note. Source: C2SP tlog-checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass

from railscope.audit.merkle import HASH_BYTES, TreeHead
from railscope.audit.signed_note import (
    NoteError,
    PublicKey,
    SecretKey,
    decode_base64,
    encode_base64,
    sign,
    verify_note,
    verify_own_note,
)

SIZE = re.compile("0|[1-9][0-9]{0,18}")
"""Format of a tree size: decimal without leading zeros."""
NOTHING_SIGNED = "nothing has been signed"
"""Start of the answer (404) to a request for the checkpoint of a log without a signature."""


class CheckpointError(NoteError):
    """A signed text that is not a checkpoint of this log; the message states the reason."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Size and root hash of the log, signed by the log's operator.

    Three lines (origin, size, root in base64) as a signed note, with no extension lines. Source: C2SP
    tlog-checkpoint.
    """

    origin: str
    tree: TreeHead

    @property
    def text(self) -> str:
        """The signed text."""
        return f"{self.origin}\n{self.tree.size}\n{encode_base64(self.tree.root)}\n"

    def sign(self, signer: SecretKey) -> str:
        """Return the checkpoint as a signed note. Raises NoteError."""
        return sign(self.text, signer)


def read_checkpoint(note: str, key: PublicKey) -> Checkpoint:
    """Return the checkpoint in a note after verifying the key's signature.

    The key's name is the log's origin: one key signs for one log. Raises UnsignedError, ForgedError,
    CheckpointError, NoteError.
    """
    return _parse_text(verify_note(note, key), key)


def read_own_checkpoint(note: str, key: PublicKey) -> Checkpoint:
    """Return the checkpoint in the note of the log's writer, which has its signature and no other one.

    Raises UnsignedError, ForgedError, CheckpointError, NoteError.
    """
    return _parse_text(verify_own_note(note, key), key)


def _parse_text(text: str, key: PublicKey) -> Checkpoint:
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != len(("origin", "size", "root")) or not SIZE.fullmatch(lines[1]):
        message = f"invalid checkpoint: {text[:100]!r}: expected origin, size and root"
        raise CheckpointError(message)
    origin, size, root = lines
    if origin != key.name:
        message = (
            f"wrong origin of a checkpoint: {origin!r}: expected {key.name!r}, the name of the key"
        )
        raise CheckpointError(message)
    digest = decode_base64(root)
    if len(digest) != HASH_BYTES:
        message = f"invalid root {root[:100]!r}: expected {HASH_BYTES} bytes in canonical base64"
        raise CheckpointError(message)
    return Checkpoint(origin, TreeHead(int(size), digest))
