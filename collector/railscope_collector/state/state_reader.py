"""Reader of the frame log in the collector's process: applies durable records to the state, after they were acknowledged.

Records that have just become durable come decoded from ingest, in the order of the log. Those of an earlier start, and those
that did not fit in the queue while the state was behind, are read from the log. The position is the end of the last record
that was applied; a record that comes both ways is applied once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from railscope import service, wire
from railscope_collector.framelog import framelog
from railscope_collector.framelog.log_follower import LOG_START, LogFollower, LogPosition
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.state_checkpointer import StateCheckpointer
from railscope_collector.work_limits import TimeSlices

MAX_QUEUED_BYTES = 64 << 20
"""Bodies of records that wait decoded; further ones are read from the log."""
RETRY_SECONDS = 5.0
ANSWER_SECONDS = 0.003
"""Delay before a record is applied, in which the senders of its group are answered: each answer passes the loop several times."""

log = structlog.get_logger(__name__)


class DurableRecord(NamedTuple):
    """A record that waits to be applied."""

    end: LogPosition
    record: FrameRecord
    envelope: wire.Envelope
    acknowledged: int = 0
    """Position of its acknowledgement; 0 without a shared database."""


@dataclass(slots=True)
class StateReader:
    """Applies records in order; `run` it while the log runs."""

    core: CollectorState
    checkpointer: StateCheckpointer
    position: LogPosition = LOG_START
    on_segment: list[Callable[[int], None]] = field(default_factory=list)
    """Called with the number of a segment when all records before it are in the state."""
    restored: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the records of earlier starts are in the state."""
    _queue: deque[DurableRecord] = field(default_factory=deque)
    _queued_bytes: int = 0
    _newest: LogPosition = LOG_START
    _is_behind: bool = False
    """True while records are read from the log: those that have just become durable are there, too."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _is_woken: bool = False

    @property
    def waiting(self) -> int:
        """Number of decoded records that wait."""
        return len(self._queue)

    async def wait_until_applied(self) -> None:
        """Wait until the state has all records that are durable now."""
        end = self._newest
        while self.position < end:  # noqa: ASYNC110 - for tests and the end of a program
            await asyncio.sleep(0.001)

    def restore(
        self, frames: framelog.FrameLog, corrections: Mapping[int, int], *, is_shared: bool
    ) -> int:
        """Restore what acknowledgements need, and begin after it; return the newest time. Blocking; raises OSError.

        The rest of the records is applied while frames are received. With a shared database (`is_shared`), all are
        applied first, and so they are if one does not state which of its frames were new.
        """
        checkpointer, newest_ns = self.checkpointer, 0
        checkpointer.open(corrections)
        if is_shared or not checkpointer.is_stated():
            checkpointer.replay(frames.stats)
            self.restored.set()
        else:
            newest_ns = checkpointer.read_received(frames.stats)
            self._is_behind = True
        frames.continue_at(checkpointer.first_segment)
        self.core.schemas.segment = frames.number
        end = LogPosition(frames.number, frames.offset)
        self.position = LogPosition(checkpointer.first_segment or 1) if self._is_behind else end
        of_nodes = (node.timestamp_ns for node in self.core.fleet.nodes.values())
        return max(newest_ns, max(of_nodes, default=0))

    def put(
        self, record: FrameRecord, envelope: wire.Envelope, end: LogPosition
    ) -> dict[str, str | int]:
        """Take a record that has become durable; return the positions for its acknowledgement."""
        self._newest = end
        statements = envelope if envelope.ended or envelope.delivered else None
        self.core.record_durable(record, statements)
        answer = self.core.evidence.intervals.unstored.acknowledge(record.node, is_applied=False)
        number = int(answer.get("position", 0))
        if not self._is_behind:
            self._queue.append(DurableRecord(end, record, envelope, number))
            self._queued_bytes += len(record.body)
            self._is_behind = self._queued_bytes > MAX_QUEUED_BYTES
            if not self._is_woken:
                self._is_woken = True
                asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._wake.set)
        return answer

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
        follower = LogFollower(self.checkpointer.directory / "frames", self.position)
        try:
            while True:
                records = await service.run_in_thread(follower.read)
                if not records and self._newest <= self.position:
                    # In one step with the test: what becomes durable from here on is queued.
                    self._is_behind = False
                    return
                for record in records:
                    await self._apply_read(record, follower.position.segment, slices)
                self._advance(follower.position)
        except OSError as error:
            log.error("frame_log_read_failed", problem=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            follower.close()

    async def _apply_read(self, record: FrameRecord, segment: int, slices: TimeSlices) -> None:
        checkpointer = self.checkpointer
        record = checkpointer.correct_receipt(record)
        try:
            envelope = checkpointer.unpack(record)
            checkpointer.check(envelope)
        except (ValueError, LookupError, ArithmeticError) as error:
            checkpointer.quarantine.put(segment, record, str(error))
            checkpointer.skipped += 1
            return
        faults = self.core.counts.rejected.get("fault", 0)
        await self._run_steps(self.core.steps(record, envelope), 0, slices)
        if self.core.counts.rejected.get("fault", 0) > faults:
            checkpointer.quarantine.put(segment, record, "the state rejected it")
            checkpointer.skipped += 1

    async def _apply(self, item: DurableRecord, slices: TimeSlices) -> None:
        if item.end <= self.position:
            return  # it was read from the log
        if item.end.segment > self.position.segment:
            self._advance(LogPosition(item.end.segment))
        await self._run_steps(
            self.core.steps(item.record, item.envelope), item.acknowledged, slices
        )
        self.core.evidence.intervals.unstored.end_apply(item.record.node, item.acknowledged)
        self.position = item.end

    async def _run_steps(
        self, steps: Iterator[None], acknowledged: int, slices: TimeSlices
    ) -> None:
        unstored = self.core.evidence.intervals.unstored
        while True:
            # Facts are of the position of their acknowledgement, however late they are recorded.
            unstored.applied = acknowledged
            is_ended = next(steps, unstored) is unstored
            unstored.applied = 0
            if is_ended:
                return
            await slices.yield_if_due()

    def _advance(self, position: LogPosition) -> None:
        is_next = position.segment > self.position.segment
        self.position = position
        if is_next:
            self.core.schemas.segment = max(self.core.schemas.segment, position.segment)
            for listener in self.on_segment:
                listener(position.segment)
