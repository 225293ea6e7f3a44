"""Snapshots of the state in `state.sqlite`, after which the oldest segments of the frame log are deleted.

A snapshot is written in several transactions while frames are received. It counts once the last of them names it, with the
position in the frame log from which a start reads on.
"""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from railscope import untrusted_text
from railscope.service import run_in_thread
from railscope_collector.framelog import framelog, segment_files
from railscope_collector.framelog.log_follower import LOG_START, LogPosition
from railscope_collector.state import snapshot_parts
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state_store import StateStore
from railscope_collector.work_limits import TimeSlices, return_free_memory

log = structlog.get_logger(__name__)

TABLES = (
    """CREATE TABLE IF NOT EXISTS snapshot_parts (
        generation INTEGER NOT NULL, checksum INTEGER NOT NULL, content BLOB NOT NULL
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS snapshots (
        generation INTEGER PRIMARY KEY, segment INTEGER NOT NULL, position INTEGER NOT NULL
    ) STRICT""",
)
INSERT_PART = "INSERT INTO snapshot_parts (generation, checksum, content) VALUES (?, ?, ?)"
INSERT_SNAPSHOT = "INSERT INTO snapshots (generation, segment, position) VALUES (?, ?, ?)"
WRITE_BYTES = 1 << 20
"""Bytes of one transaction: others, as those of new schemas, wait for it."""
_REST, _MAX_REST_NS = 25, 60_000_000_000
"""Pause after a snapshot, as a multiple of its duration, and its maximum.

A restart reads somewhat more, and a large fleet is not written continuously.
"""


@dataclass(slots=True)
class StateSnapshots:
    """Restores the state of a collector, and writes snapshots of it; `run` it concurrently with the frame log."""

    store: StateStore
    core: CollectorState
    frames: framelog.FrameLog
    max_frame_age_ns: int
    """Maximum age of accepted frames."""
    reason_to_withhold: Callable[[], str] = lambda: ""
    """The reason for which no snapshot may be made now, or an empty text."""
    first_needed: Callable[[], int] = lambda: sys.maxsize
    """Returns the number of the first segment that the audit log still needs."""
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    position: LogPosition = LOG_START
    """Position of the newest snapshot."""
    _generation: int = 0
    _applied: LogPosition = LOG_START
    _rests_until_ns: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def restore(self) -> None:
        """Read the newest snapshot into an empty core. Blocking; raises OSError."""
        self.store.create(*TABLES)
        newest = (
            "SELECT generation, segment, position FROM snapshots ORDER BY generation DESC LIMIT 1"
        )
        for generation, segment, position in self.store.read(newest):
            self._generation = generation
            query = (
                "SELECT checksum, content FROM snapshot_parts WHERE generation = ? ORDER BY rowid"
            )
            rows = self.store.read(query, (generation,))
            try:
                # All parts are decoded before any is restored: a damaged one must not leave half a state.
                parts = [snapshot_parts.decode_part(content) for _, content in rows]
                if any(zlib.crc32(content) != checksum for checksum, content in rows):
                    message = "wrong checksum of a part"
                    raise ValueError(message)  # noqa: TRY301 - reported as one that cannot be decoded
            except (ValueError, *untrusted_text.DECODING_ERRORS) as error:
                self.store.problem = f"damaged snapshot: {error}"
                log.error("snapshot_damaged", file=str(self.store.path), problem=str(error))
                return
            snapshot_parts.restore_state(self.core, parts)
            self.position = LogPosition(segment, position)

    def note_segment(self, applied: LogPosition) -> None:
        """Record that all records before a segment are in the state."""
        self._applied = applied
        # A segment that begins within the pause needs no later wake-up: the next one comes while frames arrive.
        if self.monotonic_ns() >= self._rests_until_ns:
            self._wake.set()

    async def run(self) -> None:
        """Make a snapshot whenever one is due, until cancelled."""
        while True:
            await self._wake.wait()
            started_ns = self.monotonic_ns()
            await self.make(self._applied)
            ended_ns = self.monotonic_ns()
            self._rests_until_ns = ended_ns + min(_REST * (ended_ns - started_ns), _MAX_REST_NS)
            # After the snapshot: segments that began meanwhile are covered by the next one, after the pause.
            self._wake.clear()

    async def make(self, position: LogPosition) -> bool:
        """Write a snapshot whose records before a position are all in the state, then delete the oldest segments.

        Return false if none was made. Frames may arrive meanwhile. If cancelled, nothing is written after its
        return: another collector may continue from here.
        """
        nodes = self.core.fleet.nodes.values()
        newest_ns = max((node.timestamp_ns for node in nodes), default=0)
        try:
            if reason := await self._write(position, newest_ns - self.max_frame_age_ns):
                log.warning(
                    "snapshot_withheld", reason=reason, advice="no segment is deleted meanwhile"
                )
                return False
            core = self.core
            core.fleet.drop_empty_sheets()
            await run_in_thread(return_free_memory)
            await run_in_thread(
                self.frames.delete_before, min(position.segment, self.first_needed())
            )
            # Only now: pages read shapes and names of the segments that are left.
            oldest = min(segment_files.segment_numbers(self.frames.directory), default=0)
            await run_in_thread(core.schemas.release_unused, oldest, core.fleet.schemas())
        # What was not written or deleted is written or deleted with the next one.
        except OSError as error:
            log.error(
                "snapshot_failed", problem=str(error), advice="no segment is deleted meanwhile"
            )
            return False
        return True

    async def _write(self, position: LogPosition, horizon_ns: int) -> str:
        """Write a snapshot, and return an empty text; or return the reason why none was written. Raises OSError."""
        if reason := self.reason_to_withhold():
            return reason
        slices = TimeSlices()
        received = self.core.received
        # Before the parts are made, so that the snapshot does not contain runs that are too old to be sent again.
        for node in list(received.nodes):
            received.drop_old_runs(node, horizon_ns)
            await slices.yield_if_due()
        await run_in_thread(self._delete_unfinished)
        generation = self._generation = self._generation + 1
        pieces: list[bytes] = []
        size = 0
        for part in snapshot_parts.make_parts(self.core):
            pieces.append(snapshot_parts.encode_part(part))
            size += len(pieces[-1])
            if size >= WRITE_BYTES:
                await run_in_thread(self._write_parts, generation, pieces)
                pieces, size, slices = [], 0, TimeSlices()
            await slices.yield_if_due()
        await run_in_thread(self._write_parts, generation, pieces)
        # Frames that were applied meanwhile may have to receive other timestamps.
        if reason := self.reason_to_withhold():
            return reason
        await run_in_thread(self._end, generation, position)
        self.position = position
        return ""

    def _delete_unfinished(self) -> None:
        """Delete the parts of snapshots that were not ended."""
        query = (
            "DELETE FROM snapshot_parts WHERE generation NOT IN (SELECT generation FROM snapshots)"
        )
        with self.store.transaction() as connection:
            connection.execute(query)

    def _write_parts(self, generation: int, pieces: list[bytes]) -> None:
        rows = [(generation, zlib.crc32(piece), piece) for piece in pieces]
        with self.store.transaction() as connection:
            connection.executemany(INSERT_PART, rows)

    def _end(self, generation: int, position: LogPosition) -> None:
        with self.store.transaction() as connection:
            connection.execute("DELETE FROM snapshots")
            connection.execute(INSERT_SNAPSHOT, (generation, *position))
            connection.execute("DELETE FROM snapshot_parts WHERE generation < ?", (generation,))
