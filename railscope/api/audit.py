"""Entries of the audit log with their proofs."""

from __future__ import annotations

import msgspec


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record as it was hashed, with its inclusion proof; hashes are base64."""

    index: int
    leaf: str
    proof: tuple[str, ...]
    record: msgspec.Raw
    withheld: tuple[str, ...] = ()
    """Fields of the record that are omitted, because they could name another party."""


class AuditEntries(msgspec.Struct, frozen=True):
    """A part of the signed records."""

    checkpoint: str
    """Signed note."""
    size: int
    """Signed records."""
    entries: tuple[AuditEntry, ...]
    next: int | None
    """Index of the next entry; null if there is none."""


class ConsistencyProof(msgspec.Struct, frozen=True):
    """Proof that the log begins with the log of `old` records; hashes are base64."""

    old: int
    size: int
    proof: tuple[str, ...]
    checkpoint: str
