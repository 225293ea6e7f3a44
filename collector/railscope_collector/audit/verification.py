"""Verification of an audit log from its tables, a public key and checkpoints kept elsewhere.

Every record is read and hashed again; no hash stored in the log is trusted. Each table may have only what a log of this size has.
The log may be written meanwhile: its first records, up to a signed head, are read in short transactions, which delay no writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from railscope.audit import log_checkpoint, merkle, signed_note
from railscope.audit.record import AuditRecord, RecordError, decode_audit_record
from railscope_collector import archive_stores
from railscope_collector.audit import cosignatures, record_checks, tables
from railscope_collector.audit.cosigners import Cosigner, find_cosigners, signed_notes
from railscope_collector.audit.tiles import WIDTH
from railscope_collector.audit.verify_outcome import (
    LogVerificationError,
    VerifyOutcome,
    raise_verify_error,
)
from railscope_collector.ledger import ledger_probe, ledger_records
from railscope_collector.ledger.database import UnusableLedgerError

_BUNDLES = 16
"""Bundles of 256 records that are read in one transaction."""
_OTHER_TABLES = {
    ledger_probe.PROBE_TABLE.name,
    "audit_taken",
    "collector_member",
    "evidence_archived_fact",
    "evidence_boot",
    "evidence_contact",
    "evidence_contents",
    "evidence_contents_day",
    "evidence_decision",
    "evidence_gpu",
}
"""The row that a collector's readiness writes, and tables of earlier releases, which this one does not read."""


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """Result of the verification of a valid log."""

    checkpoint: log_checkpoint.Checkpoint
    unchecked: int = 0
    """Number of archived records that were not read, because no archive was given."""
    anchors: int = 0
    """Number of checkpoints kept elsewhere that this log is consistent with."""
    findings: tuple[str, ...] = ()
    """Findings that no signature covers but a person must explain: gaps in the records of a source."""
    witnesses: tuple[Cosigner, ...] = ()
    """Witnesses with a cosignature of the log, the one with the largest checkpoint first."""
    ledger: ledger_records.LedgerRecords = field(default_factory=ledger_records.LedgerRecords)
    """Records of operations on the ledger's database."""


def verify_log(  # noqa: PLR0913 - options of one verification
    transaction: tables.Transaction,
    key: signed_note.PublicKey,
    anchors: Iterable[str] = (),
    archive: archive_stores.ArchiveReader | None = None,
    *,
    known_tables: sa.MetaData | None = None,
    log: str = "",
) -> VerifiedLog:
    """Verify the log of a key, and that it is consistent with every anchor. Raises LogVerificationError.

    Without the archive, archived records are counted and not checked, but all their hashes are. `known_tables` are all tables
    that the database may have; without them, others are not checked. `log` is the name in the tables, by default that of the key.
    """
    with (
        raise_verify_error(VerifyOutcome.UNREADABLE, UnusableLedgerError, OSError),
        raise_verify_error(VerifyOutcome.UNREADABLE, sa.exc.OperationalError),
        raise_verify_error(
            VerifyOutcome.ALTERED, sa.exc.DBAPIError, prefix="cannot read the tables: "
        ),
    ):
        name = log or tables.log_name(key)
        return _Verification(transaction, key, archive).run(name, anchors, known_tables)


@dataclass(slots=True)
class _Verification:
    """One verification: the tree over the records read so far, and what they contain."""

    transaction: tables.Transaction
    key: signed_note.PublicKey
    archive: archive_stores.ArchiveReader | None
    tree: tables.GrowingTree = field(default_factory=tables.GrowingTree)
    checks: record_checks.RecordChecks = field(default_factory=record_checks.RecordChecks)
    unchecked: int = 0
    last_archived: int = 0
    """End of the archived records."""

    def run(
        self, log: str, anchors: Iterable[str], known_tables: sa.MetaData | None
    ) -> VerifiedLog:
        with self.transaction() as connection:
            if known_tables is not None:
                _check_tables(connection, known_tables)
            note = tables.read_note(connection, log)
            if note is None:
                self._report_absence(connection)
            witnesses = cosignatures.read_witnesses(connection, log)
        head = self._read_head(note or "")
        stated_by_log = [*signed_notes(witnesses, self.key)]
        pending = sorted(
            (self._read_anchor(anchor) for anchor in [*anchors, *stated_by_log]),
            key=lambda anchor: anchor.tree.size,
        )
        count = len(pending)
        if pending and pending[-1].tree.size > head.tree.size:
            _report_fork(head, pending[-1], "the log is shorter than a signed checkpoint")
        self._check_records(log, head, pending)
        if self.checks.genesis_key not in {"", str(self.key)}:
            message = f"the first record names the key {self.checks.genesis_key}"
            raise LogVerificationError(VerifyOutcome.ALTERED, message)
        if self.unchecked:
            # The records with the keys of other witnesses may be among those that were not read.
            unread = len(witnesses)
            witnesses = {
                node: each for node, each in witnesses.items() if node in self.checks.witnesses
            }
            unread -= len(witnesses)
        cosigners, doubts = find_cosigners(witnesses, self.key, self.checks.witnesses)
        if self.unchecked and unread:
            doubts += (f"witnesses whose keys are not in the records that were read: {unread}",)
        return VerifiedLog(
            head,
            self.unchecked,
            count - len(stated_by_log),
            (*self.checks.findings(), *doubts),
            cosigners,
            self.checks.ledger,
        )

    def _report_absence(self, connection: sa.Connection) -> None:
        """Raise LogVerificationError for a database without a signed head of this key."""
        others = [*connection.execute(sa.select(tables.heads.c.log)).scalars()]
        if others:
            message = f"no log of the key {self.key}: the database has those of {', '.join(sorted(others))}"
            raise LogVerificationError(VerifyOutcome.KEY_PROBLEM, message)
        message = "missing signed head: the minimum length of the log is unknown"
        raise LogVerificationError(VerifyOutcome.TAIL_MISSING, message)

    def _read_head(self, note: str) -> log_checkpoint.Checkpoint:
        prefix = "invalid signed head: "
        with (
            raise_verify_error(VerifyOutcome.ALTERED, signed_note.NoteError, prefix=prefix),
            raise_verify_error(VerifyOutcome.KEY_PROBLEM, signed_note.UnsignedError, prefix=prefix),
        ):
            return log_checkpoint.read_own_checkpoint(note, self.key)

    def _read_anchor(self, note: str) -> log_checkpoint.Checkpoint:
        prefix = "invalid checkpoint kept elsewhere: "
        with raise_verify_error(VerifyOutcome.KEY_PROBLEM, signed_note.NoteError, prefix=prefix):
            return log_checkpoint.read_checkpoint(note, self.key)

    def _check_records(
        self, log: str, head: log_checkpoint.Checkpoint, pending: list[log_checkpoint.Checkpoint]
    ) -> None:
        """Compare the records with their hashes, every anchor and the signed head."""
        size = head.tree.size
        self._compare(head, pending)
        for begin in range(0, size, _BUNDLES * WIDTH):
            with self.transaction() as connection:
                stored = tables.StoredTree(connection, log, size, self.archive)
                for first in range(begin, min(size, begin + _BUNDLES * WIDTH), WIDTH):
                    self._check_bundle(stored, first, min(size, first + WIDTH), head, pending)
        if self.tree.head != head.tree:
            message = f"the {size} records do not match the signed root"
            raise LogVerificationError(VerifyOutcome.ALTERED, message)
        with self.transaction() as connection:
            self._check_excess(connection, log)
        # Entries that no record states as archived are lost.
        if self.checks.archived < self.last_archived:
            message = f"records {self.checks.archived} to {self.last_archived - 1} are missing, and no record states that they are archived"
            raise LogVerificationError(VerifyOutcome.TAIL_MISSING, message)

    def _check_bundle(
        self,
        stored: tables.StoredTree,
        first: int,
        end: int,
        head: log_checkpoint.Checkpoint,
        pending: list[log_checkpoint.Checkpoint],
    ) -> None:
        """Check up to 256 records, and the stored hashes of the subtrees that they complete."""
        leaves, raws = self._read_bundle(stored, first, end)
        completed: list[tuple[int, int, bytes]] = []
        for number, leaf in enumerate(leaves, first):
            if raws is not None:
                self.checks.add(_decode(raws[number - first], number))
            completed += self.tree.add(leaf)
            self._compare(head, pending)
        for level, place, hashed in completed:
            if stored.hashes(level, place, 1) != [hashed]:
                message = f"altered hash {place} of level {level}: it does not match the records"
                raise LogVerificationError(VerifyOutcome.ALTERED, message)

    def _read_bundle(
        self, stored: tables.StoredTree, first: int, end: int
    ) -> tuple[Sequence[merkle.Hash], list[bytes] | None]:
        """Return leaves and records; no records if they are archived and there is no archive."""
        rows = stored.read_rows(first, end)
        if not rows and (leaves := stored.archived_leaves(first // WIDTH)):
            self.last_archived = end
            if self.archive is None:
                self.unchecked += end - first
                self.checks.begin_after_unread_records()
                return leaves, None
            try:
                return leaves, stored.archived_records(first // WIDTH)
            except tables.ArchivedEntriesError as error:
                raise LogVerificationError(_archive_outcome(error), str(error)) from error
        if stored.archived_leaves(first // WIDTH):
            message = f"unexpected hashes of archived records from {first} on: these records are in the database"
            raise LogVerificationError(VerifyOutcome.ALTERED, message)
        raws: list[bytes] = []
        for row in rows:
            if row.number != first + len(raws):
                break
            raws.append(bytes(row.content))
            if merkle.leaf_hash(raws[-1]) != bytes(row.leaf):
                message = f"altered record {row.number}: it does not match its hash"
                raise LogVerificationError(VerifyOutcome.ALTERED, message)
        if len(raws) != end - first:
            message = f"missing record {first + len(raws)}"
            raise LogVerificationError(VerifyOutcome.TAIL_MISSING, message)
        return [bytes(row.leaf) for row in rows], raws

    def _check_excess(self, connection: sa.Connection, log: str) -> None:
        """Check that no table has more than a log of the newest size has."""
        note = self._read_head(tables.read_note(connection, log) or "")
        size, table = note.tree.size, tables.records
        query = sa.select(sa.func.max(table.c.number), sa.func.min(table.c.number)).where(
            table.c.log == log
        )
        last, first = connection.execute(query).one()
        if last is not None and (last >= size or first < 0):
            message = (
                f"record {last if last >= size else first} is not signed: it was added by hand"
            )
            raise LogVerificationError(VerifyOutcome.ALTERED, message)
        counts = dict[int, int]()
        for level, count, newest in connection.execute(
            sa.select(
                tables.subtrees.c.level, sa.func.count(), sa.func.max(tables.subtrees.c.place)
            )
            .where(tables.subtrees.c.log == log)
            .group_by(tables.subtrees.c.level)
        ):
            counts[level] = max(count, newest + 1)
        expected = {level: size >> level for level in range(8, 64, 8) if size >> level}
        for level in sorted(counts.keys() | expected.keys()):
            if counts.get(level) != expected.get(level):
                message = f"{counts.get(level, 0)} hashes of level {level}: expected {expected.get(level, 0)}"
                raise LogVerificationError(VerifyOutcome.ALTERED, message)
        bundles = sa.select(sa.func.count(), sa.func.max(tables.archived.c.bundle)).where(
            tables.archived.c.log == log
        )
        number, newest = connection.execute(bundles).one()
        if number and (number != newest + 1 or newest >= size // WIDTH):
            message = f"{number} bundles of archived hashes, the last one of records from {newest * WIDTH} on"
            raise LogVerificationError(VerifyOutcome.ALTERED, message)

    def _compare(
        self, head: log_checkpoint.Checkpoint, pending: list[log_checkpoint.Checkpoint]
    ) -> None:
        """Compare the anchors of this size, and remove them from the pending ones."""
        while pending and pending[0].tree.size == self.tree.range.size:
            anchor = pending.pop(0)
            if self.tree.range.root != anchor.tree.root:
                reason = f"its first {anchor.tree.size} records do not match the signed ones"
                _report_fork(head, anchor, reason)


def _report_fork(
    head: log_checkpoint.Checkpoint, other: log_checkpoint.Checkpoint, reason: str
) -> None:
    texts = f"--- signed, here:\n{head.text}--- signed, kept elsewhere:\n{other.text}"
    raise LogVerificationError(VerifyOutcome.FORKED, f"{reason}\n{texts}")


def _archive_outcome(error: tables.ArchivedEntriesError) -> VerifyOutcome:
    match error.__cause__:
        case archive_stores.MissingFileError():
            return VerifyOutcome.TAIL_MISSING
        case archive_stores.ArchiveError():
            return VerifyOutcome.UNREADABLE
    return VerifyOutcome.ALTERED


def _decode(raw: bytes, number: int) -> AuditRecord:
    with raise_verify_error(
        VerifyOutcome.ALTERED, RecordError, prefix=f"invalid record {number}: "
    ):
        record = decode_audit_record(raw)
    if record.seq != number:
        message = f"wrong number of record {number}: {record.seq}"
        raise LogVerificationError(VerifyOutcome.ALTERED, message)
    return record


def _check_tables(connection: sa.Connection, known: sa.MetaData) -> None:
    """Check that the database has no other tables, and that those of the log have their triggers."""
    found = set(sa.inspect(connection).get_table_names())
    for name in sorted(found - known.tables.keys() - _OTHER_TABLES):
        message = f"unexpected table {name} in the database"
        raise LogVerificationError(VerifyOutcome.ALTERED, message)
    for table in tables.TABLES:
        if table.name not in found:
            message = f"missing table {table.name} in the database"
            raise LogVerificationError(VerifyOutcome.TAIL_MISSING, message)
    present = set(_read_triggers(connection))
    for name in _expected_triggers(connection.dialect.name):
        if name not in present:
            message = f"missing trigger {name}, which prevents changes of the log"
            raise LogVerificationError(VerifyOutcome.ALTERED, message)


def _read_triggers(connection: sa.Connection) -> Iterator[str]:
    if connection.dialect.name == "postgresql":
        query = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled IN ('O', 'A')"
    else:
        problem = connection.execute(sa.text("PRAGMA quick_check(1)")).scalar_one()
        if problem != "ok":
            raise LogVerificationError(VerifyOutcome.ALTERED, f"damaged database: {problem}")
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    yield from connection.execute(sa.text(query)).scalars()


def _expected_triggers(dialect: str) -> Iterator[str]:
    changes = ("no_update", "no_delete") if dialect == "sqlite" else ("append_only",)
    for table in (tables.records, tables.subtrees, tables.archived):
        yield from (f"{table.name}_{change}" for change in changes)
