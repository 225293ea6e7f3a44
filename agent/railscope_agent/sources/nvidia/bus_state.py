"""State of every NVIDIA GPU on the PCI bus, with its driver: a GPU passed to a virtual machine is not a missing one."""

from __future__ import annotations

from railscope.catalog import entities, gpu_health as h
from railscope.frame import Entity
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.topology.pci import gpu_addresses, read_gpu_uuid

DRIVER, VIRTUAL_MACHINE, UNBOUND, OTHER_DRIVER, MISSING = h.GPU_DEVICE_STATE.states
_PASSED_ON = {"vfio-pci", "xen-pciback", "pci-stub", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"}


class GpuDeviceSource(source.SourceWithoutResources):
    """State of every NVIDIA GPU on the PCI bus.

    A missing GPU is described as an entity too, so that data from other sources can refer to it.
    """

    name = "gpu_device"
    family = "nvml"

    def __init__(self, gpus: GpuInventory | None = None) -> None:
        self._gpus = gpus or GpuInventory()
        self._addresses: list[str] = []
        self._missing: list[str] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the GPUs on the bus. The driver's GPUs were found by the sources that probe earlier."""
        columns = probe_result.ColumnBuilder()
        self._addresses = gpu_addresses(host)
        for address in self._addresses:
            columns.add(h.GPU_DEVICE_STATE, Entity(entities.GPU_ADDRESS, (address,)))
        states = {address: self._state(host, address) for address in self._addresses}
        self._missing = [address for address, state in states.items() if state == MISSING]
        missing = {address: _missing_gpu(host, address) for address in self._missing}
        findings = [_finding(host, address, state) for address, state in states.items()]
        findings += map(_unreported_gpu, missing.values())
        return columns.result(*filter(None, findings), columnless_entities=missing.values())

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the driver of each GPU; an added or removed GPU requests another probe."""
        states = {address: self._state(host, address) for address in self._addresses}
        into.put_readings(0, states.values())
        missing = [address for address, state in states.items() if state == MISSING]
        into.needs_probe = gpu_addresses(host) != self._addresses or missing != self._missing

    def _state(self, host: Host, address: str) -> int:
        driver = fact_readers.read_link_name(host, f"/sys/bus/pci/devices/{address}/driver")
        if driver in _PASSED_ON:
            return VIRTUAL_MACHINE
        if not driver:
            return UNBOUND
        if driver != "nvidia":
            return OTHER_DRIVER
        listed_addresses = {gpu.pci_address for gpu in self._gpus.gpus.values()}
        return DRIVER if address in listed_addresses else MISSING


def _finding(host: Host, address: str, state: int) -> probe_result.ProbeFinding | None:
    subject = f"GPU {address}"
    driver = fact_readers.read_link_name(host, f"/sys/bus/pci/devices/{address}/driver")
    if state == VIRTUAL_MACHINE:
        detail = f"passed through to a virtual machine ({driver}); readable in its guest"
        return probe_result.ProbeFinding.supported(subject, detail)
    if state == UNBOUND:
        remedy = "bind the GPU to nvidia or vfio-pci"
        return probe_result.ProbeFinding.absent(subject, "not bound to a driver", remedy)
    if state == OTHER_DRIVER:
        return probe_result.ProbeFinding.absent(subject, f"bound to the driver {driver}")
    return None


def _missing_gpu(host: Host, address: str) -> Entity:
    """A GPU that NVML does not report; its PCI address is its name if the driver has no UUID for it."""
    name = read_gpu_uuid(host, address) or address
    return Entity(entities.GPU, (name,), {"pci_address": address})


def _unreported_gpu(gpu: Entity) -> probe_result.ProbeFinding:
    detail = f"bound to the nvidia driver as {gpu.key[0]}, but not reported by NVML"
    remedy = "see the health of this GPU below"
    subject = f"GPU {gpu.facts['pci_address']}"
    return probe_result.ProbeFinding(subject, probe_result.ProbeVerdict.BROKEN, detail, remedy)
