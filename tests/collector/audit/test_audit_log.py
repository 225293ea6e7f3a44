"""The writer of the audit log: its guarantees while it runs, after a crash, and after a restore of the database."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import text
from support.audit import (
    KEY,
    append_drafts,
    audit_log,
    database_in,
    draft,
    running_log,
    verify_directory,
    without_triggers,
    write_log,
)
from support.examples import fewer_examples
from support.waiting import wait_until

from railscope.audit.log_checkpoint import read_checkpoint
from railscope.audit.merkle import CompactRange, TreeHead, leaf_hash
from railscope.audit.record import RecordError, decode_audit_record
from railscope_collector.audit import LogWriteError, SigningPostponedError, own_records
from railscope_collector.audit.log_writer import AuditLog
from railscope_collector.ledger.audit_outbox import count_unrecorded, put_record
from railscope_collector.ledger.database import Database, UnusableLedgerError


def stored(log: AuditLog) -> list[bytes]:
    with log.read() as tree:
        return [*tree.records_from(0)]


def root_over(records: list[bytes]) -> bytes:
    tree = CompactRange()
    for raw in records:
        tree.append(leaf_hash(raw))
    return tree.root


async def test_records_get_their_numbers_in_order_and_are_signed(tmp_path: Path) -> None:
    async with running_log(audit_log(tmp_path)) as log:
        await append_drafts(log, range(300))
        await log.sign()
        assert (log.signed.size, log.waiting) == (301, 0)
        records = stored(log)
        signed = read_checkpoint(log.note, KEY.public).tree
    decoded = [decode_audit_record(raw) for raw in records]
    assert [record.seq for record in decoded] == list(range(301))
    assert decoded[0].type == "log.genesis"
    assert [record.src.n for record in decoded[1:]] == list(range(300))
    assert signed == TreeHead(301, root_over(records))
    assert verify_directory(tmp_path, [log.note]).findings == ()


@fewer_examples(20)
@given(groups=st.lists(st.integers(1, 9) | st.integers(1, 300), min_size=1, max_size=3))
def test_the_contents_do_not_depend_on_how_records_came_together(
    tmp_path_factory: pytest.TempPathFactory, groups: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("groups")
    head = write_log(directory, groups)
    assert head.size == sum(groups) + 1
    assert verify_directory(directory).checkpoint.tree == head


async def test_a_record_that_cannot_be_one_fails_alone(tmp_path: Path) -> None:
    async with running_log(audit_log(tmp_path)) as log:
        wrong = draft(1, kind="tenancy.unheard_of")
        answers = await asyncio.gather(
            log.append(draft(0)), log.append(wrong), log.append(draft(2)), return_exceptions=True
        )
        assert answers[0::2] == [None, None]
        assert isinstance(answers[1], RecordError)
    assert not verify_directory(tmp_path).findings


async def test_records_wait_until_the_guard_permits_a_signature(tmp_path: Path) -> None:
    """Nothing is in the log before: neither the records of the start nor those of an earlier process."""
    refused = ["agents have not presented their checkpoints"]

    def guard() -> None:
        for reason in refused:
            raise SigningPostponedError(reason)

    for boot in ("b0", "b1"):
        log = audit_log(tmp_path, boot=boot, before_signing=guard)
        log.store.open()
        log.open()
        log.append_before_running(draft(0))
        log.store.close()
        async with running_log(log):
            await append_drafts(log, range(2))
            with pytest.raises(SigningPostponedError, match="have not presented"):
                await log.sign()
            with log.database().transaction() as connection:
                for table in ("audit_record", "audit_head"):
                    count = text(f"SELECT count(*) FROM {table}")  # noqa: S608 - our own names
                    assert connection.execute(count).scalar_one() == 0
    refused.clear()
    async with running_log(audit_log(tmp_path, boot="b2")) as log:
        await log.sign()
        assert (log.signed.size, log.waiting) == (7, 0)


class LosingRecords(own_records.OwnRecords):
    """Records of a collector whose process ends after the transaction of the database."""

    def move(self, *_: object) -> None:
        message = "the power is gone"
        raise OSError(message)


async def test_a_crash_after_the_commit_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with database_in(tmp_path) as database:
        with database.transaction(writes=True) as connection:
            put_record(connection, "fact/0", draft(7))
        async with running_log(audit_log(tmp_path, database=database)) as log:
            await log.sign()
            log.own = LosingRecords(log.store, log.name)
            log.own.open()
            await append_drafts(log, range(3))
            with pytest.raises(OSError, match="the power is gone"):
                await log.sign()
    async with running_log(audit_log(tmp_path, boot="b1")) as log:
        await append_drafts(log, [9])
        await log.sign()
        numbers = [decode_audit_record(raw).data.get("number") for raw in stored(log)]
        assert numbers == [None, 7, 0, 1, 2, 9]
        assert [*log.records(0)] == stored(log), "the tail has what was added before the crash"
    assert not verify_directory(tmp_path).findings


async def test_records_wait_while_the_database_is_unavailable(tmp_path: Path) -> None:
    gone = ["the server is gone"]
    log = audit_log(tmp_path)
    find = log.database

    def database() -> Database:
        for reason in gone:
            raise UnusableLedgerError(reason)
        return find()

    log.database = database
    async with running_log(log):
        await append_drafts(log, range(3))
        await wait_until(lambda: log.signing_problem, "the reason is stated")
        assert (log.signing_problem, log.waiting, log.signed.size) == ("the server is gone", 3, 0)
        gone.clear()
        await log.sign()
        assert (log.waiting, log.signed.size) == (0, 4)


async def test_two_writers_of_one_log_continue_each_other(tmp_path: Path) -> None:
    """Collectors of a group: each has its own records, and one log."""
    with database_in(tmp_path / "shared") as database:
        one = audit_log(tmp_path / "one", boot="b1", database=database)
        two = audit_log(tmp_path / "two", boot="b2", database=database)
        async with running_log(one), running_log(two):
            for log in (one, two, one, two):
                await append_drafts(log, range(3))
                await log.sign()
            assert (one.signed.size, two.signed.size) == (10, 13)
            two.is_active = lambda: False
            await append_drafts(two, range(20, 22))
            await two.sign()
            assert two.waiting == 0
            await one.sign()
            assert one.signed.size == 15
    assert not verify_directory(tmp_path / "shared").findings


async def grow(directory: Path, count: int, boot: str) -> str:
    async with running_log(audit_log(directory, boot=boot)) as log:
        await append_drafts(log, range(count))
        await log.sign()
        return log.note


async def test_a_restored_older_database_gets_the_same_records_again(tmp_path: Path) -> None:
    with database_in(tmp_path) as database, database.transaction(writes=True) as connection:
        put_record(connection, "fact/0", draft(7))
    await grow(tmp_path, 300, "b0")
    with database_in(tmp_path) as database, database.transaction(writes=True) as connection:
        put_record(connection, "fact/1", draft(8))
    shutil.copy(tmp_path / "ledger.sqlite", tmp_path / "older")
    note = await grow(tmp_path, 300, "b1")
    shutil.copy(tmp_path / "older", tmp_path / "ledger.sqlite")
    log = audit_log(tmp_path, boot="b2", before_signing=_refuse)
    async with running_log(log):
        log.follow()
        assert log.note == note, "the checkpoint that was signed then; nothing new is signed"
        with log.database().transaction() as connection:
            assert count_unrecorded(connection) == 0, "the row is recorded, and not a second time"
    await grow(tmp_path, 5, "b3")
    found = verify_directory(tmp_path, [note])
    assert (found.anchors, found.findings) == (1, ())


def _refuse() -> None:
    message = "not now"
    raise SigningPostponedError(message)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DELETE FROM audit_tail WHERE number < 450", "expected a newer copy"),
        ("UPDATE audit_tail SET content = x'7b7d' WHERE number = 400", "do not precede those of this collector"),
    ],
)  # fmt: skip
async def test_a_tail_that_does_not_continue_the_database_stops_the_log(
    tmp_path: Path, change: str, problem: str
) -> None:
    await grow(tmp_path, 300, "b0")
    shutil.copy(tmp_path / "ledger.sqlite", tmp_path / "older")
    await grow(tmp_path, 300, "b1")
    shutil.copy(tmp_path / "older", tmp_path / "ledger.sqlite")
    log = audit_log(tmp_path, boot="b2")
    log.store.open()
    with log.store.transaction() as own:
        own.execute(change)
    log.store.close()
    async with running_log(log):
        with pytest.raises(LogWriteError, match=problem):
            await log.sign()
    assert verify_directory(tmp_path).checkpoint.tree.size == 301


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_record SET leaf = zeroblob(32) WHERE number = 299",
        "DELETE FROM audit_record WHERE number = 299",
        "UPDATE audit_subtree SET hash = zeroblob(32)",
        "UPDATE audit_head SET note = 'x'",
        "INSERT INTO audit_record SELECT log, 500, leaf, content FROM audit_record WHERE number = 1",
    ],
)
async def test_an_altered_log_is_not_continued(tmp_path: Path, change: str) -> None:
    await grow(tmp_path, 300, "b0")
    with database_in(tmp_path) as database, database.transaction(writes=True) as connection:
        without_triggers(connection, of_log=True)
        connection.execute(text(change))
    async with running_log(audit_log(tmp_path, boot="b1")) as log:
        with pytest.raises(
            LogWriteError, match=r"the audit log was altered.*railscope audit verify"
        ):
            await log.sign()


async def test_a_tail_is_bounded(tmp_path: Path) -> None:
    log = audit_log(tmp_path)
    log.own.max_tail = 100
    async with running_log(log):
        await append_drafts(log, range(600))
        await log.sign()
        assert (log.own.first, log.own.end) == (501, 601)
