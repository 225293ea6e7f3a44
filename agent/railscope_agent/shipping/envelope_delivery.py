"""Delivery of packed envelopes to a collector, with the schemas that it requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from railscope import __version__, batch_encoding, frame, wire
from railscope_agent import host
from railscope_agent.shipping import spool
from railscope_agent.shipping.collector_client import CollectorClient
from railscope_agent.shipping.delivery_result import DeliveryResult, EnvelopeDecision

MAX_SCHEMA_SENDINGS = 3
"""Times that schemas are sent at once, one more after each repeated request: of collectors that alternate at one URL,
another one may have received them.
"""


@dataclass(frozen=True, slots=True)
class EnvelopeDelivery:
    """Packs the envelopes of one run of the agent, and delivers each in one attempt."""

    origin: frame.FrameOrigin
    clock: host.Clock
    find_schema: Callable[[bytes], wire.WireSchema | None]
    """Returns a schema by its hash; None if it was lost."""
    version: str = __version__
    """Version of the agent."""

    def pack(
        self,
        frames: Sequence[frame.Frame],
        schemas: Sequence[wire.WireSchema],
        ended: wire.RunEnd | None = None,
    ) -> bytes:
        """Return the body of an envelope."""
        batches = batch_encoding.encode_batches(frames)
        return wire.pack(
            wire.envelope(self.origin, batches, schemas, agent_version=self.version, ended=ended)
        )

    async def query(
        self, client: CollectorClient, delivered: tuple[wire.DeliveredRun, ...]
    ) -> DeliveryResult:
        """Send an envelope without frames, which states those that other collectors received."""
        bare = wire.envelope(self.origin, (), (), agent_version=self.version)
        return await client.post(wire.pack(structs.replace(bare, delivered=delivered)), self._sent)

    async def offer(
        self, client: CollectorClient, body: bytes, receipt: str = ""
    ) -> DeliveryResult:
        """Send a body, after the schemas that the collector requests."""

        async def post(content: bytes) -> DeliveryResult:
            # The receipt is that of the body; the collector never received the envelope with the schemas
            # before.
            return await client.post(content, self._sent, receipt if content is body else "")

        answer = await self._offer(post, body)
        own = self.origin.node
        # The credential is right, so no attempt can ever deliver what this node spooled under a former name, or what the
        # disk of another node contained from which this one was cloned. A wrong credential has another name.
        if answer.credential_node == own and spool.is_of_other_node(body, own):
            problem = (
                f"spooled envelope of another node rejected by {client.url}: expected those of "
                f"{own!r}, as in the credential; all spooled envelopes of other nodes are dropped"
            )
            return replace(answer, verdict=EnvelopeDecision.REJECTED, problem=problem)
        return answer

    @property
    def _sent(self) -> wire.SentAt:
        return wire.SentAt.from_timestamp(self.clock.now(), self.origin.boot_id)

    async def _offer(
        self, post: Callable[[bytes], Awaitable[DeliveryResult]], body: bytes
    ) -> DeliveryResult:
        for sendings in range(1, MAX_SCHEMA_SENDINGS + 1):
            answer = await post(body)
            if answer.verdict is not EnvelopeDecision.WANTS_SCHEMAS:
                return answer
            schemas = [schema for digest in answer.schemas if (schema := self.find_schema(digest))]
            if len(schemas) < len(answer.schemas):
                # No collector without the schema can ever decode these frames: they would block all behind
                # them in the spool.
                return DeliveryResult(
                    EnvelopeDecision.REJECTED,
                    "schema of these frames is missing from the agent's state directory",
                )
            for _ in range(sendings):
                answer = await post(self.pack((), schemas))
                if answer.verdict is not EnvelopeDecision.ACKNOWLEDGED:
                    return answer
        return await post(body)
