"""Signals to a service, with services of a few lines."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from railscope.service import Serve, run_in_thread, supervise
from railscope.settings import SettingsError


class FakeServices:
    """Provides services one after the other, and records which of them runs."""

    def __init__(self, *made: str) -> None:
        self._made = list(made)
        self.running = ""
        self.started: list[str] = []
        self.end = asyncio.Event()
        self._change = asyncio.Event()

    def load(self) -> Serve:
        name = self._made.pop(0)
        if name.startswith("unloadable"):
            raise SettingsError(name)

        async def serve() -> None:
            if name.startswith("unstartable"):
                raise SettingsError(name)
            if name == "broken":
                message = "broken"
                raise RuntimeError(message)
            self.started.append(name)
            self.running = name
            self._change.set()
            try:
                await self.end.wait()
            finally:
                self.running = ""

        return serve

    async def until(self, started: int) -> None:
        while len(self.started) < started:
            self._change.clear()
            await self._change.wait()


async def supervised(services: FakeServices, script: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(supervise(services.load))
        await script()
        os.kill(os.getpid(), signal.SIGTERM)
        await task


async def test_a_reload_replaces_the_service():
    services = FakeServices("one", "two")

    async def script() -> None:
        await services.until(1)
        os.kill(os.getpid(), signal.SIGHUP)
        await services.until(2)
        assert services.running == "two"

    await supervised(services, script)
    assert services.running == "", "a clean stop ends the service"


@pytest.mark.parametrize("bad", ["unloadable", "unstartable"])
async def test_settings_that_cannot_work_leave_the_old_service(bad: str):
    services = FakeServices("one", bad, "three")

    async def script() -> None:
        await services.until(1)
        os.kill(os.getpid(), signal.SIGHUP)
        if bad == "unstartable":
            await services.until(2)
            assert services.started == ["one", "one"], "built anew from the old settings"
        os.kill(os.getpid(), signal.SIGHUP)
        await services.until(2 if bad == "unloadable" else 3)
        assert services.running == "three"

    with capture_logs() as logs:
        await supervised(services, script)
    refused = [line for line in logs if line["event"] == "reload_rejected"]
    assert [line["problem"] for line in refused] == [bad]


@pytest.mark.parametrize("end", ["time", "signal", "service"])
async def test_a_service_runs_on_before_it_is_stopped(end: str):
    services, asked = FakeServices("one"), asyncio.Event()

    def before_stop() -> float:
        assert services.running == "one"
        asked.set()
        if end == "service":
            services.end.set()
        return 0.01 if end == "time" else 3600

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(supervise(services.load, before_stop))
        await services.until(1)
        os.kill(os.getpid(), signal.SIGTERM)
        await asked.wait()
        if end == "signal":
            os.kill(os.getpid(), signal.SIGINT)
        await task
    assert services.running == ""


async def test_a_cancelled_call_in_a_thread_is_awaited_to_its_end():
    loop = asyncio.get_running_loop()
    started, release = asyncio.Event(), threading.Event()
    written: list[str] = []

    def write(text: str, *, repeated: int) -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait()
        written.extend([text] * repeated)

    task = asyncio.create_task(run_in_thread(write, "row", repeated=2))
    await started.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.wait({task}, timeout=0)
        assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written == ["row", "row"]
