"""Signed records of the audit log, each with its inclusion proof, by tenant (see `record_tenants`).

A record cannot be served in part and proven at the same time. If a reference in it could name
another party, a tenant gets the hash of the record, the proof of it, and the record without its
references.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa

from railscope.api import audit as api
from railscope.audit import log_checkpoint, merkle, signed_note
from railscope.audit.record import AuditRecord, decode_audit_record
from railscope_collector import archive_stores
from railscope_collector.audit import tables
from railscope_collector.audit.entry_proof import make_proof
from railscope_collector.audit.tables import StoredTree
from railscope_collector.ledger.database import Database

MAX_ENTRIES = 100
"""Maximum number of entries per response."""
MAX_ARCHIVE_READS = 2
"""Files of the archive that are read for responses at the same time: a slow archive delays no other request."""
_OWN_REFERENCES = ("frame/", "entry/", "outbox/", "outbox-row/", "record/")
"""References that name no other tenant: of frames, ledger entries, outbox rows, records."""


class LimitedArchive:
    """Archive that reads a few files at a time; another read fails at once instead of waiting."""

    def __init__(self, archive: archive_stores.ArchiveReader) -> None:
        self.location, self._archive = archive.location, archive
        self._permits = threading.BoundedSemaphore(MAX_ARCHIVE_READS)

    def read(self, name: str, max_bytes: int = archive_stores.MAX_FILE_BYTES) -> bytes:
        """See `ArchiveReader`."""
        if not self._permits.acquire(blocking=False):
            message = f"{MAX_ARCHIVE_READS} files of the archive are being read"
            raise archive_stores.ArchiveError(message)
        try:
            return self._archive.read(name, max_bytes)
        finally:
            self._permits.release()


@dataclass(frozen=True, slots=True)
class EntrySelection:
    """Selection of entries."""

    first: int = 0
    max_entries: int = MAX_ENTRIES
    tenant: str | None = None
    """None for the entries of all tenants."""
    is_of_tenant_only: bool = False
    """True if that tenant itself sends the request, so that the response may contain nothing else."""


@dataclass(slots=True)
class SignedEntries:
    """Reads a log in the ledger's database. Blocking."""

    database: Callable[[], Database]
    key: signed_note.PublicKey
    archive: LimitedArchive | None = None
    """Archive of the records that the database no longer has."""

    @contextmanager
    def read(self) -> Iterator[tuple[str, StoredTree]]:
        """Begin a transaction that reads the newest checkpoint and its tree.

        Raises FileNotFoundError before the first, NoteError, UnusableLedgerError.
        """
        name = tables.log_name(self.key)
        with self.database().transaction() as connection:
            note = tables.read_note(connection, name)
            if note is None:
                raise FileNotFoundError(log_checkpoint.NOTHING_SIGNED)
            size = log_checkpoint.read_checkpoint(note, self.key).tree.size
            yield note, StoredTree(connection, name, size, self.archive)

    def read_checkpoint(self) -> str:
        """Return the newest checkpoint. Raises FileNotFoundError before the first, NoteError, UnusableLedgerError."""
        with self.read() as (note, _):
            return note

    def count_records(self) -> int:
        """Return the number of signed records. Raises FileNotFoundError before the first, NoteError, UnusableLedgerError."""
        with self.read() as (_, tree):
            return tree.size

    def select(self, selection: EntrySelection) -> api.AuditEntries:
        """Return entries from an index on, with their proofs.

        Raises OSError, ValueError, UnusableLedgerError.
        """
        with self.read() as (note, tree):
            sequences = self._select_sequences(tree, selection)
            entries = tuple(
                self._entry(tree, index, selection) for index in sequences[: selection.max_entries]
            )
            following = (
                sequences[selection.max_entries] if len(sequences) > selection.max_entries else None
            )
            return api.AuditEntries(note, tree.size, entries, following)

    def make_proof(self, index: int, tenant: str | None) -> str | None:
        """Return one record with its proof, in the format of `railscope audit check-proof`.

        None if there is no such record, or this tenant may not read it completely. Raises OSError, ValueError,
        UnusableLedgerError.
        """
        with self.read() as (note, tree):
            if index >= tree.size:
                return None
            if tenant is not None:
                sequences = self._select_sequences(tree, EntrySelection(index, 1, tenant))
                if (
                    not sequences
                    or sequences[0] != index
                    or _names_other_party(decode_audit_record(tree.record(index)))
                ):
                    return None
            return make_proof(tree, index, note)

    def make_consistency_proof(self, old: int) -> api.ConsistencyProof | None:
        """Return the consistency proof between the log of `old` records and the current one.

        None if the current one is smaller. Raises OSError, ValueError, UnusableLedgerError.
        """
        with self.read() as (note, tree):
            if old > tree.size:
                return None
            proof = merkle.consistency_proof(tree.node, old, tree.size)
            return api.ConsistencyProof(old, tree.size, tuple(_base64_texts(proof)), note)

    def _select_sequences(self, tree: StoredTree, selection: EntrySelection) -> Sequence[int]:
        """Return the selected sequence numbers, up to one more than the limit, which shows that there are further ones."""
        first, count = selection.first, selection.max_entries + 1
        if selection.tenant is None:
            return range(first, min(tree.size, first + count))
        table = tables.tenants
        query = sa.select(table.c.number).where(
            table.c.log == tree.log, table.c.tenant == selection.tenant,
            table.c.number >= first, table.c.number < tree.size,
        )  # fmt: skip
        rows = tree.connection.execute(query.order_by(table.c.number).limit(count))
        return rows.scalars().all()

    def _entry(self, tree: StoredTree, index: int, selection: EntrySelection) -> api.AuditEntry:
        raw = tree.record(index)
        record = decode_audit_record(raw)
        withheld: tuple[str, ...] = ()
        if selection.is_of_tenant_only and _names_other_party(record):
            raw, withheld = msgspec.json.encode(msgspec.structs.replace(record, ref=[])), ("ref",)
        # Otherwise the bytes as they were hashed: encoded again, they might differ.
        return api.AuditEntry(
            index,
            _base64_text(merkle.leaf_hash(tree.record(index))),
            tuple(_base64_texts(merkle.inclusion_proof(tree.node, index, tree.size))),
            msgspec.Raw(raw),
            withheld,
        )


def _names_other_party(record: AuditRecord) -> bool:
    """True if a reference could name another party: the identity of a claim contains its holder."""
    own_claim = record.data.get("claim")
    return any(not ref.startswith(_OWN_REFERENCES) and ref != own_claim for ref in record.ref)


def _base64_text(hashed: bytes) -> str:
    return base64.b64encode(hashed).decode()


def _base64_texts(hashes: Sequence[bytes]) -> list[str]:
    return [_base64_text(hashed) for hashed in hashes]
