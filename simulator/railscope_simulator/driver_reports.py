"""Reports of drivers about a fault, in the kernel log and in NVML events.

Reports about GPUs are in the form of the driver's own (open-gpu-kernel-modules, NVIDIA's Xid
catalogue). Messages about NICs, with their levels, are in the form of linux,
drivers/pci/hotplug/pciehp_ctrl.c, drivers/pci/pcie/aer.c and the NICs' drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from railscope_simulator import conditions, device_models, node_hardware, scenarios
from railscope_simulator.gpu import BAD_ADDRESS, PAGE_BYTES
from railscope_simulator.gpu_nvlinks import FAULTY_LINK
from railscope_simulator.spec import NodeSpec

# nvml.h, nvmlEventType*.
DOUBLE_BIT_ECC, XID, DRAM_RETIREMENT, RECOVERY_ACTION = 0x2, 0x8, 0x400, 0x8000

_KINDS_SINCE = 590
"""First driver branch with events of retirement and of the recovery action."""

_RECOVERY_NAMES = {
    scenarios.GPU_RESET: "GPU Reset Required",
    scenarios.NODE_REBOOT: "Node Reboot Required",
    scenarios.DRAIN_AND_RESET: "Drain and Reset",
}
_UNKNOWN_PROCESS = "pid='<unknown>', name=<unknown>, "

APPLICATION_ERRORS = {
    13: "Graphics SM Warp Exception on (GPC 2, TPC 0, SM 1): Out Of Range Address",
    31: "Ch 0000001b, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_0 faulted @"
    " 0x7f4a_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000018",
}
"""Texts of Xids that an application causes."""

ERROR, WARNING, INFO = 3, 4, 6


@dataclass(frozen=True, slots=True)
class DriverReport:
    """A line of the kernel log, an NVML event (type and data), or both."""

    line: str = ""
    event: tuple[int, int] | None = None


def affects_gpu(spec: NodeSpec) -> bool:
    """True for a fault of a GPU, which is reset when the fault is repaired."""
    return spec.scenario in _FAULTS or spec.scenario == "thermal"


def driver_reports(
    scenario: conditions.Scenario, parts: node_hardware.NodeHardware
) -> list[DriverReport]:
    """Return the driver's reports at the onset, in order."""
    fault = _FAULTS.get(scenario.spec.scenario)
    if fault is None:
        return []
    driver = ReportingDriver(parts, parts.gpus[scenario.spec.affected_index])
    return [*driver.introduction(), *fault(driver)]


@dataclass(frozen=True, slots=True)
class ReportingDriver:
    """Driver of the affected GPU."""

    parts: node_hardware.NodeHardware
    gpu: node_hardware.SimulatedGpu

    @property
    def address(self) -> str:
        """PCI address without the function, as the driver prints it."""
        return self.gpu.pci_address.rpartition(".")[0]

    def introduction(self) -> Iterator[DriverReport]:
        """Yield the lines that precede the first Xid of a GPU."""
        yield DriverReport(f"NVRM: GPU at PCI:{self.address}: {self.gpu.uuid}")
        yield DriverReport(f"NVRM: GPU Board Serial Number: {self.gpu.serial}")

    def xid(self, number: int, text: str, *, dead: bool = False) -> DriverReport:
        """Return an Xid. A GPU with a failed bus or firmware emits no event."""
        line = f"NVRM: Xid (PCI:{self.address}): {number}, {text}"
        return DriverReport(line, None if dead else (XID, number))

    def recovery(self, action: int, *, dead: bool = False) -> Iterator[DriverReport]:
        """Yield the recovery action, if the driver reports one."""
        model = self.parts.model
        if model.has_recovery_action:
            name = _RECOVERY_NAMES[action]
            text = f"GPU recovery action changed from 0x0 (None) to {action:#x} ({name})"
            yield self.xid(154, text, dead=dead)
        if model.driver_branch >= _KINDS_SINCE and not dead:
            yield DriverReport(event=(RECOVERY_ACTION, action))

    def bad_memory(self) -> Iterator[DriverReport]:
        """A row is marked for remapping, or a page is retired."""
        model = self.parts.model
        if model.remaps_rows:
            repair = f"Row Remapper: New row (0x{BAD_ADDRESS:016x}) marked for remapping, reset gpu to activate."
        else:
            repair = f"Dynamic Page Retirement: New page retired, reboot to activate (0x{BAD_ADDRESS // PAGE_BYTES:016x})."
        yield self.xid(63, _UNKNOWN_PROCESS + repair)
        if model.driver_branch >= _KINDS_SINCE:
            yield DriverReport(event=(DRAM_RETIREMENT, 0))


def _gpu_lost(driver: ReportingDriver) -> Iterator[DriverReport]:
    yield driver.xid(79, _UNKNOWN_PROCESS + "GPU has fallen off the bus.", dead=True)
    yield DriverReport(f"NVRM: GPU {driver.address}.0: GPU has fallen off the bus.")
    yield from driver.recovery(scenarios.NODE_REBOOT, dead=True)


def _gpu_hung(driver: ReportingDriver) -> Iterator[DriverReport]:
    text = (
        f"Timeout after 6s of waiting for RPC response from GPU{driver.gpu.index} GSP!"
        " Expected function 76 (GSP_RM_CONTROL) (0x20803039 0x4)."
    )
    yield driver.xid(119, _UNKNOWN_PROCESS + text, dead=True)
    yield from driver.recovery(scenarios.GPU_RESET, dead=True)


def _row_remap(driver: ReportingDriver) -> Iterator[DriverReport]:
    yield from driver.bad_memory()
    yield from driver.recovery(scenarios.DRAIN_AND_RESET)


def _uncorrected(driver: ReportingDriver) -> Iterator[DriverReport]:
    address = f"physical address 0x{BAD_ADDRESS:x} partition 6, subpartition 1"
    text = f"An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at {address}."
    yield driver.xid(48, _UNKNOWN_PROCESS + text)
    yield DriverReport(event=(DOUBLE_BIT_ECC, 0))
    yield from driver.bad_memory()
    if driver.parts.model.remaps_rows:
        yield driver.xid(94, _UNKNOWN_PROCESS + "Contained: SM (0x1). RST: No, D-RST: Yes")
    yield from driver.recovery(scenarios.DRAIN_AND_RESET)


def _nvlink_errors(driver: ReportingDriver) -> Iterator[DriverReport]:
    links = driver.parts.model.nvlink
    link = min(FAULTY_LINK, links.links - 1) if links else 0
    if driver.parts.model.generation >= device_models.GpuGeneration.BLACKWELL:
        status = 0x0008_0226 | link << 13  # the link number is in the interrupt status word
        yield driver.xid(
            149,
            f"NETIR_BER_EVENT Nonfatal XC0 i0 Link {link:02d}"
            f" (0x{status:08x} 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
        )
        return
    if driver.parts.nvswitches:
        place = link % len(driver.parts.nvswitches)
        switch = f"nvidia-nvswitch{place}: SXid (PCI:{driver.parts.nvswitches[place]}): 20009"
        port = 4 * driver.gpu.index + place
        yield DriverReport(f"{switch}, Non-fatal, Link {port:02d} RX Short Error Rate")
        yield DriverReport(
            f"{switch}, Severity 0 Engine instance {port:02d} Sub-engine instance 00"
        )
        yield DriverReport(f"{switch}, Data {{0x00000020, 0x00000020, 0x00000000, 0x00000020}}")
    yield driver.xid(
        74,
        f"{_UNKNOWN_PROCESS}NVLink: fatal error detected on link {link}"
        "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    )
    yield from driver.recovery(scenarios.GPU_RESET)


_FAULTS: dict[str, Callable[[ReportingDriver], Iterator[DriverReport]]] = {
    "xid79": _gpu_lost,
    "gpu_hung": _gpu_hung,
    "row_remap": _row_remap,
    "ecc_uncorrected": _uncorrected,
    "nvlink_errors": _nvlink_errors,
}


def nic_reports(
    scenario: conditions.Scenario, parts: node_hardware.NodeHardware
) -> Iterator[tuple[int, str]]:
    """Yield levels and texts at the onset, in order."""
    report = {"nic_lost": _nic_lost, "pcie_degraded": _nic_degraded}.get(scenario.spec.scenario)
    if report:
        port = next(port for port in parts.ports if port.rail == scenario.spec.affected_index)
        path = next(device.path for device in parts.pci if device.address == port.pci_address)
        root, *_, above, _ = path.split("/")[4:]
        yield from report(port, root, above)


def _nic_lost(
    port: node_hardware.SimulatedPort, root: str, above: str
) -> Iterator[tuple[int, str]]:
    slot, nic = 1 + (port.rail or 0), f"{port.nic.driver} {port.pci_address}"
    yield INFO, f"pcieport {above}: pciehp: Slot({slot}): Link Down"
    yield INFO, f"pcieport {above}: pciehp: Slot({slot}): Card not present"
    aer, error = f"pcieport {root}: AER:", f"pcieport {above}: PCIe Bus Error:"
    yield ERROR, f"{aer} Uncorrectable (Fatal) error message received from {above}"
    yield ERROR, f"{error} severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)"
    yield ERROR, f"pcieport {above}:    [ 5] SDES                   (First)"
    if port.nic is device_models.CONNECTX7:
        yield ERROR, f"{nic}: poll_health:831:(pid 0): Fatal error 3 detected"
        yield ERROR, f"{nic}: mlx5_health_try_recover:338:(pid 1211): handling bad device here"
    yield INFO, f"{nic} {port.interface}: {port.nic.link_down}"


def _nic_degraded(
    port: node_hardware.SimulatedPort, root: str, above: str
) -> Iterator[tuple[int, str]]:
    del above
    nic = f"{port.nic.driver} {port.pci_address}"
    aer, error = f"pcieport {root}: AER:", f"{nic}: PCIe Bus Error:"
    yield WARNING, f"{aer} Correctable error message received from {port.pci_address}"
    yield WARNING, f"{error} severity=Correctable, type=Data Link Layer, (Receiver ID)"
    ids = f"[{port.nic.pci_vendor:04x}:{port.nic.pci_device:04x}]"
    yield WARNING, f"{nic}:   device {ids} error status/mask=00000040/00000000"
    yield WARNING, f"{nic}:    [ 6] BadTLP                "
