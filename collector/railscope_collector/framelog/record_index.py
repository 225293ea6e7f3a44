"""Index of the frame log's records by node.

It is built from the segments as queries need them, from the headers of records only.
"""

from __future__ import annotations

import os
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import msgspec

from railscope import untrusted_text
from railscope_collector.framelog import segment_files
from railscope_collector.framelog.segment_files import HEAD

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
        descriptor = os.open(self.path, os.O_RDONLY)
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
            # The checksum is not verified here, which would read all payloads: `_read_records` verifies those it
            # returns.
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
    # The encoder uses its 64-bit form for every time after 1970-01-01 00:00:04.
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
class RecordIndex:
    """Finds records of one node. Methods block, and may be called by several threads."""

    directory: Path
    max_records: int = MAX_INDEXED_RECORDS
    max_scanned_bytes: int = MAX_SCANNED_BYTES
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
        # Without the lock: other queries need not wait for these reads.
        found_records = list(_read_records(places[:max_records]))
        return FoundRecords(found_records, oldest_ns, len(places) > max_records)

    def _segments_of(self, from_ns: int, to_ns: int) -> tuple[int, list[SegmentIndex]]:
        """Return the receipt from which on records were searched, and the segments of a period, oldest first."""
        oldest_ns, budget = 0, self.max_scanned_bytes
        used: list[SegmentIndex] = []
        paths = {
            int(path.stem.split("-")[1]): path for path in self.directory.glob("frames-*-*.log")
        }
        # Of segments that were deleted since, as their records cannot be read.
        for number in [each for each in self._segments if each not in paths]:
            del self._segments[number]
        # Newest first: a query for recent records does not scan older segments.
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
                # Also of a known segment: the newest one grows between two queries.
                segment.extend()
            except FileNotFoundError:  # deleted meanwhile, as the oldest one
                break
            self._segments[number] = segment
            self._segments.move_to_end(number)
            used.append(segment)
            oldest_ns = first_ns
            if first_ns <= from_ns:
                break
        # The segment used last stays, even above the bound, or each query would scan it again.
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
                # Also protects from an offset that was indexed from inside a damaged record.
                payload = segment_files.read_payload(content, 0)
                with suppress(*untrusted_text.DECODING_ERRORS):
                    if payload is not None:
                        yield _decoder.decode(payload)
