"""Logs of collectors: which of them respond at one URL, and which envelopes each of them has received.

A collector names its log in each acknowledgement. One that lost its disk responds with a new log. A log that was not used
for a day is forgotten, and so is the one that was used least recently when there are too many: envelopes that only
a forgotten log has received are sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec
import structlog

from railscope import timestamps, wire

log = structlog.get_logger(__name__)

MAX_LOGS = 64
"""Logs that are remembered: collectors behind one URL, and former logs of those that lost their disk."""
LOG_EXPIRY_NS = timestamps.DAY_NS
FIRST_PAUSE_NS, MAX_PAUSE_NS = 60 * timestamps.SECOND_NS, timestamps.HOUR_NS
"""Time without a response after which one of several collectors behind a URL counts as lost; doubled if it was not."""
_MAX_POSITION = (1 << 63) - 1
_RECEIPT = rf"^[0-9A-Za-z_=-]{{0,{wire.MAX_RECEIPT_CHARACTERS}}}\Z"


class EvidenceReceipt(msgspec.Struct, frozen=True):
    """Acknowledgement of a collector with a shared database.

    `log` identifies its frame log, `position` this acknowledgement. The database has the evidence of all
    acknowledgements up to `stored`.
    """

    log: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    position: Annotated[int, msgspec.Meta(ge=0, le=_MAX_POSITION)]
    stored: Annotated[int, msgspec.Meta(ge=0, le=_MAX_POSITION)]
    receipt: Annotated[str, msgspec.Meta(pattern=_RECEIPT)] = ""
    """Signed receipt for another collector, if the envelope must be sent again; empty for a repetition."""


class ReceivedEnvelope(NamedTuple):
    """A receipt of an envelope: its position, the envelope's number, and the time."""

    position: int
    number: int
    boot_ns: int


@dataclass(slots=True)
class LogReceipts:
    """Receipts by log, in the order of their positions."""

    _receipts: dict[str, deque[ReceivedEnvelope]] = field(default_factory=dict)
    _used_ns: dict[str, int] = field(default_factory=dict)
    """Time of the last use of each log, the newest last."""

    def __len__(self) -> int:
        """Return the number of logs."""
        return len(self._receipts)

    def use(self, name: str, boot_ns: int) -> deque[ReceivedEnvelope]:
        """Return the receipts of the log that responds now, to be changed; others may be forgotten."""
        _record_use(self._used_ns, name, boot_ns)
        for forgotten in self._receipts.keys() - self._used_ns.keys():
            del self._receipts[forgotten]
        return self._receipts.setdefault(name, deque())

    def find(self, name: str) -> Iterable[ReceivedEnvelope]:
        """Return the receipts of a log; none of one that was forgotten."""
        return self._receipts.get(name, ())


@dataclass(slots=True)
class RespondingLogs:
    """Logs of the collectors that respond at one URL: several of them if it is that of a load balancer.

    One that responds with an earlier log again has lost nothing: to send each one what only another one has received
    would never end.
    """

    responses_ns: dict[str, int] = field(default_factory=dict)
    """Time of the last response by log, the newest last."""
    is_alternating: bool = False
    has_too_many: bool = False
    """True if more logs responded than are remembered: envelopes that only forgotten ones received are sent again."""
    pause_ns: int = FIRST_PAUSE_NS
    _url: str = ""

    @property
    def count(self) -> int:
        """Number of collectors at the URL, as far as their responses show it; for too many, one above the maximum."""
        if self.has_too_many:
            return MAX_LOGS + 1
        return len(self.responses_ns) if self.is_alternating else 1

    def record(self, url: str, name: str, boot_ns: int) -> frozenset[str]:
        """Record a response, and return the logs whose receipts count: the envelopes in them are not sent again."""
        if url != self._url or not (url and name):
            self.responses_ns, self._url = {}, url
        # Before the use is recorded, which makes this log the newest.
        newest = next(reversed(self.responses_ns), name)
        last_ns, has_too_many = _record_use(self.responses_ns, name, boot_ns)
        if len(self.responses_ns) == 1:
            self.pause_ns, self.is_alternating, self.has_too_many = FIRST_PAUSE_NS, False, False
        if has_too_many and not self.has_too_many:
            self.has_too_many = self.is_alternating = True
            log.error(
                "too_many_collectors_found",
                url=url,
                max_logs=MAX_LOGS,
                problem="frames that were received are sent again",
                advice="list each collector in collector.urls, in place of a load balancer",
            )
        if last_ns is not None and newest != name:
            if not self.is_alternating:
                log.warning(
                    "several_collectors_found",
                    url=url,
                    logs=len(self.responses_ns),
                    advice="list each collector in collector.urls, in place of a load balancer",
                )
            elif boot_ns - last_ns > self.pause_ns:
                # It was counted as lost and responds again: collectors at this URL respond more rarely than
                # assumed.
                self.pause_ns = min(2 * self.pause_ns, MAX_PAUSE_NS)
            self.is_alternating = True
        # A log that responded earlier is that of a collector before it lost its disk: its receipts do not
        # count.
        if not self.is_alternating:
            return frozenset((name,))
        return frozenset(
            n for n, at_ns in self.responses_ns.items() if boot_ns - at_ns <= self.pause_ns
        )


def _record_use(used_ns: dict[str, int], name: str, boot_ns: int) -> tuple[int | None, bool]:
    """Record the use of a log; forget expired logs, and the least recently used one above the maximum.

    Return the time of its last use, None without one, and True if there were too many.
    """
    while used_ns and boot_ns - used_ns[oldest := next(iter(used_ns))] > LOG_EXPIRY_NS:
        del used_ns[oldest]
    # Removed and added again, which moves it to the end: the table is in order of use.
    last_ns = used_ns.pop(name, None)
    used_ns[name] = boot_ns
    has_too_many = len(used_ns) > MAX_LOGS
    if has_too_many:
        del used_ns[next(iter(used_ns))]
    return last_ns, has_too_many
