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
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import structlog
from aiohttp import web

from collector import config, view_refresh, work_limits
from collector.access.credentials import Credential
from collector.account.live_account import LiveAccount
from collector.diagnosis.incident_table import IncidentTable
from collector.finalization import followed_account, ledger_days
from collector.fleet import view_cells
from collector.ledger import database as databases, leases, membership
from collector.live_diagnosis import diagnosis_engine, diagnosis_service
from collector.state import collector_state, feed_follower, record_feed
from collector.workloads.job_readings import MeasureAverages
from railscope import server_connections, settings as setting_files, timestamps
from railscope.service import run_in_thread

log = structlog.get_logger(__name__)

RECORDS_PATH = "/v1/records"
EXCHANGE_SECONDS = leases.RENEWAL_SECONDS
SILENCE_SECONDS = 10.0
"""Time without a heartbeat after which a collector is unknown."""
RETRY_SECONDS = 1.0
WRITE_NODES_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class FollowedCollector:
    """One collector whose records the head reads; for its own, without a connection."""

    member: membership.ClusterMember
    follower: feed_follower.FeedFollower
    task: asyncio.Task[None] | None = None
    problem: str = "no snapshot yet"
    """Reason why its nodes are unknown; empty if they are not."""

    def part(self, nodes: int) -> membership.CollectorPart:
        """Return the collector as views state it."""
        name, url = self.member.name, self.member.url
        offset_seconds = round(self.follower.shift_ns / timestamps.SECOND_NS, 3)
        return membership.CollectorPart(
            name, url, nodes, not self.problem, self.problem, offset_seconds
        )


@dataclass(slots=True, eq=False)
class HeadState:
    """State, views and diagnosis of all nodes, during one term of the head."""

    core: collector_state.CollectorState
    live: LiveAccount
    refresher: view_refresh.ViewRefresher
    diagnosis: diagnosis_service.DiagnosisService
    account: followed_account.FollowedAccount
    followed: dict[str, FollowedCollector] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """Collector that reported each node last."""
    handlers: dict[str, RequestHandler] = field(default_factory=dict)
    """Handlers of API and console."""
    work: list[Callable[[], Coroutine[None, None, None]]] = field(default_factory=list)
    """Further work during the term."""
    stored: dict[str, int] | None = None
    """Files of the diagnosis that the database has, with the times of their changes; None until they were read."""
    task: asyncio.Task[None] | None = None

    def extent(self) -> membership.ClusterExtent:
        """Return the collectors with their nodes; those of a collector that is unknown count where they are now."""
        counts = dict.fromkeys(self.followed, 0)
        for node in self.core.fleet.nodes:
            owner = self.owners.get(node)
            if owner in counts:
                counts[owner] += 1
        parts = (each.part(counts[name]) for name, each in sorted(self.followed.items()))
        return membership.ClusterExtent(tuple(parts))

    def unknown_nodes(self) -> set[str]:
        """Return the nodes of the collectors that do not respond."""
        unknown = {name for name, each in self.followed.items() if each.problem}
        owners = self.owners.copy() if unknown else {}  # the event loop adds nodes meanwhile
        return {node for node, owner in owners.items() if owner in unknown}

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
class ClusterHead:
    """Takes the lease of the head, and shows all nodes while it holds it."""

    settings: config.CollectorSettings
    directory: Path
    core: collector_state.CollectorState
    """State of this collector's own nodes."""
    refresher: view_refresh.ViewRefresher
    own_diagnosis: diagnosis_service.DiagnosisService
    """Diagnosis of a collector that is alone."""
    open: Callable[[], databases.Database]
    open_stores: Callable[[], ledger_days.MeteringStores]
    prepare: Callable[[HeadState], None] = lambda _state: None
    """Adds the handlers of API and console to a state, and further work."""
    feed: record_feed.RecordFeed = field(init=False)
    lease: leases.Lease = field(default_factory=lambda: leases.Lease(membership.HEAD))
    state: HeadState | None = None
    """None while another collector is the head."""
    members: membership.ClusterMembers = field(
        default_factory=lambda: membership.ClusterMembers((), None)
    )
    _headers: dict[str, str] = field(default_factory=dict)
    _written_nodes: set[str] = field(default_factory=set)
    _written_at: float = 0.0
    _is_failing: bool = False

    def __post_init__(self) -> None:
        """Check the settings. Raises SettingsError."""
        cluster = self.settings.cluster
        self.feed = record_feed.RecordFeed(self.core, self.refresher.wall_ns)
        if not self.is_enabled:
            return
        setting_files.check_http_url("cluster.advertised_url", cluster.advertised_url)
        if not cluster.token_file:
            message = "missing cluster.token_file: expected a token of role collector; fix: `railscope collector token --role collector NAME`"
            raise setting_files.SettingsError(message)
        token = setting_files.read_named_file("cluster.token_file", cluster.token_file, "ascii")
        self._headers = {"Authorization": f"Bearer {token}"}
        server_connections.client_tls("cluster.ca_file", cluster.ca_file)

    @property
    def is_enabled(self) -> bool:
        """True if this collector is one of several."""
        return bool(self.settings.cluster.advertised_url)

    @property
    def name(self) -> str:
        """Name of this collector."""
        cluster = self.settings.cluster
        return cluster.name or urlsplit(cluster.advertised_url).hostname or socket.gethostname()

    @property
    def diagnoses_alone(self) -> bool:
        """True if this collector diagnoses its own nodes, because there are no others."""
        return self.settings.diagnosis.enabled and not self.is_enabled

    @property
    def diagnosis(self) -> diagnosis_service.DiagnosisService | None:
        """Diagnosis that runs here; None if another collector is the head."""
        if not self.is_enabled:
            return self.own_diagnosis
        return self.state.diagnosis if self.state else None

    @property
    def incidents(self) -> IncidentTable:
        """Incidents as of the last evaluation; none if another collector evaluates them."""
        return self.diagnosis.table if self.diagnosis else IncidentTable()

    @property
    def notified(self) -> IncidentTable:
        """Incidents of which this collector notifies: none once its lease has expired."""
        return self.incidents if self.lease.is_valid else IncidentTable()

    def diagnosis_cells(self) -> Iterator[view_cells.ViewCell]:
        """Yield the metrics of the diagnosis that runs here."""
        if self.settings.diagnosis.enabled and self.diagnosis:
            yield from self.diagnosis.cells()

    # Records for the head -----------------------------------------------------------------------

    async def serve(self, request: web.Request, _: Credential) -> web.StreamResponse:
        """Send the records of this collector, until the reader closes the connection."""
        if not self.is_enabled:
            return web.json_response(
                {"error": "not one of several collectors: expected cluster.advertised_url"},
                status=HTTPStatus.NOT_FOUND,
            )
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for part in self.feed.parts():
                await response.write(part)
        return response

    # Membership and lease -----------------------------------------------------------------------

    async def run(self) -> None:
        """Exchange membership, and be the head while the lease is held, until cancelled."""
        if not self.is_enabled:
            return
        try:
            while True:
                try:
                    await self.exchange()
                except Exception as fault:  # noqa: BLE001 - the collector must continue to receive frames
                    log.error("cluster_exchange_failed", problem=f"{type(fault).__name__}: {fault}")
                    await self._end_term()
                    await databases.call_database(self.lease.release)
                await asyncio.sleep(EXCHANGE_SECONDS)
        finally:
            self.feed.close()
            await self._end_term()
            await databases.call_database(self.lease.release)

    async def exchange(self) -> None:
        """Write this collector's row, take or renew the lease, and follow the collectors that are present."""
        try:
            is_held, self.members = await databases.call_database(self._exchange, self._own_nodes())
        except databases.UnusableLedgerError as error:
            await databases.call_database(self.lease.renew)
            if not self._is_failing:
                log.error("cluster_exchange_failed", problem=str(error))
            self._is_failing = True
            return
        self._is_failing = False
        if self.state and self.state.task and self.state.task.done():
            problem = repr(self.state.task.exception())
            log.error("head_term_failed", problem=problem, advice="it begins again")
            await self._end_term()
        if is_held and self.state is None:
            await self._begin_term()
        elif not is_held and self.state is not None:
            await self._end_term()
        if self.state is not None:
            self._follow(self.state)

    def _own_nodes(self) -> dict[str, int] | None:
        """Return the nodes to be written; None if they were written before."""
        nodes = self.core.fleet.nodes
        is_due = time.monotonic() >= self._written_at + WRITE_NODES_SECONDS
        if not is_due and self._written_nodes == nodes.keys():
            return None
        self._written_nodes, self._written_at = set(nodes), time.monotonic()
        return {name: node.timestamp_ns for name, node in nodes.items()}

    def _exchange(self, nodes: dict[str, int] | None) -> tuple[bool, membership.ClusterMembers]:
        database = self.open()
        own_member = membership.ClusterMember(
            self.name, self.settings.cluster.advertised_url.rstrip("/"), self.lease.holder, 0.0
        )
        try:
            content = None if nodes is None else membership.encode_nodes(nodes)
            is_held = self.lease.take(database) is not None
            self._store_files()
            return is_held, membership.exchange(database, own_member, content)
        except databases.UnusableLedgerError:
            self._written_at = -WRITE_NODES_SECONDS
            raise

    def _store_files(self) -> None:
        """Store the incidents for the next head."""
        term, state = self.lease.term, self.state
        if term and state and state.stored is not None:
            with contextlib.suppress(leases.LostLeaseError, databases.UnusableLedgerError, OSError):
                directory = state.diagnosis.directory
                membership.store_files(self.open(), term, directory, state.stored)

    # A term of the head -------------------------------------------------------------------------

    async def _begin_term(self) -> None:
        """Begin with an empty state."""
        directory = self.directory / "head"
        core = await run_in_thread(collector_state.open_empty_state, directory)
        own_live, watch = self.refresher.live, self.refresher.watch
        pattern = own_live.pod_job_pattern
        live = LiveAccount(core.evidence, own_live.files, is_ready=False, pod_job_pattern=pattern)
        time_constant_seconds = self.settings.straggler_time_constant_seconds
        refresher = replace(
            self.refresher,
            core=core,
            live=live,
            views=view_refresh.CollectorViews(),
            watch=replace(watch, core=core) if watch else None,
            averages=MeasureAverages(time_constant_seconds),
        )
        diagnosis = replace(
            self.own_diagnosis,
            core=core,
            directory=directory / "diagnosis",
            jobs=lambda: live.roster.jobs() if live.is_ready else (),
            queue=diagnosis_engine.BatchQueue(),
        )
        account = followed_account.FollowedAccount(
            core.evidence, live, self.open_stores, self.settings.metering, self.refresher.wall_ns
        )
        state = HeadState(core, live, refresher, diagnosis, account)
        refresher.extent = state.extent
        diagnosis.engine.unknown_nodes = state.unknown_nodes
        self.prepare(state)
        state.task = asyncio.create_task(self._run_term(state))
        self.state = state
        log.info("head_term_started", collector=self.name, epoch=self.lease.epoch)

    async def _run_term(self, state: HeadState) -> None:
        if self.settings.diagnosis.enabled:
            directory = state.diagnosis.directory
            await databases.call_database(lambda: membership.read_files(self.open(), directory))
            state.stored = {}
            await run_in_thread(state.diagnosis.open)
        async with asyncio.TaskGroup() as group:
            group.create_task(state.refresher.run())
            group.create_task(state.account.run())
            if self.settings.diagnosis.enabled:
                for run in (state.diagnosis.run, *state.work):
                    group.create_task(run())

    async def _end_term(self) -> None:
        state = self.state
        if state is None:
            return
        tasks = [state.task, *(each.task for each in state.followed.values())]
        running = [task for task in tasks if task]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self.settings.diagnosis.enabled:
            await run_in_thread(state.diagnosis.close)
            await databases.call_database(self._store_files)
        self.state = None
        log.info("head_term_ended", collector=self.name)

    def _follow(self, state: HeadState) -> None:
        """Follow all collectors that are present; a collector with another URL is followed there."""
        present = {member.name: member for member in self.members.members}
        for name in [*state.followed]:
            each = state.followed[name]
            if name not in present or present[name].url != each.member.url:
                if each.task:
                    each.task.cancel()
                del state.followed[name]
        for name, member in present.items():
            if name in state.followed:
                state.followed[name].member = member
                continue
            each = state.followed[name] = FollowedCollector(member, self._follower(state, name))
            read = self._read_own if name == self.name else self._read_other
            each.task = asyncio.create_task(read(state, each))
        state.add_last_known()

    async def _read_own(self, state: HeadState, each: FollowedCollector) -> None:
        """Apply the records of this collector."""
        while True:
            try:
                await self._apply(state, each, _reader_of(self.feed.parts()))
            except Exception as error:  # noqa: BLE001 - other collectors continue, and this one again
                each.problem = f"{type(error).__name__}: {error}"
                log.warning("collector_disconnected", collector=self.name, problem=each.problem)
            await asyncio.sleep(RETRY_SECONDS)

    async def _read_other(self, state: HeadState, each: FollowedCollector) -> None:
        """Read the records of another collector, again after each failure."""
        timeout = aiohttp.ClientTimeout(sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
        tls = server_connections.client_tls("cluster.ca_file", self.settings.cluster.ca_file)
        url = each.member.url + RECORDS_PATH
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            while True:
                problem = "the connection was closed"
                try:
                    async with session.get(url, ssl=tls, allow_redirects=False) as response:
                        if response.status == HTTPStatus.OK:
                            await self._apply(state, each, response.content.readexactly)
                        problem = f"status {response.status}: expected 200"
                except record_feed.FeedError as error:
                    problem = str(error)
                except TimeoutError:
                    problem = f"no response for {SILENCE_SECONDS:g} s"
                except Exception as error:  # noqa: BLE001 - other collectors continue, and this one again
                    problem = f"{type(error).__name__}: {error}"
                if not each.problem:
                    log.warning(
                        "collector_disconnected", collector=each.member.name, problem=problem
                    )
                each.problem = problem
                state.add_last_known()
                await asyncio.sleep(RETRY_SECONDS)

    async def _apply(
        self, state: HeadState, each: FollowedCollector, read: Callable[[int], Awaitable[bytes]]
    ) -> None:
        """Apply parts until they end. Raises record_feed.FeedError, and as `read`."""
        follower = each.follower = self._follower(state, each.member.name)
        slices = work_limits.TimeSlices()
        async for part in record_feed.read_parts(read):
            await follower.apply(part, slices)
            if follower.is_complete and each.problem:
                each.problem = ""
                log.info(
                    "collector_included",
                    collector=follower.name,
                    nodes=len(follower.nodes),
                    rejected=follower.rejected,
                    problem=follower.problem,
                )

    def _follower(self, state: HeadState, name: str) -> feed_follower.FeedFollower:
        return feed_follower.FeedFollower(
            state.core, self.settings.limits, self.refresher.wall_ns, name, state.owners
        )


def _reader_of(parts: AsyncIterator[bytes]) -> Callable[[int], Awaitable[bytes]]:
    """Return a function that reads exact sizes of encoded parts. It raises EOFError."""
    buffer = bytearray()

    async def read(size: int) -> bytes:
        while len(buffer) < size:
            part = await anext(parts, None)
            if part is None:
                message = "the head does not keep up with its own records"
                raise EOFError(message)
            buffer.extend(part)
        taken = bytes(buffer[:size])
        del buffer[:size]
        return taken

    return read
