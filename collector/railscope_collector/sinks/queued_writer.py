"""Bounded queue of batches that are written to a server in order, with retries; what is dropped is counted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from railscope.settings import shown_url

log = structlog.get_logger(__name__)

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0
MAX_RETRY_AFTER_SECONDS = 300.0
"""Longest wait that a server may request."""
MAX_PROBLEM_LENGTH = 200


class WriteError(Exception):
    """A write that the server did not accept: a rejected one would be rejected again, another one is repeated."""

    def __init__(
        self, problem: str, *, is_rejected: bool = False, retry_seconds: float = 0.0
    ) -> None:
        super().__init__(problem[:MAX_PROBLEM_LENGTH])
        self.is_rejected = is_rejected
        self.retry_seconds = retry_seconds


class QueuedBatch(NamedTuple):
    """Body of one request, and the number of its lines."""

    body: bytes
    size: int


@dataclass(slots=True)
class QueuedWriter:
    """Writes batches one after another, the oldest first; a batch waits until the server accepts or rejects it.

    While the server is unavailable, batches wait in memory up to a limit; then the oldest ones are dropped, except the
    one that is being written. Batches of one period are not mixed with those of another one, so that the rejection
    of old ones does not concern recent ones.
    """

    name: str
    """Name of the sink in log lines."""
    url: str
    max_waiting: int
    waiting: int = 0
    written: int = 0
    dropped: int = 0
    """Lines that the server rejected, or that exceeded the limit."""
    _batches: deque[QueuedBatch] = field(default_factory=deque)
    _filled: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, batches: Iterable[QueuedBatch]) -> None:
        """Queue batches, each within the limit, and drop the oldest ones above it."""
        for batch in batches:
            self._batches.append(batch)
            self.waiting += batch.size
        # The oldest are dropped: recent values are worth more to a reader than a gap further back.
        while self.waiting > self.max_waiting:
            size = self._batches.popleft().size
            self.waiting -= size
            self.dropped += size
        if self._batches:
            self._filled.set()

    async def run(self, send: Callable[[bytes], Awaitable[int]]) -> None:
        """Write until cancelled; `send` writes one body, returns the number of rejected lines, and raises WriteError."""
        while True:
            await self._filled.wait()
            batch = self._batches.popleft()
            # Before it is written: the batch being written does not count for the limit, and cannot be dropped.
            self.waiting -= batch.size
            if not self._batches:
                self._filled.clear()
            rejected = await self._write(batch, send)
            self.dropped += rejected
            self.written += batch.size - rejected

    async def _write(self, batch: QueuedBatch, send: Callable[[bytes], Awaitable[int]]) -> int:
        """Write one batch, repeatedly if necessary, each time after a longer wait; return the number of rejected lines."""
        of_sink = {"sink": self.name, "url": shown_url(self.url)}
        last_problem, seconds = "", MIN_RETRY_SECONDS
        while True:
            try:
                rejected = await send(batch.body)
            except WriteError as error:
                problem = str(error)
                if not error.is_rejected:
                    if problem != last_problem:
                        log.warning("sink_connection_failed", **of_sink, problem=problem)
                    last_problem = problem
                    retry_after = min(error.retry_seconds, MAX_RETRY_AFTER_SECONDS)
                    await asyncio.sleep(max(seconds, retry_after))
                    seconds = min(2 * seconds, MAX_RETRY_SECONDS)
                    continue
                rejected = batch.size
                log.warning("sink_batch_rejected", **of_sink, problem=problem, entries=rejected)
            if last_problem:
                log.info("sink_connected", **of_sink)
            return rejected
