"""Expected PCIe link of a GPU: lanes and generation, or the reason why they are unknown.

NVML's limits are those of the GPU and of a system that it sees only in part: for a slot wired for
eight lanes, and for an emulated slot in a virtual machine, it reports the GPU's sixteen. So on bare
metal the slot decides: the lesser of the limits of both ends of the link (sysfs, max_link_width and
max_link_speed), unless the settings contain a value for the GPU. In a guest, and if sysfs and NVML
differ, there is no expected value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent.config import PcieSettings
from agent.gpus.inventory import GpuDevice
from agent.host import Host, NvmlError
from agent.sampling.facts import text
from agent.sampling.source import Columns, Table, reason_for
from agent.topology.paths import UNTOLD, LinkState, PciLink
from railscope.catalog import gpu_pcie as c
from railscope.catalog.declare import Metric
from railscope.reading import Absent, Reading

_GUESTS = {"passthrough", "vgpu_guest"}
_GENERATIONS = {2_500: 1, 5_000: 2, 8_000: 3, 16_000: 4, 32_000: 5, 64_000: 6, 128_000: 7}
"""PCIe generation by MT/s of a lane."""


def generation(megatransfers: Reading) -> Reading:
    """PCIe generation of a speed."""
    if isinstance(megatransfers, Absent):
        return megatransfers
    return _GENERATIONS.get(megatransfers, Absent.UNSUPPORTED)


def _lanes(lanes: Reading) -> Reading:
    return lanes


@dataclass(frozen=True, slots=True)
class _Quantity:
    """Lanes or generation: its metric, NVML's two calls, and the members of a link's state."""

    metric: Metric
    now: str
    limit: str
    member: str
    convert: Callable[[Reading], Reading]


_QUANTITIES = (
    _Quantity(
        c.GPU_PCIE_EXPECTED_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetMaxPcieLinkWidth", "width", _lanes,
    ),
    _Quantity(
        c.GPU_PCIE_EXPECTED_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkGeneration", "speed", generation,
    ),
)  # fmt: skip


@dataclass(slots=True)
class ExpectedLinks:
    """Columns of the expected links of a set of GPUs."""

    settings: PcieSettings = field(default_factory=PcieSettings)
    _gpus: list[tuple[int, GpuDevice, PciLink | None]] = field(default_factory=list)
    _is_guest: bool = False

    def place(
        self,
        host: Host,
        columns: Columns,
        gpus: Mapping[str, GpuDevice],
        links: Mapping[str, PciLink],
    ) -> None:
        """Add two columns for each GPU; `links` maps an address to the link directly above it."""
        self._is_guest = bool(text(host, "/sys/hypervisor/type"))
        self._gpus = []
        for address, gpu in gpus.items():
            self._gpus.append((len(columns.columns), gpu, links.get(address)))
            for quantity in _QUANTITIES:
                columns.add(quantity.metric, gpu.entity)

    def read(self, host: Host, states: Mapping[str, LinkState], into: Table) -> None:
        """Fill the columns."""
        for first, gpu, link in self._gpus:
            ends = [states.get(end, UNTOLD) for end in (link.upper, link.lower)] if link else []
            for column, quantity in enumerate(_QUANTITIES, first):
                into.put(column, self._expected(host, gpu, ends, quantity))

    def _expected(
        self, host: Host, gpu: GpuDevice, ends: list[LinkState], quantity: _Quantity
    ) -> Reading:
        configured = self._configured(gpu, quantity.metric)
        if configured is not None:
            return configured
        if self._is_guest or gpu.entity.facts.get("virtualization") in _GUESTS:
            return Absent.UNSUPPORTED
        now = _asked(host, quantity.now, gpu.index)
        if isinstance(now, Absent):
            return now
        limits = [quantity.convert(getattr(end, f"{quantity.member}_limit")) for end in ends]
        known = [limit for limit in limits if not isinstance(limit, Absent)]
        if not ends or len(known) < len(limits):
            # The slot is not visible: only a link at NVML's limit is certain to lack nothing.
            limit = _asked(host, quantity.limit, gpu.index)
            is_whole = now == limit or isinstance(limit, Absent)
            return limit if is_whole else Absent.UNSUPPORTED
        if quantity.convert(getattr(ends[-1], quantity.member)) != now:
            return Absent.UNSUPPORTED
        return min(known)

    def _configured(self, gpu: GpuDevice, metric: Metric) -> int | None:
        """The setting for a GPU, by its PCI address or else by its model."""
        is_width = metric is c.GPU_PCIE_EXPECTED_WIDTH
        wanted = self.settings.expected_lanes if is_width else self.settings.expected_generation
        names = (gpu.pci_address, gpu.entity.facts.get("model", ""))
        return next((wanted[name] for name in names if name in wanted), None)


def _asked(host: Host, function: str, gpu: int) -> Reading:
    try:
        return int(host.call("nvml", function, gpu))
    except (NvmlError, OSError) as error:
        return reason_for(error)
