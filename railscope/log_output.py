"""Logs of a program: one event name, then keys. Under systemd the journal adds time and level."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO, cast

import structlog

from railscope import untrusted_text

# Priorities of syslog(3), with which sd-daemon(3) prefixes lines.
_JOURNAL_LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}

REPEATED_LINE_SECONDS = 60.0
_MAX_KEYS = 4096


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
        # The key that is dropped is the one whose line is oldest.
        self._keys.move_to_end(key)
        if len(self._keys) > _MAX_KEYS:
            self._keys.popitem(last=False)
        return count
