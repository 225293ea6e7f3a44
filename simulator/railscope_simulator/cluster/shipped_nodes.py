"""Frames of a simulated cluster, sent to a collector by the shippers of agents, one for each node.

The sources of an agent read each sample of a node, and an agent's shipper with its spool sends their frames. In real
time, a sample is taken when the clock has reached its time. At maximum speed all times are in the past, and the
last one is about the present: the collector receives what an agent delivers after an interruption.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from railscope import durable_files, listen_address, service, tls_contexts
from railscope.capture import CaptureMoment
from railscope.frame import Frame, NodeTimestamp
from railscope.http_server import HttpServer
from railscope.timestamps import SECOND_NS
from railscope_agent.commands.replay import ReplayedNode
from railscope_agent.config import AgentSettings, CollectorLink
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint, configured_selection
from railscope_agent.host import Clock
from railscope_agent.host.live_clock import LiveClock
from railscope_agent.sampling.shipping_stats import ShippingStats
from railscope_agent.service import allow_many_files
from railscope_agent.shipping import collector_client, collector_link
from railscope_agent.shipping.shipper import MAX_FRAMES_PENDING, Shipper
from railscope_collector.access.credentials import digest_token
from railscope_simulator.cluster import collective_records
from railscope_simulator.cluster.arrivals import HeartbeatPath
from railscope_simulator.cluster.captures import SampledCluster, make_output_directory
from railscope_simulator.cluster.cluster_switches import ClusterSwitches
from railscope_simulator.cluster.scenario import ClusterScenario
from railscope_simulator.spec import seconds_to_ns

log = structlog.get_logger()

NODE_PLACEHOLDER = "{node}"
_LINK_TEXTS = ("token", "token_file", "certificate_file", "key_file")
"""Settings in which each node has its own name in place of the placeholder."""
_MAX_SAMPLES_PER_FLUSH, _MAX_SAMPLES_IN_MEMORY = 64, 1024
_MAX_SENDING = 4
"""Nodes that send at the same time: one that waits for others would seem to have a wrong clock."""
_FINAL_SECONDS = 30.0
"""Maximum wait for the acknowledgement of the last frames."""
_WARNING_NS = 60 * SECOND_NS
"""Minimum time between two warnings that the simulation is behind the clock."""


class ShippingOutcome(NamedTuple):
    """Frames that the collector acknowledged, those that were dropped, and envelopes that still wait."""

    shipped: int
    dropped: int
    waiting: int


@dataclass(slots=True)
class NodeClock:
    """Clocks of a simulated node: they run with those of this host, from the times of the node."""

    clock: Clock
    shift_ns: int
    """Boot clock of the node minus that of this host."""
    deviation_ns: int = 0
    """Deviation of the wall clock."""

    def now(self) -> NodeTimestamp:
        """Return the present time of the node."""
        now = self.clock.now()
        return NodeTimestamp(now.wall_ns + self.deviation_ns, now.boot_ns + self.shift_ns)

    async def sleep_until(self, boot_ns: int) -> None:
        """Wait until the boot clock has reached a timestamp."""
        await self.clock.sleep_until(boot_ns - self.shift_ns)

    @property
    def is_running(self) -> bool:
        """True: time passes by itself."""
        return True


def sampled_settings(settings: AgentSettings, scenario: ClusterScenario) -> AgentSettings:
    """Return the settings of an agent that reads the records of collectives if there are any."""
    read = collective_records.SETTINGS if any(job.collectives for job in scenario.jobs) else {}
    of_jobs = msgspec.structs.replace(settings.collectives, **read)
    return msgspec.structs.replace(settings, collectives=of_jobs)


def link_of(link: CollectorLink, node: str) -> CollectorLink:
    """Return the connection of a node to the collector."""
    texts = {name: getattr(link, name).replace(NODE_PLACEHOLDER, node) for name in _LINK_TEXTS}
    return msgspec.structs.replace(link, **texts)


class ShippedNode:
    """A node of a cluster: its sources, its shipper, and its metrics endpoint if `listen` is an address.

    Raises SettingsError and CollectorLinkError for settings that cannot work, and OSError for the spool.
    """

    def __init__(
        self,
        replayed: ReplayedNode,
        path: HeartbeatPath,
        settings: AgentSettings,
        clock: NodeClock,
        directory: Path,
    ) -> None:
        self.node = replayed.origin.node
        self.stats = ShippingStats()
        self._path, self._clock, self._settings = path, clock, settings
        self._replayed = replayed
        link = link_of(settings.collector, self.node)
        self._shipper = Shipper(link, self._replayed.origin, clock, directory, self.stats, [])
        self._held_frames: deque[Frame] = deque(maxlen=MAX_FRAMES_PENDING)
        """Frames that wait until the collector can be reached."""
        token = settings.read_metrics_token()
        self._endpoint = MetricsEndpoint(
            self.node, self._replayed.statuses.values, lambda: clock.now().boot_ns, token
        )
        self._endpoint.expositions.configured = configured_selection(settings.metrics)
        self._listen = ""
        self._server: HttpServer | None = None

    async def serve(self, listen: str) -> str:
        """Serve the metrics endpoint; return its address. Raises SettingsError."""
        tls = tls_contexts.server_tls(
            self._settings.tls.certificate_file, self._settings.tls.key_file
        )
        server = HttpServer(self._endpoint.respond)
        host, port = await server.start(listen, tls)
        self._listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._server = server
        return self._listen

    async def close(self) -> None:
        """Close the metrics endpoint."""
        server, self._server = self._server, None
        if server:
            await server.close()

    async def run(self) -> None:
        """Ship until cancelled."""
        await self._shipper.run()

    def read(self, moment: CaptureMoment | None, seconds: float) -> None:
        """Read a sample of the node at an offset. Blocking."""
        deviation_ns = seconds_to_ns(self._path.clock_deviation_seconds(seconds))
        self._clock.deviation_ns = self._replayed.clock.deviation_ns = deviation_ns
        if moment is not None:
            self._replayed.advance(moment)
            self._held_frames.extend(self._replayed.read_sources())

    async def publish(self, seconds: float) -> None:
        """Publish the frames that were read, unless the collector cannot be reached."""
        if self._path.is_off(seconds):
            await self.close()
        elif self._listen and self._server is None:
            await self.serve(self._listen)
        # Frames are kept while the node is unreachable, and sent afterwards, as an agent does with its spool.
        if not self._path.is_unreachable(seconds):
            while self._held_frames:
                self._shipper.publish(self._held_frames.popleft())

    async def send(self) -> None:
        """Send the published frames, and wait until the collector has decided about them."""
        self._shipper.flush()
        await self._shipper.wait_until_sent()


@dataclass
class ShippedCluster:
    """A simulated cluster that sends its frames to a collector.

    `directory` gets the ground truth and the state of each node. Raises OSError if it has content,
    SettingsError and CollectorLinkError for settings that cannot work.
    """

    scenario: ClusterScenario
    directory: Path
    settings: AgentSettings
    is_real_time: bool
    listen: str = ""
    """Address of the first metrics endpoint; the others have the ports that follow."""
    switch_listen: str = ""
    """Address of the first switch; the others have the ports that follow."""
    clock: Clock = field(default_factory=LiveClock)
    """Clocks of this host, from which those of the nodes are derived."""
    nodes: list[ShippedNode] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the nodes."""
        self._check_settings()
        make_output_directory(self.directory)
        settings = sampled_settings(self.settings, self.scenario)
        settings = self._with_tokens(settings)
        now = self.clock.now()
        # At maximum speed the simulation begins as long ago as it lasts, so that no sample is in the future.
        past_ns = 0 if self.is_real_time else self.scenario.seconds * SECOND_NS
        self._started_ns = now.boot_ns - past_ns
        """Start of the simulation by the boot clock of this host."""
        self._cluster = SampledCluster(self.scenario, now.wall_ns - past_ns)
        self._switches = ClusterSwitches(self._cluster.model) if self.switch_listen else None
        for about, path in zip(self._cluster.metadata(), self._cluster.paths, strict=True):
            clock = NodeClock(self.clock, about.started_boot_ns - self._started_ns)
            directory = self.directory / about.node
            replayed = ReplayedNode(about, settings, min_period_seconds=self.scenario.step_seconds)
            self.nodes.append(ShippedNode(replayed, path, settings, clock, directory))

    def _check_settings(self) -> None:
        """Check the settings before anything is written. Raises SettingsError and CollectorLinkError."""
        nodes = self.scenario.topology.nodes
        for listen, count in ((self.listen, nodes), (self.switch_listen, 1)):
            if listen:
                host, first = listen_address.split_address(listen)
                # Port 0 remains 0: the system selects a port for each.
                listen_address.split_address(f"[{host}]:{first and first + count - 1}")
        self.settings.read_metrics_token()
        names = [self.scenario.topology.node_name(number) for number in range(nodes)]
        for link in collector_link.collector_links(link_of(self.settings.collector, names[0])):
            collector_client.CollectorClient(link)
        for name in names:
            collector_link.read_token(link_of(self.settings.collector, name))

    def _with_tokens(self, settings: AgentSettings) -> AgentSettings:
        """Without a token or certificate, return settings with tokens, and write them for the collector."""
        link = settings.collector
        if link.token or link.token_file or link.certificate_file:
            return settings
        secret = secrets.token_urlsafe(24)
        topology = self.scenario.topology
        names = map(topology.node_name, range(topology.nodes))
        # The collector gets digests only; the nodes derive their tokens from one secret that is not written.
        lines = [f'"{name}" = "{digest_token(f"{secret}-{name}")}"\n' for name in names]
        text = "[nodes]\n" + "".join(lines)
        (self.directory / "tokens.toml").write_text(text, encoding="utf-8")
        link = msgspec.structs.replace(link, token=f"{secret}-{NODE_PLACEHOLDER}")
        return msgspec.structs.replace(settings, collector=link)

    @property
    def outcome(self) -> ShippingOutcome:
        """Result so far."""
        counted = [node.stats for node in self.nodes]
        return ShippingOutcome(
            sum(stats.shipped_frames for stats in counted),
            sum(sum(stats.dropped_frames.values()) for stats in counted),
            sum(stats.spool_envelopes for stats in counted),
        )

    async def run(self) -> None:
        """Simulate and ship until the end, or until cancelled. Raises SettingsError for an address."""
        allow_many_files()
        try:
            async with self._serve(), self._serve_switches(), asyncio.TaskGroup() as group:
                shipping = [group.create_task(node.run()) for node in self.nodes]
                await self._ship_samples()
                for task in shipping:
                    task.cancel()
        finally:
            # Also after a cancellation: the truth is about what was simulated until then.
            self._cluster.write_truth(self.directory)

    @contextlib.asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        """Serve the metrics endpoints, and write their addresses for Prometheus."""
        try:
            if self.listen:
                host, first = listen_address.split_address(self.listen)
                targets = []
                for number, node in enumerate(self.nodes):
                    address = await node.serve(f"[{host}]:{first and first + number}")
                    targets.append({"targets": [address], "labels": {"node": node.node}})
                text = json.dumps(targets, indent=1) + "\n"
                durable_files.write_atomically(self.directory / "targets.json", text.encode())
            yield
        finally:
            for node in self.nodes:
                await node.close()

    @contextlib.asynccontextmanager
    async def _serve_switches(self) -> AsyncIterator[None]:
        """Serve the switches by gNMI, and write the switches file for the collector."""
        if self._switches is None:
            yield
            return
        from railscope_simulator import gnmi_server  # noqa: PLC0415 - an extra: only switches need gRPC

        host, first = listen_address.split_address(self.switch_listen)
        async with gnmi_server.serve_switches(self._switches.answers(), host, first) as text:
            durable_files.write_atomically(self.directory / "switches.toml", text.encode())
            yield

    async def _ship_samples(self) -> None:
        unsent, warned_ns = 0, -_WARNING_NS
        max_unsent = min(_MAX_SAMPLES_IN_MEMORY // len(self.nodes), _MAX_SAMPLES_PER_FLUSH)
        for offset_ns in self._cluster.offsets():
            if self.is_real_time:
                await self.clock.sleep_until(self._started_ns + offset_ns)
            # In a thread: the collector compares the clocks, and a response must not wait for all nodes.
            await service.run_in_thread(self._read, offset_ns)
            for node in self.nodes:
                await node.publish(offset_ns / SECOND_NS)
            now_ns = self.clock.now().boot_ns
            late_ns = now_ns - self._started_ns - offset_ns
            is_late = late_ns > self.scenario.step_seconds * SECOND_NS
            if self.is_real_time and is_late and now_ns - warned_ns > _WARNING_NS:
                warned_ns = now_ns
                log.warning(
                    "simulation_delayed",
                    seconds=round(late_ns / SECOND_NS, 1),
                    fix="fewer nodes, a larger step_seconds, or --speed maximum",
                )
            unsent += 1
            if not self.is_real_time and unsent >= max_unsent:
                await _send(self.nodes)
                unsent = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINAL_SECONDS):
                await _send(self.nodes)

    def _read(self, offset_ns: int) -> None:
        span = self._cluster.advance(offset_ns)
        if self._switches and span.length_ns:
            self._switches.count(span)
        for node, moment in zip(self.nodes, self._cluster.changes(), strict=True):
            node.read(moment, offset_ns / SECOND_NS)


async def _send(nodes: Iterable[ShippedNode]) -> None:
    places = asyncio.Semaphore(_MAX_SENDING)

    async def send(node: ShippedNode) -> None:
        async with places:
            await node.send()

    await asyncio.gather(*map(send, nodes))
