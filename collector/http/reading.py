"""Threads of their own for what is read from disk and database on somebody's request.

Ingest makes frames durable in the threads that all share. However much is asked, and however long a
database takes, those stay free; and who asks much at once waits for itself, not others for them.
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
"""Requests of one tenant, or of one credential of another role, that are worked on or wait."""

Found = TypeVar("Found")


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="reading")


@dataclass(slots=True)
class Reading:
    """Reads for those who ask; `close` it at the end."""

    _threads: ThreadPoolExecutor = field(default_factory=_pool)
    _asked: dict[str, int] = field(default_factory=dict)

    async def read(self, who: Credential, work: Callable[[], Found]) -> Found:
        """What the work finds, off the loop. Raises HTTPTooManyRequests, and what the work raises."""
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
        """Let go of the threads; what has not begun is given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)
