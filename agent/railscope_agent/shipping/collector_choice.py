"""Choice among several collectors: failover, and return to the first of the order for a node.

Frames are sent to one collector at a time; with `send_to = 2`, copies are sent to the other one of the first two. After consecutive failures, a time without an acknowledgement, or a
response of a collector that drains, the others are tried in the order, without a pause until each has failed once,
then round after round with increasing pauses. While the collector in use is not the first of the order, that one is
polled; once it has been ready long enough, it is used again. A collector that denies access (status 401 or 403) has
failed: its configuration must not lose frames that another one accepts. One that rejects frames permanently has not.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import structlog

from railscope import timestamps
from railscope_agent import config, host
from railscope_agent.sampling.shipping_stats import ShippingStats
from railscope_agent.shipping import collector_client, delivery_result
from railscope_agent.shipping.collector_order import collector_links

FIRST_RETRY_SECONDS = 0.5
LATE_SECONDS = 3.0
"""Time without a response after which the receiver of live copies shows the node."""
MAX_PROBE_SECONDS = 30.0
"""Maximum interval between two polls of the first collector of the order."""
PROBES_PER_RETURN = 10
RETURN_SPREAD = 1.5
"""Maximum factor of `return_seconds`, at random: agents should not return to a collector at the same time."""
MAX_RETURN_FACTOR = 16
"""Maximum factor of the wait for a collector that was ready, but accepted no frames when it was used again."""

log = structlog.get_logger(__name__)


@dataclass
class CollectorChoice:
    """The position in the order of the collector to use, as a function of responses and of time.

    Times are in seconds of a monotonic clock.
    """

    count: int
    """Number of collectors."""
    link: config.CollectorLink
    uniform: Callable[[float, float], float] = random.uniform
    """Returns a random number between two."""
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
    _ready_since_seconds: float | None = None
    _return_after_seconds: float = 0.0
    _return_factor: int = 1

    def begin_attempt(self, now_seconds: float) -> None:
        """Begin an attempt: with the first collector of the order, if it has been ready long enough."""
        ready_since = self._ready_since_seconds
        if ready_since is not None and now_seconds - ready_since >= self._return_after_seconds:
            self._move(0, delivery_result.ChangeReason.RETURN)
        # An agent without frames sends nothing: the time without a response counts from its first attempt.
        if self._since_seconds is None:
            self._since_seconds = now_seconds

    def record_response(self) -> bool:
        """Record that the collector has decided about frames; return True if it is another one than before."""
        is_changed = self.position != self.confirmed
        self.confirmed = self.position
        self._failures, self._since_seconds, self._has_responded = 0, None, True
        self._round, self._pause_seconds = None, FIRST_RETRY_SECONDS
        if self.position == 0:
            # Only frames that the first collector accepts show that returning to it was right; a ready state
            # does not.
            self._return_factor = 1
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

    def is_failing(self, now_seconds: float) -> bool:
        """True if the collector in use failed last, or does not respond."""
        since_seconds = now_seconds if self._since_seconds is None else self._since_seconds
        is_late = now_seconds - since_seconds > LATE_SECONDS
        return self._failures > 0 or not self._has_responded or is_late

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

    def record_probe(self, now_seconds: float, *, is_ready: bool) -> None:
        """Record whether the first collector of the order is ready, while another one is used."""
        # The collector has to be ready without interruption: one that restarts again and again is not
        # returned to.
        if not is_ready or self.position == 0:
            self._ready_since_seconds = None
        elif self._ready_since_seconds is None:
            wait_seconds = self.link.return_seconds * self._return_factor
            self._ready_since_seconds = now_seconds
            self._return_after_seconds = wait_seconds * self.uniform(1.0, RETURN_SPREAD)

    def _move(self, position: int, reason: delivery_result.ChangeReason) -> None:
        # The reason to leave a working collector is reported; moves between others that fail are its
        # consequence.
        if self.position == self.confirmed:
            self.reason = reason
        if reason is delivery_result.ChangeReason.RETURN:
            # If it accepts no frames although it is ready, it is tried less and less often.
            self._return_factor = min(self._return_factor * 2, MAX_RETURN_FACTOR)
            self._round = None
        self.position = position
        self._failures, self._since_seconds, self._has_responded = 0, None, False
        self._ready_since_seconds = None


@dataclass
class CollectorFailover:
    """Clients of all collectors, of which one is used at a time. Raises CollectorLinkError."""

    link: config.CollectorLink
    node: str
    clock: host.Clock
    stats: ShippingStats
    _problems: dict[int, str] = field(default_factory=dict)
    """Last reported problem by position, since the last response."""
    _is_away: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while another collector than the first of the order is used."""

    def __post_init__(self) -> None:
        """Create the clients."""
        links = collector_links(self.link, self.node) or [self.link]
        self._clients = [collector_client.CollectorClient(each) for each in links]
        copied = links[: self.link.send_to] if self.link.send_to > 1 else []
        self._copy_clients = [collector_client.CollectorClient(each) for each in copied]
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
        for client in (*self._clients, *self._copy_clients):
            await client.close()

    @property
    def _now_seconds(self) -> float:
        return self.clock.now().boot_ns / timestamps.SECOND_NS

    @property
    def client(self) -> collector_client.CollectorClient:
        """Client of the collector in use."""
        return self._clients[self._choice.position]

    @property
    def is_failing(self) -> bool:
        """True if the collector in use failed last, or does not respond."""
        return self._choice.is_failing(self._now_seconds)

    @property
    def copy_client(self) -> collector_client.CollectorClient:
        """Client of the collector of live copies: of the first two, the one that is not in use."""
        return self._copy_clients[0 if self._choice.position else 1]

    async def begin_attempt(self) -> collector_client.CollectorClient:
        """Return the client for the next attempt; the connection to another collector is closed first."""
        before = self.client
        self._choice.begin_attempt(self._now_seconds)
        await self._close_unused(before)
        return self.client

    async def record_failure(self, answer: delivery_result.DeliveryResult) -> float:
        """Record a failed attempt; return the seconds to wait before the next one."""
        before = self.client
        pause_seconds = self._choice.record_failure(
            self._now_seconds, answer.change_reason, answer.retry_after_seconds
        )
        await self._close_unused(before)
        return pause_seconds

    async def _close_unused(self, before: collector_client.CollectorClient) -> None:
        if self.client is not before:
            await before.close()
        # Wakes or stops the poll of the first collector.
        if self._choice.position:
            self._is_away.set()
        else:
            self._is_away.clear()

    def record_response(self) -> None:
        """Record that the collector in use has decided about frames."""
        self._problems.clear()
        before = self._urls[self._choice.confirmed]
        if self._choice.record_response():
            after, reason = self._urls[self._choice.confirmed], self._choice.reason.value
            self.stats.collector_url, self.stats.collector_position = after, self._choice.confirmed
            self.stats.collector_changes[reason] += 1
            log.warning("collector_changed", from_url=before, to_url=after, reason=reason)

    def is_new_problem(self, problem: str) -> bool:
        """True if the last reported problem of the collector in use, since the last response, is another one."""
        position = self._choice.position
        is_new = self._problems.get(position) != problem
        self._problems[position] = problem
        return is_new

    async def watch_first(self) -> None:
        """Poll the first collector of the order while another one is used, until cancelled."""
        period_seconds = min(self.link.return_seconds / PROBES_PER_RETURN, MAX_PROBE_SECONDS)
        while True:
            await self._is_away.wait()
            spread = random.uniform(0.8, 1.2)  # noqa: S311 - spreads agents over time
            seconds = self._now_seconds + period_seconds * spread
            await self.clock.sleep_until(round(seconds * timestamps.SECOND_NS))
            # The first collector may be in use again since the sleep began.
            if self._choice.position:
                is_ready = await self._clients[0].is_ready()
                self._choice.record_probe(self._now_seconds, is_ready=is_ready)
