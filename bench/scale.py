"""`python -m bench.scale`: three collectors with one database, and the head that shows all nodes, as the cluster grows.

The nodes are those of `bench.collector`, in equal shares. Turns of all sizes are measured in one run of the same processes:
first the receiving collectors and the head, then the loss of a collector, then that of the head. Processor time of periodic
work (views, diagnosis) is measured between turns and subtracted from that of frames.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click

from bench import harness
from bench.collector_servers import COLLECTORS, HEAD, CollectorCluster
from bench.load import VARIANTS, Envelopes, Load, node_name
from bench.load_sender import Sender, sending
from railscope import envelopes
from tests.failover.database_pair import running_pair

GROWTH = harness.Aim("<=", 1.25)
FAILOVER = harness.Aim("<=", 60, " s")
_KIB = 1024
_NEVER, _VIEW_SECONDS = 86_400.0, 2.0
_MAX_RESTS, _RESTED = 6, 0.8
"""Measurements without frames until one is not a fifth below the previous one."""


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


_REFERENCE_SECONDS, _MAX_BYTES = 0.3, 1 << 24


class FrameCosts(NamedTuple):
    """Processor time per envelope."""

    receiving_seconds: float
    """Of a collector that receives it and passes it on."""
    head_seconds: float
    """Of the head, which applies it."""
    reference_seconds: float
    """Of the benchmark itself, to unpack it: it differs between steps with other load of the machine only."""

    def __truediv__(self, first: FrameCosts) -> FrameCosts:
        """Return the ratios to those of another step."""
        return FrameCosts(*(seconds / before for seconds, before in zip(self, first, strict=True)))


def unpack_seconds(fleet: Load) -> float:
    """Return the processor time to unpack an envelope."""
    bodies = Envelopes(fleet.of_nodes(VARIANTS)).bodies(1)
    started, count = time.thread_time(), 0
    while time.thread_time() < started + _REFERENCE_SECONDS:
        envelopes.unpack(bodies[count % len(bodies)], _MAX_BYTES)
        count += 1
    return (time.thread_time() - started) / count


@dataclass(frozen=True, slots=True)
class StepCost:
    """Cost of one size of the cluster."""

    nodes: int
    costs: FrameCosts
    periodic_shares: tuple[float, float]
    """Share of a core without frames: of a collector that receives, and of the head."""
    registration_seconds: float
    """Processor time of receiving collector and head to register a node."""
    receiving_bytes: int
    """Resident memory of a collector that receives."""
    head_bytes: int

    def text(self, frames: int) -> str:
        """Return all figures; an envelope has a number of frames."""
        receiving, head, reference = (1e3 * each for each in self.costs)
        periodic = ", ".join(f"{100 * each:.1f} %" for each in self.periodic_shares)
        memory = ", ".join(map(harness.mebibytes, (self.receiving_bytes, self.head_bytes)))
        return (
            f"per envelope {receiving:.2f} ms where received, {head:.2f} ms at the head (per frame {1e3 * receiving / frames:.1f}"
            f" and {1e3 * head / frames:.1f} us), {reference:.2f} ms to unpack it; periodic work {periodic} of a core (receiving, head);"
            f" {1e3 * self.registration_seconds:.1f} ms to register a node, in all collectors; resident {memory}"
        )


@dataclass
class ScaledCluster:
    """Three collectors; each has nodes of its own numbers."""

    cluster: CollectorCluster
    load: Load
    """The nodes of all collectors."""
    turn: int = 0

    def sending(self, origin: str, share: int, to: str = "") -> AbstractContextManager[Sender]:
        """Return the process that sends for some nodes of a collector, to it or to another one."""
        first = COLLECTORS.index(origin) * _share(self.load.nodes)
        return sending(self.load.of_nodes(share, first), self.cluster.servers[to or origin])

    @contextmanager
    def sending_to(self, names: Sequence[str], share: int) -> Iterator[dict[str, Sender]]:
        """Yield the processes that send for some nodes of each collector."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(self.sending(name, share)) for name in names}

    def send_turn(self, senders: Iterable[Sender]) -> None:
        """Send the next turn."""
        for sender in senders:
            sender.send_turn(self.turn)
        self.turn += 1

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

    def measure(self, nodes: int, previous_nodes: int, size: ScaleSize) -> StepCost:
        """Add nodes up to a number, and measure frames of the collectors that are not the head."""
        share, servers = _share(nodes), self.cluster.servers
        with self.sending_to(COLLECTORS, share) as senders:
            with self._costs() as registering:
                self.send_turn(senders.values())
                self.cluster.wait_until_applied(COLLECTORS)
            # Two turns more: the second envelope of a node is not yet of the usual cost.
            for _ in range(2):
                self.send_turn(senders.values())
            self.cluster.wait_until_applied(COLLECTORS)
            memory = {name: server.memory().resident for name, server in servers.items()}
            quiet = self.rest(size)
            del senders[HEAD]
            costs = self.send_frames(senders, share, quiet, size)
        registered = sum(each.cpu_seconds for each in registering.values())
        return StepCost(
            nodes,
            costs,
            (quiet["b"].share_of_core, quiet[HEAD].share_of_core),
            registered / (nodes - previous_nodes),
            memory["b"],
            memory[HEAD],
        )

    def measure_few(self, nodes: int, size: ScaleSize) -> FrameCosts:
        """Measure frames of so many nodes only, while all others do not send."""
        share = _share(nodes)
        with self.sending_to(COLLECTORS[1:], share) as senders:
            return self.send_frames(senders, share, self.rest(size), size)

    def send_frames(
        self,
        senders: Mapping[str, Sender],
        share: int,
        quiet: Mapping[str, harness.ProcessStopwatch],
        size: ScaleSize,
    ) -> FrameCosts:
        """Send envelopes of a number of nodes of each sender, and measure them."""
        # In each of three turns one envelope begins another 30 seconds of the evidence.
        turns = 3 * max(1, round(size.envelopes / (3 * share * len(senders))))
        for sender in senders.values():
            sender.prepare(self.turn, turns)
        reference = unpack_seconds(self.load)
        with self._costs() as spent:
            for _ in range(turns):
                for sender in senders.values():
                    sender.send(turns=1)
            self.cluster.wait_until_applied([*senders])
        reference = (reference + unpack_seconds(self.load)) / 2
        self.turn += turns

        def per_envelope(names: Iterable[str]) -> float:
            seconds = sum(
                spent[name].cpu_seconds - quiet[name].share_of_core * spent[name].wall_seconds
                for name in names
            )
            return seconds / (turns * share * len(senders))

        return FrameCosts(per_envelope(senders), per_envelope([HEAD]), reference)

    @contextmanager
    def _costs(self) -> Iterator[dict[str, harness.ProcessStopwatch]]:
        """Measure the cost of all collectors."""
        with ExitStack() as stack:
            servers = self.cluster.servers.items()
            yield {name: stack.enter_context(server.measure()) for name, server in servers}

    def register(self) -> None:
        """Let all nodes send for the first time, and wait until the views have them."""
        share = _share(self.load.nodes)
        with self.sending_to(COLLECTORS, share) as senders:
            self.send_turn(senders.values())
        self.cluster.wait_for_nodes(HEAD, **dict.fromkeys(COLLECTORS, share))
        self.cluster.wait_for_views()

    def lose(self, name: str, to: str, size: ScaleSize) -> tuple[float, float]:
        """Kill a collector that is not the head; return when its nodes have sent to another one, and are fresh in the views.

        Both are seconds after the end. Agents change after some time, and each sends once per period.
        """
        share = _share(self.load.nodes)
        with self.sending(name, share, to) as sender:
            sender.prepare(self.turn)
            self.cluster.servers.pop(name).kill()
            started = time.monotonic()
            time.sleep(size.change_seconds)
            sender.send(over_seconds=size.period_seconds)
            sent = time.monotonic() - started
            self.cluster.wait_for_nodes(HEAD, **{to: 2 * share})
        self.turn += 1
        return sent, time.monotonic() - started

    def take_over(self, to: str) -> tuple[float, float]:
        """Kill the head; return the seconds until another one shows its nodes, and their processor time."""
        self.cluster.servers.pop(HEAD).kill()
        with self.cluster.servers[to].measure() as spent:
            seconds = self.cluster.wait_for_nodes(to, **{to: 2 * _share(self.load.nodes)})
        return seconds, spent.cpu_seconds


def _share(nodes: int) -> int:
    return nodes // len(COLLECTORS)


@contextmanager
def running_cluster(load: Load, directory: Path, view_seconds: float) -> Iterator[ScaledCluster]:
    """Yield a cluster with a database of its own, and tokens for all nodes of a load."""
    directory.mkdir()
    with running_pair() as pair, ExitStack() as stack:
        cluster = CollectorCluster(pair.url, directory, stack, view_seconds)
        cluster.start(map(node_name, range(load.nodes)))
        yield ScaledCluster(cluster, load)


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
    load = Load.of_agent(directory, nodes[-1])
    steps: list[StepCost] = []
    moved = load.of_nodes(min(size.moved_nodes, load.nodes))
    share = _share(moved.nodes)
    with running_cluster(load, directory / "growth", _NEVER) as scaled:
        for previous_nodes, node_count in zip((0, *nodes), nodes, strict=False):
            steps.append(scaled.measure(node_count, previous_nodes, size))
            text = steps[-1].text(load.frames_per_envelope)
            click.echo(f"{node_count:,} nodes: {text}", err=True)
        few = scaled.measure_few(nodes[0], size) / steps[0].costs
    # Another database: the head shows all nodes that collectors of these names had.
    with running_cluster(moved, directory / "loss", _VIEW_SECONDS) as scaled:
        scaled.register()
        with scaled.cluster.servers[HEAD].measure() as viewing:
            time.sleep(size.quiet_seconds)
        sent, fresh = scaled.lose("b", "c", size)
        scaled.cluster.wait_for_views()
        takeover, takeover_cpu = scaled.take_over("c")
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
    views = viewing.share_of_core * last.nodes / moved.nodes
    report.ratio(f"another head shows {2 * share:,} nodes", takeover, FAILOVER)
    report.ratio("takeover, processor time per node", 1e3 * takeover_cpu / (2 * share), unit=" ms")
    added = last.nodes - before.nodes
    receiving_bytes = (last.receiving_bytes - before.receiving_bytes) / _share(added)
    head_bytes = (last.head_bytes - before.head_bytes - receiving_bytes * _share(added)) / added
    report.ratio("memory per node, collector that receives it", receiving_bytes / _KIB, unit=" KiB")
    report.ratio("memory per node, head, in addition", head_bytes / _KIB, unit=" KiB")
    per_second = last.nodes / size.period_seconds
    receiving = (
        last.costs.receiving_seconds * per_second / len(COLLECTORS) + last.periodic_shares[0]
    )
    # The head applies the envelopes of all, and receives those of its own nodes.
    head = last.costs.head_seconds * per_second + last.costs.receiving_seconds * per_second / len(
        COLLECTORS
    )
    for title, cores in (
        ("collector that receives", receiving),
        ("head", head + views),
    ):
        report.ratio(
            f"cores of a {title}, {last.nodes:,} nodes at their full rate, calculated", cores
        )
    for step in steps:
        report.figure(f"{step.nodes:,} nodes", step.text(load.frames_per_envelope))


if __name__ == "__main__":
    main()
