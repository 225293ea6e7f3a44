"""Comparison of an audit log with the ledger's database, as part of a verification of the log."""

from __future__ import annotations

from sqlalchemy import MetaData

from collector.audit.ledger_check import compare_ledger, summary
from collector.audit.outcome import Outcome, VerifyError
from collector.ledger.database import Database, LedgerError, NoLedgerError
from collector.ledger.ledger_records import LedgerRecords


def compare_url(url: str, tables: MetaData, recorded: LedgerRecords) -> list[str]:
    """Compare the database of a URL; return the findings that need an explanation. Raises VerifyError."""
    try:
        database = Database(url, tables, make=False)
        try:
            return compare(database, recorded)
        finally:
            database.close()
    except NoLedgerError as error:
        if recorded.heads or recorded.rows:
            message = f"{error}, and {len(recorded.heads)} heads of one are recorded"
            raise VerifyError(Outcome.ALTERED, message) from error
        raise VerifyError(Outcome.UNREADABLE, str(error)) from error
    except LedgerError as error:
        raise VerifyError(Outcome.UNREADABLE, str(error)) from error


def compare(database: Database, recorded: LedgerRecords) -> list[str]:
    """Compare a database; return the findings that need an explanation. Raises VerifyError, LedgerError."""
    with database.transaction() as connection:
        found = compare_ledger(connection, recorded)
    if found.wrong:
        raise VerifyError(Outcome.ALTERED, f"{database.name}: {summary(found)}")
    return found.waiting
