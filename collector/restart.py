"""What a restart goes on from: a checkpoint, and the segments of the frame log behind it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from collector.checkpoint import CheckpointError, decode, encode, parts_of, resume
from collector.core import Core, SeenEvent, events_of
from collector.segments import (
    PARTIAL,
    LogStats,
    read_segment,
    segment_path,
    segments,
    sync_folder,
    write_durably,
)
from collector.turns import Turns
from railscope.wire import WireError, unpack

log = structlog.get_logger(__name__)

CHECKPOINT = "checkpoint"
PIECE_BYTES = 1 << 20
MOST_REPLAYED_BYTES = 1 << 30
"""What was accepted once is read again, even if the limits have become narrower since."""


@dataclass(slots=True)
class Restart:
    """Reads the state of a collector back, and keeps it so that old segments may go."""

    folder: Path
    core: Core
    first_segment: int = 0
    copies: dict[Path, Callable[[int], bytes | None]] = field(default_factory=dict)
    """By file, what else must be kept of events before a segment goes; older than an instant, they
    are forgotten. None while no segment may go."""

    def read(self, stats: LogStats) -> None:
        """Read the checkpoint and what came after it into the core. Blocking; raises OSError."""
        self.first_segment = self._read_checkpoint()
        for path in self._segments():
            for _, record in read_segment(path, stats):
                try:
                    self.core.accept(record, unpack(record.body, MOST_REPLAYED_BYTES))
                except WireError as error:
                    log.error("record_unreadable", segment=path.name, problem=str(error))

    def events(self) -> Iterator[SeenEvent]:
        """The events of what a restart would read. Blocking; raises OSError, WireError."""
        for path in self._segments():
            for _, record in read_segment(path, LogStats()):
                yield from events_of(record, unpack(record.body, MOST_REPLAYED_BYTES))

    def _segments(self) -> Iterator[Path]:
        frames = self.folder / "frames"
        for number in segments(frames):
            if number >= self.first_segment:
                yield segment_path(frames, number)

    def _read_checkpoint(self) -> int:
        path = self.folder / CHECKPOINT
        try:
            parts = decode(path.read_bytes())
        except FileNotFoundError:
            return 0
        except CheckpointError as error:
            log.error("checkpoint_damaged", file=str(path), problem=str(error),
                      advice="all segments there are will be read instead")  # fmt: skip
            return 0
        return resume(self.core, parts)

    async def keep(self, first_segment: int, horizon_ns: int) -> bool:
        """Keep what segments before one say; whether they may go. Frames may come meanwhile."""
        path = self.folder / CHECKPOINT
        partial = path.with_name(path.name + PARTIAL)
        try:
            await self._write(partial, first_segment, horizon_ns)
            # Last, so that it holds the events of all that the checkpoint says was received.
            for beside, copy in self.copies.items():
                copied = copy(horizon_ns)
                if copied is None:
                    log.warning("checkpoint_waits", file=str(beside),
                                advice="events are to be recorded from these segments")  # fmt: skip
                    return False
                await asyncio.to_thread(write_durably, beside, copied)
            await asyncio.to_thread(_put_in_place, partial, path)
        except OSError as error:
            log.error("checkpoint_failed", file=str(path), problem=str(error),
                      advice="no segment is deleted until one succeeds")  # fmt: skip
            return False
        self.first_segment = first_segment
        return True

    async def _write(self, path: Path, first_segment: int, horizon_ns: int) -> None:
        turns = Turns()
        received = self.core.received
        for node in list(received.nodes):
            received.forget(node, horizon_ns)
            await turns.offer()
        await asyncio.to_thread(path.write_bytes, b"")
        pieces: list[bytes] = []
        size = 0
        for part in parts_of(self.core, first_segment):
            pieces.append(encode(part))
            size += len(pieces[-1])
            if size >= PIECE_BYTES:
                await asyncio.to_thread(_append, path, pieces)
                pieces, size = [], 0
            await turns.offer()
        await asyncio.to_thread(_append, path, pieces)


def _append(path: Path, pieces: list[bytes]) -> None:
    # Opened anew: who is cancelled closes no file that another thread still writes.
    with path.open("ab") as file:
        file.writelines(pieces)


def _put_in_place(partial: Path, path: Path) -> None:
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.rename(path)
    sync_folder(path.parent)
