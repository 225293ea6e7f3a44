"""Settings, tokens and scenario of a run, and the links between its programs."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from railscope_collector.access.credentials import digest_token
from tests.failover.database_pair import USER, DatabasePair
from tests.failover.failures import COLLECTORS, HOST, Link

REFERENCE = "reference"
QUIET_SECONDS = 10
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

[archive]
url = "{directory}/archive-{name}"
archive_after_days = 1

[diagnosis]
enabled = false

[cluster]
group = "{group}"
advertised_url = "{url}"
"""
_AGENT_TOML = """[collector]
urls = [{urls}]
token = "{token}-{{node}}"
push_seconds = 1.0
timeout_seconds = 5.0
max_retry_seconds = 1.0
max_failures = 2
failover_seconds = 10.0

[witness]
period_seconds = 2.0
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


@dataclass
class ClusterNetwork:
    """Links of all collectors: one from the agents, and one to each database server."""

    agents: dict[str, Link] = field(default_factory=dict)
    databases: dict[str, tuple[Link, ...]] = field(default_factory=dict)

    async def start(self, ports: dict[str, int], pair: DatabasePair, stack: AsyncExitStack) -> None:
        """Start the links; the stack closes them."""
        for name in COLLECTORS:
            agents = self.agents[name] = Link(ports[name])
            databases = tuple(Link(server.socket) for server in (pair.primary, pair.standby))
            self.databases[name] = databases
            for link in (agents, *databases):
                await link.start()
                stack.push_async_callback(link.close)

    def collector_url(self, name: str) -> str:
        """Return the URL of a collector for agents."""
        return f"http://{HOST}:{self.agents[name].port}"

    def database_url(self, name: str) -> str:
        """Return the URL of the database for a collector; the server names its connections by the collector."""
        hosts = "&".join(f"host={HOST}:{link.port}" for link in self.databases[name])
        return f"postgresql://{USER}@/ledger?{hosts}&target_session_attrs=read-write&application_name={name}"


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"gpu-node-{number + 1}"


@dataclass(frozen=True)
class ClusterFiles:
    """Files of a run in its directory."""

    directory: Path
    nodes: int
    seconds: int
    token: str
    ports: dict[str, int]

    @property
    def delay_seconds(self) -> int:
        """Time after the end of the day until it is finalized: all evidence of it is stored by then."""
        return self.seconds // 2 + QUIET_SECONDS + 20

    def write(self, network: ClusterNetwork) -> None:
        """Write settings, tokens and the scenario."""
        names = map(node_name, range(self.nodes))
        lines = [f'"{name}" = "{digest_token(f"{self.token}-{name}")}"\n' for name in names]
        self._write("tokens.toml", "[nodes]\n" + "".join(lines))
        for name, port in self.ports.items():
            (self.directory / f"archive-{name}").mkdir()
            state = self.directory / f"collector-{name}"
            local = f"sqlite:///{state / 'ledger.sqlite'}"
            text = _COLLECTOR_TOML.format(
                listen=f"{HOST}:{port}",
                state=state,
                directory=self.directory,
                name=name,
                ledger=local if name == REFERENCE else network.database_url(name),
                quiet=QUIET_SECONDS,
                delay=self.delay_seconds,
                group="" if name == REFERENCE else "site",
                url="" if name == REFERENCE else network.collector_url(name),
            )
            self._write(f"{name}.toml", text)
        urls = ", ".join(f'"{network.collector_url(name)}"' for name in COLLECTORS)
        text = _AGENT_TOML.format(urls=urls, token=self.token)
        self._write("agent.toml", text)
        half = self.nodes // 2
        scenario = _SCENARIO.format(
            seconds=self.seconds,
            nodes=self.nodes,
            first=list(range(half)),
            second=list(range(half, self.nodes)),
            pause=self.seconds // 5,
        )
        self._write("scenario.toml", scenario)

    def _write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="utf-8")
