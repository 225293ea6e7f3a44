"""Archiving of old entries of the audit log, and their deletion from the log's directory.

Full tiles of entries leave the directory in the order of the log. Hashes and checkpoints stay, so everything can
still be proven. A round has these steps; whatever interrupts it, the next one continues:

  1. compare each tile with its hashes, and these with the signed root
  2. create its file in the archive, read it back and compare it: an existing file is never replaced
  3. record the range with its digest (`log.archive`), and sign
  4. read each file again, compare it with the tile, and delete the tile

The newest `log.archive` record is always in the directory, since it comes after all that it covers. So the log
itself states what is archived. If a collector is interrupted before it deletes anything, the next one writes the same
files, which changes nothing, and one more record.
"""

from __future__ import annotations

import asyncio
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import structlog

from railscope import durable_files, service, timestamps
from railscope.audit import log_checkpoint, merkle, record as audit_record, signed_note
from railscope.settings import SettingsError
from railscope_collector import archive_stores, clock as collector_clock, config
from railscope_collector.audit import (
    AuditLogError,
    SigningPostponedError,
    log_writer,
    record_checks,
    tiles as tile_files,
)
from railscope_collector.ledger.record_draft import RecordDraft

MAX_BUNDLES = 64
"""Tiles of 256 entries archived in one round."""
PAUSE_SECONDS = 1.0
"""Interval between two rounds while more is due."""
FIRST_SECONDS = 300.0
"""Delay before the first round, to keep resources free during a start."""
_TYPE = b'"type":"log.archive"'

log = structlog.get_logger(__name__)


class EntryRetentionError(AuditLogError, RuntimeError):
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
    digest: str
    """SHA-256 of the files, one after the other."""


@dataclass(slots=True)
class EntryRetention:
    """Archives and deletes the old entries of a log; `run` it while the log runs."""

    audit: log_writer.AuditLog
    keep_days: int
    """Age in days at which entries are archived; 0 for never."""
    period_seconds: float
    required_witnesses: Callable[[], int] = lambda: 0
    """Number of agents that must have cosigned entries before they are archived."""
    clock: collector_clock.CollectorClock | None = None
    """Clock of a running collector: while it is suspect, nothing is archived or deleted."""
    wall_ns: Callable[[], int] = time.time_ns
    max_bundles: int = MAX_BUNDLES
    after_step: Callable[[str], None] = lambda _step: None
    """Called after each step with its name; an exception interrupts the round. Blocking."""
    failures: int = 0
    problem: str = ""
    """Reason why the last round failed; empty if it did not."""
    archived: int | None = None
    """Number of records, from the first on, that are archived and deleted; None before the first round."""
    is_waiting: bool = False
    """True if due entries are not cosigned by as many agents as are required."""
    _recorded: tuple[int, int] | None = None
    """End of the newest recorded range, and the number of its record, until its tiles are deleted."""

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
                advice = "entries stay in the audit directory, and are archived later"
                log.error("audit_archive_failed", problem=problem, advice=advice)
            self.problem = problem
            return False
        if self.problem:
            log.info("audit_archive_resumed")
        self.problem = ""
        return is_more_due

    async def _round(self) -> bool:
        if self.clock is not None and self.clock.hold_reason:
            return False
        # After a start only: the directory shows how far an interrupted round came.
        if self.archived is None and self._recorded is None:
            self._recorded = await service.run_in_thread(self._find_recorded)
        await self._delete_recorded()
        found = await service.run_in_thread(self._archive_due)
        if found is None:
            return False
        sequence = await self.audit.append(self._draft(found))
        self._recorded = found.end, sequence
        await service.run_in_thread(self.after_step, "recorded")
        await self._delete_recorded()
        return found.end - found.first >= self.max_bundles * tile_files.WIDTH

    def _now_ns(self) -> int:
        return self.clock.now_ns() if self.clock is not None else self.wall_ns()

    @property
    def _store(self) -> archive_stores.ArchiveStore:
        if self.audit.archive is None:
            message = "cannot archive entries of the audit log: no archive; fix: set archive.url"
            raise EntryRetentionError(message)
        return self.audit.archive

    def _tiles(self) -> tile_files.Tiles:
        return tile_files.Tiles(self.audit.directory, self.audit.signed.size)

    def _path(self, index: int) -> Path:
        return self.audit.directory / tile_files.tile_name("entries", index)

    def _find_recorded(self) -> tuple[int, int]:
        """Return the end of what is archived according to the log, and the number of that record.

        Raises EntryRetentionError if the directory lacks entries that are not recorded as archived.
        """
        tiles = self._tiles()
        if all(self._path(index).exists() for index in range(tiles.size // tile_files.WIDTH)):
            return 0, -1
        for index in reversed(range(-(-tiles.size // tile_files.WIDTH))):
            try:
                raws = tiles.local_records(index)
            except tile_files.MissingEntriesError:
                break
            for raw in reversed(raws):
                # A quick test on the bytes: decoding every record of the log would take long.
                if _TYPE in raw:
                    record = audit_record.decode_audit_record(raw)
                    # An agent may name any type in its own records.
                    if record.type == record_checks.ARCHIVE and record.src.kind != "agent":
                        return record_checks.archived_end(record), record.seq
        message = (
            f"missing tiles of entries in {tiles.directory}: expected them, or a record that they are archived; "
            "fix: run `railscope audit verify`"
        )
        raise EntryRetentionError(message)

    def _archive_due(self) -> _ArchivedRange | None:
        """Write the files of what is due, up to the limit of a round, and compare them."""
        tiles, root, store = self._tiles(), self.audit.signed.root, self._store
        first = (self.archived or 0) // tile_files.WIDTH
        limit, cosigned = tiles.size // tile_files.WIDTH, self._cosigned_size()
        now_ns = self._now_ns()
        due_ns = now_ns - self.keep_days * timestamps.DAY_NS
        digest, end = sha256(), first
        for index in range(first, min(limit, first + self.max_bundles)):
            records = tiles.local_records(index)
            _check_tile(tiles, root, index, records)
            # The whole tile must be old: tiles are archived as a whole.
            if find_newest_ns(map(audit_record.decode_audit_record, records), now_ns) > due_ns:
                break
            if (index + 1) * tile_files.WIDTH > cosigned:
                self._report_waiting(cosigned)
                break
            content = tile_files.encode_bundle(records)
            name, _ = tiles.archive_name(index)
            store.create(name, content)
            self.after_step("created")
            _compare(store, name, content)
            self.after_step("compared")
            digest.update(content)
            end, self.is_waiting = index + 1, False
        if end == first:
            return None
        width = tile_files.WIDTH
        return _ArchivedRange(first * width, end * width, digest.hexdigest())

    def _report_waiting(self, cosigned: int) -> None:
        if not self.is_waiting:
            log.warning(
                "audit_archive_postponed",
                cosigned_records=cosigned,
                required_witnesses=self.required_witnesses(),
                advice="check the agents' witnesses, or lower audit.required_witnesses",
            )
        self.is_waiting = True

    def _cosigned_size(self) -> int:
        """Return the number of records that as many agents as are required have cosigned."""
        required = self.required_witnesses()
        if not required:
            return self.audit.signed.size
        sizes = []
        for cosigned in list(self.audit.witnesses.nodes.values()):
            try:
                checkpoint = log_checkpoint.read_checkpoint(cosigned.note, self.audit.signer.public)
            except signed_note.NoteError:
                continue  # reported by `railscope audit verify`
            sizes.append(checkpoint.tree.size)
        # The size that at least as many agents have cosigned as are required.
        return sorted(sizes, reverse=True)[required - 1] if len(sizes) >= required else 0

    def _draft(self, found: _ArchivedRange) -> RecordDraft:
        data: audit_record.RecordData = {
            "first": found.first,
            "records": found.end - found.first,
            "sha256": found.digest,
            "archive": unicodedata.normalize("NFC", self._store.location),
        }
        actor = audit_record.RecordActor("collector", self.audit.source.id)
        return RecordDraft(record_checks.ARCHIVE, actor, self._now_ns(), "done", data=data)

    async def _delete_recorded(self) -> None:
        """Delete the tiles whose archiving is recorded, once a checkpoint covers the record."""
        if self._recorded is None:
            return
        end, sequence = self._recorded
        # Signed before anything is deleted: without the signature, the missing tiles would look like a loss.
        if self.audit.signed.size <= sequence:
            await self.audit.sign()
            await service.run_in_thread(self.after_step, "signed")
        if self.audit.signed.size <= sequence:
            message = f"record {sequence} of archived entries is not signed yet"
            raise EntryRetentionError(message)
        await service.run_in_thread(self._delete_tiles, end // tile_files.WIDTH)
        self.archived, self._recorded = end, None

    def _delete_tiles(self, end: int) -> None:
        """Delete the last tiles before an index, the first of them first."""
        first = end
        # Tiles before a missing one were deleted by an interrupted round: nothing of them is left to delete.
        while first and self._path(first - 1).exists():
            first -= 1
        tiles = self._tiles()
        for index in range(first, end):
            path, (name, _) = self._path(index), tiles.archive_name(index)
            _compare(self._store, name, path.read_bytes())
            partial = path.with_name(f"{path.name}.p")
            if partial.exists():  # left behind by a writer that was killed
                shutil.rmtree(partial)
            path.unlink()
            # After each tile: a power failure must not bring back an earlier tile, as a gap would look like a loss.
            durable_files.sync_directory(path.parent)
            self.after_step("deleted")


def find_newest_ns(records: Iterator[audit_record.AuditRecord], now_ns: int) -> int:
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
        # A time in the future, of a clock that was wrong, would keep its tile and all later ones forever.
        if time_ns <= now_ns:
            newest_ns = max(newest_ns, time_ns)
    return newest_ns or now_ns


def _check_tile(
    tiles: tile_files.Tiles, root: merkle.Hash, index: int, records: Sequence[bytes]
) -> None:
    """Compare a full tile with its hashes, and these with the signed root. Raises EntryRetentionError."""
    leaves, begin = tiles.hashes(index), index * tile_files.WIDTH
    # The path from the first leaf contains the hashes of all others in the tile.
    path = merkle.inclusion_proof(tiles.node, begin, tiles.size)
    is_signed = merkle.includes(leaves[0], begin, tiles.size, path, root)
    if not is_signed or [*map(merkle.leaf_hash, records)] != leaves:
        message = (
            f"altered audit log {tiles.directory}: records {begin} to {begin + tile_files.WIDTH - 1}"
            " do not match the signed root; fix: run `railscope audit verify`"
        )
        raise EntryRetentionError(message)


def _compare(store: archive_stores.ArchiveStore, name: str, content: bytes) -> None:
    """Compare a file of the archive with a tile. Raises EntryRetentionError, ArchiveError."""
    if store.read(name, tile_files.MAX_BUNDLE_BYTES) != content:
        message = (
            f"{store.location}/{name} does not contain what was written; fix: check the archive, and "
            "move the file away"
        )
        raise EntryRetentionError(message)
