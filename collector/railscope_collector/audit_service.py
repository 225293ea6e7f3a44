"""Components of the audit log: its writers, the checks before signing, the witnesses."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from railscope import __version__, service
from railscope.audit.record import RecordError, RecordSource
from railscope.catalog import collector as c
from railscope.settings import SettingsError
from railscope_collector.audit import (
    audit_trail,
    entry_retention,
    event_recorder,
    event_records,
    ledger_watch,
    log_secrets,
    log_writer,
    outbox_drain,
    signing_guard,
    tiles,
)
from railscope_collector.audit.periodic_verification import PeriodicVerification
from railscope_collector.clock import CollectorClock
from railscope_collector.config import CollectorSettings
from railscope_collector.console.audit_pages import AuditHealth, witness_rows
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.framelog import state_manifest
from railscope_collector.http import signed_entries
from railscope_collector.http.witness_api import WitnessApi
from railscope_collector.ledger import directory_holder, head_chain
from railscope_collector.ledger.database import Database
from railscope_collector.state.state_checkpointer import StateCheckpointer

RECORDER_STATE_FILE = "observed"
_CHECK_FILES_SECONDS = 86_400.0


@dataclass(slots=True)
class AuditService:
    """The log of a collector with its writers, readers and checks; `open` it, `start` it, then `close` it."""

    key_file: Path
    trail: audit_trail.AuditTrail
    observed: event_recorder.EventRecorder
    guard: signing_guard.SigningGuard
    witness_api: WitnessApi
    drain: outbox_drain.OutboxDrain
    periodic_verification: PeriodicVerification
    watch: ledger_watch.LedgerWatch
    holder: directory_holder.DirectoryHolder
    retention: entry_retention.EntryRetention
    entries: signed_entries.SignedEntries

    @classmethod
    def from_directory(  # noqa: PLR0913, PLR0917 - parts of the layers below
        cls,
        settings: CollectorSettings,
        checkpointer: StateCheckpointer,
        nodes: Callable[[], set[str]],
        database: Callable[[], Database],
        tenant_of: event_records.TenantOf,
        clock: CollectorClock,
    ) -> AuditService:
        """Return the components of a state directory; `nodes` have credentials, `database` is the ledger's.

        Raises SettingsError if the key or the archive cannot be used.
        """
        directory, core = checkpointer.directory, checkpointer.core
        key_file = Path(settings.audit.key_file or directory / "audit.key")
        key = log_secrets.load_or_generate_key(key_file, settings.audit.origin)
        source = RecordSource("collector", settings.audit.origin, secrets.token_hex(8), 0)
        audit = log_writer.AuditLog(
            directory / "audit", key, source, archive=entry_retention.open_entry_archive(settings)
        )
        digest = hashlib.sha256(msgspec.json.encode(settings, order="sorted")).hexdigest()
        trail = audit_trail.AuditTrail(audit, __version__, settings=digest)
        witnesses = audit.witnesses
        observed = event_recorder.EventRecorder(
            audit,
            log_secrets.PersonalSalts(directory / log_secrets.SALTS_DIRECTORY),
            directory / RECORDER_STATE_FILE,
            checkpointer.read_events,
            tenant_of=tenant_of,
        )
        # Before the state is restored: events of the frame log that were not recorded yet must not be lost.
        core.listeners.append(observed.queue_event)
        core.on_envelope.append(observed.check_envelope)
        checkpointer.companion_files[observed.file] = observed.snapshot
        guard = signing_guard.SigningGuard(
            audit,
            settings.audit.required_witnesses,
            settings.audit.witness_timeout_seconds,
            lambda: len(nodes() | witnesses.nodes.keys() | core.fleet.nodes.keys()),
            trail.wall_ns,
        )
        witness_api = WitnessApi(audit, guard, witnesses)
        watch = ledger_watch.LedgerWatch(
            database, audit, trail.wall_ns, directory / ledger_watch.KNOWN_HEAD_FILE
        )
        drain = outbox_drain.OutboxDrain(
            watch.current, audit, stop_signing=guard.stop_signing, on_heads_recorded=watch.check
        )
        periodic = PeriodicVerification(
            audit.directory,
            key.public,
            settings.audit.verification_period_seconds,
            time.monotonic_ns,
            database,
            audit.archive,
        )
        holder = directory_holder.DirectoryHolder(directory, database)
        retention = entry_retention.EntryRetention(
            audit,
            settings.audit.keep_entries_days,
            settings.archive.period_seconds,
            lambda: guard.required_checkpoints,
            clock,
        )
        entries = signed_entries.SignedEntries(audit.directory, key.public, archive=audit.archive)
        return cls(
            key_file,
            trail,
            observed,
            guard,
            witness_api,
            drain,
            periodic,
            watch,
            holder,
            retention,
            entries,
        )

    def open(self) -> None:
        """Open the log and load its state. Blocking; raises SettingsError, OSError."""
        # Before anything is signed: a log cannot be continued without its key.
        log_secrets.store_key(self.key_file, self.trail.log.signer)
        self.trail.open()
        self.guard.open()
        try:
            self.observed.open()
        except (tiles.ArchivedEntriesError, tiles.MissingEntriesError) as error:
            message = f"cannot read the audit log {self.trail.log.directory}: {error}"
            raise SettingsError(message) from error
        except (tiles.TileError, RecordError) as error:
            raise self.trail.unusable_log(log_writer.ALTERED_LOG_MESSAGE.format(error)) from error
        recorded = head_chain.ChainHead(*self.observed.recorded.head)
        self.watch.start(recorded if recorded.database else None)

    async def hold_directory(self) -> None:
        """Hold the state directory, by its opened log, in a shared database. Raises DirectoryInUseError."""
        await self.holder.begin(self.trail.log.genesis())

    async def check_files(
        self, state_files: state_manifest.StateFiles, names: Callable[[], set[str]]
    ) -> None:
        """Compare the state directory with its expected files, every day, until cancelled."""
        while True:
            # The first comparison was that of the start.
            await asyncio.sleep(_CHECK_FILES_SECONDS)
            if lost := await service.run_in_thread(state_files.find_new_losses, names):
                await self.trail.log.append(self.trail.draft_missing_files(lost))

    def start(self, outer: asyncio.TaskGroup, group: asyncio.TaskGroup) -> None:
        """Run until cancelled; the writer of the log ends with the outer group, after all others."""
        outer.create_task(self.trail.run())
        checks = (self.guard, self.periodic_verification, self.watch, self.holder, self.retention)
        for member in (self.observed, self.witness_api, self.drain, *checks):
            group.create_task(member.run())

    def cells(self) -> list[ViewCell]:
        """Return the metrics of the audit log for the metrics endpoint."""
        whole = self.periodic_verification.is_valid
        numbers = (
            (c.AUDIT_WAITING, self.observed.waiting_items),
            (c.AUDIT_OVERFLOWED, self.observed.overflowed),
            (c.AUDIT_UNNUMBERED, self.observed.unnumbered),
            (c.OUTBOX_WAITING, self.drain.waiting_rows),
            (c.AUDIT_CONFLICT, int(bool(self.guard.stop_reason))),
            (c.AUDIT_WITNESSES, len(self.witness_api.witnesses.nodes)),
            (c.LEDGER_REPLACED, int(bool(self.watch.problem))),
            (c.AUDIT_ARCHIVED, self.retention.archived),
            (c.AUDIT_ARCHIVE_FAILURES, self.retention.failures),
            (c.AUDIT_VERIFIED, None if whole is None else int(whole)),
            (c.AUDIT_VERIFIED_AGE, self.periodic_verification.age_seconds),
        )
        return [ViewCell(metric, (), value) for metric, value in numbers if value is not None]

    def health(self) -> AuditHealth:
        """Return the state of the log and its components. Blocking."""
        log, verified = self.trail.log, self.periodic_verification
        cosigned = dict(self.witness_api.witnesses.nodes)
        return AuditHealth(
            records=log.size,
            unsigned=log.size - log.signed.size,
            stop_reason=self.guard.stop_reason,
            is_valid=verified.is_valid,
            valid_age_seconds=verified.age_seconds,
            witnesses=witness_rows(cosigned),
            witness_count=len(cosigned),
        )

    def close(self) -> None:
        """Close the log."""
        self.trail.log.close()
