"""What a restart goes on from: a checkpoint, and the segments of the frame log behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from collector.core import Checkpoint, Core, SeenEvent, events_of
from collector.segments import LogStats, read_segment, segment_path, segments, write_durably
from railscope.wire import WireError, unpack

log = structlog.get_logger(__name__)

CHECKPOINT = "checkpoint"
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
            checkpoint = msgspec.msgpack.decode(path.read_bytes(), type=Checkpoint)
        except FileNotFoundError:
            return 0
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.error("checkpoint_damaged", file=str(path), problem=str(error),
                      advice="all segments there are will be read instead")  # fmt: skip
            return 0
        self.core.resume(checkpoint)
        return checkpoint.first_segment

    async def keep(self, first_segment: int, horizon_ns: int) -> bool:
        """Keep what segments before one say; whether they may go."""
        copies = {path: copy(horizon_ns) for path, copy in self.copies.items()}
        content = msgspec.msgpack.encode(self.core.checkpoint(first_segment))
        path = self.folder / CHECKPOINT
        try:
            for beside, copied in copies.items():
                if copied is None:
                    log.warning("checkpoint_waits", file=str(beside),
                                advice="events are to be recorded from these segments")  # fmt: skip
                    return False
                await asyncio.to_thread(write_durably, beside, copied)
            await asyncio.to_thread(write_durably, path, content)
        except OSError as error:
            log.error("checkpoint_failed", file=str(path), problem=str(error),
                      advice="no segment is deleted until one succeeds")  # fmt: skip
            return False
        self.first_segment = first_segment
        return True
