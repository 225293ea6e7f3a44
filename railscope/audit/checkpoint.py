"""Checkpoints: size and root hash of the log, signed by the log's operator.

Three lines - origin, size, root in base64 - as a signed note, with no extension lines.
Source: C2SP tlog-checkpoint.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from railscope.audit.merkle import HASH_BYTES, Tree
from railscope.audit.note import NoteError, PublicKey, SecretKey, sign, verified

SIZE = re.compile("0|[1-9][0-9]{0,18}")
"""Format of a tree size: decimal without leading zeros."""


class CheckpointError(NoteError):
    """A signed text that is not a checkpoint of this log; the message states the reason."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Signed content of a checkpoint: origin, tree size and root hash."""

    origin: str
    tree: Tree

    @property
    def text(self) -> str:
        """The signed text."""
        root = base64.b64encode(self.tree.root).decode()
        return f"{self.origin}\n{self.tree.size}\n{root}\n"

    def signed(self, signer: SecretKey) -> str:
        """Return the checkpoint as a signed note. Raises NoteError."""
        return sign(self.text, signer)


def read_checkpoint(note: str, key: PublicKey) -> Checkpoint:
    """Return the checkpoint in a note after verifying the key's signature.

    The key's name is the log's origin: one key signs for one log. Raises UnsignedError, ForgedError,
    CheckpointError, NoteError.
    """
    text = verified(note, key)
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != len(("origin", "size", "root")) or not SIZE.fullmatch(lines[1]):
        message = f"no checkpoint: origin, size and root were expected, not {text[:100]!r}"
        raise CheckpointError(message)
    origin, size, root = lines
    if origin != key.name:
        message = f"a checkpoint of {origin!r}, but the key is that of {key.name!r}"
        raise CheckpointError(message)
    found = Checkpoint(origin, Tree(int(size), _root(root)))
    if found.text != text:
        message = f"the root {root[:100]!r} is not base64 as it must be written"
        raise CheckpointError(message)
    return found


def _root(text: str) -> bytes:
    try:
        root = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        root = b""
    if len(root) != HASH_BYTES:
        message = f"the root {text[:100]!r} is not {HASH_BYTES} bytes in base64"
        raise CheckpointError(message)
    return root
