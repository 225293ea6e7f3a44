"""The frame log: accepted envelopes, append-only, durable before they are acknowledged.

Records that arrive together are written and synchronized together, then applied to the state, then
acknowledged. `segment_files` describes their format on disk.

Records of one node are found by an index of the segments, which is built as queries need them, from the headers only.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeAlias

import msgspec
import structlog

from railscope import untrusted_text
from railscope.durable_files import append_durably, sync_directory
from railscope_collector.framelog import segment_files
from railscope_collector.framelog.segment_files import HEAD

MAX_WAITING_BYTES = 64 << 20
MAX_GROUP_BYTES = 16 << 20
APPLY_SLICE_SECONDS = 0.005
"""Work on durable records after which requests and other tasks get a turn."""
AfterWrite: TypeAlias = Callable[[], Iterable[None] | None]
"""Applies a record to the state; in steps if that is long."""


class FrameLogError(OSError):
    """The frame log cannot store records at present; the message states the reason."""


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _PendingAppend:
    """A record to be stored, and the future of its caller."""

    data: bytes
    after_write: AfterWrite
    future: asyncio.Future[None]

    def succeed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: FrameLogError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True)
class FrameLog:
    """Appends records in groups.

    When a segment is full and all of it has been applied to the state, `on_rotate` is called with
    the number of the next segment.
    """

    directory: Path
    segment_bytes: int
    max_bytes: int
    stats: segment_files.FrameLogStats = field(default_factory=segment_files.FrameLogStats)
    on_rotate: Callable[[int], None] | None = None
    files: segment_files.StateFiles | None = None
    """Records the segments, to detect later losses."""
    offset: int = field(default=0, init=False)
    """Bytes in the current segment."""
    number: int = field(default=0, init=False)
    """The number of the current segment."""
    _pending: list[_PendingAppend] = field(default_factory=list)
    _waiting_bytes: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _descriptor: int = -1
    _marker: bytes = b""
    _is_stopped: bool = False
    _bytes_written: int = 0
    _bytes_deleted: int = 0

    def open(self) -> None:
        """Open the newest segment after its last whole record. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        numbers = segment_files.segment_numbers(self.directory)
        fresh_segment = self.files.fresh_segment if self.files else 0
        self.number = fresh_segment or (numbers[-1] if numbers else 1)
        if numbers and not fresh_segment:
            path = segment_files.segment_path(self.directory, self.number)
            for end, _ in segment_files.read_segment(path, segment_files.FrameLogStats()):
                self.offset = end
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            os.ftruncate(self._descriptor, self.offset)
            self._marker = segment_files.read_marker(path)
        else:
            self._descriptor, self._marker = segment_files.start_segment(
                self.directory, self.number
            )
        sync_directory(self.directory)
        self._bytes_written = sum(
            segment_files.segment_path(self.directory, n).stat().st_size
            for n in segment_files.segment_numbers(self.directory)
        )

    def continue_at(self, number: int) -> None:
        """Begin a later segment: a restart does not read those before it. Raises OSError."""
        if number > self.number:
            self._begin(number)

    @property
    def size(self) -> int:
        """Bytes of all segments. One thread writes while another deletes: each has its own counter."""
        return self._bytes_written - self._bytes_deleted

    async def append(self, record: segment_files.FrameRecord, after_write: AfterWrite) -> None:
        """Store a record; call `then` once it is durable, and return after that.

        `then` applies the record to the state. It runs before the segment can be closed, so that
        the state in a checkpoint contains all records of the segments before it. Raises FrameLogError if
        the record cannot be stored.
        """
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
        self._pending.append(_PendingAppend(payload, after_write, future))
        self._waiting_bytes += len(payload)
        self._wake.set()
        await future

    async def run(self) -> None:
        """Store pending records, group by group, until cancelled; pending records then fail."""
        try:
            while True:
                await self._wake.wait()
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
        number = self.number
        problem, cancelled = await self._write_group(group)
        if problem:
            reason = f"cannot write to {self.directory}: {problem.strerror or problem}"
            for entry in group:
                entry.fail(FrameLogError(reason))
        elif cancelled:
            for entry in group:
                for _ in entry.after_write() or ():
                    pass
                entry.succeed()
        else:
            await self._apply_group(group)
        if cancelled:
            raise asyncio.CancelledError
        if self.number != number and self.on_rotate:
            self.on_rotate(self.number)

    async def _write_group(self, group: list[_PendingAppend]) -> tuple[OSError | None, bool]:
        """Write a group off the loop. Return its error, and true if the task was cancelled.

        Cancellation waits for a write in progress: its durable records are applied and
        acknowledged, and no other collector may write the file before it has ended.
        """
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, self._write, [entry.data for entry in group])
        cancelled = False
        while not writing.done():
            try:
                await asyncio.wait({writing})
            except asyncio.CancelledError:
                cancelled = True
        problem = writing.exception()
        if problem is None or isinstance(problem, OSError):
            return problem, cancelled
        raise problem

    async def _apply_group(self, group: list[_PendingAppend]) -> None:
        """Apply durable records to the state in slices, and acknowledge each of them."""
        applied = 0
        since = time.perf_counter()
        try:
            for entry in group:
                for _ in chain(entry.after_write() or (), (None,)):
                    if time.perf_counter() - since >= APPLY_SLICE_SECONDS:
                        await asyncio.sleep(0)
                        since = time.perf_counter()
                entry.succeed()
                applied += 1
        finally:
            for entry in group[applied:]:
                entry.fail(FrameLogError("the collector is stopping"))

    def _write(self, payloads: list[bytes]) -> None:
        """Write a group and make it durable, or leave the file unchanged. Runs off the loop."""
        started = time.perf_counter_ns()
        data = b"".join(segment_files.frame_payload(self._marker, payload) for payload in payloads)
        append_durably(self._descriptor, data, self.offset)
        self.offset += len(data)
        self._bytes_written += len(data)
        if self.files:
            self.files.record_written(self.number, self.offset)
        self.stats.commits += 1
        self.stats.commit_ns += time.perf_counter_ns() - started
        if self.offset >= self.segment_bytes:
            self._rotate()

    def _rotate(self) -> None:
        """Continue in a new segment; if none can be created, the old one grows further."""
        full_segment, size = self.number, self.offset
        try:
            self._begin(full_segment + 1)
            if self.files:
                self.files.sealed(full_segment, size)
                self.files.record_written(full_segment + 1, 0)
        except OSError as error:
            log.error("segment_creation_failed", directory=str(self.directory), problem=str(error))

    def _begin(self, number: int) -> None:
        descriptor, marker = segment_files.start_segment(self.directory, number)
        sync_directory(self.directory)
        os.close(self._descriptor)
        self._descriptor, self._marker = descriptor, marker
        self.offset, self.number = 0, number

    def delete_before(self, number: int) -> None:
        """Delete the oldest segments above the size bound, but none from `number` on."""
        for candidate in segment_files.segment_numbers(self.directory):
            if self.size <= self.max_bytes or candidate >= number:
                return
            path = segment_files.segment_path(self.directory, candidate)
            size = path.stat().st_size
            if self.files:
                self.files.record_deletion(candidate)
            path.unlink()
            self._bytes_deleted += size

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


MAX_INDEXED_RECORDS = 1 << 21
"""Records in the index, about 40 MiB; of 1,000 nodes that send every 10 seconds, those of almost six hours."""
MAX_SCANNED_BYTES = 16 << 30
"""Bytes of segments that one query may add to the index."""
PREFIX_BYTES = 1100
"""Bytes of a payload that contain the node and the time of receipt."""
_FIXED_ARRAY, _SHORT_TEXT, _TEXT_8, _TEXT_16, _LONG = 0x90, 0xA0, 0xD9, 0xDA, 0xCF
_decoder = msgspec.msgpack.Decoder(segment_files.FrameRecord)


class RecordPositions(NamedTuple):
    """Offsets in a segment of the records of one node, and their times of receipt."""

    offsets: array[int]
    received_ns: array[int]


@dataclass(slots=True)
class SegmentIndex:
    """The records of a segment by node, up to an offset, and the receipt of the first one."""

    path: Path
    marker: bytes
    end: int = 0
    first_ns: int = 0
    records: int = 0
    nodes: dict[str, RecordPositions] = field(default_factory=dict)

    def extend(self) -> None:
        """Add the records after the last one that is known. Blocking; raises OSError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # one page of each record
            for position, node, received_ns in self._scan(descriptor):
                found = self.nodes.setdefault(node, RecordPositions(array("Q"), array("q")))
                found.offsets.append(position)
                found.received_ns.append(received_ns)
                self.first_ns = self.first_ns or received_ns
                self.records += 1
        finally:
            os.close(descriptor)

    def _scan(self, descriptor: int) -> Iterator[tuple[int, str, int]]:
        size, position, searched = os.fstat(descriptor).st_size, self.end, self.end
        while position + HEAD.size <= size:
            begin = os.pread(descriptor, HEAD.size + PREFIX_BYTES, position)
            marker, length, _ = HEAD.unpack_from(begin)
            end = position + HEAD.size + length
            if marker == self.marker and end <= size:
                sender = _sender_of(begin[HEAD.size :])
                if sender is not None:
                    yield position, *sender
                position, searched = end, position + 1
                self.end = end
                continue
            # A record is damaged, or not complete yet: another one begins with the next marker.
            searched = max(searched, position + 1) if marker == self.marker else searched
            distance = os.pread(descriptor, size - searched, searched).find(self.marker)
            if distance < 0:
                return
            position = searched + distance
            searched = position + 1


def _sender_of(prefix: bytes) -> tuple[str, int] | None:
    """Return node and receipt of a record by the beginning of its payload; None of an invalid one."""
    if len(prefix) < HEAD.size or prefix[0] & 0xF0 != _FIXED_ARRAY:
        return None
    start, length = 2, prefix[1] & 0x1F
    if prefix[1] == _TEXT_8:
        start, length = 3, prefix[2]
    elif prefix[1] == _TEXT_16:
        start, length = 4, int.from_bytes(prefix[2:4], "big")
    elif prefix[1] & 0xE0 != _SHORT_TEXT:
        return None
    end = start + length
    if len(prefix) < end + 9 or prefix[end] != _LONG:
        return None
    return prefix[start:end].decode(errors="replace"), int.from_bytes(
        prefix[end + 1 : end + 9], "big"
    )


class FoundRecords(NamedTuple):
    """Records of one node, oldest first."""

    records: list[segment_files.FrameRecord]
    oldest_ns: int
    """Receipt from which on records are stored and were searched; 0 if there are none."""
    is_truncated: bool
    """True if there are too many: the newest ones are missing."""


@dataclass(slots=True)
class NodeRecords:
    """Finds records of one node. Methods block, and may be called by several threads."""

    directory: Path
    max_records: int = MAX_INDEXED_RECORDS
    _segments: OrderedDict[int, SegmentIndex] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    @property
    def records(self) -> int:
        """Number of records in the index."""
        return sum(segment.records for segment in self._segments.values())

    def find(self, node: str, from_ns: int, to_ns: int, max_records: int) -> FoundRecords:
        """Return the records of a node that were received in a period. Raises OSError."""
        places: list[tuple[Path, int]] = []
        with self._lock:
            oldest_ns, segments = self._segments_of(from_ns, to_ns)
            for segment in segments:
                found = segment.nodes.get(node)
                if found is not None:
                    times = zip(found.offsets, found.received_ns, strict=True)
                    places += [(segment.path, at) for at, ns in times if from_ns <= ns <= to_ns]
        found_records = list(_read_records(places[:max_records]))
        return FoundRecords(found_records, oldest_ns, len(places) > max_records)

    def _segments_of(self, from_ns: int, to_ns: int) -> tuple[int, list[SegmentIndex]]:
        """Return the receipt from which on records were searched, and the segments of a period, oldest first."""
        oldest_ns, budget = 0, MAX_SCANNED_BYTES
        used: list[SegmentIndex] = []
        paths = {
            int(path.stem.split("-")[1]): path for path in self.directory.glob("frames-*-*.log")
        }
        for number in [each for each in self._segments if each not in paths]:
            del self._segments[number]
        for number in sorted(paths, reverse=True):
            path = paths[number]
            try:
                first_ns = _first_receipt(path)
                if first_ns > to_ns or not first_ns:
                    continue
                segment = self._segments.get(number)
                if segment is None:
                    budget -= path.stat().st_size
                    segment = SegmentIndex(path, segment_files.read_marker(path))
                if budget < 0:
                    break
                segment.extend()
            except FileNotFoundError:  # deleted meanwhile, as the oldest one
                break
            self._segments[number] = segment
            self._segments.move_to_end(number)
            used.append(segment)
            oldest_ns = first_ns
            if first_ns <= from_ns:
                break
        while len(self._segments) > 1 and self.records > self.max_records:
            self._segments.popitem(last=False)
        return oldest_ns, used[::-1]


def _first_receipt(path: Path) -> int:
    """Return the receipt of the first record of a segment; 0 without a valid one."""
    with path.open("rb") as file:
        content = file.read(HEAD.size + PREFIX_BYTES)
    sender = _sender_of(content[HEAD.size :])
    return sender[1] if sender else 0


def _read_records(places: Iterable[tuple[Path, int]]) -> Iterator[segment_files.FrameRecord]:
    """Yield the records at offsets; damaged ones, and those of deleted segments, are left out."""
    for path, of_path in groupby(places, key=itemgetter(0)):
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            continue
        with file:
            for _, offset in of_path:
                head = os.pread(file.fileno(), HEAD.size, offset)
                content = os.pread(file.fileno(), HEAD.size + HEAD.unpack(head)[1], offset)
                payload = segment_files.read_payload(content, 0)
                with suppress(*untrusted_text.DECODING_ERRORS):
                    if payload is not None:
                        yield _decoder.decode(payload)
