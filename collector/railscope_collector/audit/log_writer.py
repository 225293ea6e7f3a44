"""Writer of the audit log.

A record is acknowledged once it is durable in `state.sqlite`. Then it is moved to the log in the ledger's database: number, leaf
and signed head are one transaction, and so are the rows of the outbox that commands have written. So every record of the log is
signed, and none is in it twice. Records wait while the database is unavailable, or nothing may be signed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
import structlog

from railscope import convert_errors
from railscope.audit import log_checkpoint, merkle, record, signed_note
from railscope.service import run_in_thread
from railscope_collector import archive_stores, state_store
from railscope_collector.audit import (
    AuditLogError,
    LogWriteError,
    SigningPostponedError,
    own_records,
    tables,
)
from railscope_collector.framelog.log_follower import LogPosition
from railscope_collector.ledger import audit_outbox, leases, transactions
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database
from railscope_collector.ledger.record_draft import RecordDraft, build_record, with_number

MAX_QUEUED = 10_000
MAX_WAITING = 100_000
"""Maximum number of records that wait for the database or for a signature."""
MAX_GROUP_RECORDS = 256
POLL_SECONDS = 1.0
RETRY_SECONDS = 5.0
FOLLOW_SECONDS = 5.0
COUNT_SECONDS = 60.0
"""Maximum period between two full counts of the outbox: a row may be committed after a later one."""
STOP_SECONDS = 5.0
"""Maximum wait for the database at the end: a commit that waits for a standby may take hours."""
_ANY_NUMBER = (1 << 53) - 1
"""Number of a record that has none yet: no other number is longer."""
_GENESIS = "log.genesis"
EMPTY_TREE = merkle.TreeHead(0, merkle.EMPTY_ROOT)
_LOCK = 0x7261_696C_6175_6474  # "railaudt" in ASCII
ALTERED_LOG_MESSAGE = "the audit log was altered: {}; fix: run `railscope audit verify`"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _QueuedRecords:
    """Drafts that are recorded together, or rejected."""

    drafts: Sequence[RecordDraft]
    position: LogPosition | None
    is_written: bool = False
    problem: Exception | None = None


@dataclass(slots=True)
class AuditLog:
    """Writer of one log. `open` it, `run` it, `append` to it."""

    store: state_store.StateStore
    database: Callable[[], Database]
    """Raises UnusableLedgerError while the database is unavailable."""
    signer: signed_note.SecretKey
    source: record.RecordSource
    """The writer as a source of records; its `n` is that of the next record."""
    before_signing: Callable[[], None]
    """Raises LogWriteError while nothing may be signed. It is required, so that nothing is signed before it is installed."""
    wall_ns: Callable[[], int] = time.time_ns
    archive: archive_stores.ArchiveStore | None = None
    """Archive of the records that the database no longer has."""
    check_term: Callable[[sa.Connection], None] = lambda _connection: None
    """Raises LostLeaseError, in the transaction that adds records, if another collector of the group may be active."""
    is_active: Callable[[], bool] = lambda: True
    """False while another collector of the group is active: records then go to the outbox of the database."""
    check_ledger: Callable[[], None] = lambda: None
    """Called before and after rows of commands are moved: raises UnusableLedgerError while they may not be. Blocking."""
    note: str = ""
    """Newest checkpoint; empty if nothing is signed."""
    signed: merkle.TreeHead = EMPTY_TREE
    """Tree that was signed last."""
    signing_problem: str = ""
    """Reason why the last attempt to move records failed; empty if it did not."""
    waiting_rows: int = 0
    """Rows of commands that are in no log yet, as of the last poll."""
    own: own_records.OwnRecords = field(init=False)
    name: str = field(init=False)
    """Name of the log in the tables."""
    _tree: merkle.CompactRange | None = None
    """The tree in the database; None before it was read."""
    _rows_source: record.RecordSource = field(init=False)
    _newest_row: int = -1
    """Number of the last row of the outbox when none was pending; -1 if it must be determined."""
    _counted_seconds: float = 0.0
    _followed_seconds: float = -1e9
    _queued: list[_QueuedRecords] = field(default_factory=list)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _move_now: asyncio.Event = field(default_factory=asyncio.Event)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _is_stopped: bool = False

    def __post_init__(self) -> None:
        self.name = tables.log_name(self.signer.public)
        self.own = own_records.OwnRecords(self.store, self.name)
        # Rows take their numbers when they are moved, the collector's own records when they are acknowledged.
        self._rows_source = self._new_source()

    def _new_source(self) -> record.RecordSource:
        return record.RecordSource(self.source.kind, self.source.id, secrets.token_hex(8), 0)

    @property
    def size(self) -> int:
        """Number of records of the log, as far as this collector knows it."""
        return max(self.signed.size, self.own.end)

    @property
    def waiting(self) -> int:
        """Number of acknowledged records that are not in the log yet."""
        return self.own.waiting

    def open(self) -> None:
        """Read the own records. Blocking; raises OSError."""
        self.own.open()

    def follow(self) -> None:
        """Read the state of the log in the database. Blocking; raises LogWriteError, UnusableLedgerError, OSError."""
        with self._lock:
            with self.database().transaction(writes=True) as connection:
                transactions.lock(connection, _LOCK)
                self._follow(connection)
            self._keep_tail()

    async def follow_others(self) -> None:
        """Read the head again, every few seconds, while another collector may have written it.

        Raises LogWriteError, UnusableLedgerError, OSError.
        """
        now_seconds = time.monotonic()
        if self._tree is None and now_seconds >= self._followed_seconds + FOLLOW_SECONDS:
            await call_database(self.follow)
            if not self.is_active():
                self._tree, self._followed_seconds = None, now_seconds

    @contextlib.contextmanager
    def read(self) -> Iterator[tables.StoredTree]:
        """Begin a transaction that reads the signed tree. Blocking; raises UnusableLedgerError."""
        with self.database().transaction() as connection:
            yield tables.StoredTree(connection, self.name, self.signed.size, self.archive)

    def records(self, first: int) -> Iterator[bytes]:
        """Yield the records of the log from a number on. Raises LogDamagedError, UnusableLedgerError, OSError."""
        if self.own.first <= first and self.own.end:
            yield from self.own.tail_from(first)
        elif first < self.size:
            with self.read() as tree:
                yield from tree.records_from(first)

    def waiting_records(self) -> list[bytes]:
        """Return the acknowledged records that are not in the log yet, without their numbers. Raises OSError."""
        return [raw for _, raw in self.own.read_waiting(-1)]

    def append_before_running(self, draft: RecordDraft) -> None:
        """Record a draft after `open` and before `run`. Blocking; raises RecordError, OSError."""
        self.own.add_waiting([self._encode(draft, self.source.n)])
        if draft.source is None:
            self.source = with_number(self.source, self.source.n + 1)

    async def append(self, *drafts: RecordDraft, position: LogPosition | None = None) -> None:
        """Record drafts, all or none: they are durable on return, and will be in the log.

        `position` is that after the frames that they are of, and is stored with them.

        Raises RecordError for a draft that cannot be recorded, LogWriteError if recording is not possible now.
        """
        problem = ""
        if self._is_stopped:
            problem = "the collector is stopping"
        elif len(self._queued) >= MAX_QUEUED:
            problem = (
                "the audit log is overloaded: the disk does not keep up with the queued records"
            )
        elif self.waiting >= MAX_WAITING:
            problem = f"{MAX_WAITING} records wait for the audit log: {self.signing_problem}"
        if problem:
            raise LogWriteError(problem)
        entry = _QueuedRecords(drafts, position)
        self._queued.append(entry)
        async with self._writing:
            # Unless the caller before has written it together with its own.
            if not entry.is_written:
                entries, self._queued = self._queued, []
                try:
                    await run_in_thread(self._write, entries)
                finally:
                    self._move_now.set()
        if entry.problem is not None:
            raise entry.problem

    def _write(self, entries: Sequence[_QueuedRecords]) -> None:
        """Store drafts in one transaction. Blocking."""
        raws, number, position = list[bytes](), self.source.n, None
        for entry in entries:
            entry.is_written = True
            # Drafts that cannot be encoded fail on their own, and take no numbers.
            encoded, following = list[bytes](), number
            try:
                for draft in entry.drafts:
                    encoded.append(self._encode(draft, following))
                    # Only records of the log's own writer take its numbers; events of agents have those of their agents.
                    following += draft.source is None
            except record.RecordError as error:
                entry.problem = error
                continue
            raws += encoded
            number, position = following, entry.position or position
        try:
            self.own.add_waiting(raws, position)
        except OSError as error:
            for entry in entries:
                entry.problem = entry.problem or LogWriteError(f"{error}; no record was written")
        else:
            self.source = with_number(self.source, number)

    async def run(self) -> None:
        """Move acknowledged records to the log until cancelled; then move the rest."""
        try:
            while True:
                await self._move_or_wait()
        finally:
            self._is_stopped = True
            ending = asyncio.create_task(self._end())
            await asyncio.wait({ending}, timeout=STOP_SECONDS)

    async def _end(self) -> None:
        async with self._writing:  # after what is queued
            await self._move_or_log_reason()

    def _encode(self, draft: RecordDraft, number: int) -> bytes:
        source = draft.source or with_number(self.source, number)
        # With the longest number: the log cannot reject the record later.
        return record.encode_audit_record(build_record(draft, source, _ANY_NUMBER))

    async def _move_or_wait(self) -> None:
        """Move some records; if no more wait, wait for the next ones."""
        if await self._move_or_log_reason():
            return
        seconds = RETRY_SECONDS if self.signing_problem else POLL_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._move_now.wait()
                # New records do not repeat what has just failed.
                await asyncio.sleep(seconds if self.signing_problem else 0)
        self._move_now.clear()

    def sign_soon(self) -> None:
        """Trigger moving without waiting for it."""
        self.signing_problem = ""
        self._move_now.set()

    async def _move_or_log_reason(self) -> bool:
        try:
            is_more = await call_database(self._move)
        except (AuditLogError, UnusableLedgerError, record.RecordError, OSError) as error:
            if self.signing_problem != str(error):
                if isinstance(error, SigningPostponedError):
                    log.info("audit_signing_waits", log=self.name, problem=str(error))
                else:
                    log.error("audit_signing_failed", log=self.name, problem=str(error))
            self.signing_problem = str(error)
            return False
        self.signing_problem = ""
        return is_more

    async def sign(self) -> None:
        """Move all records that are acknowledged. Raises LogWriteError, UnusableLedgerError, OSError."""
        while await call_database(self._move):
            pass

    def _move(self) -> bool:
        """Move some records; return True if more may wait. Blocking."""
        # Without the lease, records wait for the next term of a collector.
        with self._lock, convert_errors(leases.LostLeaseError, SigningPostponedError):
            return self._move_group()

    def _move_group(self) -> bool:
        database, waiting = self.database(), self.own.read_waiting(MAX_GROUP_RECORDS)
        if not self.is_active():
            return self._forward(database, waiting)
        may_take_rows = self._count_rows(database)
        if self._tree is not None and not waiting and not may_take_rows:
            return False
        self.before_signing()
        rows: list[audit_outbox.OutboxRow] = []
        with database.transaction(writes=True) as connection:
            self.check_term(connection)
            transactions.lock(connection, _LOCK)
            tree = self._follow(connection)
            first, last = tree.size, waiting[-1][0] if waiting else 0
            is_full = len(waiting) == MAX_GROUP_RECORDS
            raws = [raw for _, raw in self._skip_moved(connection, waiting)]
            if not first and not (raws and record.decode_audit_record(raws[0]).type == _GENESIS):
                raws.insert(0, self._genesis(raws))
            # After the waiting records: those of release 0.3.0 have numbers already, which its collector has returned.
            if may_take_rows and not is_full:
                rows = audit_outbox.read_unrecorded(connection, MAX_GROUP_RECORDS)
            number = self._rows_source.n
            for at, row in enumerate(rows, number):
                built = build_record(row.draft, with_number(self._rows_source, at), 0)
                raws.append(record.encode_audit_record(built))
            raws = [record.renumber(raw, at) for at, raw in enumerate(raws, first)]
            note = self._add(connection, tree, raws, rows) if raws else self.note
            if last:
                self._store_position(connection, last)
        self._tree, self.note, self.signed = tree, note, tree.head
        self._rows_source = with_number(self._rows_source, number + len(rows))
        self._keep_tail(last, raws)
        self.waiting_rows -= len(rows)
        if rows:
            self.check_ledger()
        return is_full or bool(rows)

    def _add(
        self,
        connection: sa.Connection,
        tree: merkle.CompactRange,
        raws: Sequence[bytes],
        rows: Sequence[audit_outbox.OutboxRow],
    ) -> str:
        """Add records with the head that covers them, and store the positions of rows, whose records are the last ones."""
        tables.insert_records(connection, self.name, tree, raws)
        note = log_checkpoint.Checkpoint(self.signer.name, tree.head).sign(self.signer)
        tables.replace_row(connection, tables.heads, {"log": self.name, "note": note})
        if rows:
            genesis = tables.StoredTree(connection, self.name, 1).node(0, 0).hex()
            size = tree.size
            places = [
                audit_outbox.LogPosition(row.id, at, size)
                for at, row in enumerate(rows, size - len(rows))
            ]
            audit_outbox.store_positions(connection, genesis, places)
        return note

    def _genesis(self, following: Sequence[bytes]) -> bytes:
        """Return the first record: its hash identifies the log. It is not later than the records that waited."""
        times_ns = [int(record.read_record_head(raw).t) for raw in following[:1]]
        data: record.RecordData = {"origin": self.signer.name, "key": str(self.signer.public)}
        actor = record.RecordActor("collector", self.source.id)
        draft = RecordDraft(_GENESIS, actor, min([*times_ns, self.wall_ns()]), "done", data=data)
        return record.encode_audit_record(build_record(draft, self._new_source(), 0))

    def _count_rows(self, database: Database) -> bool:
        """Count the rows of commands that are in no log; return True if they may be moved."""
        now_seconds = time.monotonic()
        with database.transaction() as connection:
            newest = audit_outbox.newest_number(connection)
            # A cheap query, as the outbox is empty most of the time.
            if newest == self._newest_row and now_seconds < self._counted_seconds + COUNT_SECONDS:
                return False
            self.waiting_rows = audit_outbox.count_unrecorded(connection)
        if not self.waiting_rows:
            self._newest_row, self._counted_seconds = newest, now_seconds
            return False
        self._newest_row = -1
        try:
            self.check_ledger()
        except UnusableLedgerError:
            return False  # an older copy, which the watch reports: the own records continue
        return True

    def _forward(self, database: Database, waiting: Sequence[tuple[int, bytes]]) -> bool:
        """Put own records into the outbox of the database, from which the active collector moves them."""
        self._tree = None
        if not waiting:
            return False
        with database.transaction(writes=True) as connection:
            for id_, raw in self._skip_moved(connection, waiting):
                waits = record.decode_audit_record(raw)
                # Agents send their events to the active collector again.
                if waits.src.kind == "agent":
                    continue
                draft = RecordDraft(
                    waits.type, waits.actor, int(waits.t), waits.out, waits.obj, waits.data,
                    tuple(waits.ref), waits.tu, commitments=waits.pii,
                )  # fmt: skip
                audit_outbox.put_record(connection, f"collector/{self.own.collector}/{id_}", draft)
            self._store_position(connection, waiting[-1][0])
        self.own.delete_waiting(waiting[-1][0])
        return len(waiting) == MAX_GROUP_RECORDS

    def _skip_moved(
        self, connection: sa.Connection, waiting: Sequence[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        """Return the records that were not moved before: a crash may have come before they were deleted here."""
        columns = tables.positions.c
        query = sa.select(columns.position).where(
            columns.log == self.name, columns.collector == self.own.collector
        )
        position = connection.execute(query).scalar_one_or_none() or 0
        return [(id_, raw) for id_, raw in waiting if id_ > position]

    def _store_position(self, connection: sa.Connection, position: int) -> None:
        row = {"log": self.name, "collector": self.own.collector, "position": position}
        tables.replace_row(connection, tables.positions, row)

    def _follow(self, connection: sa.Connection) -> merkle.CompactRange:
        """Return a copy of the tree in the database, read again if another collector has written. Raises LogWriteError."""
        note = tables.read_note(connection, self.name)
        if self._tree is None or note != self.note:
            with _named_damage():
                self._tree = self._read_tree(connection, note)
            self.note = (
                tables.read_note(connection, self.name) or ""
            )  # a newer one, if records were added again
            self.signed = self._tree.head
        return self._tree.copy()

    def _read_tree(self, connection: sa.Connection, note: str | None) -> merkle.CompactRange:
        """Read the tree, verify it, and add what an older copy lacks. Raises LogDamagedError, NoteError."""
        head = EMPTY_TREE
        if note is not None:
            head = log_checkpoint.read_own_checkpoint(note, self.signer.public).tree
        stored = tables.StoredTree(connection, self.name, head.size)
        tree = tables.read_end(stored)
        newest = sa.select(sa.func.max(tables.records.c.number)).where(
            tables.records.c.log == self.name
        )
        if tree.head != head or (connection.execute(newest).scalar_one() or 0) > max(
            0, head.size - 1
        ):
            message = f"its records do not match the signed head of {head.size} records"
            raise tables.LogDamagedError(message)
        if not self.own.end:
            return tree
        kept = log_checkpoint.read_own_checkpoint(self.own.note, self.signer.public).tree
        if head.size < self.own.end:
            self._add_again(connection, tree, kept)
        elif merkle.root_of(stored.node, kept.size) != kept.root:
            message = f"the first {kept.size} records in the database differ from those that this collector has signed"
            raise tables.LogDamagedError(message)
        return tree

    def _add_again(
        self, connection: sa.Connection, tree: merkle.CompactRange, kept: merkle.TreeHead
    ) -> None:
        """Add the records that an older copy of the database lacks, under the checkpoint that was signed over them."""
        size = tree.size
        if self.own.first > size:
            message = (
                f"the database has {size} records of it, and this collector those from {self.own.first} to"
                f" {self.own.end - 1}: expected a newer copy; fix: restore the newest database"
            )
            raise tables.LogDamagedError(message)
        raws = [*self.own.tail_from(size)]
        tables.insert_records(connection, self.name, tree, raws)
        if tree.head != kept:
            message = f"the {size} records in the database do not precede those of this collector"
            raise tables.LogDamagedError(message)
        tables.replace_row(connection, tables.heads, {"log": self.name, "note": self.own.note})
        genesis = tables.StoredTree(connection, self.name, 1).node(0, 0).hex()
        added = map(record.decode_audit_record, raws)
        audit_outbox.restore_positions(connection, genesis, added, kept.size)
        log.warning("audit_records_restored", log=self.name, records=len(raws), first=size)

    def _keep_tail(self, last: int = 0, raws: Sequence[bytes] = ()) -> None:
        """Add the newest records of the log to the tail, and delete the waiting ones up to an id."""
        size = self.signed.size
        if self.own.end == size - len(raws):
            self.own.move(last, self.own.end, raws, self.note)
        else:
            # Of other collectors of the group, or of an earlier release.
            with self.read() as tree:
                begin = max(
                    size - self.own.max_tail, tables.count_archived(tree.connection, self.name)
                )
                first = max(self.own.end, min(size, begin))
                self.own.move(last, first, tree.records_from(first), self.note)

    def stop_signing(self) -> None:
        """Accept no records: nothing can be written."""
        self._is_stopped = True


@contextlib.contextmanager
def _named_damage() -> Iterator[None]:
    """Raise LogWriteError in place of the errors of a damaged log."""
    try:
        yield
    except (tables.LogDamagedError, signed_note.NoteError) as error:
        raise LogWriteError(ALTERED_LOG_MESSAGE.format(error)) from error
