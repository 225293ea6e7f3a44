"""`python -m railscope_simulator.demo --seconds N`; 0 runs until stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from railscope import child_process
from railscope.durable_files import lock_directory
from railscope.service import run_in_thread
from railscope.standard_output import OutputError
from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis.incident_classes import CLASSES, INCIDENT_RUNBOOK
from railscope_simulator.demo.cluster import MISSING_SWITCHES, DemoCluster
from railscope_simulator.demo.faults import (
    SCHEDULERS,
    DemoFault,
    FaultChange,
    FaultRecord,
    FaultTarget,
    changes,
    next_begin,
)
from railscope_simulator.demo.link_ends import ComparedLinks
from railscope_simulator.demo.process import ProgramError
from railscope_simulator.demo.report import DemoScreen, account_table, verdict
from railscope_simulator.demo.watchers import Watchers, WatchersError

REFRESH_SECONDS, COMPARE_SECONDS = 2.0, 1.0
_STOPPED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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

    Each event is a line. Below them a terminal has the state of the cluster, at most 16 lines redrawn in place. At the
    end, also after Ctrl-C, a summary states what happened. With --seconds, the exit status is 0 only if all checks passed. It needs a checkout.

    The directory keeps ledger, audit log and state for practice until the next demo begins.
    """
    if end_with_parent:
        child_process.end_with_parent(os.getppid())
    try:
        with _lock(directory):
            cluster = DemoCluster(directory, dict(SCHEDULERS), any_ports=any_ports)
            good = asyncio.run(DemoRun(cluster, Watchers(directory), seconds).run())
    except (OutputError, WatchersError, ProgramError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(0 if good else 1)


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
        raise WatchersError(message) from None
    except OSError as error:
        message = f"starting the demo failed: {directory}: {error}; fix: choose another --directory"
        raise WatchersError(message) from error
    try:
        yield
    finally:
        os.close(lock)


@dataclass
class DemoRun:
    """One run: starts the cluster, begins and ends faults, and displays the results."""

    _cluster: DemoCluster
    _watchers: Watchers
    _seconds: int
    _screen: DemoScreen = field(default_factory=DemoScreen)
    _links: ComparedLinks = field(default_factory=ComparedLinks)
    _stopped_by: signal.Signals | None = None
    _was_suspended: bool = False
    _views: dict[str, Any] = field(default_factory=dict)
    """Views of the collector as they were drawn last; empty before."""

    async def run(self) -> bool:
        """Run until the end, or until a signal; return True if all checks passed."""
        running = asyncio.ensure_future(self._run())
        loop = asyncio.get_running_loop()
        for number in _STOPPED_BY:
            loop.add_signal_handler(number, self._stop, number, running)
        try:
            return await running
        except asyncio.CancelledError:
            if self._stopped_by is None:
                raise
            stopped = (
                f"stopped by {self._stopped_by.name}; state stays in {self._cluster.directory}"
            )
            account = [account_table(self._views["account"])] if self._views else []
            seconds = self._elapsed() if self._cluster.nodes else 0.0
            summary = self._screen.summary(len(self._cluster.node_names), seconds)
            self._screen.print("\n".join([*account, stopped, summary]))
            return True

    def _stop(self, number: signal.Signals, running: asyncio.Future[bool]) -> None:
        if self._stopped_by is None:
            self._stopped_by = number
            running.cancel()

    async def _run(self) -> bool:
        cluster, watchers, screen = self._cluster, self._watchers, self._screen
        await run_in_thread(watchers.write)
        screen.print(
            f"Starting {len(cluster.schedulers)} simulated nodes with 8 GPUs and 8 rails each ..."
        )
        await cluster.close_months()
        await run_in_thread(cluster.prepare)
        if not cluster.has_switches:
            screen.print(MISSING_SWITCHES)
        async with cluster:
            await run_in_thread(watchers.point_at, cluster.collector, cluster.metrics_endpoints)
            screen.print(f"{cluster.addresses()}\n\n{watchers.start_commands()}\n")
            await self._show()
            ended = self._elapsed()
            shipped = await cluster.stop_agents()
            views = await cluster.stable_views()
            good, report = verdict(cluster.node_names, shipped, views, self._compared_links())
            screen.print(f"\n{report}\n\nAUDIT LOG")
            # The check first: `and` would leave it out after another one has failed.
            good = await cluster.check_audit_log() and good
            summary = screen.summary(len(cluster.node_names), ended, good=good)
            screen.print(f"\n{summary}")
        return good

    async def _show(self) -> None:
        """Draw the views until the end, while faults begin and end."""
        started_wall_ns = next(iter(self._cluster.nodes.values())).started_wall_ns
        record = FaultRecord(self._cluster.directory / "faults.jsonl", started_wall_ns)
        elapsed = self._elapsed()
        end = elapsed + self._seconds if self._seconds else None
        tasks = {
            asyncio.ensure_future(self._follow_faults(record)),
            asyncio.ensure_future(self._compare_links(started_wall_ns)),
        }
        suspended_ns = _suspended_ns()
        try:
            while (end is None or self._elapsed() < end) and not self._screen.is_gone:
                await asyncio.sleep(REFRESH_SECONDS)
                for task in tasks:
                    # A task that has failed ends the demo with its error; none of them ends by itself before.
                    if task.done():
                        task.result()
                self._cluster.check_alive()
                following = next_begin(self._elapsed())
                seconds = following.seconds - self._elapsed()
                fault = following.fault
                next_fault = f"next fault in {seconds:.0f} s: {_title(fault)} on {fault.node}"
                self._views = await self._cluster.views()
                self._screen.draw(
                    self._views, self._links, (f"console {self._cluster.url}/", next_fault)
                )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # After the tasks have ended: one of them may be writing the same file.
            record.close(self._elapsed())
            self._was_suspended = _suspended_ns() - suspended_ns > SECOND_NS

    def _compared_links(self) -> ComparedLinks | None:
        """Return the comparison of links; none if this machine was suspended: node and switch then skip different steps."""
        return None if self._was_suspended else self._links

    async def _compare_links(self, started_wall_ns: int) -> None:
        """Compare both ends of all links."""
        while True:
            self._links.add(await self._cluster.switches(), started_wall_ns)
            await asyncio.sleep(COMPARE_SECONDS)

    def _elapsed(self) -> float:
        """Return seconds since the simulated nodes began, by the clock that they follow."""
        started_ns = next(iter(self._cluster.nodes.values())).started_boot_ns
        return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns) / SECOND_NS

    async def _follow_faults(self, record: FaultRecord) -> None:
        """Announce and record each fault when it begins and when it ends."""
        for change in changes():
            while (remaining_seconds := change.seconds - self._elapsed()) > 0:  # noqa: ASYNC110 - waits for a time, which no event signals
                await asyncio.sleep(remaining_seconds)
            target = FaultTarget.from_change(self._cluster.nodes[change.fault.node], change)
            await run_in_thread(record.add, change, target)
            self._screen.announce(*_fault_message(change, target))
            if change.begins:
                self._screen.faults.append(change)
            if not change.fault.scenario:
                cluster = self._cluster
                switch = cluster.stop_agent if change.begins else cluster.restart_agent
                await switch(change.fault.node)


def _suspended_ns() -> int:
    """Return the time for which this machine was suspended since its boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()


def _title(fault: DemoFault) -> str:
    """Return a fault as its incident is called; one without an incident by its own name."""
    kind = CLASSES.get(fault.incident)
    return kind.title if kind else fault.name.replace("_", " ")


def _fault_message(change: FaultChange, target: FaultTarget) -> tuple[str, str]:
    """Return the description of a change, and the alerts that it raises: an incident inhibits those on its symptoms."""
    fault = change.fault
    if not change.begins:
        return f"FAULT ENDS    {fault.node}: {_title(fault)}", "; its alerts resolve within minutes"
    alerts = [INCIDENT_RUNBOOK] if fault.incident else fault.alerts
    expected = f". Expect {', '.join(alerts)} within {fault.within_seconds} s"
    return f"FAULT BEGINS  {fault.node}: {target.text}", expected


if __name__ == "__main__":
    demo()
