"""Schedule of checkpoints, after which the oldest segments of the frame log are deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from railscope.service import run_in_thread
from railscope_collector.framelog import framelog, segment_files
from railscope_collector.state.state_checkpointer import StateCheckpointer
from railscope_collector.work_limits import return_free_memory

log = structlog.get_logger(__name__)

_REST, _MAX_REST_NS = 25, 60_000_000_000
"""Pause after a checkpoint, as a multiple of its duration, and its maximum.

A restart reads somewhat more, and a large fleet is not written continuously.
"""


@dataclass(slots=True)
class CheckpointSchedule:
    """Makes checkpoints; `run` it concurrently with the frame log."""

    checkpointer: StateCheckpointer
    frames: framelog.FrameLog
    max_frame_age_ns: int
    """Maximum age of accepted frames."""
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    _number: int = 0
    _rests_until_ns: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def note_rotation(self, number: int) -> None:
        """Record that all segments before this one are full, and in the state."""
        self._number = number
        # A rotation within the pause needs no later wake-up: the next one comes while frames arrive.
        if self.monotonic_ns() >= self._rests_until_ns:
            self._wake.set()

    async def run(self) -> None:
        """Make a checkpoint whenever one is due, until cancelled."""
        while True:
            await self._wake.wait()
            started_ns = self.monotonic_ns()
            await self._make_checkpoint(self._number)
            ended_ns = self.monotonic_ns()
            self._rests_until_ns = ended_ns + min(_REST * (ended_ns - started_ns), _MAX_REST_NS)
            # After the checkpoint: rotations during it are covered by the next one, after the pause.
            self._wake.clear()

    async def _make_checkpoint(self, first_segment: int) -> None:
        """Write a checkpoint of older segments, then delete the oldest.

        Skipped if the state lacks content lost before the start: a checkpoint would make the loss
        permanent.
        """
        files = self.frames.files
        if files and files.is_incomplete:
            log.warning(
                "checkpoint_withheld",
                reason=f"{len(files.damage)} files of the state directory are lost",
                advice="restore the lost files, or run `railscope collector accept-loss`",
            )
            return
        nodes = self.checkpointer.core.fleet.nodes.values()
        newest_ns = max((node.timestamp_ns for node in nodes), default=0)
        if await self.checkpointer.write(first_segment, newest_ns - self.max_frame_age_ns):
            core = self.checkpointer.core
            core.fleet.drop_empty_sheets()
            await run_in_thread(return_free_memory)
            try:
                # Before the segments are deleted: from then on, a start reports a missing or older checkpoint.
                if files:
                    await run_in_thread(files.record_checkpoint, first_segment)
                await run_in_thread(self.frames.delete_before, first_segment)
                # Only now: pages read shapes and names of the segments that are left.
                oldest = min(segment_files.segment_numbers(self.frames.directory), default=0)
                await run_in_thread(core.schemas.release_unused, oldest, core.fleet.schemas())
            # The checkpoint is valid; what was not deleted is deleted after the next one.
            except OSError as error:
                directory = str(self.frames.directory)
                log.error("segment_deletion_failed", directory=directory, problem=str(error))
