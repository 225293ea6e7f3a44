"""Writer of the audit log.

A record is acknowledged once it is durable in the journal. It is then moved to tiles and covered by
a signed checkpoint: every minute, after many records, or immediately for records that require it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from railscope.audit import merkle, record, signed_note
from railscope.durable_files import write_durably
from railscope.service import run_in_thread, run_to_end
from railscope_collector import archive_stores
from railscope_collector.audit import (
    AuditLogError,
    LogWriteError,
    SigningPostponedError,
    cosignatures,
    housekeeping_files,
    journal,
    log_ownership,
)
from railscope_collector.audit.checkpoint_publisher import CheckpointPublisher
from railscope_collector.audit.tiles import TileError, Tiles
from railscope_collector.ledger.record_draft import RecordDraft, build_record, with_number

MAX_WAITING = 10_000
MAX_UNSIGNED = 10_000
"""More unsigned records than this are signed immediately."""
MAX_ACCEPTED_UNSIGNED = 100_000
"""Maximum number of records accepted while nothing can be signed."""
SIGN_EVERY_SECONDS = 60.0
IMMEDIATELY_SIGNED_TYPES = frozenset(
    {"billing.issue", "billing.void", "log.key_rotate", "log.genesis"}
)


log = structlog.get_logger(__name__)


ALTERED_LOG_MESSAGE = "the audit log was altered: {}; fix: run `railscope audit verify`"


@dataclass(frozen=True, slots=True)
class _PendingRecord:
    draft: RecordDraft
    future: asyncio.Future[int]


@dataclass(slots=True)
class AuditLog:
    """Only writer of one log. `open` it, `run` it, `append` to it, `close` it."""

    directory: Path
    signer: signed_note.SecretKey
    source: record.RecordSource
    """The writer as a source of records; its `n` is that of the next record."""
    sign_every_seconds: float = SIGN_EVERY_SECONDS
    archive: archive_stores.ArchiveStore | None = None
    """Archive of the records that the directory no longer has."""
    signing_problem: str = ""
    """Reason why the last attempt to sign failed; empty if it did not."""
    groups: int = 0
    damage: list[str] = field(default_factory=list)
    """Housekeeping files that were missing or wrong when the log was opened, and are written again."""
    witnesses: cosignatures.CosignatureStore = field(init=False)
    publisher: CheckpointPublisher = field(init=False)
    _journal: journal.Journal = field(init=False)
    _unsigned: list[bytes] = field(default_factory=list)
    _pending: list[_PendingRecord] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _sign_now: asyncio.Event = field(default_factory=asyncio.Event)
    _write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _signing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_stopped: bool = False

    def __post_init__(self) -> None:
        self._journal = journal.Journal(self.directory / "journal", self.signer)
        self.witnesses = cosignatures.CosignatureStore(self.directory, self.signer)
        ownership = log_ownership.LogOwnership(self.directory, self.signer)
        self.publisher = CheckpointPublisher(self.directory, self.signer, ownership)

    @property
    def signed(self) -> merkle.TreeHead:
        """Tree that was signed last."""
        return self.publisher.signed

    @property
    def lost_records(self) -> int:
        """Number of records that were acknowledged before the log was opened, and are missing."""
        return self._journal.lost_records

    @property
    def size(self) -> int:
        """Number of durable records, signed or not."""
        return self.signed.size + len(self._unsigned)

    def open(self) -> None:
        """Take the log over from its previous writer. Raises LogWriteError, OSError."""
        try:
            self._open()
        except log_ownership.LogLockedError as error:
            raise LogWriteError(str(error)) from error
        except (
            signed_note.NoteError,
            TileError,
            journal.JournalError,
            housekeeping_files.HousekeepingError,
        ) as error:
            # The lock must be free for the next attempt in this process.
            self.close()
            raise LogWriteError(ALTERED_LOG_MESSAGE.format(error)) from error

    def _open(self) -> None:
        ownership = self.publisher.ownership
        ownership.acquire()
        self.publisher.open()
        size = self.signed.size
        Tiles(self.directory, size).delete_unfinished()
        node = Tiles(self.directory, size).node
        tree = merkle.CompactRange(
            size, [node(level, index) for level, index in merkle.subtrees(size)]
        )
        self._unsigned = self._journal.open(tree, ownership.epoch)
        problems = (
            self.witnesses.open(ownership.epoch),
            self._open_key(had_owner=ownership.epoch > 0),
        )
        self.damage = [problem for problem in problems if problem]
        # Last, as every other statement may be of the epoch in this file, or of the next one (`check_epoch`).
        ownership.write_epoch()

    def _open_key(self, *, had_owner: bool) -> str:
        """Write the public key beside the log; return the defect of an existing file, if any."""
        path = self.directory / housekeeping_files.KEY_FILE
        text = f"{self.signer.public}\n".encode()
        stored = path.read_bytes() if path.exists() else None
        if stored == text:
            return ""
        write_durably(path, text)
        if not had_owner:
            return ""
        return f"missing key file {path}" if stored is None else f"wrong key in {path}"

    def genesis(self) -> str:
        """Return the hash of the first record, which identifies the log; empty without one. Raises TileError."""
        if self.signed.size:
            return Tiles(self.directory, self.signed.size).node(0, 0).hex()
        return merkle.leaf_hash(self._unsigned[0]).hex() if self._unsigned else ""

    def records(self, first: int) -> Iterator[bytes]:
        """Return the durable records from a sequence number on, as of now. Raises TileError."""
        # Copied together: a checkpoint made while this iterates moves records from one to the other.
        signed, unsigned = self.signed.size, list(self._unsigned)
        yield from Tiles(self.directory, signed, self.archive).records_from(first)
        yield from unsigned[max(0, first - signed) :]

    def append_before_running(self, draft: RecordDraft) -> int:
        """Record a draft after `open` and before `run`; return its sequence number. Blocking.

        Raises RecordError, OSError.
        """
        sequence = self.size
        raw = record.encode_audit_record(build_record(draft, draft.source or self.source, sequence))
        self._journal.append([raw])
        self._unsigned.append(raw)
        if draft.source is None:
            self.source = with_number(self.source, self.source.n + 1)
        return sequence

    async def append(self, draft: RecordDraft) -> int:
        """Record a draft; return its sequence number once it is durable.

        Raises RecordError for a draft that cannot be recorded, LogWriteError if recording is not possible now.
        """
        if self._is_stopped:
            message = "the collector is stopping"
            raise LogWriteError(message)
        if len(self._pending) >= MAX_WAITING:
            message = (
                "the audit log is overloaded: the disk does not keep up with the waiting records"
            )
            raise LogWriteError(message)
        if len(self._unsigned) >= MAX_ACCEPTED_UNSIGNED:
            message = f"cannot sign {MAX_ACCEPTED_UNSIGNED} records: {self.signing_problem}"
            raise LogWriteError(message)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending.append(_PendingRecord(draft, future))
        self._wake.set()
        return await future

    async def run(self) -> None:
        """Sign the records of an earlier run, then write and sign the queue; on cancel, sign the rest.

        Entries that are queued and not durable at that point fail.
        """
        try:
            # Before new records: those of a run that was killed have waited longest.
            await run_to_end(self._sign_or_log_reason())
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write_groups())
                group.create_task(self._sign_regularly())
        finally:
            self._is_stopped = True
            for entry in self._pending:
                if not entry.future.done():
                    entry.future.set_exception(LogWriteError("the collector is stopping"))
            self._pending.clear()
            # The tasks have ended, so all durable records are signed before the collector ends.
            await self._sign_or_log_reason()

    async def _write_groups(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                group = self._pending[: journal.MAX_GROUP_RECORDS]
                del self._pending[: journal.MAX_GROUP_RECORDS]
                try:
                    await run_to_end(self._write_group(group))
                finally:
                    # Also after a defect of the program: a caller must never wait for a writer that has ended.
                    for entry in group:
                        _fail(entry, LogWriteError("the writer of the audit log has failed"))

    async def _write_group(self, group: list[_PendingRecord]) -> None:
        async with self._write_lock:
            # Under the lock: sequence numbers follow from the size, which a concurrent write would change.
            encoded, first = self._encode_group(group), self.size
            if not encoded:
                return
            try:
                await run_in_thread(self._journal.append, [raw for _, raw in encoded])
            except OSError as error:
                problem = LogWriteError(
                    f"cannot write to {self.directory}: {error.strerror}; no record was written"
                )
                for entry, _ in encoded:
                    _fail(entry, problem)
                return
            self._unsigned += [raw for _, raw in encoded]
            numbered = sum(entry.draft.source is None for entry, _ in encoded)
            # Only records of the log's own writer take its numbers; events of agents have those of their agents.
            self.source = with_number(self.source, self.source.n + numbered)
            self.groups += 1
        for at, (entry, _) in enumerate(encoded):
            if not entry.future.done():
                entry.future.set_result(first + at)
        urgent = any(entry.draft.type in IMMEDIATELY_SIGNED_TYPES for entry, _ in encoded)
        if urgent or len(self._unsigned) >= MAX_UNSIGNED:
            self._sign_now.set()

    def _encode_group(self, group: list[_PendingRecord]) -> list[tuple[_PendingRecord, bytes]]:
        """Encode a group; a draft that cannot be encoded fails on its own, and takes no number."""
        encoded: list[tuple[_PendingRecord, bytes]] = []
        number = self.source.n
        for entry in group:
            source = entry.draft.source or with_number(self.source, number)
            filled = build_record(entry.draft, source, self.size + len(encoded))
            try:
                raw = record.encode_audit_record(filled)
            except record.RecordError as error:
                _fail(entry, error)
                continue
            number += entry.draft.source is None
            encoded.append((entry, raw))
        return encoded

    async def _sign_regularly(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.sign_every_seconds):
                    await self._sign_now.wait()
            except TimeoutError:
                pass
            # Before signing: a request that arrives meanwhile is served by the next signature.
            self._sign_now.clear()
            await run_to_end(self._sign_or_log_reason())

    def sign_soon(self) -> None:
        """Trigger signing without waiting for it."""
        self._sign_now.set()

    async def _sign_or_log_reason(self) -> None:
        try:
            await self.sign()
        except (AuditLogError, OSError) as error:
            if self.signing_problem != str(error):
                facts = {"directory": str(self.directory), "problem": str(error)}
                if isinstance(error, SigningPostponedError):
                    log.info("audit_signing_waits", **facts)
                else:
                    log.error("audit_signing_failed", **facts)
            self.signing_problem = str(error)
        else:
            self.signing_problem = ""

    async def sign(self) -> None:
        """Sign all durable records. A cancellation takes effect when they are signed.

        Raises LogWriteError, JournalError, HousekeepingError, OSError; nothing is signed in that case.
        """
        # A thread continues after the task that waits for it was cancelled: without this, the lock would
        # be free for the next record while the thread is still creating a file of the journal.
        await run_to_end(self._sign_alone())

    async def _sign_alone(self) -> None:
        async with self._signing:
            await self._sign()

    async def _sign(self) -> None:
        async with self._write_lock:
            records = self._unsigned
            if not records:
                return
            # Records that arrive while tiles are written go to a new journal file.
            await run_in_thread(self._rotate)
            # After the rotation: these are exactly the records of the earlier files.
            records = list(records)
        before = self.signed.size
        published = await run_in_thread(self.publisher.publish, records)
        # In one step with the next line, without an await: `size` is their sum.
        del self._unsigned[: len(records)]
        self.publisher.signed, self.publisher.note = published
        async with self._write_lock:
            await run_in_thread(self._journal.delete_signed_files, self.signed.size)
        tiles = Tiles(self.directory, self.signed.size)
        # Partial tiles of the former size are needed until the new checkpoint is durable.
        await run_in_thread(tiles.delete_outgrown, before)

    def _rotate(self) -> None:
        self._journal.check_in_place()
        self._journal.rotate()

    def stop_signing(self) -> None:
        """Accept no records: nothing can be written."""
        self._is_stopped = True

    def close(self) -> None:
        """Close the journal and release the log."""
        self._journal.release()
        self.publisher.ownership.release()


def _fail(entry: _PendingRecord, error: Exception) -> None:
    if not entry.future.done():
        entry.future.set_exception(error)
