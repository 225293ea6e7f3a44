"""The head: one of several collectors with a database, which shows the nodes of all and diagnoses them.

Every collector writes its URL and its nodes to the database, and offers its records at `/v1/records`. The one that
holds the lease of the head reads those of all others, and applies them with its own to a separate state, from which
views, API, console, jobs and diagnosis of the whole cluster follow. What a collector counts and exports itself (its
metrics, evidence, acknowledgements) is not affected. The head keeps no data: another one begins with snapshots.

A collector that does not respond is unknown: its nodes remain as they were last reported, and are stale; the diagnosis
does not conclude anything from their silence. Views state the collectors that they contain.

The head continues to show views while the database is unavailable, but sends no notifications: no other collector can
take its lease, unless only its own connection is interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from railscope import api, settings as setting_files
from railscope.catalog import collector as catalog
from railscope.service import run_in_thread
from railscope_collector import config, record_exchange, view_refresh
from railscope_collector.access.credentials import Credential
from railscope_collector.account import account_cells
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.finalization import day_writes, followed_account
from railscope_collector.fleet import view_cells
from railscope_collector.ledger import (
    cluster_extent,
    database as databases,
    database_location,
    head_files,
    leases,
    membership,
)
from railscope_collector.live_diagnosis import diagnosis_service
from railscope_collector.state import collector_state, feed_follower, record_feed
from railscope_collector.workloads.measure_averages import MeasureAverages

log = structlog.get_logger(__name__)

EXCHANGE_SECONDS = leases.RENEWAL_SECONDS
WRITE_NODES_SECONDS = 60.0
"""Period of writing the times of the last reports; a change of the nodes is written with the next exchange.

The row of a collector is written every few seconds, its nodes not: they are many.
"""
MIN_COPIES = 3
"""Copies without a record between them after which nothing follows from missing records: their collector changes."""


@dataclass(slots=True, eq=False)
class HeadState:
    """State, views and diagnosis of all nodes, during one term of the head."""

    core: collector_state.CollectorState
    own_refresher: InitVar[view_refresh.ViewRefresher]
    own_diagnosis: InitVar[diagnosis_service.DiagnosisService]
    directory: InitVar[Path]
    live: LiveAccount = field(init=False)
    refresher: view_refresh.ViewRefresher = field(init=False)
    diagnosis: diagnosis_service.DiagnosisService = field(init=False)
    followed: dict[str, record_exchange.FollowedCollector] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """Collector that reported each node last."""
    copies: dict[str, feed_follower.ReceivedCopies] = field(default_factory=dict)
    """Copies of frames of each node since the last record of it."""
    handlers: dict[str, RequestHandler] = field(default_factory=dict)
    """Handlers of API and console."""
    work: list[Callable[[], Coroutine[None, None, None]]] = field(default_factory=list)
    """Further work during the term."""
    stored: dict[str, int] | None = None
    """Files of the diagnosis that the database has, with the times of their changes; None until they were read."""
    task: asyncio.Task[None] | None = None

    def __post_init__(
        self,
        own_refresher: view_refresh.ViewRefresher,
        own_diagnosis: diagnosis_service.DiagnosisService,
        directory: Path,
    ) -> None:
        """Create account, views and diagnosis like the collector's own ones."""
        own_live, watch = own_refresher.live, own_refresher.watch
        # Not ready until the account has read the ledger.
        self.live = live = LiveAccount(
            self.core.evidence,
            own_live.files,
            is_ready=False,
            pod_job_pattern=own_live.pod_job_pattern,
        )
        self.refresher = replace(
            own_refresher,
            core=self.core,
            live=live,
            views=view_refresh.CollectorViews(),
            # This state computes it; the own one exports it (`ClusterRole.quota_use`).
            quota_use=None,
            watch=replace(watch, core=self.core) if watch else None,
            averages=MeasureAverages(own_refresher.averages.time_constant_seconds),
            extent=self.extent,
        )
        self.diagnosis = replace(
            own_diagnosis,
            core=self.core,
            directory=directory,
            jobs=lambda: live.roster.jobs() if live.is_ready else (),
            has_log=False,
            unknown_nodes=self.unknown_nodes,
        )

    def extent(self) -> cluster_extent.ClusterExtent:
        """Return the collectors with their nodes; those of a collector that is unknown count where they are now."""
        counts = dict.fromkeys(self.followed, 0)
        for node in self.core.fleet.nodes:
            if (shown_by := self.find_collector(node)) in counts:
                counts[shown_by] += 1
        members = (each.extent_member(counts[name]) for name, each in sorted(self.followed.items()))
        return cluster_extent.ClusterExtent(tuple(members))

    def find_collector(self, node: str) -> str:
        """Return the collector that reports a node: if its own does not respond, the one that receives copies."""
        owner, copies = self.owners.get(node, ""), self.copies.get(node)
        followed = self.followed.get(owner)
        return copies.collector if copies and (followed is None or followed.problem) else owner

    def unknown_nodes(self) -> set[str]:
        """Return the nodes of the collectors that do not respond, and those of which only copies are received."""
        copies = self.copies.copy()
        copied = {node for node, each in copies.items() if each.copies >= MIN_COPIES}
        unknown = {name for name, each in self.followed.items() if each.problem}
        owners = self.owners.copy() if unknown else {}  # the event loop adds nodes meanwhile
        return copied | {node for node, owner in owners.items() if owner in unknown}

    def add_last_known(self) -> None:
        """Add the nodes that collectors listed in the database and that no records of others contain."""
        for name, each in self.followed.items():
            if each.problem:
                for node, timestamp_ns in each.member.nodes.items():
                    if node not in self.owners:
                        self.owners[node] = name
                        self.core.fleet.get_or_add_node(node).timestamp_ns = timestamp_ns


RequestHandler = Callable[[web.Request, Credential], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class ClusterRole:
    """Role of a collector among those of a database."""

    settings: config.ClusterSettings
    lease: leases.Lease = field(default_factory=lambda: leases.Lease(membership.HEAD))
    members: membership.ClusterMembers = field(
        default_factory=lambda: membership.ClusterMembers((), None)
    )
    """All collectors, as of the last exchange."""
    state: HeadState | None = None
    """None while another collector is the head."""

    @property
    def is_enabled(self) -> bool:
        """True if this collector is one of several."""
        return bool(self.settings.advertised_url)

    @property
    def name(self) -> str:
        """Name of this collector: two on one machine differ in their ports."""
        return self.settings.name or urlsplit(self.settings.advertised_url).netloc

    def leads(self) -> bool:
        """True if this collector does what only one of several does: it is alone, or holds the lease of the head."""
        return not self.is_enabled or self.lease.is_valid

    def peer_offsets_ns(self) -> list[int]:
        """Return the lead of the clock of each other collector over this one's, in nanoseconds."""
        return self.members.leads_over(self.name)

    def quota_use(self) -> list[view_cells.ViewCell]:
        """Return the use of quotas on all nodes; nothing if another collector is the head."""
        if not (self.state and self.lease.is_valid):
            return []
        cells = self.state.refresher.views.tenant.cells
        return [cell for cell in cells if cell.metric in account_cells.QUOTA_USE]


@dataclass(slots=True)
class ClusterHead:
    """Takes the lease of the head, and shows all nodes while it holds it."""

    settings: config.CollectorSettings
    role: ClusterRole
    directory: Path
    core: collector_state.CollectorState
    """State of this collector's own nodes."""
    refresher: view_refresh.ViewRefresher
    own_diagnosis: diagnosis_service.DiagnosisService
    """Diagnosis of a collector that is alone."""
    open: Callable[[], databases.Database]
    open_stores: Callable[[], day_writes.MeteringStores]
    on_term: list[Callable[[HeadState], None]] = field(default_factory=list)
    """Called with the state of each term before it begins, to add handlers and further work."""
    records: record_exchange.RecordServer = field(init=False)
    access: record_exchange.PeerAccess = field(init=False)
    _written_nodes: set[str] = field(default_factory=set)
    _written_at: float = 0.0
    _problem: str = ""
    """Failure of the last exchange, which is logged when it changes."""

    def __post_init__(self) -> None:
        """Check the settings. Raises SettingsError."""
        cluster = self.settings.cluster
        self.records = record_exchange.RecordServer(
            record_feed.RecordFeed(self.core, self.refresher.wall_ns)
        )
        if not self.role.is_enabled:
            return
        setting_files.check_http_url("cluster.advertised_url", cluster.advertised_url)
        if database_location.ledger_url(self.settings.ledger, self.directory).startswith("sqlite"):
            message = (
                "invalid cluster.advertised_url: several collectors need one database of PostgreSQL;"
                " fix: set ledger.url to postgresql://USER@HOST/DATABASE, or remove [cluster]"
            )
            raise setting_files.SettingsError(message)
        self.access = record_exchange.PeerAccess.from_settings(cluster)

    @property
    def diagnoses_alone(self) -> bool:
        """True if this collector diagnoses its own nodes, because there are no others."""
        return self.settings.diagnosis.enabled and not self.role.is_enabled

    @property
    def diagnosis(self) -> diagnosis_service.DiagnosisService | None:
        """Diagnosis that runs here; None if another collector is the head."""
        if not self.role.is_enabled:
            return self.own_diagnosis
        return self.role.state.diagnosis if self.role.state else None

    @property
    def incidents(self) -> IncidentTable:
        """Incidents as of the last evaluation; none if another collector evaluates them."""
        return self.diagnosis.table if self.diagnosis else IncidentTable()

    @property
    def progress(self) -> api.DiagnosisProgress:
        """Age of the incidents, and the process that evaluates them."""
        return self.diagnosis.progress if self.diagnosis else api.DiagnosisProgress()

    @property
    def notified(self) -> IncidentTable:
        """Incidents of which this collector notifies: none once its lease has expired."""
        return self.incidents if self.role.leads() else IncidentTable()

    @property
    def decisions(self) -> diagnosis_service.IncidentDecisions:
        """Decisions about incidents; none if another collector is the head."""
        return self.diagnosis.decisions if self.diagnosis else diagnosis_service.IncidentDecisions()

    def cells(self) -> Iterator[view_cells.ViewCell]:
        """Yield the metrics of the diagnosis that runs here, and of the collectors."""
        if self.settings.diagnosis.enabled and self.diagnosis:
            yield from self.diagnosis.cells()
        if not self.role.is_enabled:
            return
        yield view_cells.ViewCell(catalog.CLUSTER_HEAD, (), int(self.role.lease.is_valid))
        yield view_cells.ViewCell(catalog.CLUSTER_HEAD_CHANGES, (), self.role.lease.changes)
        for reason in ("disconnected", "rejected"):
            count = getattr(self.records, reason)
            yield view_cells.ViewCell(catalog.CLUSTER_READERS, (reason,), count)
        followed = list(self.role.state.followed.values()) if self.role.state else []
        for each in (collector.extent_member(0) for collector in followed):
            label = (each.name,)
            yield view_cells.ViewCell(catalog.CLUSTER_INCLUDED, label, int(each.is_included))
            yield view_cells.ViewCell(catalog.CLUSTER_REJECTED, label, each.rejected)
            if each.lag_seconds is not None:
                yield view_cells.ViewCell(catalog.CLUSTER_LAG, label, each.lag_seconds)

    # Records for the head -----------------------------------------------------------------------

    async def serve(self, request: web.Request, _: Credential) -> web.StreamResponse:
        """Send the records of this collector, until the reader closes the connection."""
        if not self.role.is_enabled:
            return web.json_response(
                {"error": "not one of several collectors: expected cluster.advertised_url"},
                status=HTTPStatus.NOT_FOUND,
            )
        return await self.records.serve(request)

    # Membership and lease -----------------------------------------------------------------------

    async def run(self) -> None:
        """Exchange membership, and be the head while the lease is held, until cancelled."""
        if not self.role.is_enabled:
            return
        renewing = asyncio.create_task(self.role.lease.run())
        try:
            while True:
                await self.attempt()
                await asyncio.sleep(EXCHANGE_SECONDS)
        finally:
            # The lease last: until it is released, this collector may store the incidents for the next head.
            self.records.feed.close()
            await self._end_term()
            renewing.cancel()
            await databases.call_database(self.role.lease.release)

    async def attempt(self) -> bool:
        """Exchange once; false if it failed, which is logged when the problem changes."""
        problem = ""
        try:
            await self.exchange()
        except databases.UnusableLedgerError as error:
            problem = str(error)  # the head continues to show views
        except Exception as fault:  # noqa: BLE001 - the collector must continue to receive frames
            is_expected = isinstance(fault, membership.NameInUseError)
            problem = str(fault) if is_expected else f"{type(fault).__name__}: {fault}"
            # Another collector may be able to be the head: this one does not wait until its lease expires.
            await self._end_term()
            await databases.call_database(self.role.lease.release)
        if problem and problem != self._problem:
            log.error("cluster_exchange_failed", collector=self.role.name, problem=problem)
        self._problem = problem
        return not problem

    async def exchange(self) -> None:
        """Write this collector's row, take or renew the lease, and follow the collectors that are present.

        Raises UnusableLedgerError, NameInUseError.
        """
        is_held, self.role.members = await databases.call_database(
            self._exchange, self._own_nodes()
        )
        if self.role.state and self.role.state.task and self.role.state.task.done():
            task = self.role.state.task
            problem = "cancelled" if task.cancelled() else repr(task.exception())
            advice = "this or another collector begins the next one"
            log.error("head_term_failed", problem=problem, advice=advice)
            # The failed term is not continued: its state may be incomplete.
            await self._end_term()
            await databases.call_database(self.role.lease.release)
            return
        if is_held and self.role.state is None:
            await self._begin_term()
        elif not is_held and self.role.state is not None:
            await self._end_term()
        if self.role.state is not None:
            self._follow(self.role.state)

    @property
    def other_head(self) -> membership.ClusterMember | None:
        """The other collector that is the head; None while there is none, or while this one begins."""
        head = self.role.members.head
        return head if head and head.name != self.role.name else None

    def _own_nodes(self) -> dict[str, int] | None:
        """Return the nodes to be written; None if they were written before."""
        nodes = self.core.fleet.nodes
        is_due = time.monotonic() >= self._written_at + WRITE_NODES_SECONDS
        if not is_due and self._written_nodes == nodes.keys():
            return None
        # Before the write: `_exchange` resets it if it fails.
        self._written_nodes, self._written_at = set(nodes), time.monotonic()
        return {name: node.timestamp_ns for name, node in nodes.items()}

    def _exchange(self, nodes: dict[str, int] | None) -> tuple[bool, membership.ClusterMembers]:
        database = self.open()
        own_member = membership.ClusterMember(
            self.role.name,
            self.settings.cluster.advertised_url.rstrip("/"),
            self.role.lease.holder,
            0.0,
        )
        try:
            content = None if nodes is None else membership.encode_nodes(nodes)
            exchange = partial(membership.exchange, database, own_member)
            is_head = self.role.state is not None
            members = exchange(content, self.refresher.wall_ns, reads_nodes=is_head)
            is_held = self.role.lease.take(database) is not None
            # Only the head needs the nodes of the others, which are many: a new one reads them at once.
            is_new = is_held and not is_head
            return is_held, exchange(None, self.refresher.wall_ns) if is_new else members
        except (databases.UnusableLedgerError, membership.NameInUseError):
            # Not 0: the monotonic clock may be less than the period after a start of the machine.
            self._written_at = -WRITE_NODES_SECONDS
            raise

    def _store_files(self) -> None:
        """Store the incidents for the next head."""
        term, state = self.role.lease.term, self.role.state
        if term and state and state.stored is not None:
            # Stored again after the next period; after a term, the next head begins with what was stored last.
            with contextlib.suppress(leases.LostLeaseError, databases.UnusableLedgerError, OSError):
                directory = state.diagnosis.directory
                head_files.store_files(self.open(), term, directory, state.stored)

    async def _run_storing(self) -> None:
        """Store the incidents periodically: they may be large, and must delay no renewal of the lease."""
        while True:
            await asyncio.sleep(EXCHANGE_SECONDS)
            await databases.call_database(self._store_files)

    # A term of the head -------------------------------------------------------------------------

    async def _begin_term(self) -> None:
        """Begin with an empty state."""
        directory = self.directory / "head"
        core = await run_in_thread(collector_state.open_empty_state, directory)
        state = HeadState(core, self.refresher, self.own_diagnosis, directory / "diagnosis")
        for listener in self.on_term:
            listener(state)
        state.task = asyncio.create_task(self._run_term(state))
        self.role.state = state
        log.info("head_term_started", collector=self.role.name, epoch=self.role.lease.epoch)

    async def _run_term(self, state: HeadState) -> None:
        if self.settings.diagnosis.enabled:
            directory = state.diagnosis.directory
            await databases.call_database(lambda: head_files.read_files(self.open(), directory))
            # Only from here on: before, an empty directory would replace the files of the former head.
            state.stored = {}
            await run_in_thread(state.diagnosis.open)
            state.work += (state.diagnosis.run, self._run_storing)
        account = followed_account.FollowedAccount(
            state.core.evidence,
            state.live,
            self.open_stores,
            self.settings.metering,
            self.refresher.wall_ns,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(state.refresher.run())
            group.create_task(account.run())
            for run in state.work:
                group.create_task(run())

    async def _end_term(self) -> None:
        """End the term. A failure is logged: another term begins with an empty state."""
        state = self.role.state
        if state is None:
            return
        tasks = [state.task, *(each.task for each in state.followed.values())]
        running = [task for task in tasks if task]
        for task in running:
            task.cancel()
        # All have ended before the files are closed and stored.
        await asyncio.gather(*running, return_exceptions=True)
        if self.settings.diagnosis.enabled:
            try:
                await databases.call_database(self._store_files)
            except Exception as fault:  # noqa: BLE001 - see above
                log.error("head_term_end_failed", problem=f"{type(fault).__name__}: {fault}")
        self.role.state = None
        log.info("head_term_ended", collector=self.role.name)

    def _follow(self, state: HeadState) -> None:
        """Follow all collectors that are present; a collector with another URL is followed there."""
        wall_ns = self.refresher.wall_ns
        present = {member.name: member for member in self.role.members.members}
        for name in [*state.followed]:
            each = state.followed[name]
            # At another URL there may be another state: it is read from its beginning.
            if name not in present or present[name].url != each.member.url:
                if each.task:
                    each.task.cancel()
                del state.followed[name]
        for name, member in present.items():
            if name in state.followed:
                state.followed[name].member = member
                continue
            each = state.followed[name] = record_exchange.FollowedCollector(
                member, partial(self._follower, state, name), state.add_last_known, wall_ns
            )
            is_own = name == self.role.name
            read = each.read_own(self.records.feed) if is_own else each.read_other(self.access)
            each.task = asyncio.create_task(read)
        state.add_last_known()

    def _follower(self, state: HeadState, name: str) -> feed_follower.FeedFollower:
        return feed_follower.FeedFollower(
            state.core,
            self.settings.limits,
            name,
            state.owners,
            lambda: self.role.members.lead_ns(self.role.name, name),
            state.copies,
        )
