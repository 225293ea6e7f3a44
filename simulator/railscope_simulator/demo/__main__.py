"""`python -m railscope_simulator.demo --seconds N`; 0 runs until stopped."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import click

from railscope import child_process, convert_errors
from railscope.api.status import headline
from railscope.durable_files import lock_directory
from railscope.service import run_in_thread
from railscope.standard_output import OutputError, check_output
from railscope.timestamps import SECOND_NS
from railscope_simulator.demo import faults, monitoring
from railscope_simulator.demo.cluster import MISSING_SWITCHES, DemoCluster
from railscope_simulator.demo.process import ProgramError
from railscope_simulator.demo.report import FaultReport, fault_text

POLL_SECONDS = 1.0
_STOPPED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INDENT = " " * 24
"""Beginning of the second line of an event, below the text of the first."""


@click.command()
@click.option(
    "--seconds",
    type=click.IntRange(min=0),
    default=0,
    help=("Duration in seconds; 0 runs until stopped."),
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, resolve_path=True),
    default=".demo",
    show_default=True,
    help="State of the demo, and files from which Prometheus, Alertmanager and Grafana can be started.",
)
@click.option(
    "--end-with-parent", is_flag=True, help="Stop when the program that started this ends."
)
@click.option("--any-ports", is_flag=True, help="Let the system choose all ports.")
def demo(seconds: int, directory: Path, end_with_parent: bool, any_ports: bool) -> None:  # noqa: FBT001 - flags
    """Run a collector, the agent of this host and simulated nodes with faults, as processes.

    Each fault, each incident and each change of the status is a line. At the end, also after Ctrl-C, a summary states
    which faults were found. With --seconds, the exit status is 1 if the diagnosis missed a fault.

    The directory keeps ledger, audit log and state for practice until the next demo begins.
    """
    if end_with_parent:
        child_process.end_with_parent(os.getppid())
    try:
        _check_output()
        with _lock(directory):
            cluster = DemoCluster(directory, dict(faults.SCHEDULERS), any_ports=any_ports)
            good = asyncio.run(DemoRun(cluster, seconds).run())
    except (OutputError, ProgramError, aiohttp.ClientError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(0 if good else 1)


def _check_output() -> None:
    """Raise OutputError if standard output is closed, now or later."""
    if sys.stdout is None:
        message = (
            "standard output is closed: expected a terminal or file; fix: redirect it to /dev/null"
        )
        raise OutputError(message)
    # Without it, `python -m railscope_simulator.demo` gets an OSError in place of an OutputError.
    check_output()


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Lock the directory, so that no second demo uses it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = lock_directory(directory)
    except BlockingIOError:
        message = (
            f"starting the demo failed: {directory} is in use by another demo; fix: stop it, or"
            " choose another --directory"
        )
        raise ProgramError(message) from None
    except OSError as error:
        message = f"starting the demo failed: {directory}: {error}; fix: choose another --directory"
        raise ProgramError(message) from error
    try:
        yield
    finally:
        os.close(lock)


class DemoRun:
    """One run: starts the cluster, begins and ends faults, and prints what the collector reports of them."""

    def __init__(self, cluster: DemoCluster, seconds: int) -> None:
        self._cluster, self._seconds = cluster, seconds
        self._stopped_by: signal.Signals | None = None
        self._report = FaultReport(0)
        self._headline = ""
        self._read_seconds = 0.0
        """Time since the simulated nodes began, when the incidents were last read."""

    async def run(self) -> bool:
        """Run until the end, or until a signal; return False if the diagnosis missed a fault before the end."""
        running = asyncio.ensure_future(self._run())
        loop = asyncio.get_running_loop()
        for number in _STOPPED_BY:
            loop.add_signal_handler(number, self._stop, number, running)
        try:
            await running
            is_good = not self._report.missed(self._read_seconds)
        except asyncio.CancelledError:
            if self._stopped_by is None:
                raise
            name, is_good = self._stopped_by.name, True
            _print(f"stopped by {name}; state stays in {self._cluster.directory}")
        _print(self._report.summary(len(self._cluster.node_names), self._read_seconds))
        return is_good

    def _stop(self, number: signal.Signals, running: asyncio.Future[None]) -> None:
        if self._stopped_by is None:
            self._stopped_by = number
            running.cancel()

    async def _run(self) -> None:
        cluster = self._cluster
        _print(
            f"Starting {len(cluster.schedulers)} simulated nodes with 8 GPUs and 8 rails each ..."
        )
        await cluster.close_months()
        await run_in_thread(cluster.prepare)
        if not cluster.has_switches:
            _print(MISSING_SWITCHES)
        self._report = FaultReport(next(iter(cluster.nodes.values())).started_wall_ns)
        async with cluster:
            with convert_errors(OSError, ProgramError, "preparing Prometheus and Grafana failed: "):
                await run_in_thread(
                    monitoring.write_files,
                    cluster.directory,
                    cluster.collector,
                    cluster.metrics_endpoints,
                )
            _print(f"{cluster.addresses()}\n\n{monitoring.start_commands(cluster.directory)}\n")
            await self._show()
            await cluster.print_status()

    async def _show(self) -> None:
        """Print what changes until the end, while faults begin and end."""
        changes = faults.changes()
        change, begun = next(changes), self._elapsed()
        while not self._seconds or self._elapsed() < begun + self._seconds:
            await asyncio.sleep(POLL_SECONDS)
            self._cluster.check_alive()
            while change.seconds <= self._elapsed():
                await self._apply(change)
                change = next(changes)
            self._read_seconds = self._elapsed()
            for text in self._report.changes(await self._cluster.read_incidents()):
                _announce(text)
            line = headline(await self._cluster.read_status())
            if line != self._headline:
                self._headline = line
                _announce(f"STATUS        {line}")

    async def _apply(self, change: faults.FaultChange) -> None:
        """Announce a fault that begins or ends; one without a scenario stops the agent of its node."""
        fault, cluster = change.fault, self._cluster
        _announce(fault_text(change, faults.describe_target(cluster.nodes[fault.node], change)))
        if change.begins:
            self._report.begun.append(change)
        if not fault.scenario:
            switch = cluster.stop_agent if change.begins else cluster.restart_agent
            await switch(fault.node)

    def _elapsed(self) -> float:
        """Return seconds since the simulated nodes began, by the clock that they follow."""
        started_ns = next(iter(self._cluster.nodes.values())).started_boot_ns
        return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns) / SECOND_NS


def _announce(text: str) -> None:
    """Print an event with its time, wrapped for a terminal."""
    line = f"{dt.datetime.now().astimezone():%H:%M:%S}  {text}"
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        wrapped = textwrap.wrap(line, width, subsequent_indent=_INDENT, break_on_hyphens=False)
        line = "\n".join(wrapped)
    _print(line)


def _print(text: str) -> None:
    """Print a text at once. Raises OutputError."""
    click.echo(text)
    sys.stdout.flush()


if __name__ == "__main__":
    demo()
