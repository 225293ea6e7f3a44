"""Active collector of a group: it receives frames, shows, diagnoses and notifies.

It holds the lease of the group in the database. The others wait: they answer agents as a collector that drains, so that agents send
to the active one, and they are not ready. Nothing is exchanged between collectors. Agents send again what the database
does not have, and the next active collector continues with the incidents in the database. While the database is
unavailable, the active collector continues, except that it sends no notifications: another collector may be active too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
import structlog

from railscope import settings as setting_files
from railscope.catalog import collector as catalog
from railscope.service import run_in_thread
from railscope_collector import config
from railscope_collector.fleet import view_cells
from railscope_collector.ledger import active_files, database as databases, leases
from railscope_collector.ledger.database_location import ledger_url
from railscope_collector.state.collector_state import CollectorState

log = structlog.get_logger(__name__)

NO_ACTIVE = "no collector is active: one of the group begins within seconds"
ActiveTask = Callable[[], Coroutine[None, None, None]]
_DATABASE_ERRORS = (databases.UnusableLedgerError, sa.exc.SQLAlchemyError)


@dataclass(slots=True)
class ActiveRole:
    """Role of a collector in its group: active, or waiting. A collector without a group is active."""

    settings: config.ClusterSettings
    core: CollectorState
    is_draining: bool
    """True if the administrator takes this collector out of use."""
    open_database: Callable[[], databases.Database]
    lease: leases.Lease
    active_url: str = ""
    """URL of another collector that is active, as of the last exchange; empty if none is known."""
    is_active: bool = False
    _owns_files: bool = False
    """True from the takeover until the files of the diagnosis were stored at the end of the term."""
    _epoch: int = 0
    """Epoch of the lease as of the last exchange with the database."""
    _stored: dict[str, int] = field(default_factory=dict)
    """Files of the diagnosis that the database has, with the times of their changes."""
    _problem: str = ""

    @classmethod
    def from_settings(
        cls,
        settings: config.CollectorSettings,
        directory: Path,
        core: CollectorState,
        open_database: Callable[[], databases.Database],
    ) -> ActiveRole:
        """Return the role in the group that the settings name. Raises SettingsError."""
        cluster = settings.cluster
        if cluster.group and not cluster.advertised_url:
            message = (
                f"missing cluster.advertised_url of cluster.group {cluster.group!r}: expected the URL of this collector,"
                " to which the others refer; fix: set it, such as https://HOST:9470"
            )
            raise setting_files.SettingsError(message)
        if cluster.advertised_url:
            setting_files.check_http_url("cluster.advertised_url", cluster.advertised_url)
        if cluster.group and ledger_url(settings.ledger, directory).startswith("sqlite"):
            message = (
                f"invalid cluster.group {cluster.group!r}: the collectors of a group need one database of PostgreSQL;"
                " fix: set ledger.url to postgresql://USER@HOST/DATABASE, or remove [cluster]"
            )
            raise setting_files.SettingsError(message)
        lease = leases.Lease(f"active/{cluster.group}", url=cluster.advertised_url.rstrip("/"))
        is_active = not cluster.group and not settings.draining
        role = cls(cluster, core, settings.draining, open_database, lease, is_active=is_active)
        role.set_draining()
        return role

    @property
    def is_in_group(self) -> bool:
        """True if this collector is one of several."""
        return bool(self.settings.group)

    @property
    def waits(self) -> bool:
        """True if another collector of the group is active, or none."""
        return self.is_in_group and not self.is_active

    def may_notify(self) -> bool:
        """True if no other collector notifies: this one is alone, or its lease has not expired."""
        return not self.is_in_group or self.lease.is_valid

    def check_term(self, connection: sa.Connection) -> None:
        """Raise LostLeaseError unless this collector is alone or active; until the transaction ends, no other one begins.

        Call it first in each transaction that stores what follows from frames.
        """
        if self.is_in_group:
            self.lease.check(connection)

    def drain(self) -> None:
        """Accept no more frames, and leave the lease to another collector."""
        self.is_draining = True
        self.set_draining()

    def set_draining(self) -> None:
        """State why the collector accepts no frames, if it does not."""
        active = f"{self.active_url} is active" if self.active_url else NO_ACTIVE
        self.core.draining = (
            "draining" if self.is_draining else f"waiting: {active}" if self.waits else ""
        )

    def cells(self) -> Iterator[view_cells.ViewCell]:
        """Yield the metrics of the role."""
        if self.is_in_group:
            label = (self.settings.group,)
            yield view_cells.ViewCell(catalog.ACTIVE, label, int(self.is_active))
            yield view_cells.ViewCell(catalog.ACTIVE_CHANGES, label, self.lease.changes)

    async def run(
        self, files: Path, take_over: Callable[[], None], tasks: Sequence[ActiveTask]
    ) -> None:
        """Run the tasks of the active collector until cancelled: always, or while the lease of the group is held.

        `files` is the directory of the diagnosis; `take_over`, which blocks, continues with files of another collector.
        """
        if not self.is_in_group:
            async with asyncio.TaskGroup() as group:
                for run in tasks:
                    group.create_task(run())
            return
        renewing, term = asyncio.create_task(self.lease.run()), None
        try:
            while True:
                is_held = await self._hold()
                if term is None and is_held:
                    term = asyncio.create_task(self._run_term(files, take_over, tasks))
                elif term is not None and (term.done() or not is_held):
                    await self._end(term, files)
                    term = None
                self.set_draining()
                await asyncio.sleep(leases.RENEWAL_SECONDS)
        finally:
            if term is not None:
                await self._end(term, files)
            renewing.cancel()
            await databases.call_database(self.lease.release)

    async def _hold(self) -> bool:
        """Take or renew the lease; the active collector stays active while the database is unavailable."""
        try:
            is_held = await databases.call_database(self._exchange)
        except _DATABASE_ERRORS as error:
            if str(error) != self._problem:
                log.error("lease_unknown", group=self.settings.group, problem=str(error))
            self._problem = str(error)
            return self.is_active and not self.is_draining
        self._problem = ""
        return is_held

    def _exchange(self) -> bool:
        """Take or renew the lease, unless this collector drains; find the one that holds it. Blocking."""
        database = self.open_database()
        is_held = not self.is_draining and self.lease.take(database) is not None
        self.active_url = "" if is_held else self.lease.find_other(database)
        before, self._epoch = self._epoch, self.lease.epoch
        # Another collector was active in between: this one continues with its incidents, in a new term.
        return is_held and not (self.is_active and self._epoch > before + 1)

    async def _run_term(
        self, files: Path, take_over: Callable[[], None], tasks: Sequence[ActiveTask]
    ) -> None:
        group_name = self.settings.group
        await databases.call_database(
            lambda: active_files.read_files(self.open_database(), group_name, files)
        )
        await run_in_thread(take_over)
        self._stored, self._owns_files = {}, True
        self.core.received.begin_term()
        async with asyncio.TaskGroup() as group:
            for run in tasks:
                group.create_task(run())
            group.create_task(self._run_storing(files))
            self.is_active = True
            self.set_draining()
            log.info("collector_active", group=group_name, epoch=self.lease.epoch)

    async def _run_storing(self, files: Path) -> None:
        """Store the incidents periodically: they may be large, and must delay no renewal of the lease."""
        while True:
            await asyncio.sleep(leases.RENEWAL_SECONDS)
            await databases.call_database(lambda: self._store(files))

    def _store(self, files: Path) -> None:
        """Store the incidents for the next active collector; what fails is tried again after the next period."""
        if term := self.lease.term:
            with contextlib.suppress(leases.LostLeaseError, OSError, *_DATABASE_ERRORS):
                group, database = self.settings.group, self.open_database()
                active_files.store_files(database, group, term, files, self._stored)

    async def _end(self, term: asyncio.Task[None], files: Path) -> None:
        """End the term, and let another collector begin."""
        self.is_active = False
        self.set_draining()
        term.cancel()
        (result,) = await asyncio.gather(term, return_exceptions=True)
        problem = "" if isinstance(result, asyncio.CancelledError) else repr(result)
        # Also if the collector was stopped while a term ended: this runs again then.
        if self._owns_files:
            await databases.call_database(lambda: self._store(files))
            self._owns_files = False
        await databases.call_database(self.lease.release)
        write = log.error if problem else log.info
        write("collector_waiting", group=self.settings.group, problem=problem)
