"""Components of the audit log: its writers, the checks before signing, the witnesses."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from railscope import __version__, durable_files, service
from railscope.audit.record import RecordError, RecordSource
from railscope.audit.signed_note import NoteError, SecretKey
from railscope.catalog import collector as c
from railscope.settings import SettingsError
from railscope_collector import state_store
from railscope_collector.active_collector import ActiveRole
from railscope_collector.audit import (
    AuditLogError,
    LogWriteError,
    audit_trail,
    cosignatures,
    entry_archive,
    event_recorder,
    event_records,
    former_log,
    ledger_watch,
    log_secrets,
    log_writer,
    signing_guard,
    tables,
)
from railscope_collector.audit.periodic_verification import PeriodicVerification
from railscope_collector.clock import CollectorClock
from railscope_collector.config import CollectorSettings
from railscope_collector.console.audit_pages import AuditHealth, witness_rows
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.http import signed_entries
from railscope_collector.http.witness_api import WitnessApi
from railscope_collector.ledger import directory_holder
from railscope_collector.ledger.database import Database, SharedDatabase, UnusableLedgerError
from railscope_collector.state.state_reader import StateReader

log = structlog.get_logger(__name__)

PUBLIC_KEY_FILE = "audit.pub"
_FORMER_SECONDS = 86_400.0


@dataclass(slots=True)
class AuditService:
    """The log of a collector with its writers, readers and checks; `open` it, then `start` it."""

    key_file: Path
    trail: audit_trail.AuditTrail
    recorder: event_recorder.EventRecorder
    guard: signing_guard.SigningGuard
    witness_api: WitnessApi
    periodic_verification: PeriodicVerification
    watch: ledger_watch.LedgerWatch
    holder: directory_holder.DirectoryHolder
    archive: entry_archive.EntryArchive
    entries: signed_entries.SignedEntries
    database: SharedDatabase

    @classmethod
    def from_directory(  # noqa: PLR0913, PLR0917 - parts of the layers below
        cls,
        settings: CollectorSettings,
        reader: StateReader,
        nodes: Callable[[], set[str]],
        database: SharedDatabase,
        tenant_of: event_records.TenantOf,
        clock: CollectorClock,
        store: state_store.StateStore,
        role: ActiveRole,
    ) -> AuditService:
        """Return the components of a state directory; `nodes` have credentials, `database` is the ledger's.

        Raises SettingsError if the key or the archive cannot be used.
        """
        directory, core = reader.snapshots.store.directory, reader.core
        key_file = Path(settings.audit.key_file or directory / "audit.key")
        key = _load_key(settings, key_file, database.open)
        source = RecordSource("collector", settings.audit.origin, secrets.token_hex(8), 0)
        digest = hashlib.sha256(msgspec.json.encode(settings, order="sorted")).hexdigest()
        audit = log_writer.AuditLog(
            store,
            database.open,
            key,
            source,
            # The guard is below: nothing is signed before it permits that.
            lambda: guard.check_allowed(),  # noqa: PLW0108 - it is made later
            archive=entry_archive.open_entry_archive(settings),
            is_active=lambda: not role.waits,
            check_term=role.check_term,
        )
        trail = audit_trail.AuditTrail(audit, __version__, settings=digest)
        witnesses = cosignatures.CosignatureStore(database.open, audit.name)
        recorder = event_recorder.EventRecorder(
            audit,
            log_secrets.PersonalSalts(directory / log_secrets.SALTS_DIRECTORY),
            reader.frames.directory,
            reader.open_record,
            # One before: its last records may not have been recorded yet.
            lambda: max(0, reader.snapshots.position.segment - 1),
            max_frame_age_ns=reader.snapshots.max_frame_age_ns,
            tenant_of=tenant_of,
        )
        reader.snapshots.first_needed = lambda: recorder.position.segment
        guard = signing_guard.SigningGuard(
            trail,
            directory / signing_guard.CONFLICT_DIRECTORY,
            settings.audit.required_witnesses,
            settings.audit.witness_timeout_seconds,
            lambda: len(nodes() | witnesses.nodes.keys() | core.fleet.nodes.keys()),
        )
        witness_api = WitnessApi(audit, guard, witnesses)
        watch = ledger_watch.LedgerWatch(
            database.open, trail, directory / ledger_watch.KNOWN_HEAD_FILE
        )
        audit.check_ledger = watch.check
        periodic = PeriodicVerification(
            database.open,
            key.public,
            settings.audit.verification_period_seconds,
            time.monotonic_ns,
            audit.archive,
            guard.conflicting_notes,
        )
        holder = directory_holder.DirectoryHolder(directory, database.open)
        archive = entry_archive.EntryArchive(
            audit,
            settings.audit.keep_entries_days,
            settings.archive.period_seconds,
            clock.now_ns,
            lambda: clock.hold_reason,
        )
        limited = signed_entries.LimitedArchive(audit.archive) if audit.archive else None
        entries = signed_entries.SignedEntries(database.open, key.public, limited)
        return cls(
            key_file,
            trail,
            recorder,
            guard,
            witness_api,
            periodic,
            watch,
            holder,
            archive,
            entries,
            database,
        )

    def open(self) -> None:
        """Open the log and load its state. Blocking; raises SettingsError, OSError."""
        # Before anything is signed: a log cannot be continued without its key.
        audit = self.trail.log
        log_secrets.store_key(self.key_file, audit.signer)
        _write_public_key(audit.store.directory / PUBLIC_KEY_FILE, audit.signer)
        former = audit.store.directory / former_log.DIRECTORY
        try:
            if former.exists():
                former_log.import_directory(former, audit, self.guard.directory)
            self.guard.open()
            self.trail.open()
            # A database that is unavailable, or on a server, is read later: records are acknowledged without it.
            if self.database.is_embedded:
                with contextlib.suppress(UnusableLedgerError):
                    audit.follow()
                    self.witness_api.witnesses.read()
            self.recorder.open()
        except (tables.ArchivedEntriesError, UnusableLedgerError, OSError) as error:
            message = f"cannot open the audit log: {error}"
            raise SettingsError(message) from error
        except (AuditLogError, RecordError, NoteError) as error:
            problem = (
                str(error)
                if isinstance(error, LogWriteError)
                else log_writer.ALTERED_LOG_MESSAGE.format(error)
            )
            message = f"{problem}; to begin a new log, move the file of its key away and keep it"
            raise SettingsError(message) from error
        self.watch.start()

    def take_over(self) -> None:
        """Continue with the log of another collector of the group, before this one receives frames. Blocking."""
        try:
            self.recorder.catch_up()
            self.witness_api.witnesses.read()
        # Frames are received also if the log was altered: records then wait, and the writer reports the reason.
        except (AuditLogError, RecordError, UnusableLedgerError, OSError) as error:
            log.error("audit_log_not_continued", problem=str(error))

    async def hold_directory(self) -> None:
        """Hold the state directory, by the identity of its outbox, in a shared database. Raises DirectoryInUseError."""
        await self.holder.begin(self.trail.log.own.collector)

    async def delete_former_log(self) -> None:
        """Delete the files of an imported log after a week, until cancelled."""
        former = self.trail.log.store.directory / former_log.DIRECTORY
        while True:
            await asyncio.sleep(_FORMER_SECONDS)
            await service.run_in_thread(former_log.delete_old, former, self.trail.wall_ns())

    def start(self, outer: asyncio.TaskGroup, group: asyncio.TaskGroup) -> None:
        """Run until cancelled; the writer of the log ends with the outer group, after all others."""
        outer.create_task(self.trail.run())
        checks = (self.guard, self.periodic_verification, self.watch, self.holder, self.archive)
        for member in (self.recorder, self.witness_api, *checks):
            group.create_task(member.run())

    def cells(self) -> list[ViewCell]:
        """Return the metrics of the audit log for the metrics endpoint."""
        whole = self.periodic_verification.is_valid
        numbers = (
            (c.AUDIT_WAITING, self.recorder.waiting),
            (c.OUTBOX_WAITING, self.trail.log.waiting_rows),
            (c.AUDIT_CONFLICT, int(bool(self.guard.stop_reason))),
            (c.AUDIT_WITNESSES, len(self.witness_api.witnesses.nodes)),
            (c.LEDGER_REPLACED, int(bool(self.watch.problem))),
            (c.AUDIT_ARCHIVED, self.archive.archived),
            (c.AUDIT_ARCHIVE_FAILURES, self.archive.failures),
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
            unsigned=log.waiting,
            stop_reason=self.guard.stop_reason,
            is_valid=verified.is_valid,
            valid_age_seconds=verified.age_seconds,
            witnesses=witness_rows(cosigned),
            witness_count=len(cosigned),
        )


def _write_public_key(path: Path, key: SecretKey) -> None:
    """Write the public key for `railscope audit verify`. Raises OSError."""
    text = f"{key.public}\n".encode()
    if not path.exists() or path.read_bytes() != text:
        durable_files.write_durably(path, text)


def _load_key(
    settings: CollectorSettings, key_file: Path, open_database: Callable[[], Database]
) -> SecretKey:
    """Return the key of the log: of this collector, or of its group. Raises SettingsError."""
    group = settings.cluster.group
    # With a file that is set, the administrator gives each collector the key, and the database does not have it.
    if not group or settings.audit.key_file:
        return log_secrets.load_or_generate_key(key_file, settings.audit.origin)
    try:
        return log_secrets.load_group_key(open_database(), group, key_file, settings.audit.origin)
    except UnusableLedgerError as error:
        if key_file.exists():
            return log_secrets.load_or_generate_key(key_file, settings.audit.origin)
        message = f"cannot read the audit key of cluster.group {group!r}: {error}"
        raise SettingsError(message) from error
