"""`python -m bench.scale`: three collectors with one database, and the head that shows all nodes, as the cluster grows.

The nodes are those of `bench.collector`, in equal shares. Turns of all sizes are measured in one run of the same processes:
first the receiving collectors and the head, then the loss of a collector, then that of the head. Processor time of periodic
work (views, diagnosis) is measured between turns and subtracted from that of frames.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from bench import fleets, harness, load
from railscope.catalog import collector as catalog
from railscope_collector.access.credentials import digest_token
from railscope_simulator.demo.process import free_port
from railscope_simulator.failover.database_pair import running_pair

COLLECTORS = ("a", "b", "c")
GROWTH = harness.Aim("<=", 1.25)
FAILOVER = harness.Aim("<=", 60, " s")
_KIB = 1024
_NEVER, _VIEW_SECONDS, _QUIET_SECONDS = 86_400.0, 2.0, 120.0
_POLL_SECONDS, _LIMIT_SECONDS = 0.2, 600.0
_MAX_RESTS, _RESTED = 6, 0.8
"""Measurements without frames until one is not a fifth below the previous one."""
_LAG = re.compile(rf'^{catalog.CLUSTER_LAG.name}{{collector="(\w+)"}} (\S+)', re.MULTILINE)
_TOKEN = "token-of-the-collectors"  # noqa: S105 - of the processes of this bench


@dataclass(frozen=True, slots=True)
class ScaleSize:
    """Sizes of the cluster, and amount of measurement."""

    nodes: tuple[int, ...]
    envelopes: int
    """Minimum envelopes of a measurement."""
    quiet_seconds: float
    """Time in which the periodic work alone is measured: a round of evidence and account, 30 seconds."""
    moved_nodes: int = 3000
    """Nodes of the cluster that loses collectors."""
    change_seconds: float = 8.0
    """Time in which an agent leaves a collector that does not respond: five attempts (docs/operator.md)."""
    period_seconds: float = 10.0
    """Period of the envelopes of an agent."""


THOROUGH = ScaleSize((100, 1000, 10_000), envelopes=4000, quiet_seconds=30.0)
QUICK = ScaleSize(
    (6, 12),
    envelopes=12,
    quiet_seconds=1.0,
    moved_nodes=9,
    change_seconds=1.0,
    period_seconds=1.0,
)


class HeadPart(NamedTuple):
    """Part of a collector in the views of the head."""

    nodes: int
    is_included: bool
    complete_ns: float
    """Time up to which the head has all of its records."""


@dataclass
class ScaledCluster:
    """Three collectors; the first one is the head. Each has nodes of its own numbers."""

    url: str
    directory: Path
    max_nodes: int
    stack: ExitStack
    view_seconds: float
    """Time between two refreshes of the views; evidence is written after so many seconds, but with no shorter pause than usual."""
    servers: dict[str, harness.ServerProcess] = field(default_factory=dict)
    turn: int = 0
    more_nodes: Sequence[str] = ()
    """Names of other nodes with tokens."""
    shown: dict[str, HeadPart] = field(default_factory=dict)
    """Parts of the views when they were last read."""

    def start(self) -> None:
        """Start all, the head first."""
        share = _share(self.max_nodes)
        numbers = [at * share + number for at in range(len(COLLECTORS)) for number in range(share)]
        names = [*map(load.name, numbers), *self.more_nodes]
        lines = [f'"{name}" = "{digest_token(f"token-of-{name}")}"' for name in names]
        collector_lines = ["[collectors]", f'others = "{digest_token(_TOKEN)}"']
        tokens, token = self.directory / "tokens.toml", self.directory / "token"
        tokens.write_text("\n".join(["[nodes]", *lines, *collector_lines, ""]), encoding="ascii")
        token.write_text(_TOKEN, encoding="ascii")
        for name in COLLECTORS:
            port = free_port()
            variables = {
                "ALLOW_ANONYMOUS_READ": "true",
                "LISTEN": f"{harness.HOST}:{port}",
                "TOKENS_FILE": str(tokens),
                "STATE_DIRECTORY": str(self.directory / f"collector-{name}"),
                "LEDGER__URL": self.url,
                "AUDIT__REQUIRED_WITNESSES": "0",
                "STALE_SECONDS": "86400",
                "VIEW_REFRESH_SECONDS": str(self.view_seconds),
                "METERING__QUIET_SECONDS": str(max(_QUIET_SECONDS, self.view_seconds)),
                "CLUSTER__ADVERTISED_URL": f"http://{harness.HOST}:{port}",
                "CLUSTER__NAME": name,
                "CLUSTER__TOKEN_FILE": str(token),
            }
            server = harness.ServerProcess(
                [sys.executable, "-m", "railscope", "collector", "run"],
                port=port,
                log=self.directory / f"{name}.log",
                environment={f"RAILSCOPE_COLLECTOR_{key}": text for key, text in variables.items()},
            )
            self.servers[name] = self.stack.enter_context(server)
            self.wait(partial(self._find_included, name))

    def _find_included(self, name: str) -> bool | None:
        """True if the head has applied the snapshot of a collector."""
        log = (self.directory / "a.log").read_text(encoding="utf-8")
        return f"collector_included collector={name} " in log or None

    def parts(self, name: str) -> dict[str, HeadPart]:
        """Return the part of each collector in the views of the head; none of another collector."""
        with suppress(OSError, ValueError):
            document = json.loads(harness.http_get(self.servers[name].port, "/api/v1/cluster"))
            timestamp_ns = document.get("timestamp_ns", 0)
            return {
                each["name"]: HeadPart(
                    each["nodes"],
                    each["is_included"],
                    timestamp_ns - 1e9 * (each["lag_seconds"] or 0),
                )
                for each in document.get("collectors", {}).get("parts", [])
            }
        return {}

    def wait(self, condition: Callable[[], object]) -> float:
        """Wait until a condition has a result; return the seconds."""
        started = time.monotonic()
        while condition() is None:
            if time.monotonic() > started + _LIMIT_SECONDS:
                logs = "\n".join(server.log_end() for server in self.servers.values())
                message = f"no result within {_LIMIT_SECONDS:g} s; the head shows {self.shown}; ends of the logs:\n{logs}"
                raise harness.BenchError(message)
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - started

    def wait_for_nodes(self, head: str, **counts: int) -> float:
        """Wait until the head shows these numbers of nodes; return the seconds."""

        def is_shown() -> bool | None:
            self.shown = self.parts(head)
            included = {name: each.nodes for name, each in self.shown.items() if each.is_included}
            return all(included.get(name) == count for name, count in counts.items()) or None

        return self.wait(is_shown)

    def load_process(self, origin: str, count: int, to: str = "") -> fleets.LoadProcess:
        """Return the load generator of the nodes of a collector, which send to it or to another one."""
        first = COLLECTORS.index(origin) * _share(self.max_nodes)
        server = self.servers[to or origin]
        return fleets.LoadProcess(server, count, self.directory / "streams", first)

    def wait_until_applied(self, names: Sequence[str]) -> None:
        """Wait until the head has applied everything that collectors have acknowledged until now.

        Read from its metrics, which cost it little: it is measured meanwhile.
        """
        acknowledged_ns = time.time_ns()

        def is_applied() -> bool | None:
            asked_ns = time.time_ns()
            text = harness.http_get(self.servers["a"].port, "/metrics")
            lags = dict(_LAG.findall(text))
            applied_ns = [asked_ns - 1e9 * float(lags.get(name, "inf")) for name in names]
            return min(applied_ns) > acknowledged_ns or None

        self.wait(is_applied)

    def rest(self, size: ScaleSize) -> dict[str, harness.ProcessStopwatch]:
        """Measure collectors without frames, once what follows from new nodes has ended: the account of their GPUs."""
        before = float("inf")
        for _ in range(_MAX_RESTS):
            with self._costs() as quiet:
                time.sleep(size.quiet_seconds)
            share = sum(each.share_of_core for each in quiet.values())
            if share > _RESTED * before:
                break
            before = share
        return quiet

    def settle(self, head: str) -> None:
        """Wait until the views of the head contain everything that was received until now."""
        sent_ns = time.time_ns()

        def is_applied() -> bool | None:
            self.shown = self.parts(head)
            present = [
                each.complete_ns for name, each in self.shown.items() if name in self.servers
            ]
            return (len(present) == len(self.servers) and min(present) > sent_ns) or None

        self.wait(is_applied)

    # Measurements -------------------------------------------------------------------------------

    def measure(self, nodes: int, previous_nodes: int, size: ScaleSize) -> fleets.StepCost:
        """Add nodes up to a number, and measure frames of the collectors that are not the head."""
        share = _share(nodes)
        with ExitStack() as stack:
            loaders = {
                name: stack.enter_context(self.load_process(name, share)) for name in COLLECTORS
            }
            with self._costs() as registering:
                for loader in loaders.values():
                    self._send(loader)
                self.wait_until_applied(COLLECTORS)
            self.turn += 1
            # Two turns more: the second envelope of a node is not yet of the usual cost.
            for _ in range(2):
                for loader in loaders.values():
                    self._send(loader)
                self.turn += 1
            self.wait_until_applied(COLLECTORS)
            memory = {name: server.memory().resident for name, server in self.servers.items()}
            quiet = self.rest(size)
            del loaders["a"]
            costs = self.send_frames(loaders, share, quiet, size)
        added = nodes - previous_nodes
        registered = sum(each.cpu_seconds for each in registering.values())
        return fleets.StepCost(
            nodes,
            *costs,
            (quiet["b"].share_of_core, quiet["a"].share_of_core),
            registered / added,
            memory["b"],
            memory["a"],
        )

    def measure_few(self, nodes: int, size: ScaleSize) -> fleets.FrameCosts:
        """Measure frames of so many nodes only, while all others do not send."""
        share = _share(nodes)
        with ExitStack() as stack:
            loaders = {
                name: stack.enter_context(self.load_process(name, share)) for name in COLLECTORS[1:]
            }
            return self.send_frames(loaders, share, self.rest(size), size)

    def send_frames(
        self,
        loaders: Mapping[str, fleets.LoadProcess],
        share: int,
        quiet: Mapping[str, harness.ProcessStopwatch],
        size: ScaleSize,
    ) -> fleets.FrameCosts:
        """Send envelopes of a number of nodes of each load generator, and measure them."""
        # In each of three turns one envelope begins another 30 seconds of the evidence.
        turns = 3 * max(1, round(size.envelopes / (3 * share * len(loaders))))
        for loader in loaders.values():
            loader.execute("prepare", self.turn, turns)
        reference = fleets.unpack_seconds(self.directory / "streams")
        with self._costs() as sending:
            for _ in range(turns):
                for loader in loaders.values():
                    loader.execute("post", fleets.CONNECTIONS, 1)
            self.wait_until_applied([*loaders])
        reference = (reference + fleets.unpack_seconds(self.directory / "streams")) / 2
        self.turn += turns

        def per_envelope(names: Iterable[str]) -> float:
            seconds = sum(
                sending[name].cpu_seconds - quiet[name].share_of_core * sending[name].wall_seconds
                for name in names
            )
            return seconds / (turns * share * len(loaders))

        return fleets.FrameCosts(per_envelope(loaders), per_envelope(["a"]), reference)

    def _send(self, loader: fleets.LoadProcess) -> None:
        loader.execute("prepare", self.turn, 1)
        loader.execute("post", fleets.CONNECTIONS)

    @contextmanager
    def _costs(self) -> Iterator[dict[str, harness.ProcessStopwatch]]:
        """Measure the cost of all collectors."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(each.measure()) for name, each in self.servers.items()}

    def register(self, nodes: int) -> None:
        """Let a number of nodes send for the first time, and wait until the views have them."""
        share = _share(nodes)
        for name in COLLECTORS:
            with self.load_process(name, share) as loader:
                self._send(loader)
        self.wait_for_nodes("a", **dict.fromkeys(COLLECTORS, share))
        self.turn += 1
        self.settle("a")

    def lose(self, name: str, to: str, share: int, size: ScaleSize) -> tuple[float, float]:
        """Kill a collector that is not the head; return when its nodes have sent to another one, and are fresh in the views.

        Both are seconds after the end. Agents change after some time, and each sends once per period.
        """
        with self.load_process(name, share, to) as loader:
            loader.execute("prepare", self.turn, 1)
            self.servers.pop(name).kill()
            started = time.monotonic()
            time.sleep(size.change_seconds)
            loader.execute("periodic", fleets.CONNECTIONS, size.period_seconds)
            sent = time.monotonic() - started
            self.wait_for_nodes("a", **{to: 2 * share})
        self.turn += 1
        return sent, time.monotonic() - started

    def take_over(self, to: str, nodes: int) -> tuple[float, float]:
        """Kill the head; return the seconds until another one shows its nodes, and their processor time."""
        self.servers.pop("a").kill()
        with self.servers[to].measure() as spent:
            seconds = self.wait_for_nodes(to, **{to: nodes})
        return seconds, spent.cpu_seconds


def _share(nodes: int) -> int:
    return nodes // len(COLLECTORS)


@click.option(
    "--nodes",
    "sizes",
    help="Sizes of the cluster, such as 100,1000,10000: nodes of all collectors together.",
)
@harness.benchmark("Scale", full=THOROUGH, quick=QUICK)
def main(
    report: harness.BenchReport, size: ScaleSize, directory: Path, *, sizes: str | None
) -> None:
    """Measure three collectors and their head as the cluster grows, and print ratios."""
    nodes = tuple(map(int, sizes.split(","))) if sizes else size.nodes
    streams = load.streams_of_a_node(directory)
    load.save(streams, directory / "streams")
    frames = sum(stream.rows for stream in streams)
    steps: list[fleets.StepCost] = []
    moved = min(size.moved_nodes, nodes[-1])
    share = _share(moved)
    with running_pair() as pair, ExitStack() as stack:
        cluster = ScaledCluster(pair.url, directory, nodes[-1], stack, _NEVER)
        cluster.start()
        for previous_nodes, node_count in zip((0, *nodes), nodes, strict=False):
            steps.append(cluster.measure(node_count, previous_nodes, size))
            click.echo(f"{node_count:,} nodes: {steps[-1].text(frames)}", err=True)
        few = cluster.measure_few(nodes[0], size) / steps[0].costs
    # Another database: the head shows all nodes that collectors of these names had.
    with running_pair() as pair, ExitStack() as stack:
        cluster = ScaledCluster(pair.url, directory / "failover", moved, stack, _VIEW_SECONDS)
        cluster.directory.mkdir()
        load.save(streams, cluster.directory / "streams")
        cluster.start()
        cluster.register(moved)
        with cluster.servers["a"].measure() as viewing:
            time.sleep(size.quiet_seconds)
        sent, fresh = cluster.lose("b", "c", share, size)
        cluster.settle("a")
        takeover, takeover_cpu = cluster.take_over("c", 2 * share)
    first, before, last = steps[0], steps[-2], steps[-1]
    name = f"{last.nodes:,} nodes / {first.nodes:,}"
    grown = last.costs / first.costs
    for ratios, title in (
        (few, f"{first.nodes:,} of {last.nodes:,} nodes / {first.nodes:,}"),
        (grown, name),
    ):
        report.ratio(
            f"processor time per frame received, {title}", ratios.receiving_seconds, GROWTH
        )
        report.ratio(f"processor time per frame of the head, {title}", ratios.head_seconds, GROWTH)
        report.ratio(f"the same to unpack it here, {title}", ratios.reference_seconds)
    report.ratio(f"nodes of a lost collector fresh in the views, {share:,} nodes", fresh, FAILOVER)
    report.ratio("of it, until the last of its nodes has sent", sent, unit=" s")
    views = viewing.share_of_core * last.nodes / moved
    report.ratio(f"another head shows {2 * share:,} nodes", takeover, FAILOVER)
    report.ratio("takeover, processor time per node", 1e3 * takeover_cpu / (2 * share), unit=" ms")
    added = last.nodes - before.nodes
    receiving_bytes = (last.receiving_bytes - before.receiving_bytes) / _share(added)
    head_bytes = (last.head_bytes - before.head_bytes - receiving_bytes * _share(added)) / added
    report.ratio("memory per node, collector that receives it", receiving_bytes / _KIB, unit=" KiB")
    report.ratio("memory per node, head, in addition", head_bytes / _KIB, unit=" KiB")
    per_second = last.nodes / size.period_seconds
    receiving = last.receiving_seconds * per_second / len(COLLECTORS) + last.periodic_shares[0]
    # The head applies the envelopes of all, and receives those of its own nodes.
    head = last.head_seconds * per_second + last.receiving_seconds * per_second / len(COLLECTORS)
    for title, cores in (
        ("collector that receives", receiving),
        ("head", head + views),
    ):
        report.ratio(
            f"cores of a {title}, {last.nodes:,} nodes at their full rate, calculated", cores
        )
    for step in steps:
        report.figure(f"{step.nodes:,} nodes", step.text(frames))


if __name__ == "__main__":
    main()
