"""A ledger that moves from SQLite to PostgreSQL: equal rows, the same identity, and days as without the move."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from ledger_days import LATER, a_day
from support.audit import draft, without_triggers
from support.books import ALL, ONE, TWO, books_with, manager_after
from support.finalizing import FinalizingCollector
from support.postgresql import PostgreSQL
from support.story import NodeReporter, accept

from railscope.audit.merkle import CompactRange
from railscope.cli import root
from railscope.service import lock_state_directory
from railscope_collector.audit import tables as audit_tables
from railscope_collector.billing import tables
from railscope_collector.ledger import audit_outbox
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata


@pytest.fixture
def target(server: PostgreSQL) -> Iterator[str]:
    """URL of an empty database of PostgreSQL."""
    address = server.database()
    yield address
    server.drop(address)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """State directory with the ledger of a cluster: evidence, days, bills, and records of them."""
    directory = tmp_path / "state"
    site = FinalizingCollector(directory, f"sqlite:///{directory / 'ledger.sqlite'}")
    accept(site.core, a_day(NodeReporter()))
    asyncio.run(site.round(LATER, everything=True))
    site.finalizer.close()
    ledger = Ledger.open(site.url, metadata)
    books = books_with(ledger, ALL)
    books.close(ONE, manager_after(ONE))
    with ledger.database.transaction(writes=True) as connection:
        audit_tables.insert_records(connection, "log", CompactRange(), [b"x"] * 300)
    ledger.close()
    return directory


def copied(state: Path, url: str, *options: str) -> Result:
    """Run the command with the settings of a collector."""
    settings = state / "collector.toml"
    settings.write_text(f'state_directory = "{state}"\n[ledger]\nurl = "{url}"\n')
    command = ["collector", "copy-database", "--config", str(settings), *options]
    return CliRunner().invoke(root, command)


def rows_of(url: str) -> dict[str, list[Any]]:
    """Return all rows, by table."""
    database = Database(url, metadata, make=False)
    try:
        with database.transaction() as connection:
            return {
                name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
                for name, table in metadata.tables.items()
            }
    finally:
        database.close()


def tables_in(url: str) -> list[str]:
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        return sa.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def damage(state: Path, statement: sa.Executable) -> None:
    """Change rows of the ledger outside the program."""
    database = Database(f"sqlite:///{state / 'ledger.sqlite'}", metadata)
    with database.transaction(writes=True) as connection:
        without_triggers(connection)
        connection.execute(statement)
    database.close()


def test_the_copy_has_all_rows_and_continues(state: Path, target: str) -> None:
    source = f"sqlite:///{state / 'ledger.sqlite'}"
    before = rows_of(source)
    result = copied(state, target)
    assert result.exit_code == 0, result.output
    assert rows_of(target) == before == rows_of(source)
    counts = {name: len(rows) for name, rows in before.items()}
    assert dict(
        re.findall(
            r"^(\w+): ([\d,]+) rows, sum of SHA-256 [0-9a-f]{64}$", result.output, re.MULTILINE
        )
    ) == {name: f"{count:,}" for name, count in counts.items()}
    for name in (
        "fact_quarter",
        "fact_claim",
        "gpu_state",
        "ledger_day",
        "billing_charge",
        "audit_record",
        "audit_subtree",
    ):
        assert counts[name], name
    ledger = Ledger.open(target, metadata)
    with ledger.database.transaction(writes=True) as connection:
        audit_outbox.put_record(connection, "next", draft(0))
        last = connection.execute(sa.select(sa.func.max(audit_outbox.outbox_rows.c.number)))
        assert last.scalar_one() == counts["audit_outbox"] + 1
    books = books_with(ledger, ALL)
    books.close(TWO, manager_after(TWO))
    ledger.close()


def test_a_running_collector_is_not_copied(state: Path, target: str) -> None:
    damage(state, sa.text("DROP TABLE collector_head_file"))
    content = (state / "ledger.sqlite").read_bytes()
    lock = lock_state_directory(state, "collector")
    try:
        result = copied(state, target)
    finally:
        os.close(lock)
    assert (result.exit_code, tables_in(target)) == (1, [])
    assert "is in use by another collector" in result.output
    assert (state / "ledger.sqlite").read_bytes() == content, "opening it adds the table"


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (sa.update(tables.price_books).values(text="x"), "it was changed by hand"),
        (sa.text("UPDATE ledger_day SET recorded_ns = 'x'"), "invalid input syntax for type bigint"),
        (sa.text("UPDATE ledger_day SET content = char(0)"), "cannot contain NUL"),
    ],
)  # fmt: skip
def test_a_damaged_ledger_is_not_copied(
    state: Path, target: str, statement: sa.Executable, problem: str
) -> None:
    damage(state, statement)
    result = copied(state, target)
    assert (result.exit_code, problem in result.output) == (1, True), result.output
    assert tables_in(target) == []
