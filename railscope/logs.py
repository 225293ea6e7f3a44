"""Logs: one event name, then keys. Under systemd the journal adds time and level."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO, cast

import structlog

from railscope.text import printable

_JOURNAL_LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def _journal_prefix(_: Any, __: str, line: str) -> str:
    level, _, rest = line.partition(" ")
    return f"<{_JOURNAL_LEVELS.get(level, 6)}>{rest}"


def _level_first(_: Any, method: str, event: dict[str, Any]) -> str:
    name = event.pop("event")
    time = event.pop("timestamp", "")
    keys = " ".join(f"{key}={_quoted(value)}" for key, value in event.items())
    return f"{time} {method} {name} {keys}".strip()


def _quoted(value: Any) -> str:
    text = printable(str(value))
    return f'"{text}"' if not text or any(c in text for c in ' "=') else text


class Lines:
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


lines = Lines()
"""Log output of this process."""


def configure(level: str) -> None:
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
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", lines)),
        cache_logger_on_first_use=False,
    )
