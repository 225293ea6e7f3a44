"""`python -m bench.agent_gpu`: the agent's own time for reading GPUs, without the driver's.

nvidia-ml-py runs over the tests' stand-in for libnvidia-ml.so.1, which reports the time that calls
spent in it. The remainder is Python: the binding, the host, the sources, the frames.
"""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from agent.host import Clock, Json
from agent.host.real import RealHost
from agent.sampling.reader import Reader
from bench.naive import Asked, one_at_a_time
from bench.report import Aim, Report
from railscope.frame import Origin

TESTS = Path(__file__).parents[1] / "tests"
GPUS = 8
MILLISECOND_NS = 1_000_000
MAX_TICKS = 120
QUICK_TICKS = 11
SETTLING_READS = 4
APART_SECONDS = 0.12
"""A tick represents one second; GPM samples must be 110 ms apart. Caches are cold by then."""

ORIGIN = Origin("bench", "run", "boot")
A_TICK = Aim("<=", 2, " ms")


class BenchHost(RealHost):
    """The real host with its own clock."""

    def __init__(self, clock: Any) -> None:
        super().__init__()
        self._seconds = clock

    @property
    def clock(self) -> Clock:
        """The clock passed in: sources probe again once in 60 of its seconds."""
        clock: Clock = self._seconds
        return clock


class ListeningHost(BenchHost):
    """A bench host that records the NVML calls."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.asked: list[Asked] = []

    def call(self, seam: str, function: str, *arguments: int | str) -> Json:
        """Make the call, and record it if it is an NVML call."""
        if seam == "nvml":
            self.asked.append((function, arguments))
        return super().call(seam, function, *arguments)


@dataclass
class Spent:
    """Cost of some reads: thread time outside and inside the library, values, calls to the library."""

    python_ns: int = 0
    within_ns: int = 0
    values: int = 0
    calls: int = 0
    reads: int = 0

    def add(self, other: Spent) -> None:
        """Add the cost of another read."""
        self.python_ns += other.python_ns
        self.within_ns += other.within_ns
        self.values += other.values
        self.calls += other.calls
        self.reads += other.reads

    @property
    def _a_value(self) -> str:
        """Time per value of reads that returned values; some reads only probe for devices."""
        return f"{self.python_ns / self.values / 1000:.2f} us a value, " if self.values else ""

    def __str__(self) -> str:
        return (
            f"{self.python_ns / self.reads / MILLISECOND_NS:.3f} ms a read,"
            f" {self.values / self.reads:,.0f} values, {self.calls / self.reads:,.0f} calls,"
            f" {self._a_value}{self.within_ns / self.reads / MILLISECOND_NS:.3f} ms in the library"
        )


@dataclass
class Course:
    """Ticks of one way of reading: cost by source, and the most expensive tick."""

    of: dict[str, Spent] = field(default_factory=dict)
    dearest_ns: int = 0

    @property
    def total(self) -> Spent:
        """Total cost of all sources."""
        total = Spent()
        for spent in self.of.values():
            total.add(spent)
        return total


@dataclass(frozen=True, slots=True)
class Meter:
    """Measures this thread; the stand-in reports the part spent in the library."""

    standin: Any

    def measure(self, work: Callable[[], int]) -> Spent:
        """Return the cost of some work that returns its number of values."""
        within, calls = self.standin.count("nanoseconds"), self.standin.calls()
        started = time.thread_time_ns()
        values = work()
        spent = time.thread_time_ns() - started
        within = self.standin.count("nanoseconds") - within
        return Spent(spent - within, within, values, self.standin.calls() - calls, 1)


@click.command()
@click.option("--quick", is_flag=True, help="Smoke run; its figures are not meaningful.")
def main(*, quick: bool) -> None:
    """Measure the reading of GPUs and print ratios."""
    if shutil.which("cc") is None:
        message = "there is no C compiler for the stand-in: install the Debian package gcc"
        raise click.ClickException(message)
    report = Report("Agent, GPUs")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        _measure(report, Path(directory), QUICK_TICKS if quick else MAX_TICKS)
    click.echo(str(report))


def _measure(report: Report, directory: Path, ticks: int) -> None:
    sys.path.append(str(TESTS))
    from support.clock import ManualClock  # type: ignore[import-not-found] # noqa: PLC0415 - tests are no package
    from support.full_gpus import full_gpus, nvml_sources  # type: ignore[import-not-found] # noqa: PLC0415 - as above
    from support.standin import Standin, build  # type: ignore[import-not-found] # noqa: PLC0415 - as above

    standin, clock = Standin(directory, str(build(directory))), ManualClock()
    standin.tell(full_gpus(GPUS))
    hosts = BenchHost(clock), ListeningHost(clock)
    readers, listening = (
        [Reader(source, host, ORIGIN) for source in nvml_sources()] for host in hosts
    )
    for _ in range(SETTLING_READS):
        _pass_a_second(clock)
        for reader in (*readers, *listening):
            _settle(reader)
    naive = {reader.source.name: _one_by_one(hosts[1], reader) for reader in listening}
    gc.collect()
    gc.freeze()
    meter, ours, theirs = Meter(standin), Course(), Course()
    for second in range(ticks):
        _pass_a_second(clock)
        due = [reader for reader in readers if second % round(reader.source.period_seconds) == 0]
        _tick(ours, meter, {reader.source.name: partial(_read, reader) for reader in due})
        _tick(theirs, meter, {reader.source.name: naive[reader.source.name] for reader in due})
    for host in hosts:
        host.close()
    _tell(report, ours, theirs, ticks)


def _pass_a_second(clock: Any) -> None:
    time.sleep(APART_SECONDS)
    clock.advance(1)


def _settle(reader: Reader) -> None:
    """Read once, so that no later read adds columns."""
    outcome = reader.run()
    if outcome.problem:
        message = f"{reader.source.name}: {outcome.problem}"
        raise click.ClickException(message)


def _one_by_one(host: ListeningHost, reader: Reader) -> Callable[[], int]:
    """Return the NVML calls of one read of a source as one call per value."""
    host.asked.clear()
    reader.run()
    return one_at_a_time(list(host.asked))


def _read(reader: Reader) -> int:
    frame = reader.run().frame
    return len(frame.values) if frame else 0


def _tick(course: Course, meter: Meter, works: dict[str, Callable[[], int]]) -> None:
    whole = Spent()
    for name, work in works.items():
        spent = meter.measure(work)
        whole.add(spent)
        course.of.setdefault(name, Spent())
        course.of[name].add(spent)
    course.dearest_ns = max(course.dearest_ns, whole.python_ns)


def _tell(report: Report, ours: Course, theirs: Course, ticks: int) -> None:
    mine, naive = ours.total, theirs.total
    report.ratio(
        f"Python a tick, {GPUS} GPUs, 1 Hz", mine.python_ns / ticks / MILLISECOND_NS, A_TICK
    )
    report.ratio("Python a tick, agent / one call a value", mine.python_ns / naive.python_ns)
    report.figure(
        "values a tick", f"{mine.values / ticks:,.0f}, {mine.calls / ticks:,.0f} calls to NVML"
    )
    report.figure("Python a value", f"{mine.python_ns / mine.values / 1000:.2f} us")
    report.figure("dearest tick, all sources due", f"{ours.dearest_ns / MILLISECOND_NS:.2f} ms")
    report.figure(
        "one call a value",
        f"{naive.python_ns / ticks / MILLISECOND_NS:.2f} ms a tick, {naive.calls / ticks:,.0f} calls",
    )
    for name, spent in ours.of.items():
        report.figure(name, str(spent))


if __name__ == "__main__":
    main()
