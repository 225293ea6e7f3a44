"""Threads for requests that read from disk or database.

Ingest makes frames durable in the default pool of threads: it stays available however many requests
there are and however slow the database is. A client with many concurrent requests waits for its own,
others do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

from railscope_collector.access.credentials import Credential

THREADS = 8
MAX_READS_PER_REQUESTER = 3
"""Maximum number of running or queued requests of one tenant, or of one credential of another role."""

ReadResultT = TypeVar("ReadResultT")


@dataclass(slots=True)
class ReadPool:
    """Executes reads for requests; `close` it at the end."""

    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(THREADS, thread_name_prefix="reading")
    )
    _pending: dict[str, int] = field(default_factory=dict)

    async def read(self, credential: Credential, work: Callable[[], ReadResultT]) -> ReadResultT:
        """Return the result of the work, done off the loop. Raises HTTPTooManyRequests, or as the work."""
        with self.permit(credential):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @contextmanager
    def permit(self, credential: Credential) -> Iterator[None]:
        """Count a read of a requester while it runs. Raises HTTPTooManyRequests."""
        # By tenant and not by token: several tokens do not give a tenant several shares.
        requester = f"tenant/{credential.tenant}" if credential.tenant else credential.label
        pending = self._pending.get(requester, 0)
        if pending >= MAX_READS_PER_REQUESTER:
            text = f"too many requests of this kind: expected at most {MAX_READS_PER_REQUESTER} at once\n"
            raise web.HTTPTooManyRequests(text=text, headers={"Retry-After": "1"})
        self._pending[requester] = pending + 1
        try:
            yield
        finally:
            self._pending[requester] -= 1
            if not self._pending[requester]:
                del self._pending[requester]

    def close(self) -> None:
        """Shut the threads down; queued work is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
