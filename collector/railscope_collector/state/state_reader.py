"""Reader of the frame log in the collector's process: applies durable records to the state, after they were acknowledged.

Records that have just become durable come decoded from ingest, in the order of the log. Those of an earlier start, and those
that did not fit in the queue while the state was behind, are read from the log. The position is the end of the last record
that was applied; a record that comes both ways is applied once.

A record that cannot be decoded, that would exceed the bounds of a restart, or that the state did not accept must not end the
collector at each start. It is skipped, counted, and copied to the table `quarantined_records`, as its segment will be deleted
eventually.

With a shared database, each acknowledgement names the state directory, the position of the record in its log, and the position
up to which all facts of the node are in the database: every fact in memory or on disk has the position from which on records
added to it. An incomplete state gets a new identity: then agents send again what was not stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from secrets import token_hex
from sqlite3 import Connection
from typing import NamedTuple

import msgspec
import structlog

from railscope import envelopes, service, wire
from railscope_collector.config import IngestLimits
from railscope_collector.evidence import waiting_evidence
from railscope_collector.framelog import segment_files
from railscope_collector.framelog.framelog import FrameLog
from railscope_collector.framelog.log_follower import LOG_START, LogFollower, LogPosition
from railscope_collector.state import envelope_cost
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.state_snapshots import StateSnapshots
from railscope_collector.state_store import StateStoreError
from railscope_collector.work_limits import TimeSlices

MAX_QUEUED_BYTES = 4 << 20
"""Bodies of records that wait decoded, which take six times as much memory; further ones are read from the log."""
MAX_QUARANTINE_BYTES = 256 << 20
"""Maximum size of quarantined records. Above it, further ones are counted and stay in their segments."""
MIN_REPLAYED_BYTES = 64 << 20
"""Lower bound of the decompressed size accepted at a restart, in case limits were lowered since."""
RETRY_SECONDS = 5.0
ANSWER_SECONDS = 0.003
"""Delay before a record is applied, in which the senders of its group are answered: each answer passes the loop several times."""
IDENTITY = "identity"
"""Document with the identity of the state directory, with a shared database only."""
QUARANTINE = """CREATE TABLE IF NOT EXISTS quarantined_records (
    digest BLOB PRIMARY KEY, segment INTEGER NOT NULL, node TEXT NOT NULL, problem TEXT NOT NULL, content BLOB NOT NULL
) STRICT"""
_REJECTED = "the state rejected it: see envelope_processing_failed"

log = structlog.get_logger(__name__)


class DurableRecord(NamedTuple):
    """A record that waits to be applied."""

    end: LogPosition
    record: segment_files.FrameRecord
    envelope: wire.Envelope


@dataclass(slots=True)
class StateReader:
    """Applies records in order; `run` it while the log runs."""

    core: CollectorState
    frames: FrameLog
    snapshots: StateSnapshots
    waiting: waiting_evidence.WaitingEvidence
    limits: IngestLimits = field(default_factory=IngestLimits)
    max_queued_bytes: int = MAX_QUEUED_BYTES
    position: LogPosition = LOG_START
    restored: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the records of earlier starts are in the state."""
    corrections: Mapping[int, int] = field(default_factory=dict)
    """Shift of receipts to later times, by the start of the clock's doubt."""
    quarantined: int = 0
    """Quarantined records, and those since the start that did not fit."""
    skipped: int = 0
    """Records that this start skipped: the database has none of their evidence."""
    _queue: deque[DurableRecord] = field(default_factory=deque)
    _queued_bytes: int = 0
    _newest: LogPosition = LOG_START
    _is_behind: bool = False
    """True while records are read from the log: those that have just become durable are there, too."""
    _identity: str = ""
    """Identity of the state directory, with a shared database."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _is_woken: bool = False

    # Start -------------------------------------------------------------------------------------

    def restore(self, *, is_shared: bool = False) -> int:
        """Restore what acknowledgements need, and begin after it; return the newest time. Blocking; raises OSError.

        The rest of the records is applied while frames are received. With a shared database (`is_shared`), all are
        applied first, and so they are if one does not state which of its frames were new.
        """
        store = self.snapshots.store
        store.create(QUARANTINE)
        ((self.quarantined,),) = store.read("SELECT count(*) FROM quarantined_records") or [(0,)]
        # Before the replay, which would add the same intervals to memory.
        self.waiting.open()
        self.snapshots.restore()
        if self.waiting.lost:
            # A lost one is written again when its agent repeats it.
            self.core.evidence.claims.nodes.clear()
        self.set_position(self.snapshots.position)
        newest_ns = self._read_received(is_applied=is_shared)
        of_nodes = (node.timestamp_ns for node in self.core.fleet.nodes.values())
        return max(newest_ns, max(of_nodes, default=0))

    def _read_received(self, *, is_applied: bool) -> int:
        """Record the frames of the later records as received; apply these records if that is asked, or needed."""
        newest_ns = 0
        is_first = True
        for position, record in self._records():
            if is_first and record.accepted is None:
                is_applied = True  # of an earlier version, which is before all others
            is_first = False
            newest_ns = max(newest_ns, record.received_wall_ns)
            if is_applied:
                self.core.schemas.segment = position.segment
                # Its facts have the position after the snapshot: no later one than that of their record.
                self._replay(record, position)
                continue
            envelope = None
            if record.has_statements:
                with contextlib.suppress(wire.WireError):
                    envelope = self._unpack(record)
            self.core.record_durable(record, envelope)
        if is_applied or is_first:
            self.set_position(LogPosition(self.frames.number, self.frames.offset))
            self.restored.set()
        self._is_behind = not self.restored.is_set()
        return newest_ns

    def _records(self) -> Iterator[tuple[LogPosition, segment_files.FrameRecord]]:
        """Yield the records after the newest snapshot, with positions up to which all before them were read."""
        follower = LogFollower(self.frames.directory, self.snapshots.position)
        try:
            while records := follower.read():
                for record in records:
                    yield follower.position, self._correct_receipt(record)
        finally:
            self.frames.stats.damaged_records = follower.damaged_records
            self.frames.stats.lost_segments = follower.lost_segments
            follower.close()

    def _replay(self, record: segment_files.FrameRecord, position: LogPosition) -> None:
        """Apply a record of an earlier start."""
        envelope, problem = self._open(record)
        if envelope is not None:
            schemas = {batch.schema for batch in envelope.batches}
            if unknown := {each for each in schemas if self.core.schemas.get(each) is None}:
                # Not received: with a shared database, agents send it again with its shapes and names.
                self.core.counts.unknown_schemas |= unknown
                self.skipped += 1
                return
            faults = self._faults
            self.core.accept(record, envelope)
            problem = _REJECTED if self._faults > faults else ""
        if problem:
            self._quarantine(position, record, problem)

    def open_record(
        self, record: segment_files.FrameRecord
    ) -> tuple[segment_files.FrameRecord, wire.Envelope]:
        """Return a record of the log for another reader, with its receipt corrected, and its envelope. Raises WireError."""
        return self._correct_receipt(record), self._unpack(record)

    def begin_positions(self, *, is_incomplete: bool) -> None:
        """Begin to name positions in acknowledgements, after the state was restored. Blocking; raises OSError.

        If evidence that waited on disk is lost, all frames that agents send again count as new.
        """
        self.core.receipts.is_awaited = True
        store = self.snapshots.store
        self._identity = (store.document(IDENTITY) or b"").decode()
        if self.waiting.lost:
            self.core.received.clear()
        # Agents compare this identity: a new one makes them send again what the lost files may have contained.
        if not self._identity or is_incomplete or self.skipped:
            self._identity = token_hex(16)
            with store.transaction() as connection:
                store.put_document(connection, IDENTITY, self._identity.encode())

    # Live --------------------------------------------------------------------------------------

    async def wait_until_applied(self) -> None:
        """Wait until the state has all records that are durable now."""
        end = self._newest
        while self.position < end:  # noqa: ASYNC110 - for tests and the end of a program
            await asyncio.sleep(0.001)

    def put(
        self, record: segment_files.FrameRecord, envelope: wire.Envelope, end: LogPosition
    ) -> dict[str, str | int]:
        """Take a record that has become durable; return the positions for its acknowledgement."""
        self._newest = end
        self.core.record_durable(record, envelope if record.has_statements else None)
        if not self._is_behind:
            self._queue.append(DurableRecord(end, record, envelope))
            self._queued_bytes += len(record.body)
            self._is_behind = self._queued_bytes > self.max_queued_bytes
            if not self._is_woken:
                self._is_woken = True
                asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._wake.set)
        return self.acknowledge(record.node)

    def acknowledge(self, node: str) -> dict[str, str | int]:
        """Return the newest position, and that up to which all facts of a node are in a shared database."""
        if not self._identity:
            return {}
        # Records that are not applied yet count as missing, and so do facts that are being written: the transaction may fail.
        stored = self.position.number
        for first in (self.core.evidence.first_position(node), self.waiting.first.get(node)):
            stored = stored if first is None else min(stored, first - 1)
        newest = max(self._newest, self.position).number
        return {"log": self._identity, "position": newest, "stored": max(stored, 0)}

    async def run(self) -> None:
        """Apply records until cancelled."""
        slices = TimeSlices()
        while True:
            while self._queue:
                await self._apply(self._queue[0], slices)
                item = self._queue.popleft()
                self._queued_bytes -= len(item.record.body)
            if self._is_behind:
                await self._catch_up(slices)
                continue
            self.restored.set()
            self._is_woken = False
            self._wake.clear()
            await self._wake.wait()

    async def _catch_up(self, slices: TimeSlices) -> None:
        """Read the records after the position from the log, up to its end."""
        directory = self.frames.directory
        follower = LogFollower(directory, self.position, state_directory=directory.parent)
        try:
            while True:
                records = await service.run_in_thread(follower.read)
                if not records and self._newest <= self.position:
                    # In one step with the test: what becomes durable from here on is queued.
                    self._is_behind = False
                    return
                for record in map(self._correct_receipt, records):
                    envelope, problem = self._open(record)
                    if envelope is not None:
                        problem = await self._run_steps(record, envelope, slices)
                    if problem:
                        await service.run_in_thread(
                            self._quarantine, follower.position, record, problem
                        )
                self._advance(follower.position)
        except OSError as error:
            log.error("frame_log_read_failed", problem=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            follower.close()

    async def _apply(self, item: DurableRecord, slices: TimeSlices) -> None:
        if item.end <= self.position:  # it was read from the log
            return
        if item.end.segment > self.position.segment:
            self._advance(LogPosition(item.end.segment))
        problem = await self._run_steps(item.record, item.envelope, slices)
        if problem:
            await service.run_in_thread(self._quarantine, item.end, item.record, problem)
        self.set_position(item.end)

    async def _run_steps(
        self, record: segment_files.FrameRecord, envelope: wire.Envelope, slices: TimeSlices
    ) -> str:
        """Apply a record; return the problem if the state does not accept it."""
        faults = self._faults
        for _ in self.core.steps(record, envelope):
            await slices.yield_if_due()
        return _REJECTED if self._faults > faults else ""

    @property
    def _faults(self) -> int:
        return self.core.counts.rejected.get("fault", 0)

    def _advance(self, position: LogPosition) -> None:
        is_next = 0 < self.position.segment < position.segment
        self.set_position(position)
        if is_next:
            self.core.schemas.segment = max(self.core.schemas.segment, position.segment)
            self.snapshots.note_segment(position)

    def set_position(self, position: LogPosition) -> None:
        """Record that all records up to a position are applied: facts that are recorded now are of a later one."""
        self.position = position
        self.core.evidence.quarters.applied = position.number

    # Records -----------------------------------------------------------------------------------

    def _correct_receipt(self, record: segment_files.FrameRecord) -> segment_files.FrameRecord:
        """Return a record with its receipt corrected by later decisions about the clock."""
        delta_ns = self.corrections.get(record.doubted_since_ns, 0)
        if not delta_ns:
            return record
        received_ns = record.received_wall_ns + delta_ns
        return msgspec.structs.replace(record, received_wall_ns=received_ns, corrected_ns=delta_ns)

    def _unpack(self, record: segment_files.FrameRecord) -> wire.Envelope:
        """Return the envelope of a record. Raises WireError."""
        max_bytes = max(
            envelope_cost.REPLAY_FACTOR * self.limits.decompressed_bytes, MIN_REPLAYED_BYTES
        )
        return envelopes.open_body(record.body, max_bytes).decode_envelope()

    def _open(self, record: segment_files.FrameRecord) -> tuple[wire.Envelope | None, str]:
        """Return the envelope of a record of the log; or None, and why it is beyond the bounds of a restart."""
        try:
            envelope = self._unpack(record)
            used = (self.core.schemas.get(batch.schema) for batch in envelope.batches)
            cost = envelope_cost.envelope_cost(envelope, used)
            factor, max_gaps = envelope_cost.REPLAY_FACTOR, self.limits.gaps_per_stream
            problems = [
                *envelope_cost.find_exceeded_bounds(cost, self.limits, factor),
                *self.core.find_sequence_problems(envelope, max_gaps, factor),
            ]
        except (ValueError, LookupError, ArithmeticError) as error:
            problems = [str(error)]
        return (None, "; ".join(problems)) if problems else (envelope, "")

    def _quarantine(
        self, position: LogPosition, record: segment_files.FrameRecord, problem: str
    ) -> None:
        """Store a record apart, each once. Blocking."""
        content, store = segment_files.encode_record(record), self.snapshots.store
        log.error(
            "record_quarantined",
            node=record.node,
            segment=position.segment,
            problem=problem,
            size_bytes=len(record.body),
        )
        self.skipped += 1
        digest = _digest(content)
        try:
            if store.read("SELECT 1 FROM quarantined_records WHERE digest = ?", (digest,)):
                return
            self.quarantined += 1
            ((size,),) = store.read(
                "SELECT coalesce(sum(length(content)), 0) FROM quarantined_records"
            )
            if size + len(content) > MAX_QUARANTINE_BYTES:
                return
            with store.transaction() as connection:
                insert_quarantined(connection, position.segment, record.node, problem, content)
        # The restart must not depend on it: the record is still in its segment.
        except StateStoreError as error:
            log.error("quarantine_write_failed", problem=str(error))


def insert_quarantined(
    connection: Connection, segment: int, node: str, problem: str, content: bytes
) -> None:
    """Store a record apart. Raises sqlite3.Error."""
    row = _digest(content), segment, node, problem, content
    connection.execute("INSERT OR IGNORE INTO quarantined_records VALUES (?, ?, ?, ?, ?)", row)


def _digest(content: bytes) -> bytes:
    """Return the hash of a record, by which each restart finds the same one and stores it once."""
    return blake2b(content, digest_size=16).digest()
