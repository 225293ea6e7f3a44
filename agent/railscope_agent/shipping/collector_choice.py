"""Choice among several collectors: the one that accepts frames.

After consecutive failures, a time without an acknowledgement, or a response of a collector that drains or waits, the others are
tried as listed, without a pause until each has failed once, then round after round with increasing pauses. A collector
that denies access (status 401 or 403) has failed: its configuration must not lose frames that another one accepts. One
that rejects frames permanently has not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Self

import structlog

from railscope import timestamps
from railscope_agent import config, host
from railscope_agent.sampling.shipping_stats import ShippingStats
from railscope_agent.shipping import collector_client, delivery_result
from railscope_agent.shipping.collector_link import collector_links

FIRST_RETRY_SECONDS = 0.5

log = structlog.get_logger(__name__)


@dataclass
class CollectorChoice:
    """The position in the list of the collector to use, as a function of responses and of time.

    Times are in seconds of a monotonic clock.
    """

    count: int
    """Number of collectors."""
    link: config.CollectorLink
    position: int = 0
    confirmed: int = 0
    """Position of the collector that responded last, at first of the first one."""
    reason: delivery_result.ChangeReason = delivery_result.ChangeReason.FAILURES
    """Reason for which the confirmed collector is not used, while another one is."""
    _failures: int = 0
    _since_seconds: float | None = None
    """Time of the first attempt since the last response of the collector, or since it is used."""
    _has_responded: bool = True
    """False if the collector has not responded since it is used, so that its first failure counts."""
    _round: deque[int] | None = None
    """Collectors that are still to be tried in this round; None while there is none."""
    _pause_seconds: float = FIRST_RETRY_SECONDS

    def begin_attempt(self, now_seconds: float) -> None:
        """Begin an attempt."""
        # An agent without frames sends nothing: the time without a response counts from its first attempt.
        if self._since_seconds is None:
            self._since_seconds = now_seconds

    def record_response(self) -> bool:
        """Record that the collector has decided about frames; return True if it is another one than before."""
        is_changed = self.position != self.confirmed
        self.confirmed = self.position
        self._failures, self._since_seconds, self._has_responded = 0, None, True
        self._round, self._pause_seconds = None, FIRST_RETRY_SECONDS
        return is_changed

    def record_failure(
        self,
        now_seconds: float,
        reason: delivery_result.ChangeReason,
        retry_after_seconds: float | None = None,
    ) -> float:
        """Record a failed attempt; return the seconds to wait before the next one."""
        self._failures += 1
        if self.count > 1 and (move := self._reason_to_move(now_seconds, reason)):
            positions = range(self.count)
            if self._round is None:
                self._round = deque(other for other in positions if other != self.position)
            if self._round:
                self._move(self._round.popleft(), move)
                # Another collector has not failed yet, so there is no reason to wait.
                return 0.0
            # All have failed: the next round starts after a pause, and includes the collector that failed
            # first.
            self._round = deque(positions)
            self._move(self._round.popleft(), move)
        limit_seconds = self.link.max_retry_seconds
        # A long Retry-After, such as that of a proxy, must not stop the delivery.
        pause_seconds = min(retry_after_seconds or self._pause_seconds, limit_seconds)
        self._pause_seconds = min(self._pause_seconds * 2, limit_seconds)
        return pause_seconds

    def _reason_to_move(
        self, now_seconds: float, reason: delivery_result.ChangeReason
    ) -> delivery_result.ChangeReason | None:
        # A collector that never responded is not known to work: a round over several of them must be short.
        max_failures = self.link.max_failures if self._has_responded else 1
        if reason is delivery_result.ChangeReason.DRAINING or self._failures >= max_failures:
            return reason
        # Attempts can be slow instead of failing: a few timeouts would take longer than `failover_seconds`.
        since_seconds = now_seconds if self._since_seconds is None else self._since_seconds
        if now_seconds - since_seconds >= self.link.failover_seconds:
            return delivery_result.ChangeReason.UNACKNOWLEDGED
        return None

    def _move(self, position: int, reason: delivery_result.ChangeReason) -> None:
        # The reason to leave a working collector is reported; moves between others that fail are its
        # consequence.
        if self.position == self.confirmed:
            self.reason = reason
        self.position = position
        self._failures, self._since_seconds, self._has_responded = 0, None, False


@dataclass
class CollectorFailover:
    """Clients of all collectors, of which one is used at a time. Raises CollectorLinkError."""

    link: config.CollectorLink
    clock: host.Clock
    stats: ShippingStats
    _problems: dict[int, str] = field(default_factory=dict)
    """Last reported problem by position, since the last response."""

    def __post_init__(self) -> None:
        """Create the clients."""
        links = collector_links(self.link) or [self.link]
        self._clients = [collector_client.CollectorClient(each) for each in links]
        self._urls = [each.url.rstrip("/") for each in links]
        self._choice = CollectorChoice(len(links), self.link)
        if len(links) > 1:
            self.stats.collector_urls = tuple(sorted(self._urls))
            self.stats.collector_url = self._urls[0]

    async def __aenter__(self) -> Self:
        """Return itself; connections are opened with the first request."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections; the next request of a client opens another one."""
        for client in self._clients:
            await client.close()

    @property
    def _now_seconds(self) -> float:
        return self.clock.now().boot_ns / timestamps.SECOND_NS

    @property
    def client(self) -> collector_client.CollectorClient:
        """Client of the collector in use."""
        return self._clients[self._choice.position]

    def begin_attempt(self) -> collector_client.CollectorClient:
        """Return the client for the next attempt."""
        self._choice.begin_attempt(self._now_seconds)
        return self.client

    async def record_failure(self, answer: delivery_result.DeliveryResult) -> float:
        """Record a failed attempt; return the seconds to wait before the next one."""
        before = self.client
        pause_seconds = self._choice.record_failure(
            self._now_seconds, answer.change_reason, answer.retry_after_seconds
        )
        if self.client is not before:
            await before.close()
        return pause_seconds

    def record_response(self) -> None:
        """Record that the collector in use has decided about frames."""
        self._problems.clear()
        before = self._urls[self._choice.confirmed]
        if self._choice.record_response():
            after, reason = self._urls[self._choice.confirmed], self._choice.reason.value
            self.stats.collector_url = after
            self.stats.collector_changes[reason] += 1
            log.warning("collector_changed", from_url=before, to_url=after, reason=reason)

    def is_new_problem(self, problem: str) -> bool:
        """True if the last reported problem of the collector in use, since the last response, is another one."""
        position = self._choice.position
        is_new = self._problems.get(position) != problem
        self._problems[position] = problem
        return is_new
