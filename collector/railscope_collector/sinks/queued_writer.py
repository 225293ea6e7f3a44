"""Bounded queue of batches that are written to a server in order, with retries; what is dropped is counted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from railscope.settings import shown_url
from railscope_collector.sinks import SinkError

log = structlog.get_logger(__name__)

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0
MAX_RETRY_AFTER_SECONDS = 300.0
"""Longest wait that a server may request."""


class QueuedBatch(NamedTuple):
    """Body of one request, and the number of its entries: lines or samples."""

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
    min_retry_seconds: float = MIN_RETRY_SECONDS
    waiting: int = 0
    written: int = 0
    rejected: int = 0
    overflowed: int = 0
    _batches: deque[QueuedBatch] = field(default_factory=deque)
    _filled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def dropped(self) -> int:
        """Number of entries that were rejected by the server or exceeded the limit."""
        return self.rejected + self.overflowed

    def add(self, batches: Iterable[QueuedBatch]) -> None:
        """Queue batches, each within the limit, and drop the oldest ones above it."""
        for batch in batches:
            self._batches.append(batch)
            self.waiting += batch.size
        # The oldest are dropped: recent values are worth more to a reader than a gap further back.
        while self.waiting > self.max_waiting:
            dropped = self._batches.popleft().size
            self.waiting -= dropped
            self.overflowed += dropped
        if self._batches:
            self._filled.set()

    async def run(self, send: Callable[[bytes], Awaitable[int]]) -> None:
        """Write until cancelled; `send` writes one body, returns the number of rejected entries, and raises SinkError."""
        while True:
            await self._filled.wait()
            batch = self._batches.popleft()
            # Before it is written: the batch being written does not count for the limit, and cannot be dropped.
            self.waiting -= batch.size
            if not self._batches:
                self._filled.clear()
            await self._write(batch, send)

    async def _write(self, batch: QueuedBatch, send: Callable[[bytes], Awaitable[int]]) -> None:
        """Write one batch, repeatedly if necessary, each time after a longer wait."""
        last_problem, seconds = "", self.min_retry_seconds
        while True:
            try:
                # The number is the server's, and may be anything.
                rejected = min(await send(batch.body), batch.size)
            except SinkError as error:
                problem = str(error)
                if error.is_rejected:
                    self.rejected += batch.size
                    log.warning(
                        "sink_batch_rejected",
                        sink=self.name,
                        url=shown_url(self.url),
                        problem=problem,
                        entries=batch.size,
                    )
                    break
                if problem != last_problem:
                    log.warning(
                        "sink_connection_failed",
                        sink=self.name,
                        url=shown_url(self.url),
                        problem=problem,
                    )
                last_problem = problem
                await asyncio.sleep(max(seconds, min(error.retry_seconds, MAX_RETRY_AFTER_SECONDS)))
                seconds = min(2 * seconds, MAX_RETRY_SECONDS)
            else:
                self.written += batch.size - rejected
                self.rejected += rejected
                break
        if last_problem:
            log.info("sink_connected", sink=self.name, url=shown_url(self.url))
