"""Senders of envelopes: what one may send within an hour, one delivery, and the reasons why it is not acknowledged."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from railscope import timestamps, wire
from railscope_collector.fleet.schemas import ReceivedParts
from railscope_collector.http import HttpApiError

MAX_KNOWN_STARTS = 64
_REASONS = {
    HTTPStatus.BAD_REQUEST: ("format",),
    HTTPStatus.FORBIDDEN: ("node",),
    HTTPStatus.REQUEST_TIMEOUT: ("timeout",),
    HTTPStatus.CONFLICT: ("unknown_schema",),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("size",),
    HTTPStatus.UNPROCESSABLE_ENTITY: ("schema", "bounds", "age", "time"),
    HTTPStatus.UPGRADE_REQUIRED: ("version",),
    HTTPStatus.TOO_MANY_REQUESTS: ("rate", "shapes", "starts", "audited_events"),
    HTTPStatus.SERVICE_UNAVAILABLE: ("draining", "read_only", "storage", "evidence", "receipt"),
}
"""Reasons why an envelope is not acknowledged, by the status of the response."""
_STATUSES = {reason: status for status, reasons in _REASONS.items() for reason in reasons}


class NotAcknowledgedError(HttpApiError):
    """An envelope that is not acknowledged: text and more for the sender, reason for the counter."""

    def __init__(self, text: object, reason: str, **more: object) -> None:
        super().__init__(text)
        self.reason, self.status, self.fields = reason, _STATUSES[reason], more


@dataclass(slots=True)
class PeriodAmount:
    """Amount received in the current period, such as an hour."""

    period_ns: int = timestamps.HOUR_NS
    count: int = 0
    since_ns: int = 0

    def fits(self, more: int, limit: int, now_ns: int) -> bool:
        """True if this additional amount is within the limit per period."""
        # Also if the clock was set back: a period in the future would otherwise last until then.
        if not 0 <= now_ns - self.since_ns < self.period_ns:
            self.count, self.since_ns = 0, now_ns
        return self.count + more <= limit


class Delivery(NamedTuple):
    """One envelope with the body that contained it, and what its sender stated beside it."""

    body: bytes
    envelope: wire.Envelope
    parts: ReceivedParts
    sent: wire.SentAt
    receipt: str = ""


@dataclass(slots=True)
class NodeSender:
    """State of a sending node: one request at a time, and its recent rate."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    allowance: float = 0.0
    counted_at: float = 0.0
    shapes: PeriodAmount = field(default_factory=lambda: PeriodAmount(timestamps.DAY_NS))
    audited_events: PeriodAmount = field(default_factory=PeriodAmount)
    starts: PeriodAmount = field(default_factory=PeriodAmount)
    known_starts: OrderedDict[tuple[str, str, str], None] = field(default_factory=OrderedDict)
    """Runs, boots and versions received recently."""


RETRIED_STATUSES = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
# Both are usual steps of the protocol, which agents answer at once.
UNLOGGED_REASONS = {"unknown_schema", "draining"}
