"""Proof of a record: the record with its inclusion proof in a signed log.

It is one text, verifiable with a public key, in the form of C2SP's tlog-proof: a head line, the
record's index, the hashes of the path in base64, an empty line, the checkpoint. The record itself is
included as an extra line, in base64, so that one file is enough.
"""

from __future__ import annotations

import base64

from railscope import convert_errors
from railscope.audit import log_checkpoint, merkle, signed_note
from railscope.audit.record import RecordError, read_record_head
from railscope_collector.audit import AuditLogError
from railscope_collector.audit.tables import StoredTree

PROOF_HEAD = "c2sp.org/tlog-proof@v1"
_EXTRA = "extra "
_INDEX = "index "


class ProofError(AuditLogError, ValueError):
    """An invalid proof; the message states the reason."""


def make_proof(tree: StoredTree, sequence: int, checkpoint: str) -> str:
    """Return the inclusion proof of a record in this tree. Raises ValueError, LogDamagedError."""
    path = merkle.inclusion_proof(tree.node, sequence, tree.size)
    lines = [
        PROOF_HEAD,
        _EXTRA + base64.b64encode(tree.record(sequence)).decode(),
        f"{_INDEX}{sequence}",
        *(base64.b64encode(hashed).decode() for hashed in path),
    ]
    return "\n".join(lines) + "\n\n" + checkpoint


def check_proof(text: str, key: signed_note.PublicKey) -> bytes:
    """Return the record that is proven. Raises ProofError, NoteError."""
    head, divider, note = text.partition("\n\n")
    lines = head.split("\n")
    min_lines = len(("head", "extra", "index"))
    if not divider or len(lines) < min_lines or lines[0] != PROOF_HEAD:
        message = f"invalid proof: expected {PROOF_HEAD!r} in its first line"
        raise ProofError(message)
    if not lines[1].startswith(_EXTRA) or not lines[2].startswith(_INDEX):
        message = "invalid proof: expected the record and its index after the first line"
        raise ProofError(message)
    index = lines[2].removeprefix(_INDEX)
    # One spelling only, without leading zeros: two texts must not be two proofs of one record.
    if not log_checkpoint.SIZE.fullmatch(index):
        message = f"invalid index of the proof: {index[:30]!r}: expected a number"
        raise ProofError(message)
    record = _decoded(lines[1].removeprefix(_EXTRA))
    path = [_decoded(line) for line in lines[min_lines:]]
    tree = log_checkpoint.read_checkpoint(note, key).tree
    is_complete = all(len(hashed) == merkle.HASH_BYTES for hashed in path)
    if not is_complete or not merkle.includes(
        merkle.leaf_hash(record), int(index), tree.size, path, tree.root
    ):
        message = f"invalid proof: the path does not lead from record {index} to the signed root"
        raise ProofError(message)
    with convert_errors(RecordError, ProofError, "invalid proof: "):
        # A proof is made to be kept: the record may be one of a later release.
        sequence = read_record_head(record).seq
    # A leaf that states another place would be one record with two proofs.
    if sequence != int(index):
        message = f"invalid proof: record {sequence} at index {index}: expected the number of the record as its index"
        raise ProofError(message)
    return record


def _decoded(text: str) -> bytes:
    content = signed_note.decode_base64(text)
    if not content:
        message = f"invalid hash or record of the proof: {text[:60]!r}: expected canonical base64"
        raise ProofError(message)
    return content
