"""State of every NVIDIA GPU on the PCI bus, with its driver: a GPU passed to a virtual machine is not a missing one."""

from __future__ import annotations

from collections.abc import Mapping

from railscope.catalog import entities, gpu_health as h
from railscope.frame import Entity
from railscope_agent.gpus.inventory import NVIDIA_DRIVER, GpuInventory
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.streams.xid_matcher import XidMatcher
from railscope_agent.topology.pci import PASSTHROUGH_DRIVERS, gpu_addresses, read_gpu_uuid

DRIVER, VIRTUAL_MACHINE, UNBOUND, OTHER_DRIVER, MISSING = h.GPU_DEVICE_STATE.states
_SUBJECT = "GPU"
_SEE_HEALTH = "see the health of this GPU below"


class GpuDeviceSource(source.Source):
    """State of every NVIDIA GPU on the PCI bus.

    A GPU of NVIDIA's driver that NVML does not list is described as an entity too, so that data from other
    sources can refer to it: it is missing, or NVML itself has failed.
    """

    name = "gpu_device"
    lane = source.NVML
    period_seconds = 10.0

    def __init__(self, gpus: GpuInventory | None = None, xids: XidMatcher | None = None) -> None:
        self._gpus, self._xids = gpus or GpuInventory(), xids or XidMatcher()
        self._addresses: list[str] = []
        self._unlisted: list[str] = []
        self._failed: list[str] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the GPUs on the bus. The driver's GPUs were found by the sources that probe earlier."""
        columns = probe_result.ColumnBuilder()
        self._addresses = gpu_addresses(host)
        for address in self._addresses:
            columns.add(h.GPU_DEVICE_STATE, Entity(entities.GPU_ADDRESS, (address,)))
        states = self._states(host)
        self._unlisted = self._find_unlisted(states)
        unlisted = {address: _unlisted_gpu(host, address) for address in self._unlisted}
        self._failed = self._find_failed()
        has_peers = not {DRIVER, MISSING}.isdisjoint(states.values())
        findings = [
            _missing_gpu(unlisted[address])
            if state == MISSING
            else _failed_gpu(address)
            if state == UNBOUND and address in self._failed
            else _finding(host, address, state, has_peers=has_peers)
            for address, state in states.items()
        ]
        return columns.result(*filter(None, findings), columnless_entities=unlisted.values())

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the driver of each GPU; an added or removed GPU requests another probe."""
        states = self._states(host)
        into.put_readings(0, states.values())
        self._xids.gpus_to_reset = self._gpus.to_reset
        is_other = self._find_unlisted(states) != self._unlisted
        is_other |= self._find_failed() != self._failed
        into.needs_probe = is_other or gpu_addresses(host) != self._addresses

    def _states(self, host: Host) -> dict[str, int]:
        return {address: self._state(host, address) for address in self._addresses}

    def _find_unlisted(self, states: Mapping[str, int]) -> list[str]:
        """Return the GPUs of NVIDIA's driver that are not in the inventory."""
        of_driver = [address for address, state in states.items() if state in {DRIVER, MISSING}]
        return [address for address in of_driver if address not in self._listed_addresses]

    def _find_failed(self) -> list[str]:
        """Return the GPUs that the driver failed to start, now or before."""
        return [address for address in self._addresses if self._xids.init_failure(address)]

    def _state(self, host: Host, address: str) -> int:
        driver = fact_readers.read_link_name(host, f"/sys/bus/pci/devices/{address}/driver")
        if driver in PASSTHROUGH_DRIVERS:
            return VIRTUAL_MACHINE
        if not driver:
            return UNBOUND
        if driver != NVIDIA_DRIVER:
            return OTHER_DRIVER
        # If NVML itself fails, it lists nothing, and no GPU is missing for that reason.
        is_missing = self._gpus.is_listed and address not in self._listed_addresses
        return MISSING if is_missing else DRIVER

    @property
    def _listed_addresses(self) -> set[str]:
        return {gpu.pci_address for gpu in self._gpus.gpus.values()}


def _finding(
    host: Host, address: str, state: int, *, has_peers: bool
) -> probe_result.ProbeFinding | None:
    driver = fact_readers.read_link_name(host, f"/sys/bus/pci/devices/{address}/driver")
    if state == VIRTUAL_MACHINE:
        detail = f"passed through to a virtual machine ({driver}); readable in its guest"
        return probe_result.ProbeFinding.supported(_SUBJECT, detail, device=address)
    if state == UNBOUND:
        # The driver binds to all of its GPUs when it is loaded: one without it was left out, or failed.
        verdict = (
            probe_result.ProbeVerdict.BROKEN if has_peers else probe_result.ProbeVerdict.ABSENT
        )
        remedy = "bind the GPU to nvidia or vfio-pci"
        return probe_result.ProbeFinding(
            _SUBJECT, verdict, "not bound to a driver", remedy, address
        )
    if state == OTHER_DRIVER:
        return probe_result.ProbeFinding.absent(
            _SUBJECT, f"bound to the driver {driver}", device=address
        )
    return None


def _failed_gpu(address: str) -> probe_result.ProbeFinding:
    detail = "not bound to a driver: nvidia failed to start it"
    return probe_result.ProbeFinding(
        _SUBJECT, probe_result.ProbeVerdict.BROKEN, detail, _SEE_HEALTH, address
    )


def _unlisted_gpu(host: Host, address: str) -> Entity:
    """A GPU that NVML does not list; its PCI address is its name if the driver has no UUID for it."""
    name = read_gpu_uuid(host, address) or address
    return Entity(entities.GPU, (name,), {"pci_address": address})


def _missing_gpu(gpu: Entity) -> probe_result.ProbeFinding:
    detail = f"bound to the nvidia driver as {gpu.key[0]}, but not reported by NVML"
    return probe_result.ProbeFinding(
        _SUBJECT, probe_result.ProbeVerdict.BROKEN, detail, _SEE_HEALTH, gpu.facts["pci_address"]
    )
