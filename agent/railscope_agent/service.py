"""Composition of the agent: host, sources, sampler, metrics endpoint, shipping."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import secrets
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from railscope import (
    __version__,
    http_server,
    listen_address,
    reading,
    service,
    systemd,
    tls_contexts,
    untrusted_text,
)
from railscope.frame import Event, Frame, FrameOrigin
from railscope.settings import SettingsError, state_directory
from railscope_agent.config import AgentSettings
from railscope_agent.endpoint import claims_endpoint
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint, configured_selection
from railscope_agent.health.node_health import NodeHealth
from railscope_agent.host import Clock, Host
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling import budget_keeper, sampler, shipping_stats, source_reader
from railscope_agent.sampling.meter import ProcessMeter
from railscope_agent.sampling.source import Source
from railscope_agent.shipping import EventNumbering, collector_link, shipping_thread
from railscope_agent.shipping.shipper import Shipper
from railscope_agent.sources import tenancy
from railscope_agent.sources.agent_metrics import SelfMetricsSource
from railscope_agent.sources.gpu_verdicts import GpuVerdictSource
from railscope_agent.streams.xid_matcher import XidMatcher

log = structlog.get_logger(__name__)

MAX_FRESH_FRAMES = 20_000
"""Frames of some minutes during which the event loop does not run."""
TAKE_SECONDS = 5.0
"""Interval at which the event loop processes frames: for verdicts."""
SECOND_READ_NS = 150_000_000
"""Longer than the 100 ms required between two samples of a GPU's counters (nvml.h, GPM)."""


def node_name(settings: AgentSettings, host: Host) -> str:
    """Return the configured name, or else the host name."""
    if settings.node:
        return untrusted_text.printable(settings.node)
    try:
        name = host.read("/proc/sys/kernel/hostname").decode(errors="surrogateescape").strip()
    except OSError:
        name = os.uname().nodename
    return untrusted_text.printable(name)


@dataclass
class Agent:
    """One agent: `run` samples, serves and ships until cancelled."""

    settings: AgentSettings
    host: Host
    node: str = ""
    on_listening: Callable[[str, int], None] = lambda _host, _port: None
    on_frame: Callable[[Frame], None] = lambda _frame: None
    """Called with each frame."""
    stats: shipping_stats.ShippingStats = field(default_factory=shipping_stats.ShippingStats)
    own_events: list[Event] = field(default_factory=list)
    meter: ProcessMeter = field(default_factory=ProcessMeter)
    reprobe_ns: int = source_reader.REPROBE_NS
    """Interval at which sources search for devices again."""
    version: str = __version__
    """Version in the log and in envelopes; that of a simulated node has a suffix, as its costs are not comparable."""

    def __post_init__(self) -> None:
        """Build all components. Raises SettingsError for a setting that cannot work."""
        listen_address.split_address(self.settings.listen)
        self.node = self.node or node_name(self.settings, self.host)
        self.origin = FrameOrigin(self.node, secrets.token_hex(8), self.host.boot_id)
        self._numbering = EventNumbering()
        self._fresh: deque[Frame] = deque(maxlen=MAX_FRESH_FRAMES)
        """Frames of the lanes until the event loop takes them."""
        self._publishing = threading.Lock()
        sources = self._sources()
        self.keeper = budget_keeper.BudgetKeeper(
            self.settings.budget, sources, self.meter, self._drop_caches
        )
        self.sampler = sampler.Sampler(
            self.host,
            self.origin,
            sources,
            self._publish,
            sampler.ReadLimits(shortest_seconds=self.settings.read_timeout_seconds),
            self.keeper,
            reprobe_ns=self.reprobe_ns,
        )
        self.endpoint = MetricsEndpoint(
            self.node,
            self.sampler.statuses.values,
            lambda: self.host.clock.now().boot_ns,
            self.settings.read_metrics_token(),
        )
        self.endpoint.expositions.configured = configured_selection(self.settings.metrics)
        self._tls = tls_contexts.server_tls(
            self.settings.tls.certificate_file, self.settings.tls.key_file
        )
        self.health = NodeHealth(lambda: self.sampler.statuses, self._take_frames)
        self._shipper: Shipper | None = None
        self._tenancy = next(s for s in self.sampler.sources if isinstance(s, tenancy.ClaimSource))
        self._claims = claims_endpoint.ClaimsEndpoint(
            self.settings.tenancy, self._state, self._tenancy, self.host.clock, self.health
        )

    def _sources(self) -> list[Source]:
        xids = XidMatcher()
        verdicts = GpuVerdictSource(lambda: self.sampler.statuses, xids)
        self_metrics = SelfMetricsSource(
            lambda: self.sampler.statuses,
            self.stats,
            self._take_events,
            lambda: self.keeper,
            lambda: self.sampler.hung.by_device,
        )
        settings = msgspec.structs.replace(self.settings, node=self.node)
        return machine_sources(settings, xids, [verdicts, self_metrics])

    def _drop_caches(self) -> None:
        self.endpoint.forget()

    def _take_events(self) -> list[Event]:
        events = self.sampler.take_events()
        while self.own_events:  # on the thread of a lane: the event loop adds others meanwhile
            events.append(self.own_events.pop(0))
        return events

    def _publish(self, frame: Frame) -> None:
        """Pass on a frame, on the thread of a lane."""
        self._fresh.append(frame)
        if self._shipper and self.is_shipped(frame):
            with self._publishing:
                # Numbered here and not at the source: only what is shipped has numbers, so a missing one is
                # a lost event.
                self._shipper.publish(self._numbering.number_events(frame))

    def _take_frames(self) -> None:
        """Process the frames that the lanes have published since the last call; on the event loop."""
        while self._fresh:
            frame = self._fresh.popleft()
            self.on_frame(frame)
            self.health.observe(frame)

    def is_shipped(self, frame: Frame) -> bool:
        """True if a frame is shipped to the collector, not only shown on the metrics endpoint."""
        return self.sampler.statuses[frame.schema.stream].source.is_shipped

    async def run(self) -> None:
        """Run until cancelled. Raises SettingsError for a setting that cannot work."""
        allow_many_files()
        # Objects of the startup are permanent: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        lock = self._lock_state()
        try:
            self._open_state_files()
            await self._serve()
        finally:
            # Last: another agent must not open these files before.
            if lock is not None:
                os.close(lock)

    def _lock_state(self) -> int | None:
        """Lock the state directory; return None if it cannot be used, and nothing needs it. Raises SettingsError."""
        try:
            return service.lock_state_directory(self._state, "agent")
        except service.StateDirectoryInUseError:
            raise
        except SettingsError:
            # Without a spool, an agent serves its metrics without the directory: claims and files report that they
            # cannot be stored, and are tried again.
            if self.settings.collector.all_urls:
                raise
            return None

    def _open_state_files(self) -> None:
        # Files of the state directory are used only by a running agent: `once` and `check` may run beside it.
        for source in self.sampler.sources:
            source.remember(self._state, self.host.boot_id)

    async def _serve(self) -> None:
        # Before the server listens: an invalid setting ends the agent before anything can connect.
        self._shipper = self._make_shipper()
        server = http_server.HttpServer(self.endpoint.respond)
        try:
            host, port = await server.start(self.settings.listen, self._tls)
            await self._claims.start()
            self.on_listening(host, port)
            log.info(
                "agent_started",
                node=self.node,
                version=self.version,
                address=f"{host}:{port}",
                collector=" ".join(self.settings.collector.all_urls) or "none",
            )
            if not self.endpoint.token and not listen_address.is_loopback(host):
                log.warning(
                    "metrics_endpoint_unprotected",
                    listen=f"{host}:{port}",
                    advice="set metrics_token_file, or listen on 127.0.0.1",
                )
            # After the sockets listen: units ordered behind the agent may connect at once.
            systemd.notify("READY=1")
            async with asyncio.TaskGroup() as group:
                group.create_task(self.sampler.run())
                group.create_task(systemd.feed_watchdog())
                group.create_task(self._claims.keep_trying())
                group.create_task(self._take_regularly())
                if self._shipper and self.clock.is_running:
                    group.create_task(shipping_thread.run_on_thread(self._shipper))
                elif self._shipper:
                    group.create_task(self._shipper.run())
                for witness in self._witnesses():
                    group.create_task(witness)
        finally:
            await self._claims.close()
            await server.close()

    async def _take_regularly(self) -> None:
        while True:
            await asyncio.sleep(TAKE_SECONDS)
            self._take_frames()

    def _witnesses(self) -> Iterator[Coroutine[None, None, None]]:
        """Yield the witness of each collector's audit log."""
        if not self._shipper or not self.settings.witness.enabled:
            return
        # Signature libraries take 8 MiB: load them only in an agent with a collector.
        from railscope_agent.witness import audit_log_client, audit_witness, witness_store  # noqa: PLC0415 - only with a collector

        links = collector_link.collector_links(self.settings.collector)
        self.stats.audit_logs = tuple(shipping_stats.AuditLogState() for _ in links)
        for link, state in zip(links, self.stats.audit_logs, strict=True):
            directory, is_only = self._state / "witness", len(links) == 1
            client = audit_log_client.AuditLogClient(link)
            yield audit_witness.AuditWitness(
                self.settings.witness,
                self.node,
                client,
                witness_store.WitnessStore.for_collector(directory, link.url, is_only=is_only),
                self.host.clock,
                self.own_events,
                state,
                client.url,
            ).run()

    @property
    def _state(self) -> Path:
        """State directory of the agent."""
        return state_directory(self.settings)

    def _make_shipper(self) -> Shipper | None:
        if not self.settings.collector.all_urls:
            return None
        try:
            return Shipper(
                self.settings.collector,
                self.origin,
                self.host.clock,
                self._state,
                self.stats,
                self.own_events,
                self.version,
            )
        except OSError as error:
            message = f"cannot use state_directory {self._state}: {error.strerror}; fix: check its permissions and the disk"
            raise SettingsError(message) from error
        except collector_link.CollectorLinkError as error:
            raise SettingsError(str(error)) from error

    async def once(self) -> None:
        """Read every source once, those that depend on the others last.

        Sources that compare two reads have no readings after the first: they are read again after a pause.
        """
        all_sources = tuple(self.sampler.sources)
        for stage in sorted({source.stage for source in all_sources}):
            of_stage = [source for source in all_sources if source.stage == stage]
            await self._read_once(of_stage)
            if not stage and (again := [source for source in of_stage if self._waits(source)]):
                await self.clock.sleep_until(self.clock.now().boot_ns + SECOND_READ_NS)
                await self._read_once(again)
        self.sampler.sources = all_sources

    async def _read_once(self, sources: Sequence[Source]) -> None:
        self.sampler.sources = sources
        await self.sampler.once()
        self._take_frames()

    def _waits(self, source: Source) -> bool:
        """True if a source has readings that need a second read."""
        frame = self.sampler.statuses[source.name].frame
        return frame is not None and reading.Absent.NOT_DUE.value in frame.reasons

    @property
    def clock(self) -> Clock:
        """Clock of the host."""
        return self.host.clock


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: every counter keeps a descriptor open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
