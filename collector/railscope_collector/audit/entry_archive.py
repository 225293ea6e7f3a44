"""Archiving of old entries of the audit log, and their deletion from the ledger's database.

Bundles of 256 entries leave the database in the order of the log. Their hashes and the checkpoints stay, so everything can still be
proven. A round has these steps; whatever interrupts it, the next one begins again:

  1. compare each bundle with the signed root
  2. create its file in the archive, read it back and compare it: an existing file is never replaced
  3. record the range with its digest (`log.archive`), which is signed
  4. delete the entries, and keep their hashes, in one transaction

A round that is interrupted before the last step is repeated: it writes the same files, which changes nothing, and one more record.
"""

from __future__ import annotations

import asyncio
import time
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice

import sqlalchemy as sa
import structlog

from railscope import timestamps
from railscope.audit import merkle, record as audit_record
from railscope.settings import SettingsError
from railscope_collector import archive_stores, config
from railscope_collector.audit import (
    AuditLogError,
    SigningPostponedError,
    log_writer,
    record_checks,
    tables,
    tiles,
)
from railscope_collector.ledger.database import call_database
from railscope_collector.ledger.record_draft import RecordDraft

MAX_BUNDLES = 64
"""Bundles of 256 entries archived in one round."""
PAUSE_SECONDS = 1.0
"""Interval between two rounds while more is due."""
FIRST_SECONDS = 300.0
"""Delay before the first round, to keep resources free during a start."""

log = structlog.get_logger(__name__)


class EntryArchiveError(AuditLogError, RuntimeError):
    """Entries cannot be archived or deleted; the message states the reason."""


def open_entry_archive(settings: config.CollectorSettings) -> archive_stores.ArchiveStore | None:
    """Return the archive of entries; None if there is none. Raises SettingsError if one is required."""
    archive = archive_stores.open_archive_store(settings.archive)
    if settings.audit.keep_entries_days and archive is None:
        message = (
            f"invalid audit.keep_entries_days = {settings.audit.keep_entries_days}: expected an archive for the "
            "entries; fix: set archive.url, or audit.keep_entries_days = 0"
        )
        raise SettingsError(message)
    return archive


@dataclass(frozen=True, slots=True)
class _ArchivedRange:
    """Entries whose files in the archive were compared."""

    first: int
    end: int
    leaves: tuple[bytes, ...]
    """Hashes of the leaves of each bundle, one after the other."""
    digest: str
    """SHA-256 of the files, one after the other."""
    location: str
    """Location of the archive."""


@dataclass(slots=True)
class EntryArchive:
    """Archives and deletes the old entries of a log; `run` it while the log runs."""

    audit: log_writer.AuditLog
    keep_days: int
    """Age in days at which entries are archived; 0 for never."""
    period_seconds: float
    now_ns: Callable[[], int] = time.time_ns
    hold_reason: Callable[[], str] = lambda: ""
    """Why nothing may be archived or deleted, as the clock is suspect; empty if it may be."""
    max_bundles: int = MAX_BUNDLES
    failures: int = 0
    problem: str = ""
    """Reason why the last round failed; empty if it did not."""
    archived: int | None = None
    """Number of records, from the first on, that are archived and deleted; None before the first round."""

    async def run(self) -> None:
        """Run until cancelled; return at once if entries are kept permanently."""
        if not self.keep_days:
            return
        await asyncio.sleep(min(self.period_seconds, FIRST_SECONDS))
        while True:
            is_more_due = await self.attempt()
            await asyncio.sleep(PAUSE_SECONDS if is_more_due else self.period_seconds)

    async def attempt(self) -> bool:
        """Do one round; return True if more is due. A failure is counted, and logged once.

        Any exception is caught: the collector must continue to record.
        """
        try:
            is_more_due = await self._round()
        except SigningPostponedError:
            return False  # signed later: the next round continues
        except Exception as error:  # noqa: BLE001 - see above
            self.failures += 1
            expected = (AuditLogError, archive_stores.ArchiveError, OSError)
            problem = str(error) if isinstance(error, expected) else repr(error)
            if problem != self.problem:
                advice = "entries stay in the database, and are archived later"
                log.error("audit_archive_failed", problem=problem, advice=advice)
            self.problem = problem
            return False
        if self.problem:
            log.info("audit_archive_resumed")
        self.problem = ""
        return is_more_due

    async def _round(self) -> bool:
        if self.hold_reason() or not self.audit.is_active():
            return False
        found = await call_database(self._archive_due)
        if found is None:
            return False
        await self.audit.append(self._draft(found))
        # Signed before anything is deleted: without the signature, the missing entries would look like a loss.
        await self.audit.sign()
        await call_database(self._delete, found)
        self.archived = found.end
        return found.end - found.first >= self.max_bundles * tiles.WIDTH

    def _archive_due(self) -> _ArchivedRange | None:
        """Write the files of what is due, up to the limit of a round, and compare them. Blocking."""
        store = self.audit.archive
        if store is None:
            message = "cannot archive entries of the audit log: no archive; fix: set archive.url"
            raise EntryArchiveError(message)
        now_ns, digest, leaves = self.now_ns(), sha256(), list[bytes]()
        due_ns = now_ns - self.keep_days * timestamps.DAY_NS
        with self.audit.read() as tree:
            end = first = self.archived = tables.count_archived(tree.connection, tree.log)
            limit = min(tree.size - tiles.WIDTH + 1, first + self.max_bundles * tiles.WIDTH)
            while end < limit:
                records = self._read_signed(tree, end)
                # All of its records must be old.
                if find_newest_ns(map(audit_record.decode_audit_record, records), now_ns) > due_ns:
                    break
                content, row = tiles.encode_bundle(records), [*map(merkle.leaf_hash, records)]
                bundle = end // tiles.WIDTH
                name = tables.archive_name(tree.node(0, 0), bundle, tiles.complete_root(row))
                store.create(name, content)
                _compare(store, name, content)
                digest.update(content)
                leaves.append(b"".join(row))
                end += tiles.WIDTH
        if end == first:
            return None
        return _ArchivedRange(first, end, tuple(leaves), digest.hexdigest(), store.location)

    def _read_signed(self, tree: tables.StoredTree, begin: int) -> list[bytes]:
        """Return the records of a bundle, compared with the signed root. Raises EntryArchiveError, LogDamagedError."""
        records = [*islice(tree.records_from(begin, tiles.WIDTH), tiles.WIDTH)]
        # The path from the first leaf contains the hashes of all others in the bundle.
        path = merkle.inclusion_proof(tree.node, begin, tree.size)
        leaf = merkle.leaf_hash(records[0])
        if not merkle.includes(leaf, begin, tree.size, path, self.audit.signed.root):
            message = (
                f"altered audit log {tree.log}: records {begin} to {begin + tiles.WIDTH - 1} do not match the signed root;"
                " fix: run `railscope audit verify`"
            )
            raise EntryArchiveError(message)
        return records

    def _draft(self, found: _ArchivedRange) -> RecordDraft:
        data: audit_record.RecordData = {
            "first": found.first,
            "records": found.end - found.first,
            "sha256": found.digest,
            "archive": unicodedata.normalize("NFC", found.location),
        }
        actor = audit_record.RecordActor("collector", self.audit.source.id)
        return RecordDraft(record_checks.ARCHIVE, actor, self.now_ns(), "done", data=data)

    def _delete(self, found: _ArchivedRange) -> None:
        """Delete the archived records, and keep their hashes. Blocking."""
        name, table = self.audit.name, tables.records
        rows = [
            {"log": name, "bundle": bundle, "hashes": row}
            for bundle, row in enumerate(found.leaves, found.first // tiles.WIDTH)
        ]
        with self.audit.database().transaction(writes=True) as connection:
            connection.execute(sa.insert(tables.archived), rows)
            connection.execute(
                sa.delete(table).where(
                    table.c.log == name, table.c.number >= found.first, table.c.number < found.end
                )
            )


def find_newest_ns(records: Iterable[audit_record.AuditRecord], now_ns: int) -> int:
    """Return the newest time of records by the collector's clock, ignoring times after `now_ns`.

    An agent's own time is not used: it could delay the archiving of all later records.
    """
    newest_ns = 0
    for record in records:
        received = record.data.get("received_ns", "")
        if record.src.kind != "agent":
            time_ns = int(record.t)
        else:
            time_ns = int(received) if isinstance(received, str) and received.isdecimal() else 0
        # A time in the future, of a clock that was wrong, would keep its bundle and all later ones forever.
        if time_ns <= now_ns:
            newest_ns = max(newest_ns, time_ns)
    return newest_ns or now_ns


def _compare(store: archive_stores.ArchiveStore, name: str, content: bytes) -> None:
    """Compare a file of the archive with a bundle. Raises EntryArchiveError, ArchiveError."""
    if store.read(name, tiles.MAX_BUNDLE_BYTES) != content:
        message = (
            f"{store.location}/{name} does not contain what was written; fix: check the archive, and "
            "move the file away"
        )
        raise EntryArchiveError(message)
