"""Layers of a collector, from the bottom up: each function takes only lower layers.

A part that informs later parts has a list of listeners, to which these append.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp.web import Application, Request, StreamResponse

from railscope import listen_address, server_connections, tls_contexts
from railscope.catalog.collector import DAMAGED_EVIDENCE, LOST_FILES
from railscope.settings import state_directory
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_collector import (
    active_collector,
    administrator_files,
    audit_service,
    clock as collector_clock,
    config,
    state_store,
    tables,
    view_refresh,
)
from railscope_collector.access import trial_access
from railscope_collector.access.access_trail import AccessTrail
from railscope_collector.access.authentication import BrowserSessions
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.access.recorded_credentials import RecordedCredentials
from railscope_collector.access.tokens_file import TokensFile
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.audit import clock_records
from railscope_collector.billing import billing_reader
from railscope_collector.console.console_server import Console
from railscope_collector.console.page_shell import PageShell
from railscope_collector.console.page_table import CLUSTER_ROUTES
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.evidence import (
    evidence_records,
    fact_store,
    file_versions,
    former_facts,
    waiting_evidence,
)
from railscope_collector.files.seller_file import find_seller
from railscope_collector.finalization import day_finalizer, day_retention
from railscope_collector.fleet import schemas
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.framelog import framelog
from railscope_collector.http import (
    active_routing,
    audit_api,
    billing_api,
    collector_metrics,
    identity_conflicts,
    ingest,
    read_api,
    write_probes,
)
from railscope_collector.http.access_control import RequestAuthorizer, make_application
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.http.route_table import Route, RouteHandler
from railscope_collector.inventory.inventory_watch import InventoryWatch
from railscope_collector.ledger import ledger_store
from railscope_collector.ledger.database import SharedDatabase
from railscope_collector.ledger.database_location import ledger_url
from railscope_collector.live_diagnosis.diagnosis_service import DiagnosisService
from railscope_collector.sinks import incident_webhook, influx
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.state_reader import StateReader
from railscope_collector.state.state_snapshots import StateSnapshots
from railscope_collector.switches import all_switches, switch_polling
from railscope_collector.workloads import measure_averages, pod_jobs


@dataclass(frozen=True, slots=True)
class StorageLayer:
    """State, frame log, clock and database."""

    settings: config.CollectorSettings
    directory: Path
    core: CollectorState
    role: active_collector.ActiveRole
    clock: collector_clock.CollectorClock
    store: state_store.StateStore
    lost: dict[str, str]
    """Problem of each file of the state directory that was lost before the start."""
    log: framelog.FrameLog
    reader: StateReader
    identity_conflicts: identity_conflicts.IdentityConflictDetector
    database: SharedDatabase
    quarantine: evidence_records.EvidenceQuarantine
    probes: list[write_probes.WriteProbe]

    def open_stores(self) -> day_finalizer.MeteringStores:
        """Return the ledger, and facts and files in its database. Blocking; raises UnusableLedgerError."""
        database = self.database.open()
        self.core.receipts.open(database)
        today = self.clock.now_ns() // DAY_NS
        days = range(today - self.settings.metering.max_revision_age_days, today)
        former_facts.copy_once(database, self.quarantine, days)
        return day_finalizer.MeteringStores(
            ledger_store.Ledger(database),
            fact_store.FactStore(database, self.quarantine, self.role.check_term),
            file_versions.FileStore(database),
        )

    def cells(self) -> Iterator[ViewCell]:
        """Yield the metrics of damaged files and rows."""
        yield ViewCell(LOST_FILES, (), len(self.lost))
        yield ViewCell(DAMAGED_EVIDENCE, (), len(self.quarantine.rows))


def build_storage(
    settings: config.CollectorSettings,
    wall_ns: Callable[[], int],
    find_write_problem: Callable[[Path], str],
) -> StorageLayer:
    """Return the layer below all others. Raises SettingsError."""
    directory, limits, sizes = state_directory(settings), settings.limits, settings.frame_log
    store = state_store.StateStore(directory)
    core = CollectorState(schemas.StoredSchemas(store))
    core.schemas.shown_shapes = core.fleet.shapes
    database = SharedDatabase(ledger_url(settings.ledger, directory), tables.metadata)
    role = active_collector.ActiveRole.from_settings(settings, directory, core, database.open)
    stale_ns = round(settings.stale_seconds * SECOND_NS)
    clock = collector_clock.CollectorClock(
        directory,
        lambda now_ns: core.fleet.clock_offsets_ns(now_ns - stale_ns),
        wall_ns=wall_ns,
    )
    log = framelog.FrameLog(directory / "frames", sizes.segment_bytes, sizes.max_bytes)
    snapshots = StateSnapshots(
        store,
        core,
        log,
        (limits.max_frame_age_days + 1) * DAY_NS,
        reason_to_withhold=lambda: clock.hold_reason,
    )
    waiting = waiting_evidence.WaitingEvidence(store, limits)
    reader = StateReader(core, log, snapshots, waiting, limits)
    conflicts = identity_conflicts.IdentityConflictDetector(core.evidence.problems.report)
    core.on_envelope.append(conflicts.check)
    return StorageLayer(
        settings,
        directory,
        core,
        role,
        clock,
        store,
        log.lost,
        log,
        reader,
        conflicts,
        database,
        evidence_records.EvidenceQuarantine(),
        write_probes.make_probes(database.open, find_write_problem, log.directory),
    )


@dataclass(frozen=True, slots=True)
class AccessLayer:
    """Credentials, administrators' files and the audit log."""

    storage: StorageLayer
    tokens: TokensFile
    trial: trial_access.TrialAccess | None
    files: administrator_files.AdministratorFiles
    audit: audit_service.AuditService
    access: AccessTrail
    clock_records: clock_records.ClockRecords


def build_access(storage: StorageLayer, reload: Callable[[], None]) -> AccessLayer:
    """Return the credentials, and the audit log, which records their changes. Raises SettingsError."""
    settings = storage.settings
    tokens = TokensFile(Path(settings.tokens_file))
    trial = trial_access.TrialAccess.from_settings(settings, storage.directory)

    def listed_nodes() -> set[str]:
        """Return the nodes that have a credential."""
        listed = (entry.credential for entry in tokens.credentials.entries.values())
        nodes = {credential.name for credential in listed if credential.role is Role.NODE}
        return nodes.union(trial.nodes if trial else ())

    files = administrator_files.AdministratorFiles.from_settings(settings)
    audit = audit_service.AuditService.from_directory(
        settings,
        storage.reader,
        listed_nodes,
        storage.database,
        files.find_tenant,
        storage.clock,
        storage.store,
        storage.role,
    )
    access = AccessTrail(audit.trail, RecordedCredentials(storage.directory / "identities"))
    tokens.on_change.append(access.set_credentials)
    records = clock_records.ClockRecords(audit.trail, storage.clock, reload)
    return AccessLayer(storage, tokens, trial, files, audit, access, records)


@dataclass(frozen=True, slots=True)
class MeteringLayer:
    """Account, days of the ledger, and deletion of old evidence."""

    live: LiveAccount
    finalizer: day_finalizer.DayFinalizer
    retention: day_retention.DayRetention


def build_metering(access: AccessLayer) -> MeteringLayer:
    """Return the writers of the ledger. Raises SettingsError."""
    storage, files, check = access.storage, access.files, access.audit.watch.check
    settings, core, clock = storage.settings, storage.core, storage.clock
    live = LiveAccount(
        core.evidence,
        lambda: files.evidence,
        pod_job_pattern=pod_jobs.compile_pattern(settings.pod_job_pattern),
    )
    finalizer = day_finalizer.DayFinalizer(
        core.evidence,
        storage.reader.waiting,
        live,
        storage.open_stores,
        files.texts,
        settings.metering,
        clock.now_ns,
        lambda: clock.hold_reason,
        check,
    )
    retention = day_retention.DayRetention(
        settings,
        lambda: fact_store.FactStore(storage.database.open(), storage.quarantine),
        clock,
        check,
    )
    return MeteringLayer(live, finalizer, retention)


@dataclass(frozen=True, slots=True)
class ReceivingLayer:
    """Authorization and receipt of frames, and the switches, whose frames are received like those of agents."""

    receiver: ingest.Ingest
    authorizer: RequestAuthorizer
    connections: server_connections.ServerConnections
    switches: all_switches.AllSwitches


def build_receiving(access: AccessLayer, read_only: str) -> ReceivingLayer:
    """Return what accepts data. Blocking; raises SettingsError."""
    storage, tokens, settings = access.storage, access.tokens, access.storage.settings
    core, clock, limits = storage.core, storage.clock, settings.limits
    receiver = ingest.Ingest(
        core,
        storage.log,
        storage.reader,
        limits,
        access.audit.trail.record_denial,
        clock.now_ns,
        lambda: clock.doubted_since_ns,
        lambda: bool(clock.problem),
        closed_reason=read_only,
    )
    shell = PageShell.of(BrowserSessions(), access.trial)

    def count_rejection(route: Route | None, reason: str) -> None:
        """Count a denied sender among the rejected envelopes."""
        if route and route.name == "frames":
            core.counts.reject(reason)

    authorizer = RequestAuthorizer(
        lambda: tokens.credentials,
        access.access,
        settings.allow_anonymous_read,
        trial=access.trial,
        on_denial=count_rejection,
        sessions=shell.sessions,
        browser_page=shell.browser_page,
    )
    connections = server_connections.ServerConnections.within_descriptors(
        limits.connections, limits.connections_per_address
    )
    switches = all_switches.AllSwitches.from_settings(
        settings, clock.now_ns, lambda: not storage.role.waits, receiver.receive_own
    )
    return ReceivingLayer(receiver, authorizer, connections, switches)


@dataclass(frozen=True, slots=True)
class ViewsLayer:
    """Views and diagnosis."""

    refresher: view_refresh.ViewRefresher
    diagnosis: DiagnosisService


def build_views(
    access: AccessLayer, metering: MeteringLayer, polling: switch_polling.SwitchPolling
) -> ViewsLayer:
    """Return what follows from the state. Raises SettingsError."""
    storage, files, live = access.storage, access.files, metering.live
    settings, core = storage.settings, storage.core
    refresher = view_refresh.ViewRefresher(
        core,
        live,
        settings.stale_seconds,
        settings.view_refresh_seconds,
        is_known=lambda: not files.unknown,
        quotas=lambda: files.quotas.content,
        watch=InventoryWatch(core, files.desired_state, lambda: files.retired.content),
        max_jobs=settings.max_jobs,
        averages=measure_averages.MeasureAverages(settings.straggler_time_constant_seconds),
        wall_ns=storage.clock.now_ns,
    )
    diagnosis = DiagnosisService(
        core,
        storage.directory / "diagnosis",
        access.audit.trail,
        storage.clock.now_ns,
        live.roster.jobs,
        settings.diagnosis.thresholds,
        polling.cabling,
    )
    return ViewsLayer(refresher, diagnosis)


def build_api(
    access: AccessLayer, metering: MeteringLayer, receiving: ReceivingLayer, views: ViewsLayer
) -> read_api.ViewApi:
    """Return the API of the own nodes, with the metrics of all parts so far."""
    storage, refresher, diagnosis = access.storage, views.refresher, views.diagnosis
    settings, core, switches = storage.settings, storage.core, receiving.switches
    role, waiting = storage.role, view_refresh.CollectorViews()

    def is_idle() -> bool:
        """True if this collector does not diagnose."""
        return role.waits or not settings.diagnosis.enabled

    metrics = collector_metrics.CollectorMetrics(
        core,
        storage.log,
        access.files,
        metering.finalizer,
        access.audit.trail,
        access.tokens,
        receiving.connections,
        storage.identity_conflicts,
        storage.reader,
        (core.log_limit, receiving.receiver.log_limit, receiving.authorizer.log_limit),
        [
            access.audit.cells,
            metering.retention.cells,
            role.cells,
            lambda: () if is_idle() else diagnosis.cells(),
            switches.cells,
            storage.cells,
        ],
    )
    return read_api.ViewApi(
        core,
        metrics,
        # Those of a waiting collector would be stale.
        lambda: waiting if role.waits else refresher.views,
        lambda: IncidentTable() if role.waits else diagnosis.table,
        wall_ns=storage.clock.now_ns,
        write_probes=storage.probes,
        read_only=receiving.receiver.closed_reason,
        console=settings.console,
        switches=switches,
        progress=lambda: diagnosis.progress,
        tenant_of=access.files.find_tenant,
    )


@dataclass(frozen=True, slots=True)
class SinksLayer:
    """Senders of views and incidents to other programs."""

    api: read_api.ViewApi
    influx: influx.InfluxSink
    webhook: incident_webhook.IncidentWebhook


def build_sinks(access: AccessLayer, views: ViewsLayer, api: read_api.ViewApi) -> SinksLayer:
    """Return the sinks, and add their metrics to those of the API. Raises SettingsError."""
    storage, settings = access.storage, access.storage.settings
    diagnosis, refresher = views.diagnosis, views.refresher

    async def fresh_views() -> view_refresh.CollectorViews:
        """Return the views of the API, refreshed."""
        await refresher.refresh_for_answer()
        return api.views()

    sinks = SinksLayer(
        api,
        influx.InfluxSink(settings.influx, fresh_views),
        incident_webhook.IncidentWebhook(
            settings,
            # Once the lease has expired, another collector notifies.
            lambda: diagnosis.table if storage.role.may_notify() else IncidentTable(),
            lambda: diagnosis.decisions.notified,
        ),
    )
    members = sinks.influx, sinks.webhook
    api.metrics.parts.extend(member.cells for member in members)
    return sinks


@dataclass(frozen=True, slots=True)
class HttpLayer:
    """The application with all routes, behind the authorizer."""

    application: Application
    reading: ReadPool
    tls: ssl.SSLContext | None


def build_http(
    access: AccessLayer,
    receiving: ReceivingLayer,
    refresher: view_refresh.ViewRefresher,
    sinks: SinksLayer,
    open_books: Callable[[], billing_reader.BillingReader] | None,
) -> HttpLayer:
    """Return the surface. Raises SettingsError."""
    storage, settings, api = access.storage, access.storage.settings, sinks.api
    listen_address.split_address(settings.listen)
    find_seller(settings.billing.seller_file, ())
    tls, reading = settings.tls, ReadPool()
    context = tls_contexts.server_tls(tls.certificate_file, tls.key_file, tls.client_ca_file)
    books = billing_api.LedgerBooks(storage.database.open, settings.billing.seller_file)
    billing = billing_api.BillingApi(open_books or books.open, reading, access.access.record_export)
    audit = audit_api.AuditApi(access.audit.entries, reading)
    authorizer, receiver = receiving.authorizer, receiving.receiver

    console = Console.from_api(authorizer, api, billing, audit, access.audit.health)
    handlers = {
        **console.handlers(),
        "frames": receiver.handle,
        **api.handlers(),
        **access.audit.witness_api.handlers(),
    }

    def with_fresh_views(handler: RouteHandler) -> RouteHandler:
        """Return a handler of requests about nodes."""

        async def answer(request: Request, credential: Credential) -> StreamResponse:
            await refresher.refresh_for_answer()
            return await handler(request, credential)

        return answer

    handlers |= {name: with_fresh_views(handlers[name]) for name in ("metrics", *CLUSTER_ROUTES)}
    routed = active_routing.route_to_active(storage.role, handlers, CLUSTER_ROUTES)
    application = make_application(authorizer, routed, settings.limits.body_bytes, console.routes)
    return HttpLayer(application, reading, context)
