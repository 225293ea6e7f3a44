"""Restart from a checkpoint, and from the segments of the frame log after it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from msgspec.structs import replace

from collector.config import Limits
from collector.fleet.seen_event import SeenEvent, events_of
from collector.framelog.quarantine import RecordQuarantine
from collector.framelog.segments import LogStats, read_segment, segment_path, segments
from collector.framelog.segments import Record as FrameRecord
from collector.state.checkpoint import MAGIC, CheckpointError, decode, encode, parts_of, resume
from collector.state.core import Core
from collector.state.envelope_bounds import REPLAY_FACTOR, cost_of, problems
from collector.turns import Turns, to_its_end
from railscope.durable_files import PARTIAL, sync_directory, write_durably
from railscope.envelope_reader import unpack
from railscope.wire import Envelope, WireError

log = structlog.get_logger(__name__)

CHECKPOINT = "checkpoint"
PIECE_BYTES = 1 << 20
MIN_REPLAYED_BYTES = 64 << 20
"""Accepted envelopes are read again, even if the limits have become narrower since."""


class _TooMuchError(Exception):
    """A record that a restart must skip; the message gives the reason."""


@dataclass(slots=True)
class Restart:
    """Restores the state of a collector, and writes checkpoints so that old segments can be deleted."""

    directory: Path
    core: Core
    first_segment: int = 0
    corrections: Mapping[int, int] = field(default_factory=dict)
    """Shift of receipts to later times, by the start of the clock's doubt."""
    hold: Callable[[], str] = lambda: ""
    """The reason for which no checkpoint may be made now, or an empty text."""
    copies: dict[Path, Callable[[int], bytes | None]] = field(default_factory=dict)
    """Content of further files that must be written before a segment is deleted, by path.

    Called with a timestamp: older events are dropped. None while no segment may be deleted.
    """
    limits: Limits = field(default_factory=Limits)
    quarantine: RecordQuarantine = field(init=False)

    def __post_init__(self) -> None:
        """Place the quarantine next to the frame log."""
        self.quarantine = RecordQuarantine(self.directory / "quarantine")

    def read(self, stats: LogStats) -> None:
        """Read the checkpoint and the later segments into the core. Blocking; raises OSError."""
        self._drop_partial()
        self.quarantine.open()
        self.first_segment = self._read_checkpoint()
        for number, record in self._records(stats):
            self.core.schemas.segment = number
            try:
                self._take(record, self._unpacked(record))
            except (ValueError, LookupError, ArithmeticError, _TooMuchError) as error:
                self.quarantine.put(number, record, str(error))

    def _take(self, record: FrameRecord, envelope: Envelope) -> None:
        """Apply a record to the core, if its cost is within the bounds of a restart."""
        schemas = self.core.schemas
        cost = cost_of(envelope, (schemas.get(batch.schema) for batch in envelope.batches))
        found = [
            *problems(cost, self.limits, REPLAY_FACTOR),
            *self.core.sequence_problems(envelope, self.limits.gaps, REPLAY_FACTOR),
        ]
        if found:
            raise _TooMuchError("; ".join(found))
        faults = self.core.counts.rejected.get("fault", 0)
        self.core.accept(record, envelope)
        if self.core.counts.rejected.get("fault", 0) > faults:
            message = "the state did not accept it: see envelope_not_taken"
            raise _TooMuchError(message)

    def _unpacked(self, record: FrameRecord) -> Envelope:
        max_bytes = max(REPLAY_FACTOR * self.limits.unpacked_bytes, MIN_REPLAYED_BYTES)
        return unpack(record.body, max_bytes)

    def events(self) -> Iterator[SeenEvent]:
        """Yield the events of the segments that a restart would read. Blocking; raises OSError."""
        for number, record in self._records(LogStats()):
            try:
                envelope = self._unpacked(record)
            except WireError as error:
                log.error("record_left_out", segment=number, problem=str(error))
                continue
            yield from events_of(record, envelope)

    def _records(self, stats: LogStats) -> Iterator[tuple[int, FrameRecord]]:
        """Yield the records of the segments after the checkpoint, with segment numbers."""
        frames = self.directory / "frames"
        for number in [each for each in segments(frames) if each >= self.first_segment]:
            try:
                for _, record in read_segment(segment_path(frames, number), stats):
                    yield number, self._placed(record)
            except FileNotFoundError:
                # Unless a checkpoint has been made meanwhile: it and the files of `copies` contain
                # all of this.
                if number >= self.first_segment:
                    raise

    def _placed(self, record: FrameRecord) -> FrameRecord:
        """Return a record with its receipt corrected by later decisions about the clock."""
        delta_ns = self.corrections.get(record.doubted_since_ns, 0)
        if not delta_ns:
            return record
        received_ns = record.received_wall_ns + delta_ns
        return replace(record, received_wall_ns=received_ns, corrected_ns=delta_ns)

    @property
    def _path(self) -> Path:
        return self.directory / CHECKPOINT

    @property
    def _partial(self) -> Path:
        return self.directory / (CHECKPOINT + PARTIAL)

    def _read_checkpoint(self) -> int:
        try:
            parts = decode(self._path.read_bytes())
        except FileNotFoundError:
            return 0
        except CheckpointError as error:
            log.error("checkpoint_damaged", file=str(self._path), problem=str(error),
                      advice="all segments there are will be read instead")  # fmt: skip
            return 0
        return resume(self.core, parts)

    async def keep(self, first_segment: int, horizon_ns: int) -> bool:
        """Write a checkpoint of segments before one; true if they may be deleted.

        Frames may arrive meanwhile. If cancelled, nothing is written after its return: another
        collector may continue from here.
        """
        try:
            if not self.hold():
                await self._write(first_segment, horizon_ns)
            if reason := self.hold():  # frames may be placed differently: not for a checkpoint yet
                log.warning("checkpoint_withheld", reason=reason)
                await to_its_end(asyncio.to_thread(self._drop_partial))
                return False
            # Last, so that they contain the events of all frames that the checkpoint records as
            # received.
            for beside, copy in self.copies.items():
                copied = copy(horizon_ns)
                if copied is None:
                    log.warning("checkpoint_waits", file=str(beside),
                                advice="events are to be recorded from these segments")  # fmt: skip
                    await to_its_end(asyncio.to_thread(self._drop_partial))
                    return False
                await to_its_end(asyncio.to_thread(write_durably, beside, copied))
            await to_its_end(asyncio.to_thread(_put_in_place, self._partial, self._path))
        except OSError as error:
            log.error("checkpoint_failed", file=str(self._path), problem=str(error),
                      advice="no segment is deleted until one succeeds")  # fmt: skip
            await to_its_end(asyncio.to_thread(self._drop_partial))
            return False
        self.first_segment = first_segment
        return True

    def _drop_partial(self) -> None:
        """Delete the partial file, which would only fill the disk."""
        try:
            self._partial.unlink(missing_ok=True)
        except OSError as error:
            log.warning("checkpoint_not_dropped", file=str(self._partial), problem=str(error))

    async def _write(self, first_segment: int, horizon_ns: int) -> None:
        turns = Turns()
        received = self.core.received
        for node in list(received.nodes):
            received.forget(node, horizon_ns)
            await turns.offer()
        await to_its_end(asyncio.to_thread(self._partial.write_bytes, MAGIC))
        pieces: list[bytes] = []
        size = 0
        turns = Turns()
        for part in parts_of(self.core, first_segment):
            pieces.append(encode(part))
            size += len(pieces[-1])
            if size >= PIECE_BYTES:
                await to_its_end(asyncio.to_thread(_append, self._partial, pieces))
                pieces, size, turns = [], 0, Turns()
            await turns.offer()
        await to_its_end(asyncio.to_thread(_append, self._partial, pieces))


def _append(path: Path, pieces: list[bytes]) -> None:
    with path.open("ab") as file:
        file.writelines(pieces)


def _put_in_place(partial: Path, path: Path) -> None:
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.rename(path)
    sync_directory(path.parent)
