"""Rate limit for repeated log lines: the first immediately, then counts."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

EVERY_SECONDS = 60.0
_MAX_KEYS = 4096


@dataclass(slots=True)
class LogLimit:
    """Decides for each key if a line is due; `repeated` of that line is the count since the last one."""

    monotonic: Callable[[], float] = time.monotonic
    suppressed: int = 0
    """Number of lines that were not written."""
    _keys: OrderedDict[tuple[str, ...], tuple[float, int]] = field(default_factory=OrderedDict)

    def due(self, *key: str) -> int | None:
        """Return the number of occurrences since the last line; None if no line is due."""
        now = self.monotonic()
        since, count = self._keys.get(key, (now - EVERY_SECONDS, 0))
        if now - since < EVERY_SECONDS:
            self._keys[key] = since, count + 1
            self.suppressed += 1
            return None
        self._keys[key] = now, 0
        self._keys.move_to_end(key)
        if len(self._keys) > _MAX_KEYS:
            self._keys.popitem(last=False)
        return count
