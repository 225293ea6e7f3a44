"""Commands that write the ledger compare its database with the newest known head themselves."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.audit import audit_log
from support.books import ALL, ONE, books_with, manager_after

from railscope.cli import root
from railscope_collector.audit import ledger_watch
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.audit.ledger_watch import LedgerWatch
from railscope_collector.billing import administration
from railscope_collector.billing.invoices import adjustment_charge
from railscope_collector.ledger import head_chain
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

FILE = "ledger.sqlite"
WRITING = {
    "close": ("bill", "close", "2024-10-04..2024-10-06"),
    "adjust": ("bill", "adjust", "red", "2024-10", "5", "--reason", "agreed"),
}


def site(tmp_path: Path) -> tuple[Path, Path]:
    """A collector's state directory with a ledger that is older than its newest known head."""
    state, older = tmp_path / "state", tmp_path / "older"
    state.mkdir()
    ledger = Ledger.open(f"sqlite:///{state / FILE}", metadata)
    books = books_with(ledger, ALL)
    watch = LedgerWatch(
        lambda: ledger.database,
        AuditTrail(audit_log(tmp_path / "log"), "1"),
        state / ledger_watch.KNOWN_HEAD_FILE,
    )
    watch.start()
    watch.check()
    shutil.copy(state / FILE, older)
    given = adjustment_charge("red", Fraction(1), ONE, "after the copy")
    administration.record(books, given, manager_after(ONE))
    watch.check()
    ledger.close()
    return state, older


def run(state: Path, *arguments: str, ledger: Path | None = None) -> Result:
    config = state.parent / "collector.toml"
    config.write_text(f'state_directory = "{state}"\n')
    options = ("--ledger", f"sqlite:///{ledger}") if ledger else ("--config", str(config))
    return CliRunner().invoke(root, [*arguments, *options])


def charges(path: Path) -> int:
    ledger = Ledger.open(f"sqlite:///{path}", metadata)
    try:
        with ledger.database.transaction() as connection:
            newest = head_chain.newest_head(connection)
        return newest.n if newest else 0
    finally:
        ledger.close()


@pytest.mark.parametrize("command", WRITING.values(), ids=WRITING)
@pytest.mark.parametrize("named", [False, True], ids=["configured", "by URL"])
def test_a_command_writes_nothing_into_an_older_copy(
    tmp_path: Path, command: tuple[str, ...], *, named: bool
) -> None:
    """Before the collector has marked it: only the file of the known head shows it."""
    state, older = site(tmp_path)
    shutil.copy(older, state / FILE)
    before = charges(state / FILE)
    result = run(state, *command, ledger=state / FILE if named else None)
    assert result.exit_code == 1, result.output
    assert "recorded head 3 is missing; fix: restore the newest database" in result.output
    assert charges(state / FILE) == before
    listed = run(state, "bill", "list")
    assert listed.exit_code == 0, listed.output


def test_another_database_in_its_place_is_written_only_where_it_is_named(tmp_path: Path) -> None:
    state, _ = site(tmp_path)
    (state / FILE).unlink()
    for file in (state / FILE, state / "practice.sqlite"):
        ledger = Ledger.open(f"sqlite:///{file}", metadata)
        books_with(ledger, ALL)
        ledger.close()
    result = run(state, *WRITING["adjust"])
    assert result.exit_code == 1, result.output
    assert "its identity is" in result.output
    result = run(state, *WRITING["adjust"], ledger=state / "practice.sqlite")
    assert result.exit_code == 0, result.output


def test_the_newest_database_and_a_copy_that_was_accepted_are_written(tmp_path: Path) -> None:
    state, older = site(tmp_path)
    assert run(state, *WRITING["adjust"]).exit_code == 0
    shutil.copy(older, state / FILE)
    assert run(state, *WRITING["adjust"]).exit_code == 1
    accepted = run(state, "bill", "accept-copy", "--reason", "the disk is gone", "--yes")
    assert accepted.exit_code == 0, accepted.output
    assert run(state, *WRITING["adjust"]).exit_code == 0
