"""Shipping: packs frames into envelopes, spools them, and sends them until the collector acknowledges.

An envelope is removed only when the collector has acknowledged it as durable or rejected it
permanently. Sending again is harmless: the collector identifies every frame. While the collector
acknowledges, an envelope is sent from memory, and spooled if that fails or takes longer than
`UNSPOOLED_SECONDS`: a disk write and its wait for each envelope would only protect frames that are
durable elsewhere a moment later. Otherwise it is spooled before it is sent. If the disk is full,
envelopes wait in memory, with a smaller bound. Only the spool's thread accesses waiting envelopes,
on disk or in memory.

Audited events have sequence numbers: a missing number is an event that was lost in transit.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import structlog

from agent import config, host
from agent.sampling import hang_guard, status
from agent.shipping.collector_client import CollectorClient, DeliveryResult, EnvelopeDecision
from agent.shipping.spool import (
    FrameLoss,
    Spool,
    SpooledEnvelope,
    SpooledSchemas,
    split_into_envelopes,
)
from railscope import __version__, durable_files, envelopes, timestamps, wire
from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.entities import DROP
from railscope.frame import Entity, Event, Frame, FrameOrigin, Schema

log = structlog.get_logger(__name__)

MAX_FRAMES_PENDING = 20_000
MAX_BYTES_IN_MEMORY = 16 << 20
FIRST_RETRY_SECONDS = 0.5
SHUTDOWN_SECONDS = 3.0
MAX_FLUSH_DELAY_SECONDS = 0.2
ROUND_SECONDS = 0.01
"""Maximum duration from the first frame of a round of reads to the last one, usually."""
UNSPOOLED_SECONDS = 1.0
"""Maximum time that an envelope is only in memory while the collector has not acknowledged it."""
RUN_END_FILE = "run_end.json"
"""File in the state directory with the last packed sequence of each stream, written at each push; durable at
once only with a spooled envelope."""


@dataclass
class Shipper:
    """Ships frames to a collector until cancelled."""

    link: config.CollectorLink
    origin: FrameOrigin
    clock: host.Clock
    directory: Path
    stats: status.ShippingStats
    events: list[Event]
    """Events of the agent, which its own source reports."""
    _pending: list[Frame] = field(default_factory=list)
    _memory: deque[tuple[bytes, int]] = field(default_factory=deque)
    _has_envelopes: asyncio.Event = field(default_factory=asyncio.Event)
    _is_flush_due: asyncio.Event = field(default_factory=asyncio.Event)
    _is_all_sent: asyncio.Event = field(default_factory=asyncio.Event)
    _flush_ns: int = 0
    """Time of the next flush."""
    _sent_body: bytes = b""
    """The envelope in memory that is being sent, or was sent last."""
    _spooled_body: SpooledEnvelope | None = None
    """The same envelope in the spool, if it was spooled meanwhile."""
    _has_disk_failed: bool = False
    _is_stopping: bool = False
    _problem: str | None = None
    """Problem of the last attempt: empty if it was acknowledged, None before the first."""
    _unstored_schemas: set[bytes] = field(default_factory=set)
    _ended: wire.RunEnd | None = None
    """Last sequences of the previous run, until an envelope that contains them is spooled."""
    _last: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Open the spool. Raises OSError if the state directory cannot be used."""
        self._ended = self._read_run_end()
        self._spool = Spool(self.directory / "spool", self.link.spool_bytes)
        self._schemas = SpooledSchemas(self.directory / "schemas")
        self._client = CollectorClient(self.link)
        self._disk = hang_guard.DeviceThread("spool")
        self._update_stats()

    def publish(self, frame: Frame) -> None:
        """Queue a frame for the next envelope."""
        if len(self._pending) >= MAX_FRAMES_PENDING:
            self._record_loss(FrameLoss("disk", 0, 1))
            return
        self._pending.append(frame)
        if frame.timestamp.boot_ns >= self._flush_ns:
            self._is_flush_due.set()

    async def run(self) -> None:
        """Ship until cancelled; then spool the pending frames and try to send them once more."""
        try:
            async with self._client, asyncio.TaskGroup() as group:
                group.create_task(self._flush_regularly())
                group.create_task(self._send_all())
        finally:
            await self._send_at_shutdown()
            self._disk.stop()
            log.info(
                "agent_stopped",
                shipped_frames=self.stats.shipped_frames,
                dropped_frames=sum(self.stats.dropped_frames.values()),
                waiting_envelopes=self.stats.spool_envelopes,
            )

    async def _send_at_shutdown(self) -> None:
        client = CollectorClient(self.link)
        self._is_stopping = True  # from now on, envelopes are spooled before they are sent
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS), client:
                await self._disk.submit(self._spool_memory)
                await self.flush()
                while (oldest := await self._wait_for_oldest()) is not None:
                    answer = await self._offer(client, oldest[1])
                    if answer.verdict is not EnvelopeDecision.ACKNOWLEDGED:
                        break
                    await self._remove_shipped(*oldest)
        except TimeoutError:
            log.warning(
                "final_delivery_interrupted",
                url=self._client.url,
                directory=str(self.directory),
                timeout_seconds=SHUTDOWN_SECONDS,
            )

    # Frames to envelopes -----------------------------------------------------------------------

    async def _flush_regularly(self) -> None:
        period_ns = round(self.link.push_seconds * timestamps.SECOND_NS)
        while True:
            now_ns = self.clock.now().boot_ns
            self._flush_ns = (now_ns // period_ns + 1) * period_ns
            if self.clock.is_running:
                seconds = (self._flush_ns - now_ns) / timestamps.SECOND_NS
                await self._wait_for_reads(
                    seconds + min(self.link.push_seconds, MAX_FLUSH_DELAY_SECONDS)
                )
            await self.clock.sleep_until(self._flush_ns)
            await self.flush()

    async def _wait_for_reads(self, seconds: float) -> None:
        """Wait for the frames that are read when a flush is due.

        Packing at the same time would contend with the reads, and with the event loop that publishes frames.
        """
        self._is_flush_due.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_flush_due.wait()
                await asyncio.sleep(ROUND_SECONDS)

    async def flush(self) -> None:
        """Pack the pending frames into envelopes, to be sent from memory or spooled."""
        frames, self._pending = self._pending, []
        if frames:
            await self._disk.submit(lambda: self._pack_frames(frames))
            self._is_all_sent.clear()
            self._has_envelopes.set()

    async def wait_until_sent(self) -> None:
        """Wait until the collector has decided about all envelopes."""
        await self._is_all_sent.wait()

    def _pack_frames(self, frames: list[Frame]) -> None:
        """Pack frames into envelopes; runs on the spool's thread."""
        frames.sort(key=lambda frame: (frame.schema.stream, frame.sequence))
        for schema in dict.fromkeys(frame.schema for frame in frames):
            self._store_schema(schema)
        for group in split_into_envelopes(frames):
            self._add_envelope(group)
        self._update_stats()

    def _add_envelope(self, frames: list[Frame]) -> None:
        body = self._pack(frames, (), self._ended)
        self._ended = None
        self._last |= {frame.schema.stream: frame.sequence for frame in frames}
        is_first = not self._spool and not self._memory
        self._memory.append((body, len(frames)))
        if self._is_stopping or self._problem != "" or not is_first:
            self._spool_memory()
        else:
            self._write_run_end(durable_files.replace_json)

    def _spool_memory(self) -> None:
        """Spool the envelopes in memory, as far as the disk allows; runs on the spool's thread."""
        while self._memory:
            body, frames = self._memory[0]
            try:
                loss = self._spool.put(body, frames)
            except OSError as error:
                self._bound_memory(error)
                break
            if loss:
                self._record_loss(loss)
            self._memory.popleft()
            self._has_disk_failed = False
            if body is self._sent_body:
                self._spooled_body = self._spool.newest
        if self._last:
            self._write_run_end(durable_files.write_json)
        self._update_stats()

    def _write_run_end(self, write: Callable[[Path, object], None]) -> None:
        try:
            write(self.directory / RUN_END_FILE, wire.RunEnd(self.origin.run, self._last))
        except OSError as error:
            # Only the end of the run is missing; the file is written again at the next push.
            log.warning("run_end_write_failed", directory=str(self.directory), problem=str(error))

    def _read_run_end(self) -> wire.RunEnd | None:
        """Return the last sequences of the previous run. Raises OSError for the state directory."""
        try:
            return durable_files.read_json(self.directory / RUN_END_FILE, wire.RunEnd)
        except durable_files.DamagedFileError as error:
            log.warning("run_end_lost", problem=str(error))
            return None

    def _pack(
        self,
        frames: list[Frame],
        schemas: tuple[wire.WireSchema, ...],
        ended: wire.RunEnd | None = None,
    ) -> bytes:
        return wire.pack(
            wire.envelope(
                self.origin,
                envelopes.encode_batches(frames),
                schemas,
                agent_version=__version__,
                ended=ended,
            )
        )

    def _store_schema(self, schema: Schema) -> None:
        digest = wire.schema_identity(schema)
        try:
            self._schemas.put(digest, partial(wire.to_wire_schema, schema))
            self._unstored_schemas.discard(digest)
        except OSError as error:
            if digest not in self._unstored_schemas:
                log.warning(
                    "schema_write_failed", directory=str(self.directory), problem=str(error)
                )
            self._unstored_schemas.add(digest)

    def _bound_memory(self, error: OSError) -> None:
        """Keep the newest envelopes that could not be spooled."""
        if not self._has_disk_failed:
            self._has_disk_failed = True
            log.error(
                "spool_failed",
                directory=str(self.directory),
                problem=error.strerror or str(error),
                advice="free disk space; frames are buffered in memory until then",
            )
        while sum(len(buffered) for buffered, _ in self._memory) > MAX_BYTES_IN_MEMORY:
            _, dropped = self._memory.popleft()
            self._record_loss(FrameLoss("disk", 1, dropped))

    # Envelopes to the collector ----------------------------------------------------------------

    async def _send_all(self) -> None:
        pause_seconds = FIRST_RETRY_SECONDS
        while True:
            oldest = await self._wait_for_oldest() if self.stats.spool_envelopes else None
            if oldest is None:
                self._has_envelopes.clear()
                self._is_all_sent.set()
                await self._has_envelopes.wait()
                continue
            answer = await self._offer_in_time(*oldest)
            if answer.verdict is EnvelopeDecision.ACKNOWLEDGED:
                await self._remove_shipped(*oldest)
                pause_seconds = FIRST_RETRY_SECONDS
            elif answer.verdict is EnvelopeDecision.REJECTED:
                await self._remove_rejected(*oldest, answer)
            else:
                self._record_failure(answer)
                await self._disk.submit(self._spool_memory)
                wait_seconds = answer.retry_after_seconds or pause_seconds
                await self._pause(min(wait_seconds, self.link.max_retry_seconds))
                pause_seconds = min(pause_seconds * 2, self.link.max_retry_seconds)

    async def _pause(self, seconds: float) -> None:
        spread = random.uniform(0.8, 1.2)  # noqa: S311 - keeps agents from retrying in step
        now_ns = self.clock.now().boot_ns
        await self.clock.sleep_until(now_ns + round(seconds * spread * timestamps.SECOND_NS))

    async def _wait_for_oldest(self) -> tuple[SpooledEnvelope | None, bytes] | None:
        """Return the next envelope: from the spool, then from memory."""
        while True:
            try:
                oldest = await self._disk.submit(self._find_oldest)
            except OSError as error:
                problem = f"cannot read the spool in {self.directory}: {error.strerror or error}"
                self._record_failure(DeliveryResult(EnvelopeDecision.LATER, problem))
                await self._pause(self.link.max_retry_seconds)
                continue
            if not isinstance(oldest, FrameLoss):
                return oldest
            self._record_loss(oldest)

    def _find_oldest(self) -> tuple[SpooledEnvelope | None, bytes] | FrameLoss | None:
        """Return the next envelope, or a loss; runs on the spool's thread."""
        oldest = self._spool.oldest()
        self._update_stats()
        if oldest is None and self._memory:
            self._sent_body, self._spooled_body = self._memory[0][0], None
            return None, self._sent_body
        return oldest

    async def _offer_in_time(self, spooled: SpooledEnvelope | None, body: bytes) -> DeliveryResult:
        """Send a body; if that takes long, spool it meanwhile."""
        sending = asyncio.ensure_future(self._offer(self._client, body))
        try:
            if spooled is None:
                await asyncio.wait({sending}, timeout=UNSPOOLED_SECONDS)
                if not sending.done():
                    await self._disk.submit(self._spool_memory)
            return await sending
        finally:
            sending.cancel()

    async def _offer(self, client: CollectorClient, body: bytes) -> DeliveryResult:
        """Send a body, after the schemas that the collector requests."""
        answer = await self._post(client, body)
        if answer.verdict is not EnvelopeDecision.WANTS_SCHEMAS:
            return answer
        schemas = [schema for digest in answer.schemas if (schema := self._schemas.get(digest))]
        if len(schemas) < len(answer.schemas):
            return DeliveryResult(
                EnvelopeDecision.REJECTED,
                "schema of these frames is missing from the agent's state directory",
            )
        answer = await self._post(client, self._pack([], tuple(schemas)))
        return (
            await self._post(client, body)
            if answer.verdict is EnvelopeDecision.ACKNOWLEDGED
            else answer
        )

    async def _post(self, client: CollectorClient, body: bytes) -> DeliveryResult:
        return await client.post(
            body, wire.SentAt.from_timestamp(self.clock.now(), self.origin.boot_id)
        )

    # An envelope is removed and counted as one step on the spool's thread: it counts even if the waiting
    # task is cancelled meanwhile.

    async def _remove_shipped(self, spooled: SpooledEnvelope | None, body: bytes) -> None:
        def remove() -> None:
            frames = self._release(spooled, body)
            if self._problem != "":
                log.info(
                    "collector_connected", url=self._client.url, waiting_envelopes=len(self._spool)
                )
                self._problem = ""
            self.stats.shipped_frames += frames

        await self._disk.submit(remove)

    async def _remove_rejected(
        self, spooled: SpooledEnvelope | None, body: bytes, answer: DeliveryResult
    ) -> None:
        def remove() -> None:
            frames = self._release(spooled, body)
            log.error("frames_rejected", frames=frames, problem=answer.problem)
            self._record_loss(FrameLoss("rejected", 1, frames))

        await self._disk.submit(remove)

    def _release(self, spooled: SpooledEnvelope | None, body: bytes) -> int:
        """Remove an envelope from the spool or from memory; runs on the spool's thread.

        An envelope that was dropped meanwhile for lack of space is counted as lost, not here.
        """
        frames = 0
        if spooled is None and body is self._sent_body:
            spooled = self._spooled_body
        if spooled is not None:
            frames = spooled.frames if self._spool.remove(spooled) else 0
        elif self._memory and self._memory[0][0] is body:
            frames = self._memory.popleft()[1]
        self._update_stats()
        return frames

    def _record_failure(self, answer: DeliveryResult) -> None:
        self.stats.failures += 1
        if self._problem != answer.problem:
            log.warning("collector_unreachable", problem=answer.problem)
            self._problem = answer.problem

    def _record_loss(self, loss: FrameLoss) -> None:
        """Count dropped frames, and report them in an event of the next frame."""
        self.stats.dropped_frames[loss.reason] += loss.frames
        now = self.clock.now()
        facts = {"frames": str(loss.frames), "envelopes": str(loss.envelopes)}
        self.events.append(
            Event(GAP_EVENT, Entity(DROP, (loss.reason,)), now.wall_ns, now.boot_ns, facts)
        )
        log.error("frames_lost", reason=loss.reason, frames=loss.frames)

    def _update_stats(self) -> None:
        self.stats.spool_bytes = self._spool.size + sum(len(body) for body, _ in self._memory)
        self.stats.spool_envelopes = len(self._spool) + len(self._memory)


@dataclass(slots=True)
class EventNumbering:
    """Numbers the audited events of one run of the agent, from 1 and without gaps."""

    last: int = 0

    def number_events(self, frame: Frame) -> Frame:
        """Return the frame for the collector, with numbers in its events."""
        if not any(event.event_class.audited for event in frame.events):
            return frame
        return replace(frame, events=tuple(self._number_event(event) for event in frame.events))

    def _number_event(self, event: Event) -> Event:
        if not event.event_class.audited:
            return event
        self.last += 1
        return replace(event, number=self.last)
