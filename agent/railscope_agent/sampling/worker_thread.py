"""Thread that runs functions one after the other, for work that may block the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class WorkerThread:
    """Runs functions sequentially on its own thread."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a call that never returns must not keep the process from ending.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queue a function and return a future of its result, on the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def job() -> None:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - passed to the future
                _report(loop, future, future.set_exception, error)
            else:
                _report(loop, future, future.set_result, result)

        self._jobs.put(job)
        return future

    def stop(self) -> None:
        """Let the thread end after the queued functions; a stuck one is left behind."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _report(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    set_it: Callable[[Any], None],
    result: Any,
) -> None:
    def end() -> None:
        if not future.done():
            set_it(result)

    # The loop may have ended while the thread was stuck; then the result is not awaited.
    if not loop.is_closed():
        loop.call_soon_threadsafe(end)
