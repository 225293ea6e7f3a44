"""One thread per device family.

A call into a faulty driver can block permanently, and a thread stuck in it cannot be ended. So each family
has its own thread, waits for it have a deadline, and the thread is a daemon: it never keeps the agent from
stopping.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from agent.sampling.hang_guard import CallAbandonedError

Result = TypeVar("Result")


class DeviceThread:
    """Runs functions sequentially on its own thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
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
                _hand_over(loop, _fail, future, error)
            else:
                _hand_over(loop, _resolve, future, result)

        self._jobs.put(job)
        return future

    def stop(self) -> None:
        """Let the thread end after the queued functions; a stuck one is left behind."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _hand_over(loop: asyncio.AbstractEventLoop, *call: Any) -> None:
    # The loop may have ended while the thread was stuck; then the result is not awaited.
    if not loop.is_closed():
        loop.call_soon_threadsafe(*call)


def _resolve(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
