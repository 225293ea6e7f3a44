"""Reader of a frame log that another process writes: its records in order, while the log grows.

A record that is not complete yet is waited for. What is missing or damaged is counted and passed over: segments that were deleted
before they were read, and bytes that are no record. A segment that is deleted while it is read is read to its end.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from railscope import untrusted_text
from railscope_collector.framelog import segment_files
from railscope_collector.framelog.segment_files import HEAD, FrameRecord

READ_BYTES = 4 << 20
MAX_RECORD_BYTES = 256 << 20
"""Length above which a header is damaged: the collector limits requests to less."""
_decoder = msgspec.msgpack.Decoder(FrameRecord)


class LogPosition(NamedTuple):
    """Number of a segment, and the end of the last record that was read in it; segment 0 is before all."""

    segment: int = 0
    offset: int = 0

    @property
    def number(self) -> int:
        """Return the position as one number, which increases along the log: no segment has 2^40 bytes."""
        return self.segment << 40 | self.offset


LOG_START = LogPosition()


@dataclass(slots=True)
class LogFollower:
    """Reads the records after a position. All methods block, and raise OSError."""

    directory: Path
    position: LogPosition = LOG_START
    state_directory: Path | None = None
    """State directory of a running collector, whose records are read once they are durable."""
    damaged_records: int = 0
    """Places with bytes that are no record."""
    lost_segments: int = 0
    """Segments that were deleted before they were read to their end, and numbers that were left out after a loss."""
    read_bytes: int = READ_BYTES
    _descriptor: int = -1
    _marker: bytes = b""
    _waits: bool = field(default=False, init=False)
    """True while the bytes after the position are no record yet."""
    _is_finished: bool = field(default=False, init=False)
    """True after the end of a segment, until the next one is opened."""

    def read(self) -> list[FrameRecord]:
        """Return the next records, in all about `read_bytes`; none at the end of the log."""
        while self._descriptor >= 0 or self._open_next():
            # Listed before the segment is read: one that has a successor does not grow any more.
            is_complete = self._next_number() > 0
            records = self._read_segment()
            if records or not is_complete:
                return records
            if self._waits:
                self.damaged_records += 1
            self._is_finished = True
            self.close()
        return []

    def close(self) -> None:
        """Close the segment that is read."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def count_waiting_bytes(self) -> int:
        """Return the bytes after the position."""
        waiting = 0
        for path in self.directory.glob("frames-*-*.log"):
            number = int(path.stem.split("-")[1])
            if number >= self.position.segment:
                try:
                    waiting += path.stat().st_size
                except FileNotFoundError:  # deleted meanwhile: nothing of it can be read
                    continue
                waiting -= self.position.offset if number == self.position.segment else 0
        return max(waiting, 0)

    def skip_before(self, received_ns: int) -> None:
        """Pass over the segments whose records were all received before a time."""
        self.close()
        for number in segment_files.segment_numbers(self.directory):
            follower = LogFollower(self.directory, LogPosition(number), read_bytes=HEAD.size)
            try:
                first = next(iter(follower.read()), None)
            finally:
                follower.close()
            if first is None or first.received_wall_ns >= received_ns:
                return
            if number > self.position.segment:
                self.position = LogPosition(number)

    def _next_number(self) -> int:
        """Return the number of the first segment after the present one; 0 if there is none."""
        numbers = segment_files.segment_numbers(self.directory)
        return next((each for each in numbers if each > self.position.segment), 0)

    def _open_next(self) -> bool:
        """Open the segment of the position, or the first one after it; false if there is none."""
        numbers = segment_files.segment_numbers(self.directory)
        segment = self.position.segment
        first = segment + 1 if self._is_finished or not segment else segment
        number = next((each for each in numbers if each >= first), 0)
        if not number:
            return False
        try:
            path = segment_files.segment_path(self.directory, number)
            self._descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # deleted meanwhile: the next call finds its successor
            return self._open_next()
        self._marker = segment_files.read_marker(path)
        if segment:
            self.lost_segments += number - first
        if number != segment:
            self.position = LogPosition(number)
        self._waits = self._is_finished = False
        return True

    def _read_segment(self) -> list[FrameRecord]:
        """Return the next records of the open segment."""
        size = min(os.fstat(self._descriptor).st_size, self._durable_bytes())
        if (
            size < self.position.offset
        ):  # a write failed, and was undone: its records were not accepted
            self.position = LogPosition(self.position.segment, size)
        offset, records = self.position.offset, list[FrameRecord]()
        self._waits = False
        while not records and offset < size:
            content = os.pread(self._descriptor, self.read_bytes, offset)
            used = self._parse(content, records)
            length = 0 if used else self._first_length(content)
            if len(content) < length <= size - offset:  # longer than one read
                used = self._parse(os.pread(self._descriptor, length, offset), records)
            if not used and not (used := self._find_later(offset, size)):
                self._waits = True
                break
            offset += used
            self.position = LogPosition(self.position.segment, offset)
        return records

    def _durable_bytes(self) -> int:
        """Return the durable end of the present segment."""
        extent = None
        if self.state_directory:
            with suppress(ValueError):  # damaged, which the collector reports
                extent = segment_files.read_extent(self.state_directory)
        if extent is None or extent[0] > self.position.segment:
            return sys.maxsize
        return extent[1] if extent[0] == self.position.segment else self.position.offset

    def _first_length(self, content: bytes) -> int:
        """Return the length of the record at the beginning with its header; 0 without a valid header."""
        if len(content) < HEAD.size or not content.startswith(self._marker):
            return 0
        length = HEAD.size + HEAD.unpack_from(content)[1]
        return length if length <= MAX_RECORD_BYTES else 0

    def _parse(self, content: bytes, records: list[FrameRecord]) -> int:
        """Add the records from the beginning of a content; return the bytes that they take."""
        position = 0
        while content.startswith(self._marker, position):
            payload = segment_files.read_payload(content, position)
            if payload is None:
                break
            position += HEAD.size + len(payload)
            try:
                records.append(_decoder.decode(payload))
            except untrusted_text.DECODING_ERRORS:
                self.damaged_records += 1
        return position

    def _find_later(self, offset: int, size: int) -> int:
        """Return the distance of the next whole record after bytes that are none, which are counted; 0 without one."""
        content = os.pread(self._descriptor, min(size - offset, MAX_RECORD_BYTES), offset)
        position = 0
        while (position := content.find(self._marker, position + 1)) >= 0:
            if segment_files.read_payload(content, position) is not None:
                self.damaged_records += 1
                return position
        return 0
