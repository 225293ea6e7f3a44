"""Restart from a checkpoint and the segments of the frame log after it, and checkpoints for it.

With a shared database, each acknowledgement names the state directory and a position in it (see
`railscope_collector.evidence.evidence_memory.UnstoredFacts`). Positions increase from one start to the next by the number of the
start. What a restart read is at the first position of all, so the positions of earlier starts count as stored once the
database has all of it. An incomplete state gets a new identity: then agents send again what was not stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType

import structlog
from msgspec import Struct
from msgspec.structs import replace

from railscope import durable_files, envelopes, wire
from railscope.service import run_in_thread
from railscope_collector.config import IngestLimits
from railscope_collector.evidence import evidence_memory, waiting_evidence
from railscope_collector.fleet.recent_events import SeenEvent, events_of
from railscope_collector.framelog import segment_files, state_manifest
from railscope_collector.state import StateError, collector_state, envelope_cost, state_checkpoint
from railscope_collector.state.record_quarantine import RecordQuarantine
from railscope_collector.work_limits import TimeSlices

log = structlog.get_logger(__name__)

CHECKPOINT = "checkpoint"
WRITE_BYTES = 1 << 20
MIN_REPLAYED_BYTES = 64 << 20
"""Lower bound of the decompressed size accepted at a restart, in case limits were lowered since."""


IDENTITY = "acknowledgements"
"""File in the state directory, with a shared database only."""
NO_CORRECTIONS: Mapping[int, int] = MappingProxyType({})
_POSITIONS_OF_A_START = 1 << 40
"""More positions than one start uses: those of the next start are all higher."""


class StateIdentity(Struct):
    """Identity of a state directory, and the number of starts with it."""

    log: str
    starts: int = 0


class _RecordSkippedError(StateError, ValueError):
    """A record that a restart must skip; the message states the reason."""


@dataclass(slots=True)
class StateCheckpointer:
    """Restores the state of a collector, and writes checkpoints so that old segments can be deleted."""

    directory: Path
    core: collector_state.CollectorState
    first_segment: int = 0
    reason_to_withhold: Callable[[], str] = lambda: ""
    """The reason for which no checkpoint may be made now, or an empty text."""
    companion_files: dict[Path, Callable[[int], bytes | None]] = field(default_factory=dict)
    """Content of further files that must be written before a segment is deleted, by path.

    Called with a timestamp: older events are dropped. None while no segment may be deleted.
    """
    limits: IngestLimits = field(default_factory=IngestLimits)
    state_files: state_manifest.StateFiles | None = None
    """Records the files of the waiting evidence, to detect later losses."""
    quarantine: RecordQuarantine = field(init=False)
    waiting: waiting_evidence.WaitingEvidence = field(init=False)
    corrections: Mapping[int, int] = field(init=False, default_factory=dict)
    """Shift of receipts to later times, by the start of the clock's doubt."""
    skipped: int = 0
    """Records that the restart skipped: the database has none of their evidence."""

    def __post_init__(self) -> None:
        """Place the quarantine and the waiting evidence next to the frame log."""
        self.quarantine = RecordQuarantine(self.directory / "quarantine")
        self.waiting = waiting_evidence.WaitingEvidence(
            self.directory / waiting_evidence.DIRECTORY, self.limits, self.state_files
        )

    def restore(
        self, stats: segment_files.FrameLogStats, corrections: Mapping[int, int] = NO_CORRECTIONS
    ) -> None:
        """Read the checkpoint and the later segments into the core. Blocking; raises OSError."""
        self.open(corrections)
        self.replay(stats)

    def replay(self, stats: segment_files.FrameLogStats) -> None:
        """Apply the records of the later segments. Blocking; raises OSError."""
        for number, record in self._records(stats):
            self.core.schemas.segment = number
            try:
                self._replay(record, self.unpack(record))
            except (ValueError, LookupError, ArithmeticError, _RecordSkippedError) as error:
                self.quarantine.put(number, record, str(error))
                self.skipped += 1

    def open(self, corrections: Mapping[int, int] = NO_CORRECTIONS) -> None:
        """Read the checkpoint into the core, without the later segments. Blocking; raises OSError."""
        self.corrections = corrections
        # Of a collector that was killed: it would fill the disk.
        self._drop_partial()
        self.quarantine.open()
        # Before the replay, which would add the same intervals to memory.
        self.core.evidence.intervals.on_disk = self.waiting.open()
        self.first_segment = self._read_checkpoint()

    def is_stated(self) -> bool:
        """True if the later records state which of their frames were new; those of earlier versions are the first ones."""
        first = next(self._records(segment_files.FrameLogStats()), None)
        return first is None or first[1].accepted is not None

    def read_received(self, stats: segment_files.FrameLogStats) -> int:
        """Record the frames of the later segments as received, without opening their bodies. Blocking; raises OSError.

        Return the newest receipt.
        """
        newest_ns = 0
        for _, record in self._records(stats):
            newest_ns = max(newest_ns, record.received_wall_ns)
            envelope = None
            if record.has_statements:
                with contextlib.suppress(wire.WireError):
                    envelope = self.unpack(record)
            self.core.record_durable(record, envelope)
        return newest_ns

    def begin_positions(self, *, is_incomplete: bool) -> None:
        """Begin the positions of acknowledgements, after the state was restored. Blocking; raises OSError.

        If evidence that waited on disk is lost, all frames that agents send again count as new.
        """
        self.core.receipts.is_awaited = True
        try:
            identity = durable_files.read_json(self.directory / IDENTITY, StateIdentity)
        except durable_files.DamagedFileError as error:
            log.warning("identity_replaced", problem=str(error))
            identity = None
        # Agents compare this identity: a new one makes them send again what the lost files may have contained.
        if identity is None or is_incomplete or self.skipped:
            identity = StateIdentity(token_hex(16))
        if is_incomplete and self.waiting.damaged:
            self.core.received.clear()
        # Durable before a position is given out: a position that two starts use would acknowledge evidence that was
        # lost between.
        identity.starts += 1
        durable_files.write_json(self.directory / IDENTITY, identity)
        book = self.core.evidence
        unstored = book.intervals.unstored
        unstored.log, unstored.position = identity.log, 1
        for interval in book.intervals.by_key.values():
            unstored.add(interval.interval.node, interval.key)
        for node in book.intervals.on_disk:
            unstored.add(node, evidence_memory.ON_DISK)
        for fact in book.unwritten:
            unstored.add(fact.node, fact)
        for node in book.receipts:
            unstored.add(node, evidence_memory.CONTACTS)
        unstored.position = identity.starts * _POSITIONS_OF_A_START

    def check(self, envelope: wire.Envelope) -> None:
        """Check that the cost of a record is within the bounds of a restart. Raises _RecordSkippedError."""
        schemas = self.core.schemas
        cost = envelope_cost.envelope_cost(
            envelope, (schemas.get(batch.schema) for batch in envelope.batches)
        )
        # Bounds apply also here: one stored envelope must not make each start exceed the memory.
        problems = [
            *envelope_cost.find_exceeded_bounds(cost, self.limits, envelope_cost.REPLAY_FACTOR),
            *self.core.find_sequence_problems(
                envelope, self.limits.gaps_per_stream, envelope_cost.REPLAY_FACTOR
            ),
        ]
        if problems:
            raise _RecordSkippedError("; ".join(problems))

    def _replay(self, record: segment_files.FrameRecord, envelope: wire.Envelope) -> None:
        """Apply a record to the core, if its cost is within the bounds of a restart."""
        self.check(envelope)
        if record.accepted is not None:
            statements = envelope if record.has_statements else None
            self.core.record_durable(record, statements)
        # `accept` does not raise: it counts what it cannot process.
        faults = self.core.counts.rejected.get("fault", 0)
        self.core.accept(record, envelope)
        if self.core.counts.rejected.get("fault", 0) > faults:
            message = "the state rejected it: see envelope_processing_failed"
            raise _RecordSkippedError(message)

    def unpack(self, record: segment_files.FrameRecord) -> wire.Envelope:
        """Return the envelope of a record. Raises WireError."""
        max_bytes = max(
            envelope_cost.REPLAY_FACTOR * self.limits.decompressed_bytes, MIN_REPLAYED_BYTES
        )
        return envelopes.open_body(record.body, max_bytes).decode_envelope()

    def read_events(self) -> Iterator[SeenEvent]:
        """Yield the events of the segments that a restart would read. Blocking; raises OSError."""
        for number, record in self._records(segment_files.FrameLogStats()):
            try:
                envelope = self.unpack(record)
            except wire.WireError as error:
                log.error("record_skipped", segment=number, problem=str(error))
                continue
            yield from events_of(record, envelope)

    def _records(
        self, stats: segment_files.FrameLogStats
    ) -> Iterator[tuple[int, segment_files.FrameRecord]]:
        """Yield the records of the segments after the checkpoint, with segment numbers."""
        frames = self.directory / "frames"
        numbers = segment_files.segment_numbers(frames)
        for number in [each for each in numbers if each >= self.first_segment]:
            try:
                path = segment_files.segment_path(frames, number)
                for _, record in segment_files.read_segment(path, stats):
                    yield number, self.correct_receipt(record)
            except FileNotFoundError:
                # Unless a checkpoint has been made meanwhile: it and the `companion_files` contain all
                # of this.
                if number >= self.first_segment:
                    raise

    def correct_receipt(self, record: segment_files.FrameRecord) -> segment_files.FrameRecord:
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
        return self.directory / (CHECKPOINT + durable_files.PARTIAL)

    def _read_checkpoint(self) -> int:
        try:
            # All parts are decoded before any is restored: a damaged file must not leave half a state.
            parts = state_checkpoint.decode_parts(self._path.read_bytes())
        except FileNotFoundError:
            return 0
        except state_checkpoint.StateCheckpointError as error:
            log.error(
                "checkpoint_damaged",
                file=str(self._path),
                problem=str(error),
                advice="all existing segments are read instead",
            )
            return 0
        return state_checkpoint.restore_state(self.core, parts)

    async def write(self, first_segment: int, horizon_ns: int) -> bool:
        """Write a checkpoint of segments before one; true if they may be deleted.

        Frames may arrive meanwhile. If cancelled, nothing is written after its return: another
        collector may continue from here.
        """
        try:
            if not self.reason_to_withhold():
                await self._write(first_segment, horizon_ns)
            # Frames may receive other timestamps: they are not for a checkpoint yet.
            if reason := self.reason_to_withhold():
                log.warning(
                    "checkpoint_withheld",
                    reason=reason,
                    advice="no segment is deleted until a checkpoint succeeds",
                )
                await run_in_thread(self._drop_partial)
                return False
            # Last, so that they contain the events of all frames that the checkpoint records as
            # received.
            for path, make_content in self.companion_files.items():
                content = make_content(horizon_ns)
                if content is None:
                    log.warning(
                        "checkpoint_delayed",
                        file=str(path),
                        advice="the events of these segments are not recorded yet",
                    )
                    await run_in_thread(self._drop_partial)
                    return False
                await run_in_thread(durable_files.write_durably, path, content)
            await run_in_thread(durable_files.publish_file, self._partial, self._path)
        except OSError as error:
            log.error(
                "checkpoint_failed",
                file=str(self._path),
                problem=str(error),
                advice="no segment is deleted until a checkpoint succeeds",
            )
            await run_in_thread(self._drop_partial)
            return False
        self.first_segment = first_segment
        return True

    def _drop_partial(self) -> None:
        """Delete the partial file, which would only fill the disk."""
        try:
            self._partial.unlink(missing_ok=True)
        except OSError as error:
            log.warning("checkpoint_deletion_failed", file=str(self._partial), problem=str(error))

    async def _write(self, first_segment: int, horizon_ns: int) -> None:
        slices = TimeSlices()
        received = self.core.received
        # Before the parts are made, so that the file does not contain runs that are too old to be sent again.
        for node in list(received.nodes):
            received.drop_old_runs(node, horizon_ns)
            await slices.yield_if_due()
        await run_in_thread(self._partial.write_bytes, state_checkpoint.MAGIC)
        pieces: list[bytes] = []
        size = 0
        slices = TimeSlices()
        for part in state_checkpoint.make_parts(self.core, first_segment):
            pieces.append(state_checkpoint.encode_part(part))
            size += len(pieces[-1])
            # In pieces: the file can be larger than the memory that is free.
            if size >= WRITE_BYTES:
                await run_in_thread(_append, self._partial, pieces)
                pieces, size, slices = [], 0, TimeSlices()
            await slices.yield_if_due()
        await run_in_thread(_append, self._partial, pieces)


def _append(path: Path, pieces: list[bytes]) -> None:
    with path.open("ab") as file:
        file.writelines(pieces)
