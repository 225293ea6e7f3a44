"""A record with its inclusion proof in a signed log: one text, verifiable with a public key.

C2SP's tlog-proof: a head line, the record's index, the hashes of the path in base64, an empty line, the
checkpoint. The record itself is included as an extra line, in base64, so that one file is enough.
"""

from __future__ import annotations

import base64
import binascii

from collector.audit.tiles import Tiles
from railscope.audit.checkpoint import SIZE, read_checkpoint
from railscope.audit.merkle import HASH_BYTES, includes, inclusion_proof, leaf_hash
from railscope.audit.note import PublicKey

HEAD = "c2sp.org/tlog-proof@v1"
_EXTRA = "extra "
_INDEX = "index "


class ProofError(ValueError):
    """An invalid proof; the message states the reason."""


def make_proof(tiles: Tiles, sequence: int, checkpoint: str) -> str:
    """Return the inclusion proof of a record in these tiles. Raises ValueError, TileError, OSError."""
    path = inclusion_proof(tiles.node, sequence, tiles.size)
    lines = [
        HEAD,
        _EXTRA + base64.b64encode(tiles.record(sequence)).decode(),
        f"{_INDEX}{sequence}",
        *(base64.b64encode(one).decode() for one in path),
    ]
    return "\n".join(lines) + "\n\n" + checkpoint


def check_proof(text: str, key: PublicKey) -> bytes:
    """Return the record that is proven. Raises ProofError, NoteError."""
    head, divider, note = text.partition("\n\n")
    lines = head.split("\n")
    least = len(("head", "extra", "index"))
    if not divider or len(lines) < least or lines[0] != HEAD:
        message = f"it must begin with {HEAD!r}"
        raise ProofError(message)
    if not lines[1].startswith(_EXTRA) or not lines[2].startswith(_INDEX):
        message = "the record and its index were expected behind the first line"
        raise ProofError(message)
    index = lines[2].removeprefix(_INDEX)
    if not SIZE.fullmatch(index):
        message = f"{index[:30]!r} is no index"
        raise ProofError(message)
    record = _decoded(lines[1].removeprefix(_EXTRA))
    path = [_decoded(line) for line in lines[least:]]
    tree = read_checkpoint(note, key).tree
    whole = all(len(one) == HASH_BYTES for one in path)
    if not whole or not includes(leaf_hash(record), int(index), tree.size, path, tree.root):
        message = f"the path does not lead from record {index} to the root that was signed"
        raise ProofError(message)
    return record


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        message = f"not base64: {text[:60]!r}"
        raise ProofError(message) from error
