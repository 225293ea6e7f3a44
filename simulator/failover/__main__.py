"""`python -m simulator.failover`: collectors and a database server fail; the ledger must not differ."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import click

from collector.access.credentials import digest_token
from collector.ledger.ledger_store import Ledger
from collector.tables import metadata
from railscope.durable_files import lock_directory
from railscope.http_responses import read_body
from railscope.service import run_in_thread
from railscope.settings import CONFIGURATION_VARIABLE
from railscope.timestamps import DAY_NS, SECOND_NS
from simulator.demo.child import end_with_parent
from simulator.demo.process import Program
from simulator.failover import reference
from simulator.failover.database_pair import DatabasePair, running_pair
from simulator.spec import SimulatorError

HOST = "127.0.0.1"
GPUS_PER_NODE = 8
COLLECTORS = ("a", "b", "c")
REFERENCE = "reference"
QUIET_SECONDS = 10
_POLL_SECONDS, _REQUEST_SECONDS = 0.5, 10.0
_LIMIT_SECONDS = 120.0
"""Maximum wait after the end of a step for what must follow from it."""
_MAX_RESPONSE_BYTES = 16 << 20
_CHILD = "simulator.failover.child"
_COLLECTOR_TOML = """listen = "{listen}"
state_directory = "{state}"
tokens_file = "{directory}/tokens.toml"
allow_anonymous_read = true
log_level = "info"

[ledger]
url = "{ledger}"

[metering]
period_seconds = 1.0
quiet_seconds = {quiet}
finalize_delay_seconds = {delay}

[audit]
required_witnesses = 0

[diagnosis]
enabled = false
"""
_AGENT_TOML = """[collector]
urls = [{urls}]
token = "{token}-{{node}}"
push_seconds = 1.0
timeout_seconds = 5.0
max_retry_seconds = 1.0
max_failures = 2
failover_seconds = 10.0
return_seconds = 5.0
"""
_SCENARIO = """seconds = {seconds}
step_seconds = 2
seed = 7

[cluster]
nodes_per_pod = {nodes}

[[jobs]]
name = "train"
nodes = {first}

[[jobs]]
name = "tune"
nodes = {second}
tenant = "vision"
breaks = [[{pause}, {pause}]]
"""


class FailoverError(SimulatorError, RuntimeError):
    """A step did not have the expected effect in time."""


@dataclass
class FailoverRun:
    """One run. `seconds` is the time for which the nodes ship frames; a UTC day ends in its middle."""

    directory: Path
    nodes: int
    seconds: int
    _programs: dict[str, Program] = field(default_factory=dict)
    _received: list[Path] = field(default_factory=list)
    """Copies of the frame logs of collectors that have ended."""

    def __post_init__(self) -> None:
        """Choose ports, tokens and the shift of the clocks."""
        self.ports = {name: free_port() for name in (*COLLECTORS, REFERENCE)}
        self.token = secrets.token_urlsafe(24)
        now_ns = time.time_ns()
        self.day = now_ns // DAY_NS - 1
        """The day that ends during the run."""
        self.shift_ns = (self.day + 1) * DAY_NS - self.seconds * SECOND_NS // 2 - now_ns

    @property
    def delay_seconds(self) -> int:
        """Time after the end of the day until it is finalized: all evidence of it is stored by then."""
        return self.seconds // 2 + QUIET_SECONDS + 20

    async def run(self) -> int:
        """Run all steps; return the number of differences."""
        async with AsyncExitStack() as stack:
            pair = stack.enter_context(running_pair())
            timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
            self._session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
            stack.push_async_callback(self._stop)
            self._write_files(pair)
            await asyncio.gather(*map(self._start, COLLECTORS))
            nodes = ["nodes", "agent.toml", "scenario.toml", "nodes"]
            await self._start("nodes", nodes)
            await self._fail(pair)
            await self._programs["nodes"].wait_for_end()
            print_step("the nodes have shipped their last frames")
            found = await self._finalized(pair)
            for name in COLLECTORS:
                await self._end(name)
            expected = await self._reference()
        for name, lines in (("ledger", found), ("reference", expected)):
            (self.directory / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        differences = len(set(found) ^ set(expected))
        click.echo(f"books: {len(expected)} rows, {differences} differences")
        return differences

    async def _fail(self, pair: DatabasePair) -> None:
        """Make collectors and the primary fail, one after another, while the nodes ship frames."""
        await self._wait_until(0.25)
        killed = self._programs.pop("b")
        killed.kill()
        await killed.wait_for_end()
        state = self.directory / "collector-b"
        await run_in_thread(reference.copy_frames, state, self._copy_of("b-lost"))
        await run_in_thread(shutil.rmtree, state)
        print_step("collector b was killed, and its state directory deleted")
        await self._wait_until(0.4)
        await self._start("b")
        print_step("collector b has started again, without state")
        await self._wait_until(0.55)
        self._programs["c"].signal(signal.SIGSTOP)
        print_step("collector c is suspended")
        await self._wait_until(0.65)
        self._programs["c"].signal(signal.SIGCONT)
        print_step("collector c continues")
        await self._wait_until(0.75)
        await run_in_thread(pair.primary.kill)
        await run_in_thread(pair.promote)
        print_step("the primary was killed, and the standby promoted")

    async def _wait_until(self, share: float) -> None:
        """Wait until the nodes have shipped for a share of the time."""
        await asyncio.sleep(max(0.0, self._started + share * self.seconds - time.monotonic()))
        for program in self._programs.values():
            program.check_alive()

    async def _finalized(self, pair: DatabasePair) -> list[bytes]:
        """Return the rows of the day after all evidence is stored and all GPUs are finalized."""
        ledger = await run_in_thread(Ledger.open, pair.url, metadata)
        try:
            return await self._rows(ledger, COLLECTORS)
        finally:
            await run_in_thread(ledger.close)

    async def _rows(self, ledger: Ledger, collectors: tuple[str, ...]) -> list[bytes]:
        gpus = self.nodes * GPUS_PER_NODE
        until = time.monotonic() + self.delay_seconds + _LIMIT_SECONDS
        while time.monotonic() < until:
            waiting = [await self._pending(name) for name in collectors]
            found = await run_in_thread(ledger.newest, self.day, self.day + 1)
            if not any(waiting) and len(found) == gpus:
                return await run_in_thread(reference.ledger_lines, ledger, self.day)
            await asyncio.sleep(_POLL_SECONDS)
        message = (
            f"{len(found)} of {gpus} GPU-days are finalized, and {waiting} intervals of evidence of"
            f" collectors {', '.join(collectors)} are not stored: expected all of them"
        )
        raise FailoverError(message)

    async def _pending(self, name: str) -> int:
        """Return the intervals of evidence of a collector that are not in the database."""
        url = f"http://{HOST}:{self.ports[name]}/metrics"
        async with self._session.get(url) as response:
            text = (await read_body(response, _MAX_RESPONSE_BYTES)).decode()
        metric = "railscope_collector_evidence_pending_intervals "
        return next(
            int(float(line.split()[1])) for line in text.splitlines() if line.startswith(metric)
        )

    async def _reference(self) -> list[bytes]:
        """Return the rows of one collector that received everything."""
        state = self.directory / f"collector-{REFERENCE}"
        envelopes = await run_in_thread(reference.merge_frames, self._received, state)
        print_step(f"one collector reads all {envelopes} envelopes that the others received")
        await self._start(REFERENCE)
        file = f"sqlite:///{state / 'ledger.sqlite'}"
        ledger = await run_in_thread(Ledger.open, file, metadata)
        try:
            return await self._rows(ledger, (REFERENCE,))
        finally:
            await run_in_thread(ledger.close)

    def _write_files(self, pair: DatabasePair) -> None:
        """Write settings, tokens and the scenario."""
        names = [f"gpu-node-{number + 1}" for number in range(self.nodes)]
        lines = [f'"{name}" = "{digest_token(f"{self.token}-{name}")}"\n' for name in names]
        (self.directory / "tokens.toml").write_text("[nodes]\n" + "".join(lines), encoding="utf-8")
        for name, port in self.ports.items():
            state = self.directory / f"collector-{name}"
            text = _COLLECTOR_TOML.format(
                listen=f"{HOST}:{port}",
                state=state,
                directory=self.directory,
                ledger=f"sqlite:///{state / 'ledger.sqlite'}" if name == REFERENCE else pair.url,
                quiet=QUIET_SECONDS,
                delay=self.delay_seconds,
            )
            (self.directory / f"{name}.toml").write_text(text, encoding="utf-8")
        urls = ", ".join(f'"http://{HOST}:{self.ports[name]}"' for name in COLLECTORS)
        agents = _AGENT_TOML.format(urls=urls, token=self.token)
        (self.directory / "agent.toml").write_text(agents, encoding="utf-8")
        half = self.nodes // 2
        scenario = _SCENARIO.format(
            seconds=self.seconds,
            nodes=self.nodes,
            first=list(range(half)),
            second=list(range(half, self.nodes)),
            pause=self.seconds // 5,
        )
        (self.directory / "scenario.toml").write_text(scenario, encoding="utf-8")

    async def _start(self, name: str, arguments: list[str] | None = None) -> None:
        if arguments is None:
            arguments = ["collector", f"{name}.toml"]
        environment = os.environ | {CONFIGURATION_VARIABLE: str(self.directory)}
        shifted = [str(self.shift_ns), *arguments]
        program = self._programs[name] = Program(name, shifted, environment, _CHILD)
        await program.start(self.directory)
        if name == "nodes":
            self._started = time.monotonic()
        else:
            await program.find_logged("collector_started ")

    async def _end(self, name: str) -> None:
        """Stop a collector, and keep the frames that it received."""
        await self._programs.pop(name).stop()
        copy = self._copy_of(name)
        await run_in_thread(reference.copy_frames, self.directory / f"collector-{name}", copy)

    def _copy_of(self, name: str) -> Path:
        """Return the directory for the frames of a collector that has ended."""
        copy = self.directory / f"received-{name}"
        self._received.append(copy)
        return copy

    async def _stop(self) -> None:
        for program in self._programs.values():
            await program.stop()


def free_port() -> int:
    """Return a port that no program listens on."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port: int = free.getsockname()[1]
        return port


def print_step(text: str) -> None:
    """Print what has happened."""
    click.echo(text, err=True)


@click.command()
@click.option("--nodes", type=click.IntRange(2, 200), default=20, show_default=True)
@click.option(
    "--seconds",
    type=click.IntRange(min=40),
    default=200,
    show_default=True,
    help="Time for which the nodes ship frames.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, resolve_path=True),
    default=".cluster",
    show_default=True,
    help="Directory of all state; its previous content is deleted.",
)
def failover(nodes: int, seconds: int, directory: Path) -> None:
    """Let collectors and a database server fail, and compare the ledger with that of one collector.

    Writes the rows of both as JSON lines to ledger.jsonl and reference.jsonl. Exit status 1 if they differ.
    """
    end_with_parent(os.getppid())
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    lock = lock_directory(directory)
    try:
        differences = asyncio.run(FailoverRun(directory, nodes, seconds).run())
    except SimulatorError as error:
        raise click.ClickException(str(error)) from error
    finally:
        os.close(lock)
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    failover()
