"""Sources that read the node, in the order of their first reads."""

from __future__ import annotations

from agent.config import AgentSettings
from agent.gpus.inventory import Gpus
from agent.gpus.process_lists import ProcessLists
from agent.sampling.source import Source
from agent.sources.bonds import Bonds
from agent.sources.ceph import Ceph
from agent.sources.edac import Edac
from agent.sources.gpudirect import GpuDirect
from agent.sources.host import HostSource
from agent.sources.hwmon import Hwmon
from agent.sources.link import Link
from agent.sources.link_errors import LinkErrors
from agent.sources.lustre import Lustre
from agent.sources.neighbour import Neighbour
from agent.sources.nfs import Nfs
from agent.sources.nic import Nic
from agent.sources.nic_burst import NicBurst
from agent.sources.nic_settings import NicSettings
from agent.sources.nvidia.activity import Activity
from agent.sources.nvidia.burst import GpuBurst
from agent.sources.nvidia.devices import GpuDevices
from agent.sources.nvidia.events import NvmlEvents
from agent.sources.nvidia.gpu import Gpu
from agent.sources.nvidia.mig import Mig
from agent.sources.nvidia.nvlink import NvLink
from agent.sources.nvidia.pcie import GpuPaths
from agent.sources.nvidia.processes import Processes
from agent.sources.nvidia.sharing import Sharing
from agent.sources.nvme import NvmeDrives
from agent.sources.optics import Optics
from agent.sources.pcie import Pcie
from agent.sources.protocols import Protocols
from agent.sources.rapl import Rapl
from agent.sources.rdma import Rdma
from agent.sources.tenancy import Tenancy
from agent.streams.kernel_log import KernelLogStream
from agent.streams.xid_book import XidBook
from agent.topology.cards import Cards
from agent.topology.network import Wiring
from agent.topology.rules import rules


def machine_sources(settings: AgentSettings, xids: XidBook | None = None) -> list[Source]:
    """Return all sources that read the node."""
    wiring, book = Wiring(rules(settings.topology)), xids or XidBook()
    gpus, lists, cards = Gpus(wiring), ProcessLists(), Cards(wiring)
    periods, bursts = settings.periods, settings.bursts
    burst_sampling: list[Source] = [
        NicBurst(bursts.window_seconds, bursts.interfaces.split(), wiring),
        GpuBurst(bursts.window_seconds, periods.gpu_burst, gpus),
    ]
    return [
        Gpu.load(periods.gpu, gpus),
        Activity(periods.gpu_activity, gpus),
        NvmlEvents(book, periods.gpu_event, gpus),
        Sharing(periods.gpu_process, gpus, lists),
        Processes(periods.gpu_process, gpus),
        Mig(periods.mig, gpus),
        Gpu.health(periods.gpu_health, gpus),
        GpuDevices(periods.gpu_device, gpus),
        GpuPaths(periods.pcie, gpus, settings.pcie),
        NvLink.traffic(periods.nvlink, gpus),
        Gpu.settings(periods.gpu_settings, gpus),
        NvLink.signal(periods.nvlink_signal, gpus),
        Rdma(periods.rdma, wiring),
        Nic(periods.nic, wiring),
        Link(periods.link, cards),
        LinkErrors(periods.link, cards),
        NicSettings(periods.nic_settings, wiring),
        Optics(periods.optics, cards),
        Neighbour(periods.neighbour, cards),
        Pcie(periods.pcie),
        HostSource(periods.host),
        Protocols(periods.protocols),
        Bonds(periods.protocols),
        GpuDirect(periods.gpudirect),
        Nfs(periods.storage),
        Lustre(periods.storage),
        Ceph(periods.storage),
        NvmeDrives(periods.drives),
        Rapl(periods.power),
        Hwmon(periods.sensors),
        Edac(periods.memory_errors),
        KernelLogStream(periods.kernel, book),
        Tenancy(settings.tenancy, settings.node, periods.tenancy, gpus, lists),
        *(burst_sampling if bursts.enabled else ()),
    ]
