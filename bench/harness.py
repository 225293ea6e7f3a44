"""Parts that all benchmarks share: the command, measured cost, processes under test, the report.

Processes are started here and stopped by their own pid. A report has ratios with their aims first,
then the figures behind them.
"""

from __future__ import annotations

import operator
import os
import re
import secrets
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self

import click

HOST = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
ANSWER_SECONDS = 300.0
_CPU_CLOCK_SCHED = 2
_KIB = 1024
_PORTS = 10_000
_chosen: deque[int] = deque(maxlen=_PORTS // 10)
"""Ports that were chosen last: their listeners may not have started."""


class BenchError(RuntimeError):
    """A process failed; the message ends with its last output."""


def free_port() -> int:
    """Return a port without a listener, and not one of the last ones; the kernel gives it to no other socket (ip(7))."""
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    while True:
        port = int(limits.split()[0]) - 1 - secrets.randbelow(_PORTS)
        if port in _chosen:
            continue
        with (
            socket.socket() as tcp,
            socket.socket(type=socket.SOCK_DGRAM) as udp,
            suppress(OSError),
        ):
            tcp.bind((HOST, port))
            udp.bind((HOST, port))
            _chosen.append(port)
            return port


class ProcessStopwatch:
    """Cost of a `with` block: wall time, and processor time and context switches of one process."""

    wall_seconds = 0.0
    cpu_seconds = 0.0
    switches = 0

    def __init__(
        self,
        cpu_clock: Callable[[], float] = time.process_time,
        switch_count: Callable[[], int] = lambda: 0,
    ) -> None:
        """Measure this process, or the process that the functions read."""
        self._cpu_clock, self._switch_count = cpu_clock, switch_count

    def __enter__(self) -> Self:
        """Start."""
        self._started = self._cpu_clock(), self._switch_count(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        cpu, switches, wall = self._started
        self.wall_seconds = time.perf_counter() - wall
        self.cpu_seconds = self._cpu_clock() - cpu
        self.switches = self._switch_count() - switches

    @property
    def share_of_core(self) -> float:
        """Processor time per wall time."""
        return self.cpu_seconds / self.wall_seconds


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of some work in this process."""
    with ProcessStopwatch() as spent:
        work()
    return spent.cpu_seconds


def http_get(port: int, path: str) -> str:
    """Return the body of a response of a local server, whatever its status."""
    connection = HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


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
            # A session of its own: the kernel divides processors between sessions first (autogroup, sched(7)),
            # so that the clients in the session of the bench take nothing from what is measured.
            self._process = subprocess.Popen(  # noqa: S603 - the bench starts what it measures
                self._command,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                message = f"starting {self._command[:4]} failed:\n{self.log_end()}"
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

    def log_end(self) -> str:
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

    def measure(self) -> ProcessStopwatch:
        """Return a stopwatch of this process."""
        return ProcessStopwatch(self.cpu_seconds, self.switches)

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

    def resident_bytes(self) -> int:
        """Return its resident memory."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii")
        return _number(text, "Rss") * _KIB


def _number(text: str, key: str) -> int:
    match = re.search(rf"^{key}:\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0


_COMPARE: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a ratio."""

    sign: str
    bound: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{self.unit}"


@dataclass
class BenchReport:
    """Rows of a report under construction."""

    title: str
    _ratios: list[tuple[str, str, str, str]] = field(default_factory=list)
    _figures: list[tuple[str, str]] = field(default_factory=list)

    def ratio(self, title: str, value: float, aim: Aim | None = None) -> None:
        """Add a ratio, in the unit of its aim."""
        unit, verdict = aim.unit if aim else "", ""
        if aim:
            verdict = "met" if _COMPARE[aim.sign](value, aim.bound) else "MISSED"
        self._ratios.append((title, f"{value:.3g}{unit}", str(aim) if aim else "-", verdict))

    def figure(self, title: str, text: str) -> None:
        """Add a figure."""
        self._figures.append((title, text))

    def __str__(self) -> str:
        head = ("ratio", "measured", "aim", "")
        return "\n".join(
            [
                self.title,
                "=" * len(self.title),
                *_align([head, *self._ratios]),
                "",
                "Figures behind them, of this run on this machine:",
                *_align(self._figures),
            ]
        )


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


is_quick_option = click.option(
    "--quick", "is_quick", is_flag=True, help="Smoke run; its figures are not meaningful."
)


@contextmanager
def reporting(title: str) -> Iterator[tuple[BenchReport, Path]]:
    """Yield a report, which is printed at the end, and a temporary directory."""
    report = BenchReport(title)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        yield report, Path(directory)
    click.echo(str(report))


def mebibytes(size: float) -> str:
    """Format an amount of memory."""
    return f"{size / (1 << 20):.1f} MiB"
