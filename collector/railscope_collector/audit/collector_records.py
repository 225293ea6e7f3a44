"""Records of the collector in the audit log: rows of the outbox, operations and denied requests.

Rows of the outbox are transferred in order, each exactly once, across any crash. A batch is assigned to the
log (committed), recorded, signed if that is possible, and its record numbers are stored (committed). If the
last commit was lost, the log itself shows the state: the last reference of each record is its outbox row.
Batches are sequential, so records that were appended but not noted come after all noted ones.

Frequent events are aggregated: repeated identical denials produce one record immediately and one
more for each minute in which they continue, with the count. The counts are complete.
"""

from __future__ import annotations

import asyncio
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

import structlog

from railscope.audit import record
from railscope.service import run_in_thread, run_to_end
from railscope.settings import SettingsError
from railscope_collector.audit import AuditLogError, housekeeping_files, log_writer
from railscope_collector.clock import ClockState, CollectorClock
from railscope_collector.ledger import audit_outbox
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database
from railscope_collector.work_limits import MinuteCounts, write_for_a_minute

MAX_BATCH_ROWS = 256
POLL_SECONDS = 1.0
COUNT_SECONDS = 60.0
"""Maximum period between two full counts: a row may be committed after a later one."""
RETRY_SECONDS = 10.0
RELOAD_AGAIN_SECONDS = 10.0

log = structlog.get_logger(__name__)


_MAX_NAMED = 100
"""Lost files that a record names."""


@dataclass(slots=True)
class OutboxDrain:
    """Writes pending outbox rows of a database to a log; `run` it while the log runs."""

    database: Callable[[], Database]
    """Raises UnusableLedgerError while the database is unavailable."""
    audit: log_writer.AuditLog
    poll_seconds: float = POLL_SECONDS
    retry_seconds: float = RETRY_SECONDS
    waiting_rows: int = 0
    """Rows that are in no log yet, as of the last poll."""
    stop_signing: Callable[[str], None] = lambda _problem: None
    """Called before anything else if the ledger refers to records that the log does not have."""
    on_heads_recorded: Callable[[], None] = lambda: None
    """Called after ledger heads were recorded, to refresh the newest known head. Blocking."""
    problem: str = ""
    """Reason why draining is blocked; empty if it is not."""
    _log: str = ""
    _newest_id: int = -1
    """Number of the last row when nothing was pending; -1 if it must be determined."""
    _counted_seconds: float = 0.0
    _sequences: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Drain until cancelled. A failure is logged once and retried."""
        while True:
            try:
                full = await self.drain_batch()
            except (AuditLogError, UnusableLedgerError, record.RecordError, OSError) as error:
                if str(error) != self.problem:
                    log.error("audit_outbox_delayed", problem=str(error))
                self.problem = str(error)
                # Events after the last commit are reconstructed from the log.
                self._log, self._newest_id = "", -1
                await asyncio.sleep(self.retry_seconds)
                continue
            self.problem = ""
            if not full:
                await asyncio.sleep(self.poll_seconds)

    async def drain_batch(self) -> bool:
        """Drain one batch; return True if more rows may be pending.

        Raises UnusableLedgerError, LogWriteError, RecordError, TileError, OSError.
        """
        database = await call_database(self.database)
        if not self._log:
            await call_database(self._find_unnoted_records, database)
        batch = await call_database(self._take_rows, database)
        positions = await self._append_rows(batch)
        await call_database(self._store, database, positions)
        for row in batch:
            self._sequences.pop(row.reference)
        if any(row.draft.type == audit_outbox.HEAD for row in batch):
            await call_database(self.on_heads_recorded)
        return len(batch) == MAX_BATCH_ROWS

    def _find_unnoted_records(self, database: Database) -> None:
        """Find records that were appended and not noted."""
        name = self.audit.genesis()
        if not name:
            message = f"invalid audit log {self.audit.directory}: expected a genesis record"
            raise log_writer.LogWriteError(message)
        with database.transaction() as connection:
            last = audit_outbox.find_last_recorded(connection, name)
            expected = audit_outbox.find_reference(connection, last.id) if last else ""
        self._sequences = {}
        later_records = self.audit.records(last.leaf if last else 0)
        if last and row_reference(next(later_records, None)) != expected:
            message = (
                f"record {last.leaf} is in the ledger and missing in this log: an older copy of"
                " the log was restored, or its end is lost"
            )
            self.stop_signing(message)
            raise log_writer.LogWriteError(message)
        for raw in later_records:
            if reference := row_reference(raw):
                self._sequences[reference] = record.decode_audit_record(raw).seq
        self._log = name

    def _take_rows(self, database: Database) -> list[audit_outbox.OutboxRow]:
        now_seconds = time.monotonic()
        with database.transaction() as connection:
            newest = audit_outbox.newest_number(connection)
            if newest == self._newest_id and now_seconds < self._counted_seconds + COUNT_SECONDS:
                return []
            self.waiting_rows = audit_outbox.count_unrecorded(connection)
            self._newest_id, self._counted_seconds = newest, now_seconds
        if not self.waiting_rows:
            return []
        # More rows are assumed to be pending until a batch comes back empty.
        self._newest_id = -1
        with database.transaction(writes=True) as connection:
            return audit_outbox.take_rows(connection, self._log, MAX_BATCH_ROWS)

    async def _append_rows(
        self, batch: list[audit_outbox.OutboxRow]
    ) -> list[audit_outbox.LogPosition]:
        """Append the rows that the log does not have yet, in order; return the position of each."""
        new_rows = [row for row in batch if row.reference not in self._sequences]
        for row in new_rows:
            candidate = audit_outbox.build_record(row.draft, self.audit.source, self.audit.size)
            record.encode_audit_record(candidate)
        appended = [self.audit.append(row.draft) for row in new_rows]
        leaves = await asyncio.gather(*appended)
        self._sequences.update(zip((row.reference for row in new_rows), leaves, strict=True))
        signed = await self._sign() if batch else 0
        return [
            audit_outbox.LogPosition(row.id, leaf, signed if leaf < signed else None)
            for row in batch
            for leaf in (self._sequences[row.reference],)
        ]

    async def _sign(self) -> int:
        """Sign if that is possible now; return the number of signed records."""
        try:
            await self.audit.sign()
        except log_writer.SigningPostponedError:
            pass  # signed soon, with the remaining records
        except (AuditLogError, OSError) as error:
            log.warning("audit_signing_postponed", problem=str(error))
        return self.audit.signed.size

    def _store(self, database: Database, positions: list[audit_outbox.LogPosition]) -> None:
        if not positions:
            return
        with database.transaction(writes=True) as connection:
            audit_outbox.store_positions(connection, self._log, positions)
        self.waiting_rows -= len(positions)


def row_reference(raw: bytes | None) -> str:
    """Return the outbox row that a record was made from; empty if there is no record or no row."""
    references = record.decode_audit_record(raw).ref if raw is not None else []
    last = references[-1] if references else ""
    return last if last.startswith(audit_outbox.OUTBOX_ROW) else ""


MAX_DENIED = 100
"""Distinct denials recorded per minute; those beyond are counted together."""
MAX_PATHS = 5
"""Distinct paths per address among them; further paths of that address are counted without a path."""
_MAX_QUOTED = 200


@dataclass(frozen=True, slots=True)
class DeniedRequest:
    """A denied request."""

    address: str
    path: str
    """Path as received, percent-encoded."""
    reason: str
    """The check that failed."""
    name: str = ""
    """Holder of the credential, if the credential is known."""
    credential_kind: str = "token"
    """Credential presented: a token, a certificate, or nothing."""

    def truncated(self) -> DeniedRequest:
        """Return a copy with the path truncated to the recorded length."""
        return replace(self, path=self.path[:_MAX_QUOTED])


_OTHER_SENDERS = DeniedRequest("", "", "more senders than are counted separately")


@dataclass(slots=True)
class AuditTrail:
    """Writes the collector's records; `open` it, `run` it, `close` it."""

    log: log_writer.AuditLog
    version: str
    wall_ns: Callable[[], int] = time.time_ns
    settings: str = ""
    """Hash of the settings: a different one shows that they were changed."""
    lost_records: int = 0
    """Number of records that could not be written; their content is in the system journal."""
    denials: int = 0
    _denials: MinuteCounts[DeniedRequest] = field(default_factory=lambda: MinuteCounts(MAX_DENIED))
    _new_denials: list[DeniedRequest] = field(default_factory=list)
    _repeats: list[tuple[DeniedRequest, int]] = field(default_factory=list)
    _is_ended: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Open the log and record the start. Blocking.

        Raises SettingsError.
        """
        try:
            self._open()
        except OSError as error:
            message = f"cannot write the audit log {self.log.directory}: {error.strerror}"
            raise SettingsError(message) from error

    def unusable_log(self, problem: str) -> SettingsError:
        """Return the error for an audit log with which the collector cannot continue."""
        return SettingsError(
            f"{problem}; to start without this log, move {self.log.directory} away and keep it"
        )

    def _open(self) -> None:
        try:
            self.log.open()
        except log_writer.LogWriteError as error:
            raise self.unusable_log(str(error)) from error
        if self.log.size == 0:
            signer = self.log.signer
            genesis: record.RecordData = {"origin": signer.name, "key": str(signer.public)}
            self.log.append_before_running(self.draft("log.genesis", genesis))
        if self.log.lost_records:
            self._report_loss()
        for problem in self.log.damage:
            self._report_damage(problem)
        self.log.append_before_running(self.draft("admin.config", self._lifecycle_data("started")))

    def _report_loss(self) -> None:
        """Report that the end of the journal was damaged, not torn: its records had been acknowledged."""
        size, lost = self.log.size, self.log.lost_records
        log.error(
            "audit_records_lost",
            directory=str(self.log.directory),
            records=lost,
            advice="they had been acknowledged; check the disk, and if an old copy was restored",
        )
        data: record.RecordData = {"missing": lost, "from": size}
        self.log.append_before_running(self.draft("log.recovered", data, outcome="failed"))

    def _report_damage(self, problem: str) -> None:
        """Record that a housekeeping file was missing or wrong, and was written again."""
        log.error(
            "audit_file_damaged",
            problem=problem,
            advice="the file was written again; check access to the audit directory",
        )
        data: record.RecordData = {"damaged": unicodedata.normalize("NFC", problem)}
        self.log.append_before_running(self.draft("log.recovered", data, outcome="failed"))

    def _lifecycle_data(self, transition: str) -> record.RecordData:
        settings: record.RecordData = {"settings": self.settings} if self.settings else {}
        epoch = self.log.publisher.ownership.epoch
        return {
            "collector": self.version,
            "what": transition,
            housekeeping_files.EPOCH_FILE: epoch,
            **settings,
        }

    async def run(self) -> None:
        """Record events until cancelled; then the remaining ones, and the stop."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self.log.run())
            try:
                while True:
                    await write_for_a_minute(self._wake, self._write_new_denials)
                    await self._write_repeated()
            finally:
                await self._write_repeated()
                self._is_ended = True
                await self._record(self.draft("admin.config", self._lifecycle_data("stopped")))
                writer.cancel()

    def record_denial(self, denial: DeniedRequest) -> None:
        """Count a denied request. Never waits."""
        self.denials += 1
        counted = denial.truncated()
        if self._is_ended:
            self._report_lost_record("access.denied", asdict(counted), "the collector is stopping")
            return
        repetitions = self._denials.repetitions
        paths = sum(other.address == counted.address for other in repetitions)
        if counted not in repetitions and paths >= MAX_PATHS:
            counted = replace(counted, path="")
        if self._denials.add(counted):
            self._new_denials.append(counted)
            self._wake.set()

    async def _write_new_denials(self) -> None:
        while self._new_denials:
            await self._record_denial(self._new_denials.pop(0), 1)

    async def _write_repeated(self) -> None:
        await self._write_new_denials()
        repeated, excess = self._denials.close()
        self._repeats += repeated + ([(_OTHER_SENDERS, excess)] if excess else [])
        while self._repeats:
            await self._record_denial(*self._repeats.pop(0))

    async def _record_denial(self, denial: DeniedRequest, count: int) -> None:
        name = unicodedata.normalize("NFC", denial.name)
        actor = record.RecordActor(
            "credential" if name else "unknown", name, denial.credential_kind, denial.address
        )
        data: record.RecordData = {"path": denial.path, "reason": denial.reason, "count": count}
        await self._record(self.draft("access.denied", data, actor, "denied"))

    async def _record(self, draft: audit_outbox.RecordDraft) -> None:
        # A pending append is recorded or counted as lost, even if the minute ends.
        await run_to_end(self.append(draft))

    async def append(self, draft: audit_outbox.RecordDraft) -> bool:
        """Record a draft; if that fails, count and log the loss, and return False."""
        try:
            await self.log.append(draft)
        except (log_writer.LogWriteError, record.RecordError) as error:
            self._report_lost_record(draft.type, draft.data, str(error))
            return False
        return True

    def _report_lost_record(self, kind: str, data: Mapping[str, object], problem: str) -> None:
        self.lost_records += 1
        log.error("audit_record_lost", type=kind, data=data, problem=problem)

    def draft(
        self,
        kind: str,
        data: record.RecordData,
        actor: record.RecordActor | None = None,
        outcome: str = "done",
    ) -> audit_outbox.RecordDraft:
        """Return a record of the collector as of now; without an actor it is the collector itself."""
        record_actor = actor or record.RecordActor("collector", self.log.source.id)
        return audit_outbox.RecordDraft(kind, record_actor, self.wall_ns(), outcome, data=data)

    def draft_missing_files(self, lost: Iterable[str]) -> audit_outbox.RecordDraft:
        """Return the record of files that were lost."""
        names = sorted(lost)
        data: record.RecordData = {
            "what": "files",
            "count": len(names),
            "files": list(names[:_MAX_NAMED]),
        }
        return self.draft("evidence.gap", data, outcome="failed")


@dataclass(slots=True)
class ClockRecords:
    """Records that the collector's clock became suspect or recovered; `run` it while the log runs."""

    trail: AuditTrail
    clock: CollectorClock
    reload: Callable[[], None]
    """Restarts the collector, to assign frames new timestamps by an accepted clock."""
    _drafts: list[audit_outbox.RecordDraft] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Follow the clock."""
        self.clock.on_change = self._add

    def _add(self, state: ClockState) -> None:
        data: record.RecordData = {
            "problem": state.problem,
            "reference_ns": str(state.reference_ns),
        }
        if self.clock.is_replaced:
            decided = state.corrections[-1]
            data["since_ns"], data["delta_ns"] = str(decided.since_ns), str(decided.delta_ns)
        outcome = "failed" if state.problem else "done"
        self._drafts.append(self.trail.draft("evidence.clock_step", data, outcome=outcome))

    async def run(self) -> None:
        """Check the clock every second, store its reference, and record changes, until cancelled."""
        reload_at = 0.0
        while True:
            await asyncio.sleep(1)
            self.clock.now_ns()
            if self.clock.is_store_due:
                await run_in_thread(self.clock.store)
            while self._drafts:
                await self.trail.log.append(self._drafts[0])
                self._drafts.pop(0)
            loop_time = asyncio.get_running_loop().time()
            if self.clock.is_replaced and loop_time >= reload_at:
                # Repeated if it was rejected: nothing is stored before the restart.
                reload_at = loop_time + RELOAD_AGAIN_SECONDS
                log.info("restart_requested", reason="accepted clock")
                self.reload()
