"""Running a service: signals, reload, a clean stop, word to systemd.

SIGTERM and SIGINT stop. SIGHUP loads the settings again: if they are good the service is built anew
from them, if not it goes on with the old ones and says why.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog

from railscope.settings import SettingsError
from railscope.systemd import notify, notify_reloading

log = structlog.get_logger(__name__)

Settings = TypeVar("Settings")
Serve = Callable[[Settings], Awaitable[None]]


async def supervise(load: Callable[[], Settings], serve: Serve[Settings]) -> None:
    """Serve until told to stop. Raises whatever ends the service by itself."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, signals.put_nowait, number)
    settings = load()
    while True:
        serving = asyncio.ensure_future(serve(settings))
        settings_or_none = await _until_change(serving, signals, load)
        await _end(serving)
        if settings_or_none is None:
            return
        settings = settings_or_none


async def _until_change(
    serving: asyncio.Future[None],
    signals: asyncio.Queue[signal.Signals],
    load: Callable[[], Settings],
) -> Settings | None:
    """New settings after a reload, or None when it is time to stop."""
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
            settings = load()
        except SettingsError as error:
            log.error("reload_refused", problem=str(error), advice="still on the old settings")
            continue
        notify_reloading()
        log.info("reloading")
        return settings


async def _end(serving: asyncio.Future[None]) -> None:
    if serving.done():
        serving.result()
        return
    serving.cancel()
    try:
        await serving
    except asyncio.CancelledError:
        log.debug("stopped")
