"""A separate thread pool for requests that read from disk or database.

Ingest makes frames durable in the default thread pool. It stays available however many requests there are
and however slow the database is; and a client with many concurrent requests waits for its own, others do
not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

from collector.access.credential import Credential

THREADS = 8
MAX_AT_ONCE = 3
"""Maximum number of running or queued requests of one tenant, or of one credential of another role."""

Found = TypeVar("Found")


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="reading")


@dataclass(slots=True)
class Reading:
    """Executes reads for requests; `close` it at the end."""

    _threads: ThreadPoolExecutor = field(default_factory=_pool)
    _asked: dict[str, int] = field(default_factory=dict)

    async def read(self, who: Credential, work: Callable[[], Found]) -> Found:
        """Return the result of the work, done off the loop. Raises HTTPTooManyRequests, or as the work."""
        asker = f"tenant/{who.tenant}" if who.tenant else who.label
        asked = self._asked.get(asker, 0)
        if asked >= MAX_AT_ONCE:
            text = f"more than {MAX_AT_ONCE} of these requests at once\n"
            raise web.HTTPTooManyRequests(text=text, headers={"Retry-After": "1"})
        self._asked[asker] = asked + 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._asked[asker] -= 1
            if not self._asked[asker]:
                del self._asked[asker]

    def close(self) -> None:
        """Shut the threads down; queued work is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
