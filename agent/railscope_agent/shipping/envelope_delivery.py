"""Delivery of packed envelopes to a collector, with the shapes and names that it requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from railscope import __version__, batch_encoding, frame, wire, wire1
from railscope_agent import host
from railscope_agent.shipping import spool
from railscope_agent.shipping.collector_client import CollectorClient
from railscope_agent.shipping.delivery_result import DeliveryResult, EnvelopeDecision


@dataclass(frozen=True, slots=True)
class EnvelopeDelivery:
    """Packs the envelopes of one run of the agent, and delivers each in one attempt."""

    origin: frame.FrameOrigin
    clock: host.Clock
    find_content: Callable[[bytes], bytes | None]
    """Returns an encoded shape or list of names by its hash; None if it was lost."""
    version: str = __version__
    """Version of the agent."""

    def pack(
        self,
        frames: Sequence[frame.Frame],
        names: Sequence[bytes] = (),
        ended: wire.RunEnd | None = None,
    ) -> bytes:
        """Return the body of an envelope, with lists of names that the collector may lack."""
        batches = batch_encoding.encode_batches(frames)
        parts, version = wire.SentParts(names=names), self.version
        return wire.pack(
            wire.envelope(self.origin, batches, parts, agent_version=version, ended=ended)
        )

    async def query(self, client: CollectorClient) -> DeliveryResult:
        """Send an envelope without frames: its answer names the collector's log."""
        bare = wire.envelope(self.origin, (), agent_version=self.version)
        return await client.post(wire.pack(bare), self._sent)

    async def offer(
        self, client: CollectorClient, body: bytes, receipt: str = ""
    ) -> DeliveryResult:
        """Send a body, after the shapes and names that the collector requests."""

        async def post(content: bytes) -> DeliveryResult:
            # The receipt is that of the body; the collector never received the envelope with the names
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
        answer = await post(body)
        if answer.verdict is not EnvelopeDecision.WANTS_NAMES:
            return answer
        found = [[self.find_content(digest) for digest in each] for each in answer.requested]
        if any(None in contents for contents in found):
            # No collector without it can ever decode these frames: they would block all behind them in the spool.
            return DeliveryResult(
                EnvelopeDecision.REJECTED,
                "shape or names of these frames are missing from the agent's state directory",
            )
        shapes, names, schemas = (
            [content for content in contents if content is not None] for contents in found
        )
        if shapes or names:
            parts = wire.SentParts(shapes, names)
            more = wire.envelope(self.origin, (), parts, agent_version=self.version)
            answer = await post(wire.pack(more))
        if schemas:
            answer = await post(wire1.pack_schemas(self.origin, schemas, self.version))
        if answer.verdict is not EnvelopeDecision.ACKNOWLEDGED:
            return answer
        return await post(body)
