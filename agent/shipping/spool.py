"""Spool: envelopes on disk until the collector has acknowledged them as durable, and their schemas.

One file per envelope, which is complete or absent: neither a crash of the agent nor a power failure loses a spooled envelope. At
the size bound, the oldest envelopes are dropped.

Envelopes do not contain their schemas. A collector without a schema requests it, possibly after a
restart of the agent with another configuration, so schemas are stored beside the spool for as
long as frames may be.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from railscope.durable_files import delete_partial_files, write_durably
from railscope.frame import Frame
from railscope.untrusted_text import DECODING_ERRORS
from railscope.wire import BYTES_PER_VALUE, WireSchema

log = structlog.get_logger(__name__)

_SUFFIX = ".envelope"
_HEAD_BYTES = 8
_NAME_DIGITS = 12
MAX_FRAMES_OF_AN_ENVELOPE, MAX_BYTES_OF_AN_ENVELOPE = 4_000, 8 << 20
MAX_EVENTS_OF_AN_ENVELOPE = 4_000
"""Limit of one envelope, at most half of what a collector accepts: many events may be pending after a disk hang."""


def split_into_envelopes(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Yield frames in groups that are within the bounds of an envelope."""
    group: list[Frame] = []
    size = events = 0
    for frame in frames:
        frame_bytes = len(frame.values) * BYTES_PER_VALUE + len(frame.reasons)
        full = (
            len(group) >= MAX_FRAMES_OF_AN_ENVELOPE or size + frame_bytes > MAX_BYTES_OF_AN_ENVELOPE
        )
        if group and (full or events + len(frame.events) > MAX_EVENTS_OF_AN_ENVELOPE):
            yield group
            group, size, events = [], 0, 0
        group.append(frame)
        size += frame_bytes
        events += len(frame.events)
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class SpooledEnvelope:
    """A spooled envelope: number, size and count of frames."""

    number: int
    size: int
    frames: int


@dataclass(frozen=True, slots=True)
class FrameLoss:
    """Dropped envelopes, and the reason."""

    reason: str
    envelopes: int
    frames: int


class Spool:
    """Bounded FIFO queue of envelopes in a directory. Blocking: do not call it on the event loop.

    Raises OSError if the directory cannot be created.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        delete_partial_files(self._directory)
        self._waiting = sorted(self._scan_directory(), key=lambda spooled: spooled.number)
        self.size = sum(spooled.size for spooled in self._waiting)
        self._next = self._waiting[-1].number + 1 if self._waiting else 1
        self._unreported: list[FrameLoss] = []

    def __len__(self) -> int:
        """Number of spooled envelopes."""
        return len(self._waiting)

    @property
    def newest(self) -> SpooledEnvelope:
        """Envelope that was stored last. Raises IndexError if there is none."""
        return self._waiting[-1]

    def put(self, body: bytes, frames: int) -> FrameLoss | None:
        """Store an envelope; return the loss if older ones were dropped. Raises OSError (a full disk)."""
        head = frames.to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little")
        loss = self._free_space(len(head) + len(body))
        spooled = SpooledEnvelope(self._next, len(head) + len(body), frames)
        try:
            write_durably(self._path(spooled), head + body)
        except OSError:
            self._unreported += [loss] if loss else []
            raise
        self._next += 1
        self._waiting.append(spooled)
        self.size += spooled.size
        return loss

    def oldest(self) -> tuple[SpooledEnvelope, bytes] | FrameLoss | None:
        """Return the envelope to send next; a damaged one is dropped and returned as a loss.

        Envelopes dropped for one that then could not be stored are returned here, too. Raises OSError if
        the disk cannot be read now; the envelope stays.
        """
        if self._unreported:
            return self._unreported.pop(0)
        if not self._waiting:
            return None
        spooled = self._waiting[0]
        try:
            content = self._path(spooled).read_bytes()
        except FileNotFoundError:
            content = b""
        body = content[_HEAD_BYTES:]
        if zlib.crc32(body).to_bytes(4, "little") != content[4:_HEAD_BYTES]:
            self.remove(spooled)
            return FrameLoss("damaged", 1, spooled.frames)
        return spooled, body

    def remove(self, spooled: SpooledEnvelope) -> bool:
        """Remove an envelope that was acknowledged or rejected.

        Return False if it has been dropped for lack of space: it is counted as lost already.
        """
        if spooled not in self._waiting:
            return False
        self._waiting.remove(spooled)
        self.size -= spooled.size
        try:
            self._path(spooled).unlink(missing_ok=True)
        except OSError as error:
            # It is removed from the queue all the same: after a restart it is sent again, and counts once.
            log.warning(
                "envelope_removal_failed", file=str(self._path(spooled)), problem=str(error)
            )
        return True

    def _free_space(self, needed_bytes: int) -> FrameLoss | None:
        envelopes = frames = 0
        while self._waiting and self.size + needed_bytes > self._max_bytes:
            oldest = self._waiting[0]
            envelopes, frames = envelopes + 1, frames + oldest.frames
            self.remove(oldest)
        return FrameLoss("spool_full", envelopes, frames) if envelopes else None

    def _path(self, spooled: SpooledEnvelope) -> Path:
        return self._directory / f"{spooled.number:0{_NAME_DIGITS}d}{_SUFFIX}"

    def _scan_directory(self) -> list[SpooledEnvelope]:
        envelopes = []
        for entry in os.scandir(self._directory):
            name = entry.name.removesuffix(_SUFFIX)
            if name != entry.name and name.isdecimal():
                with open(entry.path, "rb") as file:  # noqa: PTH123 - scandir returns plain paths
                    frames = int.from_bytes(file.read(4), "little")
                envelopes.append(SpooledEnvelope(int(name), entry.stat().st_size, frames))
        return envelopes


_MAX_SCHEMAS = 256
_SCHEMA_SUFFIX = ".schema"


class SpooledSchemas:
    """Wire schemas by hash. Raises OSError if the directory cannot be written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        delete_partial_files(self._directory)
        self._contents: dict[bytes, bytes] = {}
        """Content of the files: a third of the memory of the schemas."""
        self._stored: set[bytes] = set()

    def put(self, digest: bytes, make: Callable[[], WireSchema]) -> None:
        """Store a schema unless it is stored already. Raises OSError (a full disk)."""
        if digest in self._stored:
            return
        content = self._contents.get(digest) or msgspec.msgpack.encode(make())
        self._contents[digest] = content
        write_durably(self._path(digest), content)
        self._forget_oldest()
        self._stored.add(digest)

    def get(self, digest: bytes) -> WireSchema | None:
        """Return a schema by its hash; None if it was never stored or is damaged."""
        try:
            content = self._contents.get(digest) or self._path(digest).read_bytes()
            return msgspec.msgpack.decode(content, type=WireSchema)
        except (OSError, *DECODING_ERRORS):
            return None

    def _path(self, digest: bytes) -> Path:
        return self._directory / (digest.hex() + _SCHEMA_SUFFIX)

    def _forget_oldest(self) -> None:
        files = sorted(
            self._directory.glob("*" + _SCHEMA_SUFFIX), key=lambda file: file.stat().st_mtime_ns
        )
        for file in files[:-_MAX_SCHEMAS]:
            self._contents.pop(bytes.fromhex(file.stem), None)
            self._stored.discard(bytes.fromhex(file.stem))
            file.unlink(missing_ok=True)
