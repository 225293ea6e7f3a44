"""The demo's cluster: captures, tokens, tenants, and the processes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp

from railscope.capture import write_capture
from railscope.demo.process import Program, run_to_end
from railscope.simulator import NodeSpec, about, moments

OWN_NODE = "this-machine"
PUSH_SECONDS = "1"
_SETTLE_SECONDS = 15.0
_TENANTS = """tenant,source,owner,from,to
language,slurm,research,2020-01-01T00:00:00Z,
vision,kubernetes,research,2020-01-01T00:00:00Z,
"""
_LAST_LINE = r"agent_stopped shipped_frames=(\d+) dropped_frames=(\d+) waiting_envelopes=(\d+)"


@dataclass(frozen=True, slots=True)
class Node:
    """A simulated server."""

    name: str
    scenario: str
    seconds: int
    scheduler: str = "none"
    stray: bool = False
    """Whether a process uses a GPU that nobody gave to it."""


@dataclass
class Cluster:
    """A collector and one agent a node, as processes of their own."""

    folder: Path
    nodes: list[Node]
    _tokens: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    """Where each agent serves its page, as `host:port`, by node."""
    collector: str = ""
    """Where the collector is, as `host:port`."""

    @property
    def _url(self) -> str:
        return f"http://{self.collector}"

    @property
    def node_names(self) -> list[str]:
        """Every node that must report."""
        return [OWN_NODE, *(node.name for node in self.nodes)]

    def prepare(self) -> None:
        """Make captures and tokens, and say whose accounts and namespaces are. Blocking."""
        for seed, node in enumerate(self.nodes):
            spec = NodeSpec(
                node=node.name, seed=seed, scenario=node.scenario, scheduler=node.scheduler,
                stray=node.stray,
            )  # fmt: skip
            write_capture(
                self.folder / node.name, about(spec, node.seconds), moments(spec, node.seconds)
            )
        self._tokens = {name: secrets.token_urlsafe(24) for name in self.node_names}
        digests = [
            f'"{name}" = "sha256:{hashlib.sha256(token.encode()).hexdigest()}"\n'
            for name, token in self._tokens.items()
        ]
        (self.folder / "tokens.toml").write_text("[nodes]\n" + "".join(digests), encoding="utf-8")
        (self.folder / "tenants.csv").write_text(_TENANTS, encoding="utf-8")

    async def __aenter__(self) -> Self:
        """Start everything and wait until all agents serve their page."""
        self._session = aiohttp.ClientSession(raise_for_status=True)
        environment = {
            **os.environ,
            "RAILSCOPE_COLLECTOR_VIEWS_SECONDS": "1",
            "RAILSCOPE_COLLECTOR_TENANTS_FILE": "tenants.csv",
        }
        self._collector = Program(
            "collector",
            ["collector", "run", "--listen", "127.0.0.1:0", "--state-directory", "collector",
             "--tokens-file", "tokens.toml", "--open-reading"],
            environment,
        )  # fmt: skip
        self._agents: dict[str, Program] = {}
        try:
            await self._collector.start(self.folder)
            match = await self._collector.said(r"collector_started .*listen=(\S+:\d+)")
            self.collector = match[1]
            for name in self.node_names:
                self._agents[name] = await self._start_agent(name)
            for name, agent in self._agents.items():
                match = await agent.said(r"agent_started .*page=(\S+:\d+)")
                self.pages[name] = match[1]
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _start_agent(self, name: str) -> Program:
        replay = [] if name == OWN_NODE else ["--replay", name]
        environment = {
            **os.environ,
            "RAILSCOPE_AGENT_COLLECTOR__TOKEN": self._tokens[name],
            "RAILSCOPE_AGENT_COLLECTOR__PUSH_SECONDS": PUSH_SECONDS,
        }
        if replay:  # is dearer than a server, and the demo shows one read at full pace
            environment |= {
                "RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0",
                "RAILSCOPE_AGENT_BUDGET__MEMORY_BYTES": "0",
            }
        arguments = [
            "agent", "run", "--node", name, "--listen", "127.0.0.1:0", "--collector", self._url,
            "--state-directory", f"agent-{name}", *replay,
        ]  # fmt: skip
        program = Program(f"agent of {name}", arguments, environment)
        await program.start(self.folder)
        return program

    async def __aexit__(self, *_: object) -> None:
        """Stop everything."""
        await self.stop_agents()
        await self._collector.stop()
        await self._session.close()

    def check_alive(self) -> None:
        """Raise ProgramError if any process has ended."""
        for program in (self._collector, *self._agents.values()):
            program.check_alive()

    async def stop_agents(self) -> dict[str, dict[str, int]]:
        """Stop all agents and give what each counted at its end."""
        await asyncio.gather(*(agent.stop() for agent in self._agents.values()))
        counts = {}
        for name, agent in self._agents.items():
            if match := agent.find(_LAST_LINE):
                words = ("shipped", "dropped", "waiting")
                counts[name] = dict(zip(words, map(int, match.groups()), strict=True))
        return counts

    async def views(self) -> dict[str, Any]:
        """All views of the collector."""
        names = ("cluster", "rails", "tenants", "nodes", "account")
        return {name: await self._get(f"/api/v1/{name}") for name in names}

    async def settled_views(self) -> dict[str, Any]:
        """The views, computed after everything that has arrived."""
        asked_ns = (await self._get("/api/v1/cluster"))["instant_ns"]
        async with asyncio.timeout(_SETTLE_SECONDS):
            while True:
                views = await self.views()
                if views["cluster"]["instant_ns"] > asked_ns:
                    views["own"] = await self._own_counts()
                    return views
                await asyncio.sleep(0.2)

    async def check_audit_log(self) -> bool:
        """Stop the collector, check its audit log as a stranger would, show its newest records."""
        await self._collector.stop()
        key = ("--key", "collector/audit/key.pub")
        checked = await run_to_end(["audit", "verify", "collector/audit", *key], self.folder)
        shown = await run_to_end(["audit", "tail", "collector/audit", "--count", "8"], self.folder)
        return checked == shown == 0

    async def _own_counts(self) -> dict[str, float]:
        async with self._session.get(self._url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        plain = [line.split(" ") for line in lines if not line.startswith("#") and "{" not in line]
        return {name: float(value) for name, value in plain}

    async def _get(self, path: str) -> dict[str, Any]:
        async with self._session.get(self._url + path) as response:
            content: dict[str, Any] = await response.json()
            return content

    def where_to_look(self) -> str:
        """Addresses to open meanwhile."""
        pages = "\n".join(
            f"  {f'http://{page}/metrics':40} {name}" for name, page in self.pages.items()
        )
        return (
            f"Look at\n  {self._url + '/metrics':40} aggregates for Prometheus\n"
            f"  {self._url + '/api/v1/rails':40} rails; also cluster, tenants, nodes, account, events\n"
            f"{pages}\nStop with Ctrl-C."
        )
