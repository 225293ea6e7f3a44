"""Schedule of checkpoints, and deletion of the segments that they replace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from collector.framelog.at_rest import StateFiles
from collector.framelog.framelog import FrameLog
from collector.state.restart import Restart
from collector.turns import to_its_end

_REST, _MAX_REST_NS = 25, 60_000_000_000
"""Pause after a checkpoint, as a multiple of its duration, and its maximum.

A restart reads somewhat more, and a large fleet is not written continuously.
"""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Keeping:
    """Makes checkpoints; `run` it concurrently with the frame log, which calls `rotated`."""

    restart: Restart
    frames: FrameLog
    oldest_frame_ns: int
    """Maximum age of accepted frames."""
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    files: StateFiles | None = None
    _number: int = 0
    _rests_until_ns: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def rotated(self, number: int) -> None:
        """Record that all segments before this one are full, and in the state."""
        self._number = self.restart.core.schemas.segment = number
        if self.monotonic_ns() >= self._rests_until_ns:
            self._wake.set()

    async def run(self) -> None:
        """Make a checkpoint whenever one is due, until cancelled."""
        while True:
            await self._wake.wait()
            started_ns = self.monotonic_ns()
            await self._keep(self._number)
            ended_ns = self.monotonic_ns()
            self._rests_until_ns = ended_ns + min(_REST * (ended_ns - started_ns), _MAX_REST_NS)
            self._wake.clear()

    async def _keep(self, first_segment: int) -> None:
        """Write a checkpoint of older segments, then delete the oldest.

        Skipped if the state lacks content lost before the start: a checkpoint would make the loss
        permanent.
        """
        if self.files and self.files.incomplete:
            log.warning("checkpoint_withheld", lost=len(self.files.lost),
                        advice="put the lost files back, or `railscope collector accept-loss`")  # fmt: skip
            return
        nodes = self.restart.core.fleet.nodes.values()
        newest_ns = max((node.instant_ns for node in nodes), default=0)
        if await self.restart.keep(first_segment, newest_ns - self.oldest_frame_ns):
            core = self.restart.core
            unused = core.schemas.unused(first_segment, core.fleet.schemas())
            core.fleet.drop_empty_sheets()
            try:
                await to_its_end(asyncio.to_thread(core.schemas.delete, unused))
                if self.files:
                    kept = self.files.checkpoint_kept
                    await to_its_end(asyncio.to_thread(kept, first_segment))
                await to_its_end(asyncio.to_thread(self.frames.delete_before, first_segment))
            except OSError as error:
                directory = str(self.frames.directory)
                log.error("segments_not_deleted", directory=directory, problem=str(error))
