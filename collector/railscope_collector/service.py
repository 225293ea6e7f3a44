"""A collector while it runs: start, restore, read-only service and end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from railscope import __version__, service, systemd
from railscope_collector import clock, composition, config, state_store
from railscope_collector.billing import billing_reader
from railscope_collector.evidence import file_versions
from railscope_collector.framelog import segment_files
from railscope_collector.framelog.log_follower import LOG_START
from railscope_collector.http import web_server
from railscope_collector.http.write_probes import RETRY_SECONDS, SpaceWatch, find_write_problem
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.state import former_files
from railscope_collector.work_limits import limit_memory_arenas, tune_interpreter

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
        """Build all parts, from the bottom up. Raises SettingsError for a setting that cannot work."""
        storage = composition.build_storage(self.settings, self.wall_ns, self.find_write_problem)
        access = composition.build_access(storage, self.reload)
        metering = composition.build_metering(access)
        receiving = composition.build_receiving(access, self.read_only)
        views = composition.build_views(access, metering, receiving.switches.polling)
        api = composition.build_api(access, metering, receiving, views)
        sinks = composition.build_sinks(access, views, api)
        http = composition.build_http(access, receiving, views.refresher, sinks, self.billing)
        self.directory, self.store, self.lost = storage.directory, storage.store, storage.lost
        self.core, self.clock, self.log = storage.core, storage.clock, storage.log
        self.reader = storage.reader
        self.identity_conflicts, self.database = storage.identity_conflicts, storage.database
        self.tokens, self.trial, self.files = access.tokens, access.trial, access.files
        self.access, self.clock_records = access.access, access.clock_records
        self.audit, self.trail, self.entries = (
            access.audit,
            access.audit.trail,
            access.audit.entries,
        )
        self.live, self.finalizer = metering.live, metering.finalizer
        self.retention, self.refresher = metering.retention, views.refresher
        self.diagnosis, self.role = views.diagnosis, storage.role
        self.switches, self.connections = receiving.switches, receiving.connections
        self.api, self.probes = api, storage.probes
        self.influx, self.webhook = sinks.influx, sinks.webhook
        self.application, self.reading, self._tls = http.application, http.reading, http.tls

    async def run(self) -> None:
        """Run until cancelled. Raises SettingsError for a setting that cannot work."""
        # First: an arena that a thread has stays its own.
        limit_memory_arenas()
        lock = service.lock_state_directory(self.directory, "collector")
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
            self.store.close()
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
            serving.store.close()

    def restore_read_only(self) -> None:
        """Read the data to serve, and write nothing. Blocking; raises OSError."""
        self.trail.log.stop_signing()
        # Records that are read must not be reported: nothing can be written.
        self.core.on_envelope.clear()
        self._read_files()
        self.store.open_read_only()
        self.core.schemas.open()
        self.reader.restore(is_shared=True)

    async def serve_read_only(self) -> None:
        """Serve until there is space."""
        server = web_server.WebServer(self.application, self.connections)
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

    async def _serve(self) -> None:
        server = web_server.WebServer(self.application, self.connections)
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
                group.create_task(self.reader.run())
                group.create_task(self._report_lost_schemas())
                active = [lambda: self.switches.watch_cabling(self.api.link_ends)]
                if self.settings.diagnosis.enabled:
                    active += [self.diagnosis.run, self.webhook.run]
                directory = self.diagnosis.directory
                group.create_task(self.role.run(directory, self._take_over, active))
                for work in (
                    self.access.run(), self.tokens.watch(), self.log.run(),
                    self.reader.snapshots.run(), self.audit.delete_former_log(), self.files.watch(),
                    self.clock_records.run(), self.retention.run(), self.switches.run(),
                ):  # fmt: skip
                    group.create_task(work)
                for part in (self.refresher, self.finalizer, self.influx):
                    group.create_task(self._run_restored(part.run))
        finally:
            await server.close()
            await asyncio.gather(*(probe.close() for probe in self.probes))

    async def _run_restored(self, run: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run what needs the whole state."""
        await self.reader.restored.wait()
        await run()

    def _take_over(self) -> None:
        """Continue with the incidents and the audit log of another collector of the group. Blocking."""
        self.audit.take_over()
        self.diagnosis.take_over()

    async def _report_lost_schemas(self) -> None:
        """Report missing shapes and names that records of earlier starts refer to."""
        await self.reader.restored.wait()
        if unknown := len(self.core.counts.unknown_schemas):
            name = "shapes and names in state.sqlite"
            self.lost[name] = f"{unknown} are missing: frames that refer to them cannot be read"
            log.error("file_lost", file=name, problem=self.lost[name])
            await self.trail.log.append(self.trail.draft_missing_files([name]))

    def _read_files(self) -> None:
        """Read the administrators' files, and the nodes of a trial. Blocking; raises SettingsError, OSError."""
        if self.trial:
            self.trial.open()
        try:
            self.files.start(lambda kind: file_versions.FileStore(self.database.open()).read(kind))
        except UnusableLedgerError as error:
            log.error("earlier_versions_read_failed", problem=str(error), files=self.files.unknown)

    def restore(self) -> None:
        """Read schemas, the newest snapshot and the records after it. Blocking; raises OSError."""
        has_run = (self.directory / segment_files.EXTENT).exists()
        is_former = (self.directory / former_files.MANIFEST).exists()
        self.store.open(is_expected=has_run and not is_former)
        self.lost |= former_files.read_former_files(self.store)
        self.audit.open()
        self.access.open()
        self._read_files()
        self.core.schemas.open()
        self.log.open()
        self.reader.corrections = self._read_corrections(is_expected=has_run)
        newest_ns = self.reader.restore(is_shared=not self.database.is_embedded)
        recorded = self.trail.log.own.read_position() or LOG_START
        self.log.continue_after(max(self.reader.snapshots.position, recorded))
        self.core.schemas.segment = self.log.number
        # After the restore: a clock that was set back is behind the newest frame.
        self.clock.open(newest_ns, is_lost=clock.FILE in self.lost)
        if self.settings.diagnosis.enabled:
            self.diagnosis.open()
        for name, problem in (
            (state_store.FILE, self.store.problem),
            ("waiting_evidence", self.reader.waiting.lost),
        ):
            if problem:
                self.lost[name] = problem
        for name, problem in self.lost.items():
            log.error("file_lost", file=name, problem=problem)
        if damaged := self.log.stats.damaged_records + self.log.stats.lost_segments:
            log.error(
                "frame_log_damaged",
                records=self.log.stats.damaged_records,
                segments=self.log.stats.lost_segments,
            )
        if self.lost:
            self.trail.log.append_before_running(self.trail.draft_missing_files(self.lost))
        if not self.database.is_embedded:
            self.reader.begin_positions(is_incomplete=bool(self.lost or damaged))
        # Last: from here on nothing shows a loss.
        self.log.begin()
        self.reader.waiting.begin()

    def _read_corrections(self, *, is_expected: bool) -> dict[int, int]:
        """Return the shifts of receipts by decisions about the clock; a lost file of the clock is a loss."""
        problem = "missing file" if is_expected else ""
        try:
            if state := clock.read_state(self.directory):
                return {step.since_ns: step.delta_ns for step in state.corrections}
        except clock.ClockFileError as error:
            problem = str(error)
        if problem:
            self.lost[clock.FILE] = problem
        return {}
