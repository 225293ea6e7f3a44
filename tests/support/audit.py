"""Audit logs for tests: drafts, a log that is written and closed, checkpoints of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from click.testing import CliRunner
from sqlalchemy import Connection, text

from railscope.audit.merkle import TreeHead
from railscope.audit.record import (
    AuditRecord,
    RecordActor,
    RecordSource,
    RecordSubject,
    decode_audit_record,
)
from railscope.audit.signed_note import PublicKey, SecretKey
from railscope.cli import root
from railscope_collector.archive_stores import ArchiveReader
from railscope_collector.audit.log_writer import AuditLog
from railscope_collector.audit.verification import VerifiedLog, verify_log
from railscope_collector.ledger.database import Database, SharedDatabase, open_read_only
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.state_store import StateStore
from railscope_collector.tables import metadata

KEY = SecretKey.generate("log.example")
NOON_NS = 1_790_000_000_000_000_000


def draft(
    number: int, kind: str = "tenancy.assign", source: RecordSource | None = None
) -> RecordDraft:
    """Return a distinguishable record."""
    return RecordDraft(
        kind,
        RecordActor("scheduler", "slurm"),
        NOON_NS + number,
        "done",
        RecordSubject(f"node-{number % 3}"),
        {"number": number},
        (f"frame/{number}",),
        source=source,
    )


@contextlib.contextmanager
def database_in(directory: Path) -> Iterator[Database]:
    """The ledger database of a state directory."""
    directory.mkdir(parents=True, exist_ok=True)
    database = Database(f"sqlite:///{directory / 'ledger.sqlite'}", metadata)
    try:
        yield database
    finally:
        database.close()


def audit_log(
    directory: Path,
    *,
    boot: str = "b0",
    database: Database | None = None,
    before_signing: Callable[[], None] = lambda: None,
) -> AuditLog:
    """Return the log of a state directory; without a database, that of the directory is opened when it is needed."""
    directory.mkdir(parents=True, exist_ok=True)
    shared = SharedDatabase(f"sqlite:///{directory / 'ledger.sqlite'}", metadata)
    source = RecordSource("collector", "c1", boot, 0)
    find = shared.open if database is None else lambda: database
    return AuditLog(StateStore(directory), find, KEY, source, before_signing, lambda: NOON_NS)


@contextlib.asynccontextmanager
async def running_log(log: AuditLog) -> AsyncIterator[AuditLog]:
    """Open and run the log; what waits is moved and signed at the end."""
    log.store.open()
    log.open()
    task = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        log.store.close()


async def append_drafts(log: AuditLog, numbers: Sequence[int]) -> None:
    """Append a draft for each number, all at once."""
    await asyncio.gather(*(log.append(draft(number)) for number in numbers))


def write_log(directory: Path, groups: Sequence[int], *, boot: str = "b0") -> TreeHead:
    """Write a log with as many records in each group, signed after each group."""

    async def writing() -> TreeHead:
        async with running_log(audit_log(directory, boot=boot)) as log:
            for count in groups:
                first = log.size
                await append_drafts(log, range(first, first + count))
                await log.sign()
            return log.signed

    return asyncio.run(writing())


def verify_directory(
    directory: Path, anchors: Sequence[str] = (), archive: ArchiveReader | None = None
) -> VerifiedLog:
    """Verify the log in the ledger database of a state directory."""
    with open_read_only(f"sqlite:///{directory / 'ledger.sqlite'}") as transaction:
        return verify_log(transaction, KEY.public, anchors, archive, known_tables=metadata)


def without_triggers(connection: Connection, *, of_log: bool = False) -> None:
    """Change the database without its triggers, as an administrator of it can; those of the audit log stay in SQLite by default."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET session_replication_role = replica"))
        return
    kept = () if of_log else ("audit_record", "audit_subtree", "audit_archived", "audit_tenant")
    rows = connection.execute(
        text("SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'")
    )
    for name, table in rows.all():
        if table not in kept:
            connection.execute(text(f"DROP TRIGGER {name}"))


def verified_records(directory: Path) -> Iterator[AuditRecord]:
    """Yield all records of a closed log in a state directory, after its verification."""
    place = str(directory / "ledger.sqlite")
    with open_read_only(f"sqlite:///{place}") as transaction:
        key = directory / "audit.pub"
        public = PublicKey.parse(key.read_text()) if key.exists() else KEY.public
        found = verify_log(transaction, public)
    assert found.findings == ()
    shown = CliRunner().invoke(root, ["audit", "show", place, "--json"])
    for line in shown.stdout.splitlines():
        yield decode_audit_record(line.encode())
