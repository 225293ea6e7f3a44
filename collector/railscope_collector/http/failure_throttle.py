"""Limit of failed authentications from one address.

Only failures are limited: a request with a valid credential is served even from an address with many
failures. The stored state is bounded; the address with the oldest last failure is dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from railscope.server_connections import host_of

MAX_FAILURES = 30
SECONDS_PER_FAILURE = 2.0
"""Interval after which the bucket permits one more failure."""
MAX_ADDRESSES = 4096


@dataclass(slots=True)
class FailureThrottle:
    """A leaky bucket for each address: number of failures and the time of the last update."""

    _levels: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def count_failure(self, address: str, now_seconds: float) -> bool:
        """Count a failure; return True if there have been too many. The clock is monotonic."""
        # By host or network, so that an IPv6 client does not get a bucket for each of its addresses.
        source = host_of(address)
        level, since = self._levels.pop(source, (0.0, now_seconds))
        level = max(0.0, level - (now_seconds - since) / SECONDS_PER_FAILURE)
        full = level + 1 > MAX_FAILURES
        # A full bucket does not rise further: after a pause, the address is served again.
        self._levels[source] = (level if full else level + 1, now_seconds)
        if len(self._levels) > MAX_ADDRESSES:
            self._levels.popitem(last=False)
        return full
