"""Thread that runs functions one after the other, for calls that may block the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class CallAbandonedError(BaseException):
    """Raised in a thread if its call returns after the thread was replaced.

    A BaseException, because it is not a failure of the call: no source may catch it.
    """


class WorkerThread:
    """Runs functions sequentially on its own thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a call that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queue a function and return a future of its result, on the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def job() -> None:
            try:
                result = function()
            except CallAbandonedError:
                return  # the result is not awaited: the family has another thread
            except Exception as error:  # noqa: BLE001 - passed to the future
                _report_result(loop, _fail, future, error)
            else:
                _report_result(loop, resolve_future, future, result)

        self._jobs.put(job)
        return future

    def run(self, function: Callable[[], None], end: Callable[[], None]) -> None:
        """Queue a function that raises nothing, and afterwards another one on the running loop."""
        loop = asyncio.get_running_loop()

        def job() -> None:
            with suppress(CallAbandonedError):  # the family has another thread
                function()
                _report_result(loop, end)

        self._jobs.put(job)

    def stop(self) -> None:
        """Let the thread end after the queued functions; a stuck one is left behind."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _report_result(loop: asyncio.AbstractEventLoop, *call: Any) -> None:
    # The loop may have ended while the thread was stuck; then the result is not awaited.
    if not loop.is_closed():
        loop.call_soon_threadsafe(*call)


def resolve_future(future: asyncio.Future[Result], result: Result) -> None:
    """Set the result of a future, unless it is done or was cancelled."""
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
