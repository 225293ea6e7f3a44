"""Processes under test with their measured cost, and printed results.

Processes are started here and stopped by their own pid. A report has ratios with their aims first,
then the figures behind them.
"""

from __future__ import annotations

import operator
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
_CPU_CLOCK_SCHED = 2
_KIB = 1024


class BenchError(RuntimeError):
    """A process failed; the message ends with its last output."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Resident memory in bytes: total, with shared pages divided proportionally, and private."""

    resident: int
    proportional: int
    unique: int


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


class ServerProcess:
    """A server process: ready once it answers on its port, stopped at the end of the `with` block."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        port: int,
        log: Path,
        ready_path: str = "/metrics",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = tuple(command)
        self.port = port
        self._log = log
        self._ready_path = ready_path
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> Self:
        """Start and wait until it answers."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the bench starts what it measures
                self._command, stdout=log, stderr=log, env=self._environment
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                message = f"{self._command[:4]} did not start:\n{self.last_words()}"
                raise BenchError(message)
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the process by its own pid, and wait for its end."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def last_words(self) -> str:
        """Return the end of its output."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]

    def _answers(self) -> bool:
        with suppress(OSError, HTTPException):
            connection = HTTPConnection(HOST, self.port, timeout=5)
            connection.request("GET", self._ready_path)
            ready = connection.getresponse().status < 500  # noqa: PLR2004 - it serves
            connection.close()
            return ready
        return False

    # What it costs -----------------------------------------------------------------------------

    def cpu_seconds(self) -> float:
        """User and system time of all its threads, to the nanosecond."""
        # clock_getcpuclockid(3): the kernel's name for the processor-time clock of a process.
        return time.clock_gettime((~self.pid << 3) | _CPU_CLOCK_SCHED)

    def switches(self) -> int:
        """Voluntary context switches of all its threads: the number of times that it slept."""
        return sum(
            _number(status.read_text(), "voluntary_ctxt_switches")
            for status in Path(f"/proc/{self.pid}/task").glob("*/status")
        )

    def memory(self) -> ProcessMemory:
        """Return its memory use."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii")
        unique = _number(text, "Private_Clean") + _number(text, "Private_Dirty")
        return ProcessMemory(
            _number(text, "Rss") * _KIB, _number(text, "Pss") * _KIB, unique * _KIB
        )


def _number(text: str, key: str) -> int:
    found = re.search(rf"^{key}:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


_COMPARE: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a ratio."""

    sign: str
    bound: float
    unit: str = ""

    def met(self, value: float) -> bool:
        """True if a value meets the target."""
        return _COMPARE[self.sign](value, self.bound)

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{self.unit}"


@dataclass
class BenchReport:
    """Rows of a report under construction."""

    title: str
    _ratios: list[tuple[str, str, str, str]] = field(default_factory=list)
    _figures: list[tuple[str, str]] = field(default_factory=list)

    def ratio(self, what: str, value: float, aim: Aim | None = None, unit: str = "") -> None:
        """Add a ratio; its unit is that of the aim if it has one."""
        unit = aim.unit if aim else unit
        verdict = "" if aim is None else ("met" if aim.met(value) else "MISSED")
        self._ratios.append((what, f"{value:.3g}{unit}", str(aim) if aim else "-", verdict))

    def figure(self, what: str, text: str) -> None:
        """Add a figure."""
        self._figures.append((what, text))

    def __str__(self) -> str:
        head = ("ratio", "measured", "aim", "")
        return "\n".join(
            [
                self.title,
                "=" * len(self.title),
                *_aligned([head, *self._ratios]),
                "",
                "Figures behind them, of this run on this machine:",
                *_aligned(self._figures),
            ]
        )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def mebibytes(size: float) -> str:
    """Format an amount of memory."""
    return f"{size / (1 << 20):.1f} MiB"
