"""Audit logs whose old entries are in an archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from support.audit import KEY, NOON_NS, append_drafts, audit_log, running_log

from railscope.audit.record import AuditRecord, decode_audit_record
from railscope.timestamps import DAY_NS
from railscope_collector.archive_stores import ArchiveStore, DirectoryStore
from railscope_collector.audit.entry_retention import EntryRetention
from railscope_collector.audit.log_writer import AuditLog
from railscope_collector.audit.tiles import Tiles
from railscope_collector.audit.verification import VerifiedLog, verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError, VerifyOutcome

KEEP_DAYS = 30
LATER_NS = NOON_NS + 31 * DAY_NS
STEPS = ("created", "compared", "recorded", "signed", "deleted")


class KilledError(Exception):
    """The collector was killed."""


def interrupt_after(step: str, times: int = 1) -> Callable[[str], None]:
    """Return a function that raises KilledError at the given occurrence of a step."""
    seen = count(1)

    def check(done: str) -> None:
        if done == step and next(seen) == times:
            raise KilledError(step)

    return check


def store_in(directory: Path) -> DirectoryStore:
    (directory / "archive").mkdir(exist_ok=True)
    return DirectoryStore(directory / "archive")


def open_log(directory: Path, boot: str = "b0", store: ArchiveStore | None = None) -> AuditLog:
    log = audit_log(directory / "log", boot=boot)
    log.archive = store or store_in(directory)
    return log


def retention_of(log: AuditLog, now_ns: int = LATER_NS) -> EntryRetention:
    return EntryRetention(log, KEEP_DAYS, 3600.0, wall_ns=lambda: now_ns)


@asynccontextmanager
async def archiving(
    directory: Path, records: int = 0, boot: str = "b0", store: ArchiveStore | None = None
) -> AsyncIterator[EntryRetention]:
    """Run a log with some more signed records, and its retention."""
    async with running_log(open_log(directory, boot, store)) as log:
        await append_drafts(log, range(log.size, log.size + records))
        await log.sign()
        yield retention_of(log)


def write_archived(
    directory: Path, records: int = 600, boot: str = "b0", now_ns: int = LATER_NS
) -> None:
    """Write a log and archive what is due."""

    async def writing() -> None:
        async with archiving(directory, records, boot) as retention:
            retention.wall_ns = lambda: now_ns
            assert not await retention.attempt()
            assert retention.problem == ""

    asyncio.run(writing())


def full_tiles(directory: Path) -> list[str]:
    """Return the full tiles of entries in the directory of a log."""
    tiles = directory / "log" / "tile" / "entries"
    return sorted(path.name for path in tiles.iterdir() if path.is_file())


def archived_files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "archive").rglob("*") if path.is_file())


def verified(directory: Path) -> VerifiedLog:
    return verify_log(directory / "log", KEY.public, archive=store_in(directory))


def outcome(directory: Path, *, with_archive: bool = True) -> tuple[VerifyOutcome, str]:
    try:
        store = store_in(directory) if with_archive else None
        found = verify_log(directory / "log", KEY.public, archive=store)
    except LogVerificationError as error:
        return error.outcome, str(error)
    return (VerifyOutcome.UNCHECKED if found.unchecked else VerifyOutcome.CONSISTENT), ""


def numbers_of(directory: Path) -> list[object]:
    """The number in each record of a verified log, read from the directory and the archive."""
    found = verified(directory)
    assert (found.unchecked, found.unsigned, found.findings) == (0, 0, ())
    tiles = Tiles(directory / "log", found.checkpoint.tree.size, store_in(directory))
    records = [decode_audit_record(raw) for raw in tiles.records_from(0)]
    assert [record.seq for record in records] == list(range(tiles.size))
    return [record.data["number"] for record in records if "number" in record.data]


def archive_records(directory: Path) -> list[AuditRecord]:
    size = verified(directory).checkpoint.tree.size
    raws = Tiles(directory / "log", size, store_in(directory)).records_from(0)
    records = (decode_audit_record(raw) for raw in raws)
    return [record for record in records if record.type == "log.archive"]
