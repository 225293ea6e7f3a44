"""`python -m tests.failover`: collectors, links and a database server fail; nothing recorded may differ.

Links between agents, collectors and database are cut and delayed, collectors killed and suspended, the standby promoted.
Then ledger, closed period and audit log are compared with those of one collector that received everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import click

from bench.harness import free_port
from railscope import child_process, durable_files, http_responses, settings
from railscope.service import run_in_thread
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_agent.witness.witness_store import WitnessStore
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.ledger import ledger_store
from railscope_collector.tables import metadata
from railscope_simulator.demo import process
from railscope_simulator.spec import SimulatorError
from tests.failover import cluster_files, comparisons, failures
from tests.failover.database_pair import DatabasePair, running_pair
from tests.failover.failures import COLLECTORS, FailureKind

GPUS_PER_NODE = 8
DAYS_BEFORE = 5
"""Days from the simulated day until now: a period can be closed three days after its end."""
_POLL_SECONDS, _FAST_POLL_SECONDS, _REQUEST_SECONDS = 0.5, 0.02, 10.0
_DELAY_SECONDS = 0.2
_MIN_START_SECONDS, _START_FACTOR, _MAX_LATE_SECONDS = 10.0, 3.0, 10.0
"""Time until the nodes start: at least this, and this multiple of the time that the database servers took to start."""
_EARLY_SHARE = 0.25
"""Share of the time of the nodes by which they may start earlier."""
_LIMIT_SECONDS = 120.0
"""Maximum wait after the end of a step for what must follow from it."""
_MAX_RESPONSE_BYTES = 16 << 20
_CHILD = "tests.failover.child"


class FailoverError(SimulatorError, RuntimeError):
    """A step did not have the expected effect in time."""


@dataclass
class FailoverRun:
    """One run. `seconds` is the time for which the nodes ship frames; a UTC day ends in its middle."""

    directory: Path
    nodes: int
    seconds: int
    planned: tuple[failures.Failure, ...] = failures.STANDARD
    _programs: dict[str, process.Program] = field(default_factory=dict)
    _received: list[Path] = field(default_factory=list)
    """Copies of the frame logs of collectors that have ended."""
    """Audit logs of all collectors; of one that was lost, a copy from before its loss."""
    _turns: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    """Of each collector: it may take longer to start than the time until its next failure."""
    _network: cluster_files.ClusterNetwork = field(default_factory=cluster_files.ClusterNetwork)

    def __post_init__(self) -> None:
        """Choose ports and tokens."""
        self.ports = {name: free_port() for name in (*COLLECTORS, cluster_files.REFERENCE)}
        token = secrets.token_urlsafe(24)
        self.files = cluster_files.ClusterFiles(
            self.directory, self.nodes, self.seconds, token, self.ports
        )

    def set_clock(self, servers_seconds: float) -> None:
        """Shift the clocks of all programs, so that a day ends in the middle of the time in which nodes ship frames.

        The time until the nodes start follows from the load of this machine: from the time that two database servers took.
        """
        now_ns = time.time_ns()
        seconds = max(_MIN_START_SECONDS, _START_FACTOR * servers_seconds)
        self.nodes_at = time.monotonic() + seconds
        self.day = now_ns // DAY_NS - DAYS_BEFORE
        """The day that ends during the run."""
        ahead_ns = round((seconds + self.seconds / 2) * SECOND_NS)
        self.shift_ns = (self.day + 1) * DAY_NS - ahead_ns - now_ns

    async def wait_for_nodes(self) -> None:
        """Wait until the nodes may start. Raises FailoverError if the day would end too early for them."""
        seconds = self.nodes_at - time.monotonic()
        if seconds < -_MAX_LATE_SECONDS:
            message = f"the collectors started {-seconds:.0f} s late: expected at most {_MAX_LATE_SECONDS:g} s; fix: reduce the load of this machine"
            raise FailoverError(message)
        await asyncio.sleep(max(0.0, seconds - _EARLY_SHARE * self.seconds))

    async def run(self) -> int:
        """Run all steps; return the number of differences."""
        async with contextlib.AsyncExitStack() as stack:
            began = time.monotonic()
            pair = stack.enter_context(running_pair())
            self.set_clock(time.monotonic() - began)
            timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
            self._session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
            await self._network.start(self.ports, pair, stack)
            stack.push_async_callback(self._stop)
            self.files.write(self._network)
            await asyncio.gather(*map(self._start, COLLECTORS))
            await self._start(
                "witness", ["witness", "agent.toml", cluster_files.node_name(0), "witness"]
            )
            await self.wait_for_nodes()
            await self._start("nodes", ["nodes", "agent.toml", "scenario.toml", "nodes"])
            async with asyncio.TaskGroup() as group:
                for failure in self.planned:
                    group.create_task(self._fail(failure, pair))
            await self._programs["nodes"].wait_for_end()
            print_step("the nodes have shipped their last frames")
            found = await self._finalized(pair)
            statements = await self._close("a", found)
            differences = await self._compare_logs(pair)
            expected = await self._reference()
            closed = await self._close(cluster_files.REFERENCE, expected)
        differences += comparisons.compare_all(
            iter([comparisons.compare_statements(statements, closed)]), click.echo
        )
        for name, lines in (("ledger", found), ("reference", expected)):
            (self.directory / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        differing = len(set(found) ^ set(expected))
        click.echo(f"books: {len(expected)} rows, {differing} differences")
        return differences + differing

    # Failures -----------------------------------------------------------------------------------

    async def _fail(self, failure: failures.Failure, pair: DatabasePair) -> None:
        """Let one failure begin and end, after the previous one of its collector."""
        await self._wait_until(failure.start)
        async with self._turns[failure.collector]:
            await self._let_fail(failure, pair)

    async def _let_fail(self, failure: failures.Failure, pair: DatabasePair) -> None:
        name, kind = failure.collector, failure.kind
        if kind is FailureKind.PROMOTION:
            await run_in_thread(pair.primary.kill)
            await run_in_thread(pair.promote)
            print_step(kind)
            return
        if kind is FailureKind.LOST:
            await self._lose(name)
        elif kind is FailureKind.SUSPENDED:
            self._programs[name].signal(signal.SIGSTOP)
        else:
            self._disturb(failure)
        print_step(f"collector {name}: {kind}")
        await self._wait_until(failure.end)
        if kind is FailureKind.LOST:
            await self._start(name)
        elif kind is FailureKind.SUSPENDED:
            self._programs[name].signal(signal.SIGCONT)
        else:
            self._disturb(failure, ends=True)
        print_step(f"collector {name}: no longer: {kind}")

    def _disturb(self, failure: failures.Failure, *, ends: bool = False) -> None:
        """Cut or delay the links of a collector, or restore them."""
        is_database = failure.kind in {FailureKind.CUT_DATABASE, FailureKind.SLOW_DATABASE}
        agents = self._network.agents[failure.collector]
        for link in self._network.databases[failure.collector] if is_database else (agents,):
            if failure.kind in {FailureKind.SLOW_AGENTS, FailureKind.SLOW_DATABASE}:
                link.delay_seconds = 0.0 if ends else _DELAY_SECONDS
            elif ends:
                link.restore()
            else:
                link.cut()

    async def _lose(self, name: str) -> None:
        """Kill a collector and delete its state directory; copies remain for the comparison only."""
        killed = self._programs.pop(name)
        killed.kill()
        await killed.wait_for_end()
        self._write_log(killed)
        state, number = self.directory / f"collector-{name}", len(self._received) + 1
        copy = self._copy_of(f"{name}-lost-{number}")
        await run_in_thread(comparisons.copy_frames, state, copy)
        await run_in_thread(shutil.rmtree, state)

    async def _wait_for_rows(
        self, pair: DatabasePair, query: str, *parameters: str | int
    ) -> tuple[Any, ...]:
        """Return the first row of a query, once it has one."""
        until = time.monotonic() + _LIMIT_SECONDS
        while time.monotonic() < until:
            if rows := await run_in_thread(pair.dump_rows, query, *parameters):
                return rows[0]
            await asyncio.sleep(_FAST_POLL_SECONDS)
        message = f"no row within {_LIMIT_SECONDS:g} s: expected one of {query!r} with {parameters}"
        raise FailoverError(message)

    async def _wait_until(self, share: float) -> None:
        """Wait until the nodes have shipped for a share of the time."""
        await asyncio.sleep(max(0.0, self._started + share * self.seconds - time.monotonic()))
        for program in self._programs.values():
            program.check_alive()

    async def _finalized(self, pair: DatabasePair) -> list[bytes]:
        """Return the rows of the day after all evidence is stored and all GPUs are finalized."""
        ledger = await run_in_thread(ledger_store.Ledger.open, pair.url, metadata)
        try:
            return await self._rows(ledger, COLLECTORS)
        finally:
            await run_in_thread(ledger.close)

    async def _rows(self, ledger: ledger_store.Ledger, collectors: tuple[str, ...]) -> list[bytes]:
        gpus, days = self.nodes * GPUS_PER_NODE, range(self.day, self.day + 1)
        until = time.monotonic() + self.files.delay_seconds + _LIMIT_SECONDS
        while time.monotonic() < until:
            waiting = [await self._pending(name) for name in collectors]
            marked = await run_in_thread(FactStore(ledger.database).marked_days, days)
            found = await run_in_thread(ledger.newest, self.day, self.day + 1)
            if not any(waiting) and not marked and len(found) == gpus:
                return await run_in_thread(comparisons.ledger_lines, ledger, self.day)
            await asyncio.sleep(_POLL_SECONDS)
        message = (
            f"{len(found)} of {gpus} GPU-days are finalized, {len(marked)} nodes are to be metered again, and {waiting} intervals of evidence of"
            f" collectors {', '.join(collectors)} are not stored: expected all of them"
        )
        raise FailoverError(message)

    async def _pending(self, name: str) -> int:
        """Return the intervals of evidence that a collector is still to store.

        Agents have sent those of one that waits to the active one; it stores them if it is active again.
        """
        url = f"http://{failures.HOST}:{self.ports[name]}/metrics"
        async with self._session.get(url) as response:
            text = (await http_responses.read_body(response, _MAX_RESPONSE_BYTES)).decode()
        values = {line.split("{")[0].split()[0]: line.split()[-1] for line in text.splitlines()}
        if values.get("railscope_collector_active") == "0":
            return 0
        return int(values["railscope_collector_evidence_pending_intervals"])

    async def _close(self, name: str, rows: Iterable[bytes]) -> dict[str, bytes]:
        """Close the period of the day with a collector's settings; return the statements of the tenants."""
        skus = {json.loads(row)["sku"] for row in rows}
        settings, to = self.directory / f"{name}.toml", self.directory / f"statements-{name}"
        return await run_in_thread(comparisons.close_day, settings, self.day, skus, to)

    async def _compare_logs(self, pair: DatabasePair) -> int:
        """End the collectors once everything is recorded; compare their log, return the number of differences."""
        await self._wait_for_rows(pair, comparisons.ALL_RECORDED)
        for name in COLLECTORS:
            await self._end(name)
        await self._programs["witness"].stop()
        return await run_in_thread(self._compare_ended_logs, pair)

    def _compare_ended_logs(self, pair: DatabasePair) -> int:
        def compare() -> Iterator[comparisons.ComparisonResult]:
            witness, find = self.directory / "witness", WitnessStore.for_collector
            stores = [
                find(witness, self._network.collector_url(name), is_only=False)
                for name in COLLECTORS
            ]
            key = self.directory / f"collector-{COLLECTORS[0]}" / "audit.pub"
            yield comparisons.verify_log(key, stores, pair.url)
            ids = {row[0] for row in pair.dump_rows("SELECT id FROM audit_outbox")}
            yield comparisons.compare_records(pair.url, ids)

        return comparisons.compare_all(compare(), click.echo)

    async def _reference(self) -> list[bytes]:
        """Return the rows of one collector that received everything."""
        state = self.directory / f"collector-{cluster_files.REFERENCE}"
        envelopes = await run_in_thread(comparisons.merge_frames, self._received, state)
        print_step(f"one collector reads all {envelopes} envelopes that the others received")
        await self._start(cluster_files.REFERENCE)
        file = f"sqlite:///{state / 'ledger.sqlite'}"
        ledger = await run_in_thread(ledger_store.Ledger.open, file, metadata)
        try:
            return await self._rows(ledger, (cluster_files.REFERENCE,))
        finally:
            await run_in_thread(ledger.close)

    async def _start(self, name: str, arguments: list[str] | None = None) -> None:
        if arguments is None:
            arguments = ["collector", f"{name}.toml"]
        environment = os.environ | {settings.CONFIGURATION_VARIABLE: str(self.directory)}
        shifted = [str(self.shift_ns), *arguments]
        program = self._programs[name] = process.Program(name, shifted, environment, _CHILD)
        await program.start(self.directory)
        if name == "nodes":
            self._started = time.monotonic()
        elif name in self.ports:
            await program.find_logged("collector_started ")

    async def _end(self, name: str) -> None:
        """Stop a collector, and keep the frames that it received."""
        program = self._programs.pop(name)
        await program.stop()
        self._write_log(program)
        copy = self._copy_of(name)
        await run_in_thread(comparisons.copy_frames, self.directory / f"collector-{name}", copy)

    def _write_log(self, program: process.Program) -> None:
        """Add the end of a program's log to its file."""
        with (self.directory / f"{program.name}.log").open("a", encoding="utf-8") as file:
            file.write(program.log_tail(process.MAX_LINES) + "\n")

    def _copy_of(self, name: str) -> Path:
        """Return the directory for the frames of a collector that has ended."""
        copy = self.directory / f"received-{name}"
        self._received.append(copy)
        return copy

    async def _stop(self) -> None:
        for program in self._programs.values():
            with contextlib.suppress(ProcessLookupError):
                program.signal(signal.SIGCONT)
            await program.stop()
            self._write_log(program)


def print_step(text: str) -> None:
    """Print what has happened."""
    click.echo(text, err=True)


@click.command()
@click.option("--nodes", type=click.IntRange(2, 200), default=20, show_default=True)
@click.option(
    "--seconds",
    type=click.IntRange(min=40),
    default=180,
    show_default=True,
    help="Time for which the nodes ship frames.",
)
@click.option("--seed", type=int, help="Draw the failures. Default: each kind of failure once.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, resolve_path=True),
    default=".cluster",
    show_default=True,
    help="Directory of all state; its previous content is deleted.",
)
def failover(nodes: int, seconds: int, seed: int | None, directory: Path) -> None:
    """Let collectors, links and a database server fail, and compare the books with those of one collector.

    Writes the rows of both ledgers as JSON lines to ledger.jsonl and reference.jsonl, and the statements of a closed
    period to statements-a and statements-reference. Exit status 1 if anything differs.
    """
    child_process.end_with_parent(os.getppid())
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    lock = durable_files.lock_directory(directory)
    try:
        planned = failures.STANDARD if seed is None else failures.draw_failures(seed)
        differences = asyncio.run(FailoverRun(directory, nodes, seconds, planned).run())
    except SimulatorError as error:
        raise click.ClickException(str(error)) from error
    finally:
        os.close(lock)
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    failover()
