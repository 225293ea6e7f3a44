"""Ingest: an envelope of an agent is checked, made durable, and acknowledged; readers apply it afterwards.

Responses, each with a JSON body:

    200  acknowledged: every frame of it is durable in the frame log. With a shared database, its evidence is
         in that database once a response with the same `log` has `stored` >= its `position`. `receipt` is for
         another collector, if the envelope must be sent again
    401  from the access control        403  the credential is that of another node, `credential_node`
    409  send these shapes and names    426  another version of the wire format
    400, 413, 422  rejected             429, 503  temporarily unavailable; see Retry-After

A response of a draining collector has status 503 and the field `draining`: the agent sends to another one at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import chain

import msgspec
import structlog
from aiohttp import web

from railscope import envelopes, http_responses, log_output, service, timestamps, wire
from railscope_collector import config
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.audit import audit_trail, event_records
from railscope_collector.fleet import fleet, sheets
from railscope_collector.fleet.names import KnownSchema
from railscope_collector.fleet.schemas import ReceivedParts
from railscope_collector.framelog import framelog, segment_files
from railscope_collector.http import envelope_senders
from railscope_collector.http.envelope_senders import Delivery, NodeSender, NotAcknowledgedError
from railscope_collector.http.json_responses import json_response
from railscope_collector.state import collector_state, envelope_cost, state_reader

log = structlog.get_logger(__name__)

MAX_LOOP_BYTES, MAX_LOOP_EVENT_BYTES = 256 << 10, 64 << 10
"""Bodies that are larger when decompressed, have larger events, or are of unknown size, are decoded in a
thread, and so are shapes and names. Ten seconds of a node are 50 to 250 KiB: a thread would cost as much as decoding.
"""
MAX_LARGE_ENVELOPES = 2
"""Large bodies that are decoded concurrently: each takes many times its size meanwhile."""
MAX_FIRST_SHAPES = 64
"""Shapes that one node may be the first to send in a day: a node of a new build has about 20."""
RATE_WINDOW_SECONDS = 10.0
RETRY_SECONDS = "5"
_FUTURE_NS = 60 * timestamps.SECOND_NS


@dataclass(slots=True)
class Ingest:
    """The ingest route."""

    core: collector_state.CollectorState
    log: framelog.FrameLog
    reader: state_reader.StateReader
    limits: config.IngestLimits
    on_denial: Callable[[audit_trail.DeniedRequest], None] = lambda _denial: None
    wall_ns: Callable[[], int] = time.time_ns
    doubted_since_ns: Callable[[], int] = lambda: 0
    """Start of the time in which `wall_ns` is in doubt; 0 if it is not."""
    is_suspect: Callable[[], bool] = lambda: False
    """True while `wall_ns` is suspect, and not only unconfirmed."""
    log_limit: log_output.LogRateLimit = field(default_factory=log_output.LogRateLimit)
    closed_reason: str = ""
    """Reason why no data is accepted; empty if data is accepted."""
    _senders: dict[str, NodeSender] = field(default_factory=dict)
    _large: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_LARGE_ENVELOPES)
    )

    async def handle(self, request: web.Request, credential: Credential) -> web.Response:
        """Respond to one POST."""
        # Not in the request, which aiohttp keeps until the next one of the connection: with the last body of each node.
        body = bytearray()
        try:
            response = json_response(await self._receive(request, credential, body))
        except NotAcknowledgedError as rejection:
            self.core.counts.reject(rejection.reason)
            # A valid credential that is used for another node is a misuse, which the audit log contains.
            if rejection.status == HTTPStatus.FORBIDDEN:
                path, address = request.rel_url.raw_path, request.remote or ""
                self.on_denial(
                    audit_trail.DeniedRequest(address, path, rejection.reason, credential.label)
                )
            headers = (
                {"Retry-After": RETRY_SECONDS}
                if rejection.status in envelope_senders.RETRIED_STATUSES
                else {}
            )
            repetitions = None
            if rejection.reason not in envelope_senders.UNLOGGED_REASONS:
                repetitions = self.log_limit.count_repetitions(rejection.reason, credential.name)
            if repetitions is not None:
                log.warning(
                    "envelope_rejected",
                    sender=request.remote,
                    reason=rejection.reason,
                    node=credential.name,
                    problem=str(rejection),
                    repetitions=repetitions,
                )
            content = {"error": str(rejection), **rejection.fields}
            response = json_response(content, rejection.status, headers)
        # Of these the agent deletes or changes something: a proxy between them must not be able to answer in place of
        # the collector.
        if response.status in http_responses.MARKED_STATUSES:
            response.headers[http_responses.RESPONSE_MARK_HEADER] = _make_response_mark(
                request, response, bytes(body)
            )
        return response

    async def _receive(
        self, request: web.Request, credential: Credential, body: bytearray
    ) -> dict[str, int | str]:
        if reason := self.core.draining:
            text = f"the collector accepts no frames: {reason}; fix: send to another one"
            raise NotAcknowledgedError(text, "draining", draining=True)
        if self.closed_reason:
            raise NotAcknowledgedError(self.closed_reason, "read_only")
        sender = self._senders.setdefault(credential.name, NodeSender())
        # Before the body is read, so that a node above its rate costs nearly nothing.
        self._check_rate(sender, credential.name)
        # One request of a node at a time: concurrent ones would pass the checks of sequences and rates together.
        async with sender.lock:
            await self._read_body(request, body)
            delivery = await self._decode(request, credential.name, bytes(body))
            return await self._process(credential, sender, delivery)

    async def _read_body(self, request: web.Request, body: bytearray) -> None:
        max_bytes = self.limits.body_bytes
        # Rejected by its header where possible: the body need not be received.
        size = request.content_length or 0
        try:
            async with asyncio.timeout(self.limits.body_timeout_seconds):
                while size <= max_bytes and (chunk := await request.content.readany()):
                    body += chunk
                    size = len(body)
        except TimeoutError:
            text = f"body not received within {self.limits.body_timeout_seconds:g} s"
            raise NotAcknowledgedError(text, "timeout") from None
        if size > max_bytes:
            text = f"body too large: expected at most {max_bytes} bytes"
            raise NotAcknowledgedError(text, "size")

    def _check_rate(self, sender: NodeSender, node: str) -> None:
        now_seconds = asyncio.get_running_loop().time()
        max_allowance = self.limits.requests_per_second * RATE_WINDOW_SECONDS
        refill = (now_seconds - sender.counted_at) * self.limits.requests_per_second
        sender.allowance = (
            min(max_allowance, sender.allowance + refill) if sender.counted_at else max_allowance
        )
        sender.counted_at = now_seconds
        if sender.allowance < 1:
            text = (
                f"too many requests from {node}: expected at most "
                f"{self.limits.requests_per_second:g} per second"
            )
            raise NotAcknowledgedError(text, "rate")
        sender.allowance -= 1

    async def receive_own(self, name: str, body: bytes, sent: wire.SentAt) -> str:
        """Accept an envelope that the collector made itself, as those of agents; return the reason if it is rejected."""
        if reason := self.closed_reason or self.core.draining:
            return reason
        try:
            sender = self._senders.setdefault(name, NodeSender())
            self._check_rate(sender, name)
            async with sender.lock:
                envelope, parts = await self._open(name, body)
                credential = Credential(name, Role.NODE)
                await self._process(credential, sender, Delivery(body, envelope, parts, sent))
        except NotAcknowledgedError as rejection:
            self.core.counts.reject(rejection.reason)
            return (
                rejection.reason
                if rejection.reason in envelope_senders.UNLOGGED_REASONS
                else str(rejection)
            )
        return ""

    async def _process(
        self, credential: Credential, sender: NodeSender, delivery: Delivery
    ) -> dict[str, int | str]:
        body, envelope, parts, sent, text = delivery
        if any(parts):
            await self._store_parts(envelope.node, parts, sender)
        self._check_start(envelope, sender)
        cost = self._check_bounds(envelope, self._check_batches(envelope))
        # A large envelope counts as several requests: its cost was not known before.
        sender.allowance -= cost.requests - 1
        new_frames = self.core.count_new_frames(envelope)
        total = cost.frames
        doubted_ns = self.doubted_since_ns()
        suspect = self.is_suspect()
        # After shapes and names are stored, which waits for the disk: the age of frames is measured from here.
        now_ns = self.wall_ns()
        if text and self.core.receipts.is_awaited:
            # Without it, the facts would have the time of this delivery, and differ from those at the first one.
            message = (
                "the receipt cannot be verified before the database was reached for the first time"
            )
            raise NotAcknowledgedError(message, "receipt")
        receipt = self.core.receipts.verify(credential.name, body, text, now_ns) if text else None
        record = segment_files.FrameRecord(
            credential.name,
            now_ns,
            sent,
            body,
            credential.max_authority,
            doubted_ns,
            suspect,
            *(msgspec.structs.astuple(receipt) if receipt else ()),
        )
        self._check_times(record, envelope)
        record = msgspec.structs.replace(
            record,
            run=envelope.run,
            accepted=self.core.accepted_batches(envelope),
            has_statements=bool(envelope.ended),
            has_events=any(batch.events for batch in envelope.batches),
        )
        # All frames are durable already, so nothing is written to the log again.
        if not new_frames:
            self.core.record_durable(record, envelope)
            for _ in self.core.steps(record, envelope):
                await asyncio.sleep(0)
            counts: dict[str, int | str] = {"accepted_frames": 0, "duplicate_frames": total}
            return counts | self.reader.acknowledge(credential.name)
        self._check_evidence(credential.name)
        audited = self._count_audited(envelope, sender)
        positions: dict[str, int | str] = {}
        try:
            await self.log.append(
                record, lambda end: positions.update(self.reader.put(record, envelope, end))
            )
        except OSError as error:
            raise NotAcknowledgedError(error, "storage") from error
        # Counted only when it is durable: a rejected attempt is sent again.
        sender.audited_events.count += audited
        counts = {"accepted_frames": new_frames, "duplicate_frames": total - new_frames}
        counts |= positions
        # Only for an envelope of new frames: parts of another one would have had another receipt.
        issued = self.core.receipts.issue(record) if 0 < new_frames == total else ""
        return counts | {"receipt": issued} if issued else counts

    async def _decode(self, request: web.Request, node: str, body: bytes) -> Delivery:
        # Switch frames bypass the metering: no agent may send under such a name.
        if node.startswith(fleet.SWITCH_PREFIX):
            text = f"name {node!r}: expected one without {fleet.SWITCH_PREFIX!r}, as switches have"
            raise NotAcknowledgedError(text, "node")
        headers = request.headers
        try:
            sent = wire.SentAt.from_header(headers.get(wire.SENT_HEADER, ""))
        except wire.WireError as error:
            raise NotAcknowledgedError(error, "format") from error
        envelope, parts = await self._open(node, body)
        return Delivery(body, envelope, parts, sent, headers.get(wire.RECEIPT_HEADER, ""))

    async def _open(self, node: str, body: bytes) -> tuple[wire.Envelope, ReceivedParts]:
        """Return the envelope of a body, with its shapes and names apart: they are a large part of its memory."""
        max_bytes = self.limits.decompressed_bytes
        try:
            size = envelopes.unpacked_bytes(body)
            opened = None
            if size is not None and max(size, len(body)) <= min(MAX_LOOP_BYTES, max_bytes):
                opened = envelopes.open_body(body, MAX_LOOP_BYTES)
            if opened and opened.event_bytes <= MAX_LOOP_EVENT_BYTES:
                envelope, former = opened.decode_envelope(), opened.former_schemas
            else:
                async with self._large:
                    envelope, former = await service.run_in_thread(_unpack, body, max_bytes)
        except wire.WireVersionError as error:
            raise NotAcknowledgedError(error, "version", version=wire.VERSION) from error
        except wire.WireError as error:
            raise NotAcknowledgedError(error, "format") from error
        if envelope.node != node:
            text = f"envelope of node {envelope.node!r}: expected {node!r}, as in the credential"
            # By the name, an agent finds out if the credential is its own, and the envelope that of a former name.
            raise NotAcknowledgedError(text, "node", credential_node=node)
        parts = ReceivedParts(envelope.shapes, envelope.names, former)
        return msgspec.structs.replace(envelope, shapes=(), names=()), parts

    async def _store_parts(self, node: str, parts: ReceivedParts, sender: NodeSender) -> None:
        """Store the shapes and names of an envelope, durable on return, unless one of them is rejected."""
        schemas, limit = self.core.schemas, MAX_FIRST_SHAPES
        try:
            # All are checked before one is stored, so that a rejected envelope leaves nothing.
            async with self._large:
                new = await service.run_in_thread(
                    schemas.check, parts, self.limits.columns_per_schema
                )
            if not sender.shapes.fits(len(new.shapes), limit, self.wall_ns()):
                text = f"too many new shapes: expected at most {limit} per node per day"
                raise NotAcknowledgedError(text, "shapes")
            await service.run_in_thread(schemas.store, node, new)
            # Counted after storing: the limit is on what is stored.
            sender.shapes.count += len(new.shapes)
        except (ValueError, ArithmeticError, LookupError) as error:
            raise NotAcknowledgedError(error, "schema") from error
        except OSError as error:
            raise NotAcknowledgedError(error, "storage") from error

    def _count_audited(self, envelope: wire.Envelope, sender: NodeSender) -> int:
        """Return the number of its events that are recorded permanently, within the limit per hour.

        The first envelope of an hour may exceed the limit, otherwise it would never be accepted.
        """
        events = chain.from_iterable(batch.events for batch in envelope.batches)
        count = sum(map(event_records.is_audited, events))
        limit, so_far = self.limits.audited_events_per_node_hour, sender.audited_events
        if count and not so_far.fits(count, limit, self.wall_ns()) and so_far.count:
            text = f"too many events for the audit log: expected at most {limit} per node per hour"
            raise NotAcknowledgedError(text, "audited_events")
        return count

    def _check_start(self, envelope: wire.Envelope, sender: NodeSender) -> None:
        """Limit the rate of agent starts: each run, boot and version is stored and recorded."""
        start = envelope.run, envelope.boot_id, envelope.agent_version
        if start not in sender.known_starts:
            limit = self.limits.starts_per_node_hour
            if not sender.starts.fits(1, limit, self.wall_ns()):
                text = f"too many starts of the agent: expected at most {limit} per node per hour"
                raise NotAcknowledgedError(text, "starts")
            sender.starts.count += 1
            sender.known_starts[start] = None
            if len(sender.known_starts) > envelope_senders.MAX_KNOWN_STARTS:
                sender.known_starts.popitem(last=False)
        sender.known_starts.move_to_end(start)

    def _check_evidence(self, node: str) -> None:
        """Reject frames of a node that has used its share of the pending evidence."""
        book = self.core.evidence
        share = book.quarters.share_of_node(self.limits.pending_evidence_intervals)
        if (pending := book.pending(node)) > share:
            text = (
                f"{pending} intervals of evidence of {node} wait for the database:"
                f" expected at most {share}"
            )
            raise NotAcknowledgedError(text, "evidence")

    def _check_bounds(
        self, envelope: wire.Envelope, schemas: Sequence[KnownSchema]
    ) -> envelope_cost.EnvelopeCost:
        cost = envelope_cost.envelope_cost(envelope, schemas)
        if problems := [*envelope_cost.find_exceeded_bounds(cost, self.limits)]:
            raise NotAcknowledgedError("; ".join(problems), "bounds")
        if problems := [*self.core.find_sequence_problems(envelope, self.limits.gaps_per_stream)]:
            raise NotAcknowledgedError("; ".join(problems), "bounds")
        return cost

    def _check_batches(self, envelope: wire.Envelope) -> list[KnownSchema]:
        """Check the batches of an envelope, and return their schemas."""
        schemas, max_rows = self.core.schemas, self.limits.frames_per_batch
        unknown = schemas.find_unknown(envelope.batches)
        used = []
        for batch in envelope.batches:
            try:
                schema = schemas.get_in_memory(batch.schema)
                if schema is None:
                    continue
            except wire.WireError as error:
                raise NotAcknowledgedError(error, "schema") from error
            used.append(schema)
            try:
                sheets.check_batch(batch, schema.layout.columns, max_rows)
            except wire.WireError as error:
                raise NotAcknowledgedError(error, "format") from error
            if batch.stream != schema.layout.stream:
                text = (
                    f"batch of {batch.stream!r}: invalid shape: it is one of "
                    f"{schema.layout.stream!r}"
                )
                raise NotAcknowledgedError(text, "format")
        # Also if others are unknown: the sender will refer to these again, so they must not be released meanwhile.
        schemas.record_uses(envelope.node, used)
        if any(unknown):
            requested = {
                f"unknown_{name}": [digest.hex() for digest in digests]
                for name, digests in unknown._asdict().items()
                if digests
            }
            text = "unknown shapes or names; fix: send them first"
            raise NotAcknowledgedError(text, "unknown_schema", **requested)
        return used

    def _check_times(self, record: segment_files.FrameRecord, envelope: wire.Envelope) -> None:
        sent, boot_id = record.sent, envelope.boot_id
        max_age_ns = self.limits.max_frame_age_days * timestamps.DAY_NS
        for batch in envelope.batches:
            # As in the evidence: the newest by the wall clock, the others by their age relative to it.
            boot_ns, wall_ns = batch.boot_ns, batch.wall_ns
            newest_ns = sent.age_ns(boot_id, wall_ns[-1], boot_ns[-1])
            oldest_ns = sent.age_ns(boot_id, wall_ns[0], boot_ns[0])
            if max(oldest_ns, newest_ns + boot_ns[-1] - boot_ns[0]) > max_age_ns:
                text = f"frames older than {self.limits.max_frame_age_days} days"
                raise NotAcknowledgedError(text, "age")
            is_ordered = len(boot_ns) == 1 or sorted(boot_ns) == list(boot_ns)
            ahead = boot_ns[-1] > sent.boot_ns + _FUTURE_NS
            if not is_ordered or (ahead and boot_id == sent.boot_id):
                text = (
                    f"stream {batch.stream!r}: invalid boot clock of its frames: expected increasing"
                    " times up to now"
                )
                raise NotAcknowledgedError(text, "time")


def _unpack(body: bytes, max_bytes: int) -> tuple[wire.Envelope, list[bytes]]:
    """Decode a large body. Blocking."""
    opened = envelopes.open_body(body, max_bytes)
    return opened.decode_envelope(), opened.former_schemas


def _make_response_mark(request: web.Request, response: web.Response, body: bytes) -> str:
    """Return the mark by which the agent authenticates this response."""
    token = request.headers.get("Authorization", "").partition(" ")[2]
    content = response.body if isinstance(response.body, bytes) else b""
    # The body was not read, so the mark cannot depend on it.
    if response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return http_responses.unread_mark(
            token, response.status, request.content_length or 0, content
        )
    return http_responses.response_mark(token, response.status, body, content)
