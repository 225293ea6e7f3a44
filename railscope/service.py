"""Service lifecycle: signals, reload, clean stop, systemd notifications.

SIGTERM and SIGINT stop the service. SIGHUP reloads the settings: if a service can be built from them it
replaces the old one; if not, or if it cannot start, the old settings stay in force.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import structlog

from railscope.settings import SettingsError
from railscope.systemd import notify, notify_reloading

log = structlog.get_logger(__name__)

Serve: TypeAlias = Callable[[], Awaitable[None]]
"""Builds a service from validated settings, and runs it until cancelled."""


async def supervise(load: Callable[[], Serve]) -> None:
    """Run a service until SIGTERM or SIGINT.

    `load` reads the settings, builds a service from them to validate them, and raises SettingsError if
    that fails. Raises the error of a service that ends by itself.
    """
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, signals.put_nowait, number)
    serve, proven = load(), None
    while True:
        serving = asyncio.ensure_future(serve())
        following = await _until_change(serving, signals, load)
        try:
            await _end(serving)
        except SettingsError as error:
            if proven is None:
                raise
            _refused(error)
            serve, proven = proven, None
            continue
        if following is None:
            return
        serve, proven = following, serve


async def _until_change(
    serving: asyncio.Future[None],
    signals: asyncio.Queue[signal.Signals],
    load: Callable[[], Serve],
) -> Serve | None:
    """Return the service to run next after a reload, or None to stop."""
    while True:
        waiting = asyncio.ensure_future(signals.get())
        both: set[asyncio.Future[Any]] = {serving, waiting}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            waiting.cancel()
            return None
        if waiting.result() is not signal.SIGHUP:
            notify("STOPPING=1")
            log.info("stopping", signal=waiting.result().name)
            return None
        try:
            following = load()
        except SettingsError as error:
            _refused(error)
            continue
        notify_reloading()
        log.info("reloading")
        return following


def _refused(error: BaseException) -> None:
    log.error("reload_refused", problem=str(error), advice="still on the old settings")


async def _end(serving: asyncio.Future[None]) -> None:
    if serving.done():
        serving.result()
        return
    serving.cancel()
    try:
        await serving
    except asyncio.CancelledError:
        log.debug("stopped")
