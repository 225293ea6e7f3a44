"""Verification of an audit log from its tables, a public key and checkpoints kept elsewhere.

Every record is read and hashed again; no hash stored in the log is trusted. Each table may have only what a log of this size has.
The log may be written meanwhile: its first records, up to a signed head, are read in short transactions, which delay no writer.
Each transaction must read one state of the database. That which compares the ledger reads the newest records as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice

import sqlalchemy as sa

from railscope.audit import log_checkpoint, merkle, signed_note
from railscope.audit.record import AuditRecord, RecordError, decode_audit_record
from railscope_collector import archive_stores
from railscope_collector.audit import (
    cosignatures,
    ledger_check,
    record_checks,
    record_tenants,
    tables,
)
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
    rows: Counter[str] = field(default_factory=Counter)
    """Number of rows of the ledger that were compared with these records, by kind."""


def verify_log(  # noqa: PLR0913 - options of one verification
    transaction: tables.Transaction,
    key: signed_note.PublicKey,
    anchors: Iterable[str] = (),
    archive: archive_stores.ArchiveReader | None = None,
    *,
    known_tables: sa.MetaData | None = None,
    ledger: tables.Transaction | None = None,
) -> VerifiedLog:
    """Verify the log of a key, and that it is consistent with every anchor. Raises LogVerificationError.

    Without the archive, archived records are counted and not checked, but all their hashes are. `known_tables` are all tables
    that the database may have; without them, others are not checked. `ledger` is compared with the records as well.
    """
    unreadable = UnusableLedgerError, OSError, sa.exc.OperationalError
    with raise_verify_error(VerifyOutcome.UNREADABLE, *unreadable):
        with transaction():
            pass  # the server is reached: any other error is one of the content
        with raise_verify_error(
            VerifyOutcome.ALTERED, sa.exc.DBAPIError, prefix="cannot read the tables: "
        ):
            verification = _Verification(transaction, key, archive)
            verified = verification.run(anchors, known_tables)
        return verified if ledger is None else _compare_ledger(ledger, verification, verified)


def _compare_ledger(
    ledger: tables.Transaction, verification: _Verification, verified: VerifiedLog
) -> VerifiedLog:
    """Compare a ledger with the records of a valid log. Raises LogVerificationError."""
    if verified.unchecked:
        message = (
            f"cannot compare the ledger: {verified.unchecked} records are archived; fix: name their archive (archive.url, or"
            " --archive)"
        )
        raise LogVerificationError(VerifyOutcome.UNREADABLE, message)
    with ledger() as connection:
        verification.read_on(connection)
        compared = ledger_check.compare_ledger(connection, verified.ledger)
    if compared.differences:
        differences = ledger_check.summarize_differences(compared)
        message = f"the ledger does not match its records: {differences}"
        raise LogVerificationError(VerifyOutcome.ALTERED, message)
    findings = (*verified.findings, *compared.unrecorded)
    return replace(verified, findings=findings, rows=compared.rows)


@dataclass(slots=True)
class _Verification:
    """One verification: the tree over the records read so far, and what they contain."""

    transaction: tables.Transaction
    key: signed_note.PublicKey
    archive: archive_stores.ArchiveReader | None
    tree: merkle.CompactRange = field(default_factory=merkle.CompactRange)
    checks: record_checks.RecordChecks = field(default_factory=record_checks.RecordChecks)
    unread: set[int] = field(default_factory=set)
    """Bundles that are archived and were not read, as no archive was given."""
    tenants: defaultdict[str, bytes] = field(default_factory=lambda: defaultdict(bytes))
    """Hash of the numbers of each tenant's records that were read."""

    def run(self, anchors: Iterable[str], known_tables: sa.MetaData | None) -> VerifiedLog:
        log = tables.log_name(self.key)
        with self.transaction() as connection:
            if known_tables is not None:
                _check_tables(connection, known_tables)
            note = tables.read_note(connection, log)
            if note is None:
                self._report_absence(connection)
            archived = tables.count_archived(connection, log)
            witnesses = cosignatures.read_witnesses(connection, log)
        head = self._read_head(note or "")
        kept = [self._read_anchor(anchor) for anchor in anchors]
        stated = [self._read_anchor(note) for note in signed_notes(witnesses, self.key)]
        pending = sorted((*kept, *stated), key=lambda anchor: anchor.tree.size)
        if pending and pending[-1].tree.size > head.tree.size:
            _report_fork(head, pending[-1], "the log is shorter than a signed checkpoint")
        self._check_records(log, head)
        # Entries that no record states as archived are lost; later records state what is archived meanwhile.
        if self.checks.archived < archived:
            message = f"records {self.checks.archived} to {archived - 1} are missing, and no record states that they are archived"
            raise LogVerificationError(VerifyOutcome.TAIL_MISSING, message)
        with self.transaction() as connection:
            stored = tables.StoredTree(connection, log, head.tree.size)
            for anchor in pending:
                size = anchor.tree.size
                # The stored hashes are those of the records by now.
                if merkle.root_of(stored.node, size) != anchor.tree.root:
                    reason = f"its first {size} records do not match the signed ones"
                    _report_fork(head, anchor, reason)
        if self.checks.genesis_key not in {"", str(self.key)}:
            message = f"the first record names the key {self.checks.genesis_key}"
            raise LogVerificationError(VerifyOutcome.ALTERED, message)
        is_partial = bool(self.unread)
        found = find_cosigners(witnesses, self.key, self.checks.witnesses, is_partial=is_partial)
        cosigners, doubts = found
        return VerifiedLog(
            head,
            len(self.unread) * WIDTH,
            len(kept),
            (*self.checks.findings(), *doubts),
            cosigners,
            self.checks.ledger,
        )

    def read_on(self, connection: sa.Connection) -> None:
        """Verify the records that were added meanwhile, if the log is in this database."""
        log = tables.log_name(self.key)
        note, first = tables.read_note(connection, log), self.tree.size
        head = self._read_head(note) if note else None
        if head is None or head.tree.size <= first:
            return
        stored = tables.StoredTree(connection, log, head.tree.size, self.archive)
        while first < head.tree.size:
            end = min(head.tree.size, (first // WIDTH + 1) * WIDTH)
            self._check_bundle(stored, first, end)
            first = end
        self._check_root(head)

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

    def _check_records(self, log: str, head: log_checkpoint.Checkpoint) -> None:
        """Compare the records with their hashes and the signed head."""
        size = head.tree.size
        for begin in range(0, size, _BUNDLES * WIDTH):
            with self.transaction() as connection:
                stored = tables.StoredTree(connection, log, size, self.archive)
                for first in range(begin, min(size, begin + _BUNDLES * WIDTH), WIDTH):
                    self._check_bundle(stored, first, min(size, first + WIDTH))
        self._check_root(head)
        with self.transaction() as connection:
            self._check_tenants(connection, log, size)
            self._check_excess(connection, log)

    def _check_root(self, head: log_checkpoint.Checkpoint) -> None:
        if self.tree.head != head.tree:
            message = f"the {head.tree.size} records do not match the signed root"
            raise LogVerificationError(VerifyOutcome.ALTERED, message)

    def _check_bundle(self, stored: tables.StoredTree, first: int, end: int) -> None:
        """Check up to 256 records, and the stored hashes of the subtrees that they complete."""
        if (leaves := stored.archived_leaves(first // WIDTH)) and self.archive is None:
            self.unread.add(first // WIDTH)
            self.checks.begin_after_unread_records()
        else:
            try:
                raws = [*islice(stored.records_from(first, WIDTH), end - first)]
            except tables.LogDamagedError as error:
                raise LogVerificationError(damage_outcome(error), str(error)) from error
            leaves = [*map(merkle.leaf_hash, raws)]
            for number, raw in enumerate(raws, first):
                self._add(_decode(raw, number))
        for leaf in leaves:
            for level, place, hashed in tables.append_leaf(self.tree, leaf):
                if stored.hashes(level, place, 1) != [hashed]:
                    message = (
                        f"altered hash {place} of level {level}: it does not match the records"
                    )
                    raise LogVerificationError(VerifyOutcome.ALTERED, message)

    def _add(self, record: AuditRecord) -> None:
        self.checks.add(record)
        if tenant := record_tenants.sole_tenant(record):
            self.tenants[tenant] = _chain(self.tenants[tenant], record.seq)

    def _check_tenants(self, connection: sa.Connection, log: str, size: int) -> None:
        """Compare the lists of the records of tenants with the records that were read."""
        table, stored = tables.tenants, defaultdict[str, bytes](bytes)
        # Later ones may be added meanwhile.
        is_signed = table.c.number < size
        query = sa.select(table.c.tenant, table.c.number).where(table.c.log == log, is_signed)
        rows = connection.execution_options(yield_per=10_000).execute(
            query.order_by(table.c.tenant, table.c.number)
        )
        for tenant, number in rows:
            if number // WIDTH in self.unread:
                continue
            stored[tenant] = _chain(stored[tenant], number)
        for tenant in sorted(stored.keys() | self.tenants.keys()):
            if stored[tenant] != self.tenants[tenant]:
                message = f"altered list of the records of the tenant {tenant}"
                raise LogVerificationError(VerifyOutcome.ALTERED, message)

    def _check_excess(self, connection: sa.Connection, log: str) -> None:
        """Check that no table has more than a log of the newest size has."""
        note = self._read_head(tables.read_note(connection, log) or "")
        size = note.tree.size
        for table in (tables.records, tables.tenants):
            query = sa.select(sa.func.max(table.c.number), sa.func.min(table.c.number)).where(
                table.c.log == log
            )
            last, first = connection.execute(query).one()
            archived = tables.count_archived(connection, log) if table is tables.records else 0
            if last is not None and (last >= size or first < archived):
                number = last if last >= size else first
                reason = "is archived" if 0 <= number < archived else "is not signed"
                message = f"record {number} {reason}: it was added by hand"
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


def _report_fork(
    head: log_checkpoint.Checkpoint, other: log_checkpoint.Checkpoint, reason: str
) -> None:
    texts = f"--- signed, here:\n{head.text}--- signed, kept elsewhere:\n{other.text}"
    raise LogVerificationError(VerifyOutcome.FORKED, f"{reason}\n{texts}")


def _chain(previous: bytes, number: int) -> bytes:
    return sha256(b"%b %d" % (previous, number)).digest()


def damage_outcome(error: tables.LogDamagedError) -> VerifyOutcome:
    """Return the outcome for a log that is damaged, or whose archive cannot be read."""
    match error.__cause__:
        case archive_stores.MissingFileError():
            return VerifyOutcome.TAIL_MISSING
        case archive_stores.ArchiveError():
            return VerifyOutcome.UNREADABLE
    is_missing = isinstance(error, tables.MissingEntriesError)
    return VerifyOutcome.TAIL_MISSING if is_missing else VerifyOutcome.ALTERED


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
    for table in tables.APPENDED:
        yield from (f"{table.name}_{change}" for change in changes)
