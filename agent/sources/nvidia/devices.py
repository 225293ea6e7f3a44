"""GPUs on the PCI bus and who has them: a GPU given to a virtual machine is not a missing one."""

from __future__ import annotations

from agent.facts import linked
from agent.host import Host
from agent.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.sources.nvidia.inventory import Gpus
from agent.topology import gpu_addresses
from railscope.catalog import gpu_health as h
from railscope.catalog.entities import GPU_ADDRESS
from railscope.entity import Entity

DRIVER, VIRTUAL_MACHINE, UNBOUND, OTHER_DRIVER, MISSING = h.GPU_DEVICE_STATE.states
_PASSED_ON = {"vfio-pci", "xen-pciback", "pci-stub", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"}


class GpuDevices(HoldsNothing):
    """The state of every NVIDIA GPU the PCI bus has."""

    name = "gpu_device"
    family = "nvml"

    def __init__(self, period_seconds: float = 10.0, gpus: Gpus | None = None) -> None:
        self.period_seconds = period_seconds
        self._gpus = gpus or Gpus()
        self._addresses: list[str] = []

    def probe(self, host: Host) -> Inventory:
        """Find the GPUs on the bus. Those of the driver were found by the sources before."""
        columns = Columns()
        self._addresses = gpu_addresses(host)
        for address in self._addresses:
            columns.add(h.GPU_DEVICE_STATE, Entity(GPU_ADDRESS, (address,)))
        findings = [self._finding(host, address) for address in self._addresses]
        return Inventory(tuple(columns.columns), (), tuple(f for f in findings if f))

    def read(self, host: Host, into: Table) -> None:
        """Look at each GPU's driver; one that has come or gone makes the next read look anew."""
        for position, address in enumerate(self._addresses):
            into.put(position, self._state(host, address))
        into.grown = gpu_addresses(host) != self._addresses

    def _state(self, host: Host, address: str) -> int:
        driver = linked(host, f"/sys/bus/pci/devices/{address}/driver")
        if driver in _PASSED_ON:
            return VIRTUAL_MACHINE
        if not driver:
            return UNBOUND
        if driver != "nvidia":
            return OTHER_DRIVER
        known = {gpu.pci_address for gpu in self._gpus.found.values()}
        return DRIVER if address in known else MISSING

    def _finding(self, host: Host, address: str) -> Finding | None:
        state = self._state(host, address)
        what = f"GPU {address}"
        driver = linked(host, f"/sys/bus/pci/devices/{address}/driver")
        if state == VIRTUAL_MACHINE:
            detail = f"handed to a virtual machine ({driver}): its guest reads it"
            return Finding(what, Verdict.SUPPORTED, detail)
        if state == UNBOUND:
            return Finding(
                what, Verdict.ABSENT, "no driver has it", "bind it to nvidia or vfio-pci"
            )
        if state == OTHER_DRIVER:
            return Finding(what, Verdict.ABSENT, f"the driver {driver} has it")
        if state == MISSING:
            detail = "the nvidia driver has it, but NVML does not tell of it"
            return Finding(what, Verdict.BROKEN, detail, "look for Xids in the kernel log")
        return None
