"""The collector's tests share the makers beside them, and databases of both kinds."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import postgresql

from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

sys.path.insert(0, str(Path(__file__).parent))

POSTGRESQL_IF_THOROUGH = {
    "test_claim_archive", "test_clock_mark", "test_clock_mark_billed", "test_closing_decided",
    "test_evidence_finalization", "test_evidence_kept", "test_evidence_retired",
    "test_evidence_review", "test_export_command", "test_first_contact", "test_invented_boots",
    "test_invented_usage", "test_kept_evidence", "test_ledger_check", "test_reconcile",
    "test_retired_billed", "test_review_reconciled", "test_unclosed", "test_waiting_evidence",
    "test_a_closing_that_is_killed_leaves_nothing", "test_nothing_is_deleted_whose_file_was_lost_or_changed_since",
    "test_the_commands_list_verify_and_restore_and_bills_name_what_is_missing", "test_restored_evidence_stays_for_a_month",
    "test_a_file_that_cannot_be_written_stops_no_other_one_and_is_tried_again", "test_a_file_of_another_store_is_read_from_a_copy",
    "test_a_changed_file_keeps_the_evidence_of_no_other_day_from_being_deleted",
    "test_a_changed_or_missing_file_is_reported_and_nothing_of_it_is_restored",
    "test_a_gpu_day_whose_evidence_is_in_the_archive_keeps_no_other_from_the_ledger",
    "test_evidence_around_days_that_are_not_in_the_ledger_is_kept",
    "test_a_store_that_cannot_be_used_ends_the_round_at_its_first_file",
}  # fmt: skip
"""Modules and tests whose statements for PostgreSQL are also run by the tests of ledger, outbox, archive, closing and restarts."""


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave PostgreSQL to `make thorough` where another module of `make test` has it."""
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        names = {item.path.stem, item.originalname}
        if item.callspec.params.get("url") == "postgresql" and names & POSTGRESQL_IF_THOROUGH:
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def server() -> Iterator[postgresql.PostgreSQL]:
    with postgresql.running() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    found: postgresql.PostgreSQL = request.getfixturevalue("server")
    address = found.database()
    yield address
    found.drop(address)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new ledger: a copy, because creating its tables takes longer than most tests."""
    if request.param == "sqlite":
        file = tmp_path / "ledger.db"
        shutil.copyfile(request.getfixturevalue("new_ledger_file"), file)
        yield f"sqlite:///{file}"
        return
    found: postgresql.PostgreSQL = request.getfixturevalue("server")
    address = found.database(request.getfixturevalue("new_ledger_database"))
    yield address
    found.drop(address)


@pytest.fixture(scope="session")
def new_ledger_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("new_ledger") / "ledger.db"
    Ledger.open(f"sqlite:///{file}", metadata).close()
    return file


@pytest.fixture(scope="session")
def new_ledger_database(server: postgresql.PostgreSQL) -> str:
    """Name of the database that others are copied from."""
    address = server.database()
    Ledger.open(address, metadata).close()
    return postgresql.name_in(address)


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    found = Ledger.open(url, metadata)
    yield found
    found.close()
