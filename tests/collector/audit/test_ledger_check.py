"""P29: any row of billing that was changed, added or removed outside the program is found and named."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from sqlalchemy import Connection, delete, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from support.audit import KEY, audit_log, running_log, without_triggers
from support.books import (
    ALL,
    BOSS,
    GREEN,
    ONE,
    RED,
    START,
    THREE,
    books_with,
    claim,
    evidence_of,
    gpu,
    hours,
    manager_after,
)

from railscope.claim_terms import ClaimAuthority
from railscope.cli import root
from railscope.service import run_in_thread
from railscope_collector.audit import tables as audit_tables
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.audit.ledger_check import compare_ledger, read_outbox_records
from railscope_collector.audit.ledger_watch import LedgerWatch, OlderCopyError
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import VerifyOutcome
from railscope_collector.billing import administration, tables
from railscope_collector.billing.invoices import credit_charge
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.reconciliation import (
    check_records as recorded_rows,
    reconcile_period,
)
from railscope_collector.evidence.former_facts import archives, removals
from railscope_collector.files.seller_file import PayerAccount, Seller
from railscope_collector.jobs import imported_lists
from railscope_collector.jobs.job_list_import import import_list
from railscope_collector.ledger import head_chain
from railscope_collector.ledger.audit_outbox import outbox_rows, placed_rows
from railscope_collector.ledger.database import Database, UnusableLedgerError, open_read_only
from railscope_collector.ledger.ledger_records import HEAD
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.ledger.schema import covered_tables
from railscope_collector.tables import metadata

EVERYTHING = evidence_of(
    gpu(
        "GPU-0",
        RED,
        claim("green", 30, 40),
        replace(claim("root", 61, 62), authority=ClaimAuthority.PROCESS),
    ),
    gpu("GPU-1", GREEN),
)
"""Two GPUs: an overlap of two claims, and processes without a claim."""
JOB = imported_lists.PlacedJob(
    "node-2/00000000:01:00.0", hours(1), "7", "red", hours(2), "node-2", run_start_ns=hours(0)
)
SELLER = Seller("Hall", {name: PayerAccount(name) for name in ("red", "green")})


def billed(ledger: Ledger) -> BillingBooks:
    """Books with everything in them: price book, closing, invoices, a void one, a credit."""
    books = books_with(ledger, EVERYTHING)
    closed = books.close(ONE, manager_after(ONE))
    administration.void(books, closed.invoices[0].invoice_id, "wrong", manager_after(ONE))
    given = credit_charge("red", Fraction(5), ONE, "sorry")
    administration.record(books, given, manager_after(ONE))
    administration.set_opening(books, START, "the first day", manager_after(ONE))
    return books


async def log_of(directory: Path, database: Database) -> None:
    """The records of a database in its audit log."""
    async with running_log(audit_log(directory, database=database)) as log:
        await log.sign()


def checked(url: str, ledger: str = "") -> tuple[int, str]:
    command = ["audit", "verify", url, "--key", str(KEY.public), "--ledger", ledger or url]
    result = CliRunner().invoke(root, command)
    return result.exit_code, result.output


def reconciled(books: BillingBooks) -> tuple[bool, str]:
    """R8 of a period."""
    (check,) = recorded_rows(books, ONE)
    return check.passes, check.place


def another(value: Any) -> Any:
    """A value of the same kind that is not this one."""
    if isinstance(value, int):
        return value + 1
    return f"{value}x" if isinstance(value, str) else "x"


def tables_covered() -> list[str]:
    return sorted(
        {
            table.name
            for covered_table in covered_tables.values()
            for table in (covered_table.table, *covered_table.parts)
        }
    )


def test_every_table_is_covered_by_heads_or_named_here() -> None:
    """Evidence is found by its hashes; the outbox by its records; heads cover the rest."""
    evidence = {name for name in metadata.tables if name.startswith(("evidence_", "fact_"))}
    evidence -= {archives.name, removals.name}
    own = {
        "audit_outbox", "audit_placed", "ledger_schema", "collector_lease",
        "collector_head_file", "receipt_key", "ledger_total", "claim_span", "gpu_state",
        "marked_day", "day_file",
    }  # fmt: skip
    own |= {table.name for table in audit_tables.TABLES}
    chain = {head_chain.databases.name, head_chain.heads.name, head_chain.stops.name}
    assert metadata.tables.keys() - set(tables_covered()) == evidence | own | chain


def changes(connection: Connection, name: str) -> dict[str, Callable[[], object]]:
    """Every column of one row changed, the row removed, and another one added."""
    table = metadata.tables[name]
    row = connection.execute(select(table)).mappings().first()
    assert row is not None, name
    keys = list(table.primary_key.columns)
    this = [column == row[column.name] for column in keys]
    found: dict[str, Callable[[], object]] = {
        "removed": lambda: connection.execute(delete(table).where(*this)),
        "added": lambda: connection.execute(
            insert(table).values({**row, keys[-1].name: another(row[keys[-1].name])})
        ),
    }
    for column in table.columns:
        value = {column.name: another(row[column.name])}
        found[column.name] = lambda value=value: connection.execute(
            update(table).where(*this).values(value)
        )
    return found


RECORD_OF = {"archive": "evidence.archive", "removal": "evidence.delete"}


WRITTEN_BEFORE = {
    "ledger_revision", "ledger_entry", "ledger_share", "ledger_claim", "ledger_overlap",
    "billing_closing_revision",
}  # fmt: skip
"""Tables of releases up to 0.3: nothing adds rows to them."""


def add_archive(database: Database, number: int = 1) -> None:
    """Rows of an archive of evidence and of a removal, with their records."""
    texts = dict.fromkeys(("kind", "pod", "location", "sha256", "nodes", "action"), "x")
    texts["name"] = f"x{number}"
    numbers = {"number": number, "archive": number, "recorded_ns": 1} | dict.fromkeys(
        ("day", "size_bytes", "facts", "verified_ns"), 1
    )
    with database.transaction(writes=True) as connection:
        for kind, table in (("archive", archives), ("removal", removals)):
            row = {each: value for each, value in (texts | numbers).items() if each in table.c}
            connection.execute(insert(table).values(row))
            actor = TimedActor(BOSS, manager_after(ONE).now_ns)
            record = actor.draft(RECORD_OF[kind], {})
            made = head_chain.record_row(connection, f"evidence {kind}", number, record)
            head_chain.append_head(connection, [made], actor.now_ns)


@pytest.mark.statements
async def test_log_and_ledger_may_change_while_they_are_verified(
    url: str, ledger: Ledger, tmp_path: Path
) -> None:
    """Before each transaction, and on a server after any statement: a file is locked meanwhile."""
    billed(ledger)
    await log_of(tmp_path / "log", ledger.database)
    loop = asyncio.get_running_loop()
    numbers = count(2)

    def change() -> None:
        add_archive(ledger.database, next(numbers))
        recording = log_of(tmp_path / "log", ledger.database)
        asyncio.run_coroutine_threadsafe(recording, loop).result()

    @contextmanager
    def changing(
        begin: Callable[[], AbstractContextManager[Connection]],
    ) -> Iterator[Connection]:
        change()
        with begin() as connection:
            if url.startswith("postgresql"):
                event.listen(connection, "after_cursor_execute", lambda *_: change())
            yield connection

    with open_read_only(url) as begin:
        transaction = partial(changing, begin)
        verify = partial(verify_log, transaction, KEY.public, ledger=transaction)
        found = await run_in_thread(verify)
    assert found.findings == ()
    assert found.rows["evidence archive"] >= 2


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.thorough)])
async def test_any_change_of_a_row_is_found(
    url: str, ledger: Ledger, tmp_path: Path, every: int
) -> None:
    books = billed(ledger)
    listed = imported_lists.NewList("sacct", ONE, ONE.end_ns, as_observed=True, jobs=[JOB])
    import_list(ledger, listed, TimedActor(BOSS, manager_after(ONE).now_ns))
    add_archive(ledger.database)
    await log_of(tmp_path / "log", ledger.database)
    status, output = checked(url)
    assert status == VerifyOutcome.CONSISTENT
    assert re.search(r"^database: \d+ rows, \d+ heads, equal$", output, re.MULTILINE)
    assert reconciled(books) == (True, "")
    recorded = verify_log(ledger.database.transaction, KEY.public).ledger
    with ledger.database.transaction() as connection:
        found = [
            (name, kind)
            for name in tables_covered()
            if name not in WRITTEN_BEFORE
            for kind in changes(connection, name)
        ]
    for name, kind in found[::every]:
        with ledger.database.engine.connect() as plain:
            connection = plain.execution_options(writes=True)
            with connection.begin() as begun:
                _unconstrained(connection, name)
                try:
                    changes(connection, name)[kind]()
                except DBAPIError:
                    continue  # the database itself rejects such a row
                assert compare_ledger(connection, recorded).differences, (name, kind)
                waiting = read_outbox_records(connection)
                assert compare_ledger(connection, waiting).differences, (name, kind)
                begun.rollback()


def _unconstrained(connection: Connection, name: str) -> None:
    without_triggers(connection)
    if connection.dialect.name == "postgresql":
        query = text(
            "SELECT conname FROM pg_constraint WHERE conrelid = cast(:t AS regclass) AND contype = 'c'"
        )
        for constraint in connection.execute(query, {"t": name}).scalars().all():
            connection.execute(text(f"ALTER TABLE {name} DROP CONSTRAINT {constraint}"))
    else:
        connection.execute(text("PRAGMA defer_foreign_keys = ON"))
        connection.execute(text("PRAGMA ignore_check_constraints = ON"))


async def test_the_command_names_the_row_and_exits_with_1(
    url: str, ledger: Ledger, tmp_path: Path
) -> None:
    books = billed(ledger)
    await log_of(tmp_path / "log", ledger.database)
    with ledger.database.transaction(writes=True) as connection:
        without_triggers(connection)
        connection.execute(update(tables.voids).values(reason="right"))
    status, output = checked(url)
    assert status == VerifyOutcome.ALTERED
    assert "void " in output
    assert "it was changed by hand" in output
    passes, where = reconciled(books)
    assert (passes, "it was changed by hand" in where) == (False, True)
    rules = [one.rule for one in reconcile_period(books, ONE, SELLER) if not one.passes]
    assert "R8" in rules


async def test_a_rewritten_head_contradicts_its_record(
    url: str, ledger: Ledger, tmp_path: Path
) -> None:
    """Write access to the database permits making it consistent in itself, but not with the log."""
    billed(ledger)
    await log_of(tmp_path / "log", ledger.database)
    with ledger.database.transaction(writes=True) as connection:
        without_triggers(connection)
        connection.execute(update(tables.voids).values(reason="right"))
        connection.execute(delete(head_chain.heads))
        connection.execute(delete(placed_rows).where(placed_rows.c.id.startswith(HEAD)))
        connection.execute(delete(outbox_rows).where(outbox_rows.c.type == HEAD))
        kinds = [row for kind in covered_tables for row in head_chain.read_rows(connection, kind)]
        head_chain.append_head(connection, kinds, START)
    status, output = checked(url)
    assert (status, "head 1 does not match record" in output) == (VerifyOutcome.ALTERED, True)


async def test_an_older_copy_lacks_a_recorded_head(tmp_path: Path) -> None:
    url, older = f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "older.db"
    ledger = Ledger.open(url, metadata)
    books = books_with(ledger, ALL)
    shutil.copy(tmp_path / "ledger.db", older)
    books.close(ONE, manager_after(ONE))
    await log_of(tmp_path / "log", ledger.database)
    ledger.close()
    assert checked(url)[0] == VerifyOutcome.CONSISTENT
    status, output = checked(url, f"sqlite:///{older}")
    assert (status, "is missing in the database" in output, "older copy" in output) == (
        1,
        True,
        True,
    )
    empty = tmp_path / "empty.db"
    Ledger.open(f"sqlite:///{empty}", metadata).close()
    status, output = checked(url, f"sqlite:///{empty}")
    assert (status, "belongs to another database" in output) == (1, True)
    status, output = checked(url, f"sqlite:///{tmp_path / 'none.db'}")
    assert (status, "missing database" in output) == (VerifyOutcome.UNREADABLE, True)


# The watch -----------------------------------------------------------------------------------------


def watch_of(directory: Path, database: Callable[[], Database]) -> LedgerWatch:
    state = directory.parent / "ledger.known"
    return LedgerWatch(database, AuditTrail(audit_log(directory), "1", lambda: START), state)


@pytest.mark.parametrize("how", ["copied", "removed"])
def test_an_older_copy_under_a_running_collector_stops_billing(tmp_path: Path, how: str) -> None:
    path, older = tmp_path / "ledger.db", tmp_path / "older.db"
    ledger = Ledger.open(f"sqlite:///{path}", metadata)
    books = books_with(ledger, ALL)
    watch = watch_of(tmp_path / "log", lambda: ledger.database)
    watch.check()
    shutil.copy(path, older)
    books.close(ONE, manager_after(ONE))
    watch.check()
    if how == "moved":
        older.rename(path)
    elif how == "copied":
        shutil.copy(older, path)
    elif how == "removed":
        path.unlink()
    else:
        path.unlink()
        path.touch()
    with pytest.raises(OlderCopyError):
        watch.check()
    assert watch.problem
    ledger.close()
    if how in {"moved", "copied"}:
        again = Ledger.open(f"sqlite:///{path}", metadata)
        with pytest.raises(UnusableLedgerError, match="accept-copy"):
            BillingBooks.for_ledger(again, ALL).close(ONE, manager_after(ONE))
        with pytest.raises(UnusableLedgerError, match="is an older copy"):
            books_with(again, evidence_of(gpu("GPU-9")))
        again.close()


async def test_a_copy_that_is_accepted_goes_on_and_names_what_was_lost(tmp_path: Path) -> None:
    """The audit log goes on with the records of the lost part: they are added again."""
    path, older = tmp_path / "ledger.db", tmp_path / "older.db"
    url = f"sqlite:///{older}"
    ledger = Ledger.open(f"sqlite:///{path}", metadata)
    books = books_with(ledger, ALL)
    await log_of(tmp_path / "log", ledger.database)
    shutil.copy(path, older)
    books.close(ONE, manager_after(ONE))
    await log_of(tmp_path / "log", ledger.database)
    with ledger.database.transaction() as connection:
        newest = head_chain.newest_head(connection)
    ledger.close()
    copy = Ledger.open(url, metadata)
    watch = watch_of(tmp_path / "unused", lambda: copy.database)
    watch.known_head = newest
    with pytest.raises(OlderCopyError):
        watch.check()
    administration.accept_copy(
        BillingBooks.for_ledger(copy, ALL), "the disk is gone", TimedActor(BOSS, START)
    )
    watch.check()
    BillingBooks.for_ledger(copy, ALL).close(ONE, TimedActor(BOSS, manager_after(THREE).now_ns))
    await log_of(tmp_path / "log", copy.database)
    status, output = checked(url)
    copy.close()
    assert status == VerifyOutcome.CONSISTENT, output
    assert "was lost with its database" in output
