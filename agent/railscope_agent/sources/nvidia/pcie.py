"""Detection of degraded PCIe paths between GPUs and the processor, and the expected link of each GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from railscope.catalog import declare, entities, gpu_health as c, pcie
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope_agent.config import PcieSettings
from railscope_agent.gpus.inventory import GpuDevice, GpuInventory
from railscope_agent.host import Host, NvmlError
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source as base,
)
from railscope_agent.topology import pci, pcie_links

_GUESTS = {"passthrough", "vgpu_guest"}
_GENERATIONS = {2_500: 1, 5_000: 2, 8_000: 3, 16_000: 4, 32_000: 5, 64_000: 6, 128_000: 7}
"""PCIe generation by MT/s of a lane."""


def generation(megatransfers: Reading) -> Reading:
    """PCIe generation of a speed."""
    if isinstance(megatransfers, Absent):
        return megatransfers
    return _GENERATIONS.get(megatransfers, Absent.UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class _LinkQuantity:
    """Lanes or generation: its metric, the end of NVML's calls, and the member of a link's state."""

    metric: declare.Metric
    call: str
    member: str
    convert: Callable[[Reading], Reading]


_QUANTITIES = (
    _LinkQuantity(c.GPU_PCIE_EXPECTED_WIDTH, "PcieLinkWidth", "width", lambda lanes: lanes),
    _LinkQuantity(c.GPU_PCIE_EXPECTED_GENERATION, "PcieLinkGeneration", "speed", generation),
)


@dataclass(slots=True)
class ExpectedLinks:
    """Columns of the expected links of a set of GPUs.

    The expected link is a number of lanes and a generation, or the reason why they are unknown. NVML's
    limits are those of the GPU and of a system that it sees only in part: for a slot wired for eight
    lanes, and for an emulated slot in a virtual machine, it reports the GPU's sixteen. So on bare metal
    the slot decides: the lesser of the limits of both ends of the link (sysfs, max_link_width and
    max_link_speed), unless the settings contain a value for the GPU. In a guest, and if sysfs and NVML
    differ, there is no expected value.
    """

    settings: PcieSettings = field(default_factory=PcieSettings)
    _gpus: list[tuple[int, GpuDevice, pcie_links.PcieLink | None]] = field(default_factory=list)
    _is_guest: bool = False

    def add_columns(
        self,
        host: Host,
        columns: probe_result.ColumnBuilder,
        gpus: Mapping[str, GpuDevice],
        links: Mapping[str, pcie_links.PcieLink],
    ) -> None:
        """Add two columns for each GPU; `links` maps an address to the link directly above it."""
        self._is_guest = bool(fact_readers.read_text(host, "/sys/hypervisor/type"))
        self._gpus = []
        for address, gpu in gpus.items():
            first = columns.add_each((quantity.metric for quantity in _QUANTITIES), gpu.entity)
            self._gpus.append((first, gpu, links.get(address)))

    def read(
        self,
        host: Host,
        states: Mapping[str, pcie_links.PcieLinkState],
        into: row_builder.RowBuilder,
    ) -> None:
        """Fill the columns."""
        for first, gpu, link in self._gpus:
            addresses = (link.upper, link.lower) if link else ()
            ends = [states.get(end, pcie_links.UNKNOWN_LINK_STATE) for end in addresses]
            expected = (self._expected(host, gpu, ends, quantity) for quantity in _QUANTITIES)
            into.put_readings(first, expected)

    def _expected(
        self,
        host: Host,
        gpu: GpuDevice,
        ends: list[pcie_links.PcieLinkState],
        quantity: _LinkQuantity,
    ) -> Reading:
        configured = self._configured(gpu, quantity.metric)
        if configured is not None:
            return configured
        if self._is_guest or gpu.entity.facts.get("virtualization") in _GUESTS:
            return Absent.UNSUPPORTED
        now = _read_number(host, f"nvmlDeviceGetCurr{quantity.call}", gpu.index)
        if isinstance(now, Absent):
            return now
        limits = [quantity.convert(getattr(end, f"{quantity.member}_limit")) for end in ends]
        limits_read = [limit for limit in limits if not isinstance(limit, Absent)]
        if not ends or len(limits_read) < len(limits):
            # The slot is not visible: only a link at NVML's limit certainly has its full width and speed.
            limit = _read_number(host, f"nvmlDeviceGetMax{quantity.call}", gpu.index)
            is_whole = now == limit or isinstance(limit, Absent)
            return limit if is_whole else Absent.UNSUPPORTED
        # Sysfs and NVML see different links, as behind an emulated bridge: neither is believed.
        if quantity.convert(getattr(ends[-1], quantity.member)) != now:
            return Absent.UNSUPPORTED
        return min(limits_read)

    def _configured(self, gpu: GpuDevice, metric: declare.Metric) -> int | None:
        """The setting for a GPU, by its PCI address or else by its model."""
        is_width = metric is c.GPU_PCIE_EXPECTED_WIDTH
        expected = self.settings.expected_lanes if is_width else self.settings.expected_generation
        names = (gpu.pci_address, gpu.entity.facts.get("model", ""))
        return next((expected[name] for name in names if name in expected), None)


def _read_number(host: Host, function: str, gpu: int) -> Reading:
    try:
        return int(host.call("nvml", function, gpu))
    except (NvmlError, OSError) as error:
        return answer_readings.reason_for(error)


_COMPUTING = range(3)
"""P0 to P2: consumer GPUs compute in P2."""
_LAST_STATE = 15


class GpuPathSource(base.SourceWithFiles):
    """State of every GPU's PCIe path, and its expected link.

    While there is no work, the driver lowers the speed of a GPU's link, never its width (nvml.h,
    nvmlDeviceGetCurrPcieLinkGeneration). So a slow link is a fault only on a busy GPU: one that ran a
    kernel in the driver's last sample, in a performance state for computing, at two consecutive reads. If
    the driver does not report the load, as with MIG, a slow link gets no verdict.
    """

    name = "gpu_pcie"
    lane = base.NVML
    period_seconds = 10.0

    def __init__(
        self, gpus: GpuInventory | None = None, settings: PcieSettings | None = None
    ) -> None:
        self._expected = ExpectedLinks(settings or PcieSettings())
        self._generation = -1
        self._gpus = gpus or GpuInventory()
        self._paths: list[tuple[pcie_links.PcieLink, ...]] = []
        self._ends: tuple[str, ...] = ()
        self._worked: set[str] = set()
        """GPUs that were busy and had a slow link at the last read."""

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the GPUs on the bus, whatever their driver, and the links above them."""
        devices = pci.read_pci_devices(host)
        roles = {address: device.role for address, device in devices.items()}
        columns, self._paths = probe_result.ColumnBuilder(), []
        for gpu in pci.select_gpus(devices.values()):
            path = pcie_links.list_path_links(gpu.place.chain, roles)
            if path:
                columns.add(pcie.PCIE_PATH_STATE, Entity(entities.PCIE, (gpu.address,)))
                self._paths.append(path)
        self._generation = self._gpus.generation
        gpus = {gpu.pci_address: gpu for gpu in self._gpus.gpus.values()}
        lowest = {path[-1].lower: path[-1] for path in self._paths}
        self._expected.add_columns(host, columns, gpus, lowest)
        ends = [end for path in self._paths for link in path for end in (link.upper, link.lower)]
        # Each end once: several GPUs share the ports above their switch.
        self._ends = tuple(filter(None, dict.fromkeys(ends)))
        self._keep(host, pcie_links.link_files(self._ends))
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Evaluate each path; the load is read from the driver only for a slow link."""
        if not self._files:
            return
        states = pcie_links.read_links(self._files[0], self._ends)
        # A new set: a GPU that is idle at this read is left out, so that two reads in a row are required.
        worked, self._worked = self._worked, set()
        for column, path in enumerate(self._paths):
            sleeps = partial(self._sleeps, host, worked)
            into.put(column, pcie_links.path_state(path, states, sleeps))
        self._expected.read(host, states, into)
        into.needs_probe = self._gpus.generation != self._generation

    def _sleeps(self, host: Host, worked: set[str], address: str) -> bool | Absent:
        """True if a slow link can be explained by an idle GPU; no other device may have a slow link."""
        if pci.read_role(host, address) != pci.GPU:
            return False
        gpus = self._gpus.gpus.values()
        index = next((gpu.index for gpu in gpus if gpu.pci_address == address), None)
        if index is None:
            return Absent.UNSUPPORTED
        try:
            state = host.call("nvml", "nvmlDeviceGetPerformanceState", index)
            busy = host.call("nvml", "nvmlDeviceGetUtilizationRates", index)["gpu"]
        except (NvmlError, OSError) as error:
            return answer_readings.reason_for(error)
        if not 0 <= state <= _LAST_STATE:
            return Absent.UNSUPPORTED
        if not busy or state not in _COMPUTING:
            return True
        self._worked.add(address)
        # A GPU that has just begun to work may not have raised the speed of its link yet.
        return False if address in worked else Absent.NOT_DUE
