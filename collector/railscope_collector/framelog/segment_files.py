"""Segments of the frame log: the format of records on disk, and their recovery.

Segments `frames-<number>-<marker>.log` hold records: marker, length, CRC-32, payload. The marker is
16 random bytes, different in each segment. A torn tail (a crash while writing) is cut off when the
log is opened; a damaged record inside is reported and skipped by searching for the next marker.
Senders do not have the marker, so no payload can be mistaken for a record.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from railscope import durable_files, untrusted_text, wire

MARKER_BYTES = 16
HEAD = struct.Struct("<16sII")
EXTENT = "frames.extent"
"""File beside the directory of segments: number of the newest segment, and its durable end."""
_EXTENT = re.compile(rb"([0-9]{10}) ([0-9]{20})\n")


class AcceptedBatch(NamedTuple):
    """Sequences of a batch."""

    stream: str
    first: int
    rows: int
    new: int


class FrameRecord(msgspec.Struct, frozen=True, array_like=True):
    """One accepted envelope as received, with its sender and time."""

    node: str
    received_wall_ns: int
    sent: wire.SentAt
    body: bytes
    max_authority: int = 3
    """Highest authority of its claims: the limit of the token that it was sent with."""
    doubted_since_ns: int = 0
    """Start of the doubt about the collector's clock at its receipt; 0 for none."""
    is_suspect: bool = False
    """True if that clock was suspect, and not only unconfirmed."""
    first_received_ns: int = 0
    """Time of the first receipt by another collector, which signed it; `first_sent` has the node's clocks then."""
    first_sent: wire.SentAt | None = None
    """None for an envelope that no other collector is known to have received."""

    @property
    def as_first_received(self) -> FrameRecord:
        """Return the record with the times of its first receipt: its facts do not depend on the collector."""
        if self.first_sent is None:
            return self
        return msgspec.structs.replace(
            self, received_wall_ns=self.first_received_ns, sent=self.first_sent
        )

    corrected_ns: int = 0
    """Shift of the receipt to a later time by a decision; only of a record that is read again."""
    run: str = ""
    """Run of the agent."""
    accepted: tuple[AcceptedBatch, ...] | None = None
    """Sequences of its batches, in their order, with the number of those that no earlier record has: readers need no state to
    recognize repetitions. None in records of release 0.4 and earlier.
    """
    has_statements: bool = False
    """True if the envelope states the end of a run: then a start opens the body."""
    has_events: bool = True
    """False if the envelope has no events: then the audit log does not open the body."""

    @property
    def is_marked(self) -> bool:
        """True if its evidence is marked: received or placed by a suspect clock."""
        return self.is_suspect or self.corrected_ns != 0


@dataclass(slots=True)
class FrameLogStats:
    """Counters of the log since it was opened."""

    commits: int = 0
    commit_ns: int = 0
    damaged_records: int = 0
    lost_segments: int = 0
    """Segments that the start did not find."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FrameRecord)


def encode_record(record: FrameRecord) -> bytes:
    """Encode a record as the payload of a segment."""
    return _encoder.encode(record)


def decode_record(payload: bytes) -> FrameRecord:
    """Decode the payload of a record. Raises an error of `untrusted_text.DECODING_ERRORS`."""
    return _decoder.decode(payload)


def encode_extent(number: int, offset: int) -> bytes:
    """Encode the file with the durable end of the log."""
    return b"%010d %020d\n" % (number, offset)


def read_extent(state_directory: Path) -> tuple[int, int] | None:
    """Return the newest segment and its durable end; None without the file. Raises ValueError, OSError."""
    try:
        content = (state_directory / EXTENT).read_bytes()
    except FileNotFoundError:
        return None
    match = _EXTENT.fullmatch(content)
    if match is None:
        message = "invalid content: expected a segment and an offset"
        raise ValueError(message)
    return int(match[1]), int(match[2])


def frame_payload(marker: bytes, payload: bytes) -> bytes:
    """Return a payload with its header, as in a segment."""
    return HEAD.pack(marker, len(payload), zlib.crc32(payload)) + payload


def segment_path(directory: Path, number: int) -> Path:
    """Return the path of a segment. Raises FileNotFoundError."""
    # The name contains the marker, which only the file itself records.
    for path in directory.glob(f"frames-{number:010d}-*.log"):
        return path
    raise FileNotFoundError(errno.ENOENT, f"segment {number} is missing in {directory}")


def segment_numbers(directory: Path) -> list[int]:
    """Return the numbers of the existing segments, oldest first."""
    return sorted(int(path.stem.split("-")[1]) for path in directory.glob("frames-*-*.log"))


def read_marker(path: Path) -> bytes:
    """Return the marker before each record of a segment."""
    return bytes.fromhex(path.stem.split("-")[2])


def read_segment(path: Path, stats: FrameLogStats) -> Iterator[tuple[int, FrameRecord]]:
    """Yield records of a segment with the offset after each; damaged ones are counted and skipped."""
    content = path.read_bytes()
    marker = read_marker(path)
    position = 0
    while (position := content.find(marker, position)) >= 0:
        payload = read_payload(content, position)
        # The length may be what is damaged, so the search continues inside the record and not after it.
        if payload is None:
            stats.damaged_records += 1
            position += 1
            continue
        end = position + HEAD.size + len(payload)
        try:
            yield end, _decoder.decode(payload)
        except untrusted_text.DECODING_ERRORS:
            stats.damaged_records += 1
        position = end


def read_payload(content: bytes, position: int) -> bytes | None:
    """Return the payload of the record at this offset; None if it is torn or damaged."""
    if len(content) - position < HEAD.size:
        return None
    _, length, checksum = HEAD.unpack_from(content, position)
    payload = content[position + HEAD.size : position + HEAD.size + length]
    return payload if len(payload) == length and zlib.crc32(payload) == checksum else None


def start_segment(directory: Path, number: int) -> tuple[int, bytes]:
    """Create a segment file, durable on return; return its descriptor and its marker. Raises OSError."""
    marker = secrets.token_bytes(MARKER_BYTES)
    path = directory / f"frames-{number:010d}-{marker.hex()}.log"
    # O_EXCL: a file of this name has records that must not be overwritten.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        durable_files.sync_directory(directory)
    except OSError:
        # The next attempt has another marker: two files would have the same number.
        os.close(descriptor)
        path.unlink()
        raise
    return descriptor, marker
