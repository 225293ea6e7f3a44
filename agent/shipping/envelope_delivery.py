"""Delivery of packed envelopes to a collector, with the schemas that it requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from agent import host
from agent.shipping.collector_client import CollectorClient, DeliveryResult, EnvelopeDecision
from railscope import __version__, envelopes, frame, wire


@dataclass(frozen=True, slots=True)
class EnvelopeDelivery:
    """Packs the envelopes of one run of the agent, and delivers each in one attempt."""

    origin: frame.FrameOrigin
    clock: host.Clock
    find_schema: Callable[[bytes], wire.WireSchema | None]
    """Returns a schema by its hash; None if it was lost."""

    def pack(
        self,
        frames: Sequence[frame.Frame],
        schemas: Sequence[wire.WireSchema],
        ended: wire.RunEnd | None = None,
    ) -> bytes:
        """Return the body of an envelope."""
        batches = envelopes.encode_batches(frames)
        return wire.pack(
            wire.envelope(self.origin, batches, schemas, agent_version=__version__, ended=ended)
        )

    async def query(
        self, client: CollectorClient, delivered: tuple[wire.DeliveredRun, ...]
    ) -> DeliveryResult:
        """Send an envelope without frames, which states those that other collectors received."""
        bare = wire.envelope(self.origin, (), (), agent_version=__version__)
        return await self._post(client, wire.pack(structs.replace(bare, delivered=delivered)))

    async def offer(
        self, client: CollectorClient, body: bytes, receipt: str = ""
    ) -> DeliveryResult:
        """Send a body, after the schemas that the collector requests."""
        answer = await self._post(client, body, receipt)
        if answer.verdict is not EnvelopeDecision.WANTS_SCHEMAS:
            return answer
        schemas = [schema for digest in answer.schemas if (schema := self.find_schema(digest))]
        if len(schemas) < len(answer.schemas):
            return DeliveryResult(
                EnvelopeDecision.REJECTED,
                "schema of these frames is missing from the agent's state directory",
            )
        answer = await self._post(client, self.pack((), schemas))
        if answer.verdict is EnvelopeDecision.ACKNOWLEDGED:
            return await self._post(client, body, receipt)
        return answer

    async def _post(
        self, client: CollectorClient, body: bytes, receipt: str = ""
    ) -> DeliveryResult:
        sent = wire.SentAt.from_timestamp(self.clock.now(), self.origin.boot_id)
        return await client.post(body, sent, receipt)
