"""Composition of the collector: state, frame log, ingest, views, API, sinks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from aiohttp.web import Application

from railscope import (
    __version__,
    listen_address,
    server_connections,
    service,
    systemd,
    timestamps,
    tls_contexts,
)
from railscope.catalog.collector import DAMAGED_EVIDENCE, LOST_FILES
from railscope.catalog.incidents import WEBHOOK_FAILURES
from railscope.settings import state_directory
from railscope_collector import (
    administrator_files,
    audit_service,
    clock,
    config,
    tables,
    view_refresh,
)
from railscope_collector.access.access_trail import AccessTrail
from railscope_collector.access.credentials import Role
from railscope_collector.access.tokens_file import RecordedCredentials, TokensFile
from railscope_collector.access.trial_access import TrialAccess
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.audit import clock_records
from railscope_collector.billing import billing_reader
from railscope_collector.cluster_head import ClusterHead, HeadState
from railscope_collector.console import page_table
from railscope_collector.console.console_server import CLUSTER_PAGES, Console
from railscope_collector.evidence import (
    evidence_records,
    evidence_store,
    node_intervals,
    review_rules,
)
from railscope_collector.files.seller_file import find_seller
from railscope_collector.finalization import day_finalizer, day_writes, evidence_retention
from railscope_collector.fleet import schemas, view_cells
from railscope_collector.framelog import framelog, state_manifest
from railscope_collector.http import (
    audit_api,
    billing_api,
    cluster_routing,
    collector_metrics,
    identity_conflicts,
    ingest,
    read_api,
    web_server,
    write_probes,
)
from railscope_collector.http.access_control import RequestAuthorizer, make_application
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.http.route_table import Route
from railscope_collector.http.write_probes import RETRY_SECONDS, SpaceWatch, find_write_problem
from railscope_collector.inventory.inventory_watch import InventoryWatch
from railscope_collector.ledger import ledger_store
from railscope_collector.ledger.database import SharedDatabase, UnusableLedgerError
from railscope_collector.ledger.database_location import ledger_url
from railscope_collector.live_diagnosis.diagnosis_service import DiagnosisService
from railscope_collector.sinks import incident_webhook, influx, remote_write, slurm_drain
from railscope_collector.state.checkpoint_schedule import CheckpointSchedule
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.state_checkpointer import StateCheckpointer
from railscope_collector.switches import all_switches
from railscope_collector.work_limits import limit_memory_arenas, tune_interpreter
from railscope_collector.workloads import measure_averages, pod_jobs

log = structlog.get_logger(__name__)


@dataclass
class Collector:
    """One collector: `run` receives frames and serves views until cancelled."""

    settings: config.CollectorSettings
    on_listening: Callable[[str, int], None] = lambda _host, _port: None
    billing: Callable[[], billing_reader.BillingReader] | None = None
    """Opens the books for statements and exports; by default those of the collector's own ledger."""
    find_write_problem: Callable[[Path], str] = find_write_problem
    """Returns the reason why a directory cannot be written; empty if it can."""
    disk_retry_seconds: float = RETRY_SECONDS
    """Period of retries on a full disk."""
    read_only: str = ""
    """Reason why no data is accepted; empty if data is accepted."""
    reload: Callable[[], None] = lambda: None
    """Restarts the collector, to assign frames new timestamps by an accepted clock."""
    wall_ns: Callable[[], int] = time.time_ns
    """The wall clock of this machine."""

    def __post_init__(self) -> None:
        """Build all components. Raises SettingsError for a setting that cannot work."""
        self.directory = state_directory(self.settings)
        listen_address.split_address(self.settings.listen)
        self.tokens = TokensFile(Path(self.settings.tokens_file))
        self.trial = TrialAccess.from_file(self.settings.trial_token_file, self.directory)
        self.core = CollectorState(schemas.StoredSchemas(self.directory / "schemas"))
        self.core.is_draining = self.settings.draining
        limits = self.settings.limits
        self.checkpointer = StateCheckpointer(self.directory, self.core, limits=limits)
        self.identity_conflicts = identity_conflicts.IdentityConflictDetector(
            self.core.evidence.problems.report
        )
        self.core.on_envelope.append(self.identity_conflicts.check)
        sizes = self.settings.frame_log
        self.log = framelog.FrameLog(
            self.directory / "frames", sizes.segment_bytes, sizes.max_bytes
        )
        max_age_ns = (limits.max_frame_age_days + 1) * timestamps.DAY_NS
        self.checkpoints = CheckpointSchedule(self.checkpointer, self.log, max_age_ns)
        self.log.on_rotate = self.checkpoints.note_rotation
        self.state_files = state_files = state_manifest.StateFiles(self.directory)
        self.log.files = self.checkpoints.files = self.checkpointer.waiting.state_files = (
            state_files
        )
        self.database = SharedDatabase(
            ledger_url(self.settings.ledger, self.directory), tables.metadata
        )
        self.probes = write_probes.make_probes(
            self.database.open, self.find_write_problem, self.log.directory
        )
        self.audit = audit_service.AuditService.from_directory(
            self.settings, self.checkpointer, self._listed_nodes, self.database.open
        )
        self.trail = self.audit.trail
        self.access = AccessTrail(self.trail, RecordedCredentials(self.directory / "identities"))
        self.tokens.on_change = self.access.set_credentials
        self.entries = self.audit.entries
        find_seller(self.settings.billing.seller_file, ())  # raises SettingsError
        self.files = administrator_files.AdministratorFiles.from_settings(self.settings)
        self.audit.observed.tenant_of = self._find_tenant
        self.clock = clock.CollectorClock(
            self.directory,
            self._node_offsets,
            wall_ns=self.wall_ns,
            peer_offsets_ns=lambda: self.cluster.members.leads_over(self.cluster.name),
        )
        self.audit.retention.clock = self.clock
        self.clock_records = clock_records.ClockRecords(self.trail, self.clock, self.reload)
        self.checkpointer.reason_to_withhold = lambda: self.clock.hold_reason
        self.live = LiveAccount(
            self.core.evidence,
            lambda: self.files.evidence,
            is_ready=False,
            pod_job_pattern=pod_jobs.compile_pattern(self.settings.pod_job_pattern),
        )
        self.finalizer = day_finalizer.DayFinalizer(
            self.core.evidence,
            self.live,
            self._metering_stores,
            self.files.texts,
            self.settings.metering,
            self.directory / "evidence.seen",
            self.clock.now_ns,
            lambda: self.clock.hold_reason,
            self.audit.watch.check,
            self._set_decisions,
            self.checkpointer.waiting,
        )
        self.retention = evidence_retention.EvidenceRetention(
            self.settings, self.database.open, self.clock, self.audit.watch.check
        )
        self.refresher = view_refresh.ViewRefresher(
            self.core,
            self.live,
            self.settings.stale_seconds,
            self.settings.view_refresh_seconds,
            is_known=lambda: not self.files.unknown,
            quotas=lambda: self.files.quotas.content,
            watch=InventoryWatch(
                self.core, self.files.desired_state, lambda: self.files.retired.content
            ),
            max_jobs=self.settings.max_jobs,
            averages=measure_averages.MeasureAverages(
                self.settings.straggler_time_constant_seconds
            ),
            wall_ns=self.clock.now_ns,
        )
        self.diagnosis = DiagnosisService(
            self.core,
            self.directory / "diagnosis",
            self.trail,
            self.clock.now_ns,
            lambda: self.live.roster.jobs() if self.live.is_ready else (),
            self.settings.diagnosis.thresholds,
            lambda: self.switches.polling.cabling,
        )
        self.webhook = incident_webhook.IncidentWebhook(
            self.settings, lambda: self.diagnosis.table, self.diagnosis.decisions.notified
        )
        self.cluster = ClusterHead(
            self.settings,
            self.directory,
            self.core,
            self.refresher,
            self.diagnosis,
            self.database.open,
            self._metering_stores,
        )
        slurm_drain.check_settings(self.settings)
        self.drainer = slurm_drain.SlurmDrainer(
            self.settings.slurm, self.trail, self.clock.now_ns, leads=self.cluster.leads
        )
        self.reading = ReadPool()
        self.quarantine = evidence_records.EvidenceQuarantine()
        self.connections = server_connections.ServerConnections.within_descriptors(
            limits.connections, limits.connections_per_address
        )
        self.books = billing_api.LedgerBooks(self.database.open, self.settings.billing.seller_file)
        tls = self.settings.tls
        self._tls = tls_contexts.server_tls(tls.certificate_file, tls.key_file, tls.client_ca_file)
        self.sink = influx.InfluxSink(self.settings.influx, lambda: self.refresher.views)
        self.remote_write = remote_write.RemoteWriteSink.from_settings(self.settings, self.core)
        self.switches = all_switches.AllSwitches.from_settings(
            self.settings, self.clock.now_ns, self.cluster.leads
        )

    def _node_offsets(self) -> list[int]:
        """Return the lead of the wall clock of each reporting node over the collector's, in nanoseconds."""
        from_ns = self.clock.now_ns() - round(self.settings.stale_seconds * timestamps.SECOND_NS)
        nodes = self.core.fleet.nodes.values()
        return [node.clock_offset_ns for node in nodes if node.timestamp_ns >= from_ns]

    def _listed_nodes(self) -> set[str]:
        """Return the nodes that have a credential."""
        entries = self.tokens.credentials.entries.values()
        listed = {entry.credential.name for entry in entries if entry.credential.role is Role.NODE}
        return listed.union(self.trial.nodes if self.trial else ())

    def _find_tenant(self, source: str, owner: str, timestamp_ns: int) -> str:
        return self.files.tenants.content.find_tenant(source, owner, timestamp_ns)

    def _set_decisions(self, decisions: review_rules.ReviewDecisions) -> None:
        if decisions != self.files.decisions:
            self.files.decisions = decisions

    def _metering_stores(self) -> day_writes.MeteringStores:
        """Return the ledger and the evidence in its database. Blocking; raises UnusableLedgerError."""
        database = self.database.open()
        self.core.receipts.open(database)
        return day_writes.MeteringStores(
            ledger_store.Ledger(database), evidence_store.EvidenceStore(database, self.quarantine)
        )

    async def run(self) -> None:
        """Run until cancelled. Raises SettingsError for a setting that cannot work."""
        # First: an arena that a thread has stays its own.
        limit_memory_arenas()
        lock = service.lock_state_directory(self.directory)
        watchdog = asyncio.create_task(systemd.feed_watchdog())
        try:
            # Before `restore`, which writes.
            await self._wait_for_space()
            await service.run_in_thread(self.restore)
            tune_interpreter()
            await self.audit.hold_directory()
            await self.core.receipts.open_at_start(self.database.open)
            await self._serve()
        finally:
            watchdog.cancel()
            self.reading.close()
            self.database.close()
            self.log.close()
            self.state_files.close()
            self.audit.close()
            # Last: another process must not open these files before.
            os.close(lock)

    async def _wait_for_space(self) -> None:
        """Serve existing data while the disk is full; see `railscope_collector.http.write_probes`."""
        if not (problem := await service.run_in_thread(self.find_write_problem, self.directory)):
            return
        log.error(
            "writes_suspended",
            problem=problem,
            directory=str(self.directory),
            advice="free space on the disk: the collector then continues without a restart",
        )
        # Another instance: this one restores its own state once there is space.
        serving = replace(self, read_only=problem, settings=self.settings.without_cluster())
        try:
            await service.run_in_thread(serving.restore_read_only)
            await serving.serve_read_only()
        finally:
            serving.reading.close()
            serving.database.close()

    def restore_read_only(self) -> None:
        """Read the data to serve, and write nothing. Blocking; raises OSError."""
        self.trail.log.stop_signing()
        # What is read must not be recorded: nothing can be written.
        self.core.listeners.clear()
        self.core.on_envelope.clear()
        self._read_files()
        self.core.schemas.open()
        self.checkpointer.restore(self.log.stats)

    async def serve_read_only(self) -> None:
        """Serve until there is space."""
        server = web_server.WebServer(self.application(), self.connections)
        try:
            host, port = await server.start(self.settings.listen, self._tls)
            self.on_listening(host, port)
            systemd.notify("READY=1")
            async with asyncio.TaskGroup() as group:
                runs = self.tokens.watch(), self.refresher.run()
                tasks = [group.create_task(run) for run in runs]
                watch = SpaceWatch(self.directory, self.disk_retry_seconds, self.find_write_problem)
                await watch.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await server.close()
            await asyncio.gather(*(probe.close() for probe in self.probes))

    def application(self) -> Application:
        """Return the application with all routes, behind the authorizer."""
        receiver = ingest.Ingest(
            self.core,
            self.log,
            self.settings.limits,
            self.trail.record_denial,
            self.clock.now_ns,
            lambda: self.clock.doubted_since_ns,
            lambda: bool(self.clock.problem),
            closed_reason=self.read_only,
        )
        authorizer = RequestAuthorizer(
            lambda: self.tokens.credentials,
            self.access,
            self.settings.allow_anonymous_read,
            trial=self.trial,
            on_denial=self._count_rejection,
        )
        own_metrics = collector_metrics.CollectorMetrics(
            self.core,
            self.log,
            self.files,
            self.finalizer,
            self.sink,
            self.trail,
            self.tokens,
            self.connections,
            self.identity_conflicts,
            self.checkpointer.quarantine,
            (self.core.log_limit, receiver.log_limit, authorizer.log_limit),
            lambda: [
                *self.audit.cells(),
                *self.remote_write.own_cells(),
                *self.retention.cells(),
                *self.cluster.cells(),
                *self.switches.cells(),
                *self.drainer.cells(),
                view_cells.ViewCell(WEBHOOK_FAILURES, (), self.webhook.failures),
                view_cells.ViewCell(LOST_FILES, (), len(self.state_files.damage)),
                view_cells.ViewCell(DAMAGED_EVIDENCE, (), len(self.quarantine.rows)),
            ],
        )
        api = read_api.ViewApi(
            self.core,
            own_metrics,
            lambda: self.refresher.views,
            lambda: self.cluster.incidents,
            self.settings.stale_seconds,
            wall_ns=self.clock.now_ns,
            write_probes=self.probes,
            read_only=self.read_only,
            console=self.settings.console,
            switches=self.switches,
            progress=lambda: self.cluster.progress,
        )
        self.remote_write.cells, self.switches.submit = api.cells, receiver.receive_own
        billing = billing_api.BillingApi(
            self.billing or self.books.open, self.reading, self.access.record_export
        )
        audit = audit_api.AuditApi(self.entries, self.reading)
        console = Console.from_api(authorizer, api, billing, audit, self.audit.health)
        console.grafana_url = page_table.check_grafana_url(self.settings.console.grafana_url)
        handlers = {
            **console.handlers(),
            **dict.fromkeys(("frames", "copies"), receiver.handle),
            "records": self.cluster.serve,
            **api.handlers(),
            **audit.handlers(),
            **self.audit.witness_api.handlers(),
            **billing.handlers(),
        }

        def prepare(state: HeadState) -> None:
            all_nodes = api.with_state(
                state.core, lambda: state.refresher.views, lambda: state.diagnosis.table
            )
            pages = Console.from_api(authorizer, all_nodes, billing, audit, self.audit.health)
            pages.grafana_url = console.grafana_url
            state.handlers = {**pages.handlers(), **all_nodes.handlers()}
            # Replaces the own one, as the metrics show its failures.
            self.webhook = replace(
                self.webhook,
                table=lambda: self.cluster.notified,
                delivered=state.diagnosis.decisions.notified,
            )
            self.drainer = self.drainer.with_views(all_nodes, state.diagnosis.decisions.drains)
            state.work += (self.webhook.run, self.drainer.run)

        self.cluster.prepare = prepare
        self.drainer = self.drainer.with_views(api, self.diagnosis.decisions.drains)
        routing = cluster_routing.ClusterRouting(self.cluster)
        routed = routing.route(handlers, (*api.handlers(), *console.switches), CLUSTER_PAGES)
        max_bytes = self.settings.limits.body_bytes
        return make_application(authorizer, routed, max_bytes, console.routes)

    def _count_rejection(self, route: Route | None, reason: str) -> None:
        """Count a denied sender among the rejected envelopes."""
        if route and route.name in {"frames", "copies"}:
            self.core.counts.reject(reason)

    async def _serve(self) -> None:
        server = web_server.WebServer(self.application(), self.connections)
        # Before the first request, which may use one of them.
        self.access.set_credentials(self.tokens.credentials)
        try:
            host, port = await server.start(self.settings.listen, self._tls)
            self.on_listening(host, port)
            address, nodes = f"{host}:{port}", len(self.core.fleet.nodes)
            log.info("collector_started", version=__version__, address=address, nodes=nodes)
            systemd.notify("READY=1")
            async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as group:
                # The outer group ends last, so that the final events of the other tasks are recorded.
                self.audit.start(outer, group)
                if self.cluster.diagnoses_alone:
                    group.create_task(self.diagnosis.run())
                    group.create_task(self.webhook.run())
                    group.create_task(self.drainer.run())
                for work in (
                    self.cluster.run(), self.access.run(), self.tokens.watch(), self.entries.run(), self.log.run(),
                    self.checkpoints.run(), self.audit.check_files(self.state_files, lambda: self.core.schemas.file_names), self.files.watch(), self.finalizer.run(),
                    self.clock_records.run(), self.refresher.run(), self.sink.run(), self.remote_write.run(), self.retention.run(), self.switches.run(),
                ):  # fmt: skip
                    group.create_task(work)
        finally:
            await server.close()
            await asyncio.gather(*(probe.close() for probe in self.probes))

    def _read_files(self) -> None:
        """Read the administrators' files, and the nodes of a trial. Blocking; raises SettingsError, OSError."""
        if self.trial:
            self.trial.open()
        try:
            self.files.start(
                lambda kind: evidence_store.EvidenceStore(self.database.open()).file(kind)
            )
        except UnusableLedgerError as error:
            log.error("earlier_versions_read_failed", problem=str(error), files=self.files.unknown)

    def restore(self) -> None:
        """Read schemas, the checkpoint and the segments after it. Blocking; raises OSError."""
        self.audit.open()
        self.access.open()
        self._read_files()
        if damaged := self.core.schemas.open():
            log.error("schemas_damaged", files=damaged, advice="agents send them again")
        self.state_files.open()
        self.log.open()
        if self.state_files.is_incomplete:
            self.clock.defect = self.state_files.damage.get(clock.FILE, "")
        damage = self.state_files.damage
        if clock.FILE not in damage and (state := clock.read_state(self.directory)):
            # Before the restore, which corrects the timestamps of the frames that it reads.
            self.checkpointer.corrections = {s.since_ns: s.delta_ns for s in state.corrections}
        if not self.database.is_embedded:
            # The former reports of a node may be those of another collector, and are not merged yet.
            self.core.evidence.first_age_ns = node_intervals.LATE_NS
        self.checkpointer.restore(self.log.stats)
        newest_ns = max((node.timestamp_ns for node in self.core.fleet.nodes.values()), default=0)
        # After the restore: a clock that was set back is behind the newest frame.
        self.clock.open(newest_ns)
        if self.cluster.diagnoses_alone:
            self.diagnosis.open()
        self.log.continue_at(self.checkpointer.first_segment)
        self.state_files.compare_checkpoint(self.checkpointer.first_segment)
        self.state_files.compare_schemas(self.core.counts.unknown_schemas)
        # Recorded before `begin` replaces the manifest, which alone shows the loss.
        if damage:
            self.trail.log.append_before_running(self.trail.draft_missing_files(damage))
        self.state_files.begin(self.log.number, self.log.offset)
        if records := self.log.stats.damaged_records:
            log.error("frame_log_damaged", records=records)
        if not self.database.is_embedded:
            self.checkpointer.begin_positions(is_incomplete=bool(damage or records))
