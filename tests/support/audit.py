"""Audit logs for tests: drafts, a log that is written and closed, checkpoints of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
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
from railscope_collector.audit.log_writer import AuditLog
from railscope_collector.audit.verification import verify_log
from railscope_collector.ledger.record_draft import RecordDraft

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


def audit_log(directory: Path, *, boot: str = "b0", every_seconds: float = 3600) -> AuditLog:
    """Return a log that signs only on request, unless it has a period."""
    source = RecordSource("collector", "c1", boot, 0)
    return AuditLog(directory, KEY, source, sign_every_seconds=every_seconds)


@contextlib.asynccontextmanager
async def running_log(log: AuditLog) -> AsyncIterator[AuditLog]:
    """Open and run the log; it is signed and closed at the end."""
    log.open()
    task = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        log.close()


async def append_drafts(log: AuditLog, numbers: Sequence[int]) -> list[int]:
    """Append a draft for each number, all at once; return their sequences."""
    return await asyncio.gather(*(log.append(draft(number)) for number in numbers))


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


def without_triggers(connection: Connection) -> None:
    """Change the database without its triggers, as an administrator of it can."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET session_replication_role = replica"))
        return
    names = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
    for name in list(names.scalars()):
        connection.execute(text(f"DROP TRIGGER {name}"))


def verified_records(directory: Path) -> Iterator[AuditRecord]:
    """Yield all records of a closed log, after its verification."""
    found = verify_log(directory, PublicKey.parse((directory / "key.pub").read_text()))
    assert (found.unsigned, found.findings) == (0, ())
    shown = CliRunner().invoke(root, ["audit", "show", str(directory), "--json"])
    for line in shown.stdout.splitlines():
        yield decode_audit_record(line.encode())
