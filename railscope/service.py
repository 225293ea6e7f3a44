"""Service lifecycle: signals, reload, clean stop, systemd notifications, logs.

SIGTERM and SIGINT stop the service. SIGHUP reloads the settings: if a service can be built from
them it replaces the old one; if not, or if it cannot start, the old settings stay in force.

Integration with systemd: notification socket, watchdog, state directory.

READY, WATCHDOG, STOPPING and RELOADING follow the protocol of sd_notify(3). Outside systemd every
call does nothing.

Logs: one event name, then keys. Under systemd the journal adds time and level.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TextIO, TypeAlias, TypeVar, cast

import structlog

from railscope import untrusted_text
from railscope.durable_files import lock_directory
from railscope.settings import SettingsError

_US_PER_SECOND = 1_000_000
Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")


def notify(state: str) -> None:
    """Send a state such as "READY=1" to systemd."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(state.encode(), address)


async def feed_watchdog() -> None:
    """Notify the watchdog, at half its interval, that the event loop is running.

    Returns at once if systemd has set no watchdog.
    """
    interval_us = int(os.environ.get("WATCHDOG_USEC", "0"))
    if not interval_us or not os.environ.get("NOTIFY_SOCKET"):
        return
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_us / _US_PER_SECOND / 2)


async def run_to_end(work: Awaitable[ResultT]) -> ResultT:
    """Await work that must not be interrupted; a cancellation takes effect when it has ended."""
    running = asyncio.ensure_future(work)
    is_cancelled = False
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
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


def state_directory(settings: Any) -> Path:
    """Return the state directory of settings: as configured, else as set by systemd, else the default."""
    directory = os.environ.get("STATE_DIRECTORY", "")
    is_default = settings.state_directory == type(settings)().state_directory
    return Path(directory if directory and is_default else settings.state_directory)


def lock_state_directory(directory: Path) -> int:
    """Create a state directory and lock it; return the descriptor that holds the lock. Raises SettingsError."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return lock_directory(directory)
    except BlockingIOError as error:
        message = (
            f"state_directory {directory} is in use by another collector; fix: stop it,"
            " or set another directory"
        )
        raise SettingsError(message) from error
    except OSError as error:
        message = f"cannot use state_directory {directory}: {error.strerror}"
        raise SettingsError(message) from error


log = structlog.get_logger(__name__)

Serve: TypeAlias = Callable[[], Awaitable[None]]
"""Builds a service from validated settings, and runs it until cancelled."""


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
            if proven is None:
                raise
            _log_rejection(error)
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


_JOURNAL_LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def _journal_prefix(_: Any, __: str, line: str) -> str:
    level, _, rest = line.partition(" ")
    return f"<{_JOURNAL_LEVELS.get(level, 6)}>{rest}"


def _level_first(_: Any, method: str, event: dict[str, Any]) -> str:
    name = event.pop("event")
    time = event.pop("timestamp", "")
    keys = " ".join(f"{key}={_quote_value(value)}" for key, value in event.items())
    return f"{time} {method} {name} {keys}".strip()


def _quote_value(value: Any) -> str:
    text = untrusted_text.printable(str(value))
    return f'"{text}"' if not text or any(c in text for c in ' "=') else text


class LogStream:
    """Standard error, with failures that never end a program: full disk, closed pipe, unencodable text."""

    def __init__(self) -> None:
        self.lost = 0
        """Lines that could not be written since the start."""

    def write(self, line: str) -> int:
        """Write a line, or count it as lost."""
        try:
            sys.stderr.write(line)
            sys.stderr.flush()
        except (OSError, ValueError):
            self.lost += 1
        return len(line)

    def flush(self) -> None:
        """Do nothing: each line is flushed on write."""


LOG_STREAM = LogStream()
"""Log output of this process."""


def configure_logs(level: str) -> None:
    """Send logs to standard error: with a level prefix for the journal, else with the time."""
    journal = "JOURNAL_STREAM" in os.environ
    processors: list[Any] = []
    if not journal:
        processors.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
    processors.append(_level_first)
    if journal:
        processors.append(_journal_prefix)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", LOG_STREAM)),
        cache_logger_on_first_use=False,
    )


REPEATED_LINE_SECONDS = 60.0
_MAX_KEYS = 4096


@dataclass(slots=True)
class LogRateLimit:
    """Decides for each key if a line is due; `repetitions` of that line is the count since the last one."""

    monotonic: Callable[[], float] = time.monotonic
    suppressed: int = 0
    """Number of lines that were not written."""
    _keys: OrderedDict[tuple[str, ...], tuple[float, int]] = field(default_factory=OrderedDict)

    def count_repetitions(self, *key: str) -> int | None:
        """Return the number of occurrences since the last line; None if no line is due."""
        now_seconds = self.monotonic()
        since, count = self._keys.get(key, (now_seconds - REPEATED_LINE_SECONDS, 0))
        if now_seconds - since < REPEATED_LINE_SECONDS:
            self._keys[key] = since, count + 1
            self.suppressed += 1
            return None
        self._keys[key] = now_seconds, 0
        self._keys.move_to_end(key)
        if len(self._keys) > _MAX_KEYS:
            self._keys.popitem(last=False)
        return count
