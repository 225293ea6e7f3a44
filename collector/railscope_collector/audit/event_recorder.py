"""Recording of agent events in the audit log, each event once.

An agent numbers its audited events, and the number is the record's `src.n`: it identifies events that are
received again, and an event that never arrived leaves a gap that `railscope audit verify` finds. Events
come from the frame log, live and again at a restart; events that are not acknowledged yet when a segment may be
deleted are stored in the copy of `recorded`. So nothing is recorded twice, and nothing that was
acknowledged is lost.

The queue is bounded. Events that do not fit are read again from the frame log once there is room.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import filterfalse, islice

import structlog

from railscope import service, wire
from railscope.audit.record import (
    RecordActor,
    RecordData,
    RecordError,
    RecordSource,
    decode_audit_record,
    encode_audit_record,
)
from railscope_collector.audit import (
    LogWriteError,
    event_records,
    log_secrets,
    log_writer,
    node_recorder,
    recorder_state,
)
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.ledger.record_draft import RecordDraft, build_record
from railscope_collector.state_store import StateStore

_ANY_NUMBER = (1 << 53) - 1
"""Placeholder sequence number of a record that has none yet: no other number is longer."""
MAX_WAITING = 20_000
MAX_BATCH_EVENTS = 256
RETRY_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class EventRecorder:
    """Records the events of agents; `open` it after the log, and `run` it while the log is open."""

    audit: log_writer.AuditLog
    salts: log_secrets.PersonalSalts
    store: StateStore
    """Has the copy."""
    reread: Callable[[], Iterator[SeenEvent]] = lambda: iter(())
    """Events of all frames that the frame log replays at a restart."""
    max_waiting: int = MAX_WAITING
    wall_ns: Callable[[], int] = time.time_ns
    retry_seconds: float = RETRY_SECONDS
    tenant_of: event_records.TenantOf = lambda _source, _owner, _timestamp_ns: ""
    recorded: recorder_state.RecordedState = field(default_factory=recorder_state.RecordedState)
    nodes: node_recorder.NodeRecorder = field(default_factory=node_recorder.NodeRecorder)
    overflowed: int = 0
    """Number of events that did not fit and are read again."""
    unnumbered: int = 0
    """Number of events of agents too old to number them: they cannot be recorded."""
    problem: str = ""
    _queue: deque[SeenEvent] = field(default_factory=deque)
    _facts: deque[RecordDraft] = field(default_factory=deque)
    _size_before_batch: int | None = None
    """Size of the log before the batch that is being recorded; None between two batches."""
    _has_overflowed: bool = False
    _is_rereading: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def waiting_items(self) -> int:
        """Number of items that are not in the log yet, without those that will be read again."""
        return len(self._queue) + len(self._facts)

    def open(self) -> None:
        """Load the state of the log. Blocking; raises LogDamagedError, RecordError, UnusableLedgerError, OSError."""
        snapshot = recorder_state.load_recorded_state(self.store, self.audit)
        self.recorded = snapshot.recorded
        self.nodes.start(snapshot.recorded.nodes, snapshot.drafts)
        self._queue.extend(snapshot.seen_events())
        self._facts.extend(snapshot.drafts)
        previous, current = self.recorded.version, self.recorded.started
        kind = recorder_state.UPGRADE
        is_drafted = any(draft.type == kind and not draft.subject.node for draft in self._facts)
        if previous != current and not is_drafted:
            data: RecordData = {"before": previous, "version": current}
            actor = RecordActor("collector", self.audit.source.id)
            self._facts.append(RecordDraft(kind, actor, self.wall_ns(), "done", data=data))

    def catch_up(self) -> None:
        """Apply what another collector of the group has recorded, before this one receives frames. Blocking.

        Raises LogWriteError, LogDamagedError, UnusableLedgerError, OSError.
        """
        self.audit.follow()
        present = set[RecordSource]()
        for raw in self.audit.records(self.recorded.size):
            added = decode_audit_record(raw)
            self.recorded.add(added)
            present.add(added.src)
        self.recorded.size = self.audit.size
        # What agents have sent to the other collector again is recorded already.
        self.audit.own.drop_waiting(lambda raw: decode_audit_record(raw).src in present)
        self.nodes.start(self.recorded.nodes, self._facts)

    def check_envelope(self, record: FrameRecord, envelope: wire.Envelope) -> None:
        """Check an envelope for a new node, a boot, another agent version or a clock step."""
        if envelope.node.startswith(SWITCH_PREFIX):
            return  # what a collector reads itself begins again with each of its starts
        facts = self.nodes.observe(record, envelope)
        if facts:
            self._facts.extend(facts)
            self._wake.set()

    def queue_event(self, seen_event: SeenEvent) -> None:
        """Queue an event. Never waits."""
        if not event_records.is_audited(seen_event.event):
            return
        if not event_records.is_numbered(seen_event.event):
            if not self.unnumbered:
                log.warning(
                    "event_audit_skipped",
                    node=seen_event.node,
                    name=seen_event.event.name,
                    advice="update the agent: its events have no sequence numbers",
                )
            self.unnumbered += 1
        # After a restart, the frame log has many events that were recorded before.
        elif self.recorded.has(event_records.event_source(seen_event)):
            return
        elif len(self._queue) >= self.max_waiting:
            self.overflowed += 1
            self._has_overflowed = True
        else:
            self._queue.append(seen_event)
        self._wake.set()

    async def run(self) -> None:
        """Record queued events until cancelled, then store the rest for the next start."""
        # Events may have been queued before: by the copy, and by the replay of the frame log.
        self._wake.set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self.waiting_items:
                    await self._record_batch()
                if self._has_overflowed:
                    await self._reread_events()
        finally:
            # In this thread: the event loop ends, and nothing else waits for it.
            self.store_copy()

    def store_copy(self) -> None:
        """Store a copy, so that the next start does not read the whole log. Blocking."""
        content = self.snapshot()
        try:
            if content is not None:
                with self.store.transaction() as connection:
                    self.store.put_document(connection, recorder_state.DOCUMENT, content)
        except OSError as error:
            log.warning("audit_copy_write_failed", problem=str(error))

    async def _reread_events(self) -> None:
        """Read the events that did not fit from the frame log; those that overflow meanwhile, later."""
        log.warning("audit_events_reloaded", events=self.overflowed)
        self._has_overflowed, self._is_rereading = False, True
        events = self.reread()
        while missing := await service.run_in_thread(self._find_unrecorded, events):
            self._queue.extend(missing)
            while self.waiting_items:
                await self._record_batch()
        self._is_rereading = False

    def _find_unrecorded(self, events: Iterator[SeenEvent]) -> list[SeenEvent]:
        audited = (
            seen_event for seen_event in events if event_records.is_audited(seen_event.event)
        )
        numbered = (
            seen_event for seen_event in audited if event_records.is_numbered(seen_event.event)
        )
        missing = filterfalse(
            lambda seen_event: self.recorded.has(event_records.event_source(seen_event)), numbered
        )
        # Half of the bound leaves room for events that arrive meanwhile.
        return list(islice(missing, self.max_waiting // 2 or 1))

    async def _record_batch(self) -> None:
        """Record a batch; events leave the queue when all of them are in the log."""
        facts = list(islice(self._facts, MAX_BATCH_EVENTS))
        events = list(islice(self._queue, MAX_BATCH_EVENTS))
        while True:
            try:
                # In a thread: it may create files of salts.
                drafts = await service.run_in_thread(self._make_drafts, events)
                break
            except (OSError, log_secrets.SaltError) as error:
                await self._pause(str(error))
        recorded = [*facts, *drafts]
        self._size_before_batch = self.audit.size
        while recorded:
            try:
                await self.audit.append(*recorded)
                break
            except LogWriteError as error:
                await self._pause(str(error))
        for draft in recorded:
            self.recorded.add(build_record(draft, draft.source or self.audit.source, _ANY_NUMBER))
        self._size_before_batch, self.problem = None, ""
        # Only now: a cancellation before leaves them in the queues, and the copy contains them.
        for _ in facts:
            self._facts.popleft()
        for _ in events:
            self._queue.popleft()

    def _make_drafts(self, events: list[SeenEvent]) -> list[RecordDraft]:
        """Return the drafts of a batch, each based on the claims after the preceding ones. Off the loop."""
        keys = [seen_event.event.entity.key for seen_event in events]
        gpus = {event_records.normalize_text(key[0]) for key in keys if key}
        holdings = self.recorded.holdings.copy_of_gpus(gpus)
        batch_drafts: list[RecordDraft] = []
        numbers: set[tuple[str, str, int]] = set()
        for seen_event in events:
            source = event_records.event_source(seen_event)
            number = source.id, source.boot, source.n
            # An event may be queued twice: live, and by a reread after an overflow.
            if self.recorded.has(source) or number in numbers:
                continue
            numbers.add(number)
            try:
                converted = event_records.make_drafts(
                    seen_event, holdings, self.salts.make_commitment, self.tenant_of
                )
                drafts = list(converted)
                records = [
                    build_record(draft, draft.source or source, _ANY_NUMBER) for draft in drafts
                ]
                # Encoded once already here, where a record that is too large can be replaced by one about the problem.
                for record in records:
                    encode_audit_record(record)
            except RecordError as error:
                log.error("audit_event_rejected", node=seen_event.node, problem=str(error))
                batch_drafts.append(event_records.find_recording_problem(seen_event, error))
                continue
            # Applied tentatively: the claims of later events of the batch depend on them.
            for record in records:
                holdings.add(record)
            batch_drafts += drafts
        return batch_drafts

    async def _pause(self, problem: str) -> None:
        if problem != self.problem:
            log.error("audit_events_delayed", events=self.waiting_items, problem=problem)
        self.problem = problem
        await asyncio.sleep(self.retry_seconds)

    def snapshot(self, horizon_ns: int = 0) -> bytes | None:
        """Return the copy to store before frame log segments are deleted; None while they are still needed.

        Runs with their last record received before the horizon are dropped.
        """
        # The segments have events that nothing else has: they must not be deleted yet.
        if self._has_overflowed or self._is_rereading:
            return None
        self.recorded.forget_before(horizon_ns)
        # A waiting collector has not applied what the active one records; a batch may be in the log and not applied yet.
        if self.audit.is_active():
            size = self._size_before_batch
            self.recorded.size = self.audit.size if size is None else size
        events = [
            (seen_event.node, seen_event.boot_id, seen_event.event, seen_event.position)
            for seen_event in self._queue
            if seen_event.position
        ]
        copied = recorder_state.RecordedSnapshot(self.recorded, events, list(self._facts))
        return recorder_state.encode_snapshot(copied)
