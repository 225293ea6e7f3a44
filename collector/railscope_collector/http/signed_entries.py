"""Signed records of the audit log, each with its inclusion proof, by tenant.

A record belongs to a tenant if it names that tenant and no other:

    data.tenant, or any key of `data` that ends in `_tenant`     the tenants that it names
    actor `credential` with the label `tenant/...`               the tenant of the credential
    any key of `data` that begins with `other`                   another, unspecified party

A record cannot be served in part and proven at the same time. If a reference in it could name
another party, a tenant gets the hash of the record, the proof of it, and the record without its
references.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import msgspec
import structlog

from railscope.api import audit as api
from railscope.audit import log_checkpoint, merkle, signed_note
from railscope.audit.record import AuditRecord, decode_audit_record
from railscope.service import run_in_thread
from railscope_collector import archive_stores
from railscope_collector.access.credentials import Role
from railscope_collector.audit import tables
from railscope_collector.audit.entry_proof import make_proof
from railscope_collector.audit.tables import StoredTree
from railscope_collector.http import HttpApiError
from railscope_collector.ledger.database import Database, UnusableLedgerError

MAX_ENTRIES = 100
"""Maximum number of entries per response."""
MAX_READ_RECORDS = 20_000
"""Maximum number of records that are read for one response."""
INDEX_STEP_RECORDS = 2000
MAX_ARCHIVE_READS = 2
"""Files of the archive that are read for responses at the same time: a slow archive delays no other request."""
_LOCK_SECONDS = 1.0
_OWN_REFERENCES = ("frame/", "entry/", "outbox/", "outbox-row/", "record/")
"""References that name no other tenant: of frames, ledger entries, outbox rows, records."""
_UNNAMED_PARTY = "\0"
"""Placeholder for a party that is not named as a tenant."""
_INDEX_EVERY_SECONDS = 5.0
_PAUSE_SECONDS = 0.05


class IndexBehindError(HttpApiError, RuntimeError):
    """More records were added than could be read for this response; retry."""


log = structlog.get_logger(__name__)


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
    max_read: int = MAX_READ_RECORDS
    step_records: int = INDEX_STEP_RECORDS
    archive: archive_stores.ArchiveReader | None = None
    """Archive of the records that the database no longer has."""
    _indexed: int = 0
    """Number of records in the index."""
    _sequences_of: dict[str, array[int]] = field(default_factory=dict)
    """Sequence numbers of each tenant's records, ascending."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _limited: LimitedArchive | None = field(init=False)
    problem: str = ""
    """Reason why the last read of the log failed; empty if it succeeded."""

    def __post_init__(self) -> None:
        """Limit the reads of the archive for responses."""
        self._limited = None if self.archive is None else LimitedArchive(self.archive)

    async def run(self) -> None:
        """Update the index in small steps, until cancelled."""
        while True:
            # In small steps with pauses: after a start, the index of a long log must not delay the collector.
            everything = await run_in_thread(self._index_step)
            await asyncio.sleep(_INDEX_EVERY_SECONDS if everything else _PAUSE_SECONDS)

    @contextmanager
    def read(
        self, archive: archive_stores.ArchiveReader | None
    ) -> Iterator[tuple[str, StoredTree]]:
        """Begin a transaction that reads the newest checkpoint and its tree.

        Raises FileNotFoundError before the first, NoteError, UnusableLedgerError.
        """
        name = tables.log_name(self.key)
        with self.database().transaction() as connection:
            note = tables.read_note(connection, name)
            if note is None:
                raise FileNotFoundError(log_checkpoint.NOTHING_SIGNED)
            size = log_checkpoint.read_checkpoint(note, self.key).tree.size
            yield note, StoredTree(connection, name, size, archive)

    def read_checkpoint(self) -> str:
        """Return the newest checkpoint. Raises FileNotFoundError before the first, NoteError, UnusableLedgerError."""
        with self.read(None) as (note, _):
            return note

    def count_records(self) -> int:
        """Return the number of signed records. Raises FileNotFoundError before the first, NoteError, UnusableLedgerError."""
        with self.read(None) as (_, tree):
            return tree.size

    def select(self, selection: EntrySelection) -> api.AuditEntries:
        """Return entries from an index on, with their proofs.

        Raises IndexBehindError, OSError, ValueError, UnusableLedgerError.
        """
        with self.read(self._limited) as (note, tree):
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

        None if there is no such record, or this tenant may not read it completely. Raises IndexBehindError,
        OSError, ValueError, UnusableLedgerError.
        """
        with self.read(self._limited) as (note, tree):
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
        with self.read(self._limited) as (note, tree):
            if old > tree.size:
                return None
            proof = merkle.consistency_proof(tree.node, old, tree.size)
            return api.ConsistencyProof(old, tree.size, tuple(_base64_texts(proof)), note)

    def _select_sequences(self, tree: StoredTree, selection: EntrySelection) -> Sequence[int]:
        """Return the selected sequence numbers, up to one more than the limit."""
        if selection.tenant is None:
            # Without an index: the records of all tenants are consecutive.
            return range(
                selection.first, min(tree.size, selection.first + selection.max_entries + 1)
            )
        # With a timeout: a request must not wait for a slow archive that another one reads.
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            message = "records are being read for the index"
            raise IndexBehindError(message)
        try:
            self._catch_up(tree, self.max_read)
            sequences = self._sequences_of.get(selection.tenant, array("q"))
            # The index may be ahead of the checkpoint of this response.
            begin, end = (bisect_left(sequences, limit) for limit in (selection.first, tree.size))
            # One more than the limit, which shows that there are further ones.
            return sequences[begin : min(end, begin + selection.max_entries + 1)]
        finally:
            self._lock.release()

    def _catch_up(self, tree: StoredTree, max_records: int) -> None:
        """Index up to `max_records` newly signed records. Raises IndexBehindError if more remain."""
        end = min(tree.size, self._indexed + max_records)
        for raw in _read_records(tree, self._indexed, end):
            # Most records belong to no tenant, and need no decoding.
            tenant = sole_tenant(decode_audit_record(raw)) if b"tenant" in raw else ""
            if tenant:
                self._sequences_of.setdefault(tenant, array("q")).append(self._indexed)
            self._indexed += 1
        if self._indexed < tree.size:
            message = f"{tree.size - self._indexed} records are not indexed yet"
            raise IndexBehindError(message)

    def _index_step(self) -> bool:
        """Index some records; return True if none remain. A failed read is retried."""
        try:
            # Without the limit for responses: the index has one reader and may wait.
            with self.read(self.archive) as (_, tree), self._lock:
                self._catch_up(tree, self.step_records)
        except IndexBehindError:
            return False
        except FileNotFoundError:
            return True
        except (OSError, ValueError, UnusableLedgerError) as error:
            if not self.problem:
                log.error(
                    "audit_index_stopped",
                    problem=str(error),
                    advice="run `railscope audit verify`",
                )
            self.problem = str(error)
            return True
        self.problem = ""
        return True

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


def sole_tenant(record: AuditRecord) -> str:
    """Return the tenant of a record: the only one that it names. Empty for none, or several."""
    named = set(_named_tenants(record))
    return named.pop() if len(named) == 1 else ""


def _named_tenants(record: AuditRecord) -> Iterator[str]:
    actor = record.actor.id.split("/")
    if record.actor.kind == "credential" and actor[0] == Role.TENANT and len(actor) > 1:
        yield unquote(actor[1])
    yield from _tenants_in(record.data)


def _tenants_in(data: object) -> Iterator[str]:
    """Yield the texts under keys for tenants, at any depth."""
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        if key.startswith("other"):
            yield _UNNAMED_PARTY
        if key in {"tenant", "tenants"} or key.endswith(("_tenant", "_tenants")):
            yield from _texts_in(value)
        else:
            yield from _tenants_in(value)


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts_in(item)


def _names_other_party(record: AuditRecord) -> bool:
    """True if a reference could name another party: the identity of a claim contains its holder."""
    own_claim = record.data.get("claim")
    return any(not ref.startswith(_OWN_REFERENCES) and ref != own_claim for ref in record.ref)


def _read_records(tree: StoredTree, first: int, end: int) -> Iterator[bytes]:
    return StoredTree(tree.connection, tree.log, end, tree.archive).records_from(first)


def _base64_text(hashed: bytes) -> str:
    return base64.b64encode(hashed).decode()


def _base64_texts(hashes: Sequence[bytes]) -> list[str]:
    return [_base64_text(hashed) for hashed in hashes]
