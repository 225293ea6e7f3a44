"""Leases: what exactly one collector of a database does, and the check that keeps all others from writing.

A lease is a row with its holder, an epoch, and an expiry by the clock of the database. The holder renews it;
once it has expired, another collector takes it with the next epoch. Each transaction that writes under a
lease checks its epoch (`LeaseTerm.check`), so that a collector that was paused cannot write what it computed
before. Expiry alone prevents nothing: it only permits another collector to take the lease.

    holder   FOR KEY SHARE until the commit of a write; UPDATE without a change of the key to renew
    others   FOR UPDATE SKIP LOCKED to take it, which waits for no lock and ends no write

So a renewal waits for no write of the holder, and the lease is never taken while a write is being committed.

A database of SQLite has one collector, by the lock of its state directory: its lease does not expire, and the
process that started last takes it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
import structlog

from railscope_collector.ledger import LedgerError, schema, transactions
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database

log = structlog.get_logger(__name__)

LEASE_SECONDS = 10.0
"""Validity of a renewal: a restart of the database or a checkpoint on a slow disk takes less."""
RENEWAL_SECONDS = 3.0
"""Two renewals may fail before the lease expires."""

rows = sa.Table(
    "collector_lease",
    schema.metadata,
    sa.Column("name", sa.Text, primary_key=True),
    *schema.texts("holder"),
    *schema.integers("epoch"),
    sa.Column("expires_at", sa.DateTime(timezone=True)),
    sa.Column("processed_ns", sa.BigInteger),
)
"""Leases by name; free without `expires_at`. Releases up to 0.3 wrote `processed_ns`.

The only table of the product with rows that change: nothing is billed from it.
"""


class LostLeaseError(LedgerError, RuntimeError):
    """The lease of a write has expired, or another collector has taken it; nothing is written."""


def _is_server(connection: sa.Connection | sa.Engine) -> bool:
    return bool(connection.dialect.name == "postgresql")


def _clock() -> Any:
    """Return the time of the database; its `now()` is the start of the transaction."""
    return sa.func.clock_timestamp(type_=sa.DateTime(timezone=True))


class LeaseTerm(NamedTuple):
    """One period in which a process holds a lease."""

    name: str
    holder: str
    epoch: int

    def check(self, connection: sa.Connection) -> None:
        """Raise LostLeaseError unless this term lasts; until the transaction ends, the lease is not taken.

        Call it first in each transaction that writes under the lease.
        """
        # In SQLite a lease does not expire.
        expired: Any = sa.false()
        if _is_server(connection):
            transactions.limit_idle_time(connection)
            # Key share: renewals, which leave the key unchanged, do not wait for it.
            lock = sa.select(rows.c.epoch).where(rows.c.name == self.name)
            connection.execute(lock.with_for_update(read=True, key_share=True))
            expired = sa.or_(rows.c.expires_at.is_(None), rows.c.expires_at <= _clock())
        # In a statement of its own: the lock may return the row as it was before the last change.
        state = sa.select(rows.c.holder, rows.c.epoch, expired).where(rows.c.name == self.name)
        found = connection.execute(state).first()
        if found is None or found[:2] != (self.holder, self.epoch):
            message = (
                f"the lease {self.name} was taken by another collector: expected epoch {self.epoch}"
            )
            raise LostLeaseError(message)
        if found[2]:
            message = (
                f"the lease {self.name} has expired: expected a renewal every {RENEWAL_SECONDS:g} s"
            )
            raise LostLeaseError(message)

    def is_row(self) -> Any:
        """Return the condition for the row of the lease in this term."""
        return sa.and_(
            rows.c.name == self.name, rows.c.holder == self.holder, rows.c.epoch == self.epoch
        )


def _new_holder() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


_PLACE = "@"
"""Separator of a holder and the place in which it is the only one."""


@dataclass(slots=True)
class Lease:
    """A lease as one process takes, renews and releases it. All methods but `run` block."""

    name: str
    holder: str = field(default_factory=_new_holder)
    """Unique for each start of a process."""
    seconds: float = LEASE_SECONDS
    url: str = ""
    """URL of this process, for the others."""
    place: str = ""
    """Place that a local lock protects: its previous holder has ended, so its lease is taken before it expires."""
    changes: int = 0
    """Number of times that this process took or lost it."""
    term: LeaseTerm | None = None
    """Present term, as of the last renewal or write."""
    _database: Database | None = None
    _renewed_seconds: float = 0.0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Add the URL and the place to the holder."""
        if self.url:
            self.holder = f"{self.url} {self.holder}"
        if self.place:
            self.holder += _PLACE + self.place

    @property
    def epoch(self) -> int:
        """Return the epoch of the present term; 0 without one."""
        return self.term.epoch if self.term else 0

    @property
    def is_valid(self) -> bool:
        """True if the lease is held, and was renewed before it expired."""
        # By the boot clock, which includes suspend: a machine that slept may have lost the lease.
        return self.term is not None and _boot_seconds() < self._renewed_seconds + self.seconds

    def check(self, connection: sa.Connection) -> None:
        """Raise LostLeaseError unless the present term lasts, like `LeaseTerm.check`."""
        term = self.term
        if term is None:
            message = f"the lease {self.name} is not held: expected it to be taken before a write"
            raise LostLeaseError(message)
        term.check(connection)

    def take(self, database: Database) -> LeaseTerm | None:
        """Return the term after renewing it, or a new one if the lease is free; None if another holds it.

        Raises UnusableLedgerError.
        """
        with self._turn:
            self._database = database
            if self.term is None or not self._renew(database, self.term):
                self.term = self._take(database)
            return self.term

    def find_other(self, database: Database) -> str:
        """Return the URL of another process that holds the lease; empty if it has none, or no other one holds the lease.

        Raises UnusableLedgerError.
        """
        with database.transaction() as connection:
            is_held = sa.and_(rows.c.expires_at > _clock(), rows.c.holder != self.holder)
            held = sa.select(rows.c.holder).where(rows.c.name == self.name, is_held)
            holder = connection.execute(held).scalar() or ""
        url, separator, _ = holder.partition(" ")
        return url if separator else ""

    def renew(self) -> None:
        """Renew a lease that is held; a failure to reach the database counts only once it has expired."""
        with self._turn:
            term, database = self.term, self._database
            if term is None or database is None or not _is_server(database.engine):
                return
            try:
                self._renew(database, term)
            except (UnusableLedgerError, sa.exc.SQLAlchemyError) as error:
                if _boot_seconds() > self._renewed_seconds + self.seconds:
                    self._lose(f"not renewed: {error}")

    def lose(self, problem: str) -> None:
        """Record that a write was rejected because the lease was lost."""
        with self._turn:
            log.warning("late_write_rejected", lease=self.name, problem=problem)
            self._lose(problem)

    def release(self) -> None:
        """Let another collector take the lease at once, if it is held. Never raises."""
        with self._turn:
            # First: whatever the database responds, this process writes no more.
            term, self.term = self.term, None
            if term is None or self._database is None:
                return
            if _is_server(self._database.engine):
                log.info("lease_released", lease=self.name, epoch=term.epoch)
            self.changes += 1
            try:
                with self._database.transaction(writes=True) as connection:
                    free = sa.update(rows).where(term.is_row()).values(expires_at=None)
                    connection.execute(free)
            except (UnusableLedgerError, sa.exc.SQLAlchemyError):
                pass  # it expires

    async def run(self) -> None:
        """Renew the lease while it is held, until cancelled."""
        problem = ""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            try:
                await call_database(self.renew)
            except Exception as fault:  # noqa: BLE001 - the next renewal may succeed before the lease expires
                if str(fault) != problem:
                    log.error("lease_renewal_failed", lease=self.name, problem=repr(fault))
                problem = str(fault)
            else:
                problem = ""

    def _lose(self, problem: str) -> None:
        if self.term is not None:
            log.warning("lease_lost", lease=self.name, epoch=self.term.epoch, problem=problem)
            self.changes += 1
        self.term = None

    def _renew(self, database: Database, term: LeaseTerm) -> bool:
        # Before the statement: measured from here, the lease seems to expire earlier than in the database, never later.
        started_seconds = _boot_seconds()
        with database.transaction(writes=True) as connection:
            if _is_server(connection):
                transactions.limit_idle_time(connection, round(LEASE_SECONDS))
                expires_at = _clock() + timedelta(seconds=self.seconds)
                renewal = sa.update(rows).where(term.is_row()).values(expires_at=expires_at)
                is_mine = connection.execute(renewal).rowcount == 1
            else:
                is_mine = (
                    connection.execute(sa.select(rows).where(term.is_row())).first() is not None
                )
        if is_mine:
            self._renewed_seconds = started_seconds
        else:
            self._lose("taken by another collector")
        return is_mine

    def _take(self, database: Database) -> LeaseTerm | None:
        started_seconds = _boot_seconds()
        named = rows.c.name == self.name
        with database.transaction(writes=True) as connection:
            is_server = _is_server(connection)
            transactions.limit_idle_time(connection, round(LEASE_SECONDS))
            if connection.execute(sa.select(rows.c.name).where(named)).first() is None:
                new = schema.insert_new(connection, rows)
                connection.execute(new.values(name=self.name, holder="", epoch=0))
            is_free: Any = sa.true()
            if is_server:
                # No renewal expires later: the clock of the database was ahead, as that of a former primary.
                latest = _clock() + timedelta(seconds=max(self.seconds, LEASE_SECONDS))
                expiry = rows.c.expires_at
                is_free = sa.or_(expiry.is_(None), expiry <= _clock(), expiry > latest)
            if self.place:
                is_free = sa.or_(is_free, rows.c.holder.endswith(_PLACE + self.place))
            query = sa.select(rows).where(named, is_free).with_for_update(skip_locked=True)
            row = connection.execute(query).first()
            if row is None:
                return None
            expires_at = _clock() + timedelta(seconds=self.seconds) if is_server else None
            taken = sa.update(rows).where(named)
            taken = taken.values(holder=self.holder, epoch=row.epoch + 1, expires_at=expires_at)
            connection.execute(taken)
        self._renewed_seconds = started_seconds
        self.changes += 1
        term = LeaseTerm(self.name, self.holder, row.epoch + 1)
        if is_server:
            log.info("lease_taken", lease=self.name, epoch=term.epoch, previous_holder=row.holder)
        return term


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
