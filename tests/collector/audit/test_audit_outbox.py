"""The outbox: in order, each row once, wherever the collector ends or the database is unavailable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from support.audit import KEY, audit_log, draft, running_log
from support.metered import record_number
from support.waiting import wait_until

from railscope.audit.record import MAX_RECORD_BYTES, AuditRecord, RecordActor, decode_audit_record
from railscope.settings import SettingsError
from railscope_collector.audit import SigningPostponedError
from railscope_collector.audit.log_secrets import load_group_key, store_key
from railscope_collector.audit.log_writer import AuditLog
from railscope_collector.audit.verification import verify_log
from railscope_collector.ledger.audit_outbox import (
    OutboxError,
    count_unrecorded,
    put_record,
    read_unrecorded,
)
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.ledger.head_chain import database_id
from railscope_collector.ledger.leases import Lease
from railscope_collector.tables import metadata

pytestmark = pytest.mark.statements


def put_all(database: Database, numbers: range) -> None:
    """Put facts into the outbox, several in a transaction."""
    for start in range(numbers.start, numbers.stop, 50):
        with database.transaction(writes=True) as connection:
            for number in range(start, min(start + 50, numbers.stop)):
                put_record(connection, f"fact/{number}", draft(number))


def facts(log: AuditLog) -> list[AuditRecord]:
    """Records that came through the outbox, in the order of the log."""
    found = [decode_audit_record(raw) for raw in log.records(0)]
    return [record for record in found if record.ref and record.ref[0].startswith("outbox/fact")]


def numbers(log: AuditLog) -> list[object]:
    return [record.data["number"] for record in facts(log)]


async def test_rows_are_recorded_in_order_and_their_positions_are_stored(
    tmp_path: Path, database: Database
) -> None:
    put_all(database, range(300))
    async with running_log(audit_log(tmp_path, database=database)) as log:
        await log.sign()
        assert log.waiting_rows == 0
        assert numbers(log) == list(range(300))
        with database.transaction() as connection:
            leaves = [record_number(connection, f"fact/{number}") for number in range(300)]
            sizes = connection.execute(text("SELECT checkpoint_size FROM audit_placed")).scalars()
            assert all(size > 0 for size in sizes)
            assert count_unrecorded(connection) == 0
        assert leaves == [record.seq for record in facts(log)]
        first, second, row = facts(log)[7].ref
        assert (first, second) == ("outbox/fact/7", "frame/7")
        with database.transaction() as connection:
            identity = database_id(connection)
        assert re.fullmatch(f"outbox-row/{identity}/8/[0-9a-f]{{64}}", row)
    assert verify_log(database.transaction, KEY.public, known_tables=metadata).findings == ()


async def test_a_crash_after_the_commit_loses_and_doubles_nothing(
    tmp_path: Path, database: Database
) -> None:
    calls = list[int]()

    def die_after_the_commit() -> None:
        calls.append(0)
        if len(calls) > 1:
            message = "the power is gone"
            raise OSError(message)

    put_all(database, range(300))
    log = audit_log(tmp_path, database=database)
    log.check_ledger = die_after_the_commit
    async with running_log(log):
        with pytest.raises(OSError, match="power"):
            await log.sign()
    put_all(database, range(300, 310))
    async with running_log(audit_log(tmp_path, boot="b1", database=database)) as log:
        await log.sign()
        assert numbers(log) == list(range(310))
        with database.transaction() as connection:
            assert count_unrecorded(connection) == 0
    assert not verify_log(database.transaction, KEY.public).findings


async def test_rows_of_an_older_copy_of_the_ledger_wait(tmp_path: Path, database: Database) -> None:
    """The own records of the collector continue."""
    problems = ["the ledger is an older copy"]

    def check() -> None:
        for problem in problems:
            raise UnusableLedgerError(problem)

    put_all(database, range(3))
    log = audit_log(tmp_path, database=database)
    log.check_ledger = check
    async with running_log(log):
        await log.append(draft(7))
        await log.sign()
        assert (log.waiting_rows, log.waiting, numbers(log)) == (3, 0, [])
        problems.clear()
        await log.sign()
        assert (log.waiting_rows, numbers(log)) == (0, [0, 1, 2])


async def test_a_collector_that_lost_its_lease_unnoticed_adds_no_records(
    tmp_path: Path, database: Database
) -> None:
    """It was suspended meanwhile; its records wait for its next term."""
    lease, other = Lease("active/a"), Lease("active/a")
    log = audit_log(tmp_path, database=database)
    log.check_term = lease.check
    async with running_log(log):
        term = lease.take(database)
        await log.append(draft(0))
        await log.sign()
        lease.release()
        other.take(database)
        lease.term = term
        await log.append(draft(1))
        with pytest.raises(SigningPostponedError, match="was taken by another collector"):
            await log.sign()
        assert (log.signed.size, log.waiting) == (2, 1)
        other.release()
        # Its row is locked while the log tries to add the record.
        await wait_until(lambda: lease.take(database), "the lease is taken")
        await log.sign()
        assert (log.signed.size, log.waiting) == (3, 0)


def test_the_same_again_changes_nothing_and_another_is_rejected(database: Database) -> None:
    for _ in range(2):
        put_all(database, range(1))
    with database.transaction() as connection:
        assert count_unrecorded(connection) == 1
    with (
        pytest.raises(OutboxError, match="duplicate record ID"),
        database.transaction(writes=True) as connection,
    ):
        put_record(connection, "fact/0", draft(1))


def test_what_the_log_would_reject_does_not_get_in(database: Database) -> None:
    much = "x" * (MAX_RECORD_BYTES - 100)
    wrong = {
        "type": draft(1, kind="tenancy.unheard_of"),
        "size": draft(1),
        "float": draft(1),
        "text": draft(1),
    }
    wrong["size"].data["much"] = much
    wrong["float"].data["half"] = 0.5
    wrong["text"].data["name"] = "e\N{COMBINING ACUTE ACCENT}"
    for one in wrong.values():
        with (
            pytest.raises(OutboxError),
            database.transaction(writes=True) as connection,
        ):
            put_record(connection, "fact", one)
    for id_ in ("", "two words", "x" * 201, "ä"):
        with (
            pytest.raises(OutboxError, match="invalid ID"),
            database.transaction(writes=True) as connection,
        ):
            put_record(connection, id_, draft(1))
    with database.transaction() as connection:
        assert count_unrecorded(connection) == 0


@pytest.mark.parametrize("table", ["audit_outbox", "audit_placed"])
def test_rows_are_never_changed_or_taken_away(database: Database, table: str) -> None:
    put_all(database, range(1))
    with database.transaction(writes=True) as connection:
        connection.execute(text("INSERT INTO audit_placed VALUES ('fact/0', 'log', 1, 2)"))
    for change in (f"UPDATE {table} SET id = 'x'", f"DELETE FROM {table}"):  # noqa: S608 - our own names
        with (
            pytest.raises((UnusableLedgerError, DBAPIError), match="append-only"),
            database.transaction(writes=True) as connection,
        ):
            connection.execute(text(change))


def test_the_actor_survives_the_way_through_the_database(database: Database) -> None:
    one = draft(1)
    one = type(one)(
        one.type,
        RecordActor("person", "Zoë", "token", "10.0.0.1"),
        one.time_ns,
        "failed",
        one.subject,
        {"list": [1, "a", None], "map": {"b": True}, "large": 2**53 - 1},
        ("x", "y"),
        17,
        commitments={"user": "0" * 64},
    )
    with database.transaction(writes=True) as connection:
        put_record(connection, "fact", one)
        (waiting,) = read_unrecorded(connection, 5)
    assert waiting.draft == type(one)(
        one.type,
        one.actor,
        one.time_ns,
        one.outcome,
        one.subject,
        one.data,
        ("outbox/fact", "x", "y", waiting.reference),
        17,
        commitments={"user": "0" * 64},
    )


def test_collectors_of_a_group_have_the_key_of_the_first_one(
    tmp_path: Path, database: Database
) -> None:
    first = load_group_key(database, "east", tmp_path / "a", "log.example")
    second = load_group_key(database, "east", tmp_path / "b", "log.example")
    assert str(second.public) == str(first.public)
    other = load_group_key(database, "west", tmp_path / "c", "log.example")
    assert str(other.public) != str(first.public)
    store_key(tmp_path / "b", second)
    assert str(load_group_key(database, "east", tmp_path / "b", "").public) == str(first.public)
    (tmp_path / "d").write_text(KEY.secret_text())
    with pytest.raises(
        SettingsError, match=r"expected that of cluster.group 'east'.*move the file"
    ):
        load_group_key(database, "east", tmp_path / "d", "log.example")
