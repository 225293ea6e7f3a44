"""Shipping: packs frames into envelopes, spools them, and sends them until the collector acknowledges.

An envelope is removed only when the collector has acknowledged it as durable or rejected it
permanently; where a shared database gets its evidence later, it stays in the spool until then. Sending
again is harmless: the collector identifies every frame. While the collector acknowledges, an envelope is
sent from memory, and spooled if that fails or takes longer than `UNSPOOLED_SECONDS`: a disk write and its
wait for each envelope would only protect frames that are durable elsewhere a moment later. Otherwise it is
spooled before it is sent. If the disk is full, envelopes wait in memory, with a smaller bound.

The disk may hang, and is used where it is needed: an agent runs its shipper on an event loop of its own
(`railscope_agent.shipping.shipping_thread`). Only `publish` may be called elsewhere.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from railscope import __version__, shapes, timestamps, wire
from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.entities import DROP
from railscope.frame import Entity, Event, Frame, FrameOrigin
from railscope_agent import config, host
from railscope_agent.sampling import shipping_stats
from railscope_agent.shipping import envelope_limits, names_store, run_end, spool
from railscope_agent.shipping.collector_choice import CollectorFailover
from railscope_agent.shipping.collector_client import CollectorClient
from railscope_agent.shipping.delivery_result import (
    DeliveryResult,
    EnvelopeDecision,
    EvidenceReceipt,
)
from railscope_agent.shipping.envelope_delivery import EnvelopeDelivery

log = structlog.get_logger(__name__)

# Reached only if the shipper hangs, for example on a dead disk.
MAX_FRAMES_PENDING = 20_000
MAX_BYTES_IN_MEMORY = 16 << 20
# Frames that are not sent by then are in the spool: a longer wait would only delay the stop of the service.
SHUTDOWN_SECONDS = 3.0
FLUSH_DELAY_SECONDS = 0.2
"""Time after the reads that are due at a flush."""
UNSPOOLED_SECONDS = 1.0
"""Maximum time that an envelope is only in memory while the collector has not acknowledged it."""


@dataclass
class Shipper:
    """Ships frames to a collector, or to one of several, until cancelled."""

    link: config.CollectorLink
    origin: FrameOrigin
    clock: host.Clock
    directory: Path
    stats: shipping_stats.ShippingStats
    events: list[Event]
    """Events of the agent, which its own source reports."""
    version: str = __version__
    """Version of the agent."""
    _pending: deque[Frame] = field(default_factory=deque)
    """Frames for the next envelope, at most `MAX_FRAMES_PENDING`."""
    _refused: int = 0
    """Number of frames that found no place since the start."""
    _reported: int = 0
    """Number of these that an event reports."""
    _counting: threading.Lock = field(default_factory=threading.Lock)
    _memory: deque[tuple[bytes, int]] = field(default_factory=deque)
    _has_envelopes: asyncio.Event = field(default_factory=asyncio.Event)
    _is_all_sent: asyncio.Event = field(default_factory=asyncio.Event)
    _sent_body: bytes = b""
    """The envelope in memory that is being sent, or was sent last."""
    _spooled_body: spool.SpooledEnvelope | None = None
    """The same envelope in the spool, if it was spooled meanwhile."""
    _has_disk_failed: bool = False
    _is_stopping: bool = False
    _problem: str | None = None
    """Problem of the last attempt: empty if it was acknowledged, None before the first."""
    _is_log_known: bool = True
    """False if another collector, or one that lost its disk, may respond next."""
    _ended: wire.RunEnd | None = None
    """Last sequences of the previous run, until an envelope that contains them is spooled."""
    _last: dict[str, int] = field(default_factory=dict)
    _attached: dict[str, bytes] = field(default_factory=dict)
    """Hash of the names that an envelope for this collector contains, by stream."""

    def __post_init__(self) -> None:
        """Open the spool. Raises OSError if the state directory cannot be used."""
        self._ended = run_end.read_run_end(self.directory)
        self._failover = CollectorFailover(self.link, self.clock, self.stats)
        self._client = self._failover.client
        self._spool = spool.Spool(self.directory / "spool", self.link.spool_bytes)
        self._names = names_store.NamesStore(self.directory / "schemas")
        self._delivery = EnvelopeDelivery(self.origin, self.clock, self._names.get, self.version)
        self._update_stats()

    def publish(self, frame: Frame) -> None:
        """Queue a frame for the next envelope. On any thread, but not on two at once."""
        if len(self._pending) < MAX_FRAMES_PENDING:
            self._pending.append(frame)
        else:
            self._refused += 1
            self._count_loss("disk", 1)

    @property
    def pending_frames(self) -> int:
        """Number of frames that are in no envelope yet."""
        return len(self._pending)

    async def run(self) -> None:
        """Ship until cancelled; then spool the pending frames and try to send them once more."""
        try:
            async with self._failover, asyncio.TaskGroup() as group:
                group.create_task(self._flush_regularly())
                group.create_task(self._send_all())
        finally:
            # After the group has ended: no other task sends or spools now.
            await self._send_at_shutdown()
            self._drop_memory()
            log.info(
                "agent_stopped",
                shipped_frames=self.stats.shipped_frames,
                dropped_frames=sum(self.stats.dropped_frames.values()),
                waiting_envelopes=self.stats.spool_envelopes,
            )

    async def _send_at_shutdown(self) -> None:
        # On a new connection: the former ones are closed. Not by a new client, which would read files of the link
        # again, such as a token that has been replaced.
        client = self._client = self._failover.client
        self._is_stopping = True  # from now on, envelopes are spooled before they are sent
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS), client:
                # First what protects the frames: the time for the stop may end at any moment.
                self._spool_memory()
                self.flush()
                while (oldest := await self._wait_for_oldest()) is not None:
                    answer = await self._offer(client, *oldest)
                    # No second attempt: the next run of the agent sends the rest.
                    if answer.verdict is not EnvelopeDecision.ACKNOWLEDGED:
                        break
                    self._remove_shipped(*oldest, answer.receipt)
        except TimeoutError:
            log.warning(
                "final_delivery_interrupted",
                url=self._client.url,
                directory=str(self.directory),
                timeout_seconds=SHUTDOWN_SECONDS,
            )

    def _drop_memory(self) -> None:
        """Count what no disk has and no collector received: it ends with the process."""
        while self._memory:
            self._record_loss(spool.FrameLoss("disk", 1, self._memory.popleft()[1]))
        self._update_stats()

    # Frames to envelopes -----------------------------------------------------------------------

    async def _flush_regularly(self) -> None:
        period_ns = round(self.link.push_seconds * timestamps.SECOND_NS)
        while True:
            now_ns = self.clock.now().boot_ns
            # A multiple of the period, as the reads, and after them: an envelope has all frames of a tick.
            flush_ns = (now_ns // period_ns + 1) * period_ns
            if self.clock.is_running:
                flush_ns += round(
                    min(self.link.push_seconds / 2, FLUSH_DELAY_SECONDS) * timestamps.SECOND_NS
                )
            await self.clock.sleep_until(flush_ns)
            self.flush()

    def flush(self) -> None:
        """Pack the pending frames into envelopes, to be sent from memory or spooled. Blocking."""
        if (refused := self._refused) > self._reported:
            self._report_loss(spool.FrameLoss("disk", 0, refused - self._reported))
            self._reported = refused
        # One after the other: threads publish meanwhile.
        frames = [self._pending.popleft() for _ in range(len(self._pending))]
        if frames:
            self._pack_frames(frames)
            self._is_all_sent.clear()
            self._has_envelopes.set()

    async def wait_until_sent(self) -> None:
        """Wait until the collector has decided about all envelopes."""
        await self._is_all_sent.wait()

    def _pack_frames(self, frames: list[Frame]) -> None:
        # A batch is a series of consecutive frames of one source; late reads are published out of order.
        frames.sort(key=lambda frame: (frame.schema.stream, frame.sequence))
        # Before their envelopes: after a crash, a spooled envelope without its names could not be delivered.
        for schema in dict.fromkeys(frame.schema for frame in frames):
            parts = shapes.schema_parts(schema)
            self._names.put(parts.shape_hash, parts.shape)
            self._names.put(parts.names_hash, parts.names)
        for group in envelope_limits.split_into_envelopes(frames):
            self._add_envelope(group)
        self._update_stats()

    def _add_envelope(self, frames: list[Frame]) -> None:
        body = self._delivery.pack(frames, self._new_names(frames), self._ended)
        self._ended = None
        self._last |= {frame.schema.stream: frame.sequence for frame in frames}
        # Envelopes arrive in order only if nothing older waits.
        is_first = not self._spool and not self._memory
        self._memory.append((body, len(frames)))
        if self._is_stopping or self._problem != "" or not is_first:
            self._spool_memory()
        else:
            run_end.write_run_end(
                self.directory, wire.RunEnd(self.origin.run, self._last), is_synced=False
            )

    def _new_names(self, frames: list[Frame]) -> list[bytes]:
        """Return the lists of names that no envelope of this run has for a stream, or that have changed."""
        found = {}
        for schema in {id(frame.schema): frame.schema for frame in frames}.values():
            parts = shapes.schema_parts(schema)
            if self._attached.get(schema.stream) != parts.names_hash:
                self._attached[schema.stream] = parts.names_hash
                found[parts.names_hash] = parts.names
        return list(found.values())

    def _spool_memory(self) -> None:
        """Spool the envelopes in memory, as far as the disk allows."""
        while self._memory:
            # Removed from memory only when it is on disk.
            body, frames = self._memory[0]
            try:
                self._spool_envelope(body, frames)
            except OSError as error:
                self._bound_memory(error)
                break
            self._memory.popleft()
            if body is self._sent_body:
                # Its acknowledgement, which may arrive later, has to remove the file.
                self._spooled_body = self._spool.newest
        if self._last:
            # After the envelopes: a run end that names sequences of an envelope that was not written would
            # report a loss.
            run_end.write_run_end(self.directory, wire.RunEnd(self.origin.run, self._last))
        self._update_stats()

    def _spool_envelope(self, body: bytes, frames: int, *, is_synced: bool = True) -> None:
        """Spool an envelope. Raises OSError."""
        self._spool.put(body, frames, is_synced=is_synced)
        self._has_disk_failed = False

    def _bound_memory(self, error: OSError) -> None:
        """Keep the newest envelopes that could not be spooled."""
        self._report_disk(error)
        while sum(len(buffered) for buffered, _ in self._memory) > MAX_BYTES_IN_MEMORY:
            _, dropped = self._memory.popleft()
            self._record_loss(spool.FrameLoss("disk", 1, dropped))

    def _report_disk(self, error: OSError) -> None:
        if not self._has_disk_failed:
            self._has_disk_failed = True
            log.error(
                "spool_failed",
                directory=str(self.directory),
                problem=error.strerror or str(error),
                advice="free disk space; frames are buffered in memory until then",
            )

    # Envelopes to the collector ----------------------------------------------------------------

    async def _send_all(self) -> None:
        while True:
            oldest = await self._wait_for_oldest() if self.stats.spool_envelopes else None
            if oldest is None:
                self._has_envelopes.clear()
                self._is_all_sent.set()
                await self._has_envelopes.wait()
                continue
            client = self._failover.begin_attempt()
            self._is_log_known &= client is self._client
            if client is not self._client:
                self._attached.clear()
            self._client = client
            # Envelopes that another collector received and did not store are sent first: without it, the newer
            # frames would make it late.
            is_query = not self._is_log_known and self.stats.unstored_envelopes > 0
            answer = await (self._query_log() if is_query else self._offer_in_time(*oldest))
            if is_query and answer.verdict is EnvelopeDecision.ACKNOWLEDGED:
                self._is_log_known = True
            elif answer.verdict is EnvelopeDecision.ACKNOWLEDGED:
                self._failover.record_response()
                self._remove_shipped(*oldest, answer.receipt)
            elif answer.verdict is EnvelopeDecision.REJECTED and not is_query:
                # A rejection is a decision too: the collector works, and no other one would accept the
                # envelope.
                self._failover.record_response()
                self._remove_rejected(*oldest, answer)
            else:
                self._record_failure(answer)
                self._is_log_known = False
                # The collector may be down for long: what waits has to survive a crash from now on.
                self._spool_memory()
                await self._pause(await self._failover.record_failure(answer))

    async def _query_log(self) -> DeliveryResult:
        """Send an envelope without frames, to find out which log this collector has.

        If it is another one, what it has not received is sent in order, before newer envelopes: a collector
        trusts claims from an hour before the newest frame that it has received.
        """
        # One queue in order: envelopes that wait again after the response are older than those in memory.
        self._spool_memory()
        answer = await self._delivery.query(self._client)
        if answer.verdict is EnvelopeDecision.ACKNOWLEDGED:
            # The receipt names the log: those that another log has received wait again.
            self._accept_receipt(None, b"", answer.receipt)
        return answer

    async def _pause(self, seconds: float) -> None:
        spread = random.uniform(0.8, 1.2)  # noqa: S311 - keeps agents from retrying in step
        now_ns = self.clock.now().boot_ns
        await self.clock.sleep_until(now_ns + round(seconds * spread * timestamps.SECOND_NS))

    async def _wait_for_oldest(self) -> tuple[spool.SpooledEnvelope | None, bytes] | None:
        """Return the next envelope: from the spool, then from memory."""
        while True:
            try:
                return self._find_oldest()
            except OSError as error:
                problem = f"cannot read the spool in {self.directory}: {error.strerror or error}"
                self._record_failure(DeliveryResult(EnvelopeDecision.LATER, problem))
                # A disk that cannot be read is not asked more often: each attempt may hang.
                await self._pause(self.link.max_retry_seconds)

    def _find_oldest(self) -> tuple[spool.SpooledEnvelope | None, bytes] | None:
        oldest: tuple[spool.SpooledEnvelope | None, bytes] | None = self._spool.oldest()
        self._update_stats()
        if oldest is None and self._memory:
            self._sent_body, self._spooled_body = self._memory[0][0], None
            return None, self._sent_body
        return oldest

    async def _offer(
        self, client: CollectorClient, spooled: spool.SpooledEnvelope | None, body: bytes
    ) -> DeliveryResult:
        return await self._delivery.offer(client, body, spooled.first_receipt if spooled else "")

    async def _offer_in_time(
        self, spooled: spool.SpooledEnvelope | None, body: bytes
    ) -> DeliveryResult:
        """Send a body; if that takes long, spool it meanwhile."""
        sending = asyncio.ensure_future(self._offer(self._client, spooled, body))
        try:
            if spooled is None:
                # Not `wait_for`, which would cancel the request at the timeout.
                await asyncio.wait({sending}, timeout=UNSPOOLED_SECONDS)
                if not sending.done():
                    self._spool_memory()
            return await sending
        finally:
            # Without it, a cancelled shipper would leave the request running.
            sending.cancel()

    def _remove_shipped(
        self,
        spooled: spool.SpooledEnvelope | None,
        body: bytes,
        receipt: EvidenceReceipt | None,
    ) -> None:
        frames = self._accept_receipt(spooled, body, receipt)
        if self._problem != "":
            log.info(
                "collector_connected", url=self._client.url, waiting_envelopes=len(self._spool)
            )
            self._problem = ""
        self.stats.shipped_frames += frames

    def _accept_receipt(
        self,
        spooled: spool.SpooledEnvelope | None,
        body: bytes,
        receipt: EvidenceReceipt | None,
    ) -> int:
        """Release a received envelope, or keep it until it is stored; return its frames, if new."""
        if receipt is None:
            self._spool.select_log("")
            return self._release(spooled, body)
        frames = 0
        if spooled is None and body is self._sent_body:
            spooled = self._spooled_body
        if spooled is None and (frames := self._release(None, body)):
            try:
                # The collector has it; the file is for the loss of that collector's disk, so it need not
                # survive a power failure.
                self._spool_envelope(body, frames, is_synced=False)
            except OSError as error:
                self._report_disk(error)
                # Acknowledged, but if the collector loses its disk before the evidence is stored, nothing can
                # send it again.
                self._count_loss("unstored", frames)
            else:
                spooled, frames = self._spool.newest, 0
        now_ns = self.clock.now().boot_ns
        frames += self._spool.receive(spooled, receipt, now_ns)
        self._update_stats()
        return frames

    def _remove_rejected(
        self, spooled: spool.SpooledEnvelope | None, body: bytes, answer: DeliveryResult
    ) -> None:
        if answer.credential_node:
            # With this envelope, all others of that node: one request and one loss, not thousands.
            self._spool.accept_only(answer.credential_node)
            log.error("spool_rejected", problem=answer.problem)
            return
        frames = self._release(spooled, body)
        log.error("frames_rejected", frames=frames, problem=answer.problem)
        self._record_loss(spool.FrameLoss("rejected", 1, frames))

    def _release(self, spooled: spool.SpooledEnvelope | None, body: bytes) -> int:
        """Remove an envelope from the spool or from memory.

        An envelope that was dropped meanwhile for lack of space is counted as lost, not here.
        """
        frames = 0
        if spooled is None and body is self._sent_body:
            spooled = self._spooled_body
        if spooled is not None:
            frames = spooled.frames if self._spool.remove(spooled) else 0
        # Compared by identity: after a drop for lack of memory, the first envelope is another one.
        elif self._memory and self._memory[0][0] is body:
            frames = self._memory.popleft()[1]
        self._update_stats()
        return frames

    def _record_failure(self, answer: DeliveryResult) -> None:
        self.stats.failures += 1
        if self._failover.is_new_problem(answer.problem):
            log.warning("collector_unreachable", problem=answer.problem)
        self._problem = answer.problem

    def _record_loss(self, loss: spool.FrameLoss) -> None:
        """Count dropped frames, and report them in an event of the next frame."""
        self._count_loss(loss.reason, loss.frames)
        self._report_loss(loss)

    def _count_loss(self, reason: str, frames: int) -> None:
        with self._counting:
            self.stats.dropped_frames[reason] += frames

    def _report_loss(self, loss: spool.FrameLoss) -> None:
        now = self.clock.now()
        facts = {"frames": str(loss.frames), "envelopes": str(loss.envelopes)}
        self.events.append(
            Event(GAP_EVENT, Entity(DROP, (loss.reason,)), now.wall_ns, now.boot_ns, facts)
        )
        log.error("frames_lost", reason=loss.reason, frames=loss.frames)

    def _update_stats(self) -> None:
        stats, queue = self.stats, self._spool
        for loss in queue.take_losses():
            self._record_loss(loss)
        stats.spool_bytes = queue.waiting_bytes + sum(len(body) for body, _ in self._memory)
        stats.spool_envelopes = len(queue) + len(self._memory)
        stats.unstored_bytes = queue.size - queue.waiting_bytes
        stats.unstored_envelopes = queue.unstored_count
        stats.unstored_since_ns = queue.unstored_since_ns
