"""`python -m bench.failover`: age of the readings in the views of the head when a collector fails.

The agents of three simulated nodes send to one of three collectors with the default settings, in real time, with and without
live copies. That collector is killed or suspended, and the ages are read twice per second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import harness
from bench.collector_servers import HEAD, CollectorCluster
from railscope.catalog import collector as catalog
from tests.failover import cluster_files, database_pair

NODES, ORDER = 3, ("b", "c", "a")
"""Number of nodes, and their order of collectors; the last one is the head."""
FAILURES = {"killed": signal.SIGKILL, "suspended": signal.SIGSTOP}
_LIMITS = {("killed", 2): harness.Aim("<=", 9, " s"), ("suspended", 2): harness.Aim("<=", 9, " s")}
_VIEW_SECONDS, _POLL_SECONDS = 0.5, 0.5
_AGENT_TOML = """[collector]
order = "listed"
send_to = {send_to}
token = "token-of-{{node}}"
"""
_SCENARIO = """seconds = 600
step_seconds = 2
seed = 7

[cluster]
nodes_per_pod = {nodes}
"""


@dataclass(frozen=True, slots=True)
class FailoverSize:
    """Failures, and the times for which ages are read before and after each."""

    failures: tuple[str, ...]
    before_seconds: float
    after_seconds: float


THOROUGH, QUICK = FailoverSize((*FAILURES,), 30.0, 60.0), FailoverSize(("killed",), 5.0, 20.0)


@dataclass(slots=True)
class FailingCluster:
    """Three collectors, and agents that send to the second one."""

    cluster: CollectorCluster

    def start_agents(self, send_to: int) -> None:
        """Start the agents, and wait until the head shows their nodes."""
        directory, servers = self.cluster.directory, self.cluster.servers
        scenario, settings = directory / "scenario.toml", directory / "agent.toml"
        scenario.write_text(_SCENARIO.format(nodes=NODES), encoding="ascii")
        settings.write_text(_AGENT_TOML.format(send_to=send_to), encoding="ascii")
        command = [sys.executable, "-m", "railscope", "simulate", "cluster", str(scenario)]
        command += [str(directory / "agents"), "--config", str(settings)]
        for name in ORDER:
            command += ["--collector", f"http://{harness.HOST}:{servers[name].port}"]
        with (directory / "agents.log").open("wb") as log:
            agents = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - the agents of this bench
        self.cluster.stack.callback(agents.wait)
        self.cluster.stack.callback(agents.terminate)
        self.cluster.wait(lambda: len(self._ages()) == NODES)

    def find_oldest(self, seconds: float) -> float:
        """Return the maximum age of the newest readings of a node within a time."""
        end, oldest = time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            oldest = max(oldest, *self._ages())
            time.sleep(_POLL_SECONDS)
        return oldest

    def _ages(self) -> list[float]:
        document = json.loads(harness.http_get(self.cluster.servers[HEAD].port, "/api/v1/nodes"))
        elapsed, name = time.time() - document["timestamp_ns"] / 1e9, catalog.NODE_AGE.name
        return [elapsed + row[name] for row in document["rows"] if name in row]


def measure(directory: Path, failure: str, send_to: int, size: FailoverSize) -> tuple[float, float]:
    """Return the maximum age before and after a failure."""
    place = directory / f"{failure}-{send_to}"
    place.mkdir()
    with database_pair.running_pair() as pair, ExitStack() as stack:
        cluster = CollectorCluster(pair.url, place, stack, _VIEW_SECONDS)
        cluster.start(map(cluster_files.node_name, range(NODES)))
        failing = FailingCluster(cluster)
        failing.start_agents(send_to)
        before = failing.find_oldest(size.before_seconds)
        os.kill(cluster.servers[ORDER[0]].pid, FAILURES[failure])
        return before, failing.find_oldest(size.after_seconds)


@harness.benchmark("Failover", full=THOROUGH, quick=QUICK)
def main(report: harness.BenchReport, size: FailoverSize, directory: Path) -> None:
    """Measure the age of readings when a collector is killed or suspended, without and with live copies."""
    for failure in size.failures:
        for send_to in (1, 2):
            before, after = measure(directory, failure, send_to, size)
            aim = _LIMITS.get((failure, send_to))
            name = f"maximum age of readings, collector {failure}, send_to = {send_to}"
            report.ratio(name, after, aim, unit=" s")
            report.figure(f"{name}, before", f"{before:.1f} s")


if __name__ == "__main__":
    main()
