"""The demo's cluster: simulated nodes, tokens, tenants, and the processes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from railscope import api, extras
from railscope.api.status import Status
from railscope.http_responses import read_body
from railscope.service import run_in_thread
from railscope.settings import CONFIGURATION_VARIABLE
from railscope.untrusted_text import parse_toml
from railscope_collector.access.credentials import digest_token
from railscope_simulator.demo.faults import ROUND_SECONDS, UPTIME_NS, plan_faults
from railscope_simulator.demo.process import Program, ProgramError, run_to_end
from railscope_simulator.live import LiveNode

OWN_NODE = "own-node"
HOST = "127.0.0.1"
COLLECTOR_PORT, OWN_PORT = 19470, 19460
"""Ports used if they are free. Simulated nodes use the ports after that of this host."""
_COLLECTOR = "collector"
_SWITCHES_FILE = "switches.toml"
MISSING_SWITCHES = (
    "The switches are not simulated, and links have one end only: missing grpcio;"
    f" fix: {extras.install_command('switches')}"
)

PUSH_SECONDS = "1"
_TIMEOUT, _MAX_ANSWER_BYTES = aiohttp.ClientTimeout(total=60), 64 << 20
_TENANTS = """tenant,source,owner,from,to
language,slurm,research,2020-01-01T00:00:00Z,
vision,kubernetes,research,2020-01-01T00:00:00Z,
"""
READERS = {
    "operator": ("operators", "the whole cluster; also without a token"),
    "tenant": ("tenants.vision", "tenant vision: its jobs, GPU time and invoices"),
    "finance": ("finance", "invoices and statements of two closed months"),
    "auditor": ("auditors", "the audit log, and what it proves"),
}
"""Section of the tokens file, and what a reader sees, by the name of the token file."""


def write_identities(directory: Path, nodes: Iterable[str]) -> dict[str, str]:
    """Write the collector's files of tokens and tenants, and the tokens of readers; return the token of each node."""
    tokens = {node: secrets.token_urlsafe(24) for node in nodes}
    sections = {"nodes": tokens}
    (directory / "tokens").mkdir(exist_ok=True)
    for name, (section, _) in READERS.items():
        sections[section] = {name: secrets.token_urlsafe(24)}
        file = directory / "tokens" / name
        file.unlink(missing_ok=True)
        file.touch(0o600)
        file.write_text(f"{sections[section][name]}\n", encoding="utf-8")
    lines = [
        line
        for section, holders in sections.items()
        for line in (
            f"[{section}]",
            *(f'"{name}" = "{digest_token(token)}"' for name, token in holders.items()),
        )
    ]
    (directory / "tokens.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (directory / "tenants.csv").write_text(_TENANTS, encoding="utf-8")
    return tokens


def program_environment(
    directory: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of a program of the demo, without the settings of this host, in files or variables."""
    others = {n: text for n, text in environment.items() if not n.startswith("RAILSCOPE_")}
    return others | {CONFIGURATION_VARIABLE: str(directory)}


@dataclass
class DemoCluster:
    """A collector and one agent per node, as separate processes.

    All state is in the directory, and stays there until another demo begins.
    """

    directory: Path
    schedulers: dict[str, str]
    """Scheduler of each simulated node's GPUs."""
    any_ports: bool = False
    """True if the system chooses all ports, so that demos that start together do not collide."""
    nodes: dict[str, LiveNode] = field(default_factory=dict)
    metrics_endpoints: dict[str, str] = field(default_factory=dict)
    """Metrics endpoint of each agent as `host:port`, by node."""
    collector: str = ""
    """Address of the collector, as `host:port`."""
    has_switches: bool = field(default_factory=lambda: importlib.util.find_spec("grpc") is not None)
    """True if the leaf switches are simulated, which needs gRPC."""
    _tokens: dict[str, str] = field(default_factory=dict)
    _environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        """Choose the environment of the programs."""
        self._environment = program_environment(self.directory)

    @property
    def url(self) -> str:
        """URL of the collector."""
        return f"http://{self.collector}"

    @property
    def node_names(self) -> list[str]:
        """Every node that must report."""
        return [OWN_NODE, *self.schedulers]

    async def close_months(self) -> None:
        """Create the collector's ledger with the two closed months of `railscope bill demo`. Raises ProgramError."""
        collector = self.directory / _COLLECTOR
        await run_in_thread(shutil.rmtree, collector, ignore_errors=True)
        collector.mkdir(0o700)
        arguments = ["bill", "demo", "--ledger", f"sqlite:///{collector / 'ledger.sqlite'}"]
        if await run_to_end(arguments, self.directory, self._environment, is_quiet=True):
            message = (
                f"closing the months of the demo failed; fix: run railscope {' '.join(arguments)}"
            )
            raise ProgramError(message)

    def prepare(self) -> None:
        """Remove the state of the previous demo's agents, and write nodes, tokens and tenants. Blocking."""
        booted_wall_ns = self._booted_wall_ns()
        for name in ("nodes", *(f"agent-{node}" for node in self.node_names)):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        # Left by a demo with switches; without them the collector must not find it.
        (self.directory / _SWITCHES_FILE).unlink(missing_ok=True)
        (self.directory / "nodes").mkdir(parents=True)
        times = (booted_wall_ns, time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        for seed, (node, scheduler) in enumerate(self.schedulers.items()):
            self.nodes[node] = LiveNode(
                node, seed, scheduler, *times, round_seconds=ROUND_SECONDS, faults=plan_faults(node)
            )
            self.nodes[node].write(self._file_of(node))
        self._tokens = write_identities(self.directory, self.node_names)

    def _booted_wall_ns(self) -> int:
        """Boot time of the nodes: that of the previous demo, if any, or some days ago.

        A Prometheus that monitors several demos must not see the next one as a reboot.
        """
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = self._file_of(next(iter(self.schedulers))).read_text(encoding="utf-8")
            return int(parse_toml(text)["booted_wall_ns"])
        return time.time_ns() - UPTIME_NS

    def _file_of(self, node: str) -> Path:
        return self.directory / "nodes" / f"{node}.toml"

    async def __aenter__(self) -> Self:
        """Start all processes and wait until all agents serve their metrics."""
        self._session = aiohttp.ClientSession(raise_for_status=True, timeout=_TIMEOUT)
        environment = {
            **self._environment,
            "RAILSCOPE_COLLECTOR_VIEW_REFRESH_SECONDS": "1",
            "RAILSCOPE_COLLECTOR_TENANTS_FILE": "tenants.csv",
        }
        if self.has_switches:
            environment["RAILSCOPE_COLLECTOR_SWITCHES__FILE"] = _SWITCHES_FILE
        files = [str(self._file_of(node)) for node in self.schedulers]
        options = ("--listen", f"{HOST}:0", "--file", _SWITCHES_FILE)
        self._switches = Program(
            "switches", ["simulate", "switches", *files, *options], self._environment
        )
        self._collector = Program(
            _COLLECTOR,
            f"collector run --listen {self._address(COLLECTOR_PORT)} --state-directory collector"
            " --tokens-file tokens.toml --allow-anonymous-read".split(),
            environment,
        )
        self._agents: dict[str, Program] = {}
        try:
            if self.has_switches:
                await self._switches.start(self.directory)
                await self._switches.find_logged("switches served")
            await self._collector.start(self.directory)
            match = await self._collector.find_logged(r"collector_started .*address=(\S+:\d+)")
            self.collector = match[1]
            for port, name in enumerate(self.node_names, OWN_PORT):
                await self._start_agent(name, self._address(port))
            # Started together, awaited afterwards: the start of an agent takes seconds.
            for name in self._agents:
                await self._wait_for_agent(name)
        # Also at a cancellation: without `__aenter__` no `__aexit__` is called, and processes would remain.
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def _address(self, port: int) -> str:
        """Return an address with this port if it is free, otherwise with one chosen by the system."""
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As the listener does: connections of the last demo that wait for their end are no listener.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, 0 if self.any_ports else port))
            return f"{HOST}:{0 if self.any_ports else port}"
        return f"{HOST}:0"

    async def _start_agent(self, name: str, address: str) -> None:
        is_simulated = name != OWN_NODE
        environment = {
            **self._environment,
            "RAILSCOPE_AGENT_COLLECTOR__TOKEN": self._tokens[name],
            "RAILSCOPE_AGENT_COLLECTOR__PUSH_SECONDS": PUSH_SECONDS,
            # All dashboards show something, and one of the faults is a burst.
            "RAILSCOPE_AGENT_METRICS__DETAIL": "full",
        }
        arguments = [
            *(["simulate-agent", str(self._file_of(name))] if is_simulated else ["agent", "run"]),
            *f"--node {name} --listen {address} --collector {self.url}".split(),
            *("--state-directory", f"agent-{name}"),
        ]
        self._agents[name] = Program(f"agent of {name}", arguments, environment)
        await self._agents[name].start(self.directory)

    async def _wait_for_agent(self, name: str) -> None:
        match = await self._agents[name].find_logged(r"agent_started .*address=(\S+:\d+)")
        self.metrics_endpoints[name] = match[1]

    async def __aexit__(self, *_: object) -> None:
        """Stop all processes."""
        await asyncio.gather(*(agent.stop() for agent in self._agents.values()))
        await self._collector.stop()
        await self._switches.stop()
        await self._session.close()

    def check_alive(self) -> None:
        """Raise ProgramError if any process has ended by itself."""
        switches = [self._switches] if self.has_switches else []
        for program in (self._collector, *switches, *self._agents.values()):
            program.check_alive()

    async def stop_agent(self, name: str) -> None:
        """Stop the agent of a node."""
        await self._agents.pop(name).stop()

    async def restart_agent(self, name: str) -> None:
        """Start the agent of a node again, at its old address."""
        await self._start_agent(name, self.metrics_endpoints[name])
        await self._wait_for_agent(name)

    async def read_status(self) -> Status:
        """Return the status of the cluster."""
        return msgspec.json.decode(await self._get("/api/v1/status"), type=Status)

    async def read_incidents(self) -> tuple[api.IncidentDocument, ...]:
        """Return the incidents; none before the first diagnosis."""
        try:
            body = await self._get("/api/v1/incidents")
        except aiohttp.ClientResponseError as error:
            if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return ()
        return msgspec.json.decode(body, type=api.IncidentList).rows

    async def print_status(self) -> None:
        """Print the status as `railscope status` does."""
        await run_to_end(["status", "--collector", self.url], self.directory, self._environment)

    async def _get(self, path: str) -> bytes:
        async with self._session.get(self.url + path) as response:
            return await read_body(response, _MAX_ANSWER_BYTES)

    def addresses(self) -> str:
        """List what to open, and the commands to look with."""
        lines = "\n".join(
            f"  {f'http://{address}/metrics':40} {name}"
            for name, address in self.metrics_endpoints.items()
        )
        readers = "\n".join(
            f"  {self.directory / 'tokens' / name!s:40} {what}"
            for name, (_, what) in READERS.items()
        )
        state = self.directory / _COLLECTOR
        program = shutil.which("railscope") or Path(sys.executable).with_name("railscope")
        return (
            f"Open in a browser\n  {self.url + '/':40} web console\n"
            f"Sign in there, at {self.url}/sign-in, with the token in\n{readers}\n"
            f"Metrics and data\n  {self.url + '/metrics':40} aggregates for Prometheus\n"
            f"  {self.url + '/api/v1/rails':40} rails; also cluster, tenants, nodes, account, events, incidents\n"
            f"In another terminal\n  {program} status --collector {self.url}\n  {program} top --collector {self.url}\n"
            f"  {program} audit verify {state / 'ledger.sqlite'} --key {state / 'audit.pub'}\n"
            f"Metrics of the agents\n{lines}\nStop with Ctrl-C."
        )
