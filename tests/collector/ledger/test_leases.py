"""Leases of a database: one holder, the next epoch after its expiry, and no write of an earlier term."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from days import DAY, held, metered
from structlog.testing import capture_logs
from support.metered import revision_of
from support.postgresql import PostgreSQL
from support.waiting import block_until

from railscope_collector.ledger import leases
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

NAME = "active"
CLOCK = sa.func.clock_timestamp()


@pytest.fixture
def database(server: PostgreSQL, new_ledger_database: str) -> Iterator[Database]:
    """A ledger of PostgreSQL."""
    address = server.database(new_ledger_database)
    found = Database(address, metadata)
    yield found
    found.close()
    server.drop(address)


@pytest.fixture
def open_another(database: Database) -> Iterator[Callable[[], Database]]:
    """Databases of other processes."""
    opened: list[Database] = []

    def open_one() -> Database:
        opened.append(Database(database.engine.url.render_as_string(hide_password=False), metadata))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def expire(database: Database) -> None:
    """Let the lease of its holder end now, by the clock of the database."""
    with database.transaction(writes=True) as connection:
        connection.execute(sa.update(leases.rows).values(expires_at=CLOCK))


def taken(lease: leases.Lease, database: Database) -> leases.LeaseTerm:
    term = lease.take(database)
    assert term is not None
    return term


def check(term: leases.LeaseTerm, database: Database) -> None:
    with database.transaction(writes=True) as connection:
        term.check(connection)


def test_one_holds_it_until_it_expires_and_the_other_takes_the_next_epoch(database: Database):
    first, second = leases.Lease(NAME), leases.Lease(NAME)
    assert first.holder != second.holder
    term = taken(first, database)
    assert (term.epoch, first.changes) == (1, 1)
    assert second.take(database) is None
    assert (second.epoch, second.changes) == (0, 0)
    assert first.take(database) == term, "renewed"
    check(term, database)
    expire(database)
    with pytest.raises(leases.LostLeaseError, match="expired"):
        check(term, database)
    assert first.take(database) == term, "not taken meanwhile"
    check(term, database)
    expire(database)
    assert taken(second, database).epoch == 2
    with pytest.raises(leases.LostLeaseError, match="taken by another collector"):
        check(term, database)
    with capture_logs() as lines:
        first.renew()
        first.renew()
    assert [(line["event"], line["lease"], line["epoch"]) for line in lines] == [
        ("lease_lost", NAME, 1)
    ]
    assert (first.term, first.changes) == (None, 2)
    assert first.take(database) is None


def test_a_write_of_an_earlier_term_fails_though_its_process_holds_the_lease_again(
    database: Database,
):
    paused, other = leases.Lease(NAME), leases.Lease(NAME)
    ledger = Ledger(database)
    before = taken(paused, database)
    expire(database)
    taken(other, database)
    expire(database)
    again = taken(paused, database)
    assert again.epoch == 3
    with pytest.raises(leases.LostLeaseError):
        ledger.write_days([metered(held("GPU-0", "stale"))], 0, before.check)
    assert revision_of(ledger, "GPU-0", DAY) is None
    ledger.write_days([metered(held("GPU-0", "fresh"))], 0, again.check)
    assert revision_of(ledger, "GPU-0", DAY).number == 1


def test_it_is_not_taken_while_a_write_is_committed_and_renewals_do_not_wait(
    database: Database, open_another: Callable[[], Database]
):
    holder, other = leases.Lease(NAME), leases.Lease(NAME)
    term, elsewhere = taken(holder, database), open_another()
    with database.transaction(writes=True) as writing:
        term.check(writing)
        expire(elsewhere)
        assert other.take(elsewhere) is None, "the write holds it"
        holder.renew()
        assert other.take(elsewhere) is None
        expire(elsewhere)
        limit = writing.execute(sa.text("SHOW idle_in_transaction_session_timeout")).scalar()
        assert limit == "1min", "a process that is paused in the write does not hold it for ever"
    with database.transaction() as connection:
        unlimited = connection.execute(sa.text("SHOW idle_in_transaction_session_timeout"))
        assert unlimited.scalar() == "0"
    assert taken(other, elsewhere).epoch == 2


def test_a_write_that_starts_while_another_takes_the_lease_waits_and_fails(
    database: Database, open_another: Callable[[], Database]
):
    term, elsewhere = taken(leases.Lease(NAME), database), open_another()
    row = leases.rows
    with ThreadPoolExecutor(1) as pool:
        with elsewhere.transaction(writes=True) as taking:
            taking.execute(sa.select(row).with_for_update(skip_locked=True))
            taking.execute(sa.update(row).values(holder="other", epoch=row.c.epoch + 1))
            writing = pool.submit(check, term, database)
            wait_for(
                elsewhere,
                "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
            )
            assert not writing.done()
        with pytest.raises(leases.LostLeaseError, match="taken by another"):
            writing.result()


def wait_for(database: Database, condition: str, **values: int) -> None:
    """Wait until a query returns true."""

    def holds() -> object:
        with database.transaction() as connection:
            return connection.execute(sa.text(condition), values).scalar()

    block_until(holds, condition)


def test_released_it_is_free_at_once(database: Database):
    first, second = leases.Lease(NAME), leases.Lease(NAME)
    term = taken(first, database)
    first.release()
    first.release()
    with pytest.raises(leases.LostLeaseError):
        check(term, database)
    assert taken(second, database).epoch == 2
    first.release()
    assert second.take(database) is not None, "only the holder releases it"


def test_with_sqlite_the_process_that_started_last_has_it(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}", metadata)
    first, second = leases.Lease(NAME), leases.Lease(NAME)
    term = taken(first, database)
    first.renew()
    check(term, database)
    assert first.take(database) == term
    assert taken(second, database).epoch == 2
    with pytest.raises(leases.LostLeaseError):
        check(term, database)
    database.close()
