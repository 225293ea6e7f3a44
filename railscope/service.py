"""Service lifecycle: signals, reload, clean stop, state directory.

SIGTERM and SIGINT stop the service. SIGHUP reloads the settings: if a service can be built from
them it replaces the old one; if not, or if it cannot start, the old settings stay in force.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

import structlog

from railscope import untrusted_text
from railscope.durable_files import lock_directory
from railscope.settings import SettingsError
from railscope.systemd import notify

Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")

log = structlog.get_logger(__name__)

Serve: TypeAlias = Callable[[], Awaitable[None]]
"""Builds a service from validated settings, and runs it until cancelled."""


async def run_to_end(work: Awaitable[ResultT]) -> ResultT:
    """Await work that must not be interrupted; a cancellation takes effect when it has ended."""
    running = asyncio.ensure_future(work)
    is_cancelled = False
    # `wait` does not cancel the work when it is cancelled itself.
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        # With the error of the work as its cause, which would otherwise be lost.
        raise asyncio.CancelledError from running.exception()
    return running.result()


async def run_in_thread(
    work: Callable[Parameters, ResultT], *arguments: Parameters.args, **named: Parameters.kwargs
) -> ResultT:
    """Run a blocking call in a thread; a cancellation takes effect when the call has ended.

    `asyncio.to_thread` returns at once when it is cancelled, and its thread would write on after the service
    has closed its files and released the lock of its state directory.
    """
    running = asyncio.to_thread(work, *arguments, **named)  # noqa: TID251 - awaited to its end
    return await run_to_end(running)


class StateDirectoryInUseError(SettingsError):
    """Another process has locked the state directory; the message names the directory."""


def lock_state_directory(directory: Path, program: str) -> int:
    """Create a state directory and lock it; return the descriptor that holds the lock.

    `program` is the name of the only program that locks it. Raises StateDirectoryInUseError, SettingsError.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return lock_directory(directory)
    except BlockingIOError as error:
        message = (
            f"state_directory {directory} is in use by another {program}; fix: stop it,"
            " or set another directory"
        )
        raise StateDirectoryInUseError(message) from error
    except OSError as error:
        fix = "set a directory that this user may create and write, such as one below /var/lib"
        message = f"cannot use state_directory {directory}: {error.strerror}; fix: {fix}"
        raise SettingsError(message) from error


async def supervise(
    load: Callable[[], Serve], before_stop: Callable[[], float] = lambda: 0.0
) -> None:
    """Run a service until SIGTERM or SIGINT.

    `load` reads the settings, builds a service from them to validate them, and raises SettingsError if
    that fails. `before_stop` returns the seconds until the service is stopped; another signal stops it at once.
    Raises the error of a service that ends by itself.
    """
    untrusted_text.complete_types()
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, signals.put_nowait, number)
    serve, proven = load(), None
    while True:
        serving = asyncio.ensure_future(serve())
        following = await _until_change(serving, signals, load)
        if following is None and not serving.done() and (seconds := before_stop()):
            waiting = asyncio.ensure_future(signals.get())
            both: set[asyncio.Future[Any]] = {serving, waiting}
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        try:
            await _end(serving)
        except SettingsError as error:
            # Without former settings there is nothing to return to.
            if proven is None:
                raise
            _log_rejection(error)
            # Only once: if the former settings fail as well, the service ends.
            serve, proven = proven, None
            continue
        if following is None:
            return
        serve, proven = following, serve


async def _until_change(
    serving: asyncio.Future[None], signals: asyncio.Queue[signal.Signals], load: Callable[[], Serve]
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
            log.info("stop_requested", signal=waiting.result().name)
            return None
        try:
            following = load()
        except SettingsError as error:
            _log_rejection(error)
            continue
        # sd_notify(3) requires the monotonic time with it.
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        log.info("reload_started")
        return following


def _log_rejection(error: BaseException) -> None:
    log.error("reload_rejected", problem=str(error), advice="the previous settings remain in use")


async def _end(serving: asyncio.Future[None]) -> None:
    if serving.done():
        serving.result()
        return
    serving.cancel()
    try:
        await serving
    except asyncio.CancelledError:
        log.debug("service_stopped")
