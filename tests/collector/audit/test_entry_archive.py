"""Old entries move to an archive: a round may be interrupted anywhere, and no record is lost or replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, text
from support.audit import (
    KEY,
    NOON_NS,
    append_drafts,
    audit_log,
    database_in,
    draft,
    running_log,
    verify_directory,
    without_triggers,
)

from railscope.audit.record import AuditRecord, RecordSource, RecordSubject, decode_audit_record
from railscope.cli import root
from railscope.service import run_in_thread
from railscope.settings import SettingsError
from railscope.timestamps import DAY_NS
from railscope_collector.archive_stores import DirectoryStore
from railscope_collector.audit.entry_archive import EntryArchive, open_entry_archive
from railscope_collector.audit.entry_proof import check_proof
from railscope_collector.audit.periodic_verification import PeriodicVerification
from railscope_collector.audit.tables import archive_name
from railscope_collector.audit.tiles import complete_root
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError, VerifyOutcome
from railscope_collector.commands.audit import open_tree
from railscope_collector.config import ArchiveSettings, AuditSettings, CollectorSettings
from railscope_collector.ledger.database import SharedDatabase, call_database
from railscope_collector.tables import metadata

KEEP_DAYS = 30
LATER_NS = NOON_NS + 31 * DAY_NS


def store_in(directory: Path) -> DirectoryStore:
    (directory / "archive").mkdir(exist_ok=True)
    return DirectoryStore(directory / "archive")


@asynccontextmanager
async def archiving(
    directory: Path, records: int = 0, boot: str = "b0"
) -> AsyncIterator[EntryArchive]:
    """Run a log with some more signed records, and its archive."""
    log = audit_log(directory, boot=boot)
    log.archive = store_in(directory)
    async with running_log(log):
        await append_drafts(log, range(log.size, log.size + records))
        await log.sign()
        yield EntryArchive(log, KEEP_DAYS, 3600.0, now_ns=lambda: LATER_NS)
        log.database().close()


def write_archived(directory: Path, records: int = 599) -> None:
    """Write a log and archive what is due."""

    async def writing() -> None:
        async with archiving(directory, records) as archive:
            assert not await archive.attempt()
            assert archive.problem == ""

    asyncio.run(writing())


def local_numbers(directory: Path) -> list[int]:
    with database_in(directory) as database, database.transaction() as connection:
        return [
            *connection.execute(text("SELECT number FROM audit_record ORDER BY number")).scalars()
        ]


def archived_files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "archive").rglob("*") if path.is_file())


def all_records(directory: Path) -> list[AuditRecord]:
    """The records of a verified log, from the database and the archive."""
    found = verify_directory(directory, archive=store_in(directory))
    assert (found.unchecked, found.findings) == (0, ())
    with open_tree(str(directory / "ledger.sqlite"), None, store_in(directory)) as (_, tree):
        records = [decode_audit_record(raw) for raw in tree.records_from(0)]
    assert [record.seq for record in records] == list(range(found.checkpoint.tree.size))
    return records


def outcome(directory: Path, *, has_archive: bool = True) -> tuple[VerifyOutcome, str]:
    try:
        archive = store_in(directory) if has_archive else None
        found = verify_directory(directory, archive=archive)
    except LogVerificationError as error:
        return error.outcome, str(error)
    return (VerifyOutcome.UNCHECKED if found.unchecked else VerifyOutcome.CONSISTENT), ""


def test_old_entries_are_archived_recorded_and_deleted(tmp_path: Path) -> None:
    write_archived(tmp_path)
    assert local_numbers(tmp_path) == list(range(512, 601))
    first, second = archived_files(tmp_path)
    records = all_records(tmp_path)
    (record,) = (record for record in records if record.type == "log.archive")
    assert record.data == {
        "first": 0,
        "records": 512,
        "sha256": sha256(first.read_bytes() + second.read_bytes()).hexdigest(),
        "archive": str(tmp_path / "archive"),
    }
    found = verify_directory(tmp_path)
    assert (found.unchecked, found.findings) == (512, ())
    assert outcome(tmp_path, has_archive=False) == (VerifyOutcome.UNCHECKED, "")


async def test_entries_that_are_not_old_stay(tmp_path: Path) -> None:
    async with archiving(tmp_path, 599) as archive:
        archive.now_ns = lambda: NOON_NS + 255 + KEEP_DAYS * DAY_NS
        await archive.attempt()
        assert archive.archived == 256, "the newest record of the second bundle is not old"
        archive.now_ns = lambda: NOON_NS + 511 + KEEP_DAYS * DAY_NS
        await archive.attempt()
        assert archive.archived == 512


class DyingStore(DirectoryStore):
    """An archive whose collector ends at a step."""

    step = ""

    def create(self, name: str, content: bytes) -> None:
        self._die("before the write")
        super().create(name, content)
        self._die("after the write")

    def _die(self, step: str) -> None:
        if step == self.step:
            message = "the power is gone"
            raise OSError(message)


class DyingArchive(EntryArchive):
    """An archive whose collector ends before it deletes what is recorded."""

    def _delete(self, _found: object) -> None:
        message = "the power is gone"
        raise OSError(message)


@pytest.mark.parametrize("step", ["before the write", "after the write", "before the deletion"])
async def test_a_round_interrupted_at_any_step_is_repeated(tmp_path: Path, step: str) -> None:
    async with archiving(tmp_path, 599) as archive:
        log = archive.audit
        store = DyingStore(tmp_path / "archive")
        store.step, log.archive = step, store
        dying = DyingArchive(log, KEEP_DAYS, 3600.0, now_ns=lambda: LATER_NS)
        await dying.attempt()
        assert dying.problem == "the power is gone"
        assert local_numbers(tmp_path) == list(range(log.size))
        store.step = ""
        await archive.attempt()
        assert (archive.problem, archive.archived) == ("", 512)
    records = [each for each in all_records(tmp_path) if "number" in each.data]
    assert [each.data["number"] for each in records] == list(range(599))
    assert len(archived_files(tmp_path)) == 2


async def test_a_file_that_another_program_created_stops_archiving(tmp_path: Path) -> None:
    async with archiving(tmp_path, 299) as archive:
        with archive.audit.read() as tree:
            leaves = tree.hashes(0, 0, 128) + tree.hashes(0, 128, 128)
            name = archive_name(leaves[0], 0, complete_root(leaves))
        store_in(tmp_path).create(name, b"something else")
        await archive.attempt()
        assert "does not contain what was written; fix: check the archive" in archive.problem
        assert len(local_numbers(tmp_path)) == 300
        (tmp_path / "archive" / name).unlink()
        await archive.attempt()
        assert archive.archived == 256


def test_altered_entries_are_not_archived(tmp_path: Path) -> None:
    async def archive() -> str:
        async with archiving(tmp_path, 299) as archive:
            with archive.audit.database().transaction(writes=True) as connection:
                without_triggers(connection, of_log=True)
                connection.execute(
                    text("UPDATE audit_record SET content = x'7b7d' WHERE number = 9")
                )
            await archive.attempt()
            return archive.problem

    assert "altered record 9: it does not match its hash" in asyncio.run(archive())
    assert archived_files(tmp_path) == []


@pytest.mark.parametrize("with_archive", [True, False])
@pytest.mark.parametrize("turn", [3, 4])
async def test_records_may_be_archived_while_a_log_is_verified(
    tmp_path: Path, turn: int, *, with_archive: bool
) -> None:
    """After the head was read, or after the records were read."""
    turns = count(1)
    loop = asyncio.get_running_loop()
    async with archiving(tmp_path, 599) as archive:

        def transaction() -> AbstractContextManager[Connection]:
            if next(turns) == turn:
                asyncio.run_coroutine_threadsafe(archive.attempt(), loop).result()
            return archive.audit.database().transaction()

        store = archive.audit.archive if with_archive else None
        found = await run_in_thread(verify_log, transaction, KEY.public, (), store)
        assert archive.archived == 512
        assert found.checkpoint.tree.size == 600
        assert found.unchecked == (512 if turn == 3 and not with_archive else 0)


def test_a_setting_without_an_archive_is_invalid(tmp_path: Path) -> None:
    kept = AuditSettings(keep_entries_days=30)
    with pytest.raises(
        SettingsError, match=r"audit\.keep_entries_days = 30.*fix: set archive\.url"
    ):
        open_entry_archive(CollectorSettings(audit=kept))
    settings = CollectorSettings(audit=kept, archive=ArchiveSettings(url=str(tmp_path)))
    assert open_entry_archive(settings) is not None
    assert open_entry_archive(CollectorSettings()) is None


def test_the_collector_verifies_with_the_archive(tmp_path: Path) -> None:
    write_archived(tmp_path)
    database = SharedDatabase(f"sqlite:///{tmp_path / 'ledger.sqlite'}", metadata)
    periodic = PeriodicVerification(database.open, KEY.public, 1.0, lambda: 1)
    asyncio.run(periodic.read())
    assert periodic.is_valid is None, "no result without the archive"
    periodic.archive = store_in(tmp_path)
    asyncio.run(periodic.read())
    assert periodic.is_valid is True
    database.close()


def change_hashes(directory: Path) -> None:
    change_table(directory, "UPDATE audit_archived SET hashes = zeroblob(8192) WHERE bundle = 1")


def remove_hashes(directory: Path) -> None:
    change_table(directory, "DELETE FROM audit_archived WHERE bundle = 1")


def change_table(directory: Path, change: str) -> None:
    with database_in(directory) as database, database.transaction(writes=True) as connection:
        without_triggers(connection, of_log=True)
        connection.execute(text(change))


def change_file(directory: Path) -> None:
    path = archived_files(directory)[1]
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"node-1", b"node-7", 1))


def remove_file(directory: Path) -> None:
    archived_files(directory)[1].unlink()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_hashes, VerifyOutcome.ALTERED),
        (remove_hashes, VerifyOutcome.TAIL_MISSING),
        (change_file, VerifyOutcome.ALTERED),
        (remove_file, VerifyOutcome.TAIL_MISSING),
    ],
)
def test_a_change_of_what_is_archived_is_found(
    tmp_path: Path, change: Callable[[Path], None], expected: VerifyOutcome
) -> None:
    write_archived(tmp_path)
    change(tmp_path)
    if change in {change_hashes, remove_hashes}:
        # The test's way of changing the database removes all triggers, which is found first.
        assert outcome(tmp_path)[0] is not VerifyOutcome.CONSISTENT
    else:
        assert outcome(tmp_path)[0] is expected


async def test_an_agent_cannot_state_that_entries_are_archived(tmp_path: Path) -> None:
    async with archiving(tmp_path, 299) as archive:
        stated = replace(
            draft(0, source=RecordSource("agent", "n1", "run", 0)),
            type="log.archive",
            data={"first": 0, "records": 256, "received_ns": str(NOON_NS)},
            subject=RecordSubject("n1", "GPU-1"),
        )
        await archive.audit.append(stated)
        await archive.audit.sign()
        found = await call_database(archive._archive_due)  # noqa: SLF001 - without the record of it
        assert found is not None
        archive._delete(found)  # noqa: SLF001 - as above
    result, problem = outcome(tmp_path)
    assert (result, "no record states that they are archived" in problem) == (
        VerifyOutcome.TAIL_MISSING,
        True,
    )


def railscope(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["audit", *map(str, arguments)])
    return result.exit_code, result.output


def test_commands_read_the_archive(tmp_path: Path) -> None:
    write_archived(tmp_path)
    log, key = tmp_path / "ledger.sqlite", ("--key", str(KEY.public))
    archive = ("--archive", tmp_path / "archive")
    code, output = railscope("verify", log, *key)
    assert code == VerifyOutcome.UNCHECKED
    assert output.endswith("512 records archived, not checked; fix: use --archive\n")
    code, output = railscope("verify", log, *key, *archive)
    assert (code, output.startswith("consistent: 601 records")) == (0, True)
    code, output = railscope("verify", log, *key, "--ledger", f"sqlite:///{log}")
    assert (code, "512 records are archived" in output) == (VerifyOutcome.UNREADABLE, True)
    code, output = railscope("show", log, "--json")
    assert (code, "records 0 to 255 are archived" in output) == (1, True)
    code, output = railscope("show", log, "--json", "--from", 512)
    assert (code, len(output.splitlines())) == (0, 89)
    code, output = railscope("show", log, "--json", *archive)
    assert (code, len(output.splitlines())) == (0, 601)
    assert railscope("show", log, "--last", 100, *archive)[0] == 0
    code, proof = railscope("prove", log, 7, *key, *archive)
    assert (code, check_proof(proof, KEY.public)) == (0, output.splitlines()[7].encode())
    assert railscope("prove", log, 7, *key)[0] == 1
    code, output = railscope("export", log, *key, tmp_path / "export", *archive)
    assert (code, output.startswith("exported: 601 records")) == (0, True)
    assert railscope("verify", tmp_path / "export", *key)[0] == 0
    assert railscope("export", log, *key, tmp_path / "partial")[0] == 1
    code, output = railscope("verify", log, *key, "--archive", "archive")
    assert (code, "expected /DIRECTORY or s3://BUCKET/PREFIX" in output) == (2, True)
