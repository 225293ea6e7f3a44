"""Detection of degraded PCIe paths between GPUs and the processor.

While there is no work, the driver lowers the speed of a GPU's link, never its width (nvml.h,
nvmlDeviceGetCurrPcieLinkGeneration). So a slow link is a fault only on a busy GPU: one that ran a
kernel in the driver's last sample, in a performance state for computing, at two consecutive reads.
If the driver does not report the load, as with MIG, a slow link gets no verdict.
"""

from __future__ import annotations

from agent.config import PcieSettings
from agent.gpus.inventory import Gpus
from agent.host import Host, NvmlError
from agent.sampling.source import Columns, Inventory, Table, reason_for
from agent.sources.nvidia.expected_link import ExpectedLinks
from agent.topology import pci
from agent.topology.paths import LinkFiles, PciLink, links, path_state
from railscope.catalog.entities import PCIE
from railscope.catalog.pcie import PCIE_PATH_STATE
from railscope.entity import Entity
from railscope.reading import Absent

_COMPUTING = range(3)
"""P0 to P2: consumer GPUs compute in P2."""
_LAST_STATE = 15


class GpuPaths:
    """State of every GPU's PCIe path, and its expected link."""

    name = "gpu_pcie"
    family = "nvml"

    def __init__(
        self,
        period_seconds: float = 10.0,
        gpus: Gpus | None = None,
        settings: PcieSettings | None = None,
    ) -> None:
        self.period_seconds = period_seconds
        self._expected = ExpectedLinks(settings or PcieSettings())
        self._generation = -1
        self._gpus = gpus or Gpus()
        self._paths: list[tuple[PciLink, ...]] = []
        self._files: LinkFiles | None = None
        self._worked: set[str] = set()
        """GPUs that were busy and had a slow link at the last read."""

    def probe(self, host: Host) -> Inventory:
        """Find the GPUs on the bus, whatever their driver, and the links above them."""
        devices = pci.look(host)
        roles = {address: device.role for address, device in devices.items()}
        columns, self._paths = Columns(), []
        for gpu in pci.gpus_among(devices.values()):
            path = links(gpu.place.chain, roles)
            if path:
                columns.add(PCIE_PATH_STATE, Entity(PCIE, (gpu.address,)))
                self._paths.append(path)
        self._generation = self._gpus.generation
        found = {gpu.pci_address: gpu for gpu in self._gpus.found.values()}
        lowest = {path[-1].lower: path[-1] for path in self._paths}
        self._expected.place(host, columns, found, lowest)
        ends = {
            end: None for path in self._paths for link in path for end in (link.upper, link.lower)
        }
        self.close()
        self._files = LinkFiles(host, [end for end in ends if end])
        return Inventory(tuple(columns.columns))

    def read(self, host: Host, into: Table) -> None:
        """Evaluate each path; the load is read from the driver only for a slow link."""
        if self._files is None:
            return
        states = self._files.read()
        worked, self._worked = self._worked, set()
        for column, path in enumerate(self._paths):
            into.put(column, path_state(path, states, lambda at: self._sleeps(host, at, worked)))
        self._expected.read(host, states, into)
        into.grown = self._gpus.generation != self._generation

    def _sleeps(self, host: Host, address: str, worked: set[str]) -> bool | Absent:
        """True if a slow link can be explained by an idle GPU; no other device may have a slow link."""
        if pci.role(host, address) != pci.GPU:
            return False
        gpus = self._gpus.found.values()
        index = next((gpu.index for gpu in gpus if gpu.pci_address == address), None)
        if index is None:
            return Absent.UNSUPPORTED
        try:
            state = host.call("nvml", "nvmlDeviceGetPerformanceState", index)
            busy = host.call("nvml", "nvmlDeviceGetUtilizationRates", index)["gpu"]
        except (NvmlError, OSError) as error:
            return reason_for(error)
        if not 0 <= state <= _LAST_STATE:
            return Absent.UNSUPPORTED
        if not busy or state not in _COMPUTING:
            return True
        self._worked.add(address)
        return False if address in worked else Absent.NOT_DUE

    def close(self) -> None:
        """Close the open files."""
        if self._files:
            self._files.close()
        self._files = None
