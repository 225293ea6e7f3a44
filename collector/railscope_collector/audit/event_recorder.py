"""Reader of the frame log that records the events and starts of agents in the audit log, each once.

An agent numbers its audited events, and the number is the record's `src.n`: it identifies events that are received again, and an
event that never arrived leaves a gap that `railscope audit verify` finds.

Records and the position after their frames are stored in one transaction. Whatever ends the recorder, it continues there, with
the state that follows from the records. Segments after the position are not deleted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from railscope import service, wire
from railscope.audit.record import (
    AuditRecord,
    RecordActor,
    RecordData,
    RecordError,
    decode_audit_record,
    encode_audit_record,
)
from railscope_collector.audit import (
    AuditLogError,
    event_records,
    log_secrets,
    log_writer,
    node_recorder,
    recorder_state,
)
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.fleet.recent_events import SeenEvent, seen_events
from railscope_collector.framelog.log_follower import LOG_START, LogFollower, LogPosition
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.ledger.record_draft import RecordDraft, build_record

_ANY_NUMBER = (1 << 53) - 1
"""Placeholder sequence number of a record that has none yet: no other number is longer."""
READ_BYTES = 1 << 20
"""Frames whose events are recorded together."""
COPY_RECORDS = 10_000
"""Records between two copies of the state: a start reads at most these from the log, in less than a second."""
POLL_SECONDS = 0.5
RETRY_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class EventRecorder:
    """Records the events of agents; `open` it after the log, and `run` it while the log is open."""

    audit: log_writer.AuditLog
    salts: log_secrets.PersonalSalts
    frames: Path
    """Directory of the frame log, in the state directory."""
    open_record: Callable[[FrameRecord], tuple[FrameRecord, wire.Envelope]]
    """Returns a record with its receipt corrected, and its envelope. Raises WireError."""
    first_segment: Callable[[], int] = lambda: 0
    """Returns the segment to begin at without a stored position: release 0.3.0 has recorded what is before it."""
    wall_ns: Callable[[], int] = time.time_ns
    max_frame_age_ns: int = 1 << 62
    """Age above which frames are not accepted any more."""
    retry_seconds: float = RETRY_SECONDS
    poll_seconds: float = POLL_SECONDS
    copy_records: int = COPY_RECORDS
    tenant_of: event_records.TenantOf = lambda _source, _owner, _timestamp_ns: ""
    state: recorder_state.RecordedState = field(default_factory=recorder_state.RecordedState)
    nodes: node_recorder.NodeRecorder = field(
        default_factory=lambda: node_recorder.NodeRecorder({})
    )
    position: LogPosition = LOG_START
    """Position up to which everything is recorded."""
    waiting: int = 0
    """Number of records whose frames were read and that are not stored yet."""
    problem: str = ""
    _follower: LogFollower | None = None
    _is_begun: bool = False
    """False if the state must be read before the next frames."""
    _stored: LogPosition = LOG_START
    _newest_ns: int = 0
    """Time of the newest receipt."""

    def open(self) -> None:
        """Read the state; record a new version of the collector. Blocking.

        Raises LogDamagedError, RecordError, UnusableLedgerError, OSError.
        """
        self._read_state()
        before, version = self.state.version, self.state.started
        if before != version:
            data: RecordData = {"before": before, "version": version}
            actor = RecordActor("collector", self.audit.source.id)
            kind = recorder_state.UPGRADE
            self.audit.append_before_running(
                RecordDraft(kind, actor, self.wall_ns(), "done", data=data)
            )

    def catch_up(self) -> None:
        """Drop what another collector of the group has recorded, before this one receives frames. Blocking.

        Raises LogWriteError, LogDamagedError, UnusableLedgerError, OSError.
        """
        self.audit.follow()
        present = {decode_audit_record(raw).src for raw in self.audit.records(self.state.size)}
        # What agents have sent to the other collector again is recorded already.
        self.audit.own.drop_waiting(lambda raw: decode_audit_record(raw).src in present)
        self._is_begun = False

    async def run(self) -> None:
        """Record what the frame log has, until cancelled."""
        try:
            while True:
                try:
                    if not await self._record_next():
                        await asyncio.sleep(self.poll_seconds)
                except (AuditLogError, RecordError, UnusableLedgerError, OSError) as error:
                    if self.problem != str(error):
                        log.error("audit_events_delayed", events=self.waiting, problem=str(error))
                    self.problem, self.waiting = str(error), max(1, self.waiting)
                    self._is_begun = False
                    await asyncio.sleep(self.retry_seconds)
        finally:
            if self._follower is not None:
                self._follower.close()

    async def _record_next(self) -> bool:
        """Record the events of the next frames; return False at the end of the log."""
        if not self.audit.is_active():
            return False  # with the next term it continues from its position, after what others have recorded
        if not self._is_begun or self._follower is None:
            await service.run_in_thread(self._begin)
            return True
        follower, before = self._follower, self._follower.position
        drafts = await service.run_in_thread(self._read_drafts, follower)
        if follower.position == before:
            return False
        self.waiting, position = len(drafts), follower.position
        if drafts or position.segment > self._stored.segment:
            await self.audit.append(*drafts, position=position)
            self._stored = position
        self.position, self.waiting, self.problem = position, 0, ""
        # A waiting collector has not applied what the active one records.
        is_applied = self._is_begun and self.audit.is_active()
        if is_applied and self.audit.size >= self.state.size + self.copy_records:
            await service.run_in_thread(self._copy_state)
        return True

    def _begin(self) -> None:
        """Read the state, and follow the log from the stored position on."""
        # First: a record of another collector may make it necessary again meanwhile.
        self._is_begun = True
        if self._follower is not None:
            self._follower.close()
        stored = self.audit.own.read_position()
        if stored is None:
            # First: snapshots move on while the database is unavailable.
            stored = LogPosition(self.first_segment())
            self.audit.own.add_waiting([], stored)
        if not self.audit.own.end:
            # An earlier state directory may have recorded what is read again.
            self.audit.follow()
        self._read_state()
        self._stored = self.position = stored
        state_directory = self.frames.parent
        self._follower = LogFollower(self.frames, stored, state_directory, read_bytes=READ_BYTES)

    def _read_state(self) -> None:
        self.state = recorder_state.load_recorded_state(self.audit)
        self.nodes = node_recorder.NodeRecorder(self.state.nodes)

    def _copy_state(self) -> None:
        self.state.size = self.audit.size
        self.state.forget_before(self._newest_ns - self.max_frame_age_ns)
        recorder_state.store_recorded_state(self.audit.store, self.state)

    def _read_drafts(self, follower: LogFollower) -> list[RecordDraft]:
        """Return the drafts of the next frames, which the state has then."""
        return [draft for record in follower.read() for draft in self._drafts(record)]

    def _drafts(self, record: FrameRecord) -> Iterator[RecordDraft]:
        self._newest_ns = max(self._newest_ns, record.received_wall_ns)
        # Frames of switches are of another run after each start of the collector: that is no event.
        is_of_agent = not record.node.startswith(SWITCH_PREFIX)
        if not record.has_events and not (is_of_agent and self.nodes.may_change(record)):
            return
        try:
            record, envelope = self.open_record(record)
        except (ValueError, LookupError, ArithmeticError):
            return  # reported by the reader of the state
        if is_of_agent:
            yield from self.nodes.observe(record, envelope)
        accepted = record.accepted or ()
        for number, batch in enumerate(envelope.batches):
            if not accepted or accepted[number].new:
                for seen_event in seen_events(record, envelope, batch):
                    if self._is_new(seen_event):
                        yield self._record_event(seen_event)

    def _is_new(self, seen_event: SeenEvent) -> bool:
        event = seen_event.event
        if not (event_records.is_audited(event) and event_records.is_numbered(event)):
            return False
        # Agents send again what another collector, or one whose files were lost, has received.
        return not self.state.has(event_records.event_source(seen_event))

    def _record_event(self, seen_event: SeenEvent) -> RecordDraft:
        try:
            draft = event_records.make_draft(
                seen_event, self.state.holdings, self.salts.make_commitment, self.tenant_of
            )
            record = self._build(draft)
            # Encoded already here, where a record that is too large can be replaced by one about the problem.
            encode_audit_record(record)
        except RecordError as error:
            log.error("audit_event_rejected", node=seen_event.node, problem=str(error))
            draft = event_records.find_recording_problem(seen_event, error)
            record = self._build(draft)
        self.state.add(record)
        return draft

    def _build(self, draft: RecordDraft) -> AuditRecord:
        return build_record(draft, draft.source or self.audit.source, _ANY_NUMBER)
