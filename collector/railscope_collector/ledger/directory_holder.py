"""Holder of a collector's state directory in a shared database.

A collector holds a lease on its audit log, which identifies its state directory: the records of a copy would
contradict it, and sequence numbers that it stored would delete frames which the copy received.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from railscope import settings
from railscope_collector.clock import this_boot
from railscope_collector.ledger import LedgerError, leases
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database


class DirectoryInUseError(LedgerError, settings.SettingsError):
    """Another collector that is running has a copy of the state directory; the message names its process."""


@dataclass(slots=True)
class DirectoryHolder:
    """Holds the state directory of a collector in a shared database, so that it ends if another one runs with a copy.

    A restart takes the lease at once: a lock on the directory shows that the previous process has ended. A directory
    that was moved is used once the lease has expired. A lease that another process renews is that of a copy.
    """

    directory: Path
    open: Callable[[], Database]
    boot_id: str = field(default_factory=this_boot)
    lease: leases.Lease | None = None
    _other: tuple[str, Any] | None = None
    """Other holder and the expiry of its lease, as of the last attempt."""
    _waiting: asyncio.Task[bool] | None = None
    """Last attempt at the start: the database may not have responded yet."""

    async def begin(self, log: str) -> None:
        """Take the lease of an audit log; a database that does not respond is queried again later.

        Raises DirectoryInUseError.
        """
        details = self.directory.stat()
        # The boot and the inode: a copy of the directory has another inode, and one on another machine another boot.
        place = f"{self.boot_id} {details.st_dev} {details.st_ino}".encode()
        digest = hashlib.sha256(place).hexdigest()[:16]
        self.lease = leases.Lease(f"log {log}", place=digest if self.boot_id else "")
        while True:
            self._waiting = asyncio.create_task(call_database(self.attempt))
            responded, _ = await asyncio.wait({self._waiting}, timeout=_START_SECONDS)
            if not responded:
                # The task continues in `run`: a database that hangs must not delay the start.
                return
            with suppress(*_FAILURES):  # every user of the database reports it
                if not await self._waiting:
                    await asyncio.sleep(_ATTEMPT_SECONDS)
                    continue
            return

    async def run(self) -> None:
        """Renew the lease until cancelled, then release it. Raises DirectoryInUseError."""
        try:
            while True:
                with suppress(*_FAILURES):
                    await (self._waiting or call_database(self.attempt))
                self._waiting = None
                await asyncio.sleep(leases.RENEWAL_SECONDS)
        finally:
            if self.lease:
                # Else a moved directory could not be used before the lease has expired.
                await call_database(self.lease.release)

    def attempt(self) -> bool:
        """Take or renew the lease; true if it is held. Blocking; raises DirectoryInUseError, UnusableLedgerError."""
        database = self.open()
        # An embedded database is in the directory itself, which a lock protects.
        if self.lease is None or database.file is not None or self.lease.take(database):
            self._other = None
            return True
        query = sa.select(leases.rows.c.holder, leases.rows.c.expires_at)
        with database.transaction() as connection:
            row = connection.execute(query.where(leases.rows.c.name == self.lease.name)).first()
        other, self._other = self._other, (row.holder, row.expires_at) if row else None
        # Only an expiry that was renewed between two attempts proves a running process; the first may be of one that
        # has ended.
        if row and row.expires_at and other and other != self._other:
            message = (
                f"state_directory {self.directory} is a copy of that of the running collector "
                f"{row.holder.partition('@')[0]}: expected one collector for each; fix: stop that one, or set "
                "another directory"
            )
            raise DirectoryInUseError(message)
        return False


_FAILURES = (UnusableLedgerError, sa.exc.SQLAlchemyError)
_START_SECONDS = 5.0
_ATTEMPT_SECONDS = 1.0
"""Period of attempts while another process has the lease: it expires, or is renewed, within LEASE_SECONDS."""
