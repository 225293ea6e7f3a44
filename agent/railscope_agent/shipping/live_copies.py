"""Live copies: with `send_to = 2`, each envelope is also sent to a second collector.

That one shows the node as soon as the primary collector, the one in use, fails: its views, and those of the head, have no
gap. Frames become durable and are counted at the primary only. A copy may be lost: copies wait in a short queue in memory,
have a connection of their own, and affect neither the spool nor the primary.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from railscope import timestamps
from railscope_agent.sampling import shipping_stats
from railscope_agent.shipping import (
    collector_choice,
    collector_client,
    delivery_result,
    envelope_delivery,
)

log = structlog.get_logger(__name__)

MAX_COPIES, MAX_COPY_BYTES = 8, 8 << 20
"""Limits of the envelopes that wait: the newest ones have the current readings."""


@dataclass
class LiveCopies:
    """Sends envelopes to the second collector; the oldest are dropped if it does not accept them in time."""

    failover: collector_choice.CollectorFailover
    delivery: envelope_delivery.EnvelopeDelivery
    stats: shipping_stats.ShippingStats
    _waiting: deque[tuple[bytes, int]] = field(default_factory=deque)
    _has_copies: asyncio.Event = field(default_factory=asyncio.Event)
    _problem: str = ""

    def put(self, packed: Iterable[tuple[bytes, int]]) -> None:
        """Queue envelopes with their numbers of frames."""
        self._waiting.extend(packed)
        self._drop_oldest()
        self._has_copies.set()

    async def run(self) -> None:
        """Send copies until cancelled, after a failure with increasing pauses."""
        client, pause_seconds = self.failover.copy_client, collector_choice.FIRST_RETRY_SECONDS
        while True:
            await self._has_copies.wait()
            # The primary collector has changed: the former one of the copies may now be the primary.
            if client is not self.failover.copy_client:
                await client.close()
                client, pause_seconds = (
                    self.failover.copy_client,
                    collector_choice.FIRST_RETRY_SECONDS,
                )
            if await self._send_oldest(client):
                pause_seconds = collector_choice.FIRST_RETRY_SECONDS
            else:
                await self._pause(pause_seconds)
                pause_seconds = min(2 * pause_seconds, self.failover.link.max_retry_seconds)

    async def _send_oldest(self, client: collector_client.CollectorClient) -> bool:
        """Send one envelope; return False if it waits again."""
        # Taken out of the queue while it is sent, so that the limits cannot drop it twice.
        body, frames = self._waiting.popleft()
        answer = await self.delivery.offer_copy(client, body, is_failing=self.failover.is_failing)
        is_later = answer.verdict not in _DECISIONS
        if answer.verdict is delivery_result.EnvelopeDecision.ACKNOWLEDGED:
            self.stats.copied_frames += frames
        elif is_later:
            self._waiting.appendleft((body, frames))
            self._drop_oldest()
        else:
            self.stats.dropped_copies += frames
        if answer.problem and answer.problem != self._problem:
            log.warning("live_copy_failed", problem=answer.problem)
        self._problem = answer.problem
        if not self._waiting:
            self._has_copies.clear()
        return not is_later

    def _drop_oldest(self) -> None:
        """Drop envelopes above the limits; the newest one stays."""
        while len(self._waiting) > 1 and (
            len(self._waiting) > MAX_COPIES
            or sum(len(body) for body, _ in self._waiting) > MAX_COPY_BYTES
        ):
            self.stats.dropped_copies += self._waiting.popleft()[1]

    async def _pause(self, seconds: float) -> None:
        spread = random.uniform(0.8, 1.2)  # noqa: S311 - keeps agents from retrying in step
        clock = self.delivery.clock
        now_ns = clock.now().boot_ns
        await clock.sleep_until(now_ns + round(seconds * spread * timestamps.SECOND_NS))


_DECISIONS = {
    delivery_result.EnvelopeDecision.ACKNOWLEDGED,
    delivery_result.EnvelopeDecision.REJECTED,
}
