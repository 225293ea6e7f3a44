"""Transactions of several collectors in one database: locks, their end if a client hangs, and waiting for the standby."""

from __future__ import annotations

import sqlalchemy as sa

_MAX_IDLE_SECONDS = 60
"""Far more than the computation between two statements of a transaction takes."""


def lock(connection: sa.Connection, key: int) -> None:
    """Wait for other transactions that take this lock, and hold it until this one ends.

    Not needed in SQLite, which has a single writer.
    """
    # A client that hangs with the lock would stop all other writers.
    limit_idle_time(connection)
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def limit_idle_time(connection: sa.Connection, max_seconds: int = _MAX_IDLE_SECONDS) -> None:
    """Let the server end this transaction if its client pauses in it, so that its locks do not last."""
    if connection.dialect.name == "postgresql":
        limit = f"SET LOCAL idle_in_transaction_session_timeout = '{max_seconds}s'"
        connection.execute(sa.text(limit))


def await_standby(connection: sa.Connection) -> None:
    """Let the commit of this transaction wait for the disk and a synchronous standby, also if all of its rows exist.

    A commit without a change waits for nothing. The rows may be those of an earlier one that waited for the standby, and
    ended with its connection or server: they are visible, and the standby does not have them. `synchronous_commit` of the
    server may be off.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SET LOCAL synchronous_commit = on"))
        connection.execute(sa.select(sa.func.pg_logical_emit_message(sa.true(), "railscope", "")))
