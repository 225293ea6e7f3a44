"""The active collector: of a group with one database, the one that receives frames, shows, diagnoses and notifies.

It holds the lease of the group. The others wait: they answer agents as a collector that drains, so that these send to the
active one, and they are not ready. Nothing is exchanged between collectors. Agents send again what the database does not have,
and the next active collector continues with the incidents in the database. While the database is unavailable, the active
collector continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
Work = Callable[[], Coroutine[None, None, None]]


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
    """URL of the collector that is active, as of the last attempt to take the lease; empty if it is not known."""
    is_active: bool = False
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

    def leads(self) -> bool:
        """True if this collector does what only one of several may do: it is alone, or its lease has not expired."""
        return not self.is_in_group or self.lease.is_valid

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
            yield view_cells.ViewCell(catalog.ACTIVE, (), int(self.lease.is_valid))
            yield view_cells.ViewCell(catalog.ACTIVE_CHANGES, (), self.lease.changes)

    async def run(self, files: Path, take_over: Callable[[], None], work: Sequence[Work]) -> None:
        """Do the work of the active collector until cancelled: always, or while the lease of the group is held.

        `files` is the directory of the diagnosis; `take_over`, which blocks, continues with files of another collector.
        """
        if not self.is_in_group:
            async with asyncio.TaskGroup() as group:
                for run in work:
                    group.create_task(run())
            return
        renewing, term = asyncio.create_task(self.lease.run()), None
        try:
            while True:
                is_held = not self.is_draining and await self._take()
                if term is None and is_held:
                    term = asyncio.create_task(self._work(files, take_over, work))
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

    async def _take(self) -> bool:
        """Take or renew the lease; the active collector stays active while the database is unavailable."""
        try:
            term, self.active_url = await databases.call_database(
                lambda: self.lease.take_or_find(self.open_database())
            )
        except databases.UnusableLedgerError as error:
            if str(error) != self._problem:
                log.error("lease_unknown", group=self.settings.group, problem=str(error))
            self._problem = str(error)
            return self.is_active
        self._problem = ""
        return term is not None

    async def _work(self, files: Path, take_over: Callable[[], None], work: Sequence[Work]) -> None:
        await databases.call_database(lambda: active_files.read_files(self.open_database(), files))
        await run_in_thread(take_over)
        self._stored = {}
        async with asyncio.TaskGroup() as group:
            for run in work:
                group.create_task(run())
            group.create_task(self._run_storing(files))
            self.is_active = True
            self.set_draining()
            log.info("collector_active", group=self.settings.group, epoch=self.lease.epoch)

    async def _run_storing(self, files: Path) -> None:
        """Store the incidents periodically: they may be large, and must delay no renewal of the lease."""
        while True:
            await asyncio.sleep(leases.RENEWAL_SECONDS)
            await databases.call_database(lambda: self._store(files))

    def _store(self, files: Path) -> None:
        """Store the incidents for the next active collector; what fails is tried again after the next period."""
        if term := self.lease.term:
            with contextlib.suppress(leases.LostLeaseError, databases.UnusableLedgerError, OSError):
                active_files.store_files(self.open_database(), term, files, self._stored)

    async def _end(self, term: asyncio.Task[None], files: Path) -> None:
        """End the work, and let another collector begin."""
        was_active, self.is_active = self.is_active, False
        self.set_draining()
        term.cancel()
        (result,) = await asyncio.gather(term, return_exceptions=True)
        problem = "" if isinstance(result, asyncio.CancelledError) else repr(result)
        if was_active:  # before, the files here are not those of this term
            await databases.call_database(lambda: self._store(files))
        await databases.call_database(self.lease.release)
        write = log.error if problem else log.info
        write("collector_waiting", group=self.settings.group, problem=problem)
