"""Output of the demo: tables redrawn in a terminal, one line per change elsewhere."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections import deque
from typing import Any

import click

from simulator.demo.table import tables

CLEAR = "\x1b[H\x1b[2J"
_MAX_SHOWN = 8


class Screen:
    """Standard output; `is_gone` is true once it cannot be written any more."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._news: deque[str] = deque(maxlen=_MAX_SHOWN)
        self._states: dict[str, str] = {}
        self.is_gone = False

    def say(self, text: str) -> None:
        """Print a text; after an error nothing is printed any more."""
        if self.is_gone:
            return
        try:
            click.echo(text)
            sys.stdout.flush()
        except OSError:
            self.is_gone = True
            # Otherwise the interpreter fails again when it flushes on exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def announce(self, text: str) -> None:
        """Print an event, with its time."""
        line = f"{dt.datetime.now().astimezone():%H:%M:%S}  {text}"
        self._news.append(line)
        self.say(line)

    def draw(self, views: dict[str, Any], footer: str) -> None:
        """Show the views: all of them in a terminal, else only changes of the nodes."""
        if self._is_terminal:
            news = "\n".join(self._news)
            self.say(f"{CLEAR}{tables(views)}\n\n{news and news + chr(10) * 2}{footer}")
            return
        for row in views["nodes"]["rows"]:
            state = "reporting" if row.get("railscope_node_reporting") else "stale"
            now = f"{row['node']} is {state}, GPUs: {row['gpus']}"
            if self._states.get(row["node"]) != now:
                self._states[row["node"]] = now
                self.announce(now)
