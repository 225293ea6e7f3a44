"""Running a service: signals, reload, a clean stop, word to systemd.

SIGTERM and SIGINT stop. SIGHUP loads the settings again: if a service can be built from them it
takes the place of the old one; if not, or if it cannot start, the old settings stay in force.
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
"""Builds a service anew from settings that were found good, and runs it until cancelled."""


async def supervise(load: Callable[[], Serve]) -> None:
    """Serve until told to stop.

    `load` reads the settings, builds a service from them to see that it can be done, and raises
    SettingsError where it cannot. Raises whatever ends the service by itself.
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
    """The service to run next after a reload, or None when it is time to stop."""
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
