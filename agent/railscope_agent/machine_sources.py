"""Sources that read the node, in the order of their first reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from railscope.settings import MAX_QUOTED, SettingsError
from railscope_agent.config import AgentSettings
from railscope_agent.gpus import inventory, process_lists
from railscope_agent.health.gpu_facts import SOURCES
from railscope_agent.sampling.source import Source
from railscope_agent.sources import (
    gpudirect,
    hwmon,
    nfs,
    nic_burst,
    nic_settings,
    nvme,
    rapl,
    rdma,
    textfile,
)
from railscope_agent.sources.agent_metrics import SelfMetricsSource
from railscope_agent.sources.bonds import BondSource
from railscope_agent.sources.ceph import CephSource
from railscope_agent.sources.collective_sources import CollectiveSources
from railscope_agent.sources.edac import EdacSource
from railscope_agent.sources.gpu_verdicts import GpuVerdictSource
from railscope_agent.sources.link_errors import LinkErrorSource
from railscope_agent.sources.lustre import LustreSource
from railscope_agent.sources.network_links import LinkSource
from railscope_agent.sources.nic_counters import NicSource
from railscope_agent.sources.nic_ports import NeighbourSource, OpticsSource
from railscope_agent.sources.node import HostSource
from railscope_agent.sources.nvidia import (
    activity,
    bus_state,
    events,
    gpu_bursts,
    gpu_devices,
    gpu_sharing,
    mig_devices,
    nvlink,
    pcie,
    processes,
)
from railscope_agent.sources.pcie import PcieSource
from railscope_agent.sources.protocol_counters import ProtocolSource
from railscope_agent.sources.tenancy import ClaimSource
from railscope_agent.streams.kernel_log import KernelLogStream
from railscope_agent.streams.xid_matcher import XidMatcher
from railscope_agent.topology import network, rail_rules


def machine_sources(
    settings: AgentSettings, xids: XidMatcher | None = None, own: Sequence[Source] = ()
) -> list[Source]:
    """Return all sources that read the node, without the disabled ones, then the agent's `own`. Raises SettingsError."""
    wiring = network.NetworkScanner(rail_rules.parse_rail_rules(settings.topology))
    matcher = xids or XidMatcher()
    gpus, lists = inventory.GpuInventory(wiring), process_lists.ProcessLists()
    claims = ClaimSource(settings.tenancy, settings.node, gpus, lists)
    collectives = CollectiveSources(settings.collectives, gpus, lists, claims)
    bursts = settings.bursts
    all_sources: list[Source] = [
        gpu_devices.GpuSource.load(gpus),
        activity.GpuActivitySource(gpus),
        events.NvmlEventSource(matcher, gpus),
        gpu_sharing.GpuSharingSource(gpus, lists),
        processes.GpuProcessSource(gpus),
        mig_devices.MigSource(gpus),
        gpu_devices.GpuSource.health(gpus),
        bus_state.GpuDeviceSource(gpus, matcher),
        pcie.GpuPathSource(gpus, settings.pcie),
        nvlink.NvLinkSource.traffic(gpus),
        gpu_devices.GpuSource.settings(gpus),
        nvlink.NvLinkSource.signal(gpus),
        rdma.RdmaSource(wiring),
        NicSource(wiring),
        LinkSource(wiring),
        LinkErrorSource(wiring),
        nic_settings.NicSettingsSource(wiring),
        OpticsSource(wiring),
        NeighbourSource(wiring),
        PcieSource(),
        HostSource(),
        ProtocolSource(),
        BondSource(),
        gpudirect.GpuDirectSource(),
        nfs.NfsSource(),
        LustreSource(),
        CephSource(),
        nvme.NvmeSource(),
        rapl.RaplSource(),
        hwmon.HwmonSource(),
        EdacSource(),
        KernelLogStream(matcher),
        claims,
        *collectives.on_demand(),
        nic_burst.NicBurstSource(bursts.window_seconds, bursts.interfaces.split(), wiring),
        gpu_bursts.GpuBurstSource(bursts.window_seconds, gpus),
        textfile.TextfileSource(settings.textfile),
    ]
    _assign_periods([*all_sources, *own], settings.period_seconds)
    off = set(settings.metrics.disabled_sources.split())
    _check_disabled(off, all_sources)
    if not bursts.enabled:
        off |= {nic_burst.NicBurstSource.name, gpu_bursts.GpuBurstSource.name}
    if not settings.textfile.directory:
        off.add(textfile.TextfileSource.name)
    return [*(source for source in all_sources if source.name not in off), *own]


def _assign_periods(sources: Sequence[Source], periods: Mapping[str, float]) -> None:
    """Set the periods of the settings. Raises SettingsError for an unknown source, or a period below its minimum."""
    names = ({source.name for source in sources} | _OWN) - {nic_burst.NicBurstSource.name}
    if unknown := sorted(periods.keys() - names):
        message = (
            f"invalid period_seconds: {unknown[0][:MAX_QUOTED]!r}: expected one of"
            f" {', '.join(sorted(names))}"
        )
        raise SettingsError(message)
    for source in sources:
        seconds = periods.get(source.name, source.period_seconds)
        if source.name in periods and seconds < source.min_period_seconds:
            message = (
                f"invalid period_seconds.{source.name}: {seconds:g}: expected at least"
                f" {source.min_period_seconds:g}"
            )
            raise SettingsError(message)
        source.period_seconds = seconds


_OWN = {GpuVerdictSource.name, SelfMetricsSource.name}
"""Sources that read the results of the others."""
_NEEDED = frozenset(
    {ClaimSource.name, mig_devices.MigSource.name, events.NvmlEventSource.name, *SOURCES}
)
"""Without them a claimed GPU would count as free, a present one as missing, or a failed one as healthy."""


def _check_disabled(disabled: set[str], sources: Sequence[Source]) -> None:
    """Raise SettingsError if an unknown or needed source is disabled."""
    if needed := sorted(_NEEDED & disabled):
        message = (
            f"invalid metrics.disabled_sources: {needed[0]!r}: expected sources that neither metering nor"
            " the health of GPUs needs; fix: switch off its metrics by metrics.groups"
        )
        raise SettingsError(message)
    names = {source.name for source in sources} - _NEEDED
    if unknown := sorted(disabled - names):
        message = (
            f"invalid metrics.disabled_sources: {unknown[0][:MAX_QUOTED]!r}: expected one of"
            f" {', '.join(sorted(names))}"
        )
        raise SettingsError(message)
