"""How often an address may fail to say who it is.

Only failures are held back: whoever shows a good credential is served, also from an address from
which others try bad ones. What is kept is bounded; the address that failed longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from railscope.connections import source_of

MAX_AT_ONCE = 30
SECONDS_PER_FAILURE = 2.0
"""One more failure is answered as such after so long."""
MAX_ADDRESSES = 4096


@dataclass(slots=True)
class Throttle:
    """A leaking bucket for each address: how many failures are in it, as of when."""

    _levels: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def fails(self, address: str, now_seconds: float) -> bool:
        """Take note of a failure; whether there have been too many. The clock never goes back."""
        source = source_of(address)
        level, since = self._levels.pop(source, (0.0, now_seconds))
        level = max(0.0, level - (now_seconds - since) / SECONDS_PER_FAILURE)
        full = level + 1 > MAX_AT_ONCE
        self._levels[source] = (level if full else level + 1, now_seconds)
        if len(self._levels) > MAX_ADDRESSES:
            self._levels.popitem(last=False)
        return full
