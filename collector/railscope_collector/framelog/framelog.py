"""The frame log: accepted envelopes, append-only, durable before they are acknowledged.

Records that arrive together are written and synchronized together, then acknowledged; readers apply them afterwards.
`segment_files` describes their format on disk.

`frames.extent` beside the segments contains the durable end of the newest one; it is overwritten in place after each group,
without being synchronized, so a power loss can only make it smaller. Readers in other processes read up to it, and a start finds
by it what was lost at the end of the log. A loss is reported once; the log continues in a new segment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import structlog

from railscope.durable_files import (
    append_durably,
    sync_directory,
    truncate_durably,
    write_durably,
)
from railscope_collector.framelog import segment_files
from railscope_collector.framelog.log_follower import LogPosition

# Bounds the memory while a disk is slow: above it senders are rejected, and keep their envelopes in the spool.
MAX_WAITING_BYTES = 64 << 20
# Bounds one write with its fsync, for which every sender of the group waits.
MAX_GROUP_BYTES = 16 << 20
OnDurable: TypeAlias = Callable[[LogPosition], object]
"""Called when a record is durable, before its sender is answered, with the end of the record. It must be short."""


class FrameLogError(OSError):
    """The frame log cannot store records at present; the message states the reason."""


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _PendingAppend:
    """A record to be stored, and the future of its caller."""

    data: bytes
    on_durable: OnDurable
    future: asyncio.Future[None]

    def succeed(self, end: LogPosition) -> None:
        self.on_durable(end)
        # The caller may have been cancelled meanwhile; its record is stored all the same.
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: FrameLogError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True)
class FrameLog:
    """Appends records in groups."""

    directory: Path
    segment_bytes: int
    max_bytes: int
    stats: segment_files.FrameLogStats = field(default_factory=segment_files.FrameLogStats)
    lost: dict[str, str] = field(default_factory=dict)
    """Problem of each file that was lost before the start."""
    offset: int = field(default=0, init=False)
    """Bytes in the current segment."""
    number: int = field(default=0, init=False)
    """The number of the current segment."""
    _pending: list[_PendingAppend] = field(default_factory=list)
    _waiting_bytes: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _descriptor: int = -1
    _extent: int = -1
    """Descriptor of the file with the durable end."""
    _marker: bytes = b""
    _is_stopped: bool = False
    _bytes_written: int = 0
    _bytes_deleted: int = 0
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "frame-log"), init=False
    )
    """A thread of its own: in the shared pool, a group would wait for compression and queries."""

    def open(self) -> None:
        """Find the end of the log: after the last whole record of the newest segment. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        numbers = segment_files.segment_numbers(self.directory)
        newest = numbers[-1] if numbers else 0
        self.number, self.offset = newest or 1, self._intact_bytes(newest)
        # Nothing is written over what is left of a segment, and positions in the log increase.
        number, size = self._read_extent(has_segments=bool(numbers))
        if (number, size) > (newest, self.offset):
            found = f"has {self.offset} bytes" if number == newest else "is missing"
            self.lost[f"frames/{number:010d}"] = f"it {found}: expected {size} bytes"
            self.number, self.offset = number + 1, 0
        if self.number == newest:
            path = segment_files.segment_path(self.directory, newest)
            self._descriptor = os.open(path, os.O_WRONLY)
            # A crash while writing leaves a torn record, which no record may follow, and whole ones that are not on
            # the disk yet: a frame that is sent again is acknowledged without a write if one of them has it.
            truncate_durably(self._descriptor, self.offset)
            self._marker = segment_files.read_marker(path)
            # A crash may have preceded it: a power failure could remove the name of a segment with acknowledged
            # records.
            sync_directory(self.directory)
        self._bytes_written = sum(
            segment_files.segment_path(self.directory, n).stat().st_size
            for n in segment_files.segment_numbers(self.directory)
        )

    def begin(self) -> None:
        """Begin to write, and to store the durable end: nothing shows an earlier loss any more. Raises OSError."""
        if self._descriptor < 0:
            self._descriptor, self._marker = segment_files.start_segment(
                self.directory, self.number
            )
        path = self.directory.parent / segment_files.EXTENT
        write_durably(path, segment_files.encode_extent(self.number, self.offset))
        self._extent = os.open(path, os.O_WRONLY)

    def _intact_bytes(self, number: int) -> int:
        """Return the size of a segment up to the end of its last whole record; 0 if there is none."""
        if not number:
            return 0
        path = segment_files.segment_path(self.directory, number)
        records = segment_files.read_segment(path, segment_files.FrameLogStats())
        return max((end for end, _ in records), default=0)

    def _read_extent(self, *, has_segments: bool) -> tuple[int, int]:
        """Return the newest segment and its durable end as they were stored; zeros if they are lost."""
        problem = "missing file" if has_segments else ""
        try:
            if extent := segment_files.read_extent(self.directory.parent):
                return extent
        except ValueError as error:
            problem = str(error)
        if problem:
            self.lost[segment_files.EXTENT] = problem
        return 0, 0

    def continue_after(self, position: LogPosition) -> None:
        """Continue after the position of a reader; a log that ends before it has lost its end."""
        if (self.number, self.offset) < position:
            problem = f"the log ends in segment {self.number}: expected {position.segment}"
            self.lost["frames"] = problem
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self.number, self.offset = -1, position.segment + 1, 0

    @property
    def size(self) -> int:
        """Bytes of all segments. One thread writes while another deletes: each has its own counter."""
        return self._bytes_written - self._bytes_deleted

    async def append(self, record: segment_files.FrameRecord, on_durable: OnDurable) -> None:
        """Store a record, durable on return. Raises FrameLogError if it cannot be stored.

        `on_durable` is called in the order of the log, also if the caller was cancelled meanwhile.
        """
        # No task is left that would store the record: the caller would wait forever.
        if self._is_stopped:
            message = "the collector is stopping"
            raise FrameLogError(message)
        payload = segment_files.encode_record(record)
        if self._waiting_bytes + len(payload) > MAX_WAITING_BYTES:
            message = (
                "the frame log is overloaded: the disk does not keep up with the waiting envelopes"
            )
            raise FrameLogError(message)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(_PendingAppend(payload, on_durable, future))
        self._waiting_bytes += len(payload)
        self._wake.set()
        # If this is cancelled, the record is stored anyway; the sender's repetition is a duplicate.
        await future

    async def run(self) -> None:
        """Store pending records, group by group, until cancelled; pending records then fail."""
        try:
            while True:
                await self._wake.wait()
                # Before the records are taken: one that is appended during a write sets it again.
                self._wake.clear()
                while self._pending:
                    await self._store_group()
        finally:
            self._is_stopped = True
            for entry in self._pending:
                entry.fail(FrameLogError("the collector is stopping"))
            self._pending.clear()

    async def _store_group(self) -> None:
        group: list[_PendingAppend] = []
        size = 0
        while self._pending and size < MAX_GROUP_BYTES:
            group.append(self._pending.pop(0))
            size += len(group[-1].data)
        self._waiting_bytes = sum(len(entry.data) for entry in self._pending)
        ends, problem, cancelled = await self._write_group(group)
        if problem:
            reason = f"cannot write to {self.directory}: {problem.strerror or problem}"
            for entry in group:
                entry.fail(FrameLogError(reason))
        else:
            for entry, end in zip(group, ends, strict=True):
                entry.succeed(end)
        if cancelled:
            raise asyncio.CancelledError

    async def _write_group(
        self, group: list[_PendingAppend]
    ) -> tuple[list[LogPosition], OSError | None, bool]:
        """Write a group off the loop. Return the ends of its records, its error, and true if the task was cancelled.

        Cancellation waits for a write in progress: its durable records are acknowledged, and no other collector may
        write the file before it has ended.
        """
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(self._thread, self._write, [entry.data for entry in group])
        cancelled = False
        while not writing.done():
            try:
                await asyncio.wait({writing})
            except asyncio.CancelledError:
                cancelled = True
        problem = writing.exception()
        if problem is None:
            return writing.result(), None, cancelled
        if isinstance(problem, OSError):
            return [], problem, cancelled
        raise problem

    def _write(self, payloads: list[bytes]) -> list[LogPosition]:
        """Write a group and make it durable, or leave the file unchanged. Runs off the loop. Return the ends of its records."""
        started = time.perf_counter_ns()
        data = b"".join(segment_files.frame_payload(self._marker, payload) for payload in payloads)
        append_durably(self._descriptor, data, self.offset)
        ends, end = [], self.offset
        for payload in payloads:
            end += segment_files.HEAD.size + len(payload)
            ends.append(LogPosition(self.number, end))
        self.offset += len(data)
        self._bytes_written += len(data)
        # After the write: the recorded size is never more than the segment has.
        self._write_extent()
        self.stats.commits += 1
        self.stats.commit_ns += time.perf_counter_ns() - started
        # After the write: a record is never divided, so the last one may exceed the size.
        if self.offset >= self.segment_bytes:
            self._rotate()
        return ends

    def _rotate(self) -> None:
        """Continue in a new segment; if none can be created, the old one grows further."""
        try:
            self._begin(self.number + 1)
        # Not an error of the group, which is durable: its senders must get their acknowledgement.
        except OSError as error:
            log.error("segment_creation_failed", directory=str(self.directory), problem=str(error))

    def _begin(self, number: int) -> None:
        # Before the old descriptor is closed: on an error, the log continues in the old segment.
        descriptor, marker = segment_files.start_segment(self.directory, number)
        os.close(self._descriptor)
        self._descriptor, self._marker = descriptor, marker
        self.offset, self.number = 0, number
        self._write_extent()

    def _write_extent(self) -> None:
        os.pwrite(self._extent, segment_files.encode_extent(self.number, self.offset), 0)

    def delete_before(self, number: int) -> None:
        """Delete the oldest segments above the size bound, but none from `number` on."""
        # Oldest first, so that the remaining segments are consecutive.
        for candidate in segment_files.segment_numbers(self.directory):
            if self.size <= self.max_bytes or candidate >= number:
                return
            path = segment_files.segment_path(self.directory, candidate)
            size = path.stat().st_size
            path.unlink()
            self._bytes_deleted += size

    def close(self) -> None:
        """Close the file."""
        self._thread.shutdown(wait=True)
        for descriptor in (self._descriptor, self._extent):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._extent = -1
