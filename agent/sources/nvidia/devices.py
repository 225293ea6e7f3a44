"""GPUs on the PCI bus and their drivers: a GPU passed to a virtual machine is not a missing one."""

from __future__ import annotations

from agent.gpus.inventory import Gpus
from agent.host import Host
from agent.sampling.facts import linked
from agent.sampling.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.topology.names import gpu_uuid
from agent.topology.pci import gpu_addresses
from railscope.catalog import gpu_health as h
from railscope.catalog.entities import GPU, GPU_ADDRESS
from railscope.entity import Entity

DRIVER, VIRTUAL_MACHINE, UNBOUND, OTHER_DRIVER, MISSING = h.GPU_DEVICE_STATE.states
_PASSED_ON = {"vfio-pci", "xen-pciback", "pci-stub", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"}


class GpuDevices(HoldsNothing):
    """State of every NVIDIA GPU on the PCI bus.

    A missing GPU is described as an entity too, so that data from other sources can refer to it.
    """

    name = "gpu_device"
    family = "nvml"

    def __init__(self, period_seconds: float = 10.0, gpus: Gpus | None = None) -> None:
        self.period_seconds = period_seconds
        self._gpus = gpus or Gpus()
        self._addresses: list[str] = []
        self._missing: list[str] = []

    def probe(self, host: Host) -> Inventory:
        """Find the GPUs on the bus. The driver's GPUs were found by the sources that probe earlier."""
        columns = Columns()
        self._addresses = gpu_addresses(host)
        for address in self._addresses:
            columns.add(h.GPU_DEVICE_STATE, Entity(GPU_ADDRESS, (address,)))
        states = {address: self._state(host, address) for address in self._addresses}
        self._missing = [address for address, state in states.items() if state == MISSING]
        missing = {address: _missing(host, address) for address in self._missing}
        findings = [
            *(self._finding(host, address, state) for address, state in states.items()),
            *(_not_told(gpu) for gpu in missing.values()),
        ]
        return Inventory(
            tuple(columns.columns), tuple(missing.values()), tuple(f for f in findings if f)
        )

    def read(self, host: Host, into: Table) -> None:
        """Read the driver of each GPU; an added or removed GPU requests another probe."""
        missing = []
        for position, address in enumerate(self._addresses):
            state = self._state(host, address)
            into.put(position, state)
            if state == MISSING:
                missing.append(address)
        into.grown = gpu_addresses(host) != self._addresses or missing != self._missing

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

    def _finding(self, host: Host, address: str, state: int) -> Finding | None:
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
        return None


def _missing(host: Host, address: str) -> Entity:
    """A GPU that NVML does not report; its PCI address is its name if the driver has no UUID for it."""
    name = gpu_uuid(host, address) or address
    return Entity(GPU, (name,), {"pci_address": address})


def _not_told(gpu: Entity) -> Finding:
    detail = f"the nvidia driver has it as {gpu.key[0]}, but NVML does not tell of it"
    remedy = "see the health of this GPU below"
    return Finding(f"GPU {gpu.facts['pci_address']}", Verdict.BROKEN, detail, remedy)
