"""Recording of agent events in the audit log, each event once.

An agent numbers its audited events, and the number is the record's `src.n`: it identifies events that are
received again, and an event that never arrived leaves a gap that `railscope audit verify` finds. Events
come from the frame log, live and again at a restart; events that are not recorded yet when a segment may be
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
from pathlib import Path

import structlog

from collector.audit import event_records, log_secrets, log_writer, recorder_state
from collector.fleet.fleet import SeenEvent
from collector.framelog.segment_files import FrameRecord
from collector.ledger.audit_outbox import RecordDraft, build_record
from railscope.audit.record import RecordActor, RecordData, RecordError, encode_audit_record
from railscope.durable_files import write_durably
from railscope.wire import Envelope

_ANY_NUMBER = (1 << 53) - 1
"""Placeholder sequence number of a record that has none yet: no other takes more bytes."""
MAX_WAITING = 20_000
MAX_BATCH_EVENTS = 256
RETRY_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class EventRecorder:
    """Records the events of agents; `open` it after the log, `run` it beside it."""

    audit: log_writer.AuditLog
    salts: log_secrets.PersonalSalts
    file: Path
    """Path of the copy."""
    reread: Callable[[], Iterator[SeenEvent]] = lambda: iter(())
    """Events of all frames that the frame log replays at a restart."""
    max_waiting: int = MAX_WAITING
    wall_ns: Callable[[], int] = time.time_ns
    retry_seconds: float = RETRY_SECONDS
    tenant_of: event_records.TenantOf = lambda _source, _owner, _instant_ns: ""
    recorded: recorder_state.RecordedState = field(default_factory=recorder_state.RecordedState)
    nodes: recorder_state.NodeRecorder = field(default_factory=recorder_state.NodeRecorder)
    overflowed: int = 0
    """Number of events that did not fit and are read again."""
    unnumbered: int = 0
    """Number of events of agents too old to number them: they cannot be recorded."""
    problem: str = ""
    _waiting: deque[SeenEvent] = field(default_factory=deque)
    _facts: deque[RecordDraft] = field(default_factory=deque)
    _behind: bool = False
    _reading: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def waiting(self) -> int:
        """Number of items that are not in the log yet, without those that are to be read again."""
        return len(self._waiting) + len(self._facts)

    def open(self) -> None:
        """Load the state of the log. Blocking; raises TileError, RecordError, OSError."""
        found = recorder_state.load_recorded_state(self.file, self.audit)
        self.recorded = found.recorded
        self.nodes.start(found.recorded.nodes, found.drafts)
        self._waiting.extend(found.seen())
        self._facts.extend(found.drafts)
        before, now = self.recorded.version, self.recorded.started
        kind = recorder_state.UPGRADE
        drafted = any(one.type == kind and not one.subject.node for one in self._facts)
        if before != now and not drafted:
            data: RecordData = {"before": before, "version": now}
            actor = RecordActor("collector", self.audit.source.id)
            self._facts.append(RecordDraft(kind, actor, self.wall_ns(), "done", data=data))

    def check_envelope(self, record: FrameRecord, envelope: Envelope) -> None:
        """Check an envelope for a new node, a boot, another agent version or a clock step."""
        facts = self.nodes.observe(record, envelope)
        if facts:
            self._facts.extend(facts)
            self._wake.set()

    def listen(self, seen: SeenEvent) -> None:
        """Queue an event. Never waits."""
        if not event_records.is_audited(seen.event):
            return
        if not event_records.is_numbered(seen.event):
            if not self.unnumbered:
                log.warning(
                    "event_audit_skipped",
                    node=seen.node,
                    name=seen.event.name,
                    advice="update the agent: its events have no sequence numbers",
                )
            self.unnumbered += 1
        elif self.recorded.has(event_records.event_source(seen)):
            return
        elif len(self._waiting) >= self.max_waiting:
            self.overflowed += 1
            self._behind = True
        else:
            self._waiting.append(seen)
        self._wake.set()

    async def run(self) -> None:
        """Record queued events until cancelled, then store the rest for the next start."""
        self._wake.set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self.waiting:
                    await self._record_some()
                if self._behind:
                    await self._read_again()
        finally:
            self._keep()

    def _keep(self) -> None:
        """Store a copy, so that the next start need not read the whole log. Blocking."""
        content = self.snapshot()
        try:
            if content is not None:
                write_durably(self.file, content)
        except OSError as error:
            log.warning("audit_copy_write_failed", file=str(self.file), problem=error.strerror)

    async def _read_again(self) -> None:
        """Read the events that did not fit from the frame log; those that overflow meanwhile, later."""
        log.warning("audit_events_reloaded", events=self.overflowed)
        self._behind, self._reading = False, True
        events = self.reread()
        while found := await asyncio.to_thread(self._missing_from, events):
            self._waiting.extend(found)
            while self.waiting:
                await self._record_some()
        self._reading = False

    def _missing_from(self, events: Iterator[SeenEvent]) -> list[SeenEvent]:
        audited = (seen for seen in events if event_records.is_audited(seen.event))
        numbered = (seen for seen in audited if event_records.is_numbered(seen.event))
        missing = filterfalse(
            lambda seen: self.recorded.has(event_records.event_source(seen)), numbered
        )
        return list(islice(missing, self.max_waiting // 2 or 1))

    async def _record_some(self) -> None:
        """Record a batch; events leave the queue when all of them are in the log."""
        facts = list(islice(self._facts, MAX_BATCH_EVENTS))
        events = list(islice(self._waiting, MAX_BATCH_EVENTS))
        while True:
            try:
                drafts = await asyncio.to_thread(self._drafts, events)
                break
            except (OSError, log_secrets.SaltError) as error:
                await self._pause(str(error))
        await self._append([*facts, *drafts])
        for _ in events:
            self._waiting.popleft()

    def _drafts(self, events: list[SeenEvent]) -> list[RecordDraft]:
        """Return the drafts of a batch, each based on the claims after the preceding ones. Off the loop."""
        keys = [seen.event.entity.key for seen in events]
        gpus = {event_records.normalize_text(key[0]) for key in keys if key}
        holdings = self.recorded.holdings.part(gpus)
        found: list[RecordDraft] = []
        numbers: set[tuple[str, str, int]] = set()
        for seen in events:
            source = event_records.event_source(seen)
            number = source.id, source.boot, source.n
            if self.recorded.has(source) or number in numbers:
                continue
            numbers.add(number)
            try:
                converted = event_records.make_drafts(
                    seen, holdings, self.salts.commitment, self.tenant_of
                )
                drafts = list(converted)
                records = [build_record(one, one.source or source, _ANY_NUMBER) for one in drafts]
                for record in records:
                    encode_audit_record(record)
            except RecordError as error:
                log.error("audit_event_rejected", node=seen.node, problem=str(error))
                found.append(event_records.find_recording_problem(seen, error))
                continue
            for record in records:
                holdings.add(record)
            found += drafts
        return found

    async def _append(self, drafts: list[RecordDraft]) -> None:
        """Append all drafts to the log, retrying until it succeeds."""
        while drafts:
            appended = (self.audit.append(draft) for draft in drafts)
            answers = await asyncio.gather(*appended, return_exceptions=True)
            left: list[RecordDraft] = []
            problem = ""
            for draft, answer in zip(drafts, answers, strict=True):
                if isinstance(answer, int):
                    source = draft.source or self.audit.source
                    self.recorded.add(build_record(draft, source, answer))
                    if draft.source is None and draft in self._facts:
                        self._facts.remove(draft)  # no number identifies it in the log
                elif isinstance(answer, log_writer.AuditError):
                    left.append(draft)
                    problem = str(answer)
                else:
                    raise answer
            drafts = left
            if problem:
                await self._pause(problem)
        self.problem = ""

    async def _pause(self, problem: str) -> None:
        if problem != self.problem:
            log.error("audit_events_delayed", events=self.waiting, problem=problem)
        self.problem = problem
        await asyncio.sleep(self.retry_seconds)

    def snapshot(self, horizon_ns: int = 0) -> bytes | None:
        """Return the copy to store before frame log segments are deleted; None while they are still needed.

        Runs with their last record received before the horizon are dropped.
        """
        if self._behind or self._reading:
            return None
        self.recorded.forget_before(horizon_ns)
        events = [
            (one.node, one.boot_id, one.event, one.position)
            for one in self._waiting
            if one.position
        ]
        copied = recorder_state.RecordedSnapshot(self.recorded, events, list(self._facts))
        return recorder_state.encode_snapshot(copied)
