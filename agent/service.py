"""Composition of the agent: host, sources, sampler, metrics endpoint, shipping."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.config import AgentSettings
from agent.endpoint.claims import ClaimsEndpoint
from agent.endpoint.http_server import HttpServer
from agent.endpoint.metrics import Page
from agent.health.reset_memory import ResetMemory
from agent.host import Clock, Host
from agent.machine_sources import machine_sources
from agent.sampling.budget import Keeper
from agent.sampling.call_time import CallTime
from agent.sampling.counter_memory import CounterMemory
from agent.sampling.meter import Meter
from agent.sampling.replay_meter import meter_of
from agent.sampling.sampler import Limits, Sampler
from agent.sampling.source import Source
from agent.sampling.stats import CustodyState, ShippingStats
from agent.shipping.collector_client import LinkError
from agent.shipping.numbering import Numbering
from agent.shipping.shipper import Shipper
from agent.sources.nic import Nic
from agent.sources.nvidia.processes import Processes
from agent.sources.rdma import Rdma
from agent.sources.self_metrics import SelfMetrics
from agent.sources.tenancy import Tenancy
from agent.sources.verdict import GpuVerdicts
from agent.streams.xid_book import XidBook
from railscope import __version__, listen
from railscope.frame import Event, Frame, Origin
from railscope.reading import Absent
from railscope.settings import SettingsError
from railscope.systemd import feed_watchdog, notify, state_directory
from railscope.text import printable

log = structlog.get_logger(__name__)

SECOND_LOOK_NS = 150_000_000
"""Longer than the 100 ms required between two samples of a GPU's counters (nvml.h, GPM)."""
RESETS = "gpu-resets.json"
WRAPS = "counter-wraps.json"
PAGE_ONLY = {Processes.name}
"""Sources that are not shipped: every job would add a schema that all collectors have to store."""
LOOK_AT_OTHERS = (Tenancy.name, GpuVerdicts.name, SelfMetrics.name)
"""Sources computed from the readings of the others, in the order in which they have to be read."""


def _is_loopback(host: str) -> bool:
    """True if an address is reachable from this node only."""
    return host == "::1" or host.startswith("127.")


def travels(frame: Frame) -> bool:
    """True if a frame is shipped to the collector, not only shown on the metrics endpoint."""
    return frame.schema.stream not in PAGE_ONLY


def node_name(settings: AgentSettings, host: Host) -> str:
    """Return the configured name, or else the host name."""
    if settings.node:
        return printable(settings.node)
    try:
        name = host.read("/proc/sys/kernel/hostname").decode(errors="surrogateescape").strip()
    except OSError:
        name = os.uname().nodename
    return printable(name)


@dataclass
class Agent:
    """One agent: `run` samples, serves and ships until cancelled."""

    settings: AgentSettings
    host: Host
    node: str = ""
    on_listening: Callable[[str, int], None] = lambda _host, _port: None
    stats: ShippingStats = field(default_factory=ShippingStats)
    own_events: list[Event] = field(default_factory=list)
    meter: Meter | None = None
    """Meter of this process; by default that of the host, as a replay costs this agent nothing."""
    call_time: CallTime = field(default_factory=CallTime)
    """Durations of calls and reads."""

    def __post_init__(self) -> None:
        """Build all components. Raises SettingsError for a setting that cannot work."""
        listen.split_address(self.settings.listen)
        self.node = self.node or node_name(self.settings, self.host)
        self.origin = Origin(self.node, secrets.token_hex(8), self.host.boot_id)
        meter = self.meter or meter_of(self.host)
        self._numbering = Numbering()
        sources = self._sources()
        self.keeper = Keeper(self.settings.budget, sources, meter, self._give_back)
        self.sampler = Sampler(
            self.host,
            self.origin,
            sources,
            self._publish,
            Limits(shortest_seconds=self.settings.deadline_seconds),
            self.keeper,
            call_time=self.call_time,
        )
        self.page = Page(
            self.node,
            self.sampler.statuses.values,
            lambda: self.host.clock.now().boot_ns,
            self.settings.read_page_token(),
            self.keeper.in_words,
        )
        self._tls = listen.server_tls(
            self.settings.tls.certificate_file, self.settings.tls.key_file
        )
        self._shipper: Shipper | None = None
        self._tenancy = next(s for s in self.sampler.sources if isinstance(s, Tenancy))
        self._claims = ClaimsEndpoint(
            self.settings.tenancy, self._state, self._tenancy, self.host.clock
        )

    def _sources(self) -> list[Source]:
        periods, xids = self.settings.periods, XidBook()
        self._verdicts = GpuVerdicts(lambda: self.sampler.statuses, xids, periods.gpu_verdict)
        return [
            *machine_sources(self.settings, xids),
            self._verdicts,
            SelfMetrics(
                lambda: self.sampler.statuses, self.stats, self._take_events, periods.agent,
                lambda: self.keeper, lambda: self.sampler.hung.by_device,
            ),
        ]  # fmt: skip

    def _give_back(self) -> None:
        self.page.forget()

    def _take_events(self) -> list[Event]:
        events = [*self.sampler.take_events(), *self.own_events]
        self.own_events.clear()
        return events

    def _publish(self, frame: Frame) -> None:
        if self._shipper and travels(frame):
            self._shipper.publish(self._numbering.numbered(frame))

    async def run(self) -> None:
        """Run until cancelled. Raises SettingsError for a setting that cannot work."""
        allow_many_files()
        # Objects of the startup are permanent: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        self._verdicts.remember(ResetMemory(self._state / RESETS, self.host.boot_id))
        for source in self.sampler.sources:
            if isinstance(source, Rdma | Nic):
                memory = self._state / f"{source.name}-{WRAPS}"
                source.remember(CounterMemory(memory, self.host.boot_id))
        self._tenancy.remember(self._state, self.node)
        self._shipper = self._make_shipper()
        server = HttpServer(self.page.respond)
        try:
            host, port = await server.start(self.settings.listen, self._tls)
            await self._claims.start()
            self.on_listening(host, port)
            log.info("agent_started", node=self.node, version=__version__, page=f"{host}:{port}",
                     collector=self.settings.collector.url or "none")  # fmt: skip
            if not self.page.token and not _is_loopback(host):
                log.warning("page_not_protected", listen=f"{host}:{port}",
                            advice="set page_token_file, or listen on 127.0.0.1")  # fmt: skip
            notify("READY=1")
            async with asyncio.TaskGroup() as group:
                group.create_task(self.sampler.run())
                group.create_task(feed_watchdog())
                group.create_task(self._claims.keep_trying())
                if self._shipper:
                    group.create_task(self._shipper.run())
                if custody := self._custody():
                    group.create_task(custody)
        finally:
            await self._claims.close()
            await server.close()

    def _custody(self) -> Coroutine[None, None, None] | None:
        """Return the witness of the collector's audit log; None without a collector."""
        if not self._shipper or not self.settings.custody.enabled:
            return None
        # Signature libraries take 8 MiB: load them only in an agent with a collector.
        from agent.witness.witness import Custody  # noqa: PLC0415 - as above
        from agent.witness.witness_client import CustodyClient  # noqa: PLC0415 - as above
        from agent.witness.witness_store import CustodyStore  # noqa: PLC0415 - as above

        self.stats.custody = CustodyState()
        return Custody(
            self.settings.custody, self.node, CustodyClient(self.settings.collector),
            CustodyStore(self._state / "custody"), self.host.clock, self.own_events,
            self.stats.custody,
        ).run()  # fmt: skip

    @property
    def _state(self) -> Path:
        """State directory of the agent."""
        return state_directory(self.settings.state_directory, AgentSettings().state_directory)

    def _make_shipper(self) -> Shipper | None:
        if not self.settings.collector.url:
            return None
        try:
            return Shipper(
                self.settings.collector, self.origin, self.host.clock, self._state, self.stats,
                self.own_events,
            )  # fmt: skip
        except OSError as error:
            message = f"state_directory {self._state} cannot be used: {error.strerror}"
            raise SettingsError(message) from error
        except LinkError as error:
            raise SettingsError(str(error)) from error

    async def once(self) -> None:
        """Read every source once, those that depend on the others last.

        Sources that compare two reads have no readings after the first: they are read again after a pause.
        """
        own = tuple(self.sampler.sources)
        machine = [source for source in own if source.name not in LOOK_AT_OTHERS]
        await self._read_once(machine)
        if again := [source for source in machine if self._waits(source)]:
            await self.clock.sleep_until(self.clock.now().boot_ns + SECOND_LOOK_NS)
            await self._read_once(again)
        for name in LOOK_AT_OTHERS:
            await self._read_once([source for source in own if source.name == name])
        self.sampler.sources = own

    async def _read_once(self, sources: Sequence[Source]) -> None:
        self.sampler.sources = sources
        await self.sampler.once()

    def _waits(self, source: Source) -> bool:
        """True if a source has readings that need a second read."""
        frame = self.sampler.statuses[source.name].frame
        return frame is not None and Absent.NOT_DUE.value in frame.reasons

    @property
    def clock(self) -> Clock:
        """Clock of the host."""
        return self.host.clock


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: every counter keeps a descriptor open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
