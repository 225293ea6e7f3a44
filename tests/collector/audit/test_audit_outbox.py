"""The outbox: in order, each row once, wherever the collector ends or the database is unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from support.audit import KEY, append_drafts, audit_log, draft, running_log
from support.metered import record_number

from railscope.audit.record import MAX_RECORD_BYTES, AuditRecord, RecordActor, decode_audit_record
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.log_writer import AuditLog
from railscope_collector.audit.outbox_drain import OutboxDrain
from railscope_collector.audit.verification import verify_log
from railscope_collector.ledger.audit_outbox import (
    OutboxError,
    count_unrecorded,
    put_record,
    take_rows,
)
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.ledger.head_chain import database_id

pytestmark = pytest.mark.statements


class PowerCutError(BaseException):
    """End of the process: no handler catches it."""


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


@contextlib.asynccontextmanager
async def begun(directory: Path, boot: str = "b0") -> AsyncIterator[AuditLog]:
    """A running log with its genesis record."""
    async with running_log(audit_log(directory, boot=boot)) as log:
        if log.size == 0:
            await log.append(draft(0, kind="log.genesis"))
        yield log


async def drained(drain: OutboxDrain) -> None:
    while await drain.drain_batch():
        pass


async def test_rows_are_recorded_in_order_and_their_positions_are_stored(
    tmp_path: Path, database: Database
) -> None:
    put_all(database, range(300))
    async with begun(tmp_path / "log") as log:
        drain = OutboxDrain(lambda: database, log)
        await drained(drain)
        assert drain.waiting_rows == 0
        assert numbers(log) == list(range(300))
        with database.transaction() as connection:
            leaves = [record_number(connection, f"fact/{number}") for number in range(300)]
            sizes = connection.execute(text("SELECT checkpoint_size FROM audit_placed")).scalars()
            assert all(size > 0 for size in sizes)
        assert leaves == [record.seq for record in facts(log)]
        first, second, row = facts(log)[7].ref
        assert (first, second) == ("outbox/fact/7", "frame/7")
        with database.transaction() as connection:
            identity = database_id(connection)
        assert re.fullmatch(f"outbox-row/{identity}/8/[0-9a-f]{{64}}", row)
    found = verify_log(tmp_path / "log", KEY.public)
    assert (found.unsigned, found.findings) == (0, ())


STEPS = ["_find_unnoted_records", "_take_rows", "_append_rows", "_sign", "_store"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_kill_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, database: Database, step: str, moment: str
) -> None:
    put_all(database, range(300))
    async with begun(tmp_path / "log") as log:
        with pytest.raises(PowerCutError):
            await drained(_dying(step, moment)(lambda: database, log))
    put_all(database, range(300, 310))
    async with begun(tmp_path / "log", boot="b1") as log:
        await drained(OutboxDrain(lambda: database, log))
        assert numbers(log) == list(range(310))
        with database.transaction() as connection:
            assert count_unrecorded(connection) == 0
    assert not verify_log(tmp_path / "log", KEY.public).findings


@pytest.mark.parametrize("regrown", [0, 400])
async def test_a_log_that_was_rolled_back_contradicts_the_ledger(
    tmp_path: Path, database: Database, regrown: int
) -> None:
    directory = tmp_path / "log"
    put_all(database, range(3))
    async with begun(directory) as log:
        await drained(OutboxDrain(lambda: database, log))
    shutil.copytree(directory, tmp_path / "older")
    put_all(database, range(3, 300))
    async with begun(directory) as log:
        await drained(OutboxDrain(lambda: database, log))
    shutil.rmtree(directory)
    (tmp_path / "older").rename(directory)
    put_all(database, range(300, 310))
    refused: list[str] = []
    async with begun(directory, boot="b1") as log:
        await append_drafts(log, range(regrown))
        with pytest.raises(LogWriteError, match="older copy"):
            await OutboxDrain(lambda: database, log, stop_signing=refused.append).drain_batch()
        assert numbers(log) == [0, 1, 2]
    assert len(refused) == 1
    with database.transaction() as connection:
        assert count_unrecorded(connection) == 10


def _dying(step: str, moment: str) -> type[OutboxDrain]:
    """A drain whose process ends at a step, before or after its work."""
    whole: Callable[..., object] = getattr(OutboxDrain, step)

    async def die_async(self: OutboxDrain, *arguments: object) -> object:
        if moment == "after":
            await whole(self, *arguments)
        raise PowerCutError

    def die(self: OutboxDrain, *arguments: object) -> object:
        if moment == "after":
            whole(self, *arguments)
        raise PowerCutError

    return type(OutboxDrain)(
        "Dying",
        (OutboxDrain,),
        {"__slots__": (), step: die_async if asyncio.iscoroutinefunction(whole) else die},
    )


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


@pytest.mark.parametrize("table", ["audit_outbox", "audit_taken", "audit_placed"])
def test_rows_are_never_changed_or_taken_away(database: Database, table: str) -> None:
    put_all(database, range(1))
    with database.transaction(writes=True) as connection:
        take_rows(connection, "log", 1)
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
        (waiting,) = take_rows(connection, "log", 5)
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
